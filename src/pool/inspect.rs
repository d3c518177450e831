//! What a pool tells about itself.

use super::{Health, Pool, PoolDescription};
use crate::device::{DeviceAddress, MemoryKind, PoolAttribute};
use crate::engine::{Statistics, figures};
use crate::heap::High;
use crate::measure::{BlockInfo, Snapshot, StreamStatistics, TagStatistics};
use crate::observe::{StatisticsScope, parts};
use crate::queue::WaitingRequest;
use crate::seam::{CapacitySource, Observer, SegmentSource};
use crate::stream::Stream;
use std::time::Duration;

/// The readers of a pool, from [`Pool::inspect`]: its figures, its memory, its waiters, and checks of them.
///
/// ```
/// use weirpool::{Pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).build()?;
/// let stream = pool.create_stream()?;
/// let block = pool.try_allocate(&stream, 4096)?;
/// assert_eq!(pool.inspect().statistics().used.current, block.size());
/// assert!(pool.inspect().check().is_ok());
/// assert!(pool.inspect().check_conserved().is_err(), "a block lives");
/// drop(block);
/// pool.inspect().check_conserved().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inspect<'a> {
    pool: &'a Pool,
}

impl Pool {
    /// Returns the readers of the pool.
    pub fn inspect(&self) -> Inspect<'_> {
        Inspect { pool: self }
    }
}

impl<'a> Inspect<'a> {
    /// Returns what the pool is: its name, its memory, its capacity, and its device.
    pub fn describe(self) -> PoolDescription {
        let presence = &self.pool.presence;
        let engine = &presence.service.engine;
        let settings = &engine.shared.settings;
        let device = engine.shared.device.describe();
        let mut told = PoolDescription::of(device, settings.upstream, settings.kind);
        told.name = presence.name.as_deref().map(Into::into);
        told.segment_owner = settings
            .has_source
            .then(|| settings.segments.properties().owner);
        told.is_passed_through = settings.is_ordered;
        told.is_virtual = settings.geometry.virtual_memory;
        told.is_pooled = settings.is_pooled;
        told.capacity = engine.store.capacity();
        told.chunk_bytes = settings.geometry.chunk_bytes;
        told.release_threshold = engine.maintenance.threshold();
        told.queue_limit = presence.service.queue.lock().queue.limit();
        told
    }

    /// Returns how the pool is: whether its device works, whether it is closed, and how many requests wait for how
    /// long.
    pub fn health(self) -> Health {
        let service = self.pool.service();
        let shared = &service.engine.shared;
        let now = shared.device.now();
        let oldest = service.queue.oldest();
        let lender = service.engine.store.lease.lender.as_ref();
        let mut health = Health::default();
        health.fault = shared.fault();
        // In this order: a closed pool is stopping.
        health.is_closed = shared.is_closed();
        health.is_stopping = shared.is_stopping();
        health.is_draining = shared.is_draining();
        health.source_trouble = lender.and_then(|lender| lender.trouble());
        health.waiting = service.queue.waiting();
        health.oldest_wait = oldest.map(|since| now.saturating_sub(since));
        health
    }

    /// Returns all segments and blocks as they are now. Where an
    /// [observer](Observer::origin_of) remembers, it has the origin of each block as well.
    ///
    /// Takes time in proportion to the number of blocks, under the heap's lock; neither
    /// seals nor polls events. Blocks are disjoint and tile the memory. Each is used, pending or free as of when its
    /// stream's lane was read: at rest, the sums are those of [`statistics`](Self::statistics).
    ///
    /// ```
    /// # use weirpool::{BlockState, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let block = pool.try_allocate(&stream, 1 << 20)?;
    /// let snapshot = pool.inspect().snapshot();
    /// let used: Vec<_> = snapshot.blocks_in(BlockState::Used).collect();
    /// assert_eq!((used[0].address, used[0].stream), (block.address(), Some(stream.id())));
    /// assert_eq!(snapshot.reserved(), pool.inspect().statistics().reserved.current);
    /// println!("{snapshot}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "memory_snapshot")]
    #[doc(alias = "_snapshot")]
    pub fn snapshot(self) -> Snapshot {
        parts::of_all_blocks(&self.pool.presence)
    }

    /// Returns the pool's current figures. Neither seals nor polls events; see [`Maintain::reap`](super::Maintain::reap).
    pub fn statistics(self) -> Statistics {
        figures::statistics(&self.pool.service().engine)
    }

