//! A stream's cache, and the hot path through it: granting a block that the stream freed, and freeing one.
//!
//! Both have a *plain case*, [`take_at_once`](StreamCache::take_at_once) and
//! [`free_at_once`](StreamCache::free_at_once). It is short enough to be compiled into its caller, where the block
//! stays in registers, and takes these steps:
//!
//! | step | grant | free |
//! |---|---|---|
//! | before the lock | the size has a stack | the same |
//! | take the lane's lock, or that of the thread's [shard](super::shards) if the stream has shards | if another thread holds it, note the contention | the same |
//! | under the lock | the gate is open, and the stack of that size has a block, or a near one has: pop it | the gate is open, no seal is due, and an unused entry is there: push the block |
//! | | count the block | count the block |
//! | | take a [reference](RefCache) to the stream that an earlier free left | leave the block's reference |
//!
//! A flush clears the entries, and a capture, an idle stream and the maintenance each begin with one: so the first free after
//! any of them finds no entry and takes the slow way, which makes them again. The hot path checks nothing else for them.
//!
//! That is one lock each way, and no write to a cache line that other streams use. In any other case the plain one
//! returns before the cache has changed; [`take`](StreamCache::take) and [`free`](StreamCache::free) handle all cases.
//!
//! The gate is read inside the critical section. A thread that closes it flushes the cache afterwards, under the same
//! lock: so a freed block is either flushed, or not kept (fair-progress).

use super::active::Activity;
use super::block::{CachedBlock, Closed, Fit, Freed, Use};
use super::cache::{Cache, CacheBounds, CacheOwner, Flush, RefCache};
use super::count::{BlockEvent, Counters, Counts, LaneFigures, UNKNOWN};
use super::own_calls::OwnCalls;
use super::shards::{Shard, Shards};
use super::spacing::Spacing;
use super::state::{OwnedSlot, Slot, StreamState};
use crate::heap::BlockId;
use crate::heap::Mark;
use crate::id::Ticket;
use crate::measure::Source;
use crate::sync::plain::{AtomicBool, AtomicU64, OnceLock};
use crate::sync::{Arc, Guard, Ordering, SharedNumber, SharedState, plain};
use crossbeam_utils::CachePadded;
use std::time::Duration;

/// Number of contentions after which the threads of a stream have shards.
const CONTENTIONS: u64 = 64;

/// The pool's gate, read by every allocation and free. While any bit is set, caches grant nothing and keep nothing.
pub type Gate = plain::Arc<CachePadded<SharedState>>;

/// See the [module](self).
#[derive(Debug)]
pub struct StreamCache {
    /// What the cache may keep.
    pub bounds: CacheBounds,
    gate: Gate,
    pub(super) activity: Activity,
    is_external: bool,
    /// How many bytes are freed between two events.
    pub spacing: Spacing,
    /// The lane's lock.
    pub(super) state: OwnedSlot<StreamState>,
    /// Caches of threads, once they have contended often enough; made under the lock of the state.
    shards: OnceLock<Shards>,
    contentions: SharedNumber,
    /// Blocks were freed above the bound and no seal followed, so that [`owes_seal`](Self::owes_seal) may be true. Set
    /// under the lock of the state.
    may_owe_seal: AtomicBool,
    /// The next free of a large block may be kept: the stream alternates. Set under the lock of the state.
    alternates: AtomicBool,
    /// A bit for each size of which the cache probably has a spare. Set under the lock of the state.
    pub(super) spare: AtomicU64,
    /// The pool's own calls on the stream.
    pub calls: OwnCalls,
}

/// Keeps a stream's lane registered while a grant for it is being delivered.
#[derive(Debug)]
pub struct Visit<'a>(&'a StreamCache);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.state.lock().visitors -= 1;
    }
}

