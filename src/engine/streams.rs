//! The streams of the pool: registers them, and takes blocks back from their caches.

use super::{HeapStore, Shared};
use crate::device::StreamProperties;
use crate::id::{StreamId, StreamNames, Ticket};
use crate::lane::{
    ActiveStreams, CacheBounds, Events, Flush, KeepingReservations, Lane, Lanes, Neighbours,
    Registry, Watch,
};
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
        let active = Arc::new(ActiveStreams::default());
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
            lanes: Busy::new(Guards::Registry, Registry::default()),
            active,
            events: Arc::new(Events::new(device.clone())),
            neighbours: Neighbours::new(device.clone()),
            keeping: KeepingReservations::default(),
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

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use crate::Pool;
    use crate::device::sim::SimDevice;

    /// Streams whose work runs on do not make it dearer that others come and go, and are forgotten once it is complete.
    #[cfg(debug_assertions)]
    #[test]
    fn stream_comes_and_goes_without_asking_all_that_are_gone() {
        use crate::device::sim::{Clock, Operation};
        use crate::sync::census;
        use std::time::Duration;
        const SECOND: Duration = Duration::from_secs(1);
        let cost = |retired: usize| {
            let device = SimDevice::builder().clock(Clock::Manual).build();
            let pool = Pool::builder(device.clone()).build().unwrap();
            let works: Vec<_> = (0..retired).map(|_| device.create_stream()).collect();
            for work in &works {
                let stream = pool.register(work).unwrap();
                let block = pool.try_allocate(&stream, 4096).unwrap();
                work.submit(Operation::new(SECOND).writes(block.address(), block.size()));
            }
            let locks = || {
                census()
                    .locks
                    .into_iter()
                    .map(|(_, count)| count)
                    .sum::<u64>()
            };
            locks();
            let (work, registry) = (device.create_stream(), &pool.service().engine.streams.lanes);
            drop(pool.register(&work).unwrap());
            let cost = locks();
            assert_eq!(registry.lock().leaving().len(), retired);
            // Streams may wait for those whose memory they took.
            device.advance(SECOND * 2 * retired as u32);
            for _ in 0..retired {
                drop(pool.register(&work).unwrap());
            }
            assert_eq!(registry.lock().leaving().len(), 0);
            cost
        };
        let few = if cfg!(miri) { 6 } else { 100 };
        // A lane takes a lock that outlives it from those of other tests, or a new one.
        let (few, many) = (cost(few), cost(3 * few));
        assert!(few.abs_diff(many) <= 4, "{few} and {many} locks");
    }

    #[test]
    fn stream_ids_continue_beyond_32_bits() {
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let register = || pool.register(&device.create_stream()).unwrap();
        let first = register();
        let registry = &pool.service().engine.streams.lanes;
        registry.lock().skip_ids(u64::from(u32::MAX));
        let later = [(); 3].map(|()| register());
        let ids = later.each_ref().map(|stream| stream.id());
        assert!(ids.is_sorted() && ids[0] > first.id());
        assert!(ids.iter().all(|id| id.of_a_stream().is_some()));
        let block = pool.try_allocate(&later[0], 512).unwrap();
        let address = block.address();
        drop(block);
        assert_ne!(
            pool.try_allocate(&later[1], 512).unwrap().address(),
            address
        );
        assert_eq!(
            pool.try_allocate(&later[0], 512).unwrap().address(),
            address
        );
    }
}
