//! Where a request is to lie, if not anywhere: right above a block that grows, or below addresses that are kept
//! for it to grow into.
//!
//! *Room* is addresses without memory that belong to the lent block below them: nobody maps anything there but
//! for that block. It is a hole again as soon as that block is given back.

use super::block::{BlockId, State};
use super::window::{Growth, Window};
use super::{Grant, Heap, Request, View};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Placement {
    #[default]
    Anywhere,
    /// From the end of this lent block on, which it has there: who asks may be gone, and the block with it.
    Above(BlockId, u64),
    /// Where so many bytes of addresses above it can be kept: the request and they in whole handles.
    WithRoom(u64),
}

impl Heap {
    /// Whether the request can ever lie there, given what the addresses hold now.
    pub(crate) fn is_room(&self, request: Request, placement: Placement) -> bool {
        match placement {
            Placement::Anywhere => true,
            Placement::Above(id, end) => self.room_above(id, end) >= request.bytes,
            Placement::WithRoom(room) => {
                self.hole_for(request.bytes.saturating_add(room)).is_some()
            }
        }
    }

    /// Bytes of addresses that there are.
    pub(crate) fn room(&self, placement: Placement) -> u64 {
        match placement {
            Placement::Anywhere => u64::MAX,
            Placement::Above(id, end) => self.room_above(id, end),
            Placement::WithRoom(_) => self.holes().map(|(_, bytes)| bytes).max().unwrap_or(0),
        }
    }

    /// Bytes above a lent block that it might be extended by, as far as nobody else has them.
    fn room_above(&self, id: BlockId, end: u64) -> u64 {
        if !self.ends_at(id, end) {
            return 0;
        }
        let above = self.blocks.from(id).skip(1);
        let is_nobodys = |(at, state): (usize, &State)| match state {
            State::Free | State::Pending(_) | State::Claimed(_) => true,
            State::Hole => self.geometry.virtual_memory,
            State::Room => at == 0,
            State::Used | State::Reserved(..) => false,
        };
        let blocks = above.enumerate();
        let ours = blocks.take_while(|(at, (_, block))| is_nobodys((*at, &block.state)));
        ours.map(|(_, (_, block))| block.bytes).sum()
    }

    fn ends_at(&self, id: BlockId, end: u64) -> bool {
        let block = self.blocks.get(id);
        block.is_some_and(|block| block.state == State::Used && block.end() == end)
    }

    /// The smallest hole that is large enough: the large ones are for those that need them.
    fn hole_for(&self, bytes: u64) -> Option<BlockId> {
        let holes = self.holes().filter(|(_, size)| *size >= bytes);
        holes.min_by_key(|(_, size)| *size).map(|(id, _)| id)
    }

    fn holes(&self) -> impl Iterator<Item = (BlockId, u64)> + '_ {
        let holes = self.blocks.iter();
        let holes = holes.filter(|(_, block)| block.state == State::Hole);
        holes.map(|(id, block)| (id, block.bytes))
    }

    /// Lends what lies right above a block, as a block of its own, if the asker may have it as it is.
    pub(super) fn take_above(
        &mut self,
        (id, end): (BlockId, u64),
        request: Request,
        view: &View<'_>,
    ) -> Option<Grant> {
        let above = self.ends_at(id, end).then(|| self.blocks[id].next)??;
        let does = self.may_have(above, view) && self.blocks[above].bytes >= request.bytes;
        does.then(|| self.carve(above, request))
    }

    /// The one window right above a block, if the asker may have all of it.
    pub(super) fn window_above(
        &self,
        (id, start): (BlockId, u64),
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Option<Window> {
        if !self.ends_at(id, start) {
            return None;
        }
        let end = start + request.bytes;
        let mut run = Vec::new();
        for (above, block) in self.blocks.from(id).skip(1) {
            let is_its_room = run.is_empty() && block.state == State::Room;
            let kind = match self.kind(above, view, growth) {
                None if is_its_room && growth != Growth::None => super::window::Kind::Hole,
                kind => kind?,
            };
            run.push(self.as_piece(above, kind));
            if block.end() >= end {
                return Some(self.price(&run, start, request.bytes, growth));
            }
        }
        None
    }

    /// A window at the beginning of a hole, which has the room as well.
    pub(super) fn window_with_room(
        &self,
        request: Request,
        room: u64,
        growth: Growth,
    ) -> Option<Window> {
        if growth == Growth::None {
            return None;
        }
        let hole = self.hole_for(request.bytes.checked_add(room)?)?;
        let piece = self.as_piece(hole, super::window::Kind::Hole);
        let start = self.blocks[hole].address;
        Some(self.price(&[piece], start, request.bytes, growth))
    }

    /// Keeps addresses above a claimed window for it.
    pub(super) fn keep_room(&mut self, window: BlockId, bytes: u64) {
        let Some(hole) = self.blocks[window].next.filter(|_| bytes > 0) else {
            return;
        };
        if self.blocks[hole].bytes > bytes {
            self.cut(hole, bytes);
        }
        self.unfile(hole);
        self.blocks[hole].state = State::Room;
        self.file(hole);
    }

    /// The room above a block that is given back is anybody's.
    pub(super) fn end_room_above(&mut self, id: BlockId) {
        let above = self.blocks[id].next;
        let room = above.filter(|above| matches!(self.blocks[*above].state, State::Room));
        if let Some(room) = room {
            self.unfile(room);
            self.settle(room, State::Hole);
        }
    }

    /// Makes one block of a lent block and of what was lent right above it.
    pub(crate) fn join_used(&mut self, lower: BlockId, upper: BlockId) {
        debug_assert_eq!(self.blocks[lower].next, Some(upper));
        self.unfile(lower);
        self.unfile(upper);
        self.blocks.absorb_next(lower);
        self.file(lower);
    }
}
