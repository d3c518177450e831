//! The figures of a pool.

use crate::{Histogram, Source, WaitStatistics};
use std::fmt;
use weirpool_heap::units::{Bytes, Counted};
use weirpool_heap::{Level, debug_in_units, fragmentation};

/// The figures of a pool at one moment, or of a scope (`StatisticsScope`); in bytes unless stated otherwise.
///
/// `free + used + pending + moving = reserved` at every moment, and no figure is below zero, whatever other threads
/// do meanwhile. Streams are read one after another, each at one moment: while other threads allocate and free, `used`,
/// `pending` and the counters are off by at most what those threads allocated or freed during the read.
///
/// `reserved`, `used` and `pending` are the names of CUDA and HIP. The names of other pools for these figures are in
/// the guide of `weirpool`, on the page about pools.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).chunk_bytes(2 << 20).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let block = pool.try_allocate(&stream, 1_000_000)?;
/// let figures = pool.inspect().statistics();
/// assert_eq!((figures.live_blocks, figures.used.current), (1, block.size()));
/// assert_eq!(figures.lost_to_rounding, block.size() - 1_000_000);
/// assert_eq!(figures.free, figures.largest_free); // in one piece
/// assert_eq!(figures.fragmentation(), 0.0);
/// println!("{figures}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Statistics {
    /// The most that may be reserved.
    pub capacity: u64,
    /// The most that may be reserved now: the capacity, unless a source lends less.
    pub leased: u64,
    /// Reserved from the device.
    #[doc(alias = "cudaMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "hipMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "cudaMemPoolAttrReservedMemHigh")]
    #[doc(alias = "hipMemPoolAttrReservedMemHigh")]
    #[doc(alias = "getActualSize")]
    pub reserved: Level,
    /// In live blocks, or set aside for reservations. The high-water mark is never too low. It is exact while one
    /// stream is used by one thread at a time, and where lanes cache nothing
    /// (`Tuning::lane_bytes` is 0). Otherwise it is the lower of two bounds: the
    /// sum of the streams' own marks, and the mark that counts cached blocks as used, which is too high by at most the
    /// bytes that lanes cached then. An exact mark would need a sum over all streams at each allocation, and so a
    /// shared write in it: `Inspect::exact_statistics_scope` has one for a while.
    #[doc(alias = "cudaMemPoolAttrUsedMemCurrent")]
    #[doc(alias = "hipMemPoolAttrUsedMemCurrent")]
    #[doc(alias = "cudaMemPoolAttrUsedMemHigh")]
    #[doc(alias = "hipMemPoolAttrUsedMemHigh")]
    #[doc(alias = "getCurrentSize")]
    #[doc(alias = "getHighWatermark")]
    pub used: Level,
    /// Freed, but behind device work that is not known to be complete. The high-water mark omits blocks that a lane
    /// cached and granted again.
    pub pending: Level,
    /// Used, pending or cached: everything that is not free in the heap.
    pub in_use: Level,
    /// Free: available to any stream immediately.
    pub free: u64,
    /// Claimed by a thread that maps or releases memory at this moment.
    pub moving: u64,
    /// The part of `used` that reservations hold and have not allocated.
    pub set_aside: u64,
    /// The part of `used` that is set aside for graphs (`GraphMemory`), allocated or not.
    pub in_graphs: u64,
    /// Held outside of the pool, and charged (`Pool::charge`) against its capacity. They are not part of
    /// `reserved`.
    pub charged: u64,
    /// Memory that others own in adopted blocks (`Stream::adopt`), until work that uses it is over. It is not part
    /// of any figure of the pool's own memory.
    pub foreign: u64,
    /// Suspended by owners (`extend::Absence`): memory that is not there, and takes up none of the capacity.
    pub suspended: u64,
    /// The part of `used` that can be evicted now (`Evictable`): pinned memory does not count.
    pub evictable: u64,
    /// Number of live reservations, those for graphs included.
    pub reservations: usize,
    /// The largest free block: the largest request that is granted without remapping or growth.
    #[doc(alias = "getLargestAvailableBlock")]
    pub largest_free: u64,
    /// Number of free blocks.
    pub free_blocks: usize,
    /// Cached by lanes for their own streams. Part of `pending`, or of `free` once complete.
    pub cached_in_lanes: u64,
    /// Granted to live blocks beyond their requests: sizes are rounded up to 512 bytes, and a block from a lane may be
    /// an eighth larger.
    pub lost_to_rounding: u64,
    /// Number of blocks granted so far.
    pub allocations: u64,
    /// Bytes of those; wraps around.
    pub allocated: u64,
    /// Number of blocks freed so far.
    pub frees: u64,
    /// Bytes of those; wraps around.
    pub freed: u64,
    /// Number of live blocks.
    #[doc(alias = "getAllocationCount")]
    pub live_blocks: u64,
    /// Number of chunks (physical allocations) held from the device; of segments, where memory is plain.
    pub chunks: u64,
    /// Number of chunks that are wholly free: what `Pool::trim_to(0)` would release without polling
    /// events and flushing caches first.
    pub releasable_chunks: u64,
    /// Number of free blocks with at least one such chunk.
    #[doc(alias = "getReleasableBlocks")]
    pub releasable_blocks: u64,
    /// Bytes of such chunks.
    #[doc(alias = "getReleasableSize")]
    pub releasable_bytes: u64,
    /// Number of allocations by source.
    pub hits: Hits,
    /// Waits of requests: counts, outcomes and times.
    pub waits: WaitStatistics,
    /// How long frees were pending: from the recording of the event that covers them until the event was *seen*
    /// complete. So it depends on the device, and on how often the pool polls events. An event counts once, however
    /// many frees it covers. See [`Histogram`] for an example.
    pub pending_ages: Histogram,
    /// Number of times that memory was mapped, or allocated from the device.
    pub growths: u64,
    /// Number of chunks allocated from the device so far.
    pub chunks_created: u64,
    /// Number of chunks that were mapped elsewhere so far. If it stays low while requests grow the pool although more
    /// is free than they lack, the remapping budget is spent: see `Remapping`.
    pub remaps: u64,
    /// Number of device-side waits that the pool inserted.
    pub device_waits: u64,
    /// Bytes released to the device so far.
    pub released: u64,
    /// Number of events created so far; constant in a steady state.
    pub events_created: u64,
    /// Number of blocks evicted so far.
    pub evictions: u64,
    /// Bytes of those; wraps around.
    pub evicted: u64,
}

