//! Bytes by state, with their high-water marks.

use super::block::State;
use crate::measure::{Highs, Level, Mark};

/// The totals of a heap. Conservation: `free + pending + used + claimed = reserved` at every step.
///
/// The `high` of a level is the highest since the latest mark; [`Heap::figures`](super::Heap::figures) has those
/// since each mark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Held from the device.
    pub(crate) reserved: Level,
    /// Charged for growth that is under way, so that two threads that grow never exceed the capacity together.
    pub(crate) planned: u64,
    pub(crate) free: Level,
    pub(crate) pending: Level,
    /// Granted (used, or cached by lanes), or set aside for reservations.
    pub(crate) used: Level,
    /// The part of `used` that is set aside for reservations and not allocated.
    pub(crate) set_aside: Level,
    /// Used or pending.
    pub(crate) in_use: Level,
    /// Claimed by unfinished plans and releases.
    pub(crate) claimed: u64,
    /// Number of blocks freed so far to the heap, past the lanes.
    pub(crate) returns: u64,
    /// Number of blocks flushed so far from lanes.
    pub(crate) taken_back: u64,
    /// The lowest number of free bytes since the last [`mark_free`](Self::mark_free).
    pub(crate) free_low: u64,
    /// Number of chunks wholly inside free blocks: those that can be remapped or released.
    pub(crate) whole_free_chunks: u64,
    /// Number of free blocks with such a chunk.
    pub(crate) releasable_blocks: u64,
}

impl Totals {
    #[inline]
    pub(crate) fn add(&mut self, state: &State, bytes: u64) {
        match state {
            State::Free => self.free.add(bytes),
            State::Pending(_) => {
                self.pending.add(bytes);
                self.in_use.add(bytes);
            }
            State::Used(_) => {
                self.used.add(bytes);
                self.in_use.add(bytes);
            }
            State::Reserved(..) => {
                self.used.add(bytes);
                self.in_use.add(bytes);
                self.set_aside.add(bytes);
            }
            State::Claimed(_) if state.is_backed() => self.claimed += bytes,
            State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    #[inline]
    pub(crate) fn subtract(&mut self, state: &State, bytes: u64) {
        match state {
            State::Free => self.free.subtract(bytes),
            State::Pending(_) => {
                self.pending.subtract(bytes);
                self.in_use.subtract(bytes);
            }
            State::Used(_) => {
                self.used.subtract(bytes);
                self.in_use.subtract(bytes);
            }
            State::Reserved(..) => {
                self.used.subtract(bytes);
                self.in_use.subtract(bytes);
                self.set_aside.subtract(bytes);
            }
            State::Claimed(_) if state.is_backed() => self.claimed -= bytes,
            State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    /// Counts the whole chunks of a block that becomes free.
    #[inline]
    pub(super) fn add_free_chunks(&mut self, chunks: u64) {
        self.whole_free_chunks += chunks;
        self.releasable_blocks += u64::from(chunks > 0);
    }

    /// Counts the whole chunks of a block that is not free any more.
    #[inline]
    pub(super) fn subtract_free_chunks(&mut self, chunks: u64) {
        self.whole_free_chunks -= chunks;
        self.releasable_blocks -= u64::from(chunks > 0);
    }

    /// Starts watching how low the free bytes get.
    pub(crate) fn mark_free(&mut self) {
        self.free_low = self.free.current;
    }

    pub(crate) fn note_low(&mut self) {
        self.free_low = self.free_low.min(self.free.current);
    }
}

/// A level of the heap whose high-water mark can be reset, and read since any mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum High {
    Reserved,
    Pending,
    Used,
    InUse,
    SetAside,
}

impl High {
    pub(crate) const ALL: [Self; 5] = [
        Self::Reserved,
        Self::Pending,
        Self::Used,
        Self::InUse,
        Self::SetAside,
    ];
}

/// The high-water marks of a heap since each mark, in the order of [`High`].
#[derive(Debug, Default)]
pub(super) struct HeapHighs(Highs<5>);

impl HeapHighs {
    pub(super) fn begin(&mut self, mark: Mark, totals: &mut Totals) {
        self.0.begin(mark, levels(totals));
    }

    pub(super) fn end(&mut self, mark: Mark) {
        self.0.end(mark);
    }

    pub(super) fn reset(&mut self, high: High, totals: &mut Totals) {
        let level = high as usize;
        let all = levels(totals);
        self.0.reset(level, all[level]);
    }

    /// Returns the totals with the high-water marks since `mark`.
    pub(super) fn since(&self, mark: Mark, mut totals: Totals) -> Totals {
        let current = levels(&mut totals).map(|level| *level);
        if let Some(highs) = self.0.since(mark, current) {
            let all = levels(&mut totals).into_iter().zip(highs);
            all.for_each(|(level, high)| level.high = high);
        }
        totals
    }
}

fn levels(totals: &mut Totals) -> [&mut Level; 5] {
    [
        &mut totals.reserved,
        &mut totals.pending,
        &mut totals.used,
        &mut totals.in_use,
        &mut totals.set_aside,
    ]
}
