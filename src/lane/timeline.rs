//! A stream's points: the markers on their way, the last one complete, and what the stream comes
//! after.

use super::marker::Marker;
use super::pace::Pace;
use crate::device::{Device, DeviceError};
use crate::id::Ticket;
use crate::ledger::Clock;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedNumber, assert_unlocked};
use std::collections::VecDeque;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Timeline {
    /// Published markers that are not known to be complete, by ticket.
    markers: Mutex<Markers>,
    completed: SharedNumber,
    clock: Mutex<Clock>,
    /// How long an event took from record to being seen complete: a running mean, in nanoseconds.
    latency: SharedNumber,
    /// Markers on their way from which on the next free that seals asks how far the stream is.
    crowd: SharedNumber,
}

#[derive(Debug, Default)]
struct Markers {
    on_their_way: VecDeque<Arc<Marker>>,
    pace: Pace,
    /// Asked in vain, the stream is left alone until then.
    quiet_until: Duration,
}

impl Markers {
    /// The last of the markers that can be expected to have been passed by now.
    fn due(&self, now: Duration) -> Option<&Arc<Marker>> {
        if now < self.quiet_until {
            return None;
        }
        let by = now + self.pace.margin();
        let is_due = |marker: &Arc<Marker>| marker.expected_at <= by;
        let count = self.on_their_way.partition_point(is_due);
        Some(&self.on_their_way[count.checked_sub(1)?])
    }
}

/// Fewer markers than this are not worth asking after.
const FEWEST_WORTH_ASKING: usize = 16;

/// No free records another event while so many are on their way: the next covers it (I8).
const MOST_ON_THEIR_WAY: usize = 1024;

impl Timeline {
    /// One whose tickets up to `completed` are complete from the start.
    pub(crate) fn new(completed: Ticket) -> Self {
        Self {
            markers: Mutex::new(Guards::Markers, Markers::default()),
            completed: SharedNumber::new(completed.0),
            clock: Mutex::new(Guards::Clock, Clock::default()),
            latency: SharedNumber::new(0),
            crowd: SharedNumber::new(FEWEST_WORTH_ASKING as u64),
        }
    }

    pub(crate) fn completed(&self) -> Ticket {
        Ticket(self.completed.load(Ordering::Acquire))
    }

