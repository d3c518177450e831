//! The hot path: a block from the lane, and back to it.
//!
//! Both ways have a plain case, in which little is asked and all is done under one lock: *at once*. What is not plain is
//! found out before anything has changed, and goes the long way, which knows all cases. So the plain case is short enough
//! to be compiled into its caller, where the block stays in registers.

use super::Lane;
use super::cache::CachedBlock;
use super::ref_cache::RefCache;
use super::slot::{Guarded, Slot};
use super::state::{Closed, StreamState};
use crate::heap::BlockId;
use crate::id::Ticket;
use crate::sync::{Guard, Ordering, SharedState};
use std::time::Duration;

/// A block that is freed, as the lane and the driver need to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// What was not asked for of the bytes.
    pub(crate) rounding: u32,
}

/// What became of a free.
#[derive(Debug)]
#[must_use = "a block that is not kept goes to the ledger, and a closed ticket is recorded"]
pub(crate) struct Freed {
    pub(crate) ticket: Ticket,
    pub(crate) is_kept: bool,
    /// The ticket that this free closed: its event must be recorded now.
    pub(crate) closed: Option<Closed>,
}

/// Of what size a block is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Exactly,
    /// Or up to an eighth larger, where there is none.
    Near,
}

/// Why a lane gave nothing at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Miss {
    /// It has no block of the size, or may not give it.
    Empty,
    /// It was not asked: it takes longer.
    Unasked,
}

/// The front, if it was entered and the case was not plain: it is not left in between.
#[derive(Debug)]
pub(crate) struct Entered<'a, K>(Option<Guard<'a, Guarded<K>>>);

impl Lane {
    /// Source 1: what this stream freed, at once. Nothing while the gate is not open: the waiters'
    /// claim on memory comes before a warm cache. `rounding` is what was not asked for of the bytes. What is given may
    /// be a little larger, if [near](Wanted::Near) does.
    pub(crate) fn take<K: ?Sized>(
        &self,
        slot: &Slot<K>,
        bytes: u64,
        rounding: u32,
        wanted: Wanted,
        gate: &SharedState,
    ) -> Option<CachedBlock> {
        if bytes > self.bounds.largest && bytes > self.bounds.large_cache {
            // Never kept: there is nothing to lock for.
            return None;
        }
        if self.shards.are_made() {
            return self.take_aside(bytes, rounding, gate);
        }
        let mut state = self.enter(slot);
        if wanted == Wanted::Near && bytes <= self.bounds.largest {
            let cached = state.take_at_once(bytes, rounding, gate);
            return cached.or_else(|| take_near(state, bytes, rounding, gate));
        }
        let cached = state.pop(bytes, gate)?;
        state.book.note_hit(bytes, rounding);
        Some(cached)
    }

    /// The same, in the plain case: of a size that has a stack. With what an earlier block left in the lane's `slot`, if
    /// one did.
    ///
    /// # Errors
    /// When there is nothing, or it is not the plain case.
    #[inline(always)]
    pub(crate) fn take_at_once<O>(
        &self,
        slot: &Slot<RefCache<O>>,
        bytes: u64,
        rounding: u32,
        gate: &SharedState,
    ) -> Result<(CachedBlock, Option<O>), Miss> {
        if bytes > self.bounds.largest {
            return Err(Miss::Unasked);
        }
        let alone =
            |cached: Option<CachedBlock>| cached.map(|cached| (cached, None)).ok_or(Miss::Empty);
        if self.shards.are_made() {
            return alone(self.take_aside(bytes, rounding, gate));
        }
        let mut state = self.enter(slot);
        match state.take_at_once(bytes, rounding, gate) {
            Some(cached) => Ok((cached, state.left.take())),
            None => alone(take_near(state, bytes, rounding, gate)),
        }
    }

