//! The blocks that a lane keeps: a stack for each size, so that taking and keeping are O(1); and a large-block cache for few
//! large ones.

use super::large_cache::LargeCache;
use crate::heap::{BlockId, GRANULE};
use crate::id::Ticket;
use std::time::Duration;

/// A block that a stream freed and its lane kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedBlock {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The ticket under which it was freed.
    pub(crate) ticket: Ticket,
}

const NONE: u32 = u32::MAX;

/// What is taken for another size is larger by such a part of that at most: half of what the classes of sizes waste that
/// jemalloc has, four to each doubling.
const NEAR: usize = 8;

/// Stacks that are looked at together.
const RUN: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Of no bytes, if the slot is vacant.
    cached: CachedBlock,
    /// The slot below in its stack, or the next vacant one.
    below: u32,
}

impl Slot {
    fn cached(&self) -> Option<CachedBlock> {
        (self.cached.bytes > 0).then_some(self.cached)
    }
}

/// Stacks of kept blocks, one for each multiple of [`GRANULE`] up to a largest size.
#[derive(Debug)]
pub(crate) struct Cache {
    tops: Box<[u32]>,
    slots: Vec<Slot>,
    vacant: u32,
    /// In the stacks.
    bytes: u64,
    large_cache: LargeCache,
}

impl Cache {
    /// A cache for blocks of up to `largest` bytes.
    pub(crate) fn new(largest: u64) -> Self {
        let sizes = usize::try_from(largest / GRANULE).expect("a lane's largest block is small");
        Self {
            tops: vec![NONE; sizes + 1].into_boxed_slice(),
            slots: Vec::new(),
            vacant: NONE,
            bytes: 0,
            large_cache: LargeCache::default(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.large_cache.bytes()
    }

    /// Whether a block has a stack, and may be kept there among `bound` bytes.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64, bound: u64) -> bool {
        self.has_size(bytes) && self.bytes + bytes <= bound
    }

    /// Keeps a block that has no stack, if there is a place for it among `bound` bytes.
    pub(crate) fn shelve(&mut self, cached: CachedBlock, since: Duration, bound: u64) -> bool {
        !self.has_size(cached.bytes) && self.large_cache.put(cached, since, bound)
    }

    /// Whether blocks of this size have a stack.
    #[inline]
    pub(crate) fn has_size(&self, bytes: u64) -> bool {
        ((bytes / GRANULE) as usize) < self.tops.len()
    }

    /// Keeps a block of a size that [`has_size`](Self::has_size).
    #[inline]
    pub(crate) fn push(&mut self, cached: CachedBlock) {
        let top = &mut self.tops[(cached.bytes / GRANULE) as usize];
        let slot = Slot {
            cached,
            below: *top,
        };
        *top = match self.vacant {
            NONE => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
            vacant => {
                let place = &mut self.slots[vacant as usize];
                self.vacant = place.below;
                *place = slot;
                vacant
            }
        };
        self.bytes += cached.bytes;
    }

    /// Keeps a block if it has a stack, there is room for it among `bound` bytes, and a slot. Says whether it did.
    #[inline(always)]
    pub(crate) fn push_at_once(&mut self, cached: CachedBlock, bound: u64) -> bool {
        let total = self.bytes + cached.bytes;
        if total > bound {
            return false;
        }
        let Some(top) = self.tops.get_mut((cached.bytes / GRANULE) as usize) else {
            return false;
        };
        let Some(place) = self.slots.get_mut(self.vacant as usize) else {
            return false;
        };
        let below = std::mem::replace(top, self.vacant);
        self.vacant = place.below;
        *place = Slot { cached, below };
        self.bytes = total;
        true
    }

    /// Takes the block of exactly this size that was kept last: the one most likely to be warm.
    #[inline]
    pub(crate) fn pop(&mut self, bytes: u64) -> Option<CachedBlock> {
        if self.has_size(bytes) {
            self.pop_stacked(bytes)
        } else {
            self.large_cache.take(bytes)
        }
    }

    /// The same, of a size that has a stack.
    #[inline(always)]
    pub(crate) fn pop_stacked(&mut self, bytes: u64) -> Option<CachedBlock> {
        let top = self.tops.get_mut((bytes / GRANULE) as usize)?;
        let place = self.slots.get_mut(*top as usize)?;
        let slot = *place;
        place.cached.bytes = 0;
        place.below = self.vacant;
        self.vacant = std::mem::replace(top, slot.below);
        self.bytes -= slot.cached.bytes;
        Some(slot.cached)
    }

    /// Takes the next larger block that has a stack, if it is larger by an eighth at most.
    pub(crate) fn pop_near(&mut self, bytes: u64) -> Option<CachedBlock> {
        let size = (bytes / GRANULE) as usize;
        let most = self.tops.len().min(size + size / NEAR + 1);
        let near = self.tops.get(size + 1..most)?;
        // Many at once: nearly all of them are empty.
        let mut runs = near.chunks(RUN);
        let run = runs.position(|run| run.iter().fold(NONE, |all, top| all & top) != NONE)? * RUN;
        let at = run + near[run..].iter().position(|top| *top != NONE)?;
        self.pop(bytes + (at + 1) as u64 * GRANULE)
    }

    /// Takes everything.
    pub(crate) fn drain(&mut self) -> Vec<CachedBlock> {
        let mut all = self.flush_stacks();
        self.large_cache.drain(&mut all);
        all
    }

    /// Takes everything but what is on the large-block cache for less than `age`.
    pub(crate) fn flush_older(&mut self, now: Duration, age: Duration) -> Vec<CachedBlock> {
        let mut all = self.flush_stacks();
        self.large_cache.take_older(now, age, &mut all);
        all
    }

    /// Takes what is on the large-block cache.
    pub(crate) fn flush_large_cache(&mut self) -> Vec<CachedBlock> {
        let mut all = Vec::new();
        self.large_cache.drain(&mut all);
        all
    }

    fn flush_stacks(&mut self) -> Vec<CachedBlock> {
        if self.bytes == 0 {
            return Vec::new();
        }
        // By the slots: there are far fewer than sizes.
        let mut all = Vec::with_capacity(self.slots.len());
        for cached in self.slots.iter().filter_map(Slot::cached) {
            self.tops[(cached.bytes / GRANULE) as usize] = NONE;
            all.push(cached);
        }
        self.slots.clear();
        (self.vacant, self.bytes) = (NONE, 0);
        all
    }

    /// All that is kept.
    pub(crate) fn all(&self) -> impl Iterator<Item = CachedBlock> + '_ {
        let stacked = self.slots.iter().filter_map(Slot::cached);
        stacked.chain(self.large_cache.all())
    }

