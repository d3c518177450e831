//! What a lane counts. Each lane counts for itself, so that the hot path writes no shared cache line; readers add up.
//!
//! A thread may free to its shard what another thread took from its own, so the counts of one shard alone mean
//! nothing: one thread's frees may exceed its allocations. A reader therefore locks the stream state and all shards
//! together. Each lane is read at one moment, and no sum is below zero.

use super::Lane;
use super::shards::Shard;
use super::state::StreamState;
use crate::measure::{Highs, Level, Mark};
use crate::sync::{Guard, Mutex};

/// Sums over a lane's life. Bytes wrap around (a stream that takes and frees 2 MiB as fast as it can gets there in
/// days); differences stay right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of blocks that the lane granted.
    pub(crate) hits: u64,
    /// Number of blocks of the stream that the sources below the lane granted.
    pub(crate) from_above: u64,
    pub(crate) frees: u64,
    /// Bytes granted so far.
    pub(crate) granted: u64,
    /// Bytes freed so far.
    pub(crate) freed: u64,
    /// Bytes of live blocks that rounding added to the requests.
    pub(crate) rounding: u64,
}

impl Counts {
    /// Returns the number of blocks granted so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.hits + self.from_above
    }

    /// Returns the number of live blocks.
    pub(crate) fn live(&self) -> u64 {
        self.allocations().saturating_sub(self.frees)
    }

    /// Returns the bytes of live blocks.
    pub(crate) fn used(&self) -> u64 {
        difference(self.granted, self.freed)
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

/// Returns how far a sum that wraps around is ahead of another; zero if it is behind.
fn difference(ahead: u64, behind: u64) -> u64 {
    let difference = ahead.wrapping_sub(behind);
    if (difference as i64) < 0 {
        0
    } else {
        difference
    }
}

/// The counts of a stream state, with the high-water mark of its used bytes.
#[derive(Debug, Default)]
pub(super) struct Book {
    counts: Counts,
    /// The highest number of used bytes since the latest mark.
    high: u64,
    highs: Highs<1>,
}

impl Book {
    #[inline]
    pub(super) fn note_hit(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_hit(bytes, rounding);
        self.raise();
    }

    pub(super) fn note_from_above(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_from_above(bytes, rounding);
        self.raise();
    }

    #[inline]
    pub(super) fn note_bytes(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_bytes(bytes, rounding);
        self.raise();
    }

    #[inline]
    pub(super) fn note_free(&mut self, bytes: u64, rounding: u32) {
        self.counts.note_free(bytes, rounding);
    }

    pub(super) fn hits(&self) -> u64 {
        self.counts.hits
    }

    #[inline]
    fn raise(&mut self) {
        // Not `Counts::used`: beside shards, these counts alone may be below zero.
        let current = self.counts.granted.wrapping_sub(self.counts.freed);
        if current as i64 > self.high as i64 {
            self.high = current;
        }
    }

    fn used(&self, counts: &Counts) -> Level {
        Level {
            current: counts.used(),
            high: self.high,
        }
    }

    fn begin(&mut self, mark: Mark, counts: &Counts) {
        let mut used = self.used(counts);
        self.highs.begin(mark, [&mut used]);
        self.high = used.high;
    }

    fn reset_high(&mut self, counts: &Counts) {
        let mut used = self.used(counts);
        self.highs.reset(0, &mut used);
        self.high = used.high;
    }

    fn high_since(&self, mark: Mark, counts: &Counts) -> u64 {
        let used = self.used(counts);
        let high = self.highs.since(mark, [used]);
        high.map_or(0, |[high]| high).max(used.current)
    }
}

/// The figures of a lane at one moment, or of several lanes added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaneFigures {
    pub(crate) counts: Counts,
    /// The highest number of bytes of live blocks since a mark; where threads count in shards, the highest that was seen.
    pub(crate) high: u64,
    /// A number that the bytes of live blocks never exceeded since the mark.
    pub(crate) bound: u64,
    /// Bytes cached.
    pub(crate) cached: u64,
    /// The part of those that is complete on every stream.
    pub(crate) cached_complete: u64,
}

/// More bytes than any device has; as many of these as there are streams can be added up.
const UNKNOWN: u64 = 1 << 62;

impl LaneFigures {
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.high = self.high.saturating_add(other.high);
        self.bound = self.bound.saturating_add(other.bound);
        self.cached += other.cached;
        self.cached_complete += other.cached_complete;
    }

    /// Returns the bytes of live blocks.
    pub(crate) fn used(&self) -> Level {
        Level {
            current: self.counts.used(),
            high: self.high,
        }
    }
}