    pub(crate) fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency.load(Ordering::Relaxed))
    }

    /// What the stream comes after.
    pub(crate) fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }

    /// The stream was made to wait for a marker of another.
    ///
    /// Only once the wait call has returned: joined before, an event recorded in between would claim
    /// an order that the device does not keep yet.
    pub(crate) fn join(&self, clock: &Clock) {
        self.clock.lock().join_all(clock);
    }

    /// Makes a recorded marker known. Two sealers may publish in either order: the later ticket's
    /// event was closed later, and covers the earlier one.
    pub(crate) fn publish(&self, marker: Marker) -> Arc<Marker> {
        let mut marker = Arc::new(marker);
        let mut markers = self.markers.lock();
        let unshared = Arc::get_mut(&mut marker).expect("not shared yet");
        unshared.expected_at = markers.pace.expect(unshared.sealed_at);
        let on_their_way = &mut markers.on_their_way;
        let at = on_their_way.partition_point(|other| other.ticket < marker.ticket);
        on_their_way.insert(at, marker.clone());
        marker
    }

    /// What the stream is given from now on comes after something that is expected then.
    pub(crate) fn delay(&self, until: Duration) {
        self.markers.lock().pace.delay(until);
    }

    /// The first marker on its way whose completion proves `ticket`.
    pub(crate) fn covering(&self, ticket: Ticket) -> Option<Arc<Marker>> {
        let markers = &self.markers.lock().on_their_way;
        let at = markers.partition_point(|marker| marker.ticket < ticket);
        markers.get(at).cloned()
    }

    /// The markers to watch for the stream to get further: the one that completes next, and the last,
    /// in case that one is seen late.
    pub(crate) fn to_watch(&self) -> impl Iterator<Item = Arc<Marker>> + use<> {
        let ends = self.ends();
        ends.into_iter().flat_map(|(oldest, newest)| {
            let last = (!Arc::ptr_eq(&oldest, &newest)).then_some(newest);
            std::iter::once(oldest).chain(last)
        })
    }

    /// The marker behind the stream's latest sealed work.
    pub(crate) fn newest(&self) -> Option<Arc<Marker>> {
        self.markers.lock().on_their_way.back().cloned()
    }

    /// Asks the device how far the stream has come. No lock is held while it is asked; who asks at
    /// the same time learns the same, and a ticket completes once whoever hears of it (I4).
    ///
    /// # Errors
    /// What the device says instead of an answer (I10): nothing is complete by it.
    pub(crate) fn harvest(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        let answer = self.harvest_in_order(device);
        if matches!(answer, Ok(Some(_))) {
            return answer;
        }
        match self.harvest_late(device)? {
            Some(later) => Ok(Some(later)),
            None => answer,
        }
    }

    /// The same, as far as no event is seen late: the oldest comes first.
    ///
    /// # Errors
    /// As [`harvest`](Self::harvest).
    pub(crate) fn harvest_in_order(
        &self,
        device: &dyn Device,
    ) -> Result<Option<Ticket>, DeviceError> {
        let Some((oldest, newest)) = self.ends() else {
            return Ok(None);
        };
        // All of them, most often, if that is to be expected.
        let is_likely = newest.ticket > oldest.ticket && self.is_due(&newest, device.now());
        if is_likely && is_complete(&newest, device) == Ok(true) {
            self.note_complete(&newest, device.now());
            return Ok(Some(newest.ticket));
        }
        if !is_complete(&oldest, device)? {
            return Ok(None);
        }
        let mut markers = self.from(oldest);
        if is_likely {
            markers.retain(|marker| marker.ticket < newest.ticket);
        }
        let complete = complete_prefix(&markers, device)?;
        let Some(last) = markers[..complete].last() else {
            return Ok(None);
        };
        self.note_complete(last, device.now());
        Ok(Some(last.ticket))
    }

    fn is_due(&self, marker: &Marker, now: Duration) -> bool {
        let markers = self.markers.lock();
        markers
            .due(now)
            .is_some_and(|due| due.ticket >= marker.ticket)
    }

    /// The oldest event is not complete, or errs. A later one proves it all the same: an event may be
    /// seen late while the stream goes on.
    ///
    /// # Errors
    /// As [`harvest`](Self::harvest).
    pub(crate) fn harvest_late(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        let Some((oldest, newest)) = self.ends() else {
            return Ok(None);
        };
        if Arc::ptr_eq(&oldest, &newest) || !is_complete(&newest, device)? {
            return Ok(None);
        }
        self.note_complete(&newest, device.now());
        Ok(Some(newest.ticket))
    }

    /// Whether a point is worth asking after: it has an event, and the stream was not asked in vain just now.
    pub(crate) fn may_be_asked(&self, ticket: Ticket, now: Duration) -> bool {
        let markers = self.markers.lock();
        let newest = markers.on_their_way.back().map(|marker| marker.ticket);
        let has_event = now >= markers.quiet_until && newest >= Some(ticket);
        has_event || self.completed() >= ticket
    }

    /// Asks after one point, and at once after all that can be expected to have been passed by now. Says whether it is;
    /// asked in vain, the stream is not to be asked again for a while.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub(crate) fn harvest_due(
        &self,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<bool, DeviceError> {
        let now = device.now();
        let due = self.markers.lock().due(now).cloned();
        let answer = match due {
            _ if self.completed() >= ticket => Ok(()),
            Some(due) if due.ticket > ticket => self.harvest_from_due(&due, ticket, device),
            _ => self.harvest_up_to(ticket, device).map(drop),
        };
        let is_passed = self.completed() >= ticket;
        if !is_passed {
            self.note_vain(ticket, now);
        }
        answer.map(|()| is_passed)
    }

    fn harvest_from_due(
        &self,
        due: &Arc<Marker>,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        if is_complete(due, device)? {
            self.note_complete(due, device.now());
            return Ok(());
        }
        let covering = self.covering(ticket);
        if covering.is_some_and(|covering| covering.ticket < due.ticket) {
            self.harvest_up_to(ticket, device)?;
        }
        Ok(())
    }

    /// It was asked for what is not there yet: the longer that is late, the longer it is not asked again.
    fn note_vain(&self, ticket: Ticket, now: Duration) {
        let covering = self.covering(ticket);
        let late = covering.map_or(Duration::ZERO, |marker| {
            now.saturating_sub(marker.expected_at)
        });
        let mut markers = self.markers.lock();
        markers.quiet_until = now + markers.pace.margin() + late / 2;
    }

    /// The first and the last marker on their way.
    fn ends(&self) -> Option<(Arc<Marker>, Arc<Marker>)> {
        let markers = &self.markers.lock().on_their_way;
        Some((markers.front()?.clone(), markers.back()?.clone()))
    }

    /// Asks after one point: its own marker may be complete while older ones are seen late. Says
    /// whether it is.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub(crate) fn harvest_up_to(
        &self,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<bool, DeviceError> {
        if let Some(marker) = self.covering(ticket) {
            if is_complete(&marker, device)? {
                self.note_complete(&marker, device.now());
            }
        }
        Ok(self.completed() >= ticket)
    }

    /// A marker and all later ones. It comes first even if somebody else saw it complete meanwhile, and
    /// drained it: what comes first then was not asked after.
    fn from(&self, oldest: Arc<Marker>) -> Vec<Arc<Marker>> {
        let markers = &self.markers.lock().on_their_way;
        let at = markers.partition_point(|marker| marker.ticket <= oldest.ticket);
        std::iter::once(oldest)
            .chain(markers.range(at..).cloned())
            .collect()
    }

    fn note_complete(&self, last: &Marker, now: Duration) {
        self.completed.fetch_max(last.ticket.0, Ordering::AcqRel);
        self.note_latency(now.saturating_sub(last.sealed_at));
        let done: Vec<_> = {
            let mut markers = self.markers.lock();
            let on_their_way = &mut markers.on_their_way;
            let count = on_their_way.partition_point(|marker| marker.ticket <= last.ticket);
            let done: Vec<_> = on_their_way.drain(..count).collect();
            if let Some(first) = done.first() {
                let expected_at = last.expected_at;
                markers
                    .pace
                    .note(first.sealed_at, count as u32, expected_at, now);
            }
            done
        };
        Marker::note_complete(&done, now);
        // Outside the lock: the last owner of a marker puts its event back, under another lock.
        drop(done);
    }

    /// The newest marker of a harvest counts: it was seen soonest after it completed.
    fn note_latency(&self, latency: Duration) {
        let sample = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let mean = self.latency.load(Ordering::Relaxed);
        let next = if mean == 0 {
            sample
        } else {
            mean - mean / 8 + sample / 8
        };
        self.latency.store(next, Ordering::Relaxed);
    }

    /// Whether a free should ask how far the stream is before it records another event. Asked in vain,
    /// it is not asked again before there are twice as many.
    pub(crate) fn is_crowded(&self) -> bool {
        let crowd = self.crowd.load(Ordering::Relaxed);
        self.markers.lock().on_their_way.len() as u64 >= crowd
    }

    /// It was asked; what is left sets when to ask again.
    pub(crate) fn note_asked(&self) {
        let left = self.markers.lock().on_their_way.len();
        let crowd = (2 * left).clamp(FEWEST_WORTH_ASKING, MOST_ON_THEIR_WAY);
        self.crowd.store(crowd as u64, Ordering::Relaxed);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.markers.lock().on_their_way.len() >= MOST_ON_THEIR_WAY
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.markers.lock().on_their_way.is_empty()
    }
}

fn is_complete(marker: &Marker, device: &dyn Device) -> Result<bool, DeviceError> {
    assert_unlocked("query");
    device.query(marker.event())
}

/// How many markers, from the oldest, are complete, given that the first is. A stream runs in order,
/// so one question settles the common case (all), and halving the others.
fn complete_prefix(markers: &[Arc<Marker>], device: &dyn Device) -> Result<usize, DeviceError> {
    let (mut done, mut open) = (0, markers.len());
    let mut next = open.saturating_sub(1);
    while open - done > 1 {
        if is_complete(&markers[next], device)? {
            done = next;
        } else {
            open = next;
        }
        next = done.midpoint(open);
    }
    Ok(open.min(markers.len()))
}
