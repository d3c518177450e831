//! A stream's points: the markers on their way, the last one complete, and what the stream comes
//! after.

use super::marker::Marker;
use super::pace::Pace;
use crate::heap::Clock;
use crate::id::Ticket;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedNumber};
use std::collections::VecDeque;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Timeline {
    /// Published markers that are not known to be complete, by ticket.
    pub(super) markers: Mutex<Markers>,
    pub(super) completed: SharedNumber,
    clock: Mutex<Clock>,
    /// How long an event took from record to being seen complete: a running mean, in nanoseconds.
    pub(super) latency: SharedNumber,
    /// A stream that nobody asked yet, or that was asked in vain, is not asked by a free before so many markers are on
    /// their way.
    shards: SharedNumber,
}

#[derive(Debug, Default)]
pub(super) struct Markers {
    pub(super) on_their_way: VecDeque<Arc<Marker>>,
    pub(super) pace: Pace,
    /// Asked in vain, the stream is left alone until then.
    pub(super) quiet_until: Duration,
}

impl Markers {
    /// The last of the markers that can be expected to have been passed by now.
    pub(super) fn due(&self, now: Duration) -> Option<&Arc<Marker>> {
        if now < self.quiet_until {
            return None;
        }
        let by = now + self.pace.margin();
        let is_due = |marker: &Arc<Marker>| marker.expected_at <= by;
        let count = self.on_their_way.partition_point(is_due);
        Some(&self.on_their_way[count.checked_sub(1)?])
    }
}

/// Fewer markers than this are not worth asking after, unless there is another every few microseconds.
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
            shards: SharedNumber::new(FEWEST_WORTH_ASKING as u64),
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

    /// The sealing times of the markers on their way, from the earliest on.
    pub(crate) fn sealed_at(&self) -> Vec<Duration> {
        let markers = &self.markers.lock().on_their_way;
        markers.iter().map(|marker| marker.sealed_at).collect()
    }

    /// The marker behind the stream's latest sealed work.
    pub(crate) fn newest(&self) -> Option<Arc<Marker>> {
        self.markers.lock().on_their_way.back().cloned()
    }

    /// The first and the last marker on their way.
    pub(super) fn ends(&self) -> Option<(Arc<Marker>, Arc<Marker>)> {
        let markers = &self.markers.lock().on_their_way;
        Some((markers.front()?.clone(), markers.back()?.clone()))
    }

    /// Whether a free should ask how far the stream is before it records another event. Asked in vain,
    /// it is not asked again before there are twice as many. Where frees come close to each other, each event counts:
    /// what is not known to be complete does not merge with what is, and there is much of it.
    pub(crate) fn is_sharded(&self, is_close: bool) -> bool {
        let fewest = if is_close { 1 } else { FEWEST_WORTH_ASKING };
        let shards = self.shards.load(Ordering::Relaxed) as usize;
        self.markers.lock().on_their_way.len() >= shards.max(fewest)
    }

    /// It was asked; what is left sets when to ask again.
    pub(crate) fn note_asked(&self) {
        let left = self.markers.lock().on_their_way.len();
        let shards = (2 * left).min(MOST_ON_THEIR_WAY);
        self.shards.store(shards as u64, Ordering::Relaxed);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.markers.lock().on_their_way.len() >= MOST_ON_THEIR_WAY
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.markers.lock().on_their_way.is_empty()
    }
}
