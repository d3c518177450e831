//! Giving memory back to the device: whole free chunks, or segments of plain memory that are wholly free.

use super::block::{BlockId, State};
use super::block_map::BlockMap;
use std::collections::BTreeSet;

/// How much memory to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Keep at least this many bytes reserved, as CUDA's `cuMemPoolTrimTo` does. A segment of plain memory that is
    /// larger than the excess stays.
    Keep(u64),
    /// Keep at most this many bytes reserved. A whole segment is released even if the excess is smaller, as long as no
    /// more than `most` bytes are released together.
    DownTo {
        /// The bytes that may stay.
        reserved: u64,
        /// The most bytes to release together.
        most: u64,
    },
    /// Release at least this many bytes, and as few more as possible.
    Bytes(u64),
}

impl Target {
    /// Returns the least and the most bytes to release, where `staying` bytes stay once all releases that are under way
    /// have ended.
    fn bounds(self, staying: u64) -> (u64, u64) {
        match self {
            Self::Keep(bytes) => {
                let excess = staying.saturating_sub(bytes);
                (excess, excess)
            }
            Self::DownTo { reserved, most } => (staying.saturating_sub(reserved), most),
            Self::Bytes(bytes) => (bytes, u64::MAX),
        }
    }
}

/// Free memory that is claimed for release.
#[derive(Debug)]
#[must_use = "a release is committed, whatever its outcome"]
pub struct Release {
    /// The spans to release, in this order: address and bytes of a chunk, or of a segment.
    pub spans: Vec<(u64, u64)>,
    claimed: Vec<BlockId>,
}

/// The memory that is claimed for releases in progress.
#[derive(Debug, Default)]
pub(super) struct Releases {
    bytes: u64,
}

impl Releases {
    fn bounds(&self, map: &BlockMap, target: Target) -> (u64, u64) {
        let reserved = map.totals().reserved.current;
        target.bounds(reserved.saturating_sub(self.bytes))
    }

    /// Returns whether a release with this target would release anything now.
    pub(super) fn could_release(&self, map: &BlockMap, target: Target) -> bool {
        let (least, most) = self.bounds(map, target);
        if map.units().virtual_memory {
            let chunks = whole_chunks(least, most, map.units().chunk_bytes);
            return chunks.min(map.totals().whole_free_chunks) > 0;
        }
        let mut free = map.index().free.at_least(0);
        least > 0 && free.any(|(bytes, id)| bytes <= most && releasable(map, id) > 0)
    }

    /// Claims free memory for release.
    pub(super) fn plan(&mut self, map: &mut BlockMap, target: Target) -> Release {
        let (least, most) = self.bounds(map, target);
        let mut release = Release {
            spans: Vec::new(),
            claimed: Vec::new(),
        };
        if map.units().virtual_memory {
            release.claim_chunks(map, whole_chunks(least, most, map.units().chunk_bytes));
        } else {
            release.claim_segments(map, least, most);
        }
        self.bytes += release.bytes();
        release
    }

    /// Ends a release of which the first `done` spans are gone. Returns the bytes released.
    pub(super) fn commit(&mut self, map: &mut BlockMap, release: Release, done: usize) -> u64 {
        self.bytes -= release.bytes();
        let gone = &release.spans[..done];
        let bytes: u64 = gone.iter().map(|(_, bytes)| bytes).sum();
        let mut left = bytes;
        for id in release.claimed {
            // The spans of a block are in address order, and the blocks are in the order of the spans.
            let block = &map.blocks()[id];
            let of_this = left.min(block.bytes);
            left -= of_this;
            if map.units().virtual_memory {
                let end = block.address + of_this;
                map.resettle_parts(id, end, State::Hole, State::Free);
            } else if of_this > 0 {
                map.remove_segment(id);
            } else {
                map.resettle(id, State::Free);
            }
        }
        map.totals_mut().reserved.subtract(bytes);
        bytes
    }
}

/// Returns how many chunks to release for at least `least` bytes and at most `most`.
fn whole_chunks(least: u64, most: u64, chunk: u64) -> u64 {
    least.div_ceil(chunk).min(most / chunk)
}

fn releasable(map: &BlockMap, id: BlockId) -> u64 {
    map.units().releasable(&map.blocks()[id]).0
}

impl Release {
    fn bytes(&self) -> u64 {
        self.spans.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Claims this many chunks. Takes them from the highest addresses downwards, so that the low ones, which best fit
    /// prefers, stay dense.
    fn claim_chunks(&mut self, map: &mut BlockMap, count: u64) {
        let units = *map.units();
        let free = map.index().free.at_least(units.chunk_bytes);
        let mut blocks: Vec<_> = free.map(|(_, id)| id).collect();
        blocks.sort_by_key(|id| std::cmp::Reverse(map.blocks()[*id].address));
        let mut left = count;
        for id in blocks {
            let whole = units.whole_chunks(&map.blocks()[id]);
            let taken = whole.count().min(left);
            if taken == 0 {
                continue;
            }
            left -= taken;
            let address = |number| number * units.chunk_bytes;
            let (first, end) = (whole.end - taken, whole.end);
            let spans = (first..end).map(|number| (address(number), units.chunk_bytes));
            self.spans.extend(spans);
            self.claim(map, id, address(first), address(end));
        }
    }

    /// Claims wholly free segments: at least `least` bytes of them, if there are as many, and at most `most`.
    fn claim_segments(&mut self, map: &mut BlockMap, least: u64, most: u64) {
        let free = map.index().free.at_least(0);
        let segments = free.filter(|(_, id)| releasable(map, *id) > 0);
        let mut segments: BTreeSet<_> = segments
            .map(|(bytes, id)| (bytes, map.blocks()[id].address, id))
            .collect();
        let (mut least, mut most) = (least, most);
        while least > 0 {
            // The smallest segment that is enough, or the largest one.
            let enough = segments.range((least, 0, BlockId::FIRST)..).next();
            let enough = enough.filter(|(bytes, ..)| *bytes <= most);
            let bound = least.min(most.saturating_add(1));
            let smaller = || segments.range(..(bound, 0, BlockId::FIRST)).next_back();
            let Some(segment) = enough.or_else(smaller).copied() else {
                return;
            };
            segments.remove(&segment);
            let (bytes, address, id) = segment;
            least = least.saturating_sub(bytes);
            most -= bytes;
            self.spans.push((address, bytes));
            self.claim(map, id, address, address + bytes);
        }
    }

    fn claim(&mut self, map: &mut BlockMap, id: BlockId, start: u64, end: u64) {
        let id = map.cut_out(id, start, end);
        map.claim(id);
        self.claimed.push(id);
    }
}
