//! Figures of a heap at one moment, and which block an address is in.
//!
//! No index by address exists: a look-up takes time in proportion to the number of blocks, and nothing else pays for it.

use super::Heap;
use super::block::{Block, BlockId, State, Was};
use super::fence::Fences;
use super::reservation;
use super::totals::Totals;
use crate::id::{ReservationId, StreamId};
use crate::level::Mark;

/// Figures of a heap, found in constant time.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// With the high-water marks since the mark that was asked for.
    pub totals: Totals,
    /// The bytes of the largest free block.
    pub largest_free: u64,
    /// The number of free blocks.
    pub free_blocks: usize,
    /// The number of reservations.
    pub reservations: usize,
    /// The number of chunks held from the device, or of segments where memory is plain.
    pub chunks: u64,
    /// The number of those that are wholly free.
    pub releasable_chunks: u64,
    /// The number of free blocks that hold those.
    pub releasable_blocks: u64,
    /// The bytes of those.
    pub releasable_bytes: u64,
}

impl Figures {
    /// Reads the figures, with the high-water marks since a mark.
    pub fn of(heap: &Heap, since: Mark) -> Self {
        let (totals, units) = (heap.highs.since(since, heap.totals()), heap.map.units());
        let index = heap.map.index();
        let free = &index.free;
        Self {
            totals,
            largest_free: free.largest(),
            free_blocks: free.len(),
            reservations: index.reserved.len(),
            chunks: if units.virtual_memory {
                totals.reserved.current / units.chunk_bytes
            } else {
                heap.map.segment_count as u64
            },
            releasable_chunks: totals.whole_free_chunks,
            releasable_blocks: totals.releasable_blocks,
            releasable_bytes: totals.releasable,
        }
    }

    /// Returns how many bytes to make contiguous, so that the pool holds `total` bytes in all: free memory that can be
    /// released, and new memory if `total` is more than the pool holds. A multiple of the `step` in which memory is
    /// taken.
    pub fn piece_for(&self, total: u64, step: u64) -> u64 {
        let releasable = self.releasable_bytes;
        let reserved = self.totals.reserved.current;
        let fixed = reserved - releasable;
        let most = releasable + total.saturating_sub(reserved).next_multiple_of(step);
        let wanted = total.saturating_sub(fixed).min(most);
        wanted.next_multiple_of(step).min(most)
    }
}

/// A block, as it was when it was looked up.
#[derive(Clone, Debug)]
pub struct Found {
    /// The block.
    pub id: BlockId,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Who may use it.
    pub holding: Holding,
}

/// The owner of a block, and the fences that its last use left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nobody uses it.
    Free,
    /// Freed, and not complete before these points.
    Pending(Fences),
    /// In use by this stream, or cached by its lane.
    Used(StreamId),
    /// Set aside in a reservation.
    Reserved(ReservationId, Fences),
}

impl Found {
    /// Returns the block that contains the address; `None` where there is no memory.
    pub fn at(heap: &Heap, address: u64) -> Option<Self> {
        let mut blocks = heap.map.blocks().iter();
        let (id, block) = blocks.find(|(_, it)| (it.address..it.end()).contains(&address))?;
        Self::of(id, block)
    }

    fn of(id: BlockId, block: &Block) -> Option<Self> {
        let holding = match &block.state {
            State::Free | State::Claimed(Was::Free) => Holding::Free,
            State::Pending(fences) | State::Claimed(Was::Pending(fences)) => {
                Holding::Pending(fences.clone())
            }
            State::Used(_) => Holding::Used(block.user()),
            State::Reserved(reservation, fences) => Holding::Reserved(*reservation, fences.clone()),
            State::Hole | State::Room | State::Claimed(Was::Hole | Was::Room) => return None,
        };
        Some(Self {
            id,
            address: block.address,
            bytes: block.bytes,
            holding,
        })
    }
}

/// A segment with its blocks, in address order. Addresses without memory are in no block.
#[derive(Clone, Debug)]
pub struct SegmentBlocks {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its blocks, by address.
    pub blocks: Vec<Found>,
}

impl SegmentBlocks {
    /// Returns all segments, in address order.
    pub fn all(heap: &Heap) -> impl Iterator<Item = Self> + '_ {
        heap.map.segments().map(|(address, segment)| {
            let blocks = heap.map.blocks().from(segment.first);
            let blocks = blocks.filter_map(|(id, block)| Found::of(id, block));
            Self {
                address,
                bytes: segment.bytes,
                blocks: blocks.collect(),
            }
        })
    }
}

/// Returns the address and the bytes of each segment, lowest first.
pub fn segments(heap: &Heap) -> Vec<(u64, u64)> {
    let segments = heap.map.segments();
    segments
        .map(|(address, segment)| (address, segment.bytes))
        .collect()
}

/// Returns how many blocks are in use or cached by lanes, in time proportional to the number of all blocks.
pub fn used_blocks(heap: &Heap) -> usize {
    let blocks = heap.map.blocks().iter();
    blocks.filter(|(_, block)| block.state.is_used()).count()
}

/// Returns the bytes of the pending blocks that wait for a stream, alone or with others.
pub fn pending_on(heap: &Heap, stream: StreamId) -> u64 {
    heap.map.index().pending.bytes_waiting_for(stream)
}

/// Returns how many frees those blocks are made of, in constant time.
pub fn pending_blocks_on(heap: &Heap, stream: StreamId) -> usize {
    heap.map.index().pending.frees_waiting_for(stream) as usize
}

/// Returns all reservations, with the bytes of each that are not granted.
pub fn reservations(heap: &Heap) -> impl Iterator<Item = (ReservationId, u64)> + '_ {
    let reservations = heap.map.index().reserved.keys();
    reservations.map(|id| (*id, reservation::left(&heap.map, *id).0))
}

/// Returns the address and the bytes of each block that was granted from one of these reservations, lowest first, in
/// time proportional to the number of all blocks.
pub fn granted_from(heap: &Heap, reservations: &[ReservationId]) -> Vec<(u64, u64)> {
    let blocks = heap.map.blocks().iter().map(|(_, block)| block);
    let granted = blocks.filter(|block| match block.state {
        State::Used(Some(reservation)) => reservations.contains(&reservation),
        _ => false,
    });
    let mut ranges: Vec<_> = granted.map(|block| (block.address, block.bytes)).collect();
    ranges.sort_unstable();
    ranges
}

/// Returns how many bytes may still be taken from the device, and how many are free.
pub fn left_and_free(heap: &Heap) -> (u64, u64) {
    let totals = heap.map.totals();
    (heap.capacity.left(totals), totals.free.current)
}
