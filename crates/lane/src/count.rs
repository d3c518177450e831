//! A lane's counters: each lane counts for itself, so that the hot path writes nothing shared, and readers add up.

use crate::heap::{Highs, Level, Mark};
use crate::measure::Source;

/// An event in a block's life that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A block was granted.
    Granted(Source),
    /// A block grew in place.
    Growth,
    /// A block was freed.
    Free,
}

/// Sums over a lane's life. Bytes wrap around, and differences stay right: a stream that frees 2 MiB as fast as it can
/// reaches the limit in days, and a thread may free what others allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// In this order the sums of the hot path are neighbours. It counts only the first source.
#[repr(C)]
pub struct Counts {
    /// Bytes of live blocks that were not requested.
    pub rounding: u64,
    /// Bytes freed so far.
    pub freed: u64,
    /// Bytes granted so far.
    pub granted: u64,
    pub frees: u64,
    /// Blocks granted.
    pub by_source: [u64; Source::ALL.len()],
}

impl Counts {
    /// Blocks granted so far.
    pub fn allocations(&self) -> u64 {
        self.by_source.iter().sum()
    }

    /// Blocks granted by the lane.
    pub fn hits(&self) -> u64 {
        self.by_source[Source::Lane as usize]
    }

    /// Live blocks.
    pub fn live(&self) -> u64 {
        self.allocations().saturating_sub(self.frees)
    }

    /// Bytes of live blocks.
    pub fn used(&self) -> u64 {
        // A thread's own counts may be below zero: it may free what others allocated.
        let used = self.granted.wrapping_sub(self.freed);
        if used as i64 >= 0 { used } else { 0 }
    }

    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.by_source.iter_mut().zip(other.by_source) {
            *count += more;
        }
        self.frees += other.frees;
        self.granted = self.granted.wrapping_add(other.granted);
        self.freed = self.freed.wrapping_add(other.freed);
        self.rounding = self.rounding.wrapping_add(other.rounding);
    }

    /// Counts an event of a block of `bytes`, of which `rounding` were not requested.
    #[inline(always)]
    pub(super) fn count(&mut self, event: BlockEvent, bytes: u64, rounding: u32) {
        match event {
            BlockEvent::Granted(source) => self.by_source[source as usize] += 1,
            BlockEvent::Growth => {}
            BlockEvent::Free => self.frees += 1,
        }
        if event == BlockEvent::Free {
            self.freed = self.freed.wrapping_add(bytes);
            self.rounding = self.rounding.wrapping_sub(u64::from(rounding));
        } else {
            self.granted = self.granted.wrapping_add(bytes);
            self.rounding = self.rounding.wrapping_add(u64::from(rounding));
        }
    }
}

/// A lane's counts, and the high-water marks of its used bytes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// The highest number of used bytes since the latest mark.
    high: u64,
    counts: Counts,
    highs: Highs<1>,
}

impl Counters {
    #[inline(always)]
    pub(super) fn count(&mut self, event: BlockEvent, bytes: u64, rounding: u32) {
        self.counts.count(event, bytes, rounding);
        if event != BlockEvent::Free {
            let used = self.counts.granted.wrapping_sub(self.counts.freed);
            // Signed: beside shards, these counts alone may be below zero.
            if used as i64 > self.high as i64 {
                self.high = used;
            }
        }
    }

    /// Keeps the high-water mark from now on under a further mark.
    pub fn begin(&mut self, mark: Mark, in_shards: &Counts) {
        let mut used = self.used(in_shards);
        self.highs.begin(mark, [&mut used]);
        self.high = used.high;
    }

    pub fn end(&mut self, mark: Mark) {
        self.highs.end(mark);
    }

    /// Sets the high-water mark to the bytes used now.
    pub fn reset_high(&mut self, in_shards: &Counts) {
        let mut used = self.used(in_shards);
        self.highs.reset(0, &mut used);
        self.high = used.high;
    }

    /// Returns the highest number of used bytes since a mark, as far as it was seen beside shards.
    pub(super) fn high_since(&self, mark: Mark, in_shards: &Counts) -> u64 {
        let used = self.used(in_shards);
        let high = self.highs.since(mark, [used]);
        high.map_or(0, |[high]| high).max(used.current)
    }

    /// Returns the sum with the counts of the shards.
    pub(super) fn with(&self, in_shards: &Counts) -> Counts {
        let mut sum = self.counts;
        sum.add(in_shards);
        sum
    }

    fn used(&self, in_shards: &Counts) -> Level {
        Level {
            current: self.with(in_shards).used(),
            high: self.high,
        }
    }
}

/// The figures of a lane at one moment, or of several lanes added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneFigures {
    /// Blocks, by where they came from.
    pub counts: Counts,
    /// The highest number of bytes of live blocks since a mark; beside shards, the highest that was seen.
    pub high: u64,
    /// A number that the bytes of live blocks did not exceed since the mark.
    pub bound: u64,
    /// Cached bytes.
    pub cached: u64,
    /// Cached bytes that are complete on every stream.
    pub cached_complete: u64,
}

/// More bytes than any lane uses; the sum over all streams does not overflow.
pub(super) const UNKNOWN: u64 = 1 << 62;

impl LaneFigures {
    /// Adds the figures of another lane, or of a shard.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.high = self.high.saturating_add(other.high);
        self.bound = self.bound.saturating_add(other.bound);
        self.cached += other.cached;
        self.cached_complete += other.cached_complete;
    }

    /// Returns the bytes of live blocks.
    pub fn used(&self) -> Level {
        Level {
            current: self.counts.used(),
            high: self.high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_wrap_around_are_right_and_never_below_zero() {
        let mut counts = Counts {
            granted: u64::MAX,
            freed: u64::MAX - 512,
            ..Counts::default()
        };
        counts.count(BlockEvent::Granted(Source::Lane), 1024, 0);
        assert_eq!((counts.live(), counts.used()), (1, 1536));
        counts.count(BlockEvent::Free, 1024, 0);
        counts.count(BlockEvent::Free, 1024, 12);
        assert_eq!((counts.live(), counts.used()), (0, 0));
        counts.count(BlockEvent::Granted(Source::Free), 512, 12);
        assert_eq!((counts.used(), counts.rounding), (0, 0));
    }

    #[test]
    fn high_is_that_of_the_used_bytes_since_a_mark() {
        let (mut counters, none) = (Counters::default(), Counts::default());
        counters.count(BlockEvent::Granted(Source::Lane), 1024, 0);
        counters.count(BlockEvent::Free, 1024, 0);
        let mark = Mark::RESET.next();
        counters.begin(mark, &none);
        counters.count(BlockEvent::Granted(Source::Free), 512, 0);
        let highs =
            |counters: &Counters| [Mark::RESET, mark].map(|mark| counters.high_since(mark, &none));
        assert_eq!(highs(&counters), [1024, 512]);
        counters.count(BlockEvent::Growth, 256, 0);
        assert_eq!(highs(&counters), [1024, 768]);
        counters.count(BlockEvent::Free, 512, 0);
        counters.reset_high(&none);
        assert_eq!(highs(&counters), [256, 768]);
    }
}
