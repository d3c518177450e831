//! The figures of the heap at one moment.

use super::block::State;
use super::totals::High;
use super::{Heap, Totals};
use crate::id::StreamId;
use crate::measure::Mark;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// With the high-water marks since the mark that was asked for.
    pub(crate) totals: Totals,
    /// The largest free block, in bytes.
    pub(crate) largest_free: u64,
    /// Number of free blocks.
    pub(crate) free_blocks: usize,
    /// Number of reservations.
    pub(crate) reservations: usize,
    /// Number of chunks held from the device; of segments, where memory is plain.
    pub(crate) chunks: u64,
    /// Number of those that are wholly free.
    pub(crate) releasable_chunks: u64,
    /// Number of free blocks in which those are.
    pub(crate) releasable_blocks: u64,
    /// Bytes of those.
    pub(crate) releasable_bytes: u64,
}

impl Heap {
    /// Takes time in proportion to the number of plain segments; with virtual memory, constant time.
    pub(crate) fn figures(&self, since: Mark) -> Figures {
        let mut figures = Figures {
            totals: self.highs.since(since, self.totals),
            largest_free: self.largest_free(),
            free_blocks: self.free.len(),
            reservations: self.reservations.len(),
            chunks: 0,
            releasable_chunks: 0,
            releasable_blocks: 0,
            releasable_bytes: 0,
        };
        if self.geometry.virtual_memory {
            self.count_chunks(&mut figures);
        } else {
            self.count_segments(&mut figures);
        }
        figures
    }

    fn count_chunks(&self, figures: &mut Figures) {
        let chunk = self.geometry.chunk_bytes;
        figures.chunks = self.totals.reserved.current / chunk;
        figures.releasable_chunks = self.totals.whole_free_chunks;
        figures.releasable_blocks = self.totals.releasable_blocks;
        figures.releasable_bytes = self.totals.whole_free_chunks * chunk;
    }

    fn count_segments(&self, figures: &mut Figures) {
        for segment in self.segments.iter().flatten() {
            figures.chunks += 1;
            let first = &self.blocks[segment.first];
            if first.state == State::Free && first.bytes == segment.bytes {
                figures.releasable_chunks += 1;
                figures.releasable_bytes += segment.bytes;
            }
        }
        figures.releasable_blocks = figures.releasable_chunks;
    }

    /// Returns the number of blocks that are used or cached by lanes; takes time in proportion to all blocks.
    pub(crate) fn used_blocks(&self) -> usize {
        let blocks = self.blocks.iter();
        blocks.filter(|(_, block)| block.state.is_used()).count()
    }

    /// Returns the bytes that wait for a stream, alone or with others.
    pub(crate) fn pending_on(&self, stream: StreamId) -> u64 {
        self.pending.bytes_waiting_for(stream)
    }

    /// Keeps the high-water marks since now, for as long as [`end_mark`](Self::end_mark) is not called.
    pub(crate) fn begin_mark(&mut self, mark: Mark) {
        self.highs.begin(mark, &mut self.totals);
    }

    pub(crate) fn end_mark(&mut self, mark: Mark) {
        self.highs.end(mark);
    }

    /// Sets a high-water mark to the current figure.
    pub(crate) fn reset_high(&mut self, high: High) {
        self.highs.reset(high, &mut self.totals);
    }
}
