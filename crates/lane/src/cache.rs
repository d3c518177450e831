//! The cache of a stream or a shard. It has the cached blocks: a stack for each size, so that taking and keeping are
//! O(1); and the [large-block cache](super::large_cache) for the few blocks that have no stack. It counts the bytes that
//! were freed under the open ticket. And it has the [references](RefCache) to the stream that freed blocks leave for later
//! ones.

#![allow(unsafe_code, reason = "erases the type of the owner of a stream")]

use super::block::{CachedBlock, Fit, Use};
use super::large_cache::LargeCache;
use crate::heap::GRANULE;
use crate::id::Ticket;
use crate::sync::Arc;
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

/// The bounds of a stream's cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheBounds {
    /// Maximum number of bytes kept.
    pub bytes: u64,
    /// Size of the largest block that has a stack.
    pub largest: u64,
    /// Maximum number of bytes kept in larger blocks.
    pub large_cache: u64,
    /// Maximum number of bytes kept in [spares](super::spares) that have a stack, beside a few large ones.
    /// Where there are any, no blocks are kept.
    pub spares: Option<u64>,
    /// Unsealed bytes above which a free seals.
    pub unsealed: u64,
    /// The bound on unsealed bytes may widen while frees follow each other closely.
    pub may_widen: bool,
}

impl CacheBounds {
    /// No cache: nothing is kept, and every free seals.
    pub const NONE: Self = Self {
        bytes: 0,
        largest: 0,
        large_cache: 0,
        spares: None,
        unsealed: 0,
        may_widen: false,
    };

    /// Returns whether blocks of this size have no stack, and may go to the large-block cache at times.
    #[inline(always)]
    pub fn has_large(&self, bytes: u64) -> bool {
        bytes > self.largest && bytes <= self.large_cache
    }
}

/// Selects the cached blocks that are taken back.
#[derive(Clone, Copy, Debug)]
pub enum Flush {
    /// All blocks.
    All,
    /// All, except for large blocks that were freed less than `age` before `now`.
    Older {
        /// The time.
        now: Duration,
        /// How long a block lies at least.
        age: Duration,
    },
    /// Large blocks only.
    Large,
    /// All, if the stream was idle since the last such flush.
    Idle,
}

const NONE: u32 = u32::MAX;

/// A near fit exceeds the request by at most 1/`NEAR` of its size. jemalloc's four size classes for each doubling waste
/// up to twice that.
const NEAR: usize = 8;

/// Stacks that are searched together.
const RUN: usize = 32;

#[derive(Clone, Copy, Debug)]
struct StackEntry {
    /// A block of 0 bytes if the entry is vacant.
    cached: CachedBlock,
    /// The entry below in its stack, or the next vacant one.
    below: u32,
}

impl StackEntry {
    fn cached(&self) -> Option<CachedBlock> {
        (self.cached.bytes > 0).then_some(self.cached)
    }
}

/// Stacks of blocks, one for each multiple of [`GRANULE`] up to a largest size; and large blocks.
#[derive(Debug)]
pub(super) struct Cache {
    tops: Box<[u32]>,
    entries: Vec<StackEntry>,
    vacant: u32,
    /// Bytes in the stacks.
    bytes: u64,
    /// Blocks in the stacks.
    blocks: usize,
    /// The ticket of the last free: the stream's open one, except in a shard.
    pub(super) open: Ticket,
    /// Bytes freed under that ticket, and not granted again by the cache.
    pub(super) unsealed: u64,
    pub(super) large: LargeCache,
    pub(super) references: RefCache,
}

impl Cache {
    /// Creates a cache with stacks for blocks of up to `largest` bytes.
    pub(super) fn new(largest: u64) -> Self {
        let sizes = usize::try_from(largest / GRANULE).expect("a lane's largest block is small");
        Self {
            tops: vec![NONE; sizes + 1].into_boxed_slice(),
            entries: Vec::new(),
            vacant: NONE,
            bytes: 0,
            blocks: 0,
            open: Ticket::FIRST,
            unsealed: 0,
            large: LargeCache::default(),
            references: RefCache::default(),
        }
    }

    /// Creates an empty cache for one thread of the stream. It has stacks for the same sizes, and is open to references if
    /// this cache is.
    pub(super) fn for_thread(&self) -> Self {
        let mut cache = Self::new(0);
        cache.tops = vec![NONE; self.tops.len()].into_boxed_slice();
        cache.references = self.references.for_thread();
        cache
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.large.bytes()
    }

    /// Returns the number of blocks, in constant time.
    pub(super) fn blocks(&self) -> usize {
        self.blocks + self.large.blocks()
    }

    /// Returns whether blocks of this size have a stack.
    #[inline]
    pub(super) fn has_stack(&self, bytes: u64) -> bool {
        ((bytes / GRANULE) as usize) < self.tops.len()
    }

