//! Blocks, segments and reservations as they were at one moment.

use crate::{BlockOrigin, ReservationOrigin};
use std::fmt;
use std::ops::Range;
use weirpool_device::DeviceAddress;
use weirpool_heap::debug_in_units;
use weirpool_heap::id::StreamId;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum BlockState {
    /// Allocated and not freed.
    Used,
    /// Freed, but behind work that is not known to be complete.
    Pending,
    /// Freed, and complete.
    Free,
    /// Set aside by a reservation, and not allocated from it.
    Reserved,
}

/// `used`
impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Used => "used",
            Self::Pending => "pending",
            Self::Free => "free",
            Self::Reserved => "reserved",
        })
    }
}

/// A block of a pool, as it was when it was looked up; see
/// `Inspect::block_at`.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockInfo {
    /// The first address of the block.
    pub address: DeviceAddress,
    /// The size in bytes.
    pub size: u64,
    /// Whether it is used, pending, free or reserved.
    pub state: BlockState,
    /// Whether a block in use can be evicted now.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_evictable: bool,
    /// The stream that uses the block, or whose cache holds it; `None` for other blocks.
    pub stream: Option<StreamId>,
    /// For a pending block, the streams whose work it waits for.
    pub waits_for: Vec<StreamId>,
    /// For a block in use, where it was allocated, if an observer remembers.
    pub origin: Option<BlockOrigin>,
    /// For a reserved block, where it was reserved, if an observer remembers.
    pub reservation: Option<ReservationOrigin>,
}

debug_in_units!(struct BlockInfo { address, size as bytes, state, is_evictable, stream, waits_for, origin, reservation });

impl BlockInfo {
    /// Describes a block that nothing else is known of.
    #[doc(hidden)]
    #[inline]
    pub fn of(address: DeviceAddress, size: u64, state: BlockState) -> Self {
        Self {
            address,
            size,
            state,
            is_evictable: false,
            stream: None,
            waits_for: Vec::new(),
            origin: None,
            reservation: None,
        }
    }
}

/// A segment of a pool, with its blocks.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The first address of the segment.
    pub address: DeviceAddress,
    /// The addresses of the segment, in bytes. With virtual memory they are several times the pool's capacity, and
    /// memory is mapped to some of them.
    pub size: u64,
    /// Bytes of memory in the segment: those of its blocks.
    pub mapped: u64,
    /// The blocks in the order of their addresses. They tile the segment, except where no memory is mapped.
    pub blocks: Vec<BlockInfo>,
}

debug_in_units!(struct SegmentInfo { address, size as bytes, mapped as bytes, blocks });

impl SegmentInfo {
    /// Describes a segment by its first address, its size and its blocks.
    #[doc(hidden)]
    pub fn of(address: DeviceAddress, size: u64, blocks: Vec<BlockInfo>) -> Self {
        Self {
            address,
            size,
            mapped: blocks.iter().map(|block| block.size).sum(),
            blocks,
        }
    }

    /// Returns the addresses to which no memory is mapped, in order.
    pub fn unmapped(&self) -> impl Iterator<Item = Range<DeviceAddress>> + '_ {
        let starts = self.blocks.iter().map(|block| block.address);
        let ends = self.blocks.iter().map(|block| block.address + block.size);
        let gaps = std::iter::once(self.address)
            .chain(ends)
            .zip(starts.chain([self.address + self.size]));
        gaps.filter(|(end, start)| end < start)
            .map(|(end, start)| end..start)
    }
}

/// A live reservation.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReservationInfo {
    /// Bytes that are set aside and not allocated.
    pub left: u64,
    /// Where it was made, if an observer remembers.
    pub origin: Option<ReservationOrigin>,
}

debug_in_units!(struct ReservationInfo { left as bytes, origin });

impl ReservationInfo {
    /// Describes a reservation.
    #[doc(hidden)]
    pub fn of(left: u64, origin: Option<ReservationOrigin>) -> Self {
        Self { left, origin }
    }
}
