//! Names that are numbers: never addresses, never reused.

use std::fmt;

/// A stream registered with a pool. Never reused within the pool, unlike a driver's handle (I7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// No stream's: of memory that is set aside.
    pub(crate) const SET_ASIDE: Self = Self(u32::MAX);

    /// The stream, if it is one.
    pub(crate) fn of_a_stream(self) -> Option<Self> {
        (self != Self::SET_ASIDE).then_some(self)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of_a_stream() {
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

/// A point in a stream, numbered from 1 upwards as the stream goes on.
///
/// A ticket is *open* while memory may still be freed under it, *closed* once the stream's next
/// ticket is open, *sealed* once an event recorded after the closing is published, and *complete*
/// once that event, or a later one of the stream, has completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

impl Ticket {
    /// Before all tickets: complete from the start.
    pub(crate) const ZERO: Self = Self(0);

    /// The ticket that is open when a stream is registered.
    pub(crate) const FIRST: Self = Self(1);

    /// After all tickets.
    pub(crate) const LAST: Self = Self(u64::MAX);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    pub(crate) fn previous(self) -> Self {
        Self(self.0 - 1)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
