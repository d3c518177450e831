//! Plans: the device calls that have to be made before a request can be granted.
//!
//! A plan is made under the heap's lock, carried out on the device without it, and committed under it again (invariant
//! *no-lock-across-calls*). In between, the blocks of the plan are *claimed*, and the part of the capacity that it will
//! take is *planned*, so that no other request counts on either.

use super::Heap;
use super::block::{BlockId, State, Was};
use super::block_map::BlockMap;
use super::chunk::GRANULE;
use super::completed::Completed;
use super::fence::Fences;
use super::growth::Capacity;
use super::request::{Grant, Request};
use super::window::Window;

/// Something to ask of the device before the request can be granted.
#[derive(Debug)]
#[must_use = "a plan is committed, whatever its outcome"]
pub enum Plan {
    /// A window of addresses, with chunks to be mapped into its holes.
    Map(Mapping),
    /// A segment of plain memory.
    Memory(NewSegment),
}

/// A segment of plain memory to take from the device.
#[derive(Clone, Copy, Debug)]
pub struct NewSegment {
    /// Its size.
    pub bytes: u64,
    /// The request that it is taken for.
    request: Request,
}

/// A claimed window.
#[derive(Debug)]
pub struct Mapping {
    /// In the order of the addresses to map, which is the order to carry them out in. Steps that move a chunk come
    /// first. There are none if the window only joins blocks.
    pub steps: Vec<Step>,
    request: Request,
    start: u64,
    /// Claimed neighbours, in address order: the window, rounded out to chunks in its holes.
    pieces: Vec<BlockId>,
    /// Claimed blocks elsewhere, whose chunks are moved: in the order of the steps.
    victims: Vec<BlockId>,
    fences: Fences,
    planned: u64,
}

/// Map a chunk at `to`: the one mapped at `from`, or a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where the chunk is mapped.
    pub to: u64,
    /// Where it is mapped now; `None` for a new chunk.
    pub from: Option<u64>,
}

/// How far the device came with the steps of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number of steps that were carried out.
    pub done: usize,
    /// Whether the next step unmapped its chunk, could not map it elsewhere, and destroyed it.
    pub lost: bool,
}

impl Plan {
    /// Returns how many bytes the plan takes from the device.
    pub fn new_bytes(&self) -> u64 {
        match self {
            Self::Map(mapping) => mapping.new_bytes(),
            Self::Memory(segment) => segment.bytes,
        }
    }

    /// Returns how many chunks of virtual memory the plan maps.
    pub fn chunks(&self) -> u64 {
        match self {
            Self::Map(mapping) => mapping.steps.len() as u64,
            Self::Memory(_) => 0,
        }
    }

    /// Plans up to `bytes` of new memory as one block, rounded up to whole chunks: as much as the capacity and one hole
    /// hold. Where memory is plain, plans a segment of that size if the capacity holds it.
    pub(super) fn of_new(map: &mut BlockMap, capacity: &Capacity, bytes: u64) -> Option<Self> {
        let left = capacity.left(map.totals());
        if !map.units().virtual_memory {
            let bytes = bytes.checked_next_multiple_of(map.units().granularity)?;
            let is_allowed = bytes > 0 && bytes <= left;
            let alignment = GRANULE;
            let request = Request { bytes, alignment };
            return is_allowed.then(|| Self::Memory(NewSegment::planned(map, bytes, request)));
        }
        let chunk = map.units().chunk_bytes;
        let count = bytes.div_ceil(chunk).min(left / chunk);
        let hole = best_hole(map, count * chunk)?;
        let count = count.min(map.blocks()[hole].bytes / chunk);
        (count > 0).then(|| Self::Map(Mapping::of_new(map, hole, count * chunk)))
    }
}

/// Returns the smallest hole that is large enough, or the largest one.
fn best_hole(map: &BlockMap, bytes: u64) -> Option<BlockId> {
    let holes = &map.index().holes;
    let best = holes.at_least(bytes).next().or(holes.last());
    best.map(|(_, id)| id)
}

impl NewSegment {
    pub(super) fn planned(map: &mut BlockMap, bytes: u64, request: Request) -> Self {
        map.totals_mut().planned += bytes;
        Self { bytes, request }
    }

    /// Ends the plan. `address` is the segment that the device gave, if it did.
    ///
    /// `fences` are the points that uses of it must come after.
    #[inline]
    pub fn commit(self, heap: &mut Heap, address: Option<u64>, fences: Fences) -> Option<Grant> {
        let map = &mut heap.map;
        let Self { bytes, request } = self;
        map.totals_mut().planned -= bytes;
        let address = address?;
        map.totals_mut().reserved.add(bytes);
        if request.bytes == bytes {
            let id = map.add_segment(address, bytes, State::Used(None));
            map.file(id);
            return Some(map.grant(id, fences));
        }
        let whole = map.add_segment(address, bytes, State::Free);
        let start = address.next_multiple_of(request.alignment);
        Some(map.grant_part(whole, start, request, fences))
    }

    /// Returns the alignment of the request.
    pub fn alignment(&self) -> u64 {
        self.request.alignment
    }
}

impl Mapping {
    /// Returns how many bytes the plan takes from the device.
    pub fn new_bytes(&self) -> u64 {
        self.planned
    }

