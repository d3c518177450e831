//! Which block an address is in, and all blocks. Nothing is indexed by address: who asks pays, and nobody
//! else.

use super::block::{Block, BlockId, State, Was};
use super::{Fences, Heap, ReservationId};
use crate::id::StreamId;

/// A block, as it was when it was looked up.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) holding: Holding,
}

/// What is left of a block's last life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    Free,
    Pending(Fences),
    /// Used, or kept by the lane of this stream.
    Used(StreamId),
    /// Set aside for one holder, who has not lent it.
    Reserved(ReservationId, Fences),
}

/// What there is to say of a block; nothing, where there is no memory.
fn found(id: BlockId, block: &Block) -> Option<Found> {
    let holding = match &block.state {
        State::Free | State::Claimed(Was::Free) => Holding::Free,
        State::Pending(fences) | State::Claimed(Was::Pending(fences)) => {
            Holding::Pending(fences.clone())
        }
        State::Used(_) => Holding::Used(block.user),
        State::Reserved(reservation, fences) => Holding::Reserved(*reservation, fences.clone()),
        State::Hole | State::Room | State::Claimed(Was::Hole | Was::Room) => return None,
    };
    Some(Found {
        id,
        address: block.address,
        bytes: block.bytes,
        holding,
    })
}

impl Heap {
    /// The block that the address is in; none where there is no memory. Takes time in proportion to the
    /// blocks of its segment.
    pub(crate) fn block_at(&self, address: u64) -> Option<Found> {
        let mut segments = self.segments.iter().flatten();
        let segment = segments.find(|segment| {
            (segment.address..segment.address + segment.bytes).contains(&address)
        })?;
        let (id, block) = self
            .blocks
            .from(segment.first)
            .find(|(_, block)| address < block.end())?;
        found(id, block)
    }

    /// Every segment with its blocks, in the order of their addresses; where there is no memory, there is no
    /// block.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, u64, Vec<Found>)> + '_ {
        let mut segments: Vec<_> = self.segments.iter().flatten().collect();
        segments.sort_by_key(|segment| segment.address);
        segments.into_iter().map(|segment| {
            let blocks = self.blocks.from(segment.first);
            let blocks = blocks.filter_map(|(id, block)| found(id, block));
            (segment.address, segment.bytes, blocks.collect())
        })
    }

    /// Remembers whom a block was lent to.
    pub(crate) fn note_borrower(&mut self, id: BlockId, stream: StreamId) {
        self.blocks[id].user = stream;
    }
}
