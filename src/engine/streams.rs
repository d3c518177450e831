//! The streams of the pool: registers them, and takes blocks back from their caches.

use super::kept::KeepingReservations;
use super::neighbours::Neighbours;
use super::registry::{Lanes, Registry};
use super::{Engine, HeapStore, Shared, kept, reaping};
use crate::device::{Device, DeviceStream, Host, Watch};
use crate::error::StreamError;
use crate::heap::{self, Fences};
use crate::id::{StreamId, StreamNames, Ticket};
use crate::lane::{ActiveStreams, Bounds, CachedBlock, Events, Flush, Lane, Marker, Neighbour};
use crate::sync::{Arc, Busy, Guards, plain, yield_now};
use crate::trace;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a check waits for memory calls of other threads.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watches on points of streams. A watch holds its marker, so that the event is not recorded again.
pub(crate) type Watches = BTreeMap<(StreamId, Ticket), Watch<Marker>>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Streams {
    /// The order in which memory is taken for no stream, such as that of reservations.
    pub(crate) neutral: Arc<Lane>,
    pub(super) lanes: Busy<Registry>,
    active: Arc<ActiveStreams>,
    pub(super) events: Arc<Events>,
    pub(crate) neighbours: Neighbours,
    pub(super) keeping: KeepingReservations,
}

impl Streams {
    pub(super) fn new(Shared { device, gate, .. }: &Shared) -> Self {
        let host = Host(device.id());
        let active = Arc::new(ActiveStreams::new());
        let neutral = Lane::new(
            StreamId::SET_ASIDE,
            &host,
            Bounds::NONE,
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
            for CachedBlock { id, ticket, .. } in lane.cache.flush(which) {
                heap.take_back(id, Fences::one(lane.id, ticket));
                has_any = true;
            }
        }
        has_any
    }

    /// Checks, after flushing all caches, that no block is allocated any more. Memory that another thread is mapping,
    /// releasing or evicting is waited for, and so is a thread that serves: it may hold memory for a request that was
    /// dropped meanwhile. But not for ever: memory may be lost.
    ///
    /// # Errors
    /// Returns a description of the bytes that are missing.
    pub(crate) fn check_conserved(
        &self,
        store: &HeapStore,
        is_serving: impl Fn() -> bool,
    ) -> Result<(), String> {
        kept::return_all_kept(self, store);
        let begin = Instant::now();
        loop {
            let is_in_hands = is_serving() || store.evictables.is_evicting();
            // Memory that they gave back until now may be in a cache.
            self.flush(store, Flush::All);
            let heap = store.heap.lock();
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
    pub(crate) fn returns_if_quiet(&self, store: &HeapStore) -> Option<u64> {
        let totals = store.totals();
        let is_quiet = totals.pending.current + totals.claimed + totals.planned == 0;
        let is_cached = || (self.active_lanes().iter()).any(|lane| lane.cache.is_keeping());
        (is_quiet && !is_cached()).then_some(totals.returns)
    }
}

/// Registers a stream, with an id of its own (invariant `stable-ids`).
///
/// # Errors
/// Returns an error if it is a stream of another device without access, or if the device cannot keep its order.
pub(crate) fn register(
    engine: &Engine,
    stream: &dyn DeviceStream,
) -> Result<Arc<Lane>, StreamError> {
    let neighbour = engine.streams.neighbours.with_access(stream.device_id())?;
    engine.shared.expect_seen_by(stream.raw())?;
    register_at(engine, stream, neighbour)
}

/// Registers a stream on which only copies that the device makes are noted.
///
/// # Errors
/// Returns an error if it is a stream of a device that is not beside the pool's.
pub(crate) fn register_for_copies(
    engine: &Engine,
    stream: &dyn DeviceStream,
    device: &plain::Arc<dyn Device>,
) -> Result<Arc<Lane>, StreamError> {
    let neighbour = engine.streams.neighbours.of_copies(device)?;
    let lane = register_at(engine, stream, neighbour)?;
    lane.set_for_copies(true);
    Ok(lane)
}

fn register_at(
    engine: &Engine,
    stream: &dyn DeviceStream,
    neighbour: Option<Arc<Neighbour>>,
) -> Result<Arc<Lane>, StreamError> {
    stream.admit()?;
    // A new stream removes some that are gone, so that their number stays bounded.
    reaping::reap_retired(engine, None);
    let id = engine.streams.lanes.lock().next_id();
    let (bounds, gate) = (engine.shared.settings.lane, engine.shared.gate.clone());
    let lane = Lane::new(id, stream, bounds, gate, &engine.streams.active);
    let lane = Arc::new(lane.on(neighbour));
    // The heap knows the stream and its completed point before any block is freed on it.
    engine
        .store
        .heap
        .lock()
        .register(id, lane.timeline.completed());
    engine.streams.lanes.lock().insert(lane.clone());
    trace::stream_registered(lane.label());
    Ok(lane)
}
