//! Handles by number: runs of handle-sized slots of the address space.

use super::Heap;
use super::block::Block;

/// A run of handle-sized slots of the address space, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    pub(super) first: u64,
    pub(super) end: u64,
}

impl Chunks {
    /// Those wholly inside the addresses.
    fn within(start: u64, end: u64, chunk_bytes: u64) -> Self {
        let first = start.div_ceil(chunk_bytes);
        Self {
            first,
            end: (end / chunk_bytes).max(first),
        }
    }

    /// Those that the addresses touch.
    fn touching(start: u64, end: u64, chunk_bytes: u64) -> Self {
        Self {
            first: start / chunk_bytes,
            end: end.div_ceil(chunk_bytes),
        }
    }

    pub(super) fn count(self) -> u64 {
        self.end - self.first
    }

    pub(super) fn both(self, other: Self) -> Self {
        let first = self.first.max(other.first);
        Self {
            first,
            end: self.end.min(other.end).max(first),
        }
    }
}

impl Heap {
    /// The handles that lie wholly inside a block.
    pub(super) fn whole_chunks(&self, block: &Block) -> Chunks {
        // Most blocks are too small for any, and are spared the divisions.
        if self.geometry.virtual_memory && block.bytes >= self.geometry.chunk_bytes {
            Chunks::within(block.address, block.end(), self.geometry.chunk_bytes)
        } else {
            Chunks::default()
        }
    }

    pub(super) fn chunks_touched(&self, start: u64, end: u64) -> Chunks {
        Chunks::touching(start, end, self.geometry.chunk_bytes)
    }
}
