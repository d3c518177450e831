//! A stream's timeline: its markers, the last ticket known to be complete, and the clock of what the stream comes
//! after.
//!
//! [Reaping](Timeline::reap) asks the device which markers are complete, with few queries: a query takes time, and so
//! does one that is answered with "not ready". If the stream's [pace](super::pace) says that all markers are passed,
//! the newest event is queried first. Otherwise the oldest is, which settles that nothing is complete.
//!
//! Threads that seal at the same time may record and publish in another order than they closed their tickets. The list
//! of markers is in the order of tickets *and* of publication: a marker that is published behind one of a later ticket
//! is left out, because that one proves its ticket as well, and was recorded before anything that was submitted after
//! its publication. So the marker that [covers](Timeline::covering) a ticket is the first one that was published for
//! it, and no future waits for a later event than that.

use super::marker::Marker;
use super::pace::Pace;
use crate::device::{Device, DeviceError};
use crate::heap::{Clock, Donor, StreamClock};
use crate::id::{StreamId, Ticket};
use crate::sync::plain::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedNumber};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub struct Timeline {
    markers: Mutex<Markers>,
    completed: SharedNumber,
    clock: Mutex<StreamClock>,
    /// The stream has come after a point of another stream: see [`clock_so_far`](Self::clock_so_far).
    has_points: AtomicBool,
    /// The number of incomplete markers, for decisions that may be a moment late.
    incomplete: AtomicU64,
    /// The time from recording an event to seeing it complete: a running mean, in nanoseconds.
    latency: SharedNumber,
    /// A free queries the stream only while at least this many markers are incomplete.
    query_from: SharedNumber,
}

/// Published markers that are not known to be complete, by ticket.
#[derive(Debug, Default)]
struct Markers {
    incomplete: VecDeque<Arc<Marker>>,
    pace: Pace,
    /// A query in vain keeps the stream from being queried again before this time.
    quiet_until: Duration,
    /// Each is called when a marker is published, or that of its ticket or an earlier one cannot be recorded. Requests and
    /// the maintenance may both wait for it.
    on_next: SmallVec<[(Ticket, Waker); 1]>,
}

/// Markers that follow each other. Mostly one: it is on the stack.
type MarkerRun = SmallVec<[Arc<Marker>; 4]>;

impl Markers {
    /// Returns the first marker whose completion proves `ticket`.
    fn covering(&self, ticket: Ticket) -> Option<&Arc<Marker>> {
        self.incomplete.get(self.position_of(ticket))
    }

    /// Returns the position of the first marker with this ticket or a later one. Mostly there is none.
    fn position_of(&self, ticket: Ticket) -> usize {
        let is_before = |marker: &Arc<Marker>| marker.ticket < ticket;
        match self.incomplete.back() {
            Some(last) if !is_before(last) => self.incomplete.partition_point(is_before),
            _ => self.incomplete.len(),
        }
    }

    /// Returns the last of the markers that are expected to be complete by now.
    fn due(&self, now: Duration) -> Option<&Arc<Marker>> {
        if now < self.quiet_until {
            return None;
        }
        let by = now.saturating_add(self.pace.margin());
        let is_due = |marker: &Arc<Marker>| marker.expected_at <= by;
        let count = self.incomplete.partition_point(is_due);
        Some(&self.incomplete[count.checked_sub(1)?])
    }
}

/// Fewer markers are not worth a query, unless events are close to each other.
const FEWEST_WORTH_A_QUERY: usize = 16;

/// While this many markers are incomplete, no free records another event: the next one covers it (bounded-events).
const MOST_INCOMPLETE: usize = 1024;