    /// Claims the start of a hole for one block of new memory.
    fn of_new(map: &mut BlockMap, hole: BlockId, bytes: u64) -> Self {
        let start = map.blocks()[hole].address;
        let window = Window::of_hole(hole, start, bytes / map.units().chunk_bytes);
        let alignment = GRANULE;
        Self::claim(map, window, Request { bytes, alignment })
    }

    /// Claims a window, and the chunks elsewhere that are moved into it.
    pub(super) fn claim(map: &mut BlockMap, window: Window, request: Request) -> Self {
        let mut mapping = Self {
            steps: Vec::new(),
            request,
            start: window.start,
            pieces: Vec::new(),
            victims: Vec::new(),
            fences: Fences::default(),
            planned: window.new * map.units().chunk_bytes,
        };
        mapping.claim_pieces(map, window.first);
        mapping.claim_victims(map, window.maps - window.new);
        let totals = map.totals_mut();
        totals.planned += mapping.planned;
        totals.record_low();
        mapping
    }

    fn claim_pieces(&mut self, map: &mut BlockMap, first: BlockId) {
        let chunk = map.units().chunk_bytes;
        let end = self.start + self.request.bytes;
        let mut next = Some(first);
        while let Some(id) = next.filter(|id| map.blocks()[*id].address < end) {
            let id = map.cut_out(id, self.start, end);
            match map.claim(id) {
                Was::Free => {}
                Was::Pending(fences) => self.fences.join_all(&fences),
                Was::Hole | Was::Room => {
                    let block = &map.blocks()[id];
                    let to = (block.address..block.end()).step_by(chunk as usize);
                    self.steps.extend(to.map(|to| Step { to, from: None }));
                }
            }
            next = map.blocks()[id].next;
            self.pieces.push(id);
        }
    }

    /// Claims `count` whole chunks of free blocks. Takes them from the smallest blocks, which serve the fewest
    /// requests.
    fn claim_victims(&mut self, map: &mut BlockMap, count: u64) {
        let (units, mut left) = (*map.units(), count);
        let mut ranges = Vec::new();
        for (_, id) in map.index().free.at_least(units.chunk_bytes) {
            let whole = units.whole_chunks(&map.blocks()[id]);
            let taken = whole.count().min(left);
            if taken > 0 {
                ranges.push((id, whole.end - taken, whole.end));
                left -= taken;
            }
            if left == 0 {
                break;
            }
        }
        debug_assert_eq!(left, 0, "the scan counted them");
        let mut steps = self.steps.iter_mut();
        for (id, first, end) in ranges {
            let chunks = (first..end).map(|number| number * units.chunk_bytes);
            for (from, step) in chunks.zip(&mut steps) {
                step.from = Some(from);
            }
            let victim = map.cut_out(id, first * units.chunk_bytes, end * units.chunk_bytes);
            map.claim(victim);
            self.victims.push(victim);
        }
    }

    /// Returns the last block of the window.
    pub(super) fn last_piece(&self) -> BlockId {
        *self.pieces.last().expect("a window has a block")
    }

    /// Ends the plan. The request is granted if every step was carried out.
    pub fn commit(self, heap: &mut Heap, outcome: Outcome) -> Option<Grant> {
        let Heap { map, completed, .. } = heap;
        let chunk = map.units().chunk_bytes;
        let carried_out = self.steps[..outcome.done].iter();
        let new = carried_out.filter(|step| step.from.is_none()).count() as u64;
        let totals = map.totals_mut();
        totals.planned -= self.planned;
        totals.reserved.add(new * chunk);
        if outcome.lost {
            totals.reserved.subtract(chunk);
        }
        if outcome.done < self.steps.len() {
            self.undo(map, completed, outcome);
            return None;
        }
        for victim in self.victims {
            map.resettle(victim, State::Hole);
        }
        // The whole window has memory now.
        self.pieces.iter().for_each(|piece| map.unfile(*piece));
        let whole = map.join(&self.pieces);
        Some(map.grant_part(whole, self.start, self.request, self.fences))
    }

    /// Ends a plan that the device stopped half way: each chunk is where the device left it.
    fn undo(self, map: &mut BlockMap, completed: &Completed, outcome: Outcome) {
        let is_gone = |step: &&Step| step.from.is_some();
        let steps = self.steps[..outcome.done + usize::from(outcome.lost)].iter();
        let mut moved = steps.filter(is_gone).count() as u64 * map.units().chunk_bytes;
        // The steps are in address order, so the holes have memory up to the first step that was not carried out.
        let backed_to = self.steps[outcome.done].to;
        for piece in self.pieces {
            let block = &map.blocks()[piece];
            let State::Claimed(was) = block.state.clone() else {
                unreachable!("a plan's block is claimed, not {block:?}");
            };
            match was {
                Was::Free => {
                    map.resettle(piece, State::Free);
                }
                Was::Pending(mut fences) => {
                    completed.discharge(&mut fences);
                    map.resettle(piece, State::after(fences));
                }
                Was::Room if block.address >= backed_to => {
                    map.resettle(piece, State::Room);
                }
                Was::Hole | Was::Room => {
                    map.resettle_parts(piece, backed_to, State::Free, State::Hole);
                }
            }
        }
        // The chunks of the victims were moved in the order of the steps, too.
        for victim in self.victims {
            let block = &map.blocks()[victim];
            let of_this = moved.min(block.bytes);
            let end = block.address + of_this;
            map.resettle_parts(victim, end, State::Hole, State::Free);
            moved -= of_this;
        }
    }
}
