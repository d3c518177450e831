//! The streams of the pool: registers them, and takes blocks back from their caches.

use super::kept::KeepingReservations;
use super::lanes::{Lanes, Registry};
use super::neighbours::Neighbours;
use super::{HeapStore, Shared};
use crate::device::StreamProperties;
use crate::id::{StreamId, StreamNames, Ticket};
use crate::lane::{ActiveStreams, CacheBounds, Events, Flush, Lane, Watch};
use crate::sync::{Arc, Busy, Guards, plain};
use std::collections::BTreeMap;

/// Watches on points of streams. A watch holds its marker, so that the event is not recorded again.
pub(crate) type Watches = BTreeMap<(StreamId, Ticket), Watch>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Streams {
    /// The order in which memory is taken for no stream, such as that of reservations.
    pub(crate) neutral: Arc<Lane>,
    pub(super) lanes: Busy<Registry>,
    pub(super) active: Arc<ActiveStreams>,
    pub(super) events: Arc<Events>,
    pub(crate) neighbours: Neighbours,
    pub(super) keeping: KeepingReservations,
}

impl Streams {
    pub(super) fn new(Shared { device, gate, .. }: &Shared) -> Self {
        let active = Arc::new(ActiveStreams::new());
        let neutral = Lane::new(
            StreamId::SET_ASIDE,
            StreamProperties::of_host(device.id()),
            plain::Arc::new(()),
            CacheBounds::NONE,
            gate.clone(),
            &active,
        );
        Self {
            neutral: Arc::new(neutral),
            lanes: Busy::new(Guards::Registry, Registry::new()),
            active,
            events: Arc::new(Events::new(device.clone())),
            neighbours: Neighbours::new(device.clone()),
            keeping: KeepingReservations::new(),
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

    /// Moves cached blocks to the heap, where neighbours merge and every stream can have them. Says whether there
    /// were any.
    ///
    /// The heap's lock is held throughout, so that no other thread finds a block in neither place and reports that
    /// memory is out. A lane's lock is taken inside the heap's here, and the heap's never inside a lane's.
    pub(crate) fn flush(&self, store: &HeapStore, which: Flush) -> bool {
        let lanes = self.active_lanes();
        let mut heap = store.heap.lock();
        let mut has_any = false;
        for lane in lanes.iter() {
            has_any |= store.take_back(&mut heap, lane, lane.cache.flush(which));
        }
        has_any
    }

    /// Returns how many blocks came back so far, if none is on its way: pending, cached, or being moved.
    pub(crate) fn returns_if_quiet(&self, store: &HeapStore) -> Option<u64> {
        let totals = store.totals();
        let is_quiet = totals.pending.current + totals.claimed + totals.planned == 0;
        let is_cached = || (self.active_lanes().iter()).any(|lane| !lane.cache.cached().is_empty());
        (is_quiet && !is_cached()).then_some(totals.returns)
    }
}
