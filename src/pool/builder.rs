//! The settings of a pool.

use super::{Pool, Tuning};
use crate::device::Device;
use crate::engine::{Announcer, Fill, Fills, Upstream};
use crate::error::BuildError;
use crate::heap::{ReleaseThreshold, Sealing};
use crate::measure::debug_in_units;
use crate::queue::{QueueLimit, Service, Tenant};
use crate::registry;
use crate::seam::{BoundedPool, CapacitySource, Observer, SegmentSource};
use crate::sync::plain;
use std::time::Duration;

/// Builds a [`Pool`]. Further settings are fields of [`Tuning`], and limits and weights of [tags](Pool::tag) belong to the
/// living pool.
///
/// ```
/// use std::time::Duration;
/// use weirpool::{Capacity, Pool, device::sim::SimDevice};
///
/// let device = SimDevice::builder().memory(10 << 30).build();
/// let pool = Pool::builder(device)
///     .name("frames")
///     .capacity(Capacity::Fraction(0.9))
///     .queue_limit(64)
///     .fail_deadlocks_after(Duration::from_millis(100))
///     .build()?;
/// assert_eq!(pool.capacity(), 9 << 30);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct PoolBuilder {
    device: plain::Arc<dyn Device>,
    name: Option<String>,
    pub(super) upstream: Upstream,
    pub(super) capacity: Capacity,
    pub(super) chunk_bytes: Option<u64>,
    pub(super) sealing: Sealing,
    pub(super) release_threshold: ReleaseThreshold,
    pub(super) queue_limit: QueueLimit,
    pub(super) sheds: bool,
    pub(super) fail_deadlocks_after: Option<Duration>,
    pub(super) fills: Fills,
    pub(super) tuning: Tuning,
    pub(super) segment_source: Option<plain::Arc<dyn SegmentSource>>,
    capacity_source: Option<plain::Arc<dyn CapacitySource>>,
    observers: Vec<plain::Arc<dyn Observer>>,
}

debug_in_units!(struct PoolBuilder { device, name, upstream, capacity, chunk_bytes as bytes, sealing, release_threshold, queue_limit, sheds, fail_deadlocks_after, fills, tuning, segment_source, capacity_source, observers });

/// The most bytes that a pool may reserve from its device. A number of bytes converts into it.
#[derive(Clone, Copy, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Capacity {
    /// All the memory of the device.
    #[default]
    Device,
    /// A number of bytes, or all the memory of the device if that is less.
    Bytes(u64),
    /// A fraction of the device's memory, more than 0 and up to 1.
    Fraction(f64),
}

debug_in_units!(enum Capacity { Device, Bytes(inner as bytes), Fraction(inner) });

impl From<u64> for Capacity {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

/// The moment at which a pool [fills](PoolBuilder::fill) blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillAt {
    /// Every block that is allocated is filled, completely, in the order of its stream, before the caller gets it.
    ///
    /// Each allocation then costs a device call, also from the stream's lane, and the stream the time to write the
    /// bytes. A further stream [comes after](crate::Stream::record_use) the fill; on the host that is an error until the
    /// fill was awaited. If the device cannot fill, the allocation fails with its error, and the block is freed. While
    /// a stream is captured into a graph, its blocks are not filled: the fill would be repeated at each launch.
    Allocation,
    /// Every block that is freed is filled, completely, after all work that used it: with [poison](Fill::Poison) to find
    /// uses after the free, or with [zeros](Fill::Zero) so that the next tenant finds nothing. See the
    /// [page on debugging](crate::guide::observability).
    ///
    /// Each free then costs a device call. The fill is work of the block's own stream, which is made to wait on the
    /// device for the work submitted so far to the block's further streams; where streams [hand-shake](Sealing), that
    /// may deadlock. (If the block's own stream takes no waits, the fill is work of a further stream that does.)
    ///
    /// A free cannot fail. If the device cannot fill, or the streams cannot be made to wait or are captured into a
    /// graph, the memory goes back as it is, and a subscriber of `tracing` is told. Where a tenant must never see
    /// another's bytes, fill [allocated](Self::Allocation) blocks as well. A block that was granted and never
    /// taken, because its future was dropped, is not filled: no caller had it.
    Free,
}