/// Points and their order.
impl Timeline {
    /// Creates the timeline of a stream whose tickets up to `completed` are complete from the start.
    pub fn new(completed: Ticket) -> Self {
        Self {
            markers: Mutex::new(Guards::Markers, Markers::default()),
            completed: SharedNumber::new(completed.0),
            clock: Mutex::new(Guards::Clock, StreamClock::default()),
            has_points: AtomicBool::new(false),
            incomplete: AtomicU64::new(0),
            latency: SharedNumber::new(0),
            query_from: SharedNumber::new(FEWEST_WORTH_A_QUERY as u64),
        }
    }

    /// Returns the last ticket known to be complete.
    pub fn completed(&self) -> Ticket {
        Ticket(self.completed.load(Ordering::Acquire))
    }

    /// Returns how long a point of the stream took to complete lately.
    pub fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency.load(Ordering::Relaxed))
    }

    /// Returns the clock of what the stream comes after.
    pub fn clock(&self) -> Clock {
        self.clock.lock().points().clone()
    }

    /// Returns the clock as [`clock`](Self::clock) does, without the lock for the many streams that never came after
    /// another one.
    ///
    /// It may lack what another thread is adding. That is always safe, but not for the last look of a request that
    /// waits: the thread that adds may have seen an open gate, and notify no request. With the lock, one of the two sees
    /// what the other did.
    pub fn clock_so_far(&self) -> Clock {
        if self.has_points.load(Ordering::Acquire) {
            self.clock()
        } else {
            Clock::default()
        }
    }

    /// Notes that the stream waits for a marker of another stream, whose clock is given.
    ///
    /// To be called only after the wait call has returned. Joined earlier, an event recorded in between would claim an
    /// order that the device does not keep yet (order).
    ///
    /// Returns whether the clock has grown so much that [`drop_retired`](Self::drop_retired) should be called.
    #[must_use]
    pub fn join(&self, clock: &Clock) -> bool {
        let is_long = self.clock.lock().join(clock);
        self.has_points.store(true, Ordering::Release);
        is_long
    }

    /// Drops the entries of retired streams from the clock: all their work is complete.
    pub fn drop_retired(&self, is_retired: impl Fn(StreamId) -> bool) {
        self.clock.lock().drop_retired(is_retired);
    }

    /// Makes a recorded marker known. Returns the marker that covers its ticket: this one, unless another thread
    /// published a later ticket before.
    pub fn publish(&self, mut marker: Marker) -> Arc<Marker> {
        let mut late = None;
        let (marker, on_next) = {
            let mut markers = self.markers.lock();
            let at = markers.position_of(marker.ticket);
            let published = match markers.incomplete.get(at) {
                Some(earlier) => {
                    late = Some(marker);
                    earlier.clone()
                }
                // A later ticket is complete, and so is this one: there is nothing to wait for.
                None if self.completed() >= marker.ticket => Arc::new(marker),
                None => {
                    marker.expected_at = markers.pace.expect(marker.sealed_at);
                    let marker = Arc::new(marker);
                    let incomplete = &mut markers.incomplete;
                    incomplete.insert(at, marker.clone());
                    self.record_incomplete(incomplete.len());
                    marker
                }
            };
            let on_next = &mut markers.on_next;
            let called = (!on_next.is_empty()).then(|| std::mem::take(on_next));
            (published, called)
        };
        // After the lock is released: its event is put back under another lock.
        drop(late);
        let called = on_next.into_iter().flatten();
        called.for_each(|(_, waker)| waker.wake());
        marker
    }

    /// Notes that the marker of a closed ticket could not be recorded.
    pub fn mark_unrecorded(&self, ticket: Ticket) {
        let on_next = {
            let on_next = &mut self.markers.lock().on_next;
            let (called, later): (SmallVec<[_; 1]>, _) = std::mem::take(on_next)
                .into_iter()
                .partition(|(closed, _)| ticket <= *closed);
            *on_next = later;
            called
        };
        on_next.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Notes that work submitted from now on starts after a point that is expected at `until`.
    pub fn delay(&self, until: Duration) {
        self.markers.lock().pace.delay(until);
    }

    /// Returns the first published marker whose completion proves `ticket`; `None` if there is none, or the ticket is
    /// complete. (A marker behind it may be incomplete all the same, and stay so for as long as a host task holds the
    /// stream.)
    pub fn covering(&self, ticket: Ticket) -> Option<Arc<Marker>> {
        let markers = self.markers.lock();
        // Under the lock: a marker leaves the list only after its ticket is complete.
        let is_complete = self.completed() >= ticket;
        let covering = markers.covering(ticket);
        covering.filter(|_| !is_complete).cloned()
    }

    /// Returns the known facts about the point at which memory that waits for a ticket will be complete.
    pub fn donor(&self, ticket: Ticket) -> Donor {
        self.donor_by(&self.markers.lock(), ticket)
    }

    fn donor_by(&self, markers: &Markers, ticket: Ticket) -> Donor {
        let marker = markers.covering(ticket);
        Donor {
            sealed_at: marker.map(|marker| marker.sealed_at),
            expected_at: marker.map(|marker| marker.expected_at),
            number: marker.map_or(u64::MAX, |marker| marker.number()),
            latency: self.latency(),
        }
    }

    /// Returns the markers to watch for the stream's progress: the one that completes next, and the last, in case the
    /// device reports the former late. If the oldest marker reports an error, the next one that reports none
    /// is included.
    ///
    /// If there is none although `closed` is not complete, another thread closed that ticket and is about to publish
    /// its marker. `waker` is called when it has, or could not record it.
    pub(super) fn to_watch(&self, closed: Ticket, waker: &Waker) -> SmallVec<[Arc<Marker>; 3]> {
        let mut markers = self.markers.lock();
        let incomplete = &markers.incomplete;
        let sound = || incomplete.iter().filter(|marker| !marker.has_erred());
        let to_watch = [incomplete.front(), sound().next(), sound().next_back()];
        let mut to_watch: SmallVec<[_; 3]> = to_watch.into_iter().flatten().cloned().collect();
        to_watch.dedup_by_key(|marker| marker.ticket);
        let is_coming = to_watch.is_empty() && self.completed() < closed;
        if is_coming {
            let on_next = &mut markers.on_next;
            on_next.retain(|(_, known)| !known.will_wake(waker));
            on_next.push((closed, waker.clone()));
        }
        to_watch
    }

    /// Returns the sealing times of the incomplete markers, from the earliest on.
    pub fn sealed_at(&self) -> Vec<Duration> {
        let markers = &self.markers.lock().incomplete;
        markers.iter().map(|marker| marker.sealed_at).collect()
    }

    /// Returns the marker behind the stream's latest sealed work.
    pub fn newest(&self) -> Option<Arc<Marker>> {
        self.markers.lock().incomplete.back().cloned()
    }

    /// Returns the first incomplete marker; and if there are several, the last, or the last whose event reported no
    /// error.
    fn ends(&self) -> Option<(Arc<Marker>, Option<Arc<Marker>>)> {
        let markers = &self.markers.lock().incomplete;
        let oldest = markers.front()?;
        if markers.len() == 1 {
            return Some((oldest.clone(), None));
        }
        let last = markers.iter().rfind(|marker| !marker.has_erred());
        Some((oldest.clone(), last.or(markers.back()).cloned()))
    }

    /// Returns the first incomplete marker behind a ticket whose event reported no error.
    fn sound_after(&self, ticket: Ticket) -> Option<Arc<Marker>> {
        let markers = &self.markers.lock().incomplete;
        let at = markers.partition_point(|marker| marker.ticket <= ticket);
        let mut later = markers.range(at..);
        later.find(|marker| !marker.has_erred()).cloned()
    }

    /// Notes the number of incomplete markers, under their lock.
    fn record_incomplete(&self, count: usize) {
        self.incomplete.store(count as u64, Ordering::Relaxed);
    }

    fn incomplete_count(&self) -> usize {
        self.incomplete.load(Ordering::Relaxed) as usize
    }

    /// Returns whether so many markers are incomplete that no free should record another event.
    pub fn is_full(&self) -> bool {
        self.incomplete_count() >= MOST_INCOMPLETE
    }

    /// Returns the markers whose events are not known to be complete, oldest first.
    pub fn incomplete(&self) -> Vec<Arc<Marker>> {
        let markers = self.markers.lock();
        markers.incomplete.iter().cloned().collect()
    }
}

