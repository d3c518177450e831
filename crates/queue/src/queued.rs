//! The requests in the fair queue, with the figures that are kept of them. It does not know the gate.

use crate::admission::Admission;
use crate::fair_queue::{Cost, FairQueue, Flow, Place, Position, SortKey, Turn, WaiterWalk};
use crate::scan::{Pieces, Scan, ToTry};
use crate::shares::{Applicant, Shares};
use crate::{Entry, QueueLimit};
use std::collections::BTreeMap;
use std::time::Duration;
use weirpool_heap::id::StreamId;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queued<T> {
    order: FairQueue<T>,
    pub(crate) admission: Admission,
    /// The requests of each tag.
    pub(crate) shares: Shares<Entry>,
    /// When each request arrived, in the order of arrival.
    arrivals: BTreeMap<Position, Duration>,
    /// How many requests are for each stream.
    by_stream: BTreeMap<StreamId, usize>,
    /// The last search for every request of a queue in a deadlock.
    scan: Scan<T>,
}

impl<T> Queued<T> {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        Self {
            order: FairQueue::new(),
            admission: Admission::new(limit),
            shares: Shares::new(),
            arrivals: BTreeMap::new(),
            by_stream: BTreeMap::new(),
            scan: Scan::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds a request whose tag has that weight. Returns whether it must be searched for, because searches for all others
    /// were in vain.
    pub(crate) fn join(&mut self, entry: Entry, waiter: T, weight: u32, now: Duration) -> bool
    where
        T: Clone,
    {
        let Entry {
            sort_key, bytes, ..
        } = entry;
        let candidate = Applicant {
            party: entry.tag,
            weight,
            bytes,
        };
        self.admission.join(bytes, now);
        self.shares.join(candidate, sort_key, entry);
        *self.by_stream.entry(entry.stream).or_default() += 1;
        self.arrivals.insert(sort_key.position, entry.since);
        let must_be_tried = self.scan.0.is_some();
        if let Some(tried) = &mut self.scan.0 {
            tried.untried.push(waiter.clone());
        }
        self.order.join(entry.flow, sort_key, bytes, waiter);
        must_be_tried
    }

    /// Removes a request, at that cost and time if it was served. Returns it, if it was here; after the last one, the
    /// caller [forgets the scan](Self::forget_scan).
    pub(crate) fn leave(
        &mut self,
        entry: &Entry,
        served: Option<Cost>,
        served_at: Option<Duration>,
    ) -> Option<T> {
        let left = self.order.leave(entry.flow, entry.sort_key, served)?;
        self.shares.leave(entry.tag, entry.sort_key);
        self.arrivals.remove(&entry.sort_key.position);
        if let Some(count) = self.by_stream.get_mut(&entry.stream) {
            *count -= 1;
            if *count == 0 {
                self.by_stream.remove(&entry.stream);
            }
        }
        self.admission.leave(entry.bytes, served_at);
        Some(left)
    }

    /// Takes all requests out: the pool ends.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> {
        self.shares = Shares::new();
        let untried = self.scan.forget();
        self.order.take_all().chain(untried)
    }

    /// Returns whether the request is here.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.arrivals.contains_key(&entry.sort_key.position)
    }

    /// Returns the request at a place.
    pub(crate) fn at(&self, (flow, sort_key): Place) -> Option<&T> {
        self.order.get(flow, sort_key)
    }

    /// Returns the place of the request that is served next.
    pub(crate) fn head_place(&self) -> Option<Place> {
        self.order.head_place()
    }

    /// Returns the request that is served next.
    pub(crate) fn head(&self) -> Option<&T> {
        self.order.head()
    }

    /// Returns the first `most` requests in the order in which they are served if no further request arrives, given the
    /// weight of each flow.
    pub(crate) fn first<'a>(
        &'a self,
        most: usize,
        weight: impl Fn(Flow) -> u32 + 'a,
    ) -> impl Iterator<Item = (Place, &'a T)> {
        self.order.first(most, weight)
    }

    /// Begins a walk over the first `most` requests.
    pub(crate) fn walk(&self, most: usize) -> WaiterWalk {
        self.order.walk(most)
    }

    /// Returns the next request of a walk; see [`FairQueue::next_of`].
    pub(crate) fn next_of(
        &self,
        walk: &mut WaiterWalk,
        weight: impl Fn(Flow) -> u32,
    ) -> Option<(Turn, u64, &T)> {
        self.order.next_of(walk, weight)
    }

    /// Returns when the turn of the first request of a flow begins, or would begin.
    pub(crate) fn start_of(&self, flow: Flow) -> u128 {
        self.order.start_of(flow)
    }

    /// Returns when the oldest request arrived.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.arrivals.values().next().copied()
    }

    pub(crate) fn waits_for(&self, stream: StreamId) -> bool {
        self.by_stream.contains_key(&stream)
    }

    /// Adds up the bytes of the requests that are served before one of that flow and key, if no further request arrives.
    pub(crate) fn bytes_before(
        &self,
        flow: Flow,
        key: SortKey,
        weight: impl Fn(Flow) -> u32,
    ) -> u64 {
        self.order.bytes_before(flow, key, weight)
    }

    /// Returns the requests to search for in a deadlock, apart from the head; see [`Scan::begin`].
    pub(crate) fn begin_scan(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        weight: impl Fn(Flow) -> u32,
        needs: impl Fn(&T) -> Pieces,
    ) -> ToTry<T>
    where
        T: Clone,
    {
        let others = self.order.first(usize::MAX, weight).skip(1);
        let others = others.map(|(_, waiter)| waiter);
        self.scan.begin(generation, usual_alignment, others, needs)
    }

    /// Forgets the last search for every request. Returns the requests that came since.
    pub(crate) fn forget_scan(&mut self) -> Vec<T> {
        self.scan.forget()
    }
}
