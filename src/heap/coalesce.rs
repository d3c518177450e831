//! The figures that decide on coalescing, and how much of what is free is to become one piece.

use super::Heap;
use super::block::State;
use super::heuristic::PoolFigures;

impl Heap {
    /// The pool's figures. Takes time in proportion to the number of free blocks.
    pub(crate) fn pool_figures(&self) -> PoolFigures {
        let (mut releasable_blocks, mut releasable_bytes) = (0, 0);
        for (_, id) in self.free.at_least(0) {
            let bytes = self.releasable_bytes(id);
            releasable_blocks += u64::from(bytes > 0);
            releasable_bytes += bytes;
        }
        let in_use = self.totals.in_use;
        let backed = self
            .blocks
            .iter()
            .filter(|(_, block)| block.state != State::Hole);
        PoolFigures {
            actual_size: self.totals.reserved.current,
            current_size: in_use.current,
            high_water_mark: in_use.high,
            releasable_blocks,
            releasable_bytes,
            largest_available: self.largest_free(),
            blocks_in_pool: backed.count() as u64,
        }
    }

    /// The bytes that are to be one free piece, so that the pool has `total` bytes in all: as much as can
    /// be released and is not too much. A multiple of the device's step.
    pub(crate) fn piece_for(&self, total: u64) -> u64 {
        let figures = self.pool_figures();
        let step = if self.geometry.virtual_memory {
            self.geometry.chunk_bytes
        } else {
            self.geometry.granularity
        };
        let fixed = figures.actual_size - figures.releasable_bytes;
        let releasable = figures.releasable_bytes;
        let wanted = total.saturating_sub(fixed).min(releasable);
        wanted.next_multiple_of(step).min(releasable)
    }
}
