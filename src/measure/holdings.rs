//! On which streams a tag holds something.
//!
//! Each grant and each free adds to one number, that of its stream: so that these are no more writes than two
//! sums would be, and what a tag holds where is the difference. Streams are told apart by their number up to
//! [`APART`]: two whose numbers differ by a multiple of that are taken for one.

use crate::id::StreamId;
use crate::sync::Count;

const APART: usize = 64;

/// The last is for what is set aside, and of no stream.
const PLACES: usize = APART + 1;

fn place_of(stream: StreamId) -> usize {
    if stream == StreamId::SET_ASIDE {
        APART
    } else {
        (stream.0 % APART as u64) as usize
    }
}

/// Some streams, as far as they are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams(u128);

impl Streams {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, stream: StreamId) -> bool {
        self.0 & 1 << place_of(stream) != 0
    }

    /// Whether all of these are among the others.
    pub(crate) fn are_among(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }

    /// Those that are among the others.
    pub(crate) fn among(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    fn at(places: impl Iterator<Item = usize>) -> Self {
        Self(places.fold(0, |all, place| all | 1 << place))
    }
}

/// A number for each stream.
#[derive(Debug)]
pub(crate) struct ByStream([Count; PLACES]);

impl Default for ByStream {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Count::default()))
    }
}

impl ByStream {
    #[inline]
    pub(crate) fn add(&self, stream: StreamId) {
        self.0[place_of(stream)].add(1);
    }

    pub(crate) fn subtract(&self, stream: StreamId) {
        self.0[place_of(stream)].subtract(1);
    }

    pub(crate) fn get(&self, stream: StreamId) -> u64 {
        self.0[place_of(stream)].get()
    }

    pub(crate) fn set(&self, stream: StreamId, number: u64) {
        self.0[place_of(stream)].set(number);
    }

    /// Those whose numbers are not zero.
    pub(crate) fn streams(&self) -> Streams {
        Streams::at((0..PLACES).filter(|place| self.0[*place].get() != 0))
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(Count::get).fold(0, u64::wrapping_add)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// Blocks granted so far; and reservations, which are of no stream then.
    granted: ByStream,
    /// The same freed so far.
    freed: ByStream,
    /// Reservations of which anything lives, by the stream that they are taken to be of.
    reserved: ByStream,
    /// How often blocks were drawn from them, or anything became more.
    drawn: ByStream,
    /// The same given back to them so far.
    returned: Count,
}

impl Holdings {
    #[inline]
    pub(super) fn note_granted(&self, stream: StreamId) {
        self.granted.add(stream);
    }

    #[inline]
    pub(super) fn note_freed(&self, stream: StreamId) {
        self.freed.add(stream);
    }

    pub(super) fn allocations(&self) -> u64 {
        self.granted.sum()
    }

    pub(super) fn frees(&self) -> u64 {
        self.freed.sum()
    }

    pub(super) fn note_drawn(&self, stream: StreamId) {
        self.drawn.add(stream);
    }

    /// What was granted became more.
    pub(super) fn note_more(&self, stream: StreamId) {
        self.drawn.add(stream);
    }

    pub(super) fn note_returned(&self) {
        self.returned.add(1);
    }

    /// A reservation is taken to be of another stream than before, if it was and will be.
    pub(super) fn move_reserved(&self, from: Option<StreamId>, to: Option<StreamId>) {
        to.into_iter().for_each(|to| self.reserved.add(to));
        let from = from.into_iter();
        from.for_each(|from| self.reserved.subtract(from));
    }

    /// Where anything is held.
    pub(super) fn streams(&self) -> Streams {
        Streams::at((0..PLACES).filter(|place| self.is_held_at(*place)))
    }

    fn is_held_at(&self, place: usize) -> bool {
        let at = |numbers: &ByStream| numbers.0[place].get();
        // Reservations count where they are taken to be, and not where they were granted.
        let blocks = if place == APART {
            0
        } else {
            at(&self.granted).wrapping_sub(at(&self.freed))
        };
        at(&self.reserved).wrapping_add(blocks) != 0
    }

    /// How often anything was granted for a stream, drawn, or made more.
    pub(super) fn begun_on(&self, stream: StreamId) -> u64 {
        let granted = self.granted.get(stream);
        granted.wrapping_add(self.drawn.get(stream))
    }

    /// Where nothing was granted since it was so often.
    pub(super) fn unchanged_since(&self, begun: &ByStream) -> Streams {
        let is_unchanged = |place: &usize| {
            let at = |numbers: &ByStream| numbers.0[*place].get();
            at(begun) == at(&self.granted).wrapping_add(at(&self.drawn))
        };
        Streams::at((0..PLACES).filter(is_unchanged))
    }

    /// A number that changes whenever anything is granted, freed, drawn or given back.
    pub(super) fn moves(&self) -> u64 {
        let in_reservations = self.drawn.sum().wrapping_add(self.returned.get());
        let moves = self.allocations().wrapping_add(self.frees());
        moves.wrapping_add(in_reservations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_known_by_stream() {
        let [one, other, far] = [1, 2, 1 + APART as u64].map(StreamId);
        let holdings = Holdings::default();
        assert!(holdings.streams().is_empty());
        holdings.note_granted(one);
        holdings.note_granted(one);
        holdings.note_granted(other);
        holdings.note_freed(other);
        let held = holdings.streams();
        assert!(held.contains(one) && !held.contains(other));
        assert!(held.contains(far), "taken for the same");
        assert_eq!((holdings.allocations(), holdings.frees()), (3, 1));
    }

    #[test]
    fn a_grant_is_seen_by_stream() {
        let [one, other] = [1, 2].map(StreamId);
        let (holdings, begun) = (Holdings::default(), ByStream::default());
        holdings.note_granted(one);
        assert!(!holdings.unchanged_since(&begun).contains(one));
        begun.set(one, holdings.begun_on(one));
        let unchanged = holdings.unchanged_since(&begun);
        assert!(unchanged.contains(one) && unchanged.contains(other));
        holdings.note_freed(one);
        assert!(holdings.unchanged_since(&begun).contains(one));
        holdings.note_drawn(other);
        let unchanged = holdings.unchanged_since(&begun);
        assert!(unchanged.contains(one) && !unchanged.contains(other));
    }

    #[test]
    fn a_reservation_is_held_where_it_is_taken_to_be() {
        let (stream, nowhere) = (StreamId(3), StreamId::SET_ASIDE);
        let holdings = Holdings::default();
        holdings.note_granted(nowhere);
        holdings.move_reserved(None, Some(nowhere));
        assert!(holdings.streams().contains(nowhere));
        let before = holdings.moves();
        holdings.note_drawn(stream);
        holdings.move_reserved(Some(nowhere), Some(stream));
        assert_ne!(holdings.moves(), before);
        assert!(holdings.streams().contains(stream) && !holdings.streams().contains(nowhere));
        holdings.note_freed(nowhere);
        assert!(holdings.streams().contains(stream), "blocks of it live");
        holdings.move_reserved(Some(stream), None);
        assert!(holdings.streams().is_empty());
    }
}