/// The hot path.
impl StreamCache {
    /// Grants a block in the plain case: one that this stream freed, of a size that has a stack, with a reference to
    /// the stream's registration. `rounding` is the part of `bytes` that was not requested. With [`Fit::Near`], the block
    /// may be larger by up to an eighth.
    #[inline(always)]
    pub fn take_at_once<O: CacheOwner>(
        &self,
        owner: &Arc<O>,
        bytes: u64,
        rounding: u32,
        fit: Fit,
    ) -> Option<(CachedBlock, Arc<O>)> {
        if bytes > self.bounds.largest {
            return None;
        }
        if let Some(shards) = self.shards.get() {
            let (cached, left) = self.take_from_shard(shards, bytes, rounding, RefCache::take)?;
            return Some((cached, left.unwrap_or_else(|| owner.clone())));
        }
        let mut state = self.enter(&self.state);
        if self.is_bypassed() {
            return None;
        }
        let Some(cached) = state.take_at_once(bytes, rounding) else {
            if matches!(fit, Fit::Exact) {
                return None;
            }
            let cached = take_near(state, bytes, rounding)?;
            return Some((cached, owner.clone()));
        };
        let left = state.cache.references.take();
        drop(state);
        Some((cached, left.unwrap_or_else(|| owner.clone())))
    }

    /// Frees a block that was used on this stream alone, in the plain case, and leaves its reference to the cache's
    /// `owner` with the stream, if there is room. Returns whether it was the plain case: if not, the block is still to
    /// be [freed](Self::free).
    ///
    /// `block` is called under the lock. A store to the block just before has reached the processor's cache by then,
    /// whatever its width. `is_over` is called under the lock once the cache has the block: it returns whether the
    /// reference is no longer needed.
    #[inline(always)]
    pub fn free_at_once<O: CacheOwner>(
        owner: &mut Option<Arc<O>>,
        cache_of: impl Fn(&O) -> &Self,
        bytes: u64,
        block: impl FnOnce() -> Use,
        is_over: impl FnOnce(&O) -> bool,
    ) -> bool {
        let Some(registration) = owner else {
            return false;
        };
        let this = cache_of(registration);
        if bytes > this.bounds.largest {
            return false;
        }
        if this.shards.get().is_some() {
            return Self::free_to_shard_at_once(owner, cache_of, block, is_over);
        }
        // Once the reference is left, the owner may go on another thread, and `this` with it.
        let slot = this.state.slot();
        let mut state = this.enter(&slot);
        if this.is_bypassed() {
            return false;
        }
        let kept = state.keep_at_once(&block(), this.bounds.bytes, this.spacing.bound());
        if kept.is_some() && is_over(registration) {
            state.cache.references.leave(owner);
        }
        kept.is_some()
    }

    /// Frees a block to this thread's shard as [`free_at_once`](Self::free_at_once) does. In the plain case the shard has
    /// an unused entry: so it was not flushed since, the stream is active, and it is not captured.
    #[inline(never)]
    fn free_to_shard_at_once<O: CacheOwner>(
        owner: &mut Option<Arc<O>>,
        cache_of: impl FnOnce(&O) -> &Self,
        block: impl FnOnce() -> Use,
        is_over: impl FnOnce(&O) -> bool,
    ) -> bool {
        let Some(registration) = owner else {
            return false;
        };
        let this = cache_of(registration);
        let Some(shards) = this.shards.get() else {
            return false;
        };
        let slot = shards.own();
        let mut shard = slot.lock();
        if this.is_bypassed() {
            return false;
        }
        let bound = this.spacing.bound();
        let is_kept = shards.keep_at_once(&mut shard, &block(), this.bounds, bound);
        if is_kept && is_over(registration) {
            shard.cache.references.leave(owner);
        }
        is_kept
    }

