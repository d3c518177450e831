//! The requests in the fair queue, with the figures that are kept of them. It knows neither locks nor the gate.

use super::admission::{Admission, QueueLimit};
use super::fair_queue::{Cost, FairQueue, Flow, Position, SortKey, Turn, WaiterWalk};
use super::scan::Scan;
use super::shares::{Applicant, Shares};
use super::waiter::Waiter;
use crate::id::StreamId;
use crate::sync::{Arc, Foreign, Trash};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where a request is in the order.
pub(super) type Place = (Flow, SortKey);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Queued {
    order: FairQueue<Foreign<Arc<Waiter>>>,
    pub(super) admission: Admission,
    /// The requests of each tag.
    pub(super) shares: Shares<Place>,
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
            shares: Shares::new(),
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

    /// Adds a request whose tag has that weight. Returns whether it must be searched for, because searches for all others
    /// were in vain.
    pub(super) fn join(
        &mut self,
        waiter: Foreign<Arc<Waiter>>,
        weight: u32,
        now: Duration,
    ) -> bool {
        let (bytes, party) = (waiter.demand.request.bytes, waiter.demand.tag);
        let candidate = Applicant {
            party,
            weight,
            bytes,
        };
        self.admission.join(bytes, now);
        let (flow, sort_key) = (waiter.flow, waiter.sort_key);
        self.shares.join(candidate, sort_key, (flow, sort_key));
        *self.by_stream.entry(waiter.lane.id).or_default() += 1;
        self.arrivals.insert(sort_key.position, waiter.since);
        let must_be_tried = self.scan.record_newcomer(&waiter);
        self.order.join(flow, sort_key, bytes, waiter);
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
        self.shares.leave(waiter.demand.tag, waiter.sort_key);
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
        self.shares = Shares::new();
        self.scan.forget(trash);
    }

    /// Returns whether the request is here.
    pub(super) fn has(&self, waiter: &Waiter) -> bool {
        self.arrivals.contains_key(&waiter.sort_key.position)
    }

    /// Returns the request at a place.
    pub(super) fn at(&self, (flow, sort_key): Place) -> Option<&Arc<Waiter>> {
        self.order.get(flow, sort_key).map(|waiter| &**waiter)
    }

    /// Returns the request that is served next.
    pub(super) fn head(&self) -> Option<&Arc<Waiter>> {
        self.order.head().map(|head| &**head)
    }

    /// Returns the first `most` requests in the order in which they are served if no further request arrives, given the
    /// weight of each flow.
    pub(super) fn first<'a>(
        &'a self,
        most: usize,
        weight: impl Fn(Flow) -> u32 + 'a,
    ) -> impl Iterator<Item = &'a Arc<Waiter>> {
        self.order.first(most, weight).map(|waiter| &**waiter)
    }

    /// Begins a walk over the first `most` requests.
    pub(super) fn walk(&self, most: usize) -> WaiterWalk {
        self.order.walk(most)
    }

    /// Returns the next request of a walk; see [`FairQueue::next_of`].
    pub(super) fn next_of(
        &self,
        walk: &mut WaiterWalk,
        weight: impl Fn(Flow) -> u32,
    ) -> Option<(Turn, &Arc<Waiter>)> {
        let (turn, waiter) = self.order.next_of(walk, weight)?;
        Some((turn, waiter))
    }

    /// Returns when the turn of the first request of a flow begins, or would begin.
    pub(super) fn start_of(&self, flow: Flow) -> u128 {
        self.order.start_of(flow)
    }

    /// Returns when the oldest request arrived.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.arrivals.values().next().copied()
    }

    pub(super) fn waits_for(&self, stream: StreamId) -> bool {
        self.by_stream.contains_key(&stream)
    }

    /// Adds up the bytes of the requests that are served before one of that flow and key, if no further request arrives.
    pub(super) fn bytes_before(
        &self,
        flow: Flow,
        key: SortKey,
        weight: impl Fn(Flow) -> u32,
    ) -> u64 {
        self.order.bytes_before(flow, key, weight)
    }

    /// Returns the requests to search for in a deadlock, apart from the head; see [`Scan::begin`].
    pub(super) fn begin_scan(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        weight: impl Fn(Flow) -> u32,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> Vec<Arc<Waiter>> {
        let others = self.order.first(usize::MAX, weight).skip(1);
        let others = others.map(|waiter| &**waiter);
        self.scan.begin(generation, usual_alignment, others, trash)
    }

    /// Forgets the last search for every request.
    pub(super) fn forget_scan(&mut self, trash: &mut Trash<Arc<Waiter>>) {
        self.scan.forget(trash);
    }
}
