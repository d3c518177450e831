//! Claiming a window, and what becomes of it.
//!
//! A plan is made under the heap's lock, carried out on the device without it, and committed under
//! it again. In between the blocks concerned are *claimed*, and the capacity that growth will take is
//! *planned*, so that nobody else counts on either.

use super::block::{BlockId, State, Was};
use super::filing::free_or_pending;
use super::window::{Growth, Window};
use super::{Fences, GRANULE, Grant, Heap, Offers, Placement, Request, View};

/// Something to ask of the device before the request can be granted.
#[derive(Debug)]
#[must_use = "a plan is committed, whatever became of it"]
pub(crate) enum Plan {
    /// A window of addresses, into whose holes handles are mapped.
    Map(Mapping),
    /// A segment of plain memory, in bytes.
    Memory(u64, Request),
}

/// A claimed window.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// In this order; none when the window only merges what is there.
    pub(crate) steps: Vec<Step>,
    request: Request,
    start: u64,
    /// Claimed neighbours, in address order: the window, rounded out to handles in its holes.
    pieces: Vec<BlockId>,
    /// Claimed blocks elsewhere, whose memory is moved.
    victims: Vec<BlockId>,
    fences: Fences,
    planned: u64,
}

/// Map a handle at `to`: the one mapped at `from`, or a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) to: u64,
    pub(crate) from: Option<u64>,
}

/// How far the device came with the steps of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Steps carried out.
    pub(crate) done: usize,
    /// The step after those unmapped its handle, could not map it elsewhere, and let it go.
    pub(crate) lost: bool,
}

impl Plan {
    /// What it takes from the device, in bytes.
    pub(crate) fn new_bytes(&self) -> u64 {
        match self {
            Self::Map(mapping) => mapping.new_bytes(),
            Self::Memory(bytes, _) => *bytes,
        }
    }
}

impl Mapping {
    /// One block of new memory, in a hole that is claimed already.
    pub(super) fn of_new(hole: BlockId, start: u64, bytes: u64, chunk_bytes: u64) -> Self {
        let to = (start..start + bytes).step_by(chunk_bytes as usize);
        Self {
            steps: to.map(|to| Step { to, from: None }).collect(),
            request: Request {
                bytes,
                alignment: GRANULE,
            },
            start,
            pieces: vec![hole],
            victims: Vec::new(),
            fences: Fences::default(),
            planned: bytes,
        }
    }

    /// What it takes from the device, in bytes.
    pub(crate) fn new_bytes(&self) -> u64 {
        self.planned
    }
}

impl Heap {
    /// Bytes that may still be taken from the device, and bytes that are free. A plan that grows needs no more than
    /// both.
    pub(crate) fn left_and_free(&self) -> (u64, u64) {
        (self.bytes_left(), self.totals.free.current)
    }