    /// Locks the state, for a thread that may contend for it with others.
    #[inline(always)]
    fn enter<'a>(&self, slot: &'a Slot<StreamState>) -> Guard<'a, StreamState> {
        if cfg!(weirpool_loom) {
            // Models ask for shards.
            return slot.lock();
        }
        match slot.try_lock() {
            Some(state) => state,
            None => self.enter_contended(slot),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_contended<'a>(&self, slot: &'a Slot<StreamState>) -> Guard<'a, StreamState> {
        let state = slot.lock();
        if self.contentions.fetch_add(1, Ordering::Relaxed) + 1 == CONTENTIONS {
            self.make_shards(&state);
        }
        state
    }

    /// Gives threads shards, except where the host frees: such memory is complete anyway, and shared.
    fn make_shards(&self, state: &StreamState) {
        if self.bounds.bytes > 0 && !state.is_host {
            self.shards.get_or_init(|| Shards::beside(&state.cache));
        }
    }

    /// Gives threads shards, as if they had contended often enough.
    pub fn share(&self) {
        self.make_shards(&self.state.lock());
    }

    /// Returns whether the stream is being captured in a session of the pool.
    #[inline]
    pub fn is_captured(&self) -> bool {
        self.calls.are_refused()
    }

    /// Returns whether the cache grants and keeps nothing now. To be asked under the lock.
    #[inline(always)]
    pub(super) fn is_bypassed(&self) -> bool {
        self.gate.load(Ordering::Relaxed) != 0
    }
}

/// Grants a block of a near size. The lock is released in here, apart from the end of the plain case.
#[cold]
#[inline(never)]
fn take_near(mut state: Guard<'_, StreamState>, bytes: u64, rounding: u32) -> Option<CachedBlock> {
    state.take(bytes, rounding, Fit::Near)
}

impl StreamCache {
    pub(super) fn new(
        bounds: CacheBounds,
        gate: Gate,
        activity: Activity,
        is_host: bool,
        is_external: bool,
    ) -> Self {
        let state = StreamState::new(bounds.largest_stack(), is_host);
        Self {
            bounds,
            gate,
            activity,
            is_external,
            spacing: Spacing::new(bounds.unsealed, bounds.may_widen),
            shards: OnceLock::new(),
            contentions: SharedNumber::new(0),
            may_owe_seal: AtomicBool::new(false),
            alternates: AtomicBool::new(false),
            spare: AtomicU64::new(0),
            state: OwnedSlot::new(state),
            calls: OwnCalls::default(),
        }
    }

    /// Grants a block that this stream freed (source 1). Grants nothing while the gate is closed: waiters come before a
    /// warm cache. `rounding` is the part of `bytes` that was not requested.
    pub fn take(&self, bytes: u64, rounding: u32, fit: Fit) -> Option<CachedBlock> {
        if bytes > self.bounds.largest && bytes > self.bounds.large_cache {
            // Never kept: the lock need not be taken.
            return None;
        }
        if let Some(shards) = self.shards.get() {
            let taken = self.take_from_shard(shards, bytes, rounding, |_| ());
            return taken.map(|(cached, ())| cached);
        }
        let mut state = self.enter(&self.state);
        if self.is_bypassed() {
            return None;
        }
        state.take(bytes, rounding, fit)
    }

    /// Grants a block from this thread's shard, where it takes `more` as well, or from the stream's own cache.
    #[inline(never)]
    fn take_from_shard<R: Default>(
        &self,
        shards: &Shards,
        bytes: u64,
        rounding: u32,
        more: impl FnOnce(&mut RefCache) -> R,
    ) -> Option<(CachedBlock, R)> {
        let shard = shards.own();
        {
            let mut shard = shard.lock();
            if self.is_bypassed() {
                return None;
            }
            if let Some(cached) = shard.take(bytes, rounding) {
                return Some((cached, more(&mut shard.cache.references)));
            }
        }
        let cached = {
            let mut state = self.state.lock();
            if self.is_bypassed() {
                return None;
            }
            state.cache.take(bytes, Fit::Exact)?
        };
        shard
            .lock()
            .counts
            .count(BlockEvent::Granted(Source::Lane), bytes, rounding);
        Some((cached, R::default()))
    }

    /// Frees a block that was used on this stream alone, in any case.
    ///
    /// A block too large for a stack may go to the large-block cache, if the time `now` is given.
    #[inline(always)]
    pub fn free(&self, block: Use, now: Option<Duration>) -> Freed {
        if let Some(shards) = self.shards.get() {
            return self.free_to_shard(shards, &block, now);
        }
        let mut state = self.enter(&self.state);
        if !self.is_bypassed() {
            let kept = state.keep_at_once(&block, self.bounds.bytes, self.spacing.bound());
            if let Some(ticket) = kept {
                return Freed {
                    ticket,
                    is_kept: true,
                    closed: None,
                };
            }
        }
        state
            .counters
            .count(BlockEvent::Free, block.bytes, block.rounding);
        self.keep(state, &block, now)
    }

