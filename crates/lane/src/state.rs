//! A stream's state: what the lane's lock guards. Its methods are transitions, and each is one step under the lock.
//!
//! | transition | from | to |
//! |---|---|---|
//! | `take`, `take_at_once` | a block cached | granted; no longer unsealed, if it was freed under the open ticket |
//! | `keep_at_once` | a block used | cached under the open ticket |
//! | `count_use` | a block used | freed under the open ticket; the caller caches it, or passes it to the heap |
//! | `close_if_recordable` | the open ticket | closed; the next one is open, and nothing is unsealed |
//! | `begin_capture`, `end_capture` (in `StreamCache`) | the stream runs its work, or is captured | it is captured: nothing is cached, and no ticket is closed; or it runs its work |
//! | `retire` (in `StreamCache`) | the stream has a handle | it has none: nothing is cached any more |
//!
//! # Slots
//!
//! Locks that outlive their lanes: of a stream's state, and of its shards.
//!
//! A freed block leaves [its reference](super::cache::RefCache) to the stream under a lock that it reached through that
//! reference. Another thread may take the reference and drop it, and the lane with it, before the first one has
//! released the lock. So the lock must not depend on the lane: it is in a *slot*, which is recycled, and never given
//! back to the allocator. (Type-stable memory: Greenwald and Cheriton, 1996.) There are as many slots as there ever
//! were lanes and shards at a time. A vacant one has contents that own no memory.

use super::block::{CachedBlock, Closed, Fit, Use};
use super::cache::Cache;
use super::count::{BlockEvent, Counters};
use crate::id::{StreamId, Ticket};
use crate::measure::Source;
use crate::sync::{Guard, Guards, Lasting, Mutex, plain};
use std::ops::Deref;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) cache: Cache,
    pub(super) is_host: bool,
    /// A block was freed under the open ticket, or the last record failed.
    pub(super) is_dirty: bool,
    /// The stream's last handle is gone.
    pub(super) is_retired: bool,
    /// Grants for the stream that are being delivered, and blocks that reservations keep for it.
    pub(super) visitors: u32,
    /// The order in which memory is reused, while the stream is being captured.
    pub(super) capture: Option<StreamId>,
    pub(super) counters: Counters,
    /// The hits and the open ticket when idleness was last checked.
    pub(super) last_look: (u64, Ticket),
}

impl StreamState {
    pub(super) fn new(largest: u64, is_host: bool) -> Self {
        Self {
            cache: Cache::new(largest),
            is_host,
            is_dirty: false,
            is_retired: false,
            visitors: 0,
            capture: None,
            counters: Counters::default(),
            last_look: (0, Ticket::ZERO),
        }
    }

    /// Grants a block of exactly this size, which has a stack. `rounding` is the part of `bytes` that was not requested.
    #[inline(always)]
    pub(super) fn take_at_once(&mut self, bytes: u64, rounding: u32) -> Option<CachedBlock> {
        let cached = self.cache.pop_stacked(bytes)?;
        self.cache.record_taken(&cached);
        self.counters
            .count(BlockEvent::Granted(Source::Lane), bytes, rounding);
        Some(cached)
    }

    /// Grants a block, in any case.
    #[inline(always)]
    pub(super) fn take(&mut self, bytes: u64, rounding: u32, fit: Fit) -> Option<CachedBlock> {
        let cached = self.cache.take(bytes, fit)?;
        let surplus = (cached.bytes - bytes) as u32;
        self.counters.count(
            BlockEvent::Granted(Source::Lane),
            cached.bytes,
            rounding + surplus,
        );
        Some(cached)
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
        let ticket = self.cache.keep_at_once(block, bound, seals_above)?;
        self.is_dirty = !self.is_host;
        self.counters
            .count(BlockEvent::Free, block.bytes, block.rounding);
        Some(ticket)
    }

    /// Notes that a block is freed under the open ticket, which is returned.
    pub(super) fn count_use(&mut self, bytes: u64) -> Ticket {
        self.cache.unsealed = self.cache.unsealed.saturating_add(bytes);
        self.is_dirty = !self.is_host;
        self.cache.open
    }

    /// Closes the open ticket, if an event can prove it now. The host's tickets are complete from the start, and those of
    /// a captured stream stay open until the capture is over.
    pub(super) fn close_if_recordable(&mut self) -> Option<Closed> {
        if self.is_host || self.capture.is_some() {
            return None;
        }
        let ticket = self.cache.open;
        self.cache.join(ticket.next());
        let covers_frees = std::mem::take(&mut self.is_dirty);
        Some(Closed {
            ticket,
            covers_frees,
        })
    }
}

impl Contents for StreamState {
    /// Creates a state without a cache.
    fn vacant() -> Self {
        Self::new(0, false)
    }

    fn vacancies() -> &'static plain::Mutex<Vec<Lasting<Slot<Self>>>> {
        static VACANCIES: plain::Mutex<Vec<Lasting<Slot<StreamState>>>> =
            plain::Mutex::new(Vec::new());
        &VACANCIES
    }
}

/// What a slot may contain.
pub(super) trait Contents: Sized + 'static {
    /// Creates the contents of a vacant slot.
    fn vacant() -> Self;

    /// Returns the vacant slots of this kind.
    fn vacancies() -> &'static plain::Mutex<Vec<Lasting<Slot<Self>>>>;
}

/// Contents behind their lock, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot<T>(Mutex<T>);

impl<T> Slot<T> {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock()
    }
}

/// A slot in use; vacant again once this is dropped.
#[derive(Debug)]
pub(super) struct OwnedSlot<T: Contents>(Lasting<Slot<T>>);

impl<T: Contents> OwnedSlot<T> {
    pub(super) fn new(contents: T) -> Self {
        let vacant = T::vacancies().lock().pop();
        if let Some(slot) = vacant {
            *slot.lock() = contents;
            return Self(slot);
        }
        Self(Lasting::new(Slot(Mutex::new(Guards::Lane, contents))))
    }

    /// Returns the slot itself: a guard of it needs neither its owner nor the lane.
    #[inline(always)]
    pub(super) fn slot(&self) -> Lasting<Slot<T>> {
        self.0.clone()
    }
}

impl<T: Contents> Deref for OwnedSlot<T> {
    type Target = Slot<T>;

    #[inline]
    fn deref(&self) -> &Slot<T> {
        &self.0
    }
}

impl<T: Contents> Drop for OwnedSlot<T> {
    fn drop(&mut self) {
        let gone = std::mem::replace(&mut *self.0.lock(), T::vacant());
        drop(gone);
        // A slot of one execution of a model must not be used in the next.
        if !cfg!(weirpool_loom) {
            T::vacancies().lock().push(self.0.clone());
        }
    }
}
