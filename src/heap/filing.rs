//! Filing: states, indexes and totals move together.
//!
//! A block is *filed* when the totals count it and the index of its state has it. Who cuts or joins blocks without
//! changing what they are leaves the totals alone.

use super::block::{BlockId, State};
use super::{Fences, Heap, ReservationId};

impl Heap {
    /// Cuts a block; both parts keep its state. Returns the upper part.
    pub(super) fn cut(&mut self, id: BlockId, offset: u64) -> BlockId {
        self.unindex(id);
        let upper = self.blocks.split(id, offset);
        self.index(id);
        self.index(upper);
        upper
    }

    /// Gives an unfiled block its state, merges it with its neighbours, and files it.
    pub(super) fn settle(&mut self, mut id: BlockId, state: State) -> BlockId {
        if !matches!(state, State::Room) {
            self.end_room_above(id);
        }
        let block = &self.blocks[id];
        let (previous, next, bytes) = (block.previous, block.next, block.bytes);
        self.count(&state, bytes);
        if let Some(next) = next.filter(|next| self.merges(*next, &state)) {
            self.unindex(next);
            self.blocks.absorb_next(id);
        }
        if let Some(previous) = previous.filter(|previous| self.merges(*previous, &state)) {
            self.unindex(previous);
            self.blocks.absorb_next(previous);
            id = previous;
        } else {
            self.blocks[id].state = state;
        }
        self.index(id);
        id
    }

    #[inline]
    fn merges(&self, neighbour: BlockId, state: &State) -> bool {
        self.blocks[neighbour].state.merges_with(state)
    }

    pub(super) fn file(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.totals.add(&block.state, block.bytes);
        self.index(id);
    }

    pub(super) fn unfile(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.totals.subtract(&block.state, block.bytes);
        self.unindex(id);
    }

    #[inline]
    pub(super) fn count(&mut self, state: &State, bytes: u64) {
        self.totals.add(state, bytes);
    }

    // The choice is in line, so that each caller has a jump of its own, which goes the same way most often; what is
    // chosen is not, or all would be one function again.
    #[inline(always)]
    pub(super) fn index(&mut self, id: BlockId) {
        match self.blocks[id].state {
            State::Free => self.index_free(id),
            State::Pending(_) => self.index_pending(id),
            State::Reserved(reservation, _) => self.index_reserved(id, reservation),
            State::Used(_) | State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    #[inline(never)]
    fn index_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.free.insert(block.bytes, block.address, id);
        let chunks = self.whole_chunks(block).count();
        self.totals.add_free_chunks(chunks);
    }

    #[inline(never)]
    fn index_pending(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let State::Pending(fences) = &block.state else {
            return;
        };
        let is_waiting = |id, fence| self.blocks.is_waiting(id, fence);
        self.pending.insert(block.filed(id), fences, is_waiting);
    }

    #[inline(never)]
    fn index_reserved(&mut self, id: BlockId, reservation: ReservationId) {
        let block = &self.blocks[id];
        let by_size = self.reservations.entry(reservation).or_default();
        by_size.insert(block.bytes, block.address, id);
    }

    #[inline(always)]
    pub(super) fn unindex(&mut self, id: BlockId) {
        match self.blocks[id].state {
            State::Free => self.unindex_free(id),
            State::Pending(_) => self.unindex_pending(id),
            State::Reserved(reservation, _) => self.unindex_reserved(id, reservation),
            State::Used(_) | State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    #[inline(never)]
    fn unindex_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.free.remove(block.bytes, block.address, id);
        let chunks = self.whole_chunks(block).count();
        self.totals.subtract_free_chunks(chunks);
    }

    #[inline(never)]
    fn unindex_pending(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let State::Pending(fences) = &block.state else {
            return;
        };
        self.pending.remove(block.filed(id), fences);
    }

    #[inline(never)]
    fn unindex_reserved(&mut self, id: BlockId, reservation: ReservationId) {
        let block = &self.blocks[id];
        let by_size = self
            .reservations
            .get_mut(&reservation)
            .expect("a hoard that lasts");
        by_size.remove(block.bytes, block.address, id);
    }
}

pub(super) fn free_or_pending(fences: Fences) -> State {
    if fences.is_empty() {
        State::Free
    } else {
        State::Pending(fences)
    }
}
