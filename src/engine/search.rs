//! The search for memory: executes what the [policy](crate::heap::Sequence) decides.
//!
//! `prepare` and `attempt` have one arm for each action; the order of the actions is the policy's.

mod exact;
mod expected;

use super::recipient::{Found, Recipient};
use super::supply::For;
use super::{
    Effort, Engine, Expected, Group, Mode, NoMemory, Source, maintenance, ordering, reaping, spill,
    supply,
};
use crate::device::DeviceError;
use crate::error::AllocError;
use crate::heap::{
    Action, Clock, Facts, Fences, Fit, GrowBy, Growth, Offers, Order, Piece, Placement, Plan,
    Prepare, Request, Rules, Sequence, Target, Try, WaitLimit, inspect,
};
use crate::lane::{Flush, Lane};
use crate::sync::Arc;
use std::time::Duration;

/// Streams that take turns come back for a large block within this time. It is left to them while more memory can be
/// taken from the device: if the next stream took it, no stream would have its own block at its turn.
const AGE: Duration = Duration::from_micros(200);

/// One search for one block.
pub(super) struct Search<'a> {
    to: Recipient<'a>,
    request: Request,
    mode: Mode<'a>,
    state: Sequence,
    /// The points that streams were asked for during this search.
    asked: Clock,
    /// How many blocks had been taken back from caches when this search last did so.
    taken_back: Option<u64>,
    /// The device refuses for no visible reason; it is asked for the last time.
    is_last: bool,
    /// How often this search had other pools release memory.
    spills: u32,
    /// Bytes that this search had evicted.
    evicted: u64,
}

/// Returns whether work may be submitted to the stream. The queue may be served after the owner of an external stream
/// has let go of it, so queued requests of such a stream get memory that needs no submission: complete memory, or the
/// stream's own.
pub(super) fn may_submit(lane: &Lane, mode: Mode<'_>) -> bool {
    !lane.is_external || !mode.is_queued
}

impl<'a> Search<'a> {
    /// Returns a search for memory of a stream, at a place. If `deferred` is given, the waits that the stream needs are
    /// added there, and the memory is the stream's only once they are submitted.
    #[inline(always)]
    pub(super) fn for_stream(
        engine: &'a Engine,
        lane: &'a Arc<Lane>,
        (request, placement): (Request, Placement),
        mode: Mode<'a>,
        deferred: Option<&'a mut Fences>,
    ) -> Self {
        let may_submit = may_submit(lane, mode);
        let mut after = Clock::default();
        if engine.shared.reuse().follow_event_dependencies {
            if may_submit {
                after = match mode.is_queued {
                    true => lane.timeline.clock(),
                    false => lane.timeline.clock_so_far(),
                };
            }
            if let Some(deferred) = &deferred {
                after.join_all(deferred);
            }
        }
        let to = Recipient {
            placement,
            may_submit,
            deferred,
            ..Recipient::new(engine, lane, after)
        };
        Self::new(to, request, mode)
    }

    /// Creates a search for memory that is complete on every stream.
    pub(super) fn for_all(
        engine: &'a Engine,
        lane: &'a Arc<Lane>,
        (request, placement): (Request, Placement),
        mode: Mode<'a>,
    ) -> Self {
        let to = Recipient {
            is_for_all: true,
            placement,
            ..Recipient::new(engine, lane, Clock::default())
        };
        Self::new(to, request, mode)
    }

    #[inline]
    fn new(to: Recipient<'a>, request: Request, mode: Mode<'a>) -> Self {
        let engine = to.engine;
        let rules = Rules {
            order: engine.shared.settings.order,
            // Waiting is synchronizing: a request in the queue may always ask.
            may_poll: engine.shared.reuse().opportunistic || mode.is_queued,
            may_wait: to.may_wait(),
            may_call: engine.shared.may_call(mode.effort),
            is_leased: engine.store.lease.lender.is_some(),
            can_remap: engine.shared.settings.geometry.virtual_memory,
            takes_exact: to.placement == Placement::Anywhere && !to.is_for_all,
            is_immediate: mode.effort == Effort::Immediate,
            is_queued: mode.is_queued,
        };
        Self {
            to,
            request,
            mode,
            state: Sequence::new(rules),
            asked: Clock::default(),
            taken_back: None,
            is_last: false,
            spills: 0,
            evicted: 0,
        }
    }

