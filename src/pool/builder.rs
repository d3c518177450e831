//! The builder of a pool: sets the fields of a [`PoolConfig`] one by one.

use super::Pool;
use super::config::{Capacity, PoolConfig};
use crate::device::Device;
use crate::engine::{Announcer, CoalesceHeuristic, Fill, Upstream};
use crate::error::BuildError;
use crate::heap::{GrowBy, Order, ReleaseThreshold, Remapping, Reuse, Sealing, WaitLimit};
use crate::measure::Tag;
use crate::queue::{Overtaking, QueueLimit, Service, Tenant};
use crate::registry;
use crate::seam::{BoundedPool, CapacitySource, Observer, SegmentSource};
use crate::sync::plain;
use std::time::Duration;

/// Builds a [`Pool`].
///
/// Each setting is a field of [`PoolConfig`], where it is described; [`PoolConfig::default`] has the defaults.
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct PoolBuilder {
    device: plain::Arc<dyn Device>,
    config: PoolConfig,
    segment_source: Option<plain::Arc<dyn SegmentSource>>,
    capacity_source: Option<plain::Arc<dyn CapacitySource>>,
    observers: Vec<plain::Arc<dyn Observer>>,
}

impl PoolBuilder {
    /// Begins a pool over a device that is shared already. [`Pool::builder`] takes a device of any type.
    pub fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            config: PoolConfig::default(),
            segment_source: None,
            capacity_source: None,
            observers: Vec::new(),
        }
    }

    /// Replaces all settings, but for the sources of [segments](Self::segment_source) and of
    /// [capacity](Self::capacity_source), and [observers](Self::observer).
    pub fn config(mut self, config: PoolConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the pool's [name](PoolConfig::name). Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = Some(name.into());
        self
    }

    /// Sets the [source](PoolConfig::upstream) of the memory. Default: [virtual memory](Upstream::Virtual).
    pub fn upstream(mut self, upstream: Upstream) -> Self {
        self.config.upstream = upstream;
        self
    }

    /// Takes the memory from a source of segments, such as a pool of the driver. Default: the device. See
    /// [the guide](crate::guide::segment_sources).
    ///
    /// Excludes an [`upstream`](Self::upstream). An [ordered](crate::extend::SegmentProperties::is_ordered) source also
    /// excludes settings of memory that the pool keeps: [`initial_size`](Self::initial_size), [`growth`](Self::growth),
    /// [`chunk_bytes`](Self::chunk_bytes) and [`coalesce`](Self::coalesce).
    #[doc(alias = "upstream")]
    pub fn segment_source(mut self, source: plain::Arc<dyn SegmentSource>) -> Self {
        self.segment_source = Some(source);
        self
    }

    /// Keeps no freed memory; see [`PoolConfig::is_pooled`]. Default: freed memory is kept.
    pub fn unpooled(mut self) -> Self {
        self.config.is_pooled = false;
        self
    }

    /// Sets the [capacity](PoolConfig::capacity) in bytes; rounded down to whole chunks. Default: all the memory of
    /// the device.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.config.capacity = Capacity::Bytes(bytes);
        self
    }

    /// Sets the [capacity](PoolConfig::capacity) as a fraction of the device's memory, more than 0 and up to 1.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// let device = SimDevice::builder().memory(10 << 30).build();
    /// let pool = Pool::builder(device).capacity_fraction(0.9).build()?;
    /// assert_eq!(pool.capacity(), 9 << 30);
    /// # Ok::<(), weirpool::BuildError>(())
    /// ```
    pub fn capacity_fraction(mut self, fraction: f64) -> Self {
        self.config.capacity = Capacity::Fraction(fraction);
        self
    }

    /// Sets the bytes that the pool reserves when it is [built](PoolConfig::initial_size). Default: 0.
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.config.initial_size = bytes;
        self
    }

    /// Sets how much the pool reserves [at a time](PoolConfig::growth). Default: what the request needs.
    pub fn growth(mut self, growth: GrowBy) -> Self {
        self.config.growth = growth;
        self
    }

    /// Sets the [alignment](PoolConfig::alignment) of every block, in bytes. Default, and minimum: 512.
    pub fn alignment(mut self, bytes: u64) -> Self {
        self.config.alignment = bytes;
        self
    }

    /// Sets the size of [chunks](PoolConfig::chunk_bytes), in bytes. Default: 8 MiB, or less where the capacity is
    /// small.
    pub fn chunk_bytes(mut self, bytes: u64) -> Self {
        self.config.chunk_bytes = Some(bytes);
        self
    }

    /// Sets the bytes that each [lane](PoolConfig::lane_bytes) keeps in small blocks. Default: 8 MiB.
    pub fn lane_bytes(mut self, bytes: u64) -> Self {
        self.config.lane_bytes = bytes;
        self
    }

    /// Sets the bytes that each lane keeps in [larger blocks](PoolConfig::lane_large_bytes). Default: 64 MiB.
    pub fn lane_large_bytes(mut self, bytes: u64) -> Self {
        self.config.lane_large_bytes = bytes;
        self
    }

    /// Gives each thread that uses a stream a [cache of its own](PoolConfig::per_thread_caches) from the start.
    /// Default: once threads have met at the stream's lane several times.
    pub fn per_thread_caches(mut self) -> Self {
        self.config.per_thread_caches = true;
        self
    }

    /// Sets whether to grow or to wait [first](PoolConfig::order). Default: [grow](Order::GrowFirst).
    pub fn order(mut self, order: Order) -> Self {
        self.config.order = order;
        self
    }

    /// Sets which memory [may be reused](PoolConfig::reuse) for a stream. Default: [all](Reuse::ALL).
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.config.reuse = reuse;
        self
    }

    /// Sets when the event of a free is [recorded](PoolConfig::sealing). Default: once 4 MiB were freed on a stream,
    /// or up to 32 MiB where frees come close to each other.
    pub fn sealing(mut self, sealing: Sealing) -> Self {
        self.config.sealing = sealing;
        self
    }

    /// Sets how far a wait on the device may [delay](PoolConfig::wait_limit) a stream. Default:
    /// [hardly ever](WaitLimit::Tail).
    pub fn wait_limit(mut self, limit: WaitLimit) -> Self {
        self.config.wait_limit = limit;
        self
    }

    /// Sets the share of time for [remapping](PoolConfig::remapping). Default: an eighth.
    pub fn remapping(mut self, remapping: Remapping) -> Self {
        self.config.remapping = remapping;
        self
    }

    /// Sets the bytes above which free memory is [given back](PoolConfig::release_threshold). Default: all is kept.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.config.release_threshold = threshold;
        self
    }

    /// Sets when free memory is [made one piece](PoolConfig::coalesce). Default: when a request needs it.
    pub fn coalesce(mut self, heuristic: CoalesceHeuristic) -> Self {
        self.config.coalesce = Some(heuristic);
        self
    }

    /// Sets the interval of [maintenance](PoolConfig::maintenance_interval). Default: 10 ms.
    pub fn maintenance_interval(mut self, interval: Duration) -> Self {
        self.config.maintenance_interval = interval;
        self
    }

    /// Fills every block that is [allocated](PoolConfig::fill_on_allocate). Default: memory keeps its earlier contents.
    ///
    /// ```
    /// use weirpool::{Fill, Pool, device::sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).fill_on_allocate(Fill::Zero).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// device.block_on(async {
    ///     let block = pool.allocate(&stream, 4096).await?;
    ///     assert_eq!(block.download(&stream, 0..4096)?.await?, [0; 4096]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill_on_allocate(mut self, fill: Fill) -> Self {
        self.config.fill_on_allocate = Some(fill);
        self
    }

    /// Fills every block that is [freed](PoolConfig::fill_on_free). Default: memory keeps its contents.
    ///
    /// ```
    /// use weirpool::{Fill, Pool, device::sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).fill_on_free(Fill::Zero).build()?;
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
    pub fn fill_on_free(mut self, fill: Fill) -> Self {
        self.config.fill_on_free = Some(fill);
        self
    }

    /// Adds an observer, which is told what happens in the pool. Observers are told in the order in which they were added.
    /// Default: none, which costs nothing. See [the guide](crate::guide::observers).
    #[doc(alias = "_record_memory_history")]
    pub fn observer(mut self, observer: plain::Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Sets the most bytes that a tag may hold [at once](crate::TagAccount::set_limit). Default: any number.
    pub fn tag_limit(mut self, tag: Tag, bytes: u64) -> Self {
        self.config.tags.entry(tag).or_default().limit = Some(bytes);
        self
    }

    /// Sets the weight of a tag [in the queue](crate::TagAccount::set_weight). Default: none, which is first come,
    /// first served.
    pub fn tag_weight(mut self, tag: Tag, weight: u32) -> Self {
        self.config.tags.entry(tag).or_default().weight = weight;
        self
    }

    /// Sets when a request without a deadline [is due](PoolConfig::due_after), after it came. Default: 1 s.
    pub fn due_after(mut self, wait: Duration) -> Self {
        self.config.due_after = wait;
        self
    }

    /// Sets the [step](PoolConfig::priority_step) of priorities. Default: 1 s.
    pub fn priority_step(mut self, step: Duration) -> Self {
        self.config.priority_step = step;
        self
    }

    /// Sets how often a waiting request may be [overtaken](PoolConfig::overtaking). Default: never.
    pub fn overtaking(mut self, bound: Overtaking) -> Self {
        self.config.overtaking = bound;
        self
    }

    /// Sets how long nothing may change before a queue counts as [deadlocked](PoolConfig::deadlock_grace). Default:
    /// 10 ms.
    pub fn deadlock_grace(mut self, grace: Duration) -> Self {
        self.config.deadlock_grace = grace;
        self
    }

    /// Sets how long a deadlock lasts before a request [fails](PoolConfig::fail_deadlocks_after). Default: for ever.
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
        self.config.fail_deadlocks_after = Some(limit);
        self
    }

    /// Sets how many requests may [wait at once](PoolConfig::queue_limit), as a number or a [`QueueLimit`]. Default:
    /// any number.
    pub fn queue_limit(mut self, limit: impl Into<QueueLimit>) -> Self {
        self.config.queue_limit = limit.into();
        self
    }

    /// Refuses requests that would probably [wait too long](PoolConfig::load_shedding). Default: they wait until their
    /// time is over.
    pub fn load_shedding(mut self) -> Self {
        self.config.load_shedding = true;
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
    /// With a [source of segments](Self::segment_source), the bound is on the segments that the pool has taken. When the
    /// source of the capacity applies a bound, the source of segments is
    /// [trimmed](crate::extend::SegmentSource::trim_to) to it.
    ///
    /// Excludes [`initial_size`](Self::initial_size), and memory that is not the device's alone.
    pub fn capacity_source(mut self, source: plain::Arc<dyn CapacitySource>) -> Self {
        self.capacity_source = Some(source);
        self
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// Returns a [`BuildError`] that names the setting that is out of range, the feature that the device lacks, or the
    /// name that is taken; or it is the error of the device or of the [source](Self::capacity_source).
    pub fn build(self) -> Result<Pool, BuildError> {
        let Self {
            device,
            config,
            segment_source,
            capacity_source,
            observers,
        } = self;
        if let Some(name) = &config.name {
            // Before the device is asked for anything. The name is reserved later, when the pool exists.
            registry::check_name(name)?;
        }
        let announcer = plain::Arc::new(Announcer::new(device.clone(), observers));
        let mut settings = config.settings(&device, segment_source, announcer)?;
        if let Some(source) = capacity_source {
            settings.join(source, config.name.as_deref())?;
        }
        let lender = settings.lender.clone();
        let (others, rules) = (registry::OTHER_POOLS, config.rules());
        let pool = Service::new(device, settings, others, rules)
            .and_then(|service| Pool::new(service, config.name));
        if let (Err(_), Some(lender)) = (&pool, &lender) {
            lender.end();
        }
        let pool = pool?;
        if let Some(lender) = lender {
            let tenant = BoundedPool::new(Tenant::new(pool.service(), &lender));
            let started = lender.source.start(tenant);
            started.map_err(|error| BuildError::CapacitySource(error.into()))?;
        }
        for (tag, config) in config.tags {
            let account = pool.tag(tag);
            if config.limit.is_some() {
                account.set_limit(config.limit);
            }
            account.set_weight(config.weight);
        }
        Ok(pool)
    }
}