    #[cold]
    #[inline(never)]
    fn free_to_shard(&self, shards: &Shards, block: &Use, now: Option<Duration>) -> Freed {
        let gate = || {
            self.activity.begin();
            self.is_bypassed() || self.is_captured()
        };
        let kept = shards.keep(&shards.own(), block, self.bounds, gate);
        let Some((ticket, unsealed)) = kept else {
            return self.keep(self.state.lock(), block, now);
        };
        let seals = unsealed > self.spacing.bound();
        Freed {
            ticket,
            is_kept: true,
            closed: seals
                .then(|| close_ticket(&mut self.state.lock(), &self.shards))
                .flatten(),
        }
    }

    #[cold]
    #[inline(never)]
    fn keep(&self, mut state: Guard<'_, StreamState>, block: &Use, now: Option<Duration>) -> Freed {
        self.activity.begin();
        let is_bypassed = self.is_bypassed() || state.capture.is_some();
        let ticket = state.count_use(block.bytes);
        let cached = CachedBlock::freed(block, ticket);
        let is_stacked = !is_bypassed && state.cache.push(cached, self.bounds.bytes);
        let is_large = self.bounds.has_large(block.bytes)
            && self.keep_large(&mut state, cached, now.filter(|_| !is_bypassed));
        // A large block is sealed by the stream's next call that does not take it again. An external stream may have no
        // further call.
        let may_wait = is_large && !self.is_external;
        let is_due = state.cache.unsealed > self.spacing.bound() && !may_wait;
        let closed = (is_bypassed || is_due).then(|| close_ticket(&mut state, &self.shards));
        self.mark_owed(&state);
        Freed {
            ticket,
            is_kept: is_stacked || is_large,
            closed: closed.flatten(),
        }
    }

    /// Notes the free of a block of such a size, also while the cache is bypassed. Keeps it if the stream alternates and
    /// the time is given.
    fn keep_large(
        &self,
        state: &mut StreamState,
        block: CachedBlock,
        now: Option<Duration>,
    ) -> bool {
        let is_kept = state.cache.large.put(block, now, self.bounds.large_cache);
        let alternates = state.cache.alternates();
        if alternates != self.alternates.load(Ordering::Relaxed) {
            self.alternates.store(alternates, Ordering::Relaxed);
        }
        is_kept
    }

    /// Returns whether a block of this size may go to the large-block cache now.
    pub fn may_keep_large(&self, bytes: u64) -> bool {
        self.bounds.has_large(bytes) && self.alternates.load(Ordering::Relaxed)
    }

    /// Notes the last use, on this stream, of a block that is freed through the heap.
    pub fn count_use(&self, bytes: u64) -> Freed {
        let mut state = self.state.lock();
        self.activity.begin();
        let ticket = state.count_use(bytes);
        let seals = self.is_bypassed() || state.cache.unsealed > self.spacing.bound();
        let closed = seals.then(|| close_ticket(&mut state, &self.shards));
        self.mark_owed(&state);
        Freed {
            ticket,
            is_kept: false,
            closed: closed.flatten(),
        }
    }

    /// Notes, after a free, whether it left more bytes unsealed than the bound.
    fn mark_owed(&self, state: &StreamState) {
        if state.cache.unsealed > self.spacing.bound() {
            self.may_owe_seal.store(true, Ordering::Relaxed);
        }
    }

