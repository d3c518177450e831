//! The requests in the fair queue, with the figures that are kept of them. It knows neither locks nor the gate.

use super::admission::{Admission, QueueLimit};
use super::fair_queue::{Cost, FairQueue, Position, SortKey};
use super::scan::Scan;
use super::waiter::Waiter;
use crate::id::StreamId;
use crate::sync::{Arc, Foreign, Trash};
use std::collections::BTreeMap;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Queued {
    order: FairQueue<Foreign<Arc<Waiter>>>,
    pub(super) admission: Admission,
    /// When each request arrived, in the order of arrival.
    arrivals: BTreeMap<Position, Duration>,
    /// How many requests are for each stream.
    by_stream: BTreeMap<StreamId, usize>,
    /// The last search for every request of a queue in a deadlock.
    scan: Scan,
}

impl Queued {
    pub(super) fn new(limit: QueueLimit) -> Self {
        Self {
            order: FairQueue::new(),
            admission: Admission::new(limit),
            arrivals: BTreeMap::new(),
            by_stream: BTreeMap::new(),
            scan: Scan::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds a request. Returns whether it must be searched for, because searches for all others were in vain.
    pub(super) fn join(&mut self, waiter: Foreign<Arc<Waiter>>, now: Duration) -> bool {
        self.admission.join(waiter.demand.request.bytes, now);
        *self.by_stream.entry(waiter.lane.id).or_default() += 1;
        let (flow, sort_key) = (waiter.flow, waiter.sort_key);
        self.arrivals.insert(sort_key.position, waiter.since);
        let must_be_tried = self.scan.note_newcomer(&waiter);
        self.order.join(flow, sort_key, waiter);
        must_be_tried
    }

    /// Removes a request, at that cost and time if it was served. Returns whether it was here.
    pub(super) fn leave(
        &mut self,
        waiter: &Waiter,
        served: Option<Cost>,
        served_at: Option<Duration>,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> bool {
        let left = self.order.leave(waiter.flow, waiter.sort_key, served);
        if left.is_none() {
            return false;
        }
        trash.add(left);
        self.arrivals.remove(&waiter.sort_key.position);
        if let Some(count) = self.by_stream.get_mut(&waiter.lane.id) {
            *count -= 1;
            if *count == 0 {
                self.by_stream.remove(&waiter.lane.id);
            }
        }
        let bytes = waiter.demand.request.bytes;
        self.admission.leave(bytes, served_at);
        if self.is_empty() {
            self.scan.forget(trash);
        }
        true
    }

    /// Takes all requests out: the pool ends.
    pub(super) fn take_all(&mut self, trash: &mut Trash<Arc<Waiter>>) {
        trash.add(self.order.take_all());
        self.scan.forget(trash);
    }

    /// Returns the request that is served next.
    pub(super) fn head(&self) -> Option<&Arc<Waiter>> {
        self.order.head().map(|head| &**head)
    }

    /// Returns the first `most` requests in the order in which they are served if no further request arrives, each at
    /// its cost.
    pub(super) fn first<'a>(
        &'a self,
        most: usize,
        cost: impl Fn(&Arc<Waiter>) -> Cost + 'a,
    ) -> impl Iterator<Item = &'a Arc<Waiter>> {
        let first = self.order.first(most, move |waiter| cost(waiter));
        first.map(|waiter| &**waiter)
    }

    /// Returns when the oldest request arrived.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.arrivals.values().next().copied()
    }

    pub(super) fn waits_for(&self, stream: StreamId) -> bool {
        self.by_stream.contains_key(&stream)
    }

    /// Estimates how long a request with that key would wait.
    pub(super) fn expected_wait(
        &self,
        bytes: u64,
        key: SortKey,
        now: Duration,
    ) -> Option<Duration> {
        let bytes_of = |waiter: &Foreign<Arc<Waiter>>| waiter.demand.request.bytes;
        let (before, after) = (self.order.before(key), self.order.after(key));
        let (before, after) = (before.map(bytes_of), after.map(bytes_of));
        self.admission.expected_wait(bytes, before, after, now)
    }

    /// Returns the requests to search for in a deadlock, apart from the head; see [`Scan::begin`].
    pub(super) fn begin_scan(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        cost: impl Fn(&Arc<Waiter>) -> Cost,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> Vec<Arc<Waiter>> {
        let others = self.order.first(usize::MAX, move |waiter| cost(waiter));
        let others = others.skip(1).map(|waiter| &**waiter);
        self.scan.begin(generation, usual_alignment, others, trash)
    }

    /// Forgets the last search for every request.
    pub(super) fn forget_scan(&mut self, trash: &mut Trash<Arc<Waiter>>) {
        self.scan.forget(trash);
    }
}
