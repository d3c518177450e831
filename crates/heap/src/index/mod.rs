//! How blocks are found: free ones and holes by size; pending ones by the streams that they wait for, by size and by
//! ticket; reserved ones by their reservation and by size; neighbours by the length of their stretch.

mod by_donor;
mod by_size;
mod stretches;

pub(crate) use by_donor::ByDonor;
pub(crate) use by_size::BySize;
pub(crate) use stretches::{Lists, Stretch, Stretches, is_unused};

use super::block::{Block, BlockId, Blocks};
use super::fence::Fences;
use crate::id::ReservationId;
use std::collections::BTreeMap;

/// All indexes of a heap. A block is in the index of its state, and in no other; neighbours are in a stretch, too.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) free: BySize,
    pub(super) holes: BySize,
    pub(super) pending: ByDonor,
    /// Every reservation that exists, with its reserved blocks.
    pub(super) reserved: BTreeMap<ReservationId, Reserved>,
    pub(super) stretches: Stretches,
}

/// The properties of a block that an index uses.
#[derive(Clone, Copy, Debug)]
struct Indexed {
    id: BlockId,
    bytes: u64,
    address: u64,
    frees: u64,
}

impl Indexed {
    fn of(id: BlockId, block: &Block) -> Self {
        Self {
            id,
            bytes: block.bytes,
            address: block.address,
            frees: block.frees(),
        }
    }
}

// The callers choose the index in line, so that each has a branch of its own, which mostly goes the same way. The
// operations stay out of line, or all of them would become one function again.
impl Index {
    /// Returns all free and pending blocks and all holes, in no order.
    pub(super) fn unused(&self) -> impl Iterator<Item = BlockId> + '_ {
        unused(&self.free, &self.holes, &self.pending)
    }

    /// Brings the stretches up to date for a search.
    pub(super) fn update_stretches(&mut self, blocks: &Blocks) {
        let unused = unused(&self.free, &self.holes, &self.pending);
        self.stretches.update(blocks, unused);
    }

    #[inline(never)]
    pub(super) fn insert_pending(&mut self, blocks: &Blocks, id: BlockId, fences: &Fences) {
        let is_waiting = |id, fence| blocks.is_waiting(id, fence);
        let block = Indexed::of(id, &blocks[id]);
        self.pending.insert(block, fences, is_waiting);
    }

    #[inline(never)]
    pub(super) fn remove_pending(&mut self, id: BlockId, block: &Block, fences: &Fences) {
        self.pending.remove(Indexed::of(id, block), fences);
    }

    #[inline(never)]
    pub(super) fn insert_reserved(
        &mut self,
        id: BlockId,
        block: &Block,
        reservation: ReservationId,
    ) {
        let reserved = self.reserved.entry(reservation).or_default();
        reserved.insert(id, block);
    }

    #[inline(never)]
    pub(super) fn remove_reserved(
        &mut self,
        id: BlockId,
        block: &Block,
        reservation: ReservationId,
    ) {
        let reserved = self.reserved.get_mut(&reservation);
        let reserved = reserved.expect("a reserved block's reservation exists");
        reserved.remove(id, block);
    }
}

/// The ungranted blocks of a reservation.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    pub(super) by_size: BySize,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The blocks by address, once one was searched for by its address.
    by_address: Option<BTreeMap<u64, BlockId>>,
}

impl Reserved {
    fn insert(&mut self, id: BlockId, block: &Block) {
        self.by_size.insert(block.bytes, block.address, id);
        self.bytes += block.bytes;
        if let Some(by_address) = &mut self.by_address {
            by_address.insert(block.address, id);
        }
    }

    fn remove(&mut self, id: BlockId, block: &Block) {
        self.by_size.remove(block.bytes, block.address, id);
        self.bytes -= block.bytes;
        if let Some(by_address) = &mut self.by_address {
            by_address.remove(&block.address);
        }
    }

    /// Returns the block with the highest address up to this one.
    pub(super) fn up_to(&mut self, address: u64, blocks: &Blocks) -> Option<BlockId> {
        let by_address = self.by_address.get_or_insert_with(|| {
            let all = self.by_size.all().into_iter();
            all.map(|id| (blocks[id].address, id)).collect()
        });
        Some(*by_address.range(..=address).next_back()?.1)
    }
}

fn unused<'a>(
    free: &'a BySize,
    holes: &'a BySize,
    pending: &'a ByDonor,
) -> impl Iterator<Item = BlockId> + 'a {
    let alone = pending.donors().map(|(_, donated)| &donated.by_size);
    let by_size = [free, holes].into_iter().chain(alone);
    let blocks = by_size.flat_map(|by_size| by_size.at_least(0));
    blocks.map(|(_, id)| id).chain(pending.several())
}
