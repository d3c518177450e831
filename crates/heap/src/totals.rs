//! Bytes by state, with their high-water marks.
//!
//! Invariant *conservation*: free + pending + used + claimed = reserved, at every step of the heap.

use super::block::State;
use crate::level::{Highs, Level, Mark};

/// The totals of a heap. The `high` of a level is the highest since the latest mark. [`Figures`](super::Figures) has
/// the highest since any mark.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Held from the device.
    pub reserved: Level,
    /// Charged for growth that is under way, so that two threads that grow never exceed the capacity together.
    pub planned: u64,
    /// Charged for memory of the pool that is not in the heap: chunks that are shared with other processes.
    pub outside: u64,
    /// Bytes that any stream may take.
    pub free: Level,
    /// Freed bytes that work may still touch.
    pub pending: Level,
    /// Granted (used, or cached by lanes), or set aside for reservations.
    pub used: Level,
    /// The part of `used` that is set aside for reservations and not allocated.
    pub set_aside: Level,
    /// Used or pending.
    pub in_use: Level,
    /// Claimed by unfinished plans and releases.
    pub claimed: u64,
    /// Number of blocks freed so far to the heap, past the lanes.
    pub returns: u64,
    /// Number of blocks flushed so far from lanes, or given back to an ordered source.
    pub taken_back: u64,
    /// How often a stream was found further than it was known to be.
    pub progress: u64,
    /// The lowest number of free bytes since the last [`mark_free`](Self::mark_free).
    pub free_low: u64,
    /// Number of chunks wholly inside free blocks: those that can be remapped or released. Where memory is plain, the
    /// number of segments that are wholly free.
    pub whole_free_chunks: u64,
    /// Bytes of those chunks or segments.
    pub releasable: u64,
    /// Number of free blocks that hold at least one of them.
    pub releasable_blocks: u64,
}

impl Totals {
    #[inline]
    pub(super) fn add(&mut self, state: &State, bytes: u64) {
        self.change(state, |level| level.add(bytes), |claimed| *claimed += bytes);
    }

    #[inline]
    pub(super) fn subtract(&mut self, state: &State, bytes: u64) {
        self.change(
            state,
            |level| level.subtract(bytes),
            |claimed| *claimed -= bytes,
        );
    }

    /// Changes every level that counts the state, or the claimed bytes.
    #[inline(always)]
    fn change(
        &mut self,
        state: &State,
        change: impl Fn(&mut Level),
        change_claimed: impl FnOnce(&mut u64),
    ) {
        match state {
            State::Free => change(&mut self.free),
            State::Pending(_) => {
                change(&mut self.pending);
                change(&mut self.in_use);
            }
            State::Used(_) => {
                change(&mut self.used);
                change(&mut self.in_use);
            }
            State::Reserved(..) => {
                change(&mut self.used);
                change(&mut self.in_use);
                change(&mut self.set_aside);
            }
            State::Claimed(_) if state.is_backed() => change_claimed(&mut self.claimed),
            State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    /// Counts what of a block that becomes free can be released: this many bytes, as this many chunks or segments.
    #[inline]
    pub(super) fn add_releasable(&mut self, bytes: u64, chunks: u64) {
        self.releasable += bytes;
        self.whole_free_chunks += chunks;
        self.releasable_blocks += u64::from(chunks > 0);
    }

    /// Counts what could be released of a block that is not free any more.
    #[inline]
    pub(super) fn subtract_releasable(&mut self, bytes: u64, chunks: u64) {
        self.releasable -= bytes;
        self.whole_free_chunks -= chunks;
        self.releasable_blocks -= u64::from(chunks > 0);
    }

    /// Returns the bytes that are held from the device, in the heap and outside of it, or charged for growth under way.
    pub fn held(&self) -> u64 {
        self.reserved.current + self.planned + self.outside
    }

    /// Returns the bytes that are free or pending.
    pub fn unused(&self) -> u64 {
        self.free.current + self.pending.current
    }

    /// Starts watching how low the free bytes get.
    pub(super) fn mark_free(&mut self) {
        self.free_low = self.free.current;
    }

    pub(super) fn record_low(&mut self) {
        self.free_low = self.free_low.min(self.free.current);
    }
}

/// A level of the heap whose high-water mark can be reset, and read since any mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum High {
    /// Bytes from the device.
    Reserved,
    /// Freed bytes that work may still touch.
    Pending,
    /// Granted bytes.
    Used,
    /// Granted and pending bytes.
    InUse,
    /// Bytes of reservations.
    SetAside,
}

impl High {
    /// All of them.
    pub const ALL: [Self; 5] = [
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