    pub(super) fn run(&mut self) -> Result<Found, NoMemory> {
        self.to.engine.shared.expect_sound()?;
        self.look_for_room()?;
        if self.is_held_back() {
            return Err(NoMemory::short());
        }
        let Recipient { engine, lane, .. } = self.to;
        if lane.cache.owes_seal() {
            // This request does not take the large blocks that the stream's cache holds. A failure is noted; the next
            // request tries again.
            let _ = ordering::seal_for_others(engine, lane);
        }
        if engine.shared.settings.is_ordered {
            return self.run_in_order();
        }
        self.run_in_heap()
    }

    /// Takes a segment from an ordered source, which decides about reuse. The heap has only blocks that the source did not
    /// take back in the order of a stream.
    fn run_in_order(&mut self) -> Result<Found, NoMemory> {
        let engine = self.to.engine;
        if self.to.takes_ordered_memory() && self.to.placement == Placement::Anywhere {
            let segment = engine.store.heap.lock().plan_segment(self.request, true);
            let plan = segment.map(Plan::Memory);
            if let Some(found) = self.put_together(plan, None, Growth::Allowed)? {
                return Ok(found);
            }
        }
        let found = self.run_in_heap()?;
        engine.supply.mark_parts();
        Ok(found)
    }

    #[inline]
    fn run_in_heap(&mut self) -> Result<Found, NoMemory> {
        match self.take_good_fit() {
            Some(found) => Ok(found),
            None => self.try_sources(),
        }
    }

    /// Tries the sources of the policy's table.
    #[inline(never)]
    fn try_sources(&mut self) -> Result<Found, NoMemory> {
        loop {
            match self.state.next_action() {
                Action::Prepare(prepare) => {
                    if self.prepare(prepare)? {
                        self.state.mark_news();
                    }
                }
                Action::Try(source) => {
                    if let Some(found) = self.attempt(source)? {
                        return Ok(found);
                    }
                }
                Action::GiveUp => return Err(NoMemory::short()),
            }
        }
    }

    /// Makes more memory reachable. Returns whether it did.
    fn prepare(&mut self, prepare: Prepare) -> Result<bool, NoMemory> {
        let engine = self.to.engine;
        Ok(match prepare {
            Prepare::FlushLarge => {
                let has_any = engine.streams.flush(&engine.store, Flush::Large);
                if has_any {
                    ordering::seal_lanes(engine)?;
                }
                has_any
            }
            Prepare::PollLikely => exact::poll_likely(self)?,
            // A loose fit that was passed over may be taken after all.
            Prepare::Poll => self.poll()? || self.state.facts.is_loose_fit,
            Prepare::FlushAged => {
                let now = engine.shared.device.now();
                engine
                    .streams
                    .flush(&engine.store, Flush::Older { now, age: AGE });
                self.finish_flush()?
            }
            Prepare::FlushAll => {
                engine.streams.flush(&engine.store, Flush::All);
                self.finish_flush()?
            }
            Prepare::PollLate => reaping::reap_by(engine, |lane| {
                lane.timeline.reap_late(&*engine.shared.device)
            })?,
            Prepare::Trim => {
                let released = supply::release(engine, Target::Keep(0)).into_result();
                let has_released = engine.shared.noted(released)? > 0;
                if has_released {
                    self.record_refused(0);
                }
                has_released
            }
            Prepare::Spill => {
                let has_spilled = spill::spill_for(engine, self.request.bytes, self.spills);
                if has_spilled {
                    self.spills += 1;
                    self.record_refused(0);
                }
                has_spilled
            }
            Prepare::AskAgain => {
                self.is_last = spill::refuses_for_no_reason(engine, self.to.refused);
                self.is_last
            }
            Prepare::Borrow => {
                let view = self.to.view();
                let mut heap = engine.store.heap.lock();
                let wanted = engine.store.lease.wanted(heap.lacking(self.request, &view));
                drop(heap);
                wanted.is_some_and(|wanted| self.mode.borrow(&engine.store.lease, wanted))
            }
            Prepare::Evict => self.evict()?,
        })
    }

