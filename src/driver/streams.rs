//! The streams layer: registers streams, asks them how far they have come, and takes back what their caches hold.

mod kept;

pub(crate) use kept::{Kept, ReservationState};

use super::core::Core;
use super::neighbours::Neighbours;
use super::registry::{Lanes, Registry};
use super::{Change, HistoryEvent};
use crate::device::{Device, DeviceError, DeviceStream, Host, RawStream, Watch};
use crate::error::StreamError;
use crate::fault::injected;
use crate::heap::{self, Fences, Order};
use crate::id::{StreamId, StreamNames, Ticket};
use crate::lane::{ActiveStreams, Bounds, CachedBlock, Events, Flush, Lane, Marker, Neighbour};
use crate::sync::{Arc, Busy, Guards, plain, yield_now};
use crate::trace;
use kept::KeepingReservations;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How many streams whose last handle is gone are asked when another stream comes or goes.
const ASKED: usize = 4;

/// How long a check waits for memory calls of other threads.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watches on points of streams. A watch holds its marker, so that the event is not recorded again.
pub(crate) type Watches = BTreeMap<(StreamId, Ticket), Watch<Marker>>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Streams {
    core: Core,
    /// The order in which memory is taken for no stream, such as that of reservations.
    pub(crate) neutral: Arc<Lane>,
    pub(super) lanes: Busy<Registry>,
    active: Arc<ActiveStreams>,
    pub(super) events: Arc<Events>,
    pub(crate) neighbours: Neighbours,
    keeping: KeepingReservations,
}

impl Deref for Streams {
    type Target = Core;

    #[inline(always)]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Streams {
    pub(super) fn new(core: Core) -> Self {
        let host = Host(core.device.id());
        let gate = core.gate.clone();
        let active = Arc::new(ActiveStreams::new());
        let neutral = Lane::new(StreamId::SET_ASIDE, &host, Bounds::NONE, gate, &active);
        Self {
            neutral: Arc::new(neutral),
            lanes: Busy::new(Guards::Registry, Registry::new()),
            active,
            events: Arc::new(Events::new(core.device.clone())),
            neighbours: Neighbours::new(core.device.clone()),
            keeping: KeepingReservations::new(),
            core,
        }
    }

    /// Returns the names of the registered streams that have one.
    pub(crate) fn names(&self) -> StreamNames {
        let lanes = self.lanes();
        let named = lanes.iter();
        named
            .filter_map(|lane| Some((lane.id, lane.name()?.to_owned())))
            .collect()
    }

    /// Registers a stream, with an id of its own (invariant `stable-ids`).
    ///
    /// # Errors
    /// Returns an error if it is a stream of another device without access, or if the device cannot keep its order.
    pub(crate) fn register(&self, stream: &dyn DeviceStream) -> Result<Arc<Lane>, StreamError> {
        let neighbour = self.neighbours.with_access(stream.device_id())?;
        self.expect_seen_by(stream.raw())?;
        self.register_at(stream, neighbour)
    }

    /// Registers a stream on which only copies that the device makes are noted.
    ///
    /// # Errors
    /// Returns an error if it is a stream of a device that is not beside the pool's.
    pub(crate) fn register_for_copies(
        &self,
        stream: &dyn DeviceStream,
        device: &plain::Arc<dyn Device>,
    ) -> Result<Arc<Lane>, StreamError> {
        let neighbour = self.neighbours.of_copies(device)?;
        let lane = self.register_at(stream, neighbour)?;
        lane.set_for_copies(true);
        Ok(lane)
    }

    fn register_at(
        &self,
        stream: &dyn DeviceStream,
        neighbour: Option<Arc<Neighbour>>,
    ) -> Result<Arc<Lane>, StreamError> {
        stream.admit()?;
        // A new stream removes some that are gone, so that their number stays bounded.
        self.reap_retired(None);
        let id = self.lanes.lock().next_id();
        let (bounds, gate) = (self.settings.lane, self.gate.clone());
        let lane = Lane::new(id, stream, bounds, gate, &self.active);
        let lane = Arc::new(lane.on(neighbour));
        // The heap knows the stream and its completed point before any block is freed on it.
        self.heap.lock().register(id, lane.timeline.completed());
        self.lanes.lock().insert(lane.clone());
        trace::stream_registered(lane.label());
        Ok(lane)
    }

