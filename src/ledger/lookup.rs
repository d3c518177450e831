//! Which block an address is in. Nothing is indexed by address: who asks pays, and nobody else.

use super::block::{BlockId, State, Was};
use super::{Fences, Ledger};
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
    Lent(StreamId),
    /// Set aside for one holder, who has not lent it.
    Hoarded(Fences),
}

impl Ledger {
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
        let holding = match &block.state {
            State::Free | State::Claimed(Was::Free) => Holding::Free,
            State::Pending(fences) | State::Claimed(Was::Pending(fences)) => {
                Holding::Pending(fences.clone())
            }
            State::Lent => Holding::Lent(block.borrower),
            State::Hoarded(_, fences) => Holding::Hoarded(fences.clone()),
            State::Hole | State::Claimed(Was::Hole) => return None,
        };
        Some(Found {
            id,
            address: block.address,
            bytes: block.bytes,
            holding,
        })
    }

    /// Remembers whom a block was lent to.
    pub(crate) fn note_borrower(&mut self, id: BlockId, stream: StreamId) {
        self.blocks[id].borrower = stream;
    }
}