    /// Takes part in the ticket that is open now.
    #[inline]
    pub(super) fn join(&mut self, open: Ticket) {
        if self.open != open {
            (self.open, self.unsealed) = (open, 0);
        }
    }

    /// Grants a block of this size, or of a near one.
    #[inline(always)]
    pub(super) fn take(&mut self, bytes: u64, fit: Fit) -> Option<CachedBlock> {
        let mut cached = self.pop(bytes);
        if matches!(fit, Fit::Near) && self.has_stack(bytes) {
            cached = cached.or_else(|| self.pop_near(bytes));
        }
        cached.inspect(|cached| self.record_taken(cached))
    }

    /// A block that was freed under the open ticket is granted: nothing need be sealed for it.
    #[inline(always)]
    pub(super) fn record_taken(&mut self, cached: &CachedBlock) {
        if cached.ticket == self.open {
            self.unsealed -= cached.bytes;
        }
    }

    /// Keeps a freed block if that makes no seal due, and there is room among `bound` bytes and a vacant entry. Returns its
    /// ticket, or `None` if nothing was done.
    #[inline(always)]
    pub(super) fn keep_at_once(
        &mut self,
        block: &Use,
        bound: u64,
        seals_above: u64,
    ) -> Option<Ticket> {
        let unsealed = self.unsealed.saturating_add(block.bytes);
        if unsealed > seals_above {
            return None;
        }
        let ticket = self.open;
        if !self.push_at_once(CachedBlock::freed(block, ticket), bound) {
            return None;
        }
        self.unsealed = unsealed;
        Some(ticket)
    }

    /// Keeps a block if its size has a stack, and there is room for it among `bound` bytes. Returns whether it did.
    pub(super) fn push(&mut self, cached: CachedBlock, bound: u64) -> bool {
        if self.push_at_once(cached, bound) {
            return true;
        }
        if !self.has_stack(cached.bytes) || self.bytes + cached.bytes > bound {
            return false;
        }
        // There was no vacant entry.
        self.vacant = self.entries.len() as u32;
        let below = NONE;
        self.entries.push(StackEntry { cached, below });
        self.push_at_once(cached, bound)
    }

    /// Keeps a block as [`push`](Self::push) does, provided that there is a vacant entry.
    #[inline(always)]
    pub(super) fn push_at_once(&mut self, cached: CachedBlock, bound: u64) -> bool {
        let total = self.bytes + cached.bytes;
        if total > bound {
            return false;
        }
        let Some(top) = self.tops.get_mut((cached.bytes / GRANULE) as usize) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(self.vacant as usize) else {
            return false;
        };
        let below = std::mem::replace(top, self.vacant);
        self.vacant = entry.below;
        *entry = StackEntry { cached, below };
        self.bytes = total;
        self.blocks += 1;
        true
    }

    /// Returns whether the large-block cache may keep the next large block that is freed.
    pub(super) fn alternates(&self) -> bool {
        self.large.alternates()
    }

    /// Takes the block of exactly this size that was kept last: the one most likely to be warm.
    pub(super) fn pop(&mut self, bytes: u64) -> Option<CachedBlock> {
        if self.has_stack(bytes) {
            self.pop_stacked(bytes)
        } else {
            self.large.take(bytes)
        }
    }

    /// Takes the last block of exactly this size from its stack, if the size has one.
    #[inline(always)]
    pub(super) fn pop_stacked(&mut self, bytes: u64) -> Option<CachedBlock> {
        let top = self.tops.get_mut((bytes / GRANULE) as usize)?;
        let entry = self.entries.get_mut(*top as usize)?;
        let StackEntry { cached, below } = *entry;
        entry.cached.bytes = 0;
        entry.below = self.vacant;
        self.vacant = std::mem::replace(top, below);
        self.bytes -= cached.bytes;
        self.blocks -= 1;
        Some(cached)
    }

    /// Returns whether there is a block of exactly this size in a stack.
    pub(super) fn has_stacked(&self, bytes: u64) -> bool {
        let top = self.tops.get((bytes / GRANULE) as usize);
        top.is_some_and(|top| *top != NONE)
    }

    /// Takes a block of the next larger size that has one in its stack, if that is larger by at most an eighth.
    pub(super) fn pop_near(&mut self, bytes: u64) -> Option<CachedBlock> {
        let size = (bytes / GRANULE) as usize;
        let end = self.tops.len().min(size + size / NEAR + 1);
        let near = self.tops.get(size + 1..end)?;
        // A run at a time: nearly all stacks are empty.
        let mut runs = near.chunks(RUN);
        let run = runs.position(|run| run.iter().fold(NONE, |all, top| all & top) != NONE)? * RUN;
        let at = run + near[run..].iter().position(|top| *top != NONE)?;
        self.pop_stacked(bytes + (at + 1) as u64 * GRANULE)
    }