    /// Frees a block that its reservation keeps for the owner's stream alone, counts it, and leaves its reference with the
    /// stream, if there is room. Returns `None` if nothing was done: memory is wanted elsewhere, a seal is due, or the
    /// stream is captured, or shared by threads that contend for it.
    #[inline]
    pub fn free_kept<O: CacheOwner>(
        owner: &mut Option<Arc<O>>,
        cache_of: impl FnOnce(&O) -> &Self,
        block: &Use,
    ) -> Option<CachedBlock> {
        let this = cache_of(owner.as_ref()?);
        if this.shards.get().is_some() {
            return None;
        }
        // As in `free_at_once`.
        let slot = this.state.slot();
        let mut state = this.enter(&slot);
        // Before the gate is read: see `active`.
        this.activity.begin();
        let unsealed = state.cache.unsealed.saturating_add(block.bytes);
        let is_plain = !this.is_bypassed() && state.capture.is_none();
        if !is_plain || unsealed > this.spacing.bound() {
            return None;
        }
        let ticket = state.count_use(block.bytes);
        state
            .counters
            .count(BlockEvent::Free, block.bytes, block.rounding);
        state.visitors += 1;
        state.cache.references.leave(owner);
        Some(CachedBlock::freed(block, ticket))
    }

    /// Grants a block that its reservation kept for the owner's stream, with a reference to its registration. Returns
    /// `None` if nothing was done, because the stream is captured.
    #[inline]
    pub fn take_kept<O: CacheOwner>(
        &self,
        owner: &Arc<O>,
        block: &CachedBlock,
        rounding: u32,
    ) -> Option<Arc<O>> {
        let mut state = self.state.lock();
        if state.capture.is_some() {
            return None;
        }
        state.cache.record_taken(block);
        state
            .counters
            .count(BlockEvent::Granted(Source::Lane), block.bytes, rounding);
        state.visitors -= 1;
        let left = state.cache.references.take();
        drop(state);
        Some(left.unwrap_or_else(|| owner.clone()))
    }

    /// Notes that a block that was kept for this stream is in the heap, with its fence.
    pub fn record_kept_returned(&self) {
        self.state.lock().visitors -= 1;
    }

    /// Changes the reference caches of the stream and of its shards. The results are dropped after the locks are
    /// released.
    pub fn with_references<R>(&self, mut change: impl FnMut(&mut RefCache) -> R) -> Vec<R> {
        self.with_all(|state, shards| {
            let in_shards = shards.iter_mut().map(|shard| &mut shard.cache.references);
            std::iter::once(&mut state.cache.references)
                .chain(in_shards)
                .map(&mut change)
                .collect()
        })
    }
}

/// Tickets.
impl StreamCache {
    /// Returns the open ticket: it, or a later one, proves all work submitted so far.
    pub fn open_ticket(&self) -> Ticket {
        self.state.lock().cache.open
    }

    /// Returns the last closed ticket, and whether a freed block is not covered by any event.
    pub fn last_closed(&self) -> (Ticket, bool) {
        let state = self.state.lock();
        (
            state.cache.open.previous(),
            is_dirty_with(&state, &self.shards),
        )
    }

    /// Closes the open ticket; `None` while the stream is captured, or if a freed block is `needed` that no event covers,
    /// and there is none. The host's tickets are not closed.
    pub(super) fn close(&self, needed: bool) -> Option<Closed> {
        let mut state = self.state.lock();
        if needed && !is_dirty_with(&state, &self.shards) {
            return None;
        }
        self.activity.begin();
        close_ticket(&mut state, &self.shards)
    }

    /// Returns whether a free left more bytes unsealed than the bound, and they are still unsealed.
    pub fn owes_seal(&self) -> bool {
        if !self.may_owe_seal.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        let owes_seal = state.cache.unsealed > self.spacing.bound();
        self.may_owe_seal.store(owes_seal, Ordering::Relaxed);
        owes_seal
    }

    /// Memory waits for a ticket under which perhaps no block was freed: if that ticket is open, the next seal must
    /// close it all the same. With [`Ticket::LAST`], the next event must cover what another one could not.
    pub fn expect_seal(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        self.activity.begin();
        state.is_dirty |= ticket >= state.cache.open && !state.is_host;
    }

    /// Returns whether the stream is retired, with nothing unsealed and every closed ticket at or before `completed`.
    pub(super) fn is_done(&self, completed: Ticket) -> bool {
        let state = self.state.lock();
        let is_dirty = is_dirty_with(&state, &self.shards);
        let is_quiet = !is_dirty && state.visitors == 0;
        state.is_retired && is_quiet && completed >= state.cache.open.previous()
    }

