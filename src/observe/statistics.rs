//! A pool's figures.

use super::Hits;
use crate::driver::InLanes;
use crate::measure::{Level, WaitStatistics, fragmentation};
use crate::queue::Service;
use crate::sync::{Ordering, SharedNumber};

/// A pool's figures at one moment; bytes unless said otherwise.
///
/// `reserved`, `used` and `pending` are the names that CUDA and HIP use. Each lane counts for itself,
/// so that the hot path writes nothing shared; a reader adds up. At a quiescent point
/// `free + used + pending = reserved`; while other threads allocate and free, the lanes are read one
/// after the other, and the sum may be off by what moved in between.
///
/// What other pools call these figures is in [`guide::observability`](crate::guide::observability); those that
/// are about blocks, under Umpire's names, are in [`Pool::figures`](crate::Pool::figures).
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).handle_bytes(2 << 20).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let block = pool.try_allocate(&stream, 1_000_000)?;
/// let figures = pool.statistics();
/// assert_eq!((figures.live_blocks, figures.used.current), (1, block.size()));
/// assert_eq!(figures.lost_to_rounding, block.size() - 1_000_000);
/// assert_eq!(figures.free, figures.largest_free); // in one piece
/// assert_eq!(figures.fragmentation(), 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Statistics {
    /// Held from the device. Exact.
    #[doc(alias = "cudaMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "hipMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "cudaMemPoolAttrReservedMemHigh")]
    #[doc(alias = "hipMemPoolAttrReservedMemHigh")]
    #[doc(alias = "getActualSize")]
    pub reserved: Level,
    /// In blocks that somebody owns. The high is never too low; it is exact while one stream is used. Else
    /// it is the lower of two bounds: the streams' own highs, added up; and the highest with what lanes
    /// kept counted as used.
    #[doc(alias = "cudaMemPoolAttrUsedMemCurrent")]
    #[doc(alias = "hipMemPoolAttrUsedMemCurrent")]
    #[doc(alias = "cudaMemPoolAttrUsedMemHigh")]
    #[doc(alias = "hipMemPoolAttrUsedMemHigh")]
    #[doc(alias = "getCurrentSize")]
    #[doc(alias = "getHighWatermark")]
    pub used: Level,
    /// Given back, but behind work that is not known to be complete. The high leaves out what lanes
    /// kept and do not keep any more.
    pub pending: Level,
    /// Any stream can have it at once.
    pub free: u64,
    /// The largest free block: what a request can have without remapping or growing.
    #[doc(alias = "getLargestAvailableBlock")]
    pub largest_free: u64,
    /// Free blocks, in number.
    pub free_blocks: usize,
    /// What lanes keep for their own streams: in `pending`, or in `free` once complete.
    pub cached_in_lanes: u64,
    /// What live blocks have over what was asked for: sizes are rounded to 512 bytes, and a block from a stream's lane
    /// may be an eighth larger.
    pub lost_to_rounding: u64,
    /// Blocks granted so far, in number.
    pub allocations: u64,
    /// Blocks freed so far, in number.
    pub frees: u64,
    /// Blocks that somebody owns, in number.
    #[doc(alias = "getAllocationCount")]
    pub live_blocks: u64,
    /// Handles held from the device, in number; segments, where memory is plain.
    pub chunks: u64,
    /// Those of them that are wholly free, in number: what [`trim_to(0)`](crate::Pool::trim_to) would
    /// give back, were it not to reap first, and to take back what lanes keep.
    pub releasable_chunks: u64,
    /// Bytes of those.
    #[doc(alias = "getReleasableSize")]
    pub releasable_bytes: u64,
    /// Grants by the source that gave them; those included that nobody took, and that passed on.
    pub hits: Hits,
    /// How requests waited.
    pub waits: WaitStatistics,
    /// Times that memory was mapped, or taken from the device.
    pub growths: u64,
    /// Handles taken from the device.
    pub chunks_created: u64,
    /// Handles mapped elsewhere. Where these are few, and more is free than a request lacked, it was given new memory for
    /// want of time: see [`Remapping`](crate::Remapping).
    pub remaps: u64,
    /// Waits on the device that the pool inserted.
    pub device_waits: u64,
    /// Given back to the device so far.
    pub released: u64,
    /// Events made so far; in a steady state it stands still.
    pub events_created: u64,
}

impl Statistics {
    pub(crate) fn of(service: &Service) -> Self {
        let driver = &service.driver;
        let lanes = driver.in_lanes();
        let figures = driver.heap_figures();
        let totals = &figures.totals;
        let counters = &driver.counters;
        let read = |number: &SharedNumber| number.load(Ordering::Relaxed);
        let pending = totals.pending.current + lanes.cached - lanes.cached_complete;
        Self {
            reserved: totals.reserved,
            used: used(totals.used, &lanes),
            pending: Level {
                current: pending,
                high: totals.pending.high.max(pending),
            },
            free: totals.free.current + lanes.cached_complete,
            largest_free: figures.largest_free,
            free_blocks: figures.free_blocks,
            cached_in_lanes: lanes.cached,
            lost_to_rounding: lanes.counts.rounding,
            allocations: lanes.counts.allocations(),
            frees: lanes.counts.frees,
            live_blocks: lanes.counts.live(),
            chunks: figures.chunks,
            releasable_chunks: figures.releasable_chunks,
            releasable_bytes: figures.releasable_bytes,
            hits: Hits::of_engine(driver, &lanes.counts),
            waits: service.queue.statistics(),
            growths: read(&counters.growths),
            chunks_created: read(&counters.chunks_created),
            remaps: read(&counters.remaps),
            device_waits: read(&counters.device_waits),
            released: read(&counters.released),
            events_created: driver.events_created(),
        }
    }

    /// How much of the free memory is outside the largest free block: 0 when it is in one piece, or there
    /// is none, to 1. What lanes keep and is complete counts as free, in pieces.
    ///
    /// With virtual memory pieces do not add up to a failure: whole handles are mapped together.
    pub fn fragmentation(&self) -> f64 {
        fragmentation(self.free, self.largest_free)
    }
}

/// Two bounds of the high are known, and the lower one counts: see
/// [`Driver::counts_since`](crate::driver::Driver::counts_since).
fn used(allocation: Level, lanes: &InLanes) -> Level {
    let current = allocation.current.saturating_sub(lanes.cached);
    Level {
        current,
        high: allocation.high.min(lanes.high).max(current),
    }
}