    /// Bytes kept under tickets up to `ticket`.
    pub(crate) fn bytes_up_to(&self, ticket: Ticket) -> u64 {
        if self.bytes == 0 {
            // As long as somebody waits, and then it is asked for often.
            return self.large_cache.bytes_up_to(ticket);
        }
        self.all()
            .filter(|cached| cached.ticket <= ticket)
            .map(|cached| cached.bytes)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(id: u32, bytes: u64) -> CachedBlock {
        CachedBlock {
            id: BlockId::of_slot(id as usize),
            address: u64::from(id) << 30,
            bytes,
            ticket: Ticket(u64::from(id)),
        }
    }

    #[test]
    fn the_last_kept_of_a_size_comes_first() {
        let mut cache = Cache::new(4096);
        for (id, bytes) in [(1, 512), (2, 1024), (3, 512)] {
            cache.push(cached(id, bytes));
        }
        assert_eq!(cache.bytes(), 2048);
        assert_eq!(cache.bytes_up_to(Ticket(2)), 1536);
        assert_eq!(cache.pop(512).unwrap().id, BlockId::of_slot(3));
        assert_eq!(cache.pop(512).unwrap().id, BlockId::of_slot(1));
        assert!(cache.pop(512).is_none());
        cache.push(cached(4, 4096));
        let mut left: Vec<_> = cache.drain().iter().map(|cached| cached.id).collect();
        left.sort_unstable();
        assert_eq!(left, [2, 4].map(BlockId::of_slot));
        assert_eq!(cache.bytes(), 0);
        assert!(cache.pop(1024).is_none());
    }

    #[test]
    fn sizes_beyond_the_largest_are_not_kept() {
        let mut cache = Cache::new(4096);
        assert!(cache.has_size(4096) && !cache.has_size(4096 + GRANULE));
        assert!(cache.pop(1 << 40).is_none());
    }
}
