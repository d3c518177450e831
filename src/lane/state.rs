//! A stream's state: what the lane's lock guards. Its methods are transitions, and each is one step under the lock.
//!
//! | transition | from | to |
//! |---|---|---|
//! | `take`, `take_at_once`, `pop` | a block cached | granted; no longer unsealed, if it was freed under the open ticket |
//! | `keep_at_once` | a block used | cached under the open ticket |
//! | `note_use` | a block used | freed under the open ticket; the caller caches it, or passes it to the heap |
//! | `close` | the open ticket | closed; the next one is open, and nothing is unsealed |
//! | `begin_capture`, `end_capture` (in `StreamCache`) | the stream runs its work, or is captured | it is captured: nothing is cached, and no ticket is closed; or it runs its work |
//! | `retire` (in `StreamCache`) | the stream has a handle | it has none: nothing is cached any more |
//!
//! The lock is in a [`Slot`]. Slots are recycled, and never given back to the allocator: a freed block leaves [its
//! count](RefCache) of the stream's owners under this lock, which it reached through that count. So the lock must not
//! depend on it. (Type-stable memory: Greenwald and Cheriton, 1996.) There are as many slots as there ever were lanes
//! at a time; the state in a vacant slot has no cache.

use super::block::{CachedBlock, Closed, Fit, Use};
use super::cache::Cache;
use super::count::{Counters, Event, Source};
use super::shards::Shards;
pub(super) use crate::handles::Registration;
use crate::id::{StreamId, Ticket};
use crate::sync::{Arc, Guard, Guards, Lasting, Mutex, plain};
use std::fmt;
use std::ops::Deref;

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
    /// Grants for the stream that are being delivered, and blocks that reservations keep for it.
    pub(super) visitors: u32,
    /// The order in which memory is reused, while the stream is being captured.
    pub(super) capture: Option<StreamId>,
    pub(super) counters: Counters,
    /// The hits and the open ticket when idleness was last checked.
    pub(super) last_look: (u64, Ticket),
}

