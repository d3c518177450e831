//! Fences, sets of them, and vector clocks: the same lattice read from two sides.
//!
//! A block's *fence set* says which points of which streams its next use must come after. A
//! stream's *clock* says which points it comes after. Reuse is safe when the clock covers the set.

use crate::id::{StreamId, Ticket};
use smallvec::SmallVec;

/// A point of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence {
    pub(crate) stream: StreamId,
    pub(crate) ticket: Ticket,
}

/// For each stream, at most one point of it; sorted by stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fences(SmallVec<[Fence; 1]>);

/// What a stream comes after: a vector clock.
pub(crate) type Clock = Fences;

impl Fences {
    pub(crate) fn one(stream: StreamId, ticket: Ticket) -> Self {
        Self(smallvec::smallvec![Fence { stream, ticket }])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Fence> + '_ {
        self.0.iter().copied()
    }

    /// The only fence, if it is only one.
    pub(crate) fn single(&self) -> Option<Fence> {
        match self.0.as_slice() {
            [fence] => Some(*fence),
            _ => None,
        }
    }

    /// The point of `stream`, or the one before all.
    pub(crate) fn of(&self, stream: StreamId) -> Ticket {
        match self.position(stream) {
            Ok(at) => self.0[at].ticket,
            Err(_) => Ticket::ZERO,
        }
    }

    /// Adds a fence; of two points of one stream the later stays.
    pub(crate) fn join(&mut self, fence: Fence) {
        match self.position(fence.stream) {
            Ok(at) => self.0[at].ticket = self.0[at].ticket.max(fence.ticket),
            Err(at) => self.0.insert(at, fence),
        }
    }

    /// The union: what must come before either side must come before the whole.
    pub(crate) fn join_all(&mut self, other: &Self) {
        for fence in other.iter() {
            self.join(fence);
        }
    }

    pub(crate) fn covers(&self, fence: Fence) -> bool {
        fence.ticket <= self.of(fence.stream)
    }

    /// Drops the fences that `done` says are no longer needed.
    pub(crate) fn discharge(&mut self, done: impl Fn(Fence) -> bool) {
        self.0.retain(|fence| !done(*fence));
    }

    fn position(&self, stream: StreamId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |fence| fence.stream)
    }
}

impl FromIterator<Fence> for Fences {
    fn from_iter<I: IntoIterator<Item = Fence>>(fences: I) -> Self {
        let mut set = Self::default();
        fences.into_iter().for_each(|fence| set.join(fence));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(stream: u32, ticket: u64) -> Fence {
        Fence {
            stream: StreamId(stream),
            ticket: Ticket(ticket),
        }
    }

    #[test]
    fn the_later_point_of_a_stream_stays() {
        let mut set: Fences = [fence(2, 5), fence(1, 1), fence(2, 3)]
            .into_iter()
            .collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [fence(1, 1), fence(2, 5)]);
        set.join_all(&[fence(1, 4), fence(3, 1)].into_iter().collect());
        assert_eq!(set.of(StreamId(1)), Ticket(4));
        assert!(set.covers(fence(2, 5)) && !set.covers(fence(2, 6)));
        assert!(!set.covers(fence(9, 1)) && set.covers(fence(9, 0)));
    }

    #[test]
    fn discharged_fences_are_gone() {
        let mut set: Fences = [fence(1, 1), fence(2, 5)].into_iter().collect();
        set.discharge(|f| f.stream == StreamId(1));
        assert_eq!(set.single(), Some(fence(2, 5)));
    }
}
