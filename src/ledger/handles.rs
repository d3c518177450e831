//! Handles by number: runs of handle-sized slots of the address space.

use super::Ledger;
use super::block::Block;

/// A run of handle-sized slots of the address space, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handles {
    pub(super) first: u64,
    pub(super) end: u64,
}

impl Handles {
    /// Those wholly inside the addresses.
    fn within(start: u64, end: u64, handle_bytes: u64) -> Self {
        let first = start.div_ceil(handle_bytes);
        Self {
            first,
            end: (end / handle_bytes).max(first),
        }
    }

    /// Those that the addresses touch.
    fn touching(start: u64, end: u64, handle_bytes: u64) -> Self {
        Self {
            first: start / handle_bytes,
            end: end.div_ceil(handle_bytes),
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

impl Ledger {
    /// The handles that lie wholly inside a block.
    pub(super) fn whole_handles(&self, block: &Block) -> Handles {
        // Most blocks are too small for any, and are spared the divisions.
        if self.geometry.virtual_memory && block.bytes >= self.geometry.handle_bytes {
            Handles::within(block.address, block.end(), self.geometry.handle_bytes)
        } else {
            Handles::default()
        }
    }

    pub(super) fn handles_touched(&self, start: u64, end: u64) -> Handles {
        Handles::touching(start, end, self.geometry.handle_bytes)
    }
}