    /// Returns whether no block is kept, and the next free takes the slow path.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_entries() && self.bytes() == 0
    }

    /// Returns whether a free may be kept at once. After a flush the first one takes the slow path.
    pub(super) fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Takes blocks; all of them if the stream is idle.
    pub(super) fn flush(&mut self, which: Flush) -> Vec<CachedBlock> {
        let mut taken = match which {
            Flush::Large => Vec::new(),
            Flush::All | Flush::Older { .. } | Flush::Idle => self.flush_stacks(),
        };
        taken.extend(match which {
            Flush::Older { now, age } => self.large.take_older(now, age),
            _ => self.large.take_older(Duration::ZERO, Duration::ZERO),
        });
        taken
    }

    fn flush_stacks(&mut self) -> Vec<CachedBlock> {
        if self.bytes == 0 {
            self.entries.clear();
            self.vacant = NONE;
            return Vec::new();
        }
        // By entry: there are far fewer entries than stacks.
        let mut all = Vec::with_capacity(self.entries.len());
        for cached in self.entries.iter().filter_map(StackEntry::cached) {
            self.tops[(cached.bytes / GRANULE) as usize] = NONE;
            all.push(cached);
        }
        self.entries.clear();
        (self.vacant, self.bytes, self.blocks) = (NONE, 0, 0);
        all
    }

    pub(super) fn all(&self) -> impl Iterator<Item = CachedBlock> + '_ {
        let stacked = self.entries.iter().filter_map(StackEntry::cached);
        stacked.chain(self.large.all())
    }

    /// Bytes of blocks that were freed under tickets up to `ticket`.
    pub(super) fn bytes_up_to(&self, ticket: Ticket) -> u64 {
        if self.bytes == 0 {
            // The stacks stay empty while requests wait, which is when this is called often.
            return self.large.bytes_up_to(ticket);
        }
        self.all()
            .filter(|cached| cached.ticket <= ticket)
            .map(|cached| cached.bytes)
            .sum()
    }
}

/// What handles and blocks of a stream share, and keep alive. It is of a higher layer, and its type is erased here: a
/// downcast in each grant would take 8 ns more than a whole pair's 25.
///
/// # Safety
/// All owners of one cache are of one type.
pub unsafe trait CacheOwner: Send + Sync + Sized {}

/// Maximum number of references. Usually a few blocks are freed before the next is granted.
const ROOM: usize = 8;

/// The reference cache: references to the stream's owner that freed blocks leave for the next ones.
///
/// Each block holds a counted reference to the owner. Counting up at each grant and down at each free would cost two of
/// the six atomic operations of a pair, and a cache line that all threads of the stream write. So a free leaves its
/// reference under the lock that it holds anyway, and the next grant takes it from there.
///
/// A reference that is left here keeps the owner alive, and the owner keeps the lane, in which the reference lies. So
/// references are left only while the stream has a handle: dropping the last handle closes the caches of the stream and
/// of its shards to references, and drops those that they have (safe-teardown).
pub struct RefCache {
    /// What `Arc::into_raw` returned, of owners of one type.
    left: [Option<NonNull<()>>; ROOM],
    /// The number of occupied entries, which are the first ones of `left`.
    count: usize,
    /// 0 while the cache is closed.
    room: usize,
    /// Drops a reference. It is of the owners' type, since the cache was first opened.
    drop: unsafe fn(NonNull<()>),
}

/// References that are to be dropped after the lock is released.
#[must_use = "references are dropped after the lock is released"]
pub struct References(RefCache);

// SAFETY: it holds references to an owner, which is `Send` and `Sync`.
unsafe impl Send for RefCache {}

impl Default for RefCache {
    /// Creates a closed cache.
    fn default() -> Self {
        Self {
            left: [None; ROOM],
            count: 0,
            room: 0,
            drop: |_| unreachable!("a cache that was never opened has no references"),
        }
    }
}

impl RefCache {
    /// Takes the reference over, if there is room.
    #[inline(always)]
    pub(super) fn leave<O: CacheOwner>(&mut self, owner: &mut Option<Arc<O>>) {
        if self.count >= self.room {
            return;
        }
        if let Some(entry) = self.left.get_mut(self.count)
            && let Some(owner) = owner.take()
        {
            *entry = NonNull::new(Arc::into_raw(owner).cast_mut().cast());
            self.count += 1;
        }
    }

