//! What an operator of a pool does, and few programs need.

use super::Pool;
use super::settings::check_threshold;
use crate::device::{DeviceError, DeviceErrorKind, PoolAttribute};
use crate::engine::{access, figures, maintenance, reaping};
use crate::error::BuildError;
use crate::heap::{High, ReleaseThreshold, Reuse};
use crate::queue::{QueueLimit, Reclaimer, serving};

/// The maintenance of a pool, from [`Pool::maintain`]: what the pool does on its own in time, at once; and the settings that
/// can change while it is in use.
#[derive(Clone, Copy, Debug)]
pub struct Maintain<'a> {
    pool: &'a Pool,
}

impl Pool {
    /// Returns the maintenance of the pool.
    pub fn maintain(&self) -> Maintain<'_> {
        Maintain { pool: self }
    }
}

impl Maintain<'_> {
    /// Polls the device for completed events, frees the memory that they prove free, and serves waiting requests.
    /// Returns whether any event had completed.
    ///
    /// # Errors
    /// Returns the device's error, if it cannot tell.
    pub fn reap(self) -> Result<bool, DeviceError> {
        let has_news = reaping::reap(&self.pool.service().engine)?;
        access::settle_access(&self.pool.service().engine);
        serving::serve(self.pool.service());
        Ok(has_news)
    }

    /// Returns a reclaimer to spawn on an executor of the caller's; see [`Reclaimer`] for when that is of use.
    pub fn reclaimer(self) -> Reclaimer {
        Reclaimer::new(self.pool.service(), true)
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
    /// assert_eq!(pool.maintain().coalesce()?, 4 * (2 << 20));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the device's error; no memory is lost.
    pub fn coalesce(self) -> Result<u64, DeviceError> {
        maintenance::coalesce(&self.pool.service().engine)
    }

    /// Evicts the least recently used [evictable](crate::Evictable) memory, until that many bytes are evicted or no
    /// more is evictable. Returns the bytes that were. For a service that shrinks its caches before they are in the
    /// way.
    pub fn evict(self, bytes: u64) -> u64 {
        self.pool
            .service()
            .engine
            .store
            .evictables
            .evict(bytes, None)
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
    /// pool.maintain().set_queue_limit(0); // from now on no request may begin to wait
    /// let refused = device.block_on(pool.allocate(&stream, 4096));
    /// assert!(matches!(refused, Err(AllocError::QueueFull(full)) if full.waiting == 0));
    /// pool.maintain().set_queue_limit(QueueLimit::bytes(1 << 30));
    /// # drop(all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_queue_limit(self, limit: impl Into<QueueLimit>) {
        let limit = limit.into();
        self.pool.service().queue.lock().queue.set_limit(limit);
    }

    /// Sets the number of reserved bytes above which the pool gives free memory back without being asked: at the next
    /// [synchronization](crate::Stream::synchronize), or some time after it was freed.
    ///
    /// # Errors
    /// Returns [`BuildError::InvalidFraction`], or the device's error if it cannot tell how much memory it has.
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    #[doc(alias = "set_mempool_release_threshold")]
    pub fn set_release_threshold(self, threshold: ReleaseThreshold) -> Result<(), BuildError> {
        check_threshold(threshold)?;
        let engine = &self.pool.service().engine;
        let total = engine
            .shared
            .device
            .memory_info(engine.shared.settings.kind)?
            .total;
        maintenance::set_release_threshold(engine, threshold.bytes(total));
        Ok(())
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
    /// let before = pool.maintain().set_reuse(Reuse { internal_dependencies: true, ..Reuse::NONE });
    /// assert_eq!(before, Reuse::NONE);
    /// assert_eq!(pool.try_allocate(&second, 32 << 20)?.source(), Source::DeviceWait);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "cudaMemPoolReuseFollowEventDependencies")]
    #[doc(alias = "cudaMemPoolReuseAllowOpportunistic")]
    #[doc(alias = "cudaMemPoolReuseAllowInternalDependencies")]
    pub fn set_reuse(self, reuse: Reuse) -> Reuse {
        self.change_reuse(|present| *present = reuse)
    }

    /// Sets an attribute: a reuse flag to 0 or, with any other value, to 1; a figure in bytes; or `UsedMemHigh` to the
    /// current figure, for which `value` is 0. That also resets the marks of the streams, from which it is computed.
    ///
    /// `ReservedMemCurrent` makes memory calls, which may take a while. It releases memory as
    /// [`Pool::trim_to`] does, and takes memory if the pool then has less. `ReservedMemHigh` sets a soft cap,
    /// which the pool may exceed; 0 removes it.
    ///
    /// # Errors
    /// Returns an error for `UsedMemCurrent`, for `UsedMemHigh` with a value other than 0, and the device's error.
    pub fn set_attribute(self, attribute: PoolAttribute, value: u64) -> Result<(), DeviceError> {
        let engine = &self.pool.service().engine;
        let flag = value != 0;
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => {
                self.change_reuse(|reuse| reuse.follow_event_dependencies = flag);
            }
            PoolAttribute::ReuseAllowOpportunistic => {
                self.change_reuse(|reuse| reuse.opportunistic = flag);
            }
            PoolAttribute::ReuseAllowInternalDependencies => {
                self.change_reuse(|reuse| reuse.internal_dependencies = flag);
            }
            PoolAttribute::ReleaseThreshold => maintenance::set_release_threshold(engine, value),
            PoolAttribute::ReservedMemCurrent => maintenance::set_reserved(engine, value)?,
            PoolAttribute::ReservedMemHigh => {
                figures::reset_high(&engine.streams, &engine.store, High::Reserved);
                maintenance::set_soft_cap(engine, if value == 0 { u64::MAX } else { value });
            }
            PoolAttribute::UsedMemHigh if value == 0 => {
                figures::reset_high(&engine.streams, &engine.store, High::Used)
            }
            PoolAttribute::UsedMemHigh | PoolAttribute::UsedMemCurrent => {
                let reason = "it is a figure of live blocks: free blocks to lower it, and set a high-water mark to 0";
                let kind = DeviceErrorKind::InvalidArgument;
                return Err(DeviceError::new("set_attribute", kind, reason));
            }
        }
        Ok(())
    }

    fn change_reuse(self, change: impl Fn(&mut Reuse)) -> Reuse {
        let service = self.pool.service();
        let before = service.engine.shared.change_reuse(change);
        serving::apply_terms(service);
        before
    }
}