    /// Returns the current figures of every stream that is registered, or was and has memory pending, in the order of
    /// their ids.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// let all = pool.inspect().statistics_by_stream();
    /// assert_eq!(all.iter().map(|figures| figures.stream).collect::<Vec<_>>(), [stream.id()]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_by_stream(self) -> Vec<StreamStatistics> {
        let engine = &self.pool.service().engine;
        let lanes = engine.streams.lanes();
        lanes
            .iter()
            .map(|lane| parts::of_stream(engine, lane))
            .collect()
    }

    /// Returns the current figures of every tag that this pool has seen. See [`TagStatistics`] for an example.
    pub fn statistics_by_tag(self) -> Vec<TagStatistics> {
        parts::of_all_tags(self.pool.service())
    }

    /// Begins a scope, which reports what happens in the pool from now on.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let weights = pool.try_allocate(&stream, 4 << 20)?;
    /// let request = pool.inspect().statistics_scope();
    /// let kept = pool.try_allocate(&stream, 1 << 20)?;
    /// let step = pool.inspect().statistics_scope();
    /// drop(pool.try_allocate(&stream, 2 << 20)?);
    /// assert_eq!((step.end().allocations, request.read().allocations), (1, 2));
    ///
    /// let figures = request.end();
    /// assert_eq!(figures.used.high, 7 << 20);
    /// assert_eq!(figures.retained(), kept.size());
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_scope(self) -> StatisticsScope {
        StatisticsScope::new(self.pool.presence.clone(), false)
    }

    /// Begins a scope whose high-water marks are exact on any number of threads and streams, as those of CUDA's and HIP's
    /// pools are. Those of other scopes may be too high by what streams' caches hold.
    ///
    /// While such a scope is open, every allocation and free of the pool bypasses the caches, and takes several times as
    /// long.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let [a, b] = [(); 2].map(|()| pool.register(&device.create_stream()).unwrap());
    /// let scope = pool.inspect().exact_statistics_scope();
    /// drop(pool.try_allocate(&a, 2 << 20)?);
    /// drop(pool.try_allocate(&b, 1 << 20)?);
    /// assert_eq!(scope.end().used.high, 2 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exact_statistics_scope(self) -> StatisticsScope {
        StatisticsScope::new(self.pool.presence.clone(), true)
    }

    /// Sets all high-water marks, including those of streams and tags, to the current figures. Scopes keep
    /// their own.
    pub fn reset_high_water_marks(self) {
        let service = self.pool.service();
        for high in High::ALL {
            figures::reset_high(&service.engine.streams, &service.engine.store, high);
        }
        service.queue.accounts.reset_highs();
    }

    /// Returns the number of freed blocks that are pending on a stream, in constant time: for a scheduler that asks
    /// often, where [`Stream::statistics`] would be too slow. 0 for a stream of another pool.
    ///
    /// A block that was used on several streams counts for each. Neighbours that became one piece count one by one; each
    /// reuse of a part of it takes one off, while any of it is pending. Blocks cached by the stream's lane count until all
    /// that was freed on the stream is known to be complete. Neither seals nor polls events; see [`Maintain::reap`](super::Maintain::reap).
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let work = device.create_stream();
    /// # let stream = pool.register(&work)?;
    /// let blocks = [pool.try_allocate(&stream, 4096)?, pool.try_allocate(&stream, 32 << 20)?];
    /// work.submit(Operation::new(Duration::from_micros(50)));
    /// drop(blocks);
    /// assert_eq!(pool.inspect().pending_blocks(&stream), 2);
    /// device.block_on(stream.synchronize())?;
    /// pool.maintain().reap()?;
    /// assert_eq!(pool.inspect().pending_blocks(&stream), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pending_blocks(self, stream: &Stream) -> usize {
        if !stream.is_of(&self.pool.presence) {
            return 0;
        }
        let engine = &self.pool.service().engine;
        figures::pending_blocks_on(&engine.store, &stream.registration.lane)
    }

    /// Returns the first `most` requests that wait, in the order in which they are served if no other request comes;
    /// those over the limit of their tag are last, and those whose tasks do not answer.
    ///
    /// Takes time in proportion to the requests that it returns, and holds the queue up for a part of them at a time. So
    /// the list is not of one moment: requests that come or leave meanwhile may be in it or not.
    ///
    /// ```
    /// # use futures::FutureExt;
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(8 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// let _block = pool.try_allocate(&stream, 8 << 20)?;
    /// let mut request = Box::pin(pool.allocate(&stream, 4 << 20).into_future());
    /// assert!(request.as_mut().now_or_never().is_none()); // it waits
    /// let waiting = pool.inspect().waiting_requests(10);
    /// assert_eq!((waiting.len(), waiting[0].requested), (1, 4 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waiting_requests(self, most: usize) -> Vec<WaitingRequest> {
        let service = self.pool.service();
        let now = service.engine.shared.device.now();
        service.queue.waiting_requests(most, now)
    }

    /// Estimates how long a request for `bytes` bytes without a deadline would wait if it came now, on the device's
    /// clock. `None` before at least eight waiting requests were served.
    ///
    /// The estimate is the bytes of the waiters ahead and its own, over the rate at which waiters were granted bytes:
    /// the last 64 grants weigh most. Waiters ahead are those that are served before it by deadline, priority and
    /// [weight](super::TagAccount::set_weight), if no other request comes. Time in which no request waited does not count; a
    /// standstill counts from its beginning. The estimate knows nothing of the work that uses live blocks, nor of
    /// overtaking, or requests that wait for the limit of a tag.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).build()?;
    /// assert_eq!(pool.inspect().expected_wait(1 << 20), None); // no request has waited yet
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expected_wait(self, bytes: u64) -> Option<Duration> {
        self.pool.service().expected_wait(None, None, bytes)
    }

    /// Returns the block of this pool that a device address lies in, used or not. Takes time in proportion to the
    /// number of blocks, under the heap's lock.
    pub fn block_at(self, address: impl Into<DeviceAddress>) -> Option<BlockInfo> {
        self.pool
            .service()
            .engine
            .block_at(address.into().to_bits())
    }

    /// Returns the kind of the pool's memory.
    pub fn memory_kind(self) -> MemoryKind {
        self.pool.service().engine.shared.settings.kind
    }

    /// Returns the [source](CapacitySource) of the pool's capacity, if it has one.
    pub fn capacity_source(self) -> Option<&'a dyn CapacitySource> {
        let lender = self.pool.service().engine.store.lease.lender.as_ref()?;
        Some(&*lender.source)
    }

    /// Returns the [source](SegmentSource) of the pool's segments, if it is not the device.
    pub fn segment_source(self) -> Option<&'a dyn SegmentSource> {
        let settings = &self.pool.service().engine.shared.settings;
        settings.has_source.then_some(&*settings.segments)
    }

    /// Returns the [observers](Observer) of the pool.
    pub fn observers(self) -> impl Iterator<Item = &'a dyn Observer> {
        let observers = self.pool.service().engine.store.announcer.observers();
        observers.iter().map(|observer| &**observer)
    }

    /// Returns the value of an attribute, as those of the driver's own pools are: a reuse flag is 1 or 0, and a figure is in
    /// bytes.
    pub fn attribute(self, attribute: PoolAttribute) -> u64 {
        let engine = &self.pool.service().engine;
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => {
                engine.shared.reuse().follow_event_dependencies.into()
            }
            PoolAttribute::ReuseAllowOpportunistic => engine.shared.reuse().opportunistic.into(),
            PoolAttribute::ReuseAllowInternalDependencies => {
                engine.shared.reuse().internal_dependencies.into()
            }
            PoolAttribute::ReleaseThreshold => engine.maintenance.threshold(),
            PoolAttribute::ReservedMemCurrent => self.statistics().reserved.current,
            PoolAttribute::ReservedMemHigh => {
                let cap = Some(engine.store.soft_cap.bytes()).filter(|cap| *cap != u64::MAX);
                self.statistics().reserved.high.max(cap.unwrap_or(0))
            }
            PoolAttribute::UsedMemCurrent => self.statistics().used.current,
            PoolAttribute::UsedMemHigh => self.statistics().used.high,
        }
    }

    /// Checks the invariants that hold at every moment: blocks tile their segments, and bytes are conserved. Takes time in
    /// proportion to the number of blocks, under the heap's lock.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold.
    pub fn check(self) -> Result<(), String> {
        self.pool.service().engine.store.check()
    }

    /// Flushes the caches, checks the invariants, and checks that every block was given back. Waits up to 10 s for other
    /// threads that map, release or evict memory, as the pool's maintenance does, or that serve waiting requests.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold, or the bytes that are still in use; and the largest blocks in use
    /// with their streams, tags and locations, as far as an observer or the ordering checker remembers.
    pub fn check_conserved(self) -> Result<(), String> {
        let service = self.pool.service();
        let checked = service.engine.check_conserved(|| service.is_serving());
        let checker = service.engine.shared.device.block_observer();
        let site = |address| checker.as_ref()?.allocated_at(address);
        checked.map_err(|error| error + &self.snapshot().describe_held(site))
    }
}