    /// Makes the stream inactive if it caches nothing, and all that was freed on it is complete at `completed`, which the
    /// heap knows.
    pub fn rest(&self, completed: Ticket) {
        self.with_all(|state, shards| {
            let in_shards = shards.iter().map(|shard| &shard.cache);
            let is_empty = std::iter::once(&state.cache)
                .chain(in_shards)
                .all(Cache::is_empty);
            let is_dirty = is_dirty_with(state, &self.shards);
            if is_empty && !is_dirty && completed >= state.cache.open.previous() {
                self.activity.end();
            }
        });
    }

    /// Returns the number of cached blocks, or 0 if all that was freed is known to be complete at `completed`. Takes
    /// constant time.
    pub(super) fn pending_blocks(&self, completed: Ticket) -> usize {
        self.with_all(|state, shards| {
            let is_dirty = is_dirty_with(state, &self.shards);
            if !is_dirty && completed >= state.cache.open.previous() {
                return 0;
            }
            let in_shards = shards.iter().map(|shard| shard.cache.blocks());
            state.cache.blocks() + in_shards.sum::<usize>()
        })
    }

    /// Keeps the lane from being done while the returned guard exists.
    pub fn visit(&self) -> Visit<'_> {
        self.state.lock().visitors += 1;
        Visit(self)
    }
}

/// Flushing: cached blocks go back to the heap.
impl StreamCache {
    /// Returns whether blocks are cached, or may be at any time without the engine's hearing of it.
    pub fn may_keep_unnoticed(&self) -> bool {
        let mut shards = slots_of(&self.shards);
        let may_shard = |shard: &Slot<Shard>| !shard.lock().cache.is_empty();
        !self.state.lock().cache.is_empty() || shards.any(may_shard)
    }

    /// Takes cached blocks.
    pub fn flush(&self, which: Flush) -> Vec<CachedBlock> {
        // Flushing an empty cache makes its next free take the slow path, where maintenance hears of it.
        if matches!(which, Flush::Idle) && self.is_in_use() {
            return Vec::new();
        }
        let mut cached = self.state.lock().cache.flush(which);
        // Shards keep no large blocks.
        if !matches!(which, Flush::Large) {
            let shards = slots_of(&self.shards);
            shards.for_each(|shard| cached.append(&mut shard.lock().cache.flush(which)));
        }
        cached
    }

    /// Returns whether blocks are cached, and the stream took one or closed a ticket since the last call.
    fn is_in_use(&self) -> bool {
        self.with_all(|state, shards| {
            let look = (state.counters.with(&sum(shards)).hits(), state.cache.open);
            let was_idle = std::mem::replace(&mut state.last_look, look) == look;
            let mut in_shards = shards.iter().map(|shard| &shard.cache);
            let is_keeping = |cache: &Cache| cache.bytes() > 0;
            !was_idle && (is_keeping(&state.cache) || in_shards.any(is_keeping))
        })
    }

    /// Takes all cached blocks and keeps none from now on: the stream's last handle is gone.
    pub fn retire(&self) -> Vec<CachedBlock> {
        self.state.lock().is_retired = true;
        self.flush(Flush::All)
    }

    /// Returns all cached blocks, with their tickets.
    pub fn cached(&self) -> Vec<(BlockId, Ticket)> {
        let named = |cached: CachedBlock| (cached.id, cached.ticket);
        let mut all: Vec<_> = self.state.lock().cache.all().map(named).collect();
        for shard in slots_of(&self.shards) {
            all.extend(shard.lock().cache.all().map(named));
        }
        all
    }
}

/// Counters.
impl StreamCache {
    /// Counts what happened to a block of the stream outside of the cache.
    pub fn count(&self, event: BlockEvent, bytes: u64, rounding: u32) {
        match self.shards.get() {
            Some(shards) => shards.own().lock().counts.count(event, bytes, rounding),
            None => self.state.lock().counters.count(event, bytes, rounding),
        }
    }