    /// Finds the cheapest way to build a range for the request with this growth, and claims it.
    pub(crate) fn plan(
        &mut self,
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Option<Plan> {
        let offers = self.offers(request, view, growth);
        self.plan_from(&offers, request, view.placement, growth)
    }

    /// Claims the cheapest of the offers with this growth. The heap must not have changed since they were found.
    pub(crate) fn plan_from(
        &mut self,
        offers: &Offers,
        request: Request,
        placement: Placement,
        growth: Growth,
    ) -> Option<Plan> {
        if let Some(window) = offers.window(growth) {
            if growth.is_sparing() {
                let in_use = self.totals.in_use.current + request.bytes;
                self.most_in_use = self.most_in_use.max(in_use);
            }
            let mapping = self.claim(window, request);
            if let (Placement::WithRoom(room), Some(last)) = (placement, mapping.pieces.last()) {
                self.keep_room(*last, room);
            }
            return Some(Plan::Map(mapping));
        }
        let is_anywhere = placement == Placement::Anywhere;
        if !is_anywhere || growth != Growth::Allowed || self.geometry.virtual_memory {
            return None;
        }
        self.plan_memory(request)
    }

    fn plan_memory(&mut self, request: Request) -> Option<Plan> {
        let (left, granularity) = (self.bytes_left(), self.geometry.granularity);
        let needed = request.bytes.checked_next_multiple_of(granularity)?;
        let step = self.growth_step(needed).max(self.geometry.chunk_bytes);
        let bytes = needed.max(step.min(left) / granularity * granularity);
        if bytes > left {
            return None;
        }
        self.totals.planned += bytes;
        Some(Plan::Memory(bytes, request))
    }

    fn claim(&mut self, window: Window, request: Request) -> Mapping {
        let mut mapping = Mapping {
            steps: Vec::new(),
            request,
            start: window.start,
            pieces: Vec::new(),
            victims: Vec::new(),
            fences: Fences::default(),
            planned: window.new * self.geometry.chunk_bytes,
        };
        self.claim_pieces(window, &mut mapping);
        self.claim_victims(window.maps - window.new, &mut mapping);
        self.totals.planned += mapping.planned;
        self.totals.note_low();
        mapping
    }

    fn claim_pieces(&mut self, window: Window, mapping: &mut Mapping) {
        let (start, end) = (window.start, window.start + mapping.request.bytes);
        let mut next = Some(window.first);
        while let Some(id) = next.filter(|id| self.blocks[*id].address < end) {
            let id = self.trim_piece(id, start, end);
            next = self.blocks[id].next;
            match self.claim_block(id) {
                Was::Free => {}
                Was::Pending(fences) => mapping.fences.join_all(&fences),
                Was::Hole | Was::Room => {
                    let block = &self.blocks[id];
                    let chunks = self.chunks_touched(block.address, block.end());
                    let bytes = self.geometry.chunk_bytes;
                    let to = (chunks.first..chunks.end).map(|chunk| chunk * bytes);
                    mapping.steps.extend(to.map(|to| Step { to, from: None }));
                }
            }
            mapping.pieces.push(id);
        }
    }

    /// Cuts off what the window does not need of a piece; a hole only at handles.
    pub(super) fn trim_piece(&mut self, mut id: BlockId, mut start: u64, mut end: u64) -> BlockId {
        if matches!(self.blocks[id].state, State::Hole | State::Room) {
            let chunk = self.geometry.chunk_bytes;
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

    /// Takes `count` whole handles out of free blocks, from those that serve least: the smallest.
    fn claim_victims(&mut self, count: u64, mapping: &mut Mapping) {
        let chunk = self.geometry.chunk_bytes;
        let mut steps = mapping.steps.iter_mut();
        let mut left = count;
        while left > 0 {
            let id = self.smallest_with_a_chunk().expect("counted before");
            let whole = self.whole_chunks(&self.blocks[id]);
            let taken = whole.count().min(left);
            let start = (whole.end - taken) * chunk;
            let victim = self.trim_piece(id, start, whole.end * chunk);
            for (number, step) in (0..taken).zip(&mut steps) {
                step.from = Some(start + number * chunk);
            }
            self.claim_block(victim);
            mapping.victims.push(victim);
            left -= taken;
        }
    }

    pub(super) fn smallest_with_a_chunk(&self) -> Option<BlockId> {
        self.free
            .at_least(self.geometry.chunk_bytes)
            .map(|(_, id)| id)
            .find(|id| self.whole_chunks(&self.blocks[*id]).count() > 0)
    }

    pub(super) fn claim_block(&mut self, id: BlockId) -> Was {
        self.unfile(id);
        let was = match std::mem::replace(&mut self.blocks[id].state, State::Hole) {
            State::Free => Was::Free,
            State::Pending(fences) => Was::Pending(fences),
            State::Hole => Was::Hole,
            State::Room => Was::Room,
            State::Used(_) | State::Reserved(..) | State::Claimed(_) => {
                unreachable!("what is held is not claimed")
            }
        };
        self.blocks[id].state = State::Claimed(was.clone());
        self.file(id);
        was
    }

    /// Ends a mapping. The request is granted if every step was carried out.
    pub(crate) fn commit(&mut self, mapping: Mapping, outcome: Outcome) -> Option<Grant> {
        let chunk = self.geometry.chunk_bytes;
        let carried_out = &mapping.steps[..outcome.done];
        let new = carried_out
            .iter()
            .filter(|step| step.from.is_none())
            .count() as u64;
        self.totals.planned -= mapping.planned;
        self.totals.reserved.add(new * chunk);
        if outcome.lost {
            self.totals.reserved.subtract(chunk);
        }
        if outcome.done == mapping.steps.len() {
            for victim in mapping.victims {
                self.resolve(victim, State::Hole);
            }
            Some(self.lend_window(
                &mapping.pieces,
                mapping.start,
                mapping.request,
                mapping.fences,
            ))
        } else {
            self.undo(&mapping, outcome);
            None
        }
    }

    /// Ends a claim on one block.
    pub(super) fn resolve(&mut self, id: BlockId, state: State) {
        self.unfile(id);
        self.settle(id, state);
    }

    /// The whole window has memory now: joins it, lends what was asked for, frees what is over.
    fn lend_window(
        &mut self,
        pieces: &[BlockId],
        start: u64,
        request: Request,
        fences: Fences,
    ) -> Grant {
        let first = pieces[0];
        pieces.iter().for_each(|piece| self.unfile(*piece));
        for _ in &pieces[1..] {
            self.blocks.absorb_next(first);
        }
        self.lend_part(first, start, request, fences)
    }

    /// Commits what is to be free: it is given back at once, and no high-water mark has seen it lent.
    pub(crate) fn commit_for_nobody(&mut self, commit: impl FnOnce(&mut Self) -> Option<Grant>) {
        let (used, in_use) = (self.totals.used.high, self.totals.in_use.high);
        if let Some(grant) = commit(self) {
            self.give_back(grant.id, grant.fences);
        }
        (self.totals.used.high, self.totals.in_use.high) = (used, in_use);
    }

    /// Lends a part of an unfiled block and frees the rest.
    fn lend_part(&mut self, whole: BlockId, start: u64, request: Request, fences: Fences) -> Grant {
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
        self.file(id);
        for rest in [below, above].into_iter().flatten() {
            self.settle(rest, State::Free);
        }
        Grant {
            id,
            address: start,
            bytes: request.bytes,
            fences,
        }
    }

    /// The device stopped half way: each handle is where it came to be.
    fn undo(&mut self, mapping: &Mapping, outcome: Outcome) {
        let chunk = self.geometry.chunk_bytes;
        let done = &mapping.steps[..outcome.done];
        let lost = mapping.steps.get(outcome.done).filter(|_| outcome.lost);
        let is_backed = |address| done.iter().any(|step| step.to == address);
        let is_moved = |address| {
            let mut moved = done.iter().chain(lost).filter_map(|step| step.from);
            moved.any(|from| from == address)
        };
        for piece in &mapping.pieces {
            let block = &self.blocks[*piece];
            let mut backed = (block.address..block.end()).step_by(chunk as usize);
            match self.was(*piece) {
                Was::Room if !backed.any(is_backed) => self.resolve(*piece, State::Room),
                Was::Hole | Was::Room => self.resolve_each_chunk(*piece, |address| {
                    if is_backed(address) {
                        State::Free
                    } else {
                        State::Hole
                    }
                }),
                Was::Free => self.resolve(*piece, State::Free),
                Was::Pending(mut fences) => {
                    self.discharge(&mut fences);
                    self.resolve(*piece, free_or_pending(fences));
                }
            }
        }
        for victim in &mapping.victims {
            self.resolve_each_chunk(*victim, |address| {
                if is_moved(address) {
                    State::Hole
                } else {
                    State::Free
                }
            });
        }
    }

    fn was(&self, id: BlockId) -> Was {
        match &self.blocks[id].state {
            State::Claimed(was) => was.clone(),
            state => unreachable!("a plan's block is claimed, not {state:?}"),
        }
    }

    /// Ends a claim handle by handle, from the top down.
    pub(super) fn resolve_each_chunk(&mut self, id: BlockId, state_of: impl Fn(u64) -> State) {
        let chunk = self.geometry.chunk_bytes;
        while self.blocks[id].bytes > chunk {
            let upper = self.cut(id, self.blocks[id].bytes - chunk);
            self.resolve(upper, state_of(self.blocks[upper].address));
        }
        self.resolve(id, state_of(self.blocks[id].address));
    }

    /// Ends a plan for plain memory: `address` is what the device gave, if it did.
    pub(crate) fn commit_memory(
        &mut self,
        bytes: u64,
        request: Request,
        address: Option<u64>,
    ) -> Option<Grant> {
        self.totals.planned -= bytes;
        let address = address?;
        self.totals.reserved.add(bytes);
        let whole = self.add_segment(address, bytes, State::Free);
        let start = address.next_multiple_of(request.alignment);
        Some(self.lend_part(whole, start, request, Fences::default()))
    }
}
