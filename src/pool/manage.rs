//! A pool beyond its requests: the memory that it holds, its figures, its limits, and its end.

use super::settings::check_threshold;
use super::{Health, Pool, PoolDescription, TagAccount};
use crate::device::{Device, DeviceAddress, DeviceError, DeviceId, MemoryKind};
use crate::engine::{
    BlockInfo, BlockState, Statistics, Trimmed, access, figures, maintenance, reaping,
};
use crate::error::BuildError;
use crate::heap::{High, ReleaseThreshold, Reuse};
use crate::measure::Tag;
use crate::observe::{Snapshot, StatisticsScope, StreamStatistics, TagStatistics};
use crate::queue::{Drain, QueueLimit, Reclaimer, WaitingRequest, serving};
use crate::seam::{CapacitySource, Fact, Observer, SegmentSource};
use crate::stream::Stream;
use crate::sync::plain::Arc;
use std::time::Duration;

impl Pool {
    /// Returns the pool's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.presence.name.as_deref()
    }

    /// Returns what the pool is: its name, its memory, its capacity, and its device.
    pub fn describe(&self) -> PoolDescription {
        PoolDescription::of(&self.presence)
    }

    /// Returns how the pool is: whether its device works, whether it is closed, and how many requests wait for how
    /// long. Takes time in proportion to the number of waiters.
    pub fn health(&self) -> Health {
        Health::of(&self.presence)
    }

    /// Returns the device that the pool is over.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.service().engine.shared.device
    }

    /// Returns the id of the device that the pool is over.
    pub fn device_id(&self) -> DeviceId {
        self.device().id()
    }

    /// Returns the kind of the pool's memory.
    pub fn memory_kind(&self) -> MemoryKind {
        self.service().engine.shared.settings.kind
    }

    /// Returns the [source](SegmentSource) of the pool's segments, if it is not the device.
    pub fn segment_source(&self) -> Option<&dyn SegmentSource> {
        let settings = &self.service().engine.shared.settings;
        settings.has_source.then_some(&*settings.segments)
    }

    /// Returns the block of this pool that a device address lies in, used or not. Takes time in proportion to the
    /// number of blocks, under the heap's lock.
    pub fn block_at(&self, address: impl Into<DeviceAddress>) -> Option<BlockInfo> {
        self.service().engine.block_at(address.into().to_bits())
    }

    /// Returns the most bytes that the pool may reserve from the device.
    pub fn capacity(&self) -> u64 {
        self.service().engine.store.capacity()
    }

    /// Returns the [source](CapacitySource) of the pool's capacity, if it has one.
    pub fn capacity_source(&self) -> Option<&dyn CapacitySource> {
        let lender = self.service().engine.store.lease.lender.as_ref()?;
        Some(&*lender.source)
    }

    /// Sets the most bytes that the pool may reserve from the device; rounded down to whole chunks, and to the memory
    /// that the device has, or that a [source of the capacity](crate::PoolBuilder::capacity_source) ever lends. Returns the
    /// new capacity, and how much of the memory above it was released.
    ///
    /// More capacity serves waiting requests at once. With less, waiting requests that exceed it fail. Free memory
    /// above the capacity is released immediately, and used memory 10 ms after it is freed.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).capacity(64 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// let resized = pool.resize(32 << 20)?;
    /// assert!(resized.is_reached()); // nothing more is reserved
    /// assert_eq!(resized.target, 32 << 20); // the capacity
    /// let refused = pool.try_allocate(&stream, 48 << 20);
    /// assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`BuildError::CapacityTooSmall`] for less than a chunk. Returns the device's error if it cannot reserve
    /// addresses, in which case nothing changes, or cannot release memory.
    pub fn resize(&self, bytes: u64) -> Result<Trimmed, BuildError> {
        let engine = &self.service().engine;
        let total = engine
            .shared
            .device
            .memory_info(engine.shared.settings.kind)?
            .total;
        let total = total.min(engine.shared.settings.most());
        let chunk = engine.shared.settings.geometry.chunk_bytes;
        let capacity = bytes.min(total) / chunk * chunk;
        if capacity == 0 {
            return Err(BuildError::CapacityTooSmall {
                capacity: bytes,
                granularity: chunk,
            });
        }
        let resized = maintenance::resize(engine, capacity);
        // Even if memory could not be released: requests that exceed the capacity are told.
        serving::apply_terms(self.service());
        Ok(resized?)
    }

    /// Evicts the least recently used [evictable](crate::Evictable) memory, until that many bytes are evicted or no
    /// more is evictable. Returns the bytes that were. For a service that shrinks its caches before they are in the
    /// way.
    pub fn evict(&self, bytes: u64) -> u64 {
        self.service().engine.store.evictables.evict(bytes, None)
    }

    /// Gives free memory back to the device until `bytes` bytes are reserved, or no more is free. Flushes all caches
    /// first. Used and pending memory stays. Returns how far it got.
    ///
    /// Chunks go one by one, so that at least `bytes` bytes stay. Where memory is plain, segments go whole: if all free
    /// segments are larger than the excess, the smallest one goes, and fewer bytes stay.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let used = pool.try_allocate(&stream, 32 << 20)?;
    /// drop(pool.try_allocate(&stream, 64 << 20)?);
    /// assert_eq!(pool.trim_to(0)?.released, 64 << 20);
    /// assert_eq!(pool.statistics().reserved.current, used.size());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the device's error; memory that was released before it stays released.
    pub fn trim_to(&self, bytes: u64) -> Result<Trimmed, DeviceError> {
        maintenance::trim(&self.service().engine, bytes)
    }

    /// Makes all free memory one piece, flushing the caches first: by mapping chunks together, without copying, or,
    /// where memory is plain, by releasing free segments and reserving one as large. Used and pending memory stays
    /// where it is. Returns the bytes of the largest free piece. The name is Umpire's.
    ///
    /// May take a while, and wait for the device where memory is plain. Memory that is being moved counts as taken: a
    /// `try_allocate` elsewhere may fail meanwhile.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(64 << 20).chunk_bytes(2 << 20).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let blocks: Vec<_> = (0..8).map(|_| pool.try_allocate(&stream, 2 << 20)).collect::<Result<_, _>>()?;
    /// let kept: Vec<_> = blocks.into_iter().step_by(2).collect(); // every other one is freed
    /// assert_eq!(pool.coalesce()?, 4 * (2 << 20));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the device's error; no memory is lost.
    pub fn coalesce(&self) -> Result<u64, DeviceError> {
        maintenance::coalesce(&self.service().engine)
    }

    /// Sets the number of reserved bytes above which the pool gives free memory back without being asked: at the next
    /// [synchronization](crate::Stream::synchronize), or some time after it was freed.
    ///
    /// # Errors
    /// Returns [`BuildError::InvalidFraction`], or the device's error if it cannot tell how much memory it has.
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    #[doc(alias = "set_mempool_release_threshold")]
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<(), BuildError> {
        check_threshold(threshold)?;
        let engine = &self.service().engine;
        let total = engine
            .shared
            .device
            .memory_info(engine.shared.settings.kind)?
            .total;
        maintenance::set_release_threshold(engine, threshold.bytes(total));
        Ok(())
    }

    /// Returns the number of reserved bytes above which the pool gives free memory back without being asked;
    /// `u64::MAX` where it keeps all.
    pub fn release_threshold(&self) -> u64 {
        self.service().engine.maintenance.threshold()
    }

    /// Sets which memory of other streams may be reused, and returns the previous setting. Waiting requests are served
    /// under the new setting; a search that runs meanwhile on another thread may end under the earlier one.
    ///
    /// ```
    /// # use weirpool::{Pool, Reuse, Source, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).capacity(32 << 20).tuning(|tuning| tuning.reuse = Reuse::NONE).build()?;
    /// # let (first, second) = (pool.create_stream()?, pool.create_stream()?);
    /// drop(pool.try_allocate(&first, 32 << 20)?); // pending on the first stream
    /// assert!(pool.try_allocate(&second, 32 << 20).is_err());
    /// let before = pool.set_reuse(Reuse { internal_dependencies: true, ..Reuse::NONE });
    /// assert_eq!(before, Reuse::NONE);
    /// assert_eq!(pool.try_allocate(&second, 32 << 20)?.source(), Source::DeviceWait);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "cudaMemPoolReuseFollowEventDependencies")]
    #[doc(alias = "cudaMemPoolReuseAllowOpportunistic")]
    #[doc(alias = "cudaMemPoolReuseAllowInternalDependencies")]
    pub fn set_reuse(&self, reuse: Reuse) -> Reuse {
        self.change_reuse(|present| *present = reuse)
    }

    pub(crate) fn change_reuse(&self, change: impl Fn(&mut Reuse)) -> Reuse {
        let service = self.service();
        let before = service.engine.shared.change_reuse(change);
        serving::apply_terms(service);
        before
    }

    /// Polls the device for completed events, frees the memory that they prove free, and serves waiting requests.
    /// Returns whether any event had completed.
    ///
    /// # Errors
    /// Returns the device's error, if it cannot tell.
    pub fn reap(&self) -> Result<bool, DeviceError> {
        let has_news = reaping::reap(&self.service().engine)?;
        access::settle_access(&self.service().engine);
        serving::serve(self.service());
        Ok(has_news)
    }

    /// Returns a reclaimer to spawn on an executor of the caller's; see [`Reclaimer`] for when that is of use.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer::new(self.service(), true)
    }

    /// Sets how many requests may wait for memory at once: a number, or a [`QueueLimit`]. A request that would have to
    /// wait beyond that fails at once, with [`QueueFull`](crate::AllocError::QueueFull), or the last request of a tag
    /// above its [share](QueueLimit) fails in its place. Requests that wait already stay when the limit is lowered.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, QueueLimit, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).capacity(2 << 20).queue_limit(64).build()?;
    /// # let stream = pool.create_stream()?;
    /// let all = pool.try_allocate(&stream, 2 << 20)?;
    /// pool.set_queue_limit(0); // from now on no request may begin to wait
    /// let refused = device.block_on(pool.allocate(&stream, 4096));
    /// assert!(matches!(refused, Err(AllocError::QueueFull(full)) if full.waiting == 0));
    /// pool.set_queue_limit(QueueLimit::bytes(1 << 30));
    /// # drop(all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_queue_limit(&self, limit: impl Into<QueueLimit>) {
        self.service().queue.set_queue_limit(limit.into());
    }

    /// Returns how many requests may wait at once.
    pub fn queue_limit(&self) -> QueueLimit {
        self.service().queue.queue_limit()
    }

    /// Estimates how long a request for `bytes` bytes without a deadline would wait if it came now, on the device's
    /// clock. `None` before at least eight waiting requests were served.
    ///
    /// The estimate is the bytes of the waiters ahead and its own, over the rate at which waiters were granted bytes:
    /// the last 64 grants weigh most. Waiters ahead are those that are served before it by deadline, priority and
    /// [weight](TagAccount::set_weight), if no other request comes. Time in which no request waited does not count; a
    /// standstill counts from its beginning. The estimate knows nothing of the work that uses live blocks, nor of
    /// overtaking, or requests that wait for the limit of a tag.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).build()?;
    /// assert_eq!(pool.expected_wait(1 << 20), None); // no request has waited yet
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expected_wait(&self, bytes: u64) -> Option<Duration> {
        self.service().expected_wait(None, None, bytes)
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
    /// let waiting = pool.waiting_requests(10);
    /// assert_eq!((waiting.len(), waiting[0].requested), (1, 4 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waiting_requests(&self, most: usize) -> Vec<WaitingRequest> {
        let service = self.service();
        let now = service.engine.shared.device.now();
        service.queue.waiting_requests(most, now)
    }

    /// Returns the account of a tag with this pool: its limit, its weight in the queue, and its figures.
    pub fn tag(&self, tag: Tag) -> TagAccount<'_> {
        TagAccount::new(self, tag)
    }

    /// Returns the pool's current figures. Neither seals nor polls events; see [`reap`](Self::reap).
    pub fn statistics(&self) -> Statistics {
        figures::statistics(&self.service().engine)
    }

    /// Returns the current figures of every stream that is registered, or was and has memory pending, in the order of
    /// their ids.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// let all = pool.statistics_by_stream();
    /// assert_eq!(all.iter().map(|figures| figures.stream).collect::<Vec<_>>(), [stream.id()]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_by_stream(&self) -> Vec<StreamStatistics> {
        let engine = &self.service().engine;
        let lanes = engine.streams.lanes();
        lanes
            .iter()
            .map(|lane| StreamStatistics::of(engine, lane))
            .collect()
    }

    /// Returns the number of freed blocks that are pending on a stream, in constant time: for a scheduler that asks
    /// often, where [`Stream::statistics`] would be too slow. 0 for a stream of another pool.
    ///
    /// A block that was used on several streams counts for each. Neighbours that became one piece count one by one; each
    /// reuse of a part of it takes one off, while any of it is pending. Blocks cached by the stream's lane count until all
    /// that was freed on the stream is known to be complete. Neither seals nor polls events; see [`reap`](Self::reap).
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
    /// assert_eq!(pool.pending_blocks(&stream), 2);
    /// device.block_on(stream.synchronize())?;
    /// pool.reap()?;
    /// assert_eq!(pool.pending_blocks(&stream), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pending_blocks(&self, stream: &Stream) -> usize {
        if !stream.is_of(&self.presence) {
            return 0;
        }
        let engine = &self.service().engine;
        figures::pending_blocks_on(&engine.store, &stream.registration().lane)
    }

    /// Returns the current figures of every tag that this pool has seen. See [`TagStatistics`] for an example.
    pub fn statistics_by_tag(&self) -> Vec<TagStatistics> {
        TagStatistics::of_all(self.service())
    }

    /// Begins a scope, which reports what happens in the pool from now on.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let weights = pool.try_allocate(&stream, 4 << 20)?;
    /// let request = pool.statistics_scope();
    /// let kept = pool.try_allocate(&stream, 1 << 20)?;
    /// let step = pool.statistics_scope();
    /// drop(pool.try_allocate(&stream, 2 << 20)?);
    /// assert_eq!((step.end().allocations, request.read().allocations), (1, 2));
    ///
    /// let before = request.before().used.current;
    /// let figures = request.end();
    /// assert_eq!((before, figures.used.high), (4 << 20, 7 << 20));
    /// assert_eq!(figures.retained(), kept.size());
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_scope(&self) -> StatisticsScope {
        StatisticsScope::new(self.presence.clone(), false)
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
    /// let scope = pool.exact_statistics_scope();
    /// drop(pool.try_allocate(&a, 2 << 20)?);
    /// drop(pool.try_allocate(&b, 1 << 20)?);
    /// assert_eq!(scope.end().used.high, 2 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exact_statistics_scope(&self) -> StatisticsScope {
        StatisticsScope::new(self.presence.clone(), true)
    }

    /// Sets all high-water marks, including those of streams and tags, to the current figures. Scopes keep
    /// their own.
    pub fn reset_high_water_marks(&self) {
        let service = self.service();
        for high in High::ALL {
            figures::reset_high(&service.engine.streams, &service.engine.store, high);
        }
        service.queue.accounts.reset_highs();
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
    /// let snapshot = pool.snapshot();
    /// let used: Vec<_> = snapshot.blocks_in(BlockState::Used).collect();
    /// assert_eq!((used[0].address, used[0].stream), (block.address(), Some(stream.id())));
    /// assert_eq!(snapshot.reserved(), pool.statistics().reserved.current);
    /// println!("{snapshot}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "memory_snapshot")]
    #[doc(alias = "_snapshot")]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.presence)
    }

    /// Returns the [observers](Observer) of the pool.
    pub fn observers(&self) -> impl Iterator<Item = &dyn Observer> {
        let observers = self.service().engine.store.announcer.observers();
        observers.iter().map(|observer| &**observer)
    }

    /// Closes the pool: waiting requests fail with [`AllocError::Closed`](crate::AllocError::Closed), and so does every
    /// later one. So do submissions, captures and launches of graphs. Live blocks stay valid, and are freed as ever;
    /// `weirpool_observe::leaks` lists them.
    pub fn close(&self) {
        let engine = &self.service().engine;
        if serving::close(self.service()) && engine.store.announcer.is_open() {
            tell_of_leaks(self);
        }
    }

    /// Returns whether the pool was [closed](Self::close).
    pub fn is_closed(&self) -> bool {
        self.service().engine.shared.is_closed()
    }

    /// Waits until everything has come back: no request waits, no block or reservation lives, and nothing is
    /// pending. All memory that the pool holds is free then, and no work of the device touches it.
    ///
    /// A drain ends nothing by itself: allocations are granted meanwhile, and it is ready at a moment at which all of
    /// them have come back. [Evictable](crate::Evictable) memory is evicted. Memory that others own is not
    /// awaited, be it in [adopted](crate::Stream::adopt) blocks or [charged](Self::charge): it is no memory of the heap,
    /// and its owner may keep it for ever.
    ///
    /// To end a service, [`close`](Self::close) the pool first:
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let work = device.create_stream();
    /// # let stream = pool.register(&work)?;
    /// let block = pool.try_allocate(&stream, 64 << 20)?;
    /// work.submit(Operation::new(Duration::from_micros(50)));
    /// drop(block); // pending behind that work
    ///
    /// pool.close(); // waiting requests fail; live blocks stay valid
    /// device.block_on(pool.drain().timeout(Duration::from_secs(1)))?;
    /// assert_eq!(device.now(), Duration::from_micros(50));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// During a drain no lane keeps freed memory: each free takes the heap's lock and records an event.
    pub fn drain(&self) -> Drain {
        Drain::new(self.service().clone(), self.presence.clone())
    }
}

/// Tells observers if blocks or reservations live.
#[cold]
fn tell_of_leaks(pool: &Pool) {
    let snapshot = pool.snapshot();
    let left = snapshot.reservations.iter().map(|left| left.left);
    let (blocks, reservations) = (
        snapshot.blocks_in(BlockState::Used).count(),
        snapshot.reservations.len(),
    );
    let bytes = snapshot.bytes_in(BlockState::Used) + left.sum::<u64>();
    if blocks + reservations > 0 {
        pool.service().engine.store.announcer.tell(|| Fact::Leaked {
            blocks,
            reservations,
            bytes,
            forgotten: false,
        });
    }
}
