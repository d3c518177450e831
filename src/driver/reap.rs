//! What has completed, and what lanes keep: making memory count for everybody.

use super::{Change, Driver, HistoryEvent, counters};
use crate::device::{DeviceError, DeviceErrorKind, Watch};
use crate::fault::injected;
use crate::heap::Fences;
use crate::heap::policy::Order;
use crate::id::{StreamId, Ticket};
use crate::lane::{CachedBlock, Lane, Marker, StreamCache};
use crate::sync::{Arc, assert_unlocked};
use crate::trace;
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

/// Watches on points of streams. The marker is held for as long as its event is watched: it must not
/// be recorded anew.
pub(crate) type Watches = BTreeMap<(StreamId, Ticket), Watch<Marker>>;

impl Driver {
    /// Asks every stream how far it has come, and frees what that proves free. Says whether there
    /// was anything new.
    ///
    /// # Errors
    /// A sticky error. Another error of one stream's event proves nothing (I10): what it covers stays
    /// pending, the other streams go on, and who awaits that very point is told.
    pub(crate) fn reap(&self) -> Result<bool, DeviceError> {
        self.reap_by(|lane| lane.timeline.reap(&*self.device))
    }

    /// The same, where each stream is asked in a way of the caller's, or not.
    ///
    /// # Errors
    /// As [`reap`](Self::reap).
    pub(super) fn reap_by(
        &self,
        mut ask: impl FnMut(&Lane) -> Result<Option<Ticket>, DeviceError>,
    ) -> Result<bool, DeviceError> {
        let lanes = self.lanes();
        for lane in lanes.iter() {
            self.unless_sticky(ask(lane))?;
        }
        let news = {
            let mut heap = self.heap.lock();
            let furthest = lanes.iter().map(|lane| lane.timeline.completed()).max();
            let news = |lane: &&Arc<Lane>| {
                let completed = lane.timeline.completed();
                let is_mistaken = injected("completed-by-another-streams-event");
                let completed = furthest.filter(|_| is_mistaken).unwrap_or(completed);
                heap.complete(lane.id, completed)
            };
            lanes.iter().filter(news).count()
        };
        if news > 0 {
            trace::reaped(news);
            self.write_down(|| HistoryEvent::Reaped { streams: news });
            self.drop_done_lanes();
        }
        Ok(news > 0)
    }

    fn reap_lane(&self, lane: &Lane) -> Result<(), DeviceError> {
        self.unless_sticky(lane.timeline.reap(&*self.device))
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
    /// As [`reap`](Self::reap).
    pub(super) fn reap_due(&self, lane: &Lane, ticket: Ticket) -> Result<bool, DeviceError> {
        let answer = self.noted(lane.timeline.reap_due(ticket, &*self.device));
        self.catch_up(lane);
        match answer {
            Err(error) if error.is_sticky() => Err(error),
            answer => Ok(answer.unwrap_or(false)),
        }
    }

    /// Asks one stream whether it has passed a point.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub(crate) fn reap_up_to(&self, lane: &Lane, ticket: Ticket) -> Result<bool, DeviceError> {
        self.noted(lane.timeline.reap_up_to(ticket, &*self.device))
    }

