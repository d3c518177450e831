//! What can be told of the blocks, at one moment.

use super::block::State;
use super::{Heap, Totals};
use crate::id::StreamId;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) totals: Totals,
    /// The largest free block, in bytes.
    pub(crate) largest_free: u64,
    /// Free blocks.
    pub(crate) free_blocks: usize,
    /// What the memory was taken from the device in: handles, or segments where memory is plain.
    pub(crate) chunks: u64,
    /// Those of them that are wholly free.
    pub(crate) releasable_chunks: u64,
    /// Bytes of those.
    pub(crate) releasable_bytes: u64,
}

/// A high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum High {
    Reserved,
    Pending,
    Used,
    InUse,
}

impl High {
    pub(crate) const ALL: [Self; 4] = [Self::Reserved, Self::Pending, Self::Used, Self::InUse];
}

impl Heap {
    /// In time that grows with the number of plain segments, and with nothing else.
    pub(crate) fn figures(&self) -> Figures {
        let (chunks, releasable_chunks, releasable_bytes) = if self.geometry.virtual_memory {
            self.chunks_and_whole_free()
        } else {
            self.segments_and_whole_free()
        };
        Figures {
            totals: self.totals,
            largest_free: self.largest_free(),
            free_blocks: self.free_blocks(),
            chunks,
            releasable_chunks,
            releasable_bytes,
        }
    }

    fn chunks_and_whole_free(&self) -> (u64, u64, u64) {
        let chunk = self.geometry.chunk_bytes;
        let whole_free = self.totals.whole_free_chunks;
        let held = self.totals.reserved.current / chunk;
        (held, whole_free, whole_free * chunk)
    }

    fn segments_and_whole_free(&self) -> (u64, u64, u64) {
        let (mut held, mut free, mut bytes) = (0, 0, 0);
        for segment in self.segments.iter().flatten() {
            held += 1;
            let first = &self.blocks[segment.first];
            if first.state == State::Free && first.bytes == segment.bytes {
                free += 1;
                bytes += segment.bytes;
            }
        }
        (held, free, bytes)
    }

    /// The largest free block, in bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.free.largest()
    }

    /// Free blocks.
    pub(crate) fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks that are used, or kept by lanes; in time that grows with all blocks.
    pub(crate) fn used_blocks(&self) -> usize {
        let blocks = self.blocks.iter();
        blocks.filter(|(_, block)| block.state.is_used()).count()
    }

    /// Bytes that wait for a stream, alone or with others.
    pub(crate) fn pending_on(&self, stream: StreamId) -> u64 {
        self.pending.bytes_waiting_for(stream)
    }

    /// Sets a high-water mark to the present figure.
    pub(crate) fn reset_high(&mut self, high: High) {
        match high {
            High::Reserved => self.totals.reserved.reset_high(),
            High::Pending => self.totals.pending.reset_high(),
            High::Used => self.totals.used.reset_high(),
            High::InUse => self.totals.in_use.reset_high(),
        }
    }
}
