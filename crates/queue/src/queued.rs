//! The requests in the fair queue, with the figures that are kept of them. It does not know the gate.

use crate::admission::Admission;
use crate::fair_queue::{Cost, FairQueue, Position};
use crate::scan::Scan;
use crate::shares::Shares;
use crate::{Entry, QueueLimit};
use std::collections::BTreeMap;
use std::time::Duration;
use weirpool_heap::id::StreamId;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) order: FairQueue,
    pub(crate) admission: Admission,
    /// The requests of each tag.
    pub(crate) shares: Shares,
    /// When each request arrived, in the order of arrival.
    pub(crate) arrivals: BTreeMap<Position, Duration>,
    /// How many requests are for each stream.
    pub(crate) by_stream: BTreeMap<StreamId, usize>,
    /// The last search for every request of a queue in a deadlock.
    pub(crate) scan: Option<Scan>,
}

impl Queued {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        Self {
            order: FairQueue::new(),
            admission: Admission::new(limit),
            shares: Shares::new(),
            arrivals: BTreeMap::new(),
            by_stream: BTreeMap::new(),
            scan: None,
        }
    }

    /// Adds a request whose tag has that weight. Returns whether it must be searched for, because searches for all others
    /// were in vain.
    pub(crate) fn join(&mut self, entry: Entry, weight: u32, now: Duration) -> bool {
        let (key, bytes) = (entry.sort_key, entry.bytes);
        self.admission.join(bytes, now);
        self.shares.join(entry, weight);
        *self.by_stream.entry(entry.stream).or_default() += 1;
        self.arrivals.insert(key.position, entry.since);
        self.order.join(entry.flow, key, bytes);
        let scan = self.scan.as_mut();
        scan.map(|scan| scan.untried.insert(key.position)).is_some()
    }

    /// Removes a request, at that cost and time if it was served. Returns whether it was here.
    pub(crate) fn leave(
        &mut self,
        entry: &Entry,
        served: Option<Cost>,
        served_at: Option<Duration>,
    ) -> bool {
        if !self.order.leave(entry.flow, entry.sort_key, served) {
            return false;
        }
        self.shares.leave(entry);
        self.arrivals.remove(&entry.sort_key.position);
        if let Some(count) = self.by_stream.get_mut(&entry.stream) {
            *count -= 1;
            if *count == 0 {
                self.by_stream.remove(&entry.stream);
            }
        }
        self.admission.leave(entry.bytes, served_at);
        match &mut self.scan {
            Some(_) if self.order.is_empty() => self.scan = None,
            Some(scan) => drop(scan.untried.remove(&entry.sort_key.position)),
            None => {}
        }
        true
    }
}
