//! What a pool is built with: every default stands here, with its reason.

use super::Pool;
use crate::device::Device;
use crate::driver::{CoalesceHeuristic, Fills, MaintenanceSettings, Settings, Upstream};
use crate::error::BuildError;
use crate::heap::policy::{Order, ReleaseThreshold, Reuse, Sealing, WaitLimit};
use crate::heap::{GRANULE, GrowBy, Remapping};
use crate::lane::Bounds;
use crate::measure::Tag;
use crate::queue::{Hook, Overtaking, PressureHook, QueueLimit, Rules, Service};
use crate::registry;
use crate::sync::plain;
use std::time::Duration;

/// A lane keeps blocks of up to 2 MiB: the sizes that are asked for most often, and too small for
/// their fragmentation to matter much.
const LARGEST_IN_LANE: u64 = 2 << 20;

/// A lane keeps 8 MiB: a stream's working set of small blocks, and less than a handle.
const LANE: u64 = 8 << 20;

/// And 64 MiB of larger ones: a request's largest buffer, or a few of a batch.
const LARGE_CACHE: u64 = 64 << 20;

/// Long against a batch of requests, after which memory is taken again; short against a person's patience.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(10);

/// Builds a [`Pool`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct PoolBuilder {
    pub(super) device: plain::Arc<dyn Device>,
    name: Option<String>,
    pub(super) upstream: Upstream,
    pub(super) is_pooled: bool,
    pub(super) capacity: Option<u64>,
    pub(super) initial: u64,
    pub(super) growth: GrowBy,
    pub(super) handle: Option<u64>,
    pub(super) alignment: u64,
    lane: u64,
    large_cache: u64,
    is_sharded: bool,
    order: Order,
    reuse: Reuse,
    sealing: Sealing,
    wait_limit: WaitLimit,
    remapping: Remapping,
    release_threshold: ReleaseThreshold,
    pub(super) heuristic: Option<CoalesceHeuristic>,
    maintenance_interval: Duration,
    pub(super) fills: Fills,
    history: usize,
    rules: Rules,
    hook: Option<Hook>,
    tag_limits: Vec<(Tag, u64)>,
    tag_weights: Vec<(Tag, u32)>,
}