/// When to query.
impl Timeline {
    /// Returns whether a free should query the stream before it records another event. After a query, the next one
    /// waits until twice as many markers are incomplete. While events are close to each other, each marker is worth a
    /// query: pending memory does not merge with complete memory, and there is much of it.
    pub fn should_query(&self, is_close: bool) -> bool {
        let fewest = if is_close { 1 } else { FEWEST_WORTH_A_QUERY };
        let query_from = self.query_from.load(Ordering::Relaxed) as usize;
        self.incomplete_count() >= query_from.max(fewest)
    }

    /// Notes that a free queried the stream.
    pub fn record_queried(&self) {
        let left = self.incomplete_count();
        let query_from = (2 * left).min(MOST_INCOMPLETE);
        self.query_from.store(query_from as u64, Ordering::Relaxed);
    }

    /// Returns the known facts about a ticket that a query may show to be complete: it has an event, and the stream
    /// was not just queried in vain.
    pub fn donor_to_query(&self, ticket: Ticket, now: Duration) -> Option<Donor> {
        let markers = self.markers.lock();
        let donor = self.donor_by(&markers, ticket);
        let has_event = now >= markers.quiet_until && donor.sealed_at.is_some();
        (has_event || self.completed() >= ticket).then_some(donor)
    }

    fn is_due(&self, marker: &Marker, now: Duration) -> bool {
        let markers = self.markers.lock();
        markers
            .due(now)
            .is_some_and(|due| due.ticket >= marker.ticket)
    }