impl Lane {
    /// Counts a block of the stream that a source below the lane granted.
    pub(crate) fn count_from_above(&self, bytes: u64, rounding: u32) {
        match self.shards.own() {
            Some(shard) => shard.lock().counts.note_from_above(bytes, rounding),
            None => self.state.lock().book.note_from_above(bytes, rounding),
        }
    }

    /// Counts the bytes by which a block of the stream grew.
    pub(crate) fn count_growth(&self, bytes: u64, rounding: u32) {
        match self.shards.own() {
            Some(shard) => shard.lock().counts.note_bytes(bytes, rounding),
            None => self.state.lock().book.note_bytes(bytes, rounding),
        }
    }

    /// Counts the free of a block of the stream that was used on other streams as well.
    pub(crate) fn count_free(&self, bytes: u64, rounding: u32) {
        match self.shards.own() {
            Some(shard) => shard.lock().counts.note_free(bytes, rounding),
            None => self.state.lock().book.note_free(bytes, rounding),
        }
    }

    /// Returns the figures of one moment, with the high-water mark since `mark`.
    pub(crate) fn figures(&self, mark: Mark) -> LaneFigures {
        let completed = self.timeline.completed();
        self.counted(|state, shards, counts| {
            let high = state.book.high_since(mark, counts);
            let caches = shards.iter().map(|shard| shard.cache());
            let (cached, cached_complete) =
                caches
                    .chain([&state.cache])
                    .fold((0, 0), |(all, complete), cache| {
                        let up_to = cache.bytes_up_to(completed);
                        (all + cache.bytes(), complete + up_to)
                    });
            LaneFigures {
                counts: *counts,
                high,
                bound: if self.shards.are_made() {
                    UNKNOWN
                } else {
                    high
                },
                cached,
                cached_complete,
            }
        })
    }

    /// Keeps the high-water mark since now as well.
    pub(crate) fn begin(&self, mark: Mark) {
        self.counted(|state, _, counts| state.book.begin(mark, counts));
    }

    pub(crate) fn end(&self, mark: Mark) {
        self.state.lock().book.highs.end(mark);
    }

    pub(crate) fn reset_high(&self) {
        self.counted(|state, _, counts| state.book.reset_high(counts));
    }

    /// Looks at the stream state, all shards, and what they counted together, all of one moment.
    ///
    /// The state is locked first: shards are made under its lock. No code locks it while it holds a shard's lock.
    fn counted<R>(
        &self,
        look: impl FnOnce(&mut StreamState, &[Guard<'_, Shard>], &Counts) -> R,
    ) -> R {
        let mut state = self.state.lock();
        let shards: Vec<_> = self.shards.all().map(Mutex::lock).collect();
        let mut counts = state.book.counts;
        shards.iter().for_each(|shard| counts.add(&shard.counts));
        look(&mut state, &shards, &counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_of_wrapped_sums_is_right_and_never_below_zero() {
        assert_eq!(difference(3, u64::MAX), 4);
        assert_eq!(difference(u64::MAX, u64::MAX - 7), 7);
        assert_eq!(difference(5, 6), 0);
    }

    #[test]
    fn counts_of_more_frees_than_allocations_are_zero() {
        let mut counts = Counts::default();
        counts.note_free(512, 12);
        assert_eq!((counts.live(), counts.used()), (0, 0));
        counts.note_hit(512, 12);
        assert_eq!((counts.live(), counts.used(), counts.rounding), (0, 0, 0));
    }

    #[test]
    fn high_is_that_of_the_used_bytes_since_a_mark() {
        let mut book = Book::default();
        book.note_hit(1024, 0);
        book.note_free(1024, 0);
        let mark = Mark::RESET.next();
        let counts = book.counts;
        book.begin(mark, &counts);
        book.note_from_above(512, 0);
        let counts = book.counts;
        let since = |book: &Book, mark| book.high_since(mark, &counts);
        assert_eq!((since(&book, Mark::RESET), since(&book, mark)), (1024, 512));
        book.note_bytes(256, 0);
        let counts = book.counts;
        assert_eq!(book.high_since(mark, &counts), 768);
        book.reset_high(&counts);
        assert_eq!(book.high_since(Mark::RESET, &counts), 768);
    }
}