    /// Returns whether the request has to wait because the source takes back memory that is in use, and the request would
    /// exceed the bound on it.
    #[inline]
    fn is_held_back(&self) -> bool {
        let wanted = self
            .to
            .engine
            .store
            .wanted_for_use(&self.to.engine.shared, self.request.bytes);
        wanted.is_some_and(|wanted| !self.is_relieved(wanted))
    }

    /// Asks the source of the capacity for bytes without which the request would exceed the bound on memory in use. Returns whether it
    /// would not exceed the bound any more.
    #[cold]
    #[inline(never)]
    fn is_relieved(&self, wanted: u64) -> bool {
        let Engine { shared, store, .. } = self.to.engine;
        self.mode.borrow(&store.lease, wanted)
            && store.wanted_for_use(shared, self.request.bytes).is_none()
    }

    /// Takes memory from a source.
    fn attempt(&mut self, source: Try) -> Result<Option<Found>, NoMemory> {
        Ok(match source {
            Try::Take => self.take(),
            Try::WaitForExact => exact::wait_for_exact(self)?,
            Try::Grow => self.grow()?,
            Try::Wait => self.wait(self.to.engine.shared.settings.wait_limit)?,
            Try::WaitAnyTime => self.wait(WaitLimit::Unlimited)?,
        })
    }

    /// # Errors
    /// Returns an error if the addresses that are asked for are not free, so that waiting does not help.
    fn look_for_room(&self) -> Result<(), NoMemory> {
        let placement = self.to.placement;
        if placement == Placement::Anywhere {
            return Ok(());
        }
        let engine = self.to.engine;
        let needed = placement.needs(self.request.bytes);
        let is_room = || engine.store.heap.lock().addresses(placement) >= needed;
        if is_room() {
            return Ok(());
        }
        // Cached blocks can make room.
        engine.streams.flush(&engine.store, Flush::All);
        if is_room() {
            return Ok(());
        }
        let room = engine.store.heap.lock().addresses(placement);
        Err(AllocError::NoRoom { room }.into())
    }

    fn take(&self) -> Option<Found> {
        let view = self.to.view();
        let grant = self.to.engine.store.heap.lock().take(self.request, &view)?;
        Some(self.to.found_with(grant, Source::Free))
    }

    /// Takes a block that fits well. A block that fits better than a loose one may be complete unnoticed.
    fn take_good_fit(&mut self) -> Option<Found> {
        if !self.state.may_poll() {
            return self.take();
        }
        let bytes = self.request.bytes;
        let fit = {
            let mut heap = self.to.engine.store.heap.lock();
            let fit = heap.take_good_fit(self.request, &self.to.view());
            let (left, free) = inspect::left_and_free(&heap);
            self.state.facts = Facts {
                is_loose_fit: matches!(fit, Fit::Loose),
                could_be_new: left >= bytes,
                is_enough: left + free >= bytes,
                ..self.state.facts
            };
            fit
        };
        match fit {
            Fit::Good(grant) => Some(self.to.found_with(grant, Source::Free)),
            Fit::Loose | Fit::None => None,
        }
    }

    /// Asks every stream that this search has not asked since its newest event. Points that the others have passed
    /// since then count for the next search.
    fn poll(&mut self) -> Result<bool, DeviceError> {
        let engine = self.to.engine;
        // Where a last look at late events comes later, the oldest event is enough for now.
        let in_order = engine.shared.settings.order == Order::GrowFirst;
        let asked = &mut self.asked;
        reaping::reap_by(engine, |lane| {
            let newest = lane.timeline.newest().map(|marker| marker.ticket);
            let Some(newest) = newest.filter(|newest| !asked.covers(lane.fence(*newest))) else {
                return Ok(None);
            };
            asked.join(lane.fence(newest));
            if in_order {
                lane.timeline.query(&*engine.shared.device, false)
            } else {
                lane.timeline.reap(&*engine.shared.device)
            }
        })
    }

