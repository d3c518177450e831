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

/// For each stream, at most one point of it.
///
/// A block has such a set, and nearly all of them are of one fence or none: they are two words, and a block is one
/// cache line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fences(Points);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Points {
    #[default]
    None,
    // Not a `Fence`: in the padding of one there is no room for the tag.
    One(StreamId, Ticket),
    /// Two at least, sorted by stream.
    Several(Box<Sorted>),
}

type Sorted = SmallVec<[Fence; 4]>;

/// What a stream comes after: a vector clock.
pub(crate) type Clock = Fences;

impl Fences {
    pub(crate) fn one(stream: StreamId, ticket: Ticket) -> Self {
        Self(Points::One(stream, ticket))
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, Points::None)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Fence> + '_ {
        let several = match &self.0 {
            Points::Several(fences) => fences.as_slice(),
            Points::None | Points::One(..) => &[],
        };
        self.single().into_iter().chain(several.iter().copied())
    }

    /// The only fence, if it is only one.
    pub(crate) fn single(&self) -> Option<Fence> {
        match self.0 {
            Points::One(stream, ticket) => Some(Fence { stream, ticket }),
            Points::None | Points::Several(_) => None,
        }
    }

    /// The point of `stream`, or the one before all.
    pub(crate) fn of(&self, stream: StreamId) -> Ticket {
        match &self.0 {
            Points::One(only, ticket) if *only == stream => *ticket,
            Points::None | Points::One(..) => Ticket::ZERO,
            Points::Several(fences) => match position(fences, stream) {
                Ok(at) => fences[at].ticket,
                Err(_) => Ticket::ZERO,
            },
        }
    }

    /// Adds a fence; of two points of one stream the later stays.
    pub(crate) fn join(&mut self, fence: Fence) {
        match &mut self.0 {
            Points::None => self.0 = Points::One(fence.stream, fence.ticket),
            Points::One(stream, ticket) if *stream == fence.stream => {
                *ticket = fence.ticket.max(*ticket);
            }
            Points::One(stream, ticket) => {
                let (stream, ticket) = (*stream, *ticket);
                let mut fences = Sorted::from_slice(&[Fence { stream, ticket }, fence]);
                fences.sort_unstable();
                self.0 = Points::Several(Box::new(fences));
            }
            Points::Several(fences) => match position(fences, fence.stream) {
                Ok(at) => fences[at].ticket = fences[at].ticket.max(fence.ticket),
                Err(at) => fences.insert(at, fence),
            },
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
        match &mut self.0 {
            Points::None => {}
            Points::One(stream, ticket) => {
                let (stream, ticket) = (*stream, *ticket);
                if done(Fence { stream, ticket }) {
                    self.0 = Points::None;
                }
            }
            Points::Several(fences) => {
                fences.retain(|fence| !done(*fence));
                match fences.as_slice() {
                    [] => self.0 = Points::None,
                    [only] => self.0 = Points::One(only.stream, only.ticket),
                    _ => {}
                }
            }
        }
    }
}

fn position(fences: &Sorted, stream: StreamId) -> Result<usize, usize> {
    fences.binary_search_by_key(&stream, |fence| fence.stream)
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

    fn fence(stream: u64, ticket: u64) -> Fence {
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
        assert_eq!(set, [fence(2, 5)].into_iter().collect());
        set.discharge(|_| true);
        assert!(set.is_empty() && set.iter().next().is_none());
    }
}
