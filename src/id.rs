//! Numbers that name streams and points in them. A number is 64 bits wide and never reused.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

/// The id of a stream registered with a pool. The pool never reuses an id, while drivers reuse their handles
/// (invariant *stable-ids*).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// Marks memory that is set aside and belongs to no stream.
    pub(crate) const SET_ASIDE: Self = Self(u64::MAX);

    /// Stands for a taker that is no stream: only memory that is complete on every stream is safe for it.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the id if it names a stream, and `None` for memory that is set aside.
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

/// The id of memory that is set aside for one holder. The heap never reuses an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReservationId(pub(crate) NonZeroU64);

impl ReservationId {
    /// Returns the id of the reservation that was created after this many others.
    pub(crate) fn after(created: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(created))
    }
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}", self.0)
    }
}

/// The names of the streams that have one.
pub(crate) type StreamNames = BTreeMap<StreamId, String>;

/// A stream with its name, if it has one, as text: `decode (S1)` or `S1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLabel<'a> {
    pub(crate) id: StreamId,
    pub(crate) name: Option<&'a str>,
}

impl<'a> StreamLabel<'a> {
    pub(crate) fn new(id: StreamId, names: &'a StreamNames) -> Self {
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

#[cfg(test)]
mod tests {
    use crate::Pool;
    use crate::device::sim::SimDevice;

    #[test]
    fn stream_ids_continue_beyond_32_bits() {
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let register = || pool.register(&device.create_stream()).unwrap();
        let first = register();
        pool.service().driver.skip_stream_ids(u64::from(u32::MAX));
        let later = [(); 3].map(|()| register());
        let ids = later.each_ref().map(|stream| stream.id());
        assert!(ids.is_sorted() && ids[0] > first.id());
        assert!(ids.iter().all(|id| id.of_a_stream().is_some()));
        let block = pool.try_allocate(&later[0], 512).unwrap();
        let address = block.address();
        drop(block);
        assert_ne!(
            pool.try_allocate(&later[1], 512).unwrap().address(),
            address
        );
        assert_eq!(
            pool.try_allocate(&later[0], 512).unwrap().address(),
            address
        );
    }
}