impl StreamState {
    /// Creates the state in a slot that no lane uses.
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
            capture: None,
            counters: Counters::default(),
            last_look: (0, Ticket::ZERO),
        }
    }

    /// Grants a block of exactly this size, which has a stack.
    #[inline(always)]
    pub(super) fn take_at_once(&mut self, bytes: u64, rounding: u32) -> Option<CachedBlock> {
        let cached = self.cache.pop_stacked(bytes)?;
        self.note_taken(&cached);
        self.counters
            .note(Event::Granted(Source::Lane), bytes, rounding);
        Some(cached)
    }

    /// Grants a block. `rounding` is the part of `bytes` that was not requested.
    pub(super) fn take(&mut self, bytes: u64, rounding: u32, fit: Fit) -> Option<CachedBlock> {
        let cached = self.pop(bytes, fit)?;
        let surplus = (cached.bytes - bytes) as u32;
        self.counters.note(
            Event::Granted(Source::Lane),
            cached.bytes,
            rounding + surplus,
        );
        Some(cached)
    }

    /// Takes a block that is counted elsewhere.
    pub(super) fn pop(&mut self, bytes: u64, fit: Fit) -> Option<CachedBlock> {
        let mut cached = self.cache.pop(bytes);
        if fit == Fit::Near && self.cache.has_stack(bytes) {
            cached = cached.or_else(|| self.cache.pop_near(bytes));
        }
        cached.inspect(|cached| self.note_taken(cached))
    }

    /// A block that was freed under the open ticket is granted: nothing need be sealed for it.
    #[inline(always)]
    pub(super) fn note_taken(&mut self, cached: &CachedBlock) {
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

    /// Returns whether a block was freed under the open ticket, here or to a shard, or the last record failed.
    pub(super) fn is_dirty_with(&self, shards: &Shards) -> bool {
        self.is_dirty || shards.is_dirty()
    }

    fn close(&mut self, shards: &Shards) -> Closed {
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

    /// Closes the open ticket, if an event can prove it now. The host's tickets are complete from the start, and those of
    /// a captured stream stay open until the capture is over.
    #[cold]
    #[inline(never)]
    pub(super) fn close_if_recordable(&mut self, shards: &Shards) -> Option<Closed> {
        let is_recordable = !self.is_host && self.capture.is_none();
        is_recordable.then(|| self.close(shards))
    }
}

/// A stream's state behind its lock, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot(Mutex<StreamState>);

impl Slot {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, StreamState> {
        self.0.lock()
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, StreamState>> {
        self.0.try_lock()
    }
}

static VACANT: plain::Mutex<Vec<Lasting<Slot>>> = plain::Mutex::new(Vec::new());

/// A lane's slot, vacant again once this is dropped.
#[derive(Debug)]
pub(super) struct Lease(Lasting<Slot>);

impl Lease {
    pub(super) fn new(state: StreamState) -> Self {
        let vacant = VACANT.lock().pop();
        if let Some(slot) = vacant {
            *slot.lock() = state;
            return Self(slot);
        }
        Self(Lasting::new(Slot(Mutex::new(Guards::Lane, state))))
    }

    /// Returns the slot itself: a guard of it needs neither the lease nor the lane.
    #[inline(always)]
    pub(super) fn slot(&self) -> Lasting<Slot> {
        self.0.clone()
    }
}

impl Deref for Lease {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let gone = std::mem::replace(&mut *self.0.lock(), StreamState::vacant());
        drop(gone);
        // A slot of one execution of a model must not be used in the next.
        if !cfg!(weirpool_loom) {
            VACANT.lock().push(self.0.clone());
        }
    }
}

/// Maximum number of references. Usually a few blocks are freed before the next is granted.
const ROOM: usize = 8;

/// The reference cache: references to the stream that freed blocks leave for the next ones.
///
/// Each block holds a counted reference to its stream's registration. Counting up at each grant and down at each free
/// would cost two of the six atomic operations of a pair, and a cache line that all threads of the stream write. So a
/// free leaves its reference under the lock that it holds anyway, and the next grant takes it from there.
///
/// A reference that is left here keeps the registration alive, and the registration keeps the lane, in which the
/// reference lies. So references are left only while the stream has a handle: dropping the last handle closes the cache
/// and drops its references (safe-teardown).
///
/// For this type alone the lane imports from a higher layer. The alternatives are a type parameter of every type around
/// the lane's lock, or a downcast in each grant, which takes 8 ns more than a whole pair's 25.
pub(crate) struct RefCache {
    left: [Option<Arc<Registration>>; ROOM],
    /// The number of occupied entries, which are the first ones of `left`.
    count: usize,
    /// 0 while the cache is closed.
    room: usize,
}

impl Default for RefCache {
    /// Creates a closed cache.
    fn default() -> Self {
        Self {
            left: [const { None }; ROOM],
            count: 0,
            room: 0,
        }
    }
}

impl RefCache {
    /// Takes the reference over, if there is room.
    #[inline(always)]
    pub(super) fn leave(&mut self, owner: &mut Option<Arc<Registration>>) {
        if self.count >= self.room {
            return;
        }
        if let Some(entry) = self.left.get_mut(self.count) {
            // The entry is vacant: nothing need be dropped.
            std::mem::swap(entry, owner);
            self.count += 1;
        }
    }

    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Arc<Registration>> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        self.left.get_mut(last)?.take()
    }

    /// Lets freed blocks leave references from now on.
    pub(crate) fn open(&mut self) {
        self.room = ROOM;
    }

    /// Closes the cache and returns its references.
    #[must_use = "references are dropped after the lock is released"]
    pub(crate) fn close(&mut self) -> [Option<Arc<Registration>>; ROOM] {
        self.room = 0;
        self.empty()
    }

    /// Takes all references.
    #[must_use = "references are dropped after the lock is released"]
    pub(crate) fn empty(&mut self) -> [Option<Arc<Registration>>; ROOM] {
        self.count = 0;
        std::mem::replace(&mut self.left, [const { None }; ROOM])
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
