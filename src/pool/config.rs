//! The configuration of a pool: plain data, with every default and its reason in [`PoolConfig::default`].

use crate::engine::{CoalesceHeuristic, Fill, Upstream};
use crate::heap::{GRANULE, GrowBy, Order, ReleaseThreshold, Remapping, Reuse, Sealing, WaitLimit};
use crate::measure::{Tag, debug_in_units};
use crate::queue::{Overtaking, QueueLimit};
use std::collections::BTreeMap;
use std::time::Duration;

/// The configuration of a pool, as plain data: what a [`PoolBuilder`](crate::PoolBuilder) sets, field by field.
///
/// Everything is set here but [observers](crate::PoolBuilder::observer) and the sources of
/// [segments](crate::PoolBuilder::segment_source) and of [capacity](crate::PoolBuilder::capacity_source), which are code.
/// With the feature `serde` a configuration can be read from a file; fields that are left out have their defaults.
/// Construct one with `..PoolConfig::default()`: new fields may be added in a minor release.
///
/// ```
/// use weirpool::{Capacity, Pool, PoolConfig, Sealing, device::sim::SimDevice};
///
/// let config = PoolConfig {
///     capacity: Capacity::Fraction(0.9),
///     sealing: Sealing::EveryFree,
///     ..PoolConfig::default()
/// };
/// let device = SimDevice::builder().memory(10 << 30).build();
/// let pool = Pool::with_config(device, config)?;
/// assert_eq!(pool.capacity(), 9 << 30);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct PoolConfig {
    /// The pool's name, unique among the [living pools](crate::Pool::all) of the process.
    pub name: Option<String>,
    /// Where the memory comes from.
    pub upstream: Upstream,
    /// Whether the pool keeps freed memory. Without pooling it has no caches and a release threshold of 0, and every
    /// block is a segment of plain memory, of whole steps of the device: for tools that watch the device's own
    /// allocations, and to measure the benefit of pooling.
    pub is_pooled: bool,
    /// The most bytes that the pool may reserve from the device; rounded down to whole chunks.
    pub capacity: Capacity,
    /// Bytes that the pool reserves from the device when it is built.
    pub initial_size: u64,
    /// How much the pool reserves from the device at a time.
    pub growth: GrowBy,
    /// The size of chunks in bytes, a multiple of the device's step. `None`: 8 MiB, or less where the capacity
    /// is small. Smaller chunks waste less memory and cost more device time, because each is mapped by itself.
    pub chunk_bytes: Option<u64>,
    /// The alignment of every block in bytes, a power of two up to the device's step; at least 512. Sizes are rounded
    /// up to it as well, so that a freed block can serve any other request. A single allocation can ask for more with
    /// [`Allocate::alignment`](crate::Allocate::alignment).
    pub alignment: u64,
    /// Bytes that each stream's lane may keep for the stream, in blocks of up to 2 MiB, or up to an eighth of these bytes
    /// if that is more (at most 64 MiB). With 0, every free goes to the heap: less fragmentation, but slower.
    ///
    /// A cached block serves a request of its size. If an untagged request finds none of its size, it gets a block that
    /// is larger by up to an eighth. Threads with [caches of their own](Self::per_thread_caches) get exact sizes only.
    pub lane_bytes: u64,
    /// Bytes that each lane may keep in larger blocks than those: up to 4 of them, each for a request of exactly its
    /// size. With 0, or where [`lane_bytes`](Self::lane_bytes) is 0, there are none.
    ///
    /// A lane keeps a large block once its stream takes turns: it allocated the block that it freed last, several times
    /// in a row, and no other size in between. The stream keeps the block for 200 µs while the pool can grow; then, or
    /// at once where the pool cannot grow, any stream may take it. Lanes keep no large blocks where memory is given
    /// back without being asked (a release threshold, a heuristic), or where [waiting](Order::WaitFirst) comes before
    /// growing. The event of such a block is recorded by the stream's next free, by its next allocation of another
    /// size, or on demand.
    pub lane_large_bytes: u64,
    /// Whether each thread that uses a stream has a cache of its own from the start, within the stream's
    /// [lane](Self::lane_bytes). Otherwise threads get them once they have met at a stream's lane several times.
    ///
    /// There are up to 16 caches for a stream; each keeps up to a quarter of the lane's bytes. A block that one thread
    /// freed is found by another once the first keeps that much, or once a request looks beyond the lanes.
    /// The stream's high-water mark of used bytes is sampled then, and no longer exact.
    pub per_thread_caches: bool,
    /// Whether the pool grows or makes a stream wait first, when free memory does not suffice.
    pub order: Order,
    /// Which memory may be reused for a stream.
    pub reuse: Reuse,
    /// When the event of a free is recorded.
    pub sealing: Sealing,
    /// How far a wait on the device may delay a stream, except in the last resort of calls that do not wait on the host.
    pub wait_limit: WaitLimit,
    /// The share of time that goes into mapping free memory elsewhere instead of reserving more. [`Remapping`] has an
    /// example.
    pub remapping: Remapping,
    /// The reserved bytes above which the pool gives free memory back without being asked.
    pub release_threshold: ReleaseThreshold,
    /// When free memory is made one piece without being asked. `None`: when a request needs it, and no more than it
    /// needs. A heuristic may be a function, so it is not serialized.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub coalesce: Option<CoalesceHeuristic>,
    /// How long after a free the pool releases and coalesces, where the two settings above ask for it. Memory that
    /// was used in between is not released. On the device's clock; less than 0.1 ms counts as 0.1 ms.
    pub maintenance_interval: Duration,
    /// Fills every block that is allocated, completely, in the order of its stream, before the caller gets it.
    ///
    /// Each allocation then costs a device call, also from the stream's lane, and the stream the time to write the
    /// bytes. A further stream [comes after](crate::Stream::record_use) the fill; on the host that is an error until the
    /// fill was awaited. If the device cannot fill, the allocation fails with its error, and the block is freed. While
    /// a stream is captured into a graph, its blocks are not filled: the fill would be repeated at each launch.
    pub fill_on_allocate: Option<Fill>,
    /// Fills every block that is freed, completely, after all work that used it: with [poison](Fill::Poison) to find
    /// uses after the free, or with [zeros](Fill::Zero) so that the next tenant finds nothing. See the
    /// [page on debugging](crate::guide::observability).
    ///
    /// Each free then costs a device call. The fill is work of the block's own stream, which is made to wait on the
    /// device for the work submitted so far to the block's further streams; where streams [hand-shake](Sealing), that
    /// may deadlock. (If the block's own stream takes no waits, the fill is work of a further stream that does.)
    ///
    /// A free cannot fail. If the device cannot fill, or the streams cannot be made to wait or are captured into a
    /// graph, the memory goes back as it is, and a subscriber of `tracing` is told. Where a tenant must never see
    /// another's bytes, [fill on allocation](Self::fill_on_allocate) as well. A block that was granted and never
    /// taken, because its future was dropped, is not filled: no caller had it.
    pub fill_on_free: Option<Fill>,
    /// Limits and weights of tags; see [`TagAccount`](crate::TagAccount).
    pub tags: BTreeMap<Tag, TagConfig>,
    /// How long after its arrival a waiting request without a [deadline](crate::Request::deadline) is due. In the
    /// queue it stands as if that were its deadline.
    pub due_after: Duration,
    /// How much earlier a request is due for each step of its [priority](crate::Request::priority). With zero,
    /// priorities have no effect.
    pub priority_step: Duration,
    /// How often a waiting request may be overtaken by requests for which there is memory.
    pub overtaking: Overtaking,
    /// How long nothing may change before a queue counts as deadlocked: nothing is pending, and no block is freed.
    /// Then every request that can be granted is, ahead of the queue's head; if none can, a subscriber of `tracing`
    /// is warned. On the device's clock. A long queue extends this time by 1 ms for every 1,024 requests.
    ///
    /// Requests that wait for the limit of a tag are given the same time: see
    /// [`guide::services`](crate::guide::services).
    pub deadlock_grace: Duration,
    /// How long a deadlock lasts before the head of the queue fails with
    /// [`Deadlocked`](crate::AllocError::Deadlocked), so that the memory that its task holds can be freed; or the first
    /// request that waits for the limit of a tag, with
    /// [`DeadlockedAtLimit`](crate::AllocError::DeadlockedAtLimit). `None`: never.
    pub fail_deadlocks_after: Option<Duration>,
    /// How many requests may wait at once, [shared](QueueLimit) by weight among the tags that wait.
    pub queue_limit: QueueLimit,
    /// Whether a request fails at once, with [`Shed`](crate::AllocError::Shed), when its expected wait exceeds its
    /// [timeout](crate::Request::timeout) or [deadline](crate::Request::deadline).
    ///
    /// The wait is [estimated](crate::Inspect::expected_wait) as the request joins the queue, in time proportional to
    /// the number of waiters. A request that would be the only waiter is always admitted, which keeps the estimate
    /// current.
    pub load_shedding: bool,
}