    #[inline(always)]
    pub(super) fn take<O: CacheOwner>(&mut self) -> Option<Arc<O>> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        let left = self.left.get_mut(last)?.take()?;
        // SAFETY: `leave` made it of an owner, all of which are of one type, and nothing else has it.
        Some(unsafe { Arc::from_raw(left.as_ptr().cast::<O>().cast_const()) })
    }

    /// Lets freed blocks leave references from now on, to owners of this type.
    pub fn open<O: CacheOwner>(&mut self) {
        self.room = ROOM;
        // SAFETY: `leave` made it of an owner, all of which are of this type, and nothing else has it.
        self.drop = |left| drop(unsafe { Arc::from_raw(left.as_ptr().cast::<O>().cast_const()) });
    }

    /// Closes the cache and returns its references.
    pub fn close(&mut self) -> References {
        self.room = 0;
        self.empty()
    }

    /// Takes all references.
    pub fn empty(&mut self) -> References {
        let emptied = self.for_thread();
        References(std::mem::replace(self, emptied))
    }

    /// Creates an empty cache, which is open if this one is.
    pub(super) fn for_thread(&self) -> Self {
        Self {
            room: self.room,
            drop: self.drop,
            ..Self::default()
        }
    }
}

impl Drop for RefCache {
    fn drop(&mut self) {
        for left in self.left.iter_mut().filter_map(Option::take) {
            // SAFETY: it is of the type that the cache was opened for, and was taken out.
            unsafe { (self.drop)(left) }
        }
    }
}

impl fmt::Debug for References {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Does not print the owners: each of them contains this cache.
impl fmt::Debug for RefCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefCache")
            .field("count", &self.count)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::BlockId;

    const BOUND: u64 = 1 << 20;

    fn cached(id: u32, bytes: u64) -> CachedBlock {
        CachedBlock {
            id: BlockId::of_slot(id as usize),
            address: u64::from(id) << 30,
            bytes,
            ticket: Ticket(u64::from(id)),
        }
    }

    fn cache_of(blocks: &[(u32, u64)]) -> Cache {
        let mut cache = Cache::new(4096);
        for (id, bytes) in blocks {
            assert!(cache.push(cached(*id, *bytes), BOUND));
        }
        cache
    }

    #[test]
    fn last_block_of_a_size_comes_first() {
        let mut cache = cache_of(&[(1, 512), (2, 1024), (3, 512)]);
        assert_eq!((cache.bytes(), cache.blocks()), (2048, 3));
        assert_eq!(cache.bytes_up_to(Ticket(2)), 1536);
        assert_eq!(cache.pop(512).unwrap().id, BlockId::of_slot(3));
        assert_eq!(cache.pop(512).unwrap().id, BlockId::of_slot(1));
        assert!(cache.pop(512).is_none());
        assert!(cache.push(cached(4, 4096), BOUND));
        let mut left: Vec<_> = cache
            .flush(Flush::All)
            .iter()
            .map(|cached| cached.id)
            .collect();
        left.sort_unstable();
        assert_eq!(left, [2, 4].map(BlockId::of_slot));
        assert_eq!(cache.bytes(), 0);
        assert!(cache.pop(1024).is_none());
    }

    #[test]
    fn size_above_the_largest_has_no_stack() {
        let mut cache = cache_of(&[(1, 4096)]);
        assert!(!cache.push(cached(2, 4096 + GRANULE), BOUND));
        assert!(cache.pop(1 << 40).is_none());
        assert!(cache.pop_near(1 << 40).is_none());
    }

    #[test]
    fn bound_counts_every_stack() {
        let mut cache = cache_of(&[(1, 1024), (2, 512)]);
        assert!(!cache.push(cached(3, 1024), 2048));
        assert!(cache.push(cached(3, 512), 2048), "up to the bound itself");
        assert!(!cache.push_at_once(cached(4, 512), 2048));
        assert!(cache.pop(512).is_some());
        assert!(
            cache.push_at_once(cached(4, 512), 2048),
            "into the vacant entry"
        );
    }

    #[test]
    fn near_fit_is_the_next_larger_size_within_an_eighth() {
        let mut cache = Cache::new(1 << 20);
        let kib = |kib: u64| kib << 10;
        for (id, bytes) in [(1, kib(74)), (2, kib(72)), (3, kib(66)), (4, kib(64))] {
            assert!(cache.push(cached(id, bytes), BOUND));
        }
        let mut near = || cache.pop_near(kib(64)).map(|cached| cached.id);
        assert_eq!(
            near(),
            Some(BlockId::of_slot(3)),
            "the smallest that is larger"
        );
        assert_eq!(near(), Some(BlockId::of_slot(2)), "larger by an eighth");
        assert_eq!(
            near(),
            None,
            "74 KiB are too large, and 64 KiB are no near fit"
        );
        assert_eq!(cache.bytes(), kib(74 + 64));
    }
}