debug_in_units!(struct Statistics { capacity as bytes, leased as bytes, reserved, used, pending, in_use, free as bytes, moving as bytes, set_aside as bytes, in_graphs as bytes, charged as bytes, foreign as bytes, suspended as bytes, evictable as bytes, reservations, largest_free as bytes, free_blocks, cached_in_lanes as bytes, lost_to_rounding as bytes, allocations, allocated as bytes, frees, freed as bytes, live_blocks, chunks, releasable_chunks, releasable_blocks, releasable_bytes as bytes, hits, waits, pending_ages, growths, chunks_created, remaps, device_waits, released as bytes, events_created, evictions, evicted as bytes });

impl Statistics {
    /// Returns the share of the free memory outside the largest free block: from 0, if it is contiguous or nothing is
    /// free, to 1. Memory that is complete but cached by a lane counts as free and fragmented.
    ///
    /// With virtual memory, fragments do not make a request fail: whole chunks are remapped into one range.
    pub fn fragmentation(&self) -> f64 {
        fragmentation(self.free, self.largest_free)
    }

    /// Returns the bytes that were allocated and not freed; zero if more was freed than allocated. It is useful for
    /// a scope (`StatisticsScope`).
    pub fn retained(&self) -> u64 {
        let retained = self.allocated.wrapping_sub(self.freed);
        u64::try_from(retained as i64).unwrap_or(0)
    }