debug_in_units!(struct PoolConfig { name, upstream, is_pooled, capacity, initial_size as bytes, growth, chunk_bytes as bytes, alignment as bytes, lane_bytes as bytes, lane_large_bytes as bytes, per_thread_caches, order, reuse, sealing, wait_limit, remapping, release_threshold, coalesce, maintenance_interval, fill_on_allocate, fill_on_free, tags, due_after, priority_step, overtaking, deadlock_grace, fail_deadlocks_after, queue_limit, load_shedding });

/// The most bytes that a pool may reserve from its device.
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

/// The limit and the weight of a tag.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct TagConfig {
    /// The most bytes that the tag may hold at once; `None`: any number. See
    /// [`TagAccount::set_limit`](crate::TagAccount::set_limit).
    pub limit: Option<u64>,
    /// The weight of the tag in the queue; 0: none. See [`TagAccount::set_weight`](crate::TagAccount::set_weight).
    pub weight: u32,
}

debug_in_units!(struct TagConfig { limit as bytes, weight });

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            name: None,
            // Free chunks of virtual memory can be mapped together; plain memory fragments.
            upstream: Upstream::Virtual,
            is_pooled: true,
            // Memory is reserved when it is needed, so a pool that may take everything takes no more than it uses.
            capacity: Capacity::Device,
            initial_size: 0,
            // Growing costs tens of microseconds, and memory that is not reserved is left to others.
            growth: GrowBy::Chunks,
            // A choice by the capacity: see `settings`.
            chunk_bytes: None,
            // CUDA's own alignment is 256 bytes; a step of 512 leaves fewer sizes to keep apart.
            alignment: GRANULE,
            // A stream's working set of small blocks, and no more than a chunk.
            lane_bytes: 8 << 20,
            // A request's largest buffer, or a few of a batch.
            lane_large_bytes: 64 << 20,
            // Most streams are used by one thread at a time; where threads meet, the caches come by themselves.
            per_thread_caches: false,
            // Growth happens a few times in a service's life, a stall at every turn.
            order: Order::GrowFirst,
            // Each kind of reuse is safe; excluding one only costs memory or time.
            reuse: Reuse::ALL,
            // An event costs as much as several allocations: one for each 4 MiB, fewer where frees come close.
            sealing: Sealing::Spaced(4 << 20),
            // A stream hardly ever stalls for memory that is expected before its own work is through.
            wait_limit: WaitLimit::Tail,
            // The traces stay far below an eighth; a loop of allocations would otherwise wait for the driver.
            remapping: Remapping::Share(0.125),
            // With CUDA's default of 0, an allocation, a free and a synchronization of 1 MiB take 85 µs on an H200
            // instead of 1.6 µs.
            release_threshold: ReleaseThreshold::Keep,
            coalesce: None,
            // Long against a batch of requests, after which memory is taken again; short against a person's patience.
            maintenance_interval: Duration::from_millis(10),
            fill_on_allocate: None,
            fill_on_free: None,
            tags: BTreeMap::new(),
            // A typical response time of a service; only the order of due times matters.
            due_after: Duration::from_secs(1),
            priority_step: Duration::from_secs(1),
            // First come, first served, until a service asks for something else.
            overtaking: Overtaking::NONE,
            // Long against a kernel and a task's turn, short against a request's patience.
            deadlock_grace: Duration::from_millis(10),
            // A block may be held for long with good reason.
            fail_deadlocks_after: None,
            queue_limit: QueueLimit::NONE,
            load_shedding: false,
        }
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;

    #[test]
    fn defaults_agree_with_those_of_their_types() {
        let config = PoolConfig::default();
        assert_eq!(config.upstream, Upstream::default());
        assert_eq!(config.capacity, Capacity::default());
        assert_eq!(config.growth, GrowBy::default());
        assert_eq!(config.order, Order::default());
        assert_eq!(config.reuse, Reuse::default());
        assert_eq!(config.sealing, Sealing::default());
        assert_eq!(config.wait_limit, WaitLimit::default());
        assert_eq!(config.remapping, Remapping::default());
        assert_eq!(config.release_threshold, ReleaseThreshold::default());
        assert_eq!(config.overtaking, Overtaking::default());
        assert_eq!(config.queue_limit, QueueLimit::default());
    }
}
