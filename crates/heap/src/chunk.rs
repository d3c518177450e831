//! How memory is divided: the units in which it is taken from the device, moved and released.

use super::block::Block;

/// The step of block sizes and addresses, in bytes.
pub const GRANULE: u64 = 512;

/// The units of memory: chunks where memory is virtual, whole segments where it is plain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    pub(super) chunk_bytes: u64,
    pub(super) granularity: u64,
    pub(super) virtual_memory: bool,
}

impl Units {
    /// Returns the chunks that lie wholly inside a block.
    pub(super) fn whole_chunks(&self, block: &Block) -> Chunks {
        // Most blocks are too small to hold a chunk. The comparison saves them the divisions.
        if self.virtual_memory && block.bytes >= self.chunk_bytes {
            Chunks::within(block.address, block.end(), self.chunk_bytes)
        } else {
            Chunks::default()
        }
    }

    /// Returns the chunks that overlap the addresses.
    pub(super) fn chunks_touched(&self, start: u64, end: u64) -> Chunks {
        Chunks::touching(start, end, self.chunk_bytes)
    }

    /// Returns how many chunks this many bytes hold at most; none where memory is plain.
    pub(super) fn chunks_in(&self, bytes: u64) -> u64 {
        if self.virtual_memory {
            bytes / self.chunk_bytes
        } else {
            0
        }
    }

    /// Returns what of a free block can be released, in bytes and in number: its whole chunks, or the block itself if
    /// it is a whole segment of plain memory.
    #[inline]
    pub(super) fn releasable(&self, block: &Block) -> (u64, u64) {
        if self.virtual_memory {
            let chunks = self.whole_chunks(block).count();
            return (chunks * self.chunk_bytes, chunks);
        }
        let is_segment = block.previous.is_none() && block.next.is_none();
        if is_segment { (block.bytes, 1) } else { (0, 0) }
    }
}

/// A run of chunks, by their number: the number of a chunk is its address divided by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    pub(super) first: u64,
    pub(super) end: u64,
}

impl Chunks {
    fn within(start: u64, end: u64, chunk_bytes: u64) -> Self {
        let first = start.div_ceil(chunk_bytes);
        Self {
            first,
            end: (end / chunk_bytes).max(first),
        }
    }

    fn touching(start: u64, end: u64, chunk_bytes: u64) -> Self {
        Self {
            first: start / chunk_bytes,
            end: end.div_ceil(chunk_bytes),
        }
    }

    pub(super) fn count(self) -> u64 {
        self.end - self.first
    }

    /// Returns the chunks that are in both runs.
    pub(super) fn both(self, other: Self) -> Self {
        let first = self.first.max(other.first);
        Self {
            first,
            end: self.end.min(other.end).max(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::State;
    use super::*;

    const CHUNK: u64 = 1000;

    fn units(virtual_memory: bool) -> Units {
        Units {
            chunk_bytes: CHUNK,
            granularity: 100,
            virtual_memory,
        }
    }

    fn block(address: u64, bytes: u64) -> Block {
        Block::new(address, bytes, State::Free)
    }

    #[test]
    fn whole_chunks_are_inside_the_block() {
        for (address, bytes, first, end) in [
            (2000, 3000, 2, 5),
            (2001, 2999, 3, 5),
            (2001, 2998, 3, 4),
            (2001, 1998, 3, 3),
            (2500, 1000, 3, 3),
            (2500, 1500, 3, 4),
        ] {
            let chunks = units(true).whole_chunks(&block(address, bytes));
            assert_eq!(chunks, Chunks { first, end }, "{address} {bytes}");
        }
        assert_eq!(units(true).whole_chunks(&block(2000, 999)).count(), 0);
        assert_eq!(units(true).whole_chunks(&block(2000, 1000)).count(), 1);
        assert_eq!(units(false).whole_chunks(&block(2000, 3000)).count(), 0);
    }

    #[test]
    fn touched_chunks_overlap_the_addresses() {
        let touched = |start, end| units(true).chunks_touched(start, end);
        assert_eq!(touched(1999, 3001), Chunks { first: 1, end: 4 });
        assert_eq!(touched(2000, 3000), Chunks { first: 2, end: 3 });
    }

    #[test]
    fn common_chunks_are_those_of_both_runs() {
        let chunks = |first, end| Chunks { first, end };
        assert_eq!(chunks(1, 5).both(chunks(3, 9)), chunks(3, 5));
        assert_eq!(chunks(3, 9).both(chunks(1, 5)).count(), 2);
        assert_eq!(chunks(1, 2).both(chunks(3, 9)).count(), 0);
    }

    #[test]
    fn releasable_is_a_whole_chunk_or_a_whole_segment() {
        let whole = block(2000, 2500);
        assert_eq!(units(true).releasable(&whole), (2000, 2));
        assert_eq!(units(false).releasable(&whole), (2500, 1));
        let neighbour = Some(crate::BlockId::FIRST);
        for (previous, next) in [(neighbour, None), (None, neighbour)] {
            let mut part = whole.clone();
            (part.previous, part.next) = (previous, next);
            assert_eq!(units(true).releasable(&part), (2000, 2));
            assert_eq!(units(false).releasable(&part), (0, 0));
        }
        assert_eq!(units(true).chunks_in(1999), 1);
        assert_eq!(units(false).chunks_in(1999), 0);
    }
}
