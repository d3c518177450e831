//! The sources of grants.

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
    /// All sources, from the cheapest up.
    pub const ALL: [Self; 6] = [
        Self::Lane,
        Self::Free,
        Self::SameStream,
        Self::Ordered,
        Self::Grown,
        Self::DeviceWait,
    ];

    /// Returns the name of the source in metrics and traces, in snake case.
    pub const fn name(self) -> &'static str {
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
