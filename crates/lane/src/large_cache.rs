//! The large-block cache: a few large blocks that a lane keeps for a stream that allocates the same size again.
//!
//! Other streams need large blocks, and neighbouring ones merge in the heap. So this cache keeps few, each for a
//! request of exactly its size, and only for a stream that alternates: it allocates a size and frees it, again and
//! again, and no other size in between that this cache keeps. A request that finds no other memory takes blocks that
//! have been here for a while before the pool takes more from the device, and all of them before it waits.

use super::block::CachedBlock;
use crate::id::Ticket;
use smallvec::SmallVec;
use std::time::Duration;

/// Maximum number of blocks: the few large buffers of a batch.
const ROOM: usize = 4;

/// How many times in a row a stream allocates the size that it freed last, before such blocks are kept for it.
const ENOUGH: u32 = if cfg!(weirpool_loom) { 1 } else { 8 };

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct LargeCache {
    all: SmallVec<[LargeBlock; ROOM]>,
    alternation: Alternation,
}

#[derive(Clone, Copy, Debug)]
struct LargeBlock {
    cached: CachedBlock,
    /// When it was freed, by the device's clock.
    since: Duration,
}

/// Whether a stream frees and allocates one large size by turns.
#[derive(Debug, Default)]
struct Alternation {
    /// The size that was freed last.
    freed: u64,
    /// That size was requested since, and no other.
    is_taken: bool,
    /// How many times in a row.
    streak: u32,
}

impl Alternation {
    fn record_requested(&mut self, bytes: u64) {
        self.is_taken = self.freed == bytes && !self.is_taken;
        if !self.is_taken {
            self.streak = 0;
        }
    }

    fn record_freed(&mut self, bytes: u64) {
        let is_turn = self.freed == bytes && self.is_taken;
        self.streak = if is_turn { self.streak + 1 } else { 0 };
        (self.freed, self.is_taken) = (bytes, false);
    }
}

impl LargeCache {
    pub(super) fn bytes(&self) -> u64 {
        self.all().map(|cached| cached.bytes).sum()
    }

    pub(super) fn blocks(&self) -> usize {
        self.all.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = CachedBlock> + '_ {
        self.all.iter().map(|large| large.cached)
    }

    /// Notes the free of a block. Keeps it if the stream alternates, the time is given, and there is room among `bound`
    /// bytes. Returns whether it did.
    #[inline]
    pub(super) fn put(&mut self, cached: CachedBlock, since: Option<Duration>, bound: u64) -> bool {
        self.alternation.record_freed(cached.bytes);
        let has_room = self.alternation.streak >= ENOUGH
            && self.all.len() < ROOM
            && self.bytes() + cached.bytes <= bound;
        let Some(since) = since.filter(|_| has_room) else {
            return false;
        };
        self.all.push(LargeBlock { cached, since });
        true
    }

    /// Keeps a block whatever the stream does, if there is room. Returns whether it did.
    pub(super) fn push(&mut self, cached: CachedBlock) -> bool {
        let has_room = self.all.len() < ROOM;
        if has_room {
            let since = Duration::ZERO;
            self.all.push(LargeBlock { cached, since });
        }
        has_room
    }

    /// Returns whether the next block that is freed may be kept.
    pub(super) fn alternates(&self) -> bool {
        self.alternation.streak + 1 >= ENOUGH
    }

    /// Takes the block of exactly this size that was kept last.
    pub(super) fn take(&mut self, bytes: u64) -> Option<CachedBlock> {
        self.alternation.record_requested(bytes);
        let at = self
            .all
            .iter()
            .rposition(|large| large.cached.bytes == bytes)?;
        Some(self.all.remove(at).cached)
    }

    /// Takes the blocks that were freed at least `age` ago.
    pub(super) fn take_older(&mut self, now: Duration, age: Duration) -> Vec<CachedBlock> {
        let mut taken = Vec::new();
        if self.all.is_empty() {
            return taken;
        }
        self.all.retain(|large| {
            let is_older = now.saturating_sub(large.since) >= age;
            if is_older {
                taken.push(large.cached);
            }
            !is_older
        });
        taken
    }

    /// Bytes of blocks that were freed under tickets up to `ticket`.
    pub(super) fn bytes_up_to(&self, ticket: Ticket) -> u64 {
        let older = self.all().filter(|cached| cached.ticket <= ticket);
        older.map(|cached| cached.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::BlockId;

    const SIZE: u64 = 32 << 20;

    fn cached(id: usize, bytes: u64) -> CachedBlock {
        CachedBlock {
            id: BlockId::of_slot(id),
            address: 0,
            bytes,
            ticket: Ticket(id as u64),
        }
    }

    fn put(cache: &mut LargeCache, id: usize, at: u64) -> bool {
        cache.put(cached(id, SIZE), Some(Duration::from_micros(at)), 3 * SIZE)
    }

    /// Returns a cache of a stream that has alternated often enough, and holds nothing.
    fn warm() -> LargeCache {
        let mut cache = LargeCache::default();
        for turn in 1..=ENOUGH {
            assert!(!put(&mut cache, 0, 0));
            assert_eq!(cache.alternates(), turn >= ENOUGH, "turn {turn}");
            assert!(cache.take(SIZE).is_none());
        }
        cache
    }

    #[test]
    fn block_is_kept_once_the_stream_has_alternated_often_enough() {
        let mut cache = warm();
        assert!(put(&mut cache, 1, 0));
        assert_eq!(cache.bytes(), SIZE);
        assert_eq!(
            cache.take(SIZE).map(|block| block.id),
            Some(BlockId::of_slot(1))
        );
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn another_size_ends_the_alternation() {
        let disturb: [fn(&mut LargeCache); 3] = [
            |cache| {
                let _ = cache.take(2 * SIZE);
            },
            |cache| {
                let _ = cache.take(SIZE);
            },
            |cache| {
                cache.put(cached(9, 2 * SIZE), Some(Duration::ZERO), u64::MAX);
            },
        ];
        for disturb in disturb {
            let mut cache = warm();
            disturb(&mut cache);
            assert!(!put(&mut cache, 1, 0));
        }
    }

    #[test]
    fn bytes_and_number_are_bounded() {
        let mut cache = warm();
        let mut kept = 0;
        // Each free follows a request, so that the stream goes on alternating.
        while put(&mut cache, kept + 1, 0) {
            kept += 1;
            cache.alternation.is_taken = true;
        }
        assert_eq!(
            (kept, cache.bytes()),
            (3, 3 * SIZE),
            "the bound is reached, and not passed"
        );
        for small in 0..4 {
            cache.alternation = Alternation {
                freed: 1,
                is_taken: true,
                streak: ENOUGH,
            };
            assert_eq!(
                cache.put(cached(small, 1), Some(Duration::ZERO), u64::MAX),
                small == 0
            );
        }
    }

    #[test]
    fn older_blocks_are_taken_by_age() {
        let mut cache = warm();
        for (id, at) in [(1, 10), (2, 20)] {
            assert!(put(&mut cache, id, at));
            cache.alternation.is_taken = true;
        }
        assert_eq!(cache.bytes_up_to(Ticket(1)), SIZE);
        let us = Duration::from_micros;
        let ids = |taken: Vec<CachedBlock>| taken.iter().map(|block| block.id).collect::<Vec<_>>();
        assert!(cache.take_older(us(19), us(10)).is_empty());
        assert_eq!(ids(cache.take_older(us(20), us(10))), [BlockId::of_slot(1)]);
        assert_eq!(ids(cache.take_older(us(0), us(0))), [BlockId::of_slot(2)]);
    }
}