    /// # Errors
    /// Returns an error if the pool's memory is not accessible where the stream runs.
    pub(crate) fn expect_seen_by(&self, stream: RawStream) -> Result<(), StreamError> {
        let kind = self.settings.kind;
        match stream {
            RawStream::HOST if !kind.is_seen_by_host() => Err(StreamError::UnseenByHost),
            RawStream::HOST => Ok(()),
            _ if !kind.is_seen_by_device() => Err(StreamError::UnseenByDevice),
            _ => Ok(()),
        }
    }

    /// Continues the ids of streams from here, as after this many registrations.
    #[cfg(test)]
    pub(crate) fn skip_stream_ids(&self, next: u64) {
        self.lanes.lock().skip_ids(next);
    }

    /// Returns the lanes that are registered now.
    pub(crate) fn lanes(&self) -> Lanes {
        self.lanes.lock().lanes.clone()
    }

    /// Returns the lanes that may cache blocks, or have freed memory that is not known to be complete; or all, if there
    /// are few. The gate is closed before this, by a caller that no freed block may escape.
    pub(super) fn active_lanes(&self) -> Lanes {
        let lanes = self.lanes();
        if lanes.are_few() {
            return lanes;
        }
        // First: each of them is registered by now.
        let ids = self.active.ids();
        self.lanes().among(&ids)
    }

    /// Ends a stream whose last handle and last block are gone: its freed blocks are sealed, and available to all.
    pub(super) fn retire_lane(&self, lane: &Lane) {
        {
            let mut heap = self.heap.lock();
            for cached in lane.cache.retire() {
                heap.give_back(cached.id, Fences::one(lane.id, cached.ticket));
            }
        }
        let leaving = self.lanes.lock().retire(lane.id);
        // A failure is noted; the memory stays pending then.
        let _ = self.seal_for_others(lane);
        self.reap_retired(leaving);
    }

    /// Asks a stream whose last handle is gone, and a few others by turns. Forgets those whose work is complete. Each
    /// stream that comes or goes asks for several, so those that are done do not pile up.
    fn reap_retired(&self, leaving: Option<Arc<Lane>>) {
        let mut asked = self.lanes.lock().next_leaving(ASKED);
        asked.extend(leaving);
        for lane in &asked {
            // A failure is noted; the lane stays.
            let _ = self.unless_sticky(lane.timeline.reap(&*self.device));
            self.catch_up(lane);
        }
        self.forget_all_done(asked);
    }

    /// Forgets those of the lanes whose streams are gone and whose work is complete.
    fn forget_all_done(&self, mut lanes: Vec<Arc<Lane>>) {
        lanes.retain(|lane| lane.is_done());
        if !lanes.is_empty() {
            self.forget_done(&lanes);
        }
    }

    /// Forgets lanes whose streams are gone and whose work is complete.
    #[cold]
    #[inline(never)]
    fn forget_done(&self, done: &[Arc<Lane>]) {
        // First, so that nothing is pending for a stream that no search finds any more.
        done.iter().for_each(|lane| self.catch_up(lane));
        let done = {
            let mut registry = self.lanes.lock();
            let done = registry.remove_done(done);
            if !injected("figures-lost-with-their-stream") {
                done.iter().for_each(|lane| registry.retired.absorb(lane));
            }
            done
        };
        if injected("figures-lost-with-their-stream") {
            done.iter()
                .for_each(|lane| self.lanes.lock().retired.absorb(lane));
        }
        {
            let mut heap = self.heap.lock();
            done.iter().for_each(|lane| heap.forget(lane.id));
        }
        done.iter()
            .for_each(|lane| lane.cache.rest(lane.timeline.completed()));
        // The lanes are dropped outside the locks: that lets go of the streams' owners, and may call a driver.
        done.iter()
            .for_each(|lane| trace::stream_gone(lane.label()));
    }

    /// Asks every stream how far it has come, and frees what that proves free. Says whether there was any news.
    ///
    /// # Errors
    /// Returns a sticky error. Another error of one stream's event proves nothing (invariant `errors-are-errors`): the
    /// memory it covers stays pending, the other streams go on, and a caller that awaits that very point is told.
    pub(crate) fn reap(&self) -> Result<bool, DeviceError> {
        let has_news = self.reap_by(|lane| lane.timeline.reap(&*self.device))?;
        if has_news && !injected("progress-noticed-and-not-told") {
            self.publish(Change::Memory);
        }
        Ok(has_news)
    }