    /// Notes a query in vain: the later the marker is, the longer the stream is not queried again.
    fn record_vain(&self, ticket: Ticket, now: Duration) {
        let covering = self.covering(ticket);
        let late = covering.map_or(Duration::ZERO, |marker| {
            now.saturating_sub(marker.expected_at)
        });
        let mut markers = self.markers.lock();
        let quiet = markers.pace.margin().saturating_add(late / 2);
        markers.quiet_until = now.saturating_add(quiet);
    }
}

/// Reaping. No lock is held during a query (no-lock-across-calls); threads that query at the same time learn the same,
/// and each ticket completes once (completes-once).
impl Timeline {
    /// Asks the device which markers are complete. Returns the last one that this call found, if any.
    ///
    /// # Errors
    /// Returns the device's error (errors-are-errors). The error proves nothing complete; what other answers proved
    /// stays complete.
    pub fn reap(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        self.query(device, true)
    }

    /// Asks as [`reap`](Self::reap) does. Only with `looks_behind`, it looks behind an oldest marker that is not complete.
    ///
    /// # Errors
    /// Returns the errors of [`reap`](Self::reap).
    pub fn query(
        &self,
        device: &dyn Device,
        looks_behind: bool,
    ) -> Result<Option<Ticket>, DeviceError> {
        let Some((oldest, newest)) = self.ends() else {
            return Ok(None);
        };
        let Some(newest) = newest else {
            return self.query_only(oldest, device);
        };
        // Most often all markers are complete, if that is expected.
        let is_likely = newest.ticket > oldest.ticket && self.is_due(&newest, device.now());
        if is_likely {
            match is_complete(&newest) {
                Ok(true) => return Ok(Some(self.record_complete(&newest, device.now()))),
                Err(error) if error.is_sticky() => return Err(error),
                // The oldest may be complete all the same.
                _ => {}
            }
        }
        let (first, answer) = self.ask_first(oldest);
        match answer {
            Ok(true) => self.reap_from(first, newest, is_likely, device),
            Ok(false) if !is_likely && looks_behind => self.reap_late(device),
            answer => answer.map(|_| None),
        }
    }

