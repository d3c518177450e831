//! What a lane counts, for itself: so that the hot path writes nothing shared, and readers add up.

use super::Lane;
use crate::measure::{Level, Mark, Peaks};

/// Sums over a lane's life. Bytes wrap around (a stream that takes and frees 2 MiB as fast as it can
/// comes there in days; a thread may free what others took), and differences stay right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Blocks that the lane granted.
    pub(crate) hits: u64,
    /// Blocks of the stream that came from above the lane.
    pub(crate) from_above: u64,
    pub(crate) frees: u64,
    /// Bytes granted so far.
    pub(crate) granted: u64,
    /// Bytes freed so far.
    pub(crate) freed: u64,
    /// Bytes of live blocks that nobody asked for: what rounding adds.
    pub(crate) rounding: u64,
}

impl Counts {
    /// Blocks granted so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.hits + self.from_above
    }

    /// Blocks that live.
    pub(crate) fn live(&self) -> u64 {
        self.allocations() - self.frees
    }

    /// Bytes of live blocks.
    pub(crate) fn used(&self) -> u64 {
        self.granted.wrapping_sub(self.freed)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.from_above += other.from_above;
        self.frees += other.frees;
        self.granted = self.granted.wrapping_add(other.granted);
        self.freed = self.freed.wrapping_add(other.freed);
        self.rounding = self.rounding.wrapping_add(other.rounding);
    }

    #[inline]
    pub(super) fn note_hit(&mut self, bytes: u64, rounding: u32) {
        self.hits += 1;
        self.note_bytes(bytes, rounding);
    }

    pub(super) fn note_from_above(&mut self, bytes: u64, rounding: u32) {
        self.from_above += 1;
        self.note_bytes(bytes, rounding);
    }

    #[inline]
    pub(super) fn note_bytes(&mut self, bytes: u64, rounding: u32) {
        self.granted = self.granted.wrapping_add(bytes);
        self.rounding = self.rounding.wrapping_add(u64::from(rounding));
    }

    #[inline]
    pub(super) fn note_free(&mut self, bytes: u64, rounding: u32) {
        self.frees += 1;
        self.freed = self.freed.wrapping_add(bytes);
        self.rounding = self.rounding.wrapping_sub(u64::from(rounding));
    }
}

/// A lane's counts, and the highest that its used bytes have been.
#[derive(Debug, Default)]
pub(super) struct Book {
    counts: Counts,
    peaks: Peaks,
}

impl Book {
    #[inline]
    pub(super) fn note_hit(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_hit(bytes, rounding);
        self.peaks.raise(self.counts.used());
    }

    pub(super) fn note_from_above(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_from_above(bytes, rounding);
        self.peaks.raise(self.counts.used());
    }

    #[inline]
    pub(super) fn note_bytes(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_bytes(bytes, rounding);
        self.peaks.raise(self.counts.used());
    }

    #[inline]
    pub(super) fn note_free(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_free(bytes, rounding);
    }

    pub(super) fn hits(&self) -> u64 {
        self.counts.hits
    }

    fn used(&self) -> Level {
        let current = self.counts.used();
        Level {
            current,
            high: self.high_since(Mark::RESET),
        }
    }

    fn high_since(&self, mark: Mark) -> u64 {
        let since = self.peaks.since(mark);
        since.unwrap_or_else(|| self.counts.used())
    }
}

/// What a lane counted, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaneFigures {
    pub(crate) counts: Counts,
    /// Bytes of live blocks.
    pub(crate) used: Level,
    /// Bytes kept.
    pub(crate) cached: u64,
    /// Bytes kept that are complete on every stream.
    pub(crate) cached_complete: u64,
    /// Threads count by themselves: the highest is what was seen of it.
    is_sharded: bool,
}

/// More bytes than there are, of which as many as there are streams can be added up.
const UNKNOWN: u64 = 1 << 62;

impl LaneFigures {
    /// What the used bytes were never above.
    pub(crate) fn bound(&self) -> u64 {
        if self.is_sharded {
            UNKNOWN
        } else {
            self.used.high
        }
    }
}

impl Lane {
    /// Counts a block of the stream that came from above the lane.
    pub(crate) fn count_from_above(&self, bytes: u64, rounding: u32) {
        match self.shards.own() {
            Some(shard) => shard.lock().counts.note_from_above(bytes, rounding),
            None => self.state.lock().book.note_from_above(bytes, rounding),
        }
    }

    /// Counts what a block of the stream grew by.
    pub(crate) fn count_growth(&self, bytes: u64, rounding: u32) {
        match self.shards.own() {
            Some(shard) => shard.lock().counts.note_bytes(bytes, rounding),
            None => self.state.lock().book.note_bytes(bytes, rounding),
        }
    }

    /// Counts the free of a block of the stream that was used on others as well.
    pub(crate) fn count_free(&self, bytes: u64, rounding: u32) {
        match self.shards.own() {
            Some(shard) => shard.lock().counts.note_free(bytes, rounding),
            None => self.state.lock().book.note_free(bytes, rounding),
        }
    }

    pub(crate) fn figures(&self) -> LaneFigures {
        let completed = self.timeline.completed();
        let mut figures = {
            let state = self.state.lock();
            LaneFigures {
                counts: state.book.counts,
                used: state.book.used(),
                cached: state.cache.bytes(),
                cached_complete: state.cache.bytes_up_to(completed),
                is_sharded: self.shards.are_made(),
            }
        };
        for shard in self.shards.all() {
            let shard = shard.lock();
            figures.counts.add(&shard.counts);
            figures.cached += shard.cache().bytes();
            figures.cached_complete += shard.cache().bytes_up_to(completed);
        }
        if figures.is_sharded {
            figures.used.current = figures.counts.used();
            figures.used.high = figures.used.high.max(figures.used.current);
        }
        figures
    }

    /// What the sides counted so far.
    fn counts_in_shards(&self) -> Counts {
        let mut counts = Counts::default();
        for shard in self.shards.all() {
            counts.add(&shard.lock().counts);
        }
        counts
    }

    /// Keeps the highest that the used bytes are since now. Returns what is counted so far.
    pub(crate) fn begin(&self, mark: Mark) -> Counts {
        let mut counts = self.counts_in_shards();
        let book = &mut self.state.lock().book;
        counts.add(&book.counts);
        book.peaks.begin(mark, counts.used());
        counts
    }

    pub(crate) fn end(&self, mark: Mark) {
        self.state.lock().book.peaks.end(mark);
    }

    /// What is counted so far, and the highest that the used bytes have been since a mark: in a shards, no more than
    /// a number that they were not above.
    pub(crate) fn counts_since(&self, mark: Mark) -> (Counts, u64) {
        let mut counts = self.counts_in_shards();
        let book = &self.state.lock().book;
        counts.add(&book.counts);
        let high = match self.shards.are_made() {
            true => UNKNOWN,
            false => book.high_since(mark),
        };
        (counts, high)
    }

    pub(crate) fn reset_high(&self) {
        let mut counts = self.counts_in_shards();
        let book = &mut self.state.lock().book;
        counts.add(&book.counts);
        book.peaks.reset(counts.used());
    }
}