    /// Returns these figures with the counters since `earlier`. Levels, and figures that are not sums, stay as they
    /// are.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // Every field is named, so that no counter is forgotten.
        Self {
            capacity: self.capacity,
            leased: self.leased,
            reserved: self.reserved,
            used: self.used,
            pending: self.pending,
            in_use: self.in_use,
            free: self.free,
            moving: self.moving,
            set_aside: self.set_aside,
            in_graphs: self.in_graphs,
            charged: self.charged,
            foreign: self.foreign,
            suspended: self.suspended,
            evictable: self.evictable,
            reservations: self.reservations,
            largest_free: self.largest_free,
            free_blocks: self.free_blocks,
            cached_in_lanes: self.cached_in_lanes,
            lost_to_rounding: self.lost_to_rounding,
            allocations: self.allocations.saturating_sub(earlier.allocations),
            allocated: self.allocated.wrapping_sub(earlier.allocated),
            frees: self.frees.saturating_sub(earlier.frees),
            freed: self.freed.wrapping_sub(earlier.freed),
            live_blocks: self.live_blocks,
            chunks: self.chunks,
            releasable_chunks: self.releasable_chunks,
            releasable_blocks: self.releasable_blocks,
            releasable_bytes: self.releasable_bytes,
            hits: self.hits.since(&earlier.hits),
            waits: self.waits.since(&earlier.waits),
            pending_ages: self.pending_ages.since(&earlier.pending_ages),
            growths: self.growths.saturating_sub(earlier.growths),
            chunks_created: self.chunks_created.saturating_sub(earlier.chunks_created),
            remaps: self.remaps.saturating_sub(earlier.remaps),
            device_waits: self.device_waits.saturating_sub(earlier.device_waits),
            released: self.released.saturating_sub(earlier.released),
            events_created: self.events_created.saturating_sub(earlier.events_created),
            evictions: self.evictions.saturating_sub(earlier.evictions),
            evicted: self.evicted.wrapping_sub(earlier.evicted),
        }
    }
}

/// Two lines: the bytes by state; then those in graphs, evictable and charged, if there are any, and the counters.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} reserved of {}: {} used, {} pending, {} free (largest block {}, fragmentation {:.0} %)",
            Bytes(self.reserved.current),
            Bytes(self.capacity),
            Bytes(self.used.current),
            Bytes(self.pending.current),
            Bytes(self.free),
            Bytes(self.largest_free),
            self.fragmentation() * 100.0,
        )?;
        let parts = [
            ("in graphs", self.in_graphs),
            ("evictable", self.evictable),
            ("charged", self.charged),
        ];
        for (name, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{} {name}; ", Bytes(bytes))?;
        }
        write!(
            f,
            "{}, {}, {}; {}",
            Counted(self.allocations, "allocation"),
            Counted(self.frees, "free"),
            Counted(self.live_blocks, "live block"),
            self.waits,
        )
    }
}

/// Numbers of allocations by the source of their memory.
///
/// ```
/// # use weirpool::{Pool, Source, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// for _ in 0..4 {
///     drop(pool.try_allocate(&stream, 4096)?);
/// }
/// let hits = pool.inspect().statistics().hits;
/// assert_eq!((hits.of(Source::Grown), hits.of(Source::Lane), hits.total()), (1, 3, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits([u64; Source::ALL.len()]);

impl Hits {
    /// Creates the numbers of allocations, in the order of [`Source::ALL`].
    pub fn new(by_source: [u64; Source::ALL.len()]) -> Self {
        Self(by_source)
    }

    /// Returns the number of allocations from `source`.
    pub fn of(&self, source: Source) -> u64 {
        self.0[source as usize]
    }

    /// Returns the number of all allocations.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|source| {
            self.0[source].saturating_sub(earlier.0[source])
        }))
    }
}

/// As a map from sources to their allocations.
#[cfg(feature = "serde")]
impl serde::Serialize for Hits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Source::ALL.map(|source| (source, self.of(source))))
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Hits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_source = std::collections::BTreeMap::<Source, u64>::deserialize(deserializer)?;
        let of = |source| by_source.get(&source).copied().unwrap_or(0);
        Ok(Self(Source::ALL.map(of)))
    }
}