impl PoolBuilder {
    pub(super) fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            name: None,
            upstream: Upstream::default(),
            is_pooled: true,
            capacity: None,
            initial: 0,
            growth: GrowBy::default(),
            handle: None,
            alignment: GRANULE,
            lane: LANE,
            large_cache: LARGE_CACHE,
            is_sharded: false,
            order: Order::default(),
            reuse: Reuse::default(),
            sealing: Sealing::default(),
            wait_limit: WaitLimit::default(),
            remapping: Remapping::default(),
            release_threshold: ReleaseThreshold::default(),
            heuristic: None,
            maintenance_interval: MAINTENANCE_INTERVAL,
            fills: Fills::default(),
            history: 0,
            rules: Rules::default(),
            hook: None,
            tag_limits: Vec::new(),
            tag_weights: Vec::new(),
        }
    }

    /// A name of the pool's own among the living pools of the process, by which
    /// [`find_pool`](crate::compat::find_pool) finds it. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where the memory comes from. Default: [virtual memory](Upstream::Virtual) of the device.
    pub fn upstream(mut self, upstream: Upstream) -> Self {
        self.upstream = upstream;
        self
    }

    /// Keeps no freed memory: the pool has no caches and a release threshold of 0, and every block is a segment of plain
    /// memory. Default: freed memory is kept.
    ///
    /// Complete memory goes back to the device at the next [maintenance](Self::maintenance_interval). Until then it can
    /// be granted again. Stream order, waiting and errors are those of any pool. A block takes whole steps of the
    /// device. This is for tools that watch the device's own allocations, and to measure the benefit of pooling.
    pub fn unpooled(mut self) -> Self {
        self.is_pooled = false;
        self
    }

    /// What the pool may hold from the device at most, in bytes; rounded down to whole handles. Default:
    /// all the memory that the device has.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// What the pool takes from the device when it is built, in bytes. Default: nothing.
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.initial = bytes;
        self
    }

    /// How much the pool takes from the device at a time. Default: what the request needs.
    pub fn growth(mut self, growth: GrowBy) -> Self {
        self.growth = growth;
        self
    }

    /// Aligns every block to `bytes`: a power of two, up to the device's step. Sizes are rounded up to it as
    /// well, so that a block that is freed can be any other. Default, and least: 512 bytes.
    ///
    /// One allocation can ask for more with [`Allocate::alignment`](crate::Allocate::alignment).
    pub fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = bytes;
        self
    }

    /// The size of physical handles, in bytes: a multiple of the device's step. Default: 8 MiB, less
    /// where the capacity is small.
    ///
    /// Smaller handles waste less memory and cost more device time: each is mapped by itself.
    pub fn chunk_bytes(mut self, bytes: u64) -> Self {
        self.handle = Some(bytes);
        self
    }

    /// How many bytes each stream's lane may keep for that stream, in blocks of up to 2 MiB. Default: 8 MiB. With 0
    /// every free goes to the heap: less fragmentation, slower.
    ///
    /// Such a block is given to a request of its size; or to one that is smaller by an eighth at most, if that finds none
    /// of its own and has no [tag](crate::Allocate::tag). Threads that have [caches of their own](Self::per_thread_caches) get
    /// what is of the size.
    pub fn lane_bytes(mut self, bytes: u64) -> Self {
        self.lane = bytes;
        self
    }

    /// How many bytes it may keep in larger blocks: up to 4 of them, each for a request of exactly its size. Default:
    /// 64 MiB; with 0, or where the [lane](Self::lane_bytes) keeps nothing, there are none.
    ///
    /// That begins once the stream has taken turns: taken what it freed last, several times in a row, and no other size
    /// meanwhile. Such a block is its stream's for 200 us, while the pool may still grow; after that, and at once where
    /// it may not, it is whoever's needs it. Where memory is given back unasked (a release threshold, a heuristic), or
    /// [waiting](Order::WaitFirst) comes before growing, nothing is kept so. The event behind it is recorded by the
    /// stream's next free, or allocation of another size, or when somebody asks.
    pub fn lane_large_bytes(mut self, bytes: u64) -> Self {
        self.large_cache = bytes;
        self
    }

    /// Gives each thread that uses a stream a cache of its own from the start, within the stream's
    /// [lane](Self::lane_bytes): for streams that many threads submit to. By default they get them once threads have
    /// met at a stream's lane several times.
    ///
    /// Each of up to 16 keeps up to a quarter of what the lane does. What one thread frees, another finds once the
    /// first keeps that much, or somebody looks for memory beyond the lanes. The highest that a stream's used bytes
    /// were is then what was seen of it, by whoever asked.
    pub fn per_thread_caches(mut self) -> Self {
        self.is_sharded = true;
        self
    }

    /// Whether to grow or to make a stream wait first, when free memory does not do.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Which memory may be reused for a stream.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// When the event of a free is recorded. Default: once 4 MiB were freed on a stream, or up to 32 MiB where
    /// frees come close to each other.
    pub fn sealing(mut self, sealing: Sealing) -> Self {
        self.sealing = sealing;
        self
    }

    /// How far a wait on the device may set a stream back.
    pub fn wait_limit(mut self, limit: WaitLimit) -> Self {
        self.wait_limit = limit;
        self
    }

    /// How much of the time goes into mapping free memory elsewhere, rather than taking more. Default: an eighth of it.
    /// The traces of `replay` stay far below that at their own pace; who allocates every few hundred nanoseconds would
    /// wait for the driver most of the time. [`Remapping`] has an example.
    ///
    /// A share is more than 0, and 1 at most: otherwise building fails with
    /// [`InvalidShare`](BuildError::InvalidShare).
    pub fn remapping(mut self, remapping: Remapping) -> Self {
        self.remapping = remapping;
        self
    }

    /// How much the pool may hold before it gives free memory back by itself. Default: it keeps all.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.release_threshold = threshold;
        self
    }

    /// When free memory is made one piece by itself. Default: when a request needs it, and no more of it.
    pub fn coalesce(mut self, heuristic: CoalesceHeuristic) -> Self {
        self.heuristic = Some(heuristic);
        self
    }

    /// How long after memory came back the pool releases and coalesces, where the two settings above ask
    /// for it; what was used in between is not released. Default: 10 ms, on the device's clock; less than
    /// 0.1 ms counts as that.
    pub fn maintenance_interval(mut self, interval: Duration) -> Self {
        self.maintenance_interval = interval;
        self
    }

    /// Keeps a history: the last so many things that happened, and of each live block where, when and for
    /// whom it was allocated. See [`Pool::history`](crate::Pool::history). Default: 0, none, and then
    /// nothing is paid for it.
    ///
    /// Each allocation and each free then takes the heap's lock and one that all share: for finding out, and
    /// not for every day. An entry takes some 200 bytes.
    #[doc(alias = "_record_memory_history")]
    pub fn history(mut self, entries: usize) -> Self {
        self.history = entries;
        self
    }

    /// How many bytes a tag may have of the pool at once. Default: any number. See
    /// [`Pool::set_tag_limit`].
    pub fn tag_limit(mut self, tag: Tag, bytes: u64) -> Self {
        self.tag_limits.push((tag, bytes));
        self
    }

    /// The weight of a tag in the queue. Default: none, which is first come, first served. See
    /// [`Pool::set_tag_weight`].
    pub fn tag_weight(mut self, tag: Tag, weight: u32) -> Self {
        self.tag_weights.push((tag, weight));
        self
    }

    /// When a request that waits and has no [deadline](crate::Allocate::deadline) is due, after it came: in
    /// the queue it stands as if that were its deadline. Default: 1 s.
    pub fn due_after(mut self, wait: Duration) -> Self {
        self.rules.due_after = wait;
        self
    }

    /// How much earlier a request is due for each step of its [priority](crate::Allocate::priority).
    /// Default: 1 s. With zero, priorities count for nothing.
    pub fn priority_step(mut self, step: Duration) -> Self {
        self.rules.priority_step = step;
        self
    }

    /// How often those who wait may be passed by others for whom there is memory. Default: never.
    pub fn overtaking(mut self, bound: Overtaking) -> Self {
        self.rules.overtaking = bound;
        self
    }

    /// How long nothing may move before a queue that cannot be served counts as knotted: nothing is pending,
    /// and no block is freed. Then whoever can be served is, ahead of the queue's head; and if nobody can,
    /// that is told as a warning to a subscriber of `tracing`. Default: 10 ms, on the device's clock.
    ///
    /// The same grace is given to the requests of a tag that wait for its [limit](Pool::set_tag_limit): see
    /// [`guide::services`](crate::guide::services#deadlocks).
    pub fn deadlock_grace(mut self, grace: Duration) -> Self {
        self.rules.deadlock_grace = grace;
        self
    }

    /// How long a deadlock lasts before the head of the queue fails with
    /// [`Deadlocked`](crate::AllocError::Deadlocked), so that what its task holds can come free; or the first of those
    /// who wait for the limit of a tag, with [`DeadlockedAtLimit`](crate::AllocError::DeadlockedAtLimit). Default: for
    /// ever, since a block may be held for long with good reason.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone())
    ///     .capacity(4 << 20)
    ///     .fail_knots_after(Duration::from_millis(100))
    ///     .build()?;
    /// # let stream = pool.create_stream()?;
    /// let held = pool.try_allocate(&stream, 4 << 20)?;
    /// let error = device.block_on(pool.allocate(&stream, 4 << 20)).unwrap_err();
    /// assert!(matches!(error, AllocError::Knotted(_))); // it waited for itself
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fail_deadlocks_after(mut self, limit: Duration) -> Self {
        self.rules.deadlock_limit = Some(limit);
        self
    }

    /// How many requests may wait at once, as a number or a [`QueueLimit`]. Default: any number. See
    /// [`Pool::set_queue_limit`].
    pub fn queue_limit(mut self, limit: impl Into<QueueLimit>) -> Self {
        self.rules.queue_limit = limit.into();
        self
    }

    /// Has a request fail at once, with [`Shed`](crate::AllocError::Shed), that would probably wait for longer
    /// than its [timeout](crate::Allocate::timeout) or [deadline](crate::Allocate::deadline), rather than have
    /// it wait in vain. Default: it waits until its time is over.
    ///
    /// What it would wait is [estimated](Pool::expected_wait), and whoever would be the only one who waits is
    /// not turned away: so the estimate stays one of this hour. It is made as a request joins the queue, in time
    /// in proportion to those who wait.
    pub fn load_shedding(mut self) -> Self {
        self.rules.sheds = true;
        self
    }

    /// Whom to ask to free something when a request must wait. Default: nobody.
    #[doc(alias = "failure_callback_resource_adaptor")]
    pub fn pressure_hook(mut self, hook: impl PressureHook + 'static) -> Self {
        self.hook = Some(Hook(plain::Arc::new(hook)));
        self
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// When a setting is out of range, which the error names; when the device lacks what nothing can stand
    /// for, or cannot give what is needed; when the name is taken.
    pub fn build(self) -> Result<Pool, BuildError> {
        if let Some(name) = &self.name {
            // Before the device is asked for anything; what counts is the entering.
            registry::check_name(name)?;
        }
        let settings = self.settings()?;
        let (spill, hook) = (registry::spill, self.hook);
        let service = Service::new(self.device, settings, spill, self.rules, hook)?;
        let pool = Pool::new(service, self.name)?;
        for (tag, bytes) in self.tag_limits {
            pool.set_tag_limit(tag, Some(bytes));
        }
        for (tag, weight) in self.tag_weights {
            pool.set_tag_weight(tag, weight);
        }
        Ok(pool)
    }

    fn settings(&self) -> Result<Settings, BuildError> {
        self.check_conflicts()?;
        check_remapping(self.remapping)?;
        let capabilities = self.device.capabilities();
        let source = self.source(&capabilities)?;
        let total = self.device.memory_info(source.kind)?.total;
        Ok(Settings {
            geometry: self.geometry(&capabilities, source, total)?,
            upstream: self.upstream,
            kind: source.kind,
            is_pooled: self.is_pooled,
            alignment: self.alignment_within(capabilities.granularity)?,
            initial: self.initial,
            lane: self.lane_bounds(),
            order: self.order,
            reuse: self.reuse,
            wait_limit: self.wait_limit,
            remapping: self.remapping,
            maintenance: self.maintenance(total)?,
            fills: self.fills,
            history: self.history,
        })
    }

    fn maintenance(&self, total: u64) -> Result<MaintenanceSettings, BuildError> {
        check_threshold(self.release_threshold)?;
        Ok(MaintenanceSettings {
            threshold: match self.is_pooled {
                true => self.release_threshold.bytes(total),
                false => 0,
            },
            heuristic: self.heuristic.clone(),
            interval: self.maintenance_interval,
        })
    }

    fn lane_bounds(&self) -> Bounds {
        if !self.is_pooled {
            // Each free is to be seen complete by itself.
            return Bounds {
                bytes: 0,
                largest: 0,
                large_cache: 0,
                unsealed: 0,
                may_widen: false,
                is_sharded: false,
            };
        }
        Bounds {
            bytes: self.lane,
            largest: LARGEST_IN_LANE.min(self.lane) / GRANULE * GRANULE,
            large_cache: match self.sealing {
                // Each free is to be seen complete by itself.
                Sealing::EveryFree => 0,
                _ if self.lane == 0 => 0,
                _ => self.large_cache,
            },
            unsealed: self.sealing.bound(),
            may_widen: matches!(self.sealing, Sealing::Spaced(_)),
            is_sharded: self.is_sharded,
        }
    }
}

/// # Errors
/// When it is none.
pub(super) fn check_threshold(threshold: ReleaseThreshold) -> Result<(), BuildError> {
    match threshold {
        ReleaseThreshold::Fraction(fraction) if !threshold.is_valid() => {
            Err(BuildError::InvalidFraction { fraction })
        }
        _ => Ok(()),
    }
}

/// # Errors
/// When it is no share.
fn check_remapping(remapping: Remapping) -> Result<(), BuildError> {
    match remapping {
        Remapping::Share(share) if !remapping.is_valid() => Err(BuildError::InvalidShare { share }),
        _ => Ok(()),
    }
}
