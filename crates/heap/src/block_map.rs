//! The block map: the segments and their blocks, with the indexes and totals that must agree with them.
//!
//! A block is *filed* when the totals count it and the index of its state holds it. Every change of a block is a method
//! of this type, which keeps blocks, indexes and totals in step. Methods that cut or join blocks without changing their
//! state leave the totals alone.

use super::block::{Block, BlockId, Blocks, State, Was};
use super::chunk::Units;
use super::fence::Fences;
use super::index::Index;
use super::request::{Grant, Request};
use super::totals::Totals;
use crate::id::{ReservationId, StreamId};

/// A range of addresses that the device gave, tiled by blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    pub(super) first: BlockId,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct BlockMap {
    units: Units,
    blocks: Blocks,
    /// How many blocks are the first of a segment.
    pub(super) segment_count: usize,
    index: Index,
    totals: Totals,
}

impl BlockMap {
    pub(super) fn new(units: Units) -> Self {
        Self {
            units,
            blocks: Blocks::default(),
            segment_count: 0,
            index: Index::default(),
            totals: Totals::default(),
        }
    }

    pub(super) fn units(&self) -> &Units {
        &self.units
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Returns the segments with their addresses, lowest first, in time proportional to the number of blocks.
    pub(super) fn segments(&self) -> impl Iterator<Item = (u64, Segment)> + use<> {
        let firsts = self.blocks.iter();
        let firsts = firsts.filter(|(_, block)| block.previous.is_none());
        let segment = |(first, block): (BlockId, &Block)| {
            let blocks = self.blocks.from(first);
            let bytes = blocks.map(|(_, block)| block.bytes).sum();
            (block.address, Segment { bytes, first })
        };
        let mut segments: Vec<_> = firsts.map(segment).collect();
        segments.sort_unstable_by_key(|(address, _)| *address);
        segments.into_iter()
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Returns the reserved block of a reservation with the highest address up to this one.
    pub(super) fn reserved_up_to(
        &mut self,
        reservation: ReservationId,
        address: u64,
    ) -> Option<BlockId> {
        let reserved = self.index.reserved.get_mut(&reservation)?;
        reserved.up_to(address, &self.blocks)
    }

    /// Brings the stretches up to date for a search.
    pub(super) fn update_stretches(&mut self) {
        self.index.update_stretches(&self.blocks);
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(super) fn totals_mut(&mut self) -> &mut Totals {
        &mut self.totals
    }

    /// Adds a segment of one block, which is not filed yet.
    #[inline]
    pub(super) fn add_segment(&mut self, address: u64, bytes: u64, state: State) -> BlockId {
        self.segment_count += 1;
        self.blocks.insert(Block::new(address, bytes, state))
    }

    /// Removes a segment of one block. The device may have given its address to another segment meanwhile.
    #[inline]
    pub(super) fn remove_segment(&mut self, id: BlockId) {
        self.unfile(id);
        self.segment_count -= 1;
        self.index.stretches.give_up();
        self.blocks.remove(id);
    }

    /// Returns the offset at which the request would lie in the block, if it fits.
    #[inline]
    pub(super) fn offset_of(&self, id: BlockId, request: Request) -> Option<u64> {
        let block = &self.blocks[id];
        let offset = if request.alignment.is_power_of_two() {
            // The distance to the next multiple, without a division.
            block.address.wrapping_neg() & (request.alignment - 1)
        } else {
            // The size of a chunk can be any multiple of the device's granularity.
            block.address.next_multiple_of(request.alignment) - block.address
        };
        (offset + request.bytes <= block.bytes).then_some(offset)
    }

    /// Cuts the request out of a free, pending or reserved block and grants it. The rest keeps its state.
    pub(super) fn carve(&mut self, whole: BlockId, request: Request) -> Grant {
        let offset = self.offset_of(whole, request).expect("the block fits");
        self.remove_from_index(whole);
        // One of the frees is granted again. The lowest part that stays is made of the others.
        let frees = self.blocks[whole].frees();
        let is_above = offset + request.bytes < self.blocks[whole].bytes;
        let mut id = whole;
        if offset > 0 {
            id = self.blocks.split(whole, offset);
            if is_above && frees > 2 {
                self.blocks[whole].set_frees(frees - 2);
            }
            self.insert_into_index(whole);
        }
        if is_above {
            let above = self.blocks.split(id, request.bytes);
            if offset == 0 && frees > 2 {
                self.blocks[above].set_frees(frees - 1);
            }
            self.insert_into_index(above);
        }
        self.index.stretches.list(id);
        let block = &mut self.blocks[id];
        block.set_user(StreamId::NONE);
        let was = std::mem::replace(&mut block.state, State::Used(None));
        let (address, bytes) = (block.address, block.bytes);
        self.totals.subtract(&was, bytes);
        self.count(&State::Used(None), bytes);
        let fences = match was {
            State::Pending(fences) | State::Reserved(_, fences) => fences,
            _ => Fences::default(),
        };
        // The rest is free again by now, so this is how little there really was.
        self.totals.record_low();
        Grant {
            id,
            address,
            bytes,
            fences,
        }
    }

    /// Grants a part of an unfiled block, and frees the rest.
    pub(super) fn grant_part(
        &mut self,
        whole: BlockId,
        start: u64,
        request: Request,
        fences: Fences,
    ) -> Grant {
        let mut id = whole;
        let (mut below, mut above) = (None, None);
        if self.blocks[id].address < start {
            id = self.blocks.split(whole, start - self.blocks[whole].address);
            below = Some(whole);
        }
        if self.blocks[id].bytes > request.bytes {
            above = Some(self.blocks.split(id, request.bytes));
        }
        self.blocks[id].state = State::Used(None);
        self.blocks[id].set_user(StreamId::NONE);
        self.file(id);
        for rest in [below, above].into_iter().flatten() {
            self.settle(rest, State::Free);
        }
        self.grant(id, fences)
    }

    /// Returns the grant of a used block.
    #[inline]
    pub(super) fn grant(&self, id: BlockId, fences: Fences) -> Grant {
        let Block { address, bytes, .. } = self.blocks[id];
        Grant {
            id,
            address,
            bytes,
            fences,
        }
    }

    /// Notes which stream a block is granted to.
    #[inline]
    pub(super) fn set_user(&mut self, id: BlockId, stream: StreamId) {
        self.blocks[id].set_user(stream);
    }

    /// Notes which reservation a used block returns to.
    pub(super) fn set_reservation(&mut self, id: BlockId, reservation: ReservationId) {
        debug_assert!(self.blocks[id].state.is_used());
        self.blocks[id].state = State::Used(Some(reservation));
    }

    /// Takes a used block out of the totals, to be [settled](Self::settle) in its next state. Returns the reservation
    /// that it returns to.
    pub(super) fn take_used(&mut self, id: BlockId) -> Option<ReservationId> {
        let block = &self.blocks[id];
        let State::Used(reservation) = block.state else {
            unreachable!("only a used block is given back, not {block:?}");
        };
        self.totals.subtract(&State::Used(None), block.bytes);
        reservation
    }

    /// Cuts a block in two, which both keep its state. Returns the upper part.
    pub(super) fn cut(&mut self, id: BlockId, offset: u64) -> BlockId {
        self.remove_from_index(id);
        let upper = self.blocks.split(id, offset);
        self.insert_into_index(id);
        self.insert_into_index(upper);
        upper
    }

    /// Cuts off the parts of a block outside the range; of a hole only whole chunks. Returns the part inside.
    pub(super) fn cut_out(&mut self, mut id: BlockId, mut start: u64, mut end: u64) -> BlockId {
        if matches!(self.blocks[id].state, State::Hole | State::Room) {
            let chunk = self.units.chunk_bytes;
            start = start / chunk * chunk;
            end = end.next_multiple_of(chunk);
        }
        if self.blocks[id].address < start {
            id = self.cut(id, start - self.blocks[id].address);
        }
        if self.blocks[id].end() > end {
            self.cut(id, end - self.blocks[id].address);
        }
        id
    }

    /// Joins unfiled neighbours, lowest first, into one unfiled block.
    pub(super) fn join(&mut self, run: &[BlockId]) -> BlockId {
        for _ in &run[1..] {
            self.blocks.absorb_next(run[0]);
        }
        run[0]
    }

    /// Gives an unfiled block its state, merges it with its neighbours and files it.
    pub(super) fn settle(&mut self, mut id: BlockId, state: State) -> BlockId {
        // Memory that is set aside keeps its room while parts of it are granted and freed.
        if !matches!(state, State::Room | State::Reserved(..)) {
            self.end_room_above(id);
        }
        let block = &self.blocks[id];
        let (previous, next, bytes) = (block.previous, block.next, block.bytes);
        let mut frees = block.frees();
        self.count(&state, bytes);
        if let Some(next) = next.filter(|next| self.merges(*next, &state)) {
            self.remove_from_index(next);
            frees += self.blocks[next].frees();
            self.blocks.absorb_next(id);
        }
        if let Some(previous) = previous.filter(|previous| self.merges(*previous, &state)) {
            self.remove_from_index(previous);
            frees += self.blocks[previous].frees();
            self.blocks.absorb_next(previous);
            id = previous;
        } else {
            self.blocks[id].state = state;
        }
        self.blocks[id].set_frees(frees);
        self.insert_into_index(id);
        id
    }

    #[inline(always)]
    fn merges(&self, neighbour: BlockId, state: &State) -> bool {
        self.blocks[neighbour].state.merges_with(state)
    }

    /// Turns the room above a block into a hole.
    #[inline(always)]
    fn end_room_above(&mut self, id: BlockId) {
        let above = self.blocks[id].next;
        let room = above.filter(|above| matches!(self.blocks[*above].state, State::Room));
        if let Some(room) = room {
            self.end_room(room);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_room(&mut self, room: BlockId) {
        self.resettle(room, State::Hole);
    }

    /// Keeps this many bytes of the hole above a claimed block as its room.
    pub(super) fn keep_room(&mut self, claimed: BlockId, bytes: u64) {
        let Some(hole) = self.blocks[claimed].next.filter(|_| bytes > 0) else {
            return;
        };
        if self.blocks[hole].bytes > bytes {
            self.cut(hole, bytes);
        }
        self.set_state(hole, State::Room);
    }

    /// Gives a filed block another state, and merges it with its neighbours.
    pub(super) fn resettle(&mut self, id: BlockId, state: State) -> BlockId {
        self.unfile(id);
        self.settle(id, state)
    }

    /// Gives a filed block another state, without merging it.
    pub(super) fn set_state(&mut self, id: BlockId, state: State) {
        self.unfile(id);
        self.blocks[id].state = state;
        self.file(id);
    }

    /// Claims a free or pending block, a hole or a room, for a plan or a release.
    pub(super) fn claim(&mut self, id: BlockId) -> Was {
        let was = match &self.blocks[id].state {
            State::Free => Was::Free,
            State::Pending(fences) => Was::Pending(fences.clone()),
            State::Hole => Was::Hole,
            State::Room => Was::Room,
            state => unreachable!("a block that is {state:?} cannot be claimed"),
        };
        self.set_state(id, State::Claimed(was.clone()));
        was
    }

    /// Gives the part of a filed block below the address one state, and the rest another.
    pub(super) fn resettle_parts(&mut self, id: BlockId, address: u64, below: State, above: State) {
        let block = &self.blocks[id];
        if address >= block.end() {
            self.resettle(id, below);
        } else if address <= block.address {
            self.resettle(id, above);
        } else {
            let upper = self.cut(id, address - block.address);
            self.resettle(upper, above);
            self.resettle(id, below);
        }
    }

    pub(super) fn file(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.totals.add(&block.state, block.bytes);
        self.insert_into_index(id);
    }

    pub(super) fn unfile(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.totals.subtract(&block.state, block.bytes);
        self.remove_from_index(id);
    }

    #[inline]
    fn count(&mut self, state: &State, bytes: u64) {
        self.totals.add(state, bytes);
    }

    // In line, so that each caller has a branch of its own; see `Index`.
    #[inline(always)]
    fn insert_into_index(&mut self, id: BlockId) {
        self.index.stretches.list(id);
        let block = &self.blocks[id];
        match &block.state {
            State::Free => self.insert_free(id),
            State::Pending(fences) => self.index.insert_pending(&self.blocks, id, fences),
            State::Reserved(reservation, _) => self.index.insert_reserved(id, block, *reservation),
            State::Hole => self.index.holes.insert(block.bytes, block.address, id),
            State::Used(_) | State::Claimed(_) | State::Room => {}
        }
    }

    #[inline(always)]
    fn remove_from_index(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        match &block.state {
            State::Free => self.remove_free(id),
            State::Pending(fences) => self.index.remove_pending(id, block, fences),
            State::Reserved(reservation, _) => self.index.remove_reserved(id, block, *reservation),
            State::Hole => self.index.holes.remove(block.bytes, block.address, id),
            State::Used(_) | State::Claimed(_) | State::Room => {}
        }
    }

    #[inline(never)]
    fn insert_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.index.free.insert(block.bytes, block.address, id);
        let (bytes, chunks) = self.units.releasable(block);
        self.totals.add_releasable(bytes, chunks);
    }

    #[inline(never)]
    fn remove_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.index.free.remove(block.bytes, block.address, id);
        let (bytes, chunks) = self.units.releasable(block);
        self.totals.subtract_releasable(bytes, chunks);
    }
}

#[cfg(test)]
impl BlockMap {
    /// Hands out the parts, so that tests can break the invariants.
    pub(super) fn parts_mut(&mut self) -> (&mut Blocks, &mut Totals) {
        (&mut self.blocks, &mut self.totals)
    }
}