    /// Asks the only incomplete marker. If its event reports an error, one that was published meanwhile may tell.
    fn query_only(
        &self,
        only: Arc<Marker>,
        device: &dyn Device,
    ) -> Result<Option<Ticket>, DeviceError> {
        let (asked, answer) = self.ask_first(only);
        let is_complete = answer?;
        Ok(is_complete.then(|| self.record_complete(&asked, device.now())))
    }

    /// Asks a marker. While the answer is an error, asks the next one whose event reported none: a stream runs in
    /// order, so a later event proves what an erring one does not. Returns the last one asked, and its answer.
    fn ask_first(&self, oldest: Arc<Marker>) -> (Arc<Marker>, Result<bool, DeviceError>) {
        let mut marker = oldest;
        loop {
            let answer = is_complete(&marker);
            let has_erred = answer.as_ref().is_err_and(|error| !error.is_sticky());
            let next = has_erred.then(|| self.sound_after(marker.ticket)).flatten();
            match next {
                Some(next) => marker = next,
                None => return (marker, answer),
            }
        }
    }

    /// Finds how many more markers are complete, given that the oldest is. What that proves counts even if another
    /// event reports an error.
    fn reap_from(
        &self,
        oldest: Arc<Marker>,
        newest: Arc<Marker>,
        was_newest_queried: bool,
        device: &dyn Device,
    ) -> Result<Option<Ticket>, DeviceError> {
        let mut markers = self.from(oldest);
        if was_newest_queried {
            markers.retain(|marker| marker.ticket < newest.ticket);
        }
        let (last, answer) = last_complete(markers);
        let Some(last) = last else {
            return answer.map(|()| None);
        };
        let last = self.record_complete(&last, device.now());
        answer.map(|()| Some(last))
    }

    /// Queries the newest marker alone, after the oldest was not complete or reported an error. The newest proves all:
    /// the device may report an event late while the stream goes on.
    ///
    /// # Errors
    /// Returns the errors of [`reap`](Self::reap).
    pub fn reap_late(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        let Some((oldest, Some(newest))) = self.ends() else {
            return Ok(None);
        };
        if Arc::ptr_eq(&oldest, &newest) || !is_complete(&newest)? {
            return Ok(None);
        }
        Ok(Some(self.record_complete(&newest, device.now())))
    }

    /// Asks whether one ticket is complete, and at once about all markers that are expected to be complete by now.
    /// After a query in vain the stream is not worth a query for a while.
    ///
    /// # Errors
    /// Returns the errors of [`reap`](Self::reap).
    pub fn reap_due(&self, ticket: Ticket, device: &dyn Device) -> Result<bool, DeviceError> {
        let now = device.now();
        let due = self.markers.lock().due(now).cloned();
        let answer = match due {
            _ if self.completed() >= ticket => Ok(()),
            Some(due) if due.ticket > ticket => self.reap_from_due(&due, ticket, device),
            _ => self.reap_up_to(ticket, device).map(drop),
        };
        let is_passed = self.completed() >= ticket;
        if !is_passed {
            self.record_vain(ticket, now);
        }
        answer.map(|()| is_passed)
    }

    fn reap_from_due(
        &self,
        due: &Arc<Marker>,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        if is_complete(due)? {
            self.record_complete(due, device.now());
            return Ok(());
        }
        let covering = self.covering(ticket);
        if covering.is_some_and(|covering| covering.ticket < due.ticket) {
            self.reap_up_to(ticket, device)?;
        }
        Ok(())
    }

