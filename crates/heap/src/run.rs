//! Which blocks have to go for a range, or for the device's units, to be free around one of them.

use super::Heap;
use super::block::{Block, BlockId, State};
use super::request::{Placement, Request};

/// The piece that is to be free.
#[derive(Clone, Copy, Debug)]
pub enum Piece {
    /// Memory that the device can have back: a whole chunk, or a whole segment where memory is plain.
    Releasable,
    /// Memory for this request: a range that holds it, or a unit that can be moved or released for it.
    For(Request, Placement),
}

/// Blocks around one of them that have no other used block between them.
#[derive(Clone, Debug)]
pub struct Run<A> {
    /// Those of the blocks that have to be freed.
    pub members: Vec<A>,
    /// How much is free in one piece then; `None` if a block in use is in the way.
    pub bytes: Option<u64>,
}

/// The part of the addresses that a run has to cover.
enum Extent {
    /// These addresses.
    Between(u64, u64),
    /// A range that holds the request.
    Holding(Request),
    /// The whole segment.
    Segment,
}

impl Heap {
    /// Finds the blocks that have to be freed besides the used block `seed`, for the piece to be free with it. `find` returns the
    /// used block at an address if it can be freed; of two blocks, the lesser one is freed rather.
    ///
    /// Takes time in proportion to the blocks of the piece.
    pub fn run_around<A: Ord + Copy>(
        &self,
        seed: (BlockId, A),
        piece: Piece,
        find: impl Fn(u64) -> Option<A>,
    ) -> Run<A> {
        let units = self.map.units();
        let (id, member) = seed;
        let Some(block) = self.map.blocks().get(id) else {
            return Run::none(member);
        };
        let chunk = units.chunk_bytes;
        match piece {
            _ if self.takes_chunks(piece) => {
                let whole = units.whole_chunks(block).count();
                if whole > 0 {
                    return Run {
                        members: vec![member],
                        bytes: Some(whole * chunk),
                    };
                }
                // It lies in one chunk or in two.
                let chunks = units.chunks_touched(block.address, block.end());
                let runs = (chunks.first..chunks.end).map(|number| {
                    let extent = Extent::Between(number * chunk, (number + 1) * chunk);
                    self.walk(seed, &extent, &find)
                });
                let order = |run: &Run<A>| (run.bytes.is_none(), run.youngest());
                runs.min_by_key(order).unwrap_or(Run::none(member))
            }
            Piece::For(request, Placement::Anywhere) => {
                self.walk(seed, &Extent::Holding(request), &find)
            }
            _ => self.walk(seed, &Extent::Segment, &find),
        }
    }

    /// Returns whether whole chunks are to be free for the piece.
    pub fn takes_chunks(&self, piece: Piece) -> bool {
        let units = self.map.units();
        let is_small = match piece {
            Piece::For(request, Placement::Anywhere) => request.bytes < units.chunk_bytes,
            _ => false,
        };
        units.virtual_memory && !is_small
    }

    /// Takes neighbours of the seed, unused ones first, and then those that are freed rather.
    fn walk<A: Ord + Copy>(
        &self,
        (seed, member): (BlockId, A),
        extent: &Extent,
        find: &impl Fn(u64) -> Option<A>,
    ) -> Run<A> {
        let blocks = self.map.blocks();
        let first = &blocks[seed];
        let (mut start, mut end) = (first.address, first.end());
        let mut members = vec![member];
        // `Some(None)` takes the block at no cost.
        let cost = |id: Option<BlockId>| match &blocks[id?].state {
            State::Free | State::Pending(_) => Some(None),
            State::Used(_) => find(blocks[id?].address).map(Some),
            _ => None,
        };
        let (mut below, mut above) = (first.previous, first.next);
        loop {
            if extent.is_covered(start, end) {
                break;
            }
            let (wants_below, wants_above) = extent.sides(start, end);
            let lower = cost(below).filter(|_| wants_below);
            let upper = cost(above).filter(|_| wants_above);
            let is_lower = match (&lower, &upper) {
                (None, None) => break,
                (Some(lower), Some(upper)) => lower <= upper,
                (lower, _) => lower.is_some(),
            };
            let (taken, block) = if is_lower {
                (
                    lower,
                    Self::step(blocks, below, |block| block.previous, &mut below),
                )
            } else {
                (
                    upper,
                    Self::step(blocks, above, |block| block.next, &mut above),
                )
            };
            members.extend(taken.flatten());
            start = start.min(block.address);
            end = end.max(block.end());
        }
        let is_segment = below.is_none() && above.is_none() && !self.map.units().virtual_memory;
        let is_whole = extent.is_covered(start, end) || is_segment;
        Run {
            members,
            bytes: is_whole.then(|| extent.bytes(start, end)),
        }
    }

    fn step<'a>(
        blocks: &'a super::block::Blocks,
        at: Option<BlockId>,
        next: impl Fn(&Block) -> Option<BlockId>,
        side: &mut Option<BlockId>,
    ) -> &'a Block {
        let block = &blocks[at.expect("there is a block on this side")];
        *side = next(block);
        block
    }
}

impl<A: Ord + Copy> Run<A> {
    fn none(member: A) -> Self {
        Self {
            members: vec![member],
            bytes: None,
        }
    }

    /// Returns the greatest of its members.
    pub fn youngest(&self) -> Option<A> {
        self.members.iter().max().copied()
    }
}

impl Extent {
    fn is_covered(&self, start: u64, end: u64) -> bool {
        match *self {
            Self::Between(first, last) => start <= first && last <= end,
            Self::Holding(request) => {
                let place = start.next_multiple_of(request.alignment);
                place.saturating_add(request.bytes) <= end
            }
            Self::Segment => false,
        }
    }

    /// Returns whether the blocks below and above are wanted.
    fn sides(&self, start: u64, end: u64) -> (bool, bool) {
        match *self {
            Self::Between(first, last) => (first < start, end < last),
            Self::Holding(_) | Self::Segment => (true, true),
        }
    }

    fn bytes(&self, start: u64, end: u64) -> u64 {
        match *self {
            Self::Between(first, last) => last - first,
            Self::Holding(_) | Self::Segment => end - start,
        }
    }
}
