//! Sides: more caches beside a lane's front, for threads that come to one stream at the same time.
//!
//! A stream that one thread submits to needs one lock. Where several do, they queue up behind it, and hand its cache
//! line around. So once they have met there often enough, each thread frees to a *side* of its own, with a lock of its
//! own, and takes again from there. What a side has no room for, or does not have, is the front's as before.
//!
//! A free to a side joins the lane's open ticket, which it reads without the front's lock. It may read one that is
//! closed in the same moment, and that is right: what was submitted before the free was submitted before the ticket
//! was closed, and the event is recorded after that. (Would the record come first, the device's own lock would order
//! the closing before the submission, and the next ticket would have been read.)

use super::cache::{Cache, CachedBlock};
use super::count::Counts;
use super::{Bounds, Use};
use crate::id::Ticket;
use crate::sync::{Guards, Mutex, Ordering, SharedFlag, SharedNumber, SharedState, plain};
use crossbeam_utils::CachePadded;

/// So often threads meet before there are sides.
const MEETINGS: u64 = 64;

/// Threads beyond this share sides.
const SHARDS: usize = if cfg!(weirpool_loom) { 2 } else { 16 };

/// A side keeps this share of what the front does.
const SHARE: u64 = 4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shards {
    shards: plain::OnceLock<Box<[CachePadded<Mutex<Shard>>]>>,
    met: SharedNumber,
    /// The open ticket, as the front has it; kept up once there are sides.
    open: SharedNumber,
    /// Something was freed to a side under the open ticket.
    is_dirty: SharedFlag,
}

/// A thread's own.
#[derive(Debug)]
pub(super) struct Shard {
    cache: Cache,
    pub(super) counts: Counts,
    /// The ticket under which this side freed last, and the bytes of it that are not taken again.
    epoch: Ticket,
    unsealed: u64,
}

/// A free that a side kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardedBlock {
    pub(super) ticket: Ticket,
    pub(super) unsealed: u64,
}

impl Shards {
    pub(super) fn new() -> Self {
        Self {
            shards: plain::OnceLock::new(),
            met: SharedNumber::new(0),
            open: SharedNumber::new(0),
            is_dirty: SharedFlag::new(false),
        }
    }

    /// Two threads have met at the front. Says whether they have so often that there should be sides.
    pub(super) fn note_meeting(&self) -> bool {
        self.met.fetch_add(1, Ordering::Relaxed) + 1 == MEETINGS
    }

    /// Makes sides, under the front's lock; `open` is its open ticket.
    pub(super) fn make_shards(&self, bounds: Bounds, open: Ticket) {
        let shard = || {
            CachePadded::new(Mutex::new(
                Guards::Lane,
                Shard {
                    cache: Cache::new(bounds.largest),
                    counts: Counts::default(),
                    epoch: Ticket::ZERO,
                    unsealed: 0,
                },
            ))
        };
        self.open.store(open.0, Ordering::Release);
        // Whoever is second finds them made.
        let _ = self.shards.set((0..SHARDS).map(|_| shard()).collect());
    }

    /// This thread's side, if there are any.
    pub(super) fn own(&self) -> Option<&Mutex<Shard>> {
        let shards = self.shards.get()?;
        Some(&shards[crate::sync::thread_number() % SHARDS])
    }

    #[inline]
    pub(super) fn are_made(&self) -> bool {
        self.shards.get().is_some()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        let shards = self.shards.get();
        shards.into_iter().flatten().map(|shard| &**shard)
    }

    /// The front's open ticket is closed, and the next one is `open`. Says whether a side freed under it.
    ///
    /// Under the front's lock, in this order: who reads the next ticket marks it dirty after the last one was not any
    /// more.
    pub(super) fn note_closed(&self, open: Ticket) -> bool {
        if !self.are_made() {
            return false;
        }
        let was_dirty = self.is_dirty.swap(false, Ordering::AcqRel);
        self.open.store(open.0, Ordering::Release);
        was_dirty
    }

    /// Whether something was freed to a side that no event covers.
    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    fn open(&self) -> Ticket {
        // A device orders its calls by a lock, which models do not see: there the newest is read instead.
        Ticket(if cfg!(weirpool_loom) {
            self.open.fetch_add(0, Ordering::AcqRel)
        } else {
            self.open.load(Ordering::Acquire)
        })
    }

    /// Keeps a block in a side, if there is room, and nobody waits for memory.
    pub(super) fn keep(
        &self,
        shard: &Mutex<Shard>,
        block: &Use,
        bounds: Bounds,
        gate: &SharedState,
    ) -> Option<ShardedBlock> {
        let bytes = block.bytes;
        let mut shard = shard.lock();
        shard.counts.note_free(bytes, block.rounding);
        let has_room =
            shard.cache.has_size(bytes) && shard.cache.bytes() + bytes <= bounds.bytes / SHARE;
        if !has_room || gate.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let ticket = self.open();
        if shard.epoch != ticket {
            (shard.epoch, shard.unsealed) = (ticket, 0);
        }
        shard.unsealed += bytes;
        shard.cache.push(CachedBlock {
            id: block.id,
            address: block.address,
            bytes,
            ticket,
        });
        // Before the lock is let go: who drains the block seals what is dirty. Read first: the line is everybody's.
        if !self.is_dirty.load(Ordering::Relaxed) {
            self.is_dirty.store(true, Ordering::Release);
        }
        let unsealed = shard.unsealed;
        Some(ShardedBlock { ticket, unsealed })
    }
}

impl Shard {
    /// What this side freed.
    pub(super) fn take(&mut self, bytes: u64, rounding: u32) -> Option<CachedBlock> {
        let cached = self.cache.pop(bytes)?;
        if cached.ticket == self.epoch {
            self.unsealed = self.unsealed.saturating_sub(bytes);
        }
        self.counts.note_hit(bytes, rounding);
        Some(cached)
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(super) fn drain(&mut self) -> Vec<CachedBlock> {
        self.cache.drain()
    }
}