impl PoolBuilder {
    pub(super) fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            name: None,
            // Free chunks of virtual memory can be mapped together; plain memory fragments.
            upstream: Upstream::Virtual,
            // Memory is reserved when it is needed, so a pool that may take everything takes no more than it uses.
            capacity: Capacity::Device,
            // A choice by the capacity: see `settings`.
            chunk_bytes: None,
            // An event costs as much as several allocations: one for each 4 MiB, fewer where frees come close.
            sealing: Sealing::Spaced(4 << 20),
            // With CUDA's default of 0, an allocation, a free and a synchronization of 1 MiB take 85 µs on an H200
            // instead of 1.6 µs.
            release_threshold: ReleaseThreshold::Keep,
            queue_limit: QueueLimit::NONE,
            sheds: false,
            // A block may be held for long with good reason.
            fail_deadlocks_after: None,
            fills: Fills::default(),
            tuning: Tuning::default(),
            segment_source: None,
            capacity_source: None,
            observers: Vec::new(),
        }
    }

    /// Sets the pool's name, unique among the [living pools](Pool::all) of the process. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets where the memory comes from, and whether freed memory is kept at all. Default:
    /// [virtual memory](Upstream::Virtual).
    pub fn upstream(mut self, upstream: Upstream) -> Self {
        self.upstream = upstream;
        self
    }

    /// Takes the memory from a source of segments, such as a pool of the driver. Default: the device. See
    /// [the guide](crate::guide::segment_sources).
    ///
    /// Excludes an [`upstream`](Self::upstream). An [ordered](crate::extend::SegmentProperties::is_ordered) source also
    /// excludes settings of memory that the pool keeps: [`chunk_bytes`](Self::chunk_bytes), and of [`Tuning`]
    /// `initial_size`, `growth` and `coalesce`.
    #[doc(alias = "upstream")]
    pub fn segment_source(mut self, source: plain::Arc<dyn SegmentSource>) -> Self {
        self.segment_source = Some(source);
        self
    }

    /// Sets the most bytes that the pool may reserve from the device, as a number or a [`Capacity`]; rounded down to whole
    /// chunks. Default: all the memory of the device.
    pub fn capacity(mut self, capacity: impl Into<Capacity>) -> Self {
        self.capacity = capacity.into();
        self
    }

    /// Sets the size of chunks in bytes, a multiple of the device's step. Smaller chunks waste less memory and cost more
    /// device time, because each is mapped by itself. Default: 8 MiB, or less where the capacity is small.
    pub fn chunk_bytes(mut self, bytes: u64) -> Self {
        self.chunk_bytes = Some(bytes);
        self
    }

    /// Sets when the event of a free is recorded. Default: once 4 MiB were freed on a stream, or up to 32 MiB where frees
    /// come close to each other.
    pub fn sealing(mut self, sealing: Sealing) -> Self {
        self.sealing = sealing;
        self
    }

    /// Sets the reserved bytes above which the pool gives free memory back without being asked. Default: all is kept.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.release_threshold = threshold;
        self
    }

    /// Sets how many requests may wait at once, as a number or a [`QueueLimit`], which tags share by weight. Default: any
    /// number.
    pub fn queue_limit(mut self, limit: impl Into<QueueLimit>) -> Self {
        self.queue_limit = limit.into();
        self
    }

    /// Fails a request at once, with [`Shed`](crate::AllocError::Shed), when its expected wait exceeds its
    /// [timeout](crate::Request::timeout) or [deadline](crate::Request::deadline). Default: requests wait until their time
    /// is over.
    ///
    /// The wait is [estimated](crate::Inspect::expected_wait) as the request joins the queue, in time proportional to
    /// the number of waiters. A request that would be the only waiter is always admitted, which keeps the estimate
    /// current.
    pub fn load_shedding(mut self) -> Self {
        self.sheds = true;
        self
    }

    /// Sets how long nothing may change before the head of the queue fails with
    /// [`Deadlocked`](crate::AllocError::Deadlocked), so that the memory that its task holds can be freed; or the first
    /// request that waits for the limit of a tag, with [`DeadlockedAtLimit`](crate::AllocError::DeadlockedAtLimit).
    /// Default: never.
    ///
    /// Nothing changes while nothing is pending and no block is freed. After a tenth of the time, and at least 1 ms, every
    /// request that can be granted is, ahead of the queue's head; if none can, a subscriber of `tracing` is warned. By
    /// default that is after 10 ms. Where requests keep memory for long and wait in order nevertheless, set a long time. All
    /// times are on the device's clock. A long queue extends the first one by 1 ms for every 1,024 requests. Requests that
    /// wait for the limit of a tag are given the same times: see [`guide::services`](crate::guide::services).
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone())
    ///     .capacity(4 << 20)
    ///     .fail_deadlocks_after(Duration::from_millis(100))
    ///     .build()?;
    /// # let stream = pool.create_stream()?;
    /// let held = pool.try_allocate(&stream, 4 << 20)?;
    /// let error = device.block_on(pool.allocate(&stream, 4 << 20)).unwrap_err();
    /// assert!(matches!(error, AllocError::Deadlocked(_))); // it waited for itself
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fail_deadlocks_after(mut self, limit: Duration) -> Self {
        self.fail_deadlocks_after = Some(limit);
        self
    }

    /// Fills every block that is allocated, or that is freed. Called for both, it sets both. Default: memory keeps its
    /// contents.
    ///
    /// ```
    /// use weirpool::{Fill, FillAt, Pool, device::sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).fill(FillAt::Free, Fill::Zero).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// device.block_on(async {
    ///     let mut secret = pool.allocate(&stream, 4096).await?;
    ///     drop(secret.upload(&stream, 0, b"of one tenant")?);
    ///     drop(secret);
    ///     let next = pool.allocate(&stream, 4096).await?; // the same memory
    ///     assert_eq!(next.download(&stream, 0..13)?.await?, [0; 13]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill(mut self, at: FillAt, fill: Fill) -> Self {
        match at {
            FillAt::Allocation => self.fills.on_allocate = Some(fill),
            FillAt::Free => self.fills.on_free = Some(fill),
        }
        self
    }

    /// Changes settings that hardly ever need it; see [`Tuning`]: measure first.
    pub fn tuning(mut self, change: impl FnOnce(&mut Tuning)) -> Self {
        change(&mut self.tuning);
        self
    }

    /// Adds an observer, which is told what happens in the pool. Observers are told in the order in which they were added.
    /// Default: none, which costs nothing. See [the guide](crate::guide::observers).
    #[doc(alias = "_record_memory_history")]
    pub fn observer(mut self, observer: plain::Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Sets the source of the pool's capacity: the pool holds what the source lends to it. Default: none.
    ///
    /// A request that is short of capacity tells the source, and waits in the queue as for any memory.
    /// [`try_allocate`](Pool::try_allocate) fails, or waits for as long as the source makes it. A request above the most
    /// that the source ever lends fails at once.
    ///
    /// When the source takes memory back, free memory is released. Allocations from the caches of streams know nothing of
    /// it, unless the source needs memory that is in use. See [the guide](crate::guide::capacity_sources).
    ///
    /// With a [source of segments](Self::segment_source), the bound is on the segments that the pool has taken. The source
    /// of segments is [trimmed](crate::extend::SegmentSource::trim_to) to it when the bound is lowered or applied again, and
    /// after a caller has waited for a stream.
    ///
    /// Excludes [`Tuning::initial_size`], and memory that is not the device's alone.
    pub fn capacity_source(mut self, source: plain::Arc<dyn CapacitySource>) -> Self {
        self.capacity_source = Some(source);
        self
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// Returns a [`BuildError`] that names the setting that is out of range, the feature that the device lacks, or the
    /// name that is taken; or it is the error of the device or of the [source](Self::capacity_source).
    pub fn build(mut self) -> Result<Pool, BuildError> {
        if let Some(name) = &self.name {
            // Before the device is asked for anything. The name is reserved later, when the pool exists.
            registry::check_name(name)?;
        }
        let device = self.device.clone();
        let observers = std::mem::take(&mut self.observers);
        let announcer = plain::Arc::new(Announcer::new(device.clone(), observers));
        let mut settings = self.settings(&device, announcer)?;
        if let Some(source) = self.capacity_source.take() {
            settings.join(source, self.name.as_deref())?;
        }
        let lender = settings.lender.clone();
        let (others, rules) = (registry::OTHER_POOLS, self.rules());
        let pool = Service::new(device, settings, others, rules)
            .and_then(|service| Pool::new(service, self.name));
        if let (Err(_), Some(lender)) = (&pool, &lender) {
            lender.end();
        }
        let pool = pool?;
        if let Some(lender) = lender {
            let tenant = BoundedPool::new(Tenant::new(pool.service(), &lender));
            let started = lender.source.start(tenant);
            started.map_err(|error| BuildError::CapacitySource(error.into()))?;
        }
        Ok(pool)
    }
}