    /// Evicts as many bytes as the request lacks, and at least a quarter of its size at a time: free memory may be
    /// scattered. Evicts nothing if all evictable memory is not enough; for a request that waits, other pools evict then.
    /// Evicts no more while enough is pending that this search evicted or, for a request that waits, is behind copies.
    #[cold]
    #[inline(never)]
    fn evict(&mut self) -> Result<bool, DeviceError> {
        let engine = self.to.engine;
        let evictable = engine.store.evictables.bytes_of(Group::Pool);
        let bytes = self.request.bytes;
        let lanes = engine.streams.lanes();
        let copying = lanes
            .iter()
            .filter(|lane| self.mode.effort != Effort::Immediate && lane.is_for_copies());
        let (left, free, pending, behind_copies) = {
            let heap = engine.store.heap.lock();
            let (left, free) = inspect::left_and_free(&heap);
            let behind = copying.map(|lane| inspect::pending_on(&heap, lane.id));
            (left, free, heap.totals().pending.current, behind.sum())
        };
        let missing = |new: u64| {
            let at_hand = free.saturating_add(new).saturating_add(pending);
            bytes.saturating_sub(at_hand.saturating_add(evictable))
        };
        let may_ask_others = self.mode.is_queued && engine.supply.is_refused();
        if missing(left) > 0 || evictable == 0 && !may_ask_others {
            return Ok(false);
        }
        let evicted_before = pending.min(self.evicted).max(behind_copies);
        // Pending memory is not joined with new memory, so evicted memory that is pending has to be enough without.
        let new = match evicted_before {
            0 => spill::obtainable(engine, left, self.state.facts.is_refused),
            _ if missing(0) > 0 => return Ok(false),
            _ => 0,
        };
        // The device may refuse memory that it reports.
        let is_refused_all_the_same = evictable == 0 && pending == 0 && self.state.facts.is_refused;
        if missing(new) > 0 || is_refused_all_the_same {
            // It has to be asked again: no change is published once it has more.
            engine.supply.record_refused(true);
            let lacking = missing(new).max(1);
            return Ok(self.mode.is_queued && (engine.supply.others.evict)(engine, lacking) > 0);
        }
        let coming = free.saturating_add(evicted_before);
        let least = if free < bytes { 1 } else { bytes / 4 };
        let may_be_enough = behind_copies >= least || self.mode.effort == Effort::Immediate;
        if evicted_before > 0 && coming >= bytes && may_be_enough {
            return Ok(false);
        }
        let lacking = u64::max(bytes / 4, bytes.saturating_sub(coming.saturating_add(new)));
        let piece = Piece::For(self.request, self.to.placement);
        let evictables = &engine.store.evictables;
        let evicted = evictables.evict_for(&engine.store.heap, lacking, piece, Group::Pool);
        if evicted == 0 {
            return Ok(false);
        }
        self.evicted += evicted;
        self.spills = 0;
        // Evicted blocks may be in the heap already, and covered by no event.
        engine.streams.flush(&engine.store, Flush::All);
        self.seal_and_poll()?;
        Ok(true)
    }

    /// Seals and asks after blocks that were taken back from caches: no event covers some of them. Says whether any
    /// were since this search last looked, by whichever search: another that took them may have left some.
    fn finish_flush(&mut self) -> Result<bool, DeviceError> {
        let taken_back = Some(self.to.engine.store.totals().taken_back);
        if self.taken_back == taken_back {
            return Ok(false);
        }
        self.taken_back = taken_back;
        self.seal_and_poll()?;
        Ok(true)
    }

    fn seal_and_poll(&mut self) -> Result<(), DeviceError> {
        if self.state.may_poll() {
            ordering::seal_lanes(self.to.engine)?;
            self.poll()?;
        }
        Ok(())
    }

    /// Takes memory behind a wait on the device, in one block or in several that are joined.
    fn wait(&mut self, limit: WaitLimit) -> Result<Option<Found>, DeviceError> {
        let taken = self.to.with_waits(Some(limit), |view| {
            self.to.engine.store.heap.lock().take(self.request, view)
        });
        if let Some(grant) = taken {
            return self.to.accept(grant, Source::Free);
        }
        let plan = self.to.with_waits(Some(limit), |view| {
            let mut heap = self.to.engine.store.heap.lock();
            heap.plan(self.request, view, Growth::None)
        });
        self.put_together(plan, Some(limit), Growth::None)
    }

