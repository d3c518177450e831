//! Allocations: blocks on their way from heap or cache to their user, where they came from, and how many did.

use crate::heap::BlockId;
use crate::id::Ticket;
use crate::lane::{CachedBlock, Use};
use crate::sync::{Count, Ordering, SharedNumber};

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

impl Allocation {
    /// Returns a copy for observers.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Self {
        Self { ..*self }
    }

    /// Returns the block as it is freed. `rounding` is the part of its bytes that was not asked for.
    #[inline(always)]
    pub(crate) fn as_used(&self, rounding: u32) -> Use {
        Use {
            id: self.id,
            address: self.address,
            bytes: self.bytes,
            rounding,
        }
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

/// Where a grant came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
// As wide as its neighbour in a block: then the block is copied in whole words.
#[repr(u32)]
#[non_exhaustive]
pub enum Source {
    /// The stream's own lane: no device call, no shared cache line written.
    Lane,
    /// Memory that was available to any stream.
    Free,
    /// Memory that the same stream freed, from the heap.
    SameStream,
    /// Memory of other streams that this one comes after, by events that it waited for.
    Ordered,
    /// Pieces of the heap joined, or memory mapped elsewhere, or taken from the device.
    Grown,
    /// Memory pending on another stream, behind a wait on the device.
    DeviceWait,
}

impl Source {
    pub(crate) const COUNT: usize = 6;

    /// All sources, from the cheapest up.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Lane,
        Self::Free,
        Self::SameStream,
        Self::Ordered,
        Self::Grown,
        Self::DeviceWait,
    ];

    /// Its name in figures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Free => "free",
            Self::SameStream => "same_stream",
            Self::Ordered => "ordered",
            Self::Grown => "grown",
            Self::DeviceWait => "device_wait",
        }
    }
}

/// Counts of the slow path; the hot path counts in its lane.
#[derive(Debug)]
pub(crate) struct Counters {
    sources: [Count; Source::COUNT],
    /// How often memory was mapped or allocated from the device. A thread that comes to grow compares it.
    pub(crate) growths: SharedNumber,
    pub(crate) chunks_created: Count,
    pub(crate) remaps: Count,
    pub(crate) device_waits: Count,
    pub(crate) released: Count,
    /// Bytes that are set aside for graphs.
    graphs: SharedNumber,
    /// Bytes of other processes that are mapped.
    imported: SharedNumber,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            sources: Default::default(),
            growths: SharedNumber::new(0),
            chunks_created: Count::default(),
            remaps: Count::default(),
            device_waits: Count::default(),
            released: Count::default(),
            graphs: SharedNumber::new(0),
            imported: SharedNumber::new(0),
        }
    }

    pub(crate) fn count(&self, source: Source) {
        self.sources[source as usize].add(1);
    }

    /// Notes that this many bytes more are set aside for graphs.
    pub(crate) fn note_graphs_grew(&self, bytes: u64) {
        self.graphs.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes less are set aside for graphs.
    pub(crate) fn note_graphs_shrank(&self, bytes: u64) {
        self.graphs.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that are set aside for graphs.
    pub(crate) fn in_graphs(&self) -> u64 {
        self.graphs.load(Ordering::Relaxed)
    }

    /// Notes that this many bytes more of other processes are mapped.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    pub(crate) fn note_imported(&self, bytes: u64) {
        self.imported.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes less of other processes are mapped.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    pub(crate) fn note_imported_less(&self, bytes: u64) {
        self.imported.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of other processes that are mapped.
    pub(crate) fn imported(&self) -> u64 {
        self.imported.load(Ordering::Relaxed)
    }

    pub(crate) fn hits(&self, source: Source) -> u64 {
        self.sources[source as usize].get()
    }
}
