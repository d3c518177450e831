//! How much of the free memory a coalescing makes one piece.

use super::Heap;
use crate::measure::Mark;

impl Heap {
    /// Returns how many bytes are to be one free range, so that `total` bytes are reserved afterwards: the free memory
    /// that can be released now, and new memory if `total` is more than is reserved. A multiple of the device's step.
    pub(crate) fn piece_for(&self, total: u64) -> u64 {
        let figures = self.figures(Mark::RESET);
        let step = if self.geometry.virtual_memory {
            self.geometry.chunk_bytes
        } else {
            self.geometry.granularity
        };
        let releasable = figures.releasable_bytes;
        let fixed = figures.totals.reserved.current - releasable;
        let missing = total.saturating_sub(figures.totals.reserved.current);
        let most = releasable + missing.next_multiple_of(step);
        let wanted = total.saturating_sub(fixed).min(most);
        wanted.next_multiple_of(step).min(most)
    }

    /// Returns the bytes of the largest free block.
    pub(crate) fn largest_free(&self) -> u64 {
        self.free.largest()
    }
}