    /// Grows. Where waiting comes first, memory that the stream may wait for counts as well, and new memory is taken
    /// only once the expected points are passed and did not help.
    fn grow(&mut self) -> Result<Option<Found>, NoMemory> {
        let settings = &self.to.engine.shared.settings;
        let waits = (settings.order == Order::WaitFirst && self.to.may_wait())
            .then_some(settings.wait_limit);
        let expected = match settings.order {
            Order::GrowFirst => Expected::default(),
            Order::WaitFirst => expected::awaited(self.mode.patience, &self.to, self.request.bytes),
        };
        let is_held_back = !expected.fences.is_empty();
        let most = self.most_chunks();
        let growth = match most {
            0 => Growth::None,
            _ => self.to.growth(self.request.bytes),
        };
        // One scan tells what a plan costs, whether growing would help, and what to claim.
        let (plan, growth, could_grow) = self.to.with_waits(waits, |view| {
            let mut heap = self.to.engine.store.heap.lock();
            let offers = heap.offers(self.request, view, growth);
            let growth = if is_held_back && most > 0 {
                growth_held_back(&offers, growth)
            } else {
                growth
            };
            let growth = match offers.chunks(growth) {
                Some(chunks) if chunks > most => Growth::None,
                _ => growth,
            };
            let plan = heap.plan_from(&offers, self.request, view.placement, growth);
            (plan, growth, offers.could_grow())
        });
        if let Some(found) = self.put_together(plan, waits, growth)? {
            return Ok(Some(found));
        }
        if is_held_back {
            return Err(NoMemory::Short(expected));
        }
        if most < u64::MAX && could_grow {
            return Err(NoMemory::NeedsThread);
        }
        if self.is_last && spill::refuses_for_no_reason(self.to.engine, self.to.refused) {
            return Err(NoMemory::Hopeless);
        }
        Ok(None)
    }

    /// Returns how many chunks this search may map where it runs.
    fn most_chunks(&self) -> u64 {
        let engine = self.to.engine;
        let geometry = &engine.shared.settings.geometry;
        let is_little = geometry.virtual_memory && geometry.growth == GrowBy::Chunks;
        // An ordered source takes calls from anywhere.
        if engine.shared.may_call(self.mode.effort) || self.to.takes_ordered_memory() {
            u64::MAX
        } else if is_little {
            self.mode.chunks
        } else {
            0
        }
    }

    /// Carries a plan out. If the device refuses its new chunks, takes fewer of them and moves more free ones, as far
    /// as this search may.
    fn put_together(
        &mut self,
        plan: Option<Plan>,
        waits: Option<WaitLimit>,
        growth: Growth,
    ) -> Result<Option<Found>, DeviceError> {
        let mut plan = plan;
        while let Some(next) = plan {
            let whom = For::Stream {
                lane: self.to.lane.clone(),
                is_ordered: self.to.takes_ordered_memory(),
            };
            let chunks = next.chunks();
            let mut found = self.to.carry_out(next, whom)?;
            if let Some(found) = &mut found {
                found.mapped = chunks;
            }
            self.record_refused(self.to.refused);
            let may_move = self.most_chunks() == u64::MAX;
            if found.is_some() || !may_move || !self.to.was_refused_new(growth) {
                return Ok(found);
            }
            plan = self.plan_with_less(waits);
        }
        Ok(None)
    }

    /// Plans with fewer new chunks than the device refused, by moving more free ones.
    fn plan_with_less(&self, waits: Option<WaitLimit>) -> Option<Plan> {
        let (request, growth) = (self.request, Growth::Allowed);
        let chunk = self.to.engine.shared.settings.geometry.chunk_bytes;
        self.to.with_waits(waits, |view| {
            let mut heap = self.to.engine.store.heap.lock();
            let offers = heap.offers(request, view, growth);
            let new = offers.new_chunks(growth)? * chunk;
            let is_less = new < self.to.refused;
            is_less.then(|| heap.plan_from(&offers, request, view.placement, growth))?
        })
    }

    fn record_refused(&mut self, bytes: u64) {
        self.to.refused = bytes;
        self.state.facts.is_refused = bytes > 0;
        if bytes > 0 {
            maintenance::schedule(self.to.engine);
        }
    }
}

/// Returns the growth for a request that may not take new memory yet. Where the budget lacks moves, a plan would take
/// new memory instead, so the request waits; unless there is no new memory to take.
fn growth_held_back(offers: &Offers, growth: Growth) -> Growth {
    if growth.is_sparing() && offers.new_chunks(growth) > Some(0) {
        Growth::None
    } else {
        Growth::Remap
    }
}