    /// Returns the figures, with the high-water mark since `mark`, given the last ticket that is complete.
    pub(super) fn figures(&self, mark: Mark, completed: Ticket) -> LaneFigures {
        self.with_all(|state, shards| {
            let in_shards = sum(shards);
            let high = state.counters.high_since(mark, &in_shards);
            let caches = || shards.iter().map(|shard| &shard.cache);
            let all = || std::iter::once(&state.cache).chain(caches());
            LaneFigures {
                counts: state.counters.with(&in_shards),
                high,
                // The maximum of the sum over several shards is not known.
                bound: self.shards.get().map_or(high, |_| UNKNOWN),
                cached: all().map(Cache::bytes).sum(),
                cached_complete: all().map(|cache| cache.bytes_up_to(completed)).sum(),
            }
        })
    }

    /// Changes the high-water marks of the counters, given the counts of the shards.
    pub fn with_marks(&self, change: impl FnOnce(&mut Counters, &Counts)) {
        self.with_all(|state, shards| change(&mut state.counters, &sum(shards)));
    }

    /// Reads the state and all shards at one moment: a block freed in one shard was granted in another, and no free is
    /// seen without its grant. The state's lock is taken before the shards'; nothing takes them the other way around.
    fn with_all<R>(&self, read: impl FnOnce(&mut StreamState, &mut [Guard<'_, Shard>]) -> R) -> R {
        let mut state = self.state.lock();
        let mut shards: Vec<_> = slots_of(&self.shards).map(Slot::lock).collect();
        read(&mut state, &mut shards)
    }
}

/// Closes the open ticket, if an event can prove it now.
#[cold]
#[inline(never)]
fn close_ticket(state: &mut StreamState, shards: &OnceLock<Shards>) -> Option<Closed> {
    let mut closed = state.close_if_recordable()?;
    if let Some(shards) = shards.get() {
        closed.covers_frees |= shards.mark_closed(state.cache.open);
    }
    Some(closed)
}

/// Returns whether a block was freed under the open ticket, to the state or to a shard, or the last record failed.
fn is_dirty_with(state: &StreamState, shards: &OnceLock<Shards>) -> bool {
    state.is_dirty || shards.get().is_some_and(Shards::is_dirty)
}

/// Returns the shards behind their locks, if there are any.
fn slots_of(shards: &OnceLock<Shards>) -> impl Iterator<Item = &Slot<Shard>> {
    shards.get().into_iter().flat_map(Shards::all)
}

fn sum(shards: &[Guard<'_, Shard>]) -> Counts {
    let mut counts = Counts::default();
    shards.iter().for_each(|shard| counts.add(&shard.counts));
    counts
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::active::ActiveStreams;
    use crate::id::StreamId;
    use crate::sync::SharedState;
    use std::collections::HashSet;

    /// Other tests use slots as well, at most one for each stream that they have at a time, and some for its threads.
    #[test]
    fn new_streams_reuse_the_locks_of_retired_ones() {
        const ROUNDS: usize = 2000;
        let bounds = CacheBounds {
            bytes: 1 << 20,
            ..CacheBounds::NONE
        };
        let gate = Gate::new(CachePadded::new(SharedState::new(0)));
        let active = Arc::new(ActiveStreams::default());
        for is_sharded in [false, true] {
            let (mut used, mut slots) = (0, HashSet::new());
            for _ in 0..ROUNDS {
                let activity = Activity::new(active.clone(), StreamId::SET_ASIDE);
                let cache = StreamCache::new(bounds, gate.clone(), activity, false, false);
                if is_sharded {
                    cache.share();
                }
                let shards = slots_of(&cache.shards);
                let shards = shards.map(|shard| std::ptr::from_ref(shard).addr());
                let state = std::ptr::from_ref::<Slot<StreamState>>(&cache.state).addr();
                let locks: Vec<_> = shards.chain([state]).collect();
                used += locks.len();
                slots.extend(locks);
                assert!(cache.retire().is_empty());
            }
            assert!(used > ROUNDS || !is_sharded);
            assert!(slots.len() < used / 2, "{} slots", slots.len());
        }
    }
}
