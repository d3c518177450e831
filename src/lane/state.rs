//! A stream's state: what the lane's lock guards. Its methods are transitions, and each is one step under the lock.
//!
//! | transition | from | to |
//! |---|---|---|
//! | `take`, `take_at_once`, `pop` | a block cached | granted; no longer unsealed, if it was freed under the open ticket |
//! | `keep_at_once` | a block used | cached under the open ticket |
//! | `note_use` | a block used | freed under the open ticket; the caller caches it, or passes it to the heap |
//! | `close` | the open ticket | closed; the next one is open, and nothing is unsealed |
//! | `retire` (in `StreamCache`) | the stream has a handle | it has none: nothing is cached any more |

use super::cache::{Cache, CachedBlock};
use super::count::{Counters, Event};
use super::ref_cache::RefCache;
use super::shards::Shards;
use super::stream_cache::{Fit, Use};
use crate::id::Ticket;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) cache: Cache,
    pub(super) references: RefCache,
    pub(super) is_host: bool,
    pub(super) open: Ticket,
    /// Bytes freed under the open ticket and not granted again by the cache.
    pub(super) unsealed: u64,
    /// A block was freed under the open ticket, or the last record failed.
    pub(super) is_dirty: bool,
    /// The stream's last handle is gone.
    pub(super) is_retired: bool,
    /// Grants for the stream that are being delivered.
    pub(super) visitors: u32,
    pub(super) counters: Counters,
    /// The hits and the open ticket when idleness was last checked.
    pub(super) last_look: (u64, Ticket),
}

/// A ticket that no further free joins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) ticket: Ticket,
    /// Whether any free joined it.
    pub(super) covers_frees: bool,
}

impl StreamState {
    /// The state in a slot that no lane uses.
    pub(super) fn vacant() -> Self {
        Self::new(0, false)
    }

    pub(super) fn new(largest: u64, is_host: bool) -> Self {
        Self {
            cache: Cache::new(largest),
            references: RefCache::default(),
            is_host,
            open: Ticket::FIRST,
            unsealed: 0,
            is_dirty: false,
            is_retired: false,
            visitors: 0,
            counters: Counters::default(),
            last_look: (0, Ticket::ZERO),
        }
    }

    /// Grants a block of exactly this size, which has a stack.
    #[inline(always)]
    pub(super) fn take_at_once(&mut self, bytes: u64, rounding: u32) -> Option<CachedBlock> {
        let cached = self.cache.pop_stacked(bytes)?;
        self.note_taken(&cached);
        self.counters.note(Event::Hit, bytes, rounding);
        Some(cached)
    }

    /// Grants a block. `rounding` is the part of `bytes` that was not requested.
    pub(super) fn take(&mut self, bytes: u64, rounding: u32, fit: Fit) -> Option<CachedBlock> {
        let cached = self.pop(bytes, fit)?;
        let surplus = (cached.bytes - bytes) as u32;
        self.counters
            .note(Event::Hit, cached.bytes, rounding + surplus);
        Some(cached)
    }

    /// Takes a block that is counted elsewhere.
    pub(super) fn pop(&mut self, bytes: u64, fit: Fit) -> Option<CachedBlock> {
        let mut cached = self.cache.pop(bytes);
        if fit == Fit::Near {
            cached = cached.or_else(|| self.cache.pop_near(bytes));
        }
        cached.inspect(|cached| self.note_taken(cached))
    }

    #[inline(always)]
    fn note_taken(&mut self, cached: &CachedBlock) {
        if cached.ticket == self.open {
            self.unsealed -= cached.bytes;
        }
    }

    /// Caches a freed block if that makes no seal due, and the cache has room among `bound` bytes and an unused entry.
    /// Returns its ticket, or `None` if nothing was done.
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
        if !self
            .cache
            .push_at_once(CachedBlock::freed(block, ticket), bound)
        {
            return None;
        }
        self.unsealed = unsealed;
        self.is_dirty = !self.is_host;
        self.counters.note(Event::Free, block.bytes, block.rounding);
        Some(ticket)
    }

    /// Notes that a block is freed under the open ticket, which is returned.
    pub(super) fn note_use(&mut self, bytes: u64) -> Ticket {
        self.unsealed = self.unsealed.saturating_add(bytes);
        self.is_dirty = !self.is_host;
        self.open
    }

    pub(super) fn close(&mut self, shards: &Shards) -> Closed {
        let (ticket, was_dirty) = (self.open, self.is_dirty);
        self.open = ticket.next();
        self.unsealed = 0;
        self.is_dirty = false;
        let covers_frees = shards.note_closed(self.open) || was_dirty;
        Closed {
            ticket,
            covers_frees,
        }
    }

    /// Closes the open ticket. The host's tickets are complete from the start, and never closed.
    #[cold]
    #[inline(never)]
    pub(super) fn close_unless_host(&mut self, shards: &Shards) -> Option<Closed> {
        (!self.is_host).then(|| self.close(shards))
    }
}