    /// The front, of who may meet another there. It is in the lane's slot.
    #[inline(always)]
    fn enter<'a, K: ?Sized>(&self, slot: &'a Slot<K>) -> Guard<'a, Guarded<K>> {
        debug_assert!(std::ptr::addr_eq(slot, &*self.state), "another lane's");
        if cfg!(weirpool_loom) {
            // Models have sides from the start, or none.
            return slot.lock();
        }
        match slot.try_lock() {
            Some(state) => state,
            None => self.enter_after_another(slot),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_after_another<'a, K: ?Sized>(&self, slot: &'a Slot<K>) -> Guard<'a, Guarded<K>> {
        let state = slot.lock();
        if self.shards.note_meeting() && self.bounds.has_shards(state.is_host) {
            self.shards.make_shards(self.bounds, state.open);
        }
        state
    }

    #[cold]
    #[inline(never)]
    fn take_aside(&self, bytes: u64, rounding: u32, gate: &SharedState) -> Option<CachedBlock> {
        let shard = self.shards.own()?;
        {
            let mut shard = shard.lock();
            if gate.load(Ordering::Relaxed) != 0 {
                return None;
            }
            let cached = shard.take(bytes, rounding);
            if cached.is_some() {
                return cached;
            }
        }
        let cached = self.state.lock().pop(bytes, gate)?;
        shard.lock().counts.note_hit(bytes, rounding);
        Some(cached)
    }

    /// Frees a block that was used on this stream alone, in the plain case: the lane has no sides, it is kept on its
    /// stack, and nothing is to be sealed. Returns the ticket under which it was freed, and the lane's `slot`, still locked:
    /// the block may leave something there.
    ///
    /// The block is read once the lock is had: what was stored just before is in the cache by then, whatever parts it was
    /// stored in.
    ///
    /// The gate is read inside the critical section: who raises it drains the lane afterwards, so a
    /// block is either drained or not kept.
    ///
    /// # Errors
    /// When it is not the plain case: it is still to be [freed](Self::free).
    #[inline(always)]
    pub(crate) fn keep_at_once<'a, K>(
        &self,
        slot: &'a Slot<K>,
        bytes: u64,
        block: impl FnOnce() -> Use,
        gate: &SharedState,
    ) -> Result<(Ticket, Guard<'a, Guarded<K>>), Entered<'a, K>> {
        if bytes > self.bounds.largest || self.shards.are_made() {
            return Err(Entered(None));
        }
        let mut state = self.enter(slot);
        match state.keep_at_once(block, &self.bounds, self.spacing.bound(), gate) {
            Some(ticket) => Ok((ticket, state)),
            None => Err(Entered(Some(state))),
        }
    }

    /// Frees a block that was used on this stream alone, in any case.
    ///
    /// A block too large for a stack may go on the large-block cache, if there is a `now` for it.
    pub(crate) fn free<K>(
        &self,
        slot: &Slot<K>,
        block: &Use,
        entered: Entered<'_, K>,
        now: Option<Duration>,
        gate: &SharedState,
    ) -> Freed {
        let mut state = match entered.0 {
            Some(state) => state,
            None if self.shards.are_made() => {
                return self.free_aside(slot, block, now, gate);
            }
            None => self.enter(slot),
        };
        state.book.note_free(block.bytes, block.rounding);
        self.keep(state, block, now, gate)
    }

    /// Whether a block of so many bytes may be kept on the large-block cache.
    #[inline]
    pub(crate) fn large_caches(&self, bytes: u64) -> bool {
        bytes > self.bounds.largest && bytes <= self.bounds.large_cache
    }

    #[cold]
    #[inline(never)]
    fn free_aside<K>(
        &self,
        slot: &Slot<K>,
        block: &Use,
        now: Option<Duration>,
        gate: &SharedState,
    ) -> Freed {
        let shard = self.shards.own();
        let cached = shard.and_then(|shard| self.shards.keep(shard, block, self.bounds, gate));
        let Some(cached) = cached else {
            return self.keep(slot.lock(), block, now, gate);
        };
        let seals = cached.unsealed > self.spacing.bound();
        let close = || self.state.lock().close_if(true, &self.shards);
        Freed {
            ticket: cached.ticket,
            is_kept: true,
            closed: seals.then(close).flatten(),
        }
    }

    #[inline]
    fn keep<K>(
        &self,
        mut state: Guard<'_, Guarded<K>>,
        block: &Use,
        now: Option<Duration>,
        gate: &SharedState,
    ) -> Freed {
        let Use {
            id, address, bytes, ..
        } = *block;
        let ticket = state.note_use(bytes);
        let is_bypassed = gate.load(Ordering::Relaxed) != 0;
        let cached = CachedBlock {
            id,
            address,
            bytes,
            ticket,
        };
        let is_stacked = !is_bypassed && state.cache.has_room(bytes, self.bounds.bytes);
        if is_stacked {
            state.cache.push(cached);
        }
        let is_shelved =
            !is_bypassed && now.is_some_and(|now| self.shelve(&mut state, cached, now));
        // What is on the large-block cache is sealed by the next call for the stream that does not take it from there; unless there
        // may be none.
        let is_put_off = is_shelved && !self.is_external;
        let is_due = state.unsealed > self.spacing.bound() && !is_put_off;
        Freed {
            ticket,
            is_kept: is_stacked || is_shelved,
            closed: state.close_if(is_bypassed || is_due, &self.shards),
        }
    }

    #[cold]
    fn shelve(&self, state: &mut StreamState, cached: CachedBlock, now: Duration) -> bool {
        state.cache.shelve(cached, now, self.bounds.large_cache)
    }
}

/// Where there is nothing of the size. The lock is let go in here: of the plain case that is another end.
#[cold]
#[inline(never)]
fn take_near<K: ?Sized>(
    mut state: Guard<'_, Guarded<K>>,
    bytes: u64,
    rounding: u32,
    gate: &SharedState,
) -> Option<CachedBlock> {
    state.take_near(bytes, rounding, gate)
}
