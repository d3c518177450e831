//! Fences, sets of them, and vector clocks: one lattice, read from two sides.
//!
//! A block's *fence set* says which points of which streams its next use must come after. A stream's *clock* says
//! which points the stream comes after. Reuse is safe when the clock covers the set.

use crate::id::{StreamId, Ticket};
use smallvec::SmallVec;

/// A point of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    /// The stream.
    pub stream: StreamId,
    /// The point in it.
    pub ticket: Ticket,
}

/// A set of fences, with at most one point for each stream.
///
/// Every block has a set, and nearly all sets hold one fence or none. Those are stored inline, so that a block fits
/// into one cache line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fences(Points);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Points {
    #[default]
    None,
    One(StreamId, Ticket),
    /// At least two, sorted by stream.
    Several(Box<Sorted>),
}

type Sorted = SmallVec<[Fence; 4]>;

/// The points that a stream, or an event of it, comes after: a vector clock.
pub type Clock = Fences;

impl Fences {
    /// Creates a set of one fence.
    pub fn one(stream: StreamId, ticket: Ticket) -> Self {
        Self(Points::One(stream, ticket))
    }

    /// Returns whether nothing is waited for.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Points::None)
    }

    /// Returns the number of fences.
    pub fn len(&self) -> usize {
        match &self.0 {
            Points::None => 0,
            Points::One(..) => 1,
            Points::Several(fences) => fences.len(),
        }
    }

    /// Returns the fences, sorted by stream.
    pub fn iter(&self) -> impl Iterator<Item = Fence> + '_ {
        let several = match &self.0 {
            Points::Several(fences) => fences.as_slice(),
            Points::None | Points::One(..) => &[],
        };
        self.single().into_iter().chain(several.iter().copied())
    }

    /// Returns the fence if the set holds exactly one.
    pub fn single(&self) -> Option<Fence> {
        match self.0 {
            Points::One(stream, ticket) => Some(Fence { stream, ticket }),
            Points::None | Points::Several(_) => None,
        }
    }

    /// Returns the point of `stream`, or [`Ticket::ZERO`] if there is none.
    pub fn of(&self, stream: StreamId) -> Ticket {
        match &self.0 {
            Points::One(only, ticket) if *only == stream => *ticket,
            Points::None | Points::One(..) => Ticket::ZERO,
            Points::Several(fences) => match position(fences, stream) {
                Ok(at) => fences[at].ticket,
                Err(_) => Ticket::ZERO,
            },
        }
    }

    /// Adds a fence. If the set has a point of this stream already, the later of the two stays.
    pub fn join(&mut self, fence: Fence) {
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

    /// Adds all fences of the other set: a use that must come after either set must come after the union.
    pub fn join_all(&mut self, other: &Self) {
        for fence in other.iter() {
            self.join(fence);
        }
    }

    /// Returns whether the set has this point of the stream, or a later one.
    pub fn covers(&self, fence: Fence) -> bool {
        fence.ticket <= self.of(fence.stream)
    }

    /// Drops the fences for which `is_done` returns true.
    pub fn discharge(&mut self, is_done: impl Fn(Fence) -> bool) {
        match &mut self.0 {
            Points::None => {}
            Points::One(stream, ticket) => {
                let (stream, ticket) = (*stream, *ticket);
                if is_done(Fence { stream, ticket }) {
                    self.0 = Points::None;
                }
            }
            Points::Several(fences) => {
                fences.retain(|fence| !is_done(*fence));
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

/// The clock of one stream. It is joined with others for as long as the stream lives, so it drops the entries of
/// retired streams whenever it has doubled: it holds at most twice as many entries as there are live streams, or
/// [`FEW`].
#[derive(Debug)]
pub struct StreamClock {
    points: Clock,
    /// The number of entries above which retired streams are dropped.
    most: usize,
}

/// The number of entries that are kept without looking for retired streams.
const FEW: usize = 16;

impl Default for StreamClock {
    fn default() -> Self {
        Self {
            points: Clock::default(),
            most: FEW,
        }
    }
}

impl StreamClock {
    /// Returns the points as of now.
    pub fn points(&self) -> &Clock {
        &self.points
    }

    /// Adds the points of another clock. Returns whether retired streams should be dropped now.
    pub fn join(&mut self, other: &Clock) -> bool {
        self.points.join_all(other);
        self.points.len() > self.most
    }

    /// Drops retired streams. Their work is complete, so no block is pending on it.
    pub fn drop_retired(&mut self, is_retired: impl Fn(StreamId) -> bool) {
        self.points.discharge(|fence| is_retired(fence.stream));
        self.most = FEW.max(2 * self.points.len());
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
    fn later_point_of_a_stream_stays() {
        let mut set: Fences = [fence(2, 5), fence(1, 1), fence(2, 3)]
            .into_iter()
            .collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [fence(1, 1), fence(2, 5)]);
        set.join_all(&[fence(1, 4), fence(3, 1)].into_iter().collect());
        assert_eq!(set.len(), 3);
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
        assert_eq!(set.len(), 1);
        set.discharge(|_| true);
        assert!(set.is_empty() && set.iter().next().is_none());
        assert_eq!(set.len(), 0);
    }

    #[test]
    fn stream_clock_drops_retired_streams_when_it_has_doubled() {
        let mut clock = StreamClock::default();
        let is_retired = |stream: StreamId| !stream.0.is_multiple_of(4);
        let mut drops = 0;
        for stream in 0..1000 {
            if clock.join(&Clock::one(StreamId(stream), Ticket(1))) {
                let live = stream as usize / 4 + 1;
                assert_eq!(clock.points().len(), FEW.max(2 * drops) + 1);
                clock.drop_retired(is_retired);
                assert_eq!(clock.points().len(), live, "live streams stay");
                drops = live;
            }
        }
        assert!(clock.points().covers(fence(996, 1)) && !clock.points().covers(fence(997, 2)));
        assert!(drops > 100, "it was pruned often enough");
    }
}