    /// Asks every stream in a way of the caller's, which may leave streams out. For a search, which takes what it finds:
    /// nothing is published.
    ///
    /// # Errors
    /// Returns the errors of [`reap`](Self::reap).
    pub(super) fn reap_by(
        &self,
        mut ask: impl FnMut(&Lane) -> Result<Option<Ticket>, DeviceError>,
    ) -> Result<bool, DeviceError> {
        let lanes = self.active_lanes();
        for lane in lanes.iter() {
            self.unless_sticky(ask(lane))?;
        }
        let mut known = SmallVec::<[Ticket; 16]>::new();
        let (mut streams, mut done) = (0, Vec::new());
        {
            let mut heap = self.heap.lock();
            let furthest = lanes.iter().map(|lane| lane.timeline.completed()).max();
            for lane in lanes.iter() {
                let completed = lane.timeline.completed();
                let is_mistaken = injected("completed-by-another-streams-event");
                let completed = furthest.filter(|_| is_mistaken).unwrap_or(completed);
                known.push(completed);
                if heap.complete(lane.id, completed) {
                    streams += 1;
                    done.extend(lane.is_done().then(|| lane.clone()));
                }
            }
        }
        if !lanes.are_few() {
            let told = lanes.iter().zip(known);
            told.for_each(|(lane, completed)| lane.cache.rest(completed));
        }
        if streams > 0 {
            trace::reaped(streams);
            self.write_down(|| HistoryEvent::Reaped { streams });
        }
        if !done.is_empty() {
            self.forget_done(&done);
        }
        Ok(streams > 0)
    }

    fn unless_sticky<T>(&self, asked: Result<T, DeviceError>) -> Result<(), DeviceError> {
        match self.noted(asked) {
            Err(error) if error.is_sticky() => Err(error),
            _ => Ok(()),
        }
    }

    /// Asks one stream whether it has passed a point that is due, and frees what that proves free.
    ///
    /// # Errors
    /// Returns the errors of [`reap`](Self::reap).
    pub(super) fn reap_due(&self, lane: &Lane, ticket: Ticket) -> Result<bool, DeviceError> {
        let answer = self.noted(lane.timeline.reap_due(ticket, &*self.device));
        self.complete_in_heap(lane);
        match answer {
            Err(error) if error.is_sticky() => Err(error),
            answer => Ok(answer.unwrap_or(false)),
        }
    }

    /// Returns whether a stream has passed a point, as far as the device says now. Waiters are served with memory
    /// that this frees.
    ///
    /// # Errors
    /// Returns the device's error.
    pub(crate) fn has_passed(&self, lane: &Lane, ticket: Ticket) -> Result<bool, DeviceError> {
        let is_known = || lane.timeline.completed() >= ticket;
        if !is_known() {
            if let Some(fault) = self.fault() {
                return Err(fault);
            }
            self.noted(lane.timeline.reap_up_to(ticket, &*self.device))?;
        }
        // Whichever thread reaped it: a caller that is told that memory is free finds it free.
        self.catch_up(lane);
        Ok(is_known())
    }

    /// Brings the heap up to the known progress of a stream, and publishes what that frees: a request may have searched
    /// before, and found nothing to watch since. Between the timeline's news and this call, memory is complete and still
    /// counted as pending: callers that need it catch up first.
    pub(crate) fn catch_up(&self, lane: &Lane) {
        if self.complete_in_heap(lane) && !injected("progress-noticed-and-not-told") {
            self.publish(Change::Memory);
        }
    }

    /// Brings the heap up to the known progress of a stream. Says whether there was any news, which is not published.
    fn complete_in_heap(&self, lane: &Lane) -> bool {
        let completed = lane.timeline.completed();
        let has_news = self.heap.lock().complete(lane.id, completed);
        if has_news {
            self.write_down(|| HistoryEvent::Reaped { streams: 1 });
        }
        has_news
    }

    /// Asks a stream with many recorded events how far it is, so that the events come back and their number stays
    /// bounded (invariant `bounded-events`).
    pub(super) fn thin_out(&self, lane: &Lane) {
        if lane.should_query() {
            // A failure is noted, and met again by the caller that needs the answer.
            let _ = self.unless_sticky(lane.timeline.reap(&*self.device));
            self.catch_up(lane);
            lane.timeline.note_queried();
        }
    }