    /// Asks whether one ticket is complete: the marker that covers it may be complete while the device reports older
    /// ones late.
    ///
    /// # Errors
    /// Returns the errors of [`reap`](Self::reap).
    pub fn reap_up_to(&self, ticket: Ticket, device: &dyn Device) -> Result<bool, DeviceError> {
        if let Some(marker) = self.covering(ticket)
            && is_complete(&marker)?
        {
            self.record_complete(&marker, device.now());
        }
        Ok(self.completed() >= ticket)
    }

    /// Returns a marker that was found complete, and all later ones. That marker comes first even if another thread
    /// reaped it meanwhile: the marker that is oldest now was not queried.
    fn from(&self, oldest: Arc<Marker>) -> MarkerRun {
        let markers = &self.markers.lock().incomplete;
        let at = markers.partition_point(|marker| marker.ticket <= oldest.ticket);
        std::iter::once(oldest)
            .chain(markers.range(at..).cloned())
            .collect()
    }

    /// Notes that a marker is complete. Returns its ticket.
    fn record_complete(&self, last: &Marker, now: Duration) -> Ticket {
        self.completed.fetch_max(last.ticket.0, Ordering::AcqRel);
        self.record_latency(now.saturating_sub(last.sealed_at));
        let done: MarkerRun = {
            let mut markers = self.markers.lock();
            let incomplete = &mut markers.incomplete;
            let count = incomplete.partition_point(|marker| marker.ticket <= last.ticket);
            let done: MarkerRun = incomplete.drain(..count).collect();
            self.record_incomplete(incomplete.len());
            if let Some(first) = done.first() {
                let (pace, expected_at) = (&mut markers.pace, last.expected_at);
                pace.record(first.sealed_at, count as u32, expected_at, now);
            }
            done
        };
        Marker::record_complete(&done, now);
        // After the lock is released: the last owner of a marker puts its event back, under another lock.
        drop(done);
        last.ticket
    }

    /// The newest marker of a reap counts: it completed last before it was seen.
    fn record_latency(&self, latency: Duration) {
        let sample = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let mean = self.latency.load(Ordering::Relaxed);
        let next = if mean == 0 {
            sample
        } else {
            mean - mean / 8 + sample / 8
        };
        self.latency.store(next, Ordering::Relaxed);
    }
}

fn is_complete(marker: &Marker) -> Result<bool, DeviceError> {
    marker.query()
}

/// Returns the last marker that is complete, given that the first is; and the device's error, if it reported one. A
/// stream runs in order, so one query settles the common case, in which all are complete, and bisection the others. An
/// event that reports an error proves nothing and is left out; the others tell.
fn last_complete(mut markers: MarkerRun) -> (Option<Arc<Marker>>, Result<(), DeviceError>) {
    let (mut done, mut open, mut answer) = (0, markers.len(), Ok(()));
    let mut next = open.saturating_sub(1);
    while open - done > 1 {
        match is_complete(&markers[next]) {
            Ok(true) => done = next,
            Ok(false) => open = next,
            Err(error) if error.is_sticky() => (open, answer) = (next, Err(error)),
            Err(error) => {
                markers.remove(next);
                (open, answer) = (open - 1, Err(error));
            }
        }
        next = done.midpoint(open);
    }
    markers.truncate(open);
    (markers.pop(), answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::plain;

    /// Requests and the maintenance both wait for the marker of a ticket that another thread closed.
    #[test]
    fn each_of_two_watchers_hears_of_the_marker_to_come() {
        struct Flag(AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: plain::Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let timeline = Timeline::new(Ticket(0));
        let flags = [0; 2].map(|_| plain::Arc::new(Flag(AtomicBool::new(false))));
        for flag in &flags {
            let waker = Waker::from(flag.clone());
            assert!(timeline.to_watch(Ticket(1), &waker).is_empty());
            assert!(timeline.to_watch(Ticket(1), &waker).is_empty());
        }
        assert_eq!(timeline.markers.lock().on_next.len(), 2);
        timeline.mark_unrecorded(Ticket(1));
        assert!(flags.iter().all(|flag| flag.0.load(Ordering::Relaxed)));
    }
}
