//! A lane's counters: each lane counts for itself, so that the hot path writes nothing shared, and readers add up.

use crate::measure::{Level, Mark, Peaks};

/// An event in a block's life that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A block was granted by the lane.
    Hit,
    /// A block was granted by the driver.
    FromAbove,
    /// A block grew in place.
    Growth,
    /// A block was freed.
    Free,
}

/// Sums over a lane's life. Bytes wrap around, and differences stay right: a stream that frees 2 MiB as fast as it can
/// reaches the limit in days, and a thread may free what others allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Blocks granted by the lane.
    pub(crate) hits: u64,
    /// Blocks of the stream granted by the driver.
    pub(crate) from_above: u64,
    pub(crate) frees: u64,
    /// Bytes granted so far.
    pub(crate) granted: u64,
    /// Bytes freed so far.
    pub(crate) freed: u64,
    /// Bytes of live blocks that were not requested.
    pub(crate) rounding: u64,
}

impl Counts {
    /// Blocks granted so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.hits + self.from_above
    }

    /// Live blocks.
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

    /// Counts an event of a block of `bytes`, of which `rounding` were not requested.
    #[inline(always)]
    pub(super) fn note(&mut self, event: Event, bytes: u64, rounding: u32) {
        match event {
            Event::Hit => self.hits += 1,
            Event::FromAbove => self.from_above += 1,
            Event::Growth => {}
            Event::Free => self.frees += 1,
        }
        if event == Event::Free {
            self.freed = self.freed.wrapping_add(bytes);
            self.rounding = self.rounding.wrapping_sub(u64::from(rounding));
        } else {
            self.granted = self.granted.wrapping_add(bytes);
            self.rounding = self.rounding.wrapping_add(u64::from(rounding));
        }
    }
}

/// A lane's counts, and the maxima of its used bytes.
#[derive(Debug, Default)]
pub(super) struct Counters {
    counts: Counts,
    peaks: Peaks,
}

impl Counters {
    #[inline(always)]
    pub(super) fn note(&mut self, event: Event, bytes: u64, rounding: u32) {
        self.counts.note(event, bytes, rounding);
        if event != Event::Free {
            self.peaks.raise(self.counts.used());
        }
    }

    /// Returns the maximum of the used bytes since a mark.
    pub(super) fn high_since(&self, mark: Mark) -> u64 {
        let since = self.peaks.since(mark);
        since.unwrap_or_else(|| self.counts.used())
    }

    /// Keeps the maximum from now on, under a mark. Returns the counts, with those of the shards.
    pub(super) fn begin(&mut self, mark: Mark, in_shards: &Counts) -> Counts {
        let sum = self.with(in_shards);
        self.peaks.begin(mark, sum.used());
        sum
    }

    pub(super) fn end(&mut self, mark: Mark) {
        self.peaks.end(mark);
    }

    /// Sets the maximum to the bytes used now, those of the shards included.
    pub(super) fn reset_high(&mut self, in_shards: &Counts) {
        let used = self.with(in_shards).used();
        self.peaks.reset(used);
    }

    /// Returns the sum with the counts of the shards.
    pub(super) fn with(&self, in_shards: &Counts) -> Counts {
        let mut sum = self.counts;
        sum.add(in_shards);
        sum
    }
}

/// A lane's counters and cached bytes at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaneFigures {
    pub(crate) counts: Counts,
    /// Cached bytes.
    pub(crate) cached: u64,
    /// Cached bytes that are complete on every stream.
    pub(crate) cached_complete: u64,
    /// The maximum of the used bytes; in shards, the part of it that was seen.
    pub(super) high: u64,
    /// Threads count in shards of their own.
    pub(super) is_sharded: bool,
}

/// More bytes than any lane uses; the sum over all streams does not overflow.
const UNKNOWN: u64 = 1 << 62;

impl LaneFigures {
    /// Bytes of live blocks.
    pub(crate) fn used(&self) -> Level {
        let current = self.counts.used();
        let high = if self.is_sharded {
            self.high.max(current)
        } else {
            self.high
        };
        Level { current, high }
    }

    /// An upper bound of the used bytes since the last reset.
    pub(crate) fn high_bound(&self) -> u64 {
        Self::bound(self.high, self.is_sharded)
    }

    /// An upper bound of the used bytes. While threads count in shards, the maximum of the sum is not known.
    pub(super) fn bound(high: u64, is_sharded: bool) -> u64 {
        if is_sharded { UNKNOWN } else { high }
    }
}