    /// Whether a stream has passed a point, as far as the device says now. Who waits is served with what came of it.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub(crate) fn has_passed(&self, lane: &Lane, ticket: Ticket) -> Result<bool, DeviceError> {
        let is_known = || lane.timeline.completed() >= ticket;
        if !is_known() {
            if let Some(fault) = self.fault() {
                return Err(fault);
            }
            self.reap_up_to(lane, ticket)?;
        }
        // Whoever reaped it: who is told that memory is free finds it free.
        if self.catch_up(lane) {
            self.publish(Change::Memory);
        }
        Ok(is_known())
    }

    /// Brings the heap up to what is known of a stream. Between a timeline's news and this, memory is
    /// complete and pending: whoever wants it catches up first.
    pub(crate) fn catch_up(&self, lane: &Lane) -> bool {
        let completed = lane.timeline.completed();
        let has_news = self.heap.lock().complete(lane.id, completed);
        if has_news {
            self.write_down(|| HistoryEvent::Reaped { streams: 1 });
        }
        has_news
    }

    /// Asks the streams whose last handle is gone.
    pub(super) fn reap_retired(&self) {
        for lane in self.lanes().iter().filter(|lane| lane.cache.is_retired()) {
            // A failure is noted; the lane stays.
            let _ = self.reap_lane(lane);
            self.catch_up(lane);
        }
        self.drop_done_lanes();
    }

    /// Asks a stream with many events on their way how far it is, so that they come back and their
    /// number is bounded (I8).
    pub(super) fn thin_out(&self, lane: &Lane) {
        if lane.should_query() {
            // A failure is noted, and met again by who needs the answer.
            let _ = self.reap_lane(lane);
            self.catch_up(lane);
            lane.timeline.note_queried();
        }
    }

    /// Moves what lanes keep to the heap, where neighbours merge and every stream can have it.
    ///
    /// Under the heap's lock throughout, so that nobody finds a block in neither place and reports
    /// an out-of-memory that is none. A lane's lock is taken inside the heap's here, and the heap's
    /// never inside a lane's.
    pub(crate) fn flush_lanes(&self) {
        let _ = self.take_back(StreamCache::flush);
    }

    /// The same, but for large blocks that their streams freed less than `age` ago: they may come back for them.
    pub(super) fn flush_lanes_older(&self, age: Duration) {
        let now = self.device.now();
        let _ = self.take_back(|cache| cache.flush_older(now, age));
    }

    /// The same with large blocks, and nothing else. Says whether there were any.
    pub(super) fn flush_large_caches(&self) -> bool {
        self.take_back(StreamCache::flush_large)
    }

    /// The same with the lanes of streams that have been idle since the last time.
    pub(super) fn flush_idle_lanes(&self) {
        let _ = self.take_back(StreamCache::flush_if_idle);
    }

    /// Says whether there was anything.
    fn take_back(&self, flush: impl Fn(&StreamCache) -> Vec<CachedBlock>) -> bool {
        let lanes = self.lanes();
        let mut heap = self.heap.lock();
        let mut has_any = false;
        for lane in lanes.iter() {
            for CachedBlock { id, ticket, .. } in flush(&lane.cache) {
                heap.take_back(id, Fences::one(lane.id, ticket));
                has_any = true;
            }
        }
        has_any
    }

    /// Records an event on every stream that freed something no event covers. External ones were sealed when
    /// they freed.
    ///
    /// # Errors
    /// When the device cannot; what was freed stays pending.
    pub(crate) fn seal_lanes(&self) -> Result<(), DeviceError> {
        for lane in self.lanes().iter() {
            match self.seal_for_others(lane) {
                Err(error) if error.is_sticky() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// # Errors
    /// As [`seal`](Self::seal).
    pub(super) fn seal_for_others(&self, lane: &Lane) -> Result<(), DeviceError> {
        if lane.is_external {
            return Ok(());
        }
        if lane.cache.is_dirty() {
            lane.cache.spacing().reset();
        }
        self.seal(lane)
    }

    /// # Errors
    /// When the device cannot; what was freed stays pending.
    pub(crate) fn seal(&self, lane: &Lane) -> Result<(), DeviceError> {
        if lane.cache.is_dirty() {
            self.thin_out(lane);
            self.noted(lane.seal(&*self.device, &self.events))?;
        }
        Ok(())
    }

    /// An event behind everything the stream was given so far.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn mark(&self, lane: &Lane) -> Result<Arc<Marker>, DeviceError> {
        self.thin_out(lane);
        self.noted(lane.mark(&*self.device, &self.events))
    }

    /// The stream's present point, behind all that it was given so far. An external stream's is sealed at once:
    /// whoever asks after it later may not do it.
    pub(super) fn present_point(&self, lane: &Lane) -> Ticket {
        let point = lane.cache.open_ticket();
        if lane.is_external {
            // A failure is noted; nobody comes after the point then.
            let _ = self.mark(lane);
        }
        point
    }

    /// Records an event behind everything the stream was given so far, for a user. If the stream's earlier events are
    /// overdue, the new one may be the first to prove memory free: waiting requests have it watched.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn mark_for_user(&self, lane: &Lane) -> Result<Arc<Marker>, DeviceError> {
        let earlier = lane.timeline.newest();
        let marker = self.mark(lane)?;
        if earlier.is_some_and(|earlier| earlier.expected_at <= marker.sealed_at) {
            self.publish(Change::Memory);
        }
        Ok(marker)
    }

    /// A marker that proves a ticket, sealed now if it was not; `None` if the ticket is complete.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn marker_for(
        &self,
        lane: &Lane,
        ticket: Ticket,
    ) -> Result<Option<Arc<Marker>>, DeviceError> {
        self.noted(lane.marker_for(ticket, &*self.device, &self.events))
    }

    /// Makes `lane`'s stream wait for a point of `donor`'s, on the device, unless it is complete.
    ///
    /// # Errors
    /// When the device cannot; the order is then not counted on.
    pub(super) fn wait_for(
        &self,
        lane: &Lane,
        donor: &Lane,
        ticket: Ticket,
    ) -> Result<bool, DeviceError> {
        let Some(marker) = self.marker_for(donor, ticket)? else {
            return Ok(false);
        };
        self.order_behind(lane, &marker)?;
        counters::add(&self.counters.device_waits, 1);
        trace::device_wait(lane.id, donor.id);
        self.write_down(|| HistoryEvent::DeviceWait {
            stream: lane.id,
            donor: donor.id,
        });
        Ok(true)
    }

    /// Makes a stream wait for a marker on the device, and remembers that it does.
    ///
    /// # Errors
    /// When the device cannot; the order is then not counted on.
    pub(crate) fn order_behind(&self, lane: &Lane, marker: &Marker) -> Result<(), DeviceError> {
        assert_unlocked("wait");
        if injected("clock-joined-before-the-wait") {
            let _ = lane.timeline.join(&marker.clock);
        }
        self.submit_wait(lane, marker)?;
        // After the call: see `Timeline::join`.
        if lane.timeline.join(&marker.clock) {
            let lanes = self.lanes();
            let is_retired = |id| lanes.binary_search_by_key(&id, |lane| lane.id).is_err();
            lane.timeline.drop_retired(is_retired);
        }
        lane.timeline.delay(marker.expected_at);
        Ok(())
    }

    /// For a point of the host there is nothing to wait for: what is submitted from now on comes after it.
    /// The host itself is not made to wait: it comes after what is complete, and awaits the rest.
    fn submit_wait(&self, lane: &Lane, marker: &Marker) -> Result<(), DeviceError> {
        if !marker.has_event() {
            return Ok(());
        }
        if !lane.is_host() {
            // SAFETY: the lane keeps the stream's owner; an external stream waits only in calls made with it.
            #[allow(unsafe_code)]
            let waits = unsafe { marker.event().delay(lane.raw) };
            return self.noted(waits);
        }
        if self.noted(marker.event().is_complete())? {
            return Ok(());
        }
        let reason = "the host is not made to wait for the device: await the event first";
        let kind = DeviceErrorKind::Unsupported;
        Err(DeviceError::new("wait", kind, reason))
    }

    /// Makes a stream come after a point, unless it does so anyway.
    ///
    /// # Errors
    /// As [`order_behind`](Self::order_behind).
    pub(crate) fn bring_behind(
        &self,
        lane: &Lane,
        donor: &Lane,
        marker: &Marker,
    ) -> Result<(), DeviceError> {
        let is_complete = donor.timeline.completed() >= marker.ticket;
        if is_complete || lane.timeline.clock().covers(donor.fence(marker.ticket)) {
            return Ok(());
        }
        self.order_behind(lane, marker)?;
        self.publish(Change::Order(lane.id));
        Ok(())
    }

    /// Makes all that was freed count: what lanes keep is taken back, sealed, and asked after.
    ///
    /// # Errors
    /// The first error of any stream, sticky or not; the others went on.
    pub(crate) fn settle(&self) -> Result<(), DeviceError> {
        self.flush_lanes();
        let mut settled = Ok(());
        for lane in self.lanes().iter() {
            let sealed = self.seal_for_others(lane);
            let reaped = self.noted(lane.timeline.reap(&*self.device));
            self.catch_up(lane);
            settled = settled.and(sealed).and(reaped.map(drop));
        }
        self.drop_done_lanes();
        settled
    }

    /// Has `waker` called when any stream gets further than it is known to be, if something is to come of that.
    pub(crate) fn watch_streams(&self, watches: &mut Watches, waker: &Waker) {
        let mut cached = Watches::new();
        let mut lanes: Vec<_> = self.lanes().iter().cloned().collect();
        self.retain_donors(&mut lanes);
        for lane in lanes {
            for marker in lane.timeline.to_watch() {
                let point = (lane.id, marker.ticket);
                let watch = watches.remove(&point);
                let watch = watch.unwrap_or_else(|| Watch::new(marker, waker));
                cached.insert(point, watch);
            }
        }
        *watches = cached;
    }

    /// Those that memory is pending for. Where waiting comes first, all: who waits may be held back by the mere
    /// progress of a stream.
    fn retain_donors(&self, lanes: &mut Vec<Arc<Lane>>) {
        if self.settings.order == Order::GrowFirst {
            let heap = self.heap.lock();
            lanes.retain(|lane| heap.is_waiting_for(lane.id));
        }
    }
}