    /// Moves cached blocks to the heap, where neighbours merge and every stream can have them. Says whether there
    /// were any.
    ///
    /// The heap's lock is held throughout, so that no other thread finds a block in neither place and reports that
    /// memory is out. A lane's lock is taken inside the heap's here, and the heap's never inside a lane's.
    pub(crate) fn flush(&self, which: Flush) -> bool {
        let lanes = self.active_lanes();
        let mut heap = self.heap.lock();
        let mut has_any = false;
        for lane in lanes.iter() {
            for CachedBlock { id, ticket, .. } in lane.cache.flush(which) {
                heap.take_back(id, Fences::one(lane.id, ticket));
                has_any = true;
            }
        }
        has_any
    }

    /// Makes all freed memory count: flushes the caches, seals every stream, and asks how far it has come.
    ///
    /// # Errors
    /// Returns a sticky error.
    pub(super) fn reclaim(&self) -> Result<(), DeviceError> {
        self.flush(Flush::All);
        self.seal_lanes()?;
        self.reap().map(drop)
    }

    /// Makes all freed memory count, even if some stream errs.
    ///
    /// # Errors
    /// Returns the first error of any stream, sticky or not; the others went on.
    pub(crate) fn settle(&self) -> Result<(), DeviceError> {
        self.flush(Flush::All);
        let mut settled = Ok(());
        for lane in self.active_lanes().iter() {
            let sealed = self.seal_for_others(lane);
            let reaped = self.noted(lane.timeline.reap(&*self.device));
            self.catch_up(lane);
            settled = settled.and(sealed).and(reaped.map(drop));
        }
        let leaving = self.lanes.lock().leaving();
        self.forget_all_done(leaving);
        settled
    }

    /// Checks, after flushing all caches, that no block is allocated any more. Memory that another thread is mapping,
    /// releasing or evicting is waited for, and so is a thread that serves: it may hold memory for a request that was
    /// dropped meanwhile. But not for ever: memory may be lost.
    ///
    /// # Errors
    /// Returns a description of the bytes that are missing.
    pub(crate) fn check_conserved(&self, is_serving: impl Fn() -> bool) -> Result<(), String> {
        self.return_all_kept();
        let begin = Instant::now();
        loop {
            let is_in_hands = is_serving() || self.evictables.is_evicting();
            // Memory that they gave back until now may be in a cache.
            self.flush(Flush::All);
            let heap = self.heap.lock();
            let totals = heap.totals();
            let is_quiet = !is_in_hands && totals.claimed + totals.planned == 0;
            if is_quiet || begin.elapsed() > PATIENCE {
                return heap::check::conserved(&heap);
            }
            drop(heap);
            yield_now();
        }
    }

    /// Returns how many blocks came back so far, if none is on its way: pending, cached, or being moved.
    pub(crate) fn returns_if_quiet(&self) -> Option<u64> {
        let totals = self.totals();
        let is_quiet = totals.pending.current + totals.claimed + totals.planned == 0;
        let is_cached = || (self.active_lanes().iter()).any(|lane| lane.cache.is_keeping());
        (is_quiet && !is_cached()).then_some(totals.returns)
    }

    /// Has `waker` called when any stream gets further than it is known to be, if that can free memory. Returns whether
    /// memory is pending that no event covers, although it was sealed: a record has failed, and is to be tried again.
    pub(crate) fn watch_streams(&self, watches: &mut Watches, waker: &Waker) -> bool {
        let mut kept = Watches::new();
        let mut has_unrecorded = false;
        for lane in self.lanes_to_watch() {
            let (to_watch, owes_record) = lane.to_watch(waker);
            has_unrecorded |= owes_record;
            for marker in to_watch {
                let point = (lane.id, marker.ticket);
                let watch = watches.remove(&point);
                let watch = watch.unwrap_or_else(|| Watch::new(marker, waker));
                kept.insert(point, watch);
            }
        }
        *watches = kept;
        has_unrecorded
    }

    /// Returns the lanes that memory is pending for. Where waiting comes first, all active lanes: the mere progress of
    /// a stream may end what holds a waiter back.
    fn lanes_to_watch(&self) -> Vec<Arc<Lane>> {
        let lanes = self.active_lanes();
        if self.settings.order == Order::WaitFirst {
            return lanes.iter().cloned().collect();
        }
        let heap = self.heap.lock();
        let waiting = lanes
            .iter()
            .filter(|lane| heap::inspect::pending_on(&heap, lane.id) > 0);
        waiting.cloned().collect()
    }

    /// Returns whether the memory of both pools comes from the same place.
    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        let is_of_host = |streams: &Self| streams.settings.kind.is_of_host();
        self.device.id() == other.device.id() && is_of_host(self) == is_of_host(other)
    }
}
