//! Numbers that name streams and points in them. A number is 64 bits wide and never reused.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

/// The id of a stream registered with a pool. The pool never reuses an id, while drivers reuse their handles
/// (invariant *stable-ids*).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamId(#[doc(hidden)] pub u64);

impl StreamId {
    /// Marks memory that is set aside and belongs to no stream.
    #[doc(hidden)]
    pub const SET_ASIDE: Self = Self(u64::MAX);

    /// Stands for a taker that is no stream: only memory that is complete on every stream is safe for it.
    #[doc(hidden)]
    pub const NONE: Self = Self(0);

    /// Marks the order of a captured stream: no id of a stream is as high.
    const ORDER: u64 = 1 << 52;

    /// Makes the id the one of the order of a captured stream.
    #[doc(hidden)]
    pub fn as_order(self) -> Self {
        Self(self.0 | Self::ORDER)
    }

    /// Returns whether it names the order of a captured stream, whose fences no event proves.
    #[doc(hidden)]
    pub fn is_order(self) -> bool {
        self != Self::SET_ASIDE && self.0 & Self::ORDER != 0
    }

    /// Returns the id if it names a stream, and `None` for memory that is set aside.
    #[doc(hidden)]
    pub fn of_a_stream(self) -> Option<Self> {
        (self != Self::SET_ASIDE).then_some(self)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of_a_stream() {
            Some(id) if id.is_order() => write!(f, "order {}", id.0 ^ Self::ORDER),
            Some(Self(number)) => write!(f, "S{number}"),
            None => f.write_str("no stream"),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The id of memory that is set aside for one holder. The heap never reuses an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub NonZeroU64);

impl ReservationId {
    /// Returns the id of the reservation that was created after this many others.
    pub fn after(created: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(created))
    }
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}", self.0)
    }
}

/// The names of the streams that have one.
pub type StreamNames = BTreeMap<StreamId, String>;

/// A stream with its name, if it has one, as text: `decode (S1)` or `S1`.
#[derive(Clone, Copy, Debug)]
pub struct StreamLabel<'a> {
    /// The stream.
    pub id: StreamId,
    /// Its name.
    pub name: Option<&'a str>,
}

impl<'a> StreamLabel<'a> {
    /// Looks the name up.
    pub fn new(id: StreamId, names: &'a StreamNames) -> Self {
        let name = names.get(&id).map(String::as_str);
        Self { id, name }
    }
}

impl fmt::Display for StreamLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "{name} ({})", self.id),
            None => fmt::Display::fmt(&self.id, f),
        }
    }
}

/// A point in a stream, numbered from 1 upwards as the stream goes on.
///
/// A ticket is *open* while memory may still be freed under it, *closed* once the stream's next
/// ticket is open, *sealed* once an event recorded after the closing is published, and *complete*
/// once that event, or a later one of the stream, has completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl Ticket {
    /// Before all tickets: complete from the start.
    pub const ZERO: Self = Self(0);

    /// The ticket that is open when a stream is registered.
    pub const FIRST: Self = Self(1);

    /// After all tickets.
    pub const LAST: Self = Self(u64::MAX);

    /// Returns the ticket that follows.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the ticket before. None comes before the first one.
    pub fn previous(self) -> Self {
        Self(self.0 - 1)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
