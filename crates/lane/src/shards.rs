//! Shards: per-thread caches beside a stream's own, for threads that share the stream.
//!
//! A stream that one thread submits to needs one lock. Several threads would queue behind that lock and pass its cache
//! line around. So once threads have contended often enough, each of them frees to a *shard* with a lock of its own,
//! and allocates from it again. The block's [reference](super::cache::RefCache) to the stream stays in the shard with
//! it, so that such a pair writes no cache line of another thread. Blocks that a shard has no room for, or does not
//! have, go through the stream's state as before.
//!
//! A free to a shard joins the lane's open ticket, which it reads without the lock of the state. It may read a ticket
//! that is closed at the same moment, and that is right (order): the block's last use was submitted before the free,
//! the free before the closing, and the event is recorded after the closing. (If the record came first, the device's
//! own lock would order the closing before the submission, and the free would have read the next ticket.)

use super::block::{CachedBlock, Fit, Use};
use super::cache::{Cache, CacheBounds};
use super::count::{BlockEvent, Counts};
use super::state::{Contents, OwnedSlot, Slot};
use crate::id::Ticket;
use crate::measure::Source;
use crate::sync::{Lasting, Ordering, SharedFlag, SharedNumber, plain};

/// Maximum number of shards of a stream. Further threads share them.
const SHARDS: usize = if cfg!(weirpool_loom) { 2 } else { 16 };

/// A shard keeps at most 1/`SHARE` of the bytes that the stream's own cache keeps.
const SHARE: u64 = 4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shards {
    shards: [OwnedSlot<Shard>; SHARDS],
    /// The open ticket of the stream's state.
    open: SharedNumber,
    /// A block was freed to a shard under the open ticket.
    is_dirty: SharedFlag,
}

/// The cache of one thread.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) cache: Cache,
    pub(super) counts: Counts,
}

impl Shards {
    /// Makes the shards, under the lock of the state, beside the stream's own cache.
    pub(super) fn beside(own: &Cache) -> Self {
        Self {
            shards: std::array::from_fn(|_| OwnedSlot::new(Shard::new(own.for_thread()))),
            open: SharedNumber::new(own.open.0),
            is_dirty: SharedFlag::new(false),
        }
    }

    /// Returns this thread's shard.
    pub(super) fn own(&self) -> Lasting<Slot<Shard>> {
        self.shards[crate::sync::thread_number() % SHARDS].slot()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Slot<Shard>> {
        self.shards.iter().map(|shard| &**shard)
    }

    /// Notes that the open ticket was closed, and the next one is `open`. Returns whether a free to a shard joined it.
    ///
    /// Called under the lock of the state. The flag is cleared before the next ticket is published: a free that reads
    /// the next ticket sets the flag again.
    pub(super) fn mark_closed(&self, open: Ticket) -> bool {
        let was_dirty = self.is_dirty.swap(false, Ordering::AcqRel);
        self.open.store(open.0, Ordering::Release);
        was_dirty
    }

    /// Returns whether a block was freed to a shard that no event covers.
    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    fn open(&self) -> Ticket {
        // A device orders its calls by a lock, which models do not see: they read the newest value instead.
        Ticket(if cfg!(weirpool_loom) {
            self.open.fetch_add(0, Ordering::AcqRel)
        } else {
            self.open.load(Ordering::Acquire)
        })
    }

    /// Keeps a block in a shard, if that makes no seal due, and there is room for it and an unused entry. Returns whether
    /// it did; if not, nothing was done. To be called while the cache is not bypassed.
    pub(super) fn keep_at_once(
        &self,
        shard: &mut Shard,
        block: &Use,
        bounds: CacheBounds,
        seals_above: u64,
    ) -> bool {
        shard.cache.join(self.open());
        let bound = bounds.bytes / SHARE;
        if (shard.cache.keep_at_once(block, bound, seals_above)).is_none() {
            return false;
        }
        shard
            .counts
            .count(BlockEvent::Free, block.bytes, block.rounding);
        // Before the lock is released: a thread that flushes the block seals only if the flag is set.
        self.mark_dirty();
        true
    }

    /// Keeps a block in a shard, if there is room and the cache is not bypassed, which is asked under the shard's lock:
    /// a thread that has caches bypassed flushes the shard afterwards. Returns the ticket, and the unsealed bytes of the
    /// shard.
    pub(super) fn keep(
        &self,
        shard: &Slot<Shard>,
        block: &Use,
        bounds: CacheBounds,
        is_bypassed: impl FnOnce() -> bool,
    ) -> Option<(Ticket, u64)> {
        let mut shard = shard.lock();
        shard
            .counts
            .count(BlockEvent::Free, block.bytes, block.rounding);
        if is_bypassed() {
            return None;
        }
        let ticket = self.open();
        shard.cache.join(ticket);
        let cached = CachedBlock::freed(block, ticket);
        if !shard.cache.push(cached, bounds.bytes / SHARE) {
            return None;
        }
        shard.cache.unsealed += block.bytes;
        let unsealed = shard.cache.unsealed;
        // As in `keep_at_once`.
        self.mark_dirty();
        Some((ticket, unsealed))
    }

    /// Reads first: all threads share the flag's cache line.
    fn mark_dirty(&self) {
        if !self.is_dirty.load(Ordering::Relaxed) {
            self.is_dirty.store(true, Ordering::Release);
        }
    }
}

impl Shard {
    fn new(cache: Cache) -> Self {
        Self {
            cache,
            counts: Counts::default(),
        }
    }

    /// Grants a block that was freed to this shard.
    pub(super) fn take(&mut self, bytes: u64, rounding: u32) -> Option<CachedBlock> {
        let cached = self.cache.take(bytes, Fit::Exact)?;
        self.counts
            .count(BlockEvent::Granted(Source::Lane), bytes, rounding);
        Some(cached)
    }
}

impl Contents for Shard {
    /// Creates a shard without a cache.
    fn vacant() -> Self {
        Self::new(Cache::new(0))
    }

    fn vacancies() -> &'static plain::Mutex<Vec<Lasting<Slot<Self>>>> {
        static VACANCIES: plain::Mutex<Vec<Lasting<Slot<Shard>>>> = plain::Mutex::new(Vec::new());
        &VACANCIES
    }
}
