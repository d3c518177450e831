//! Giving memory back to the device: whole free handles, or segments that are wholly free.

use super::block::{BlockId, State};
use super::{Chunks, Heap, Segment};

/// Free memory claimed for release.
#[derive(Debug)]
#[must_use = "a release is committed, whatever became of it"]
pub(crate) struct Release {
    /// Spans to release, address and bytes: a handle each, or a segment each.
    pub(crate) spans: Vec<(u64, u64)>,
    claimed: Vec<BlockId>,
}

impl Release {
    fn bytes(&self) -> u64 {
        self.spans.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Heap {
    /// Claims free memory for release, until `keep` bytes would stay reserved once every release that is
    /// under way is over. From the highest addresses downwards, so that the low ones, which best fit
    /// prefers, stay dense.
    pub(crate) fn plan_trim(&mut self, keep: u64) -> Release {
        let mut excess = self.excess_over(keep);
        let mut release = Release {
            spans: Vec::new(),
            claimed: Vec::new(),
        };
        for id in self.releasable() {
            if self.geometry.virtual_memory {
                self.claim_chunks(id, &mut excess, &mut release);
            } else if self.blocks[id].bytes <= excess {
                excess -= self.blocks[id].bytes;
                self.claim_segment(id, &mut release);
            }
        }
        self.releasing += release.bytes();
        release
    }

    /// Claims free memory for release: so many bytes of it, or where memory is plain and segments are whole, as
    /// few more as can be. All there is, if that is less.
    pub(crate) fn plan_release(&mut self, bytes: u64) -> Release {
        if self.geometry.virtual_memory {
            let staying = self.totals.reserved.current - self.releasing;
            return self.plan_trim(staying.saturating_sub(bytes));
        }
        let mut release = Release {
            spans: Vec::new(),
            claimed: Vec::new(),
        };
        let mut segments = self.releasable();
        segments.sort_by_key(|id| self.blocks[*id].bytes);
        let mut left = bytes;
        while left > 0 && !segments.is_empty() {
            // The smallest that does, or the largest.
            let does = segments.partition_point(|id| self.blocks[*id].bytes < left);
            let id = segments.remove(does.min(segments.len() - 1));
            left = left.saturating_sub(self.blocks[id].bytes);
            self.claim_segment(id, &mut release);
        }
        self.releasing += release.bytes();
        release
    }

    fn claim_segment(&mut self, id: BlockId, release: &mut Release) {
        let block = &self.blocks[id];
        release.spans.push((block.address, block.bytes));
        self.claim_block(id);
        release.claimed.push(id);
    }

    /// What is held above `keep`, but for what is being released.
    fn excess_over(&self, keep: u64) -> u64 {
        let staying = self.totals.reserved.current.saturating_sub(self.releasing);
        staying.saturating_sub(keep)
    }

    /// Whether a trim to `keep` bytes would release anything now.
    pub(crate) fn could_trim(&self, keep: u64) -> bool {
        let excess = self.excess_over(keep);
        let fits = |id: BlockId| {
            if self.geometry.virtual_memory {
                excess >= self.geometry.chunk_bytes
            } else {
                self.blocks[id].bytes <= excess
            }
        };
        let mut free = self.free.at_least(0).map(|(_, id)| id);
        free.any(|id| self.is_releasable(id) && fits(id))
    }

    /// Blocks from which something can be released, highest address first.
    fn releasable(&self) -> Vec<BlockId> {
        let mut blocks: Vec<_> = self
            .free
            .at_least(0)
            .map(|(_, id)| id)
            .filter(|id| self.is_releasable(*id))
            .collect();
        blocks.sort_by_key(|id| std::cmp::Reverse(self.blocks[*id].address));
        blocks
    }

    fn is_releasable(&self, id: BlockId) -> bool {
        self.releasable_bytes(id) > 0
    }

    /// What could be released of a free block: its whole handles, or all of it if it is a segment.
    pub(super) fn releasable_bytes(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        if self.geometry.virtual_memory {
            return self.whole_chunks(block).count() * self.geometry.chunk_bytes;
        }
        let is_segment = block.previous.is_none() && block.next.is_none();
        if is_segment { block.bytes } else { 0 }
    }

    fn claim_chunks(&mut self, id: BlockId, excess: &mut u64, release: &mut Release) {
        let chunk = self.geometry.chunk_bytes;
        let Chunks { first, end } = self.whole_chunks(&self.blocks[id]);
        let count = (*excess / chunk).min(end - first);
        if count == 0 {
            return;
        }
        *excess -= count * chunk;
        let start = (end - count) * chunk;
        let mut claimed = id;
        if self.blocks[id].address < start {
            claimed = self.cut(id, start - self.blocks[id].address);
        }
        if self.blocks[claimed].end() > end * chunk {
            self.cut(claimed, end * chunk - start);
        }
        self.claim_block(claimed);
        release.claimed.push(claimed);
        let spans = (end - count..end).map(|number| (number * chunk, chunk));
        release.spans.extend(spans);
    }

    /// Ends a release: the first `done` spans are gone. Returns the bytes released.
    pub(crate) fn commit_trim(&mut self, release: Release, done: usize) -> u64 {
        self.releasing -= release.bytes();
        let gone = &release.spans[..done];
        let bytes = gone.iter().map(|(_, bytes)| bytes).sum();
        for id in release.claimed {
            if self.geometry.virtual_memory {
                self.release_chunks(id, gone);
            } else {
                self.release_segment(id, gone);
            }
        }
        self.totals.reserved.subtract(bytes);
        bytes
    }

    fn release_chunks(&mut self, id: BlockId, gone: &[(u64, u64)]) {
        self.resolve_each_chunk(id, |address| {
            let is_gone = gone.iter().any(|(gone, _)| *gone == address);
            if is_gone { State::Hole } else { State::Free }
        });
    }

    fn release_segment(&mut self, id: BlockId, gone: &[(u64, u64)]) {
        let address = self.blocks[id].address;
        if gone.iter().any(|(gone, _)| *gone == address) {
            self.unfile(id);
            self.blocks.remove(id);
            let is_its = |segment: &Segment| segment.first == id;
            let mut segments = self.segments.iter_mut();
            let segment = segments.find(|segment| segment.as_ref().is_some_and(is_its));
            *segment.expect("a block is in a segment") = None;
        } else {
            self.resolve(id, State::Free);
        }
    }
}
