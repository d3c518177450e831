//! Allocations: blocks on their way from heap or cache to their user.

use crate::heap::BlockId;
use crate::id::Ticket;
use crate::lane::CachedBlock;
use crate::measure::Source;
use crate::sync::{Count, Ordering, SharedNumber};
use smallvec::SmallVec;

/// A block out of the heap, on its way to its user.
#[derive(Debug)]
#[must_use = "a block that is dropped here is memory lost"]
pub(crate) struct Allocation {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The point of the stream behind which every earlier use of the memory lies; zero if all were complete.
    pub(crate) after: Ticket,
    pub(crate) source: Source,
}

/// The blocks of one request, in the order of its parts: mostly one.
pub(crate) type Allocations = SmallVec<[Allocation; 1]>;

impl Allocation {
    /// Returns a copy for observers.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Self {
        Self { ..*self }
    }

    #[inline(always)]
    pub(crate) fn of_cache(cached: CachedBlock) -> Self {
        Self {
            id: cached.id,
            address: cached.address,
            bytes: cached.bytes,
            after: cached.ticket,
            source: Source::Lane,
        }
    }
}

/// Counts of device calls and set-aside memory. Blocks are counted in the lanes of their streams.
#[derive(Debug)]
pub(crate) struct DeviceCounters {
    /// How often memory was mapped or allocated from the device. A thread that comes to grow compares it.
    pub(crate) growths: SharedNumber,
    pub(crate) chunks_created: Count,
    pub(crate) remaps: Count,
    pub(crate) device_waits: Count,
    pub(crate) released: Count,
    /// Bytes that are set aside for graphs.
    graphs: SharedNumber,
    /// Bytes of foreign memory that blocks have, or had while work may use it.
    foreign: SharedNumber,
    /// Bytes of foreign memory that is absent.
    suspended: SharedNumber,
}

impl DeviceCounters {
    pub(crate) fn new() -> Self {
        Self {
            growths: SharedNumber::new(0),
            chunks_created: Count::default(),
            remaps: Count::default(),
            device_waits: Count::default(),
            released: Count::default(),
            graphs: SharedNumber::new(0),
            foreign: SharedNumber::new(0),
            suspended: SharedNumber::new(0),
        }
    }

    /// Notes that this many bytes more are set aside for graphs.
    pub(crate) fn graphs_grew(&self, bytes: u64) {
        self.graphs.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes less are set aside for graphs.
    pub(crate) fn graphs_shrank(&self, bytes: u64) {
        self.graphs.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that are set aside for graphs.
    pub(crate) fn in_graphs(&self) -> u64 {
        self.graphs.load(Ordering::Relaxed)
    }

    /// Notes that this many bytes more of foreign memory are in blocks.
    pub(crate) fn foreign_grew(&self, bytes: u64) {
        self.foreign.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes less of foreign memory are in use.
    pub(crate) fn foreign_shrank(&self, bytes: u64) {
        self.foreign.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of foreign memory that blocks have, or had while work may use it.
    pub(crate) fn foreign(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }

    /// Notes that an absence of `before` bytes is one of `now` bytes.
    pub(crate) fn suspended(&self, before: u64, now: u64) {
        self.suspended.fetch_add(now, Ordering::Relaxed);
        self.suspended.fetch_sub(before, Ordering::Relaxed);
    }

    /// Bytes of foreign memory that is absent.
    pub(crate) fn in_absence(&self) -> u64 {
        self.suspended.load(Ordering::Relaxed)
    }
}
