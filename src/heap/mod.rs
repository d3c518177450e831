//! The heap: the shared book of segments and blocks behind the lanes.
//!
//! A *segment* is a span of addresses obtained from the device. *Blocks* tile it (I1). Each block is
//! in one state:
//!
//! ```text
//!              take / commit                    give_back, fences left
//!     Free ───────────────────▶ Lent ───────────────────────────────▶ Pending
//!      ▲ ▲                       │ ▲                                   │   │
//!      │ └───────────────────────┘ └───────────────────────────────────┘   │
//!      │   give_back, none left      take: the taker comes after them      │
//!      ├───────────────────────────────────────────────────────────────────┘
//!      │                    complete: the last fence
//!      │
//!      └── Claimed ◀── plan ── Free, Pending, Hole;   commit ──▶ Lent, or what it was
//!                                    │
//!                              Hole ─┘  addresses without memory: a plan maps memory there,
//!                                       and leaves a hole where it took memory from
//! ```
//!
//! - *Lent* is used, or kept by a lane: the heap cannot tell and need not. *Hoarded* is set aside for one
//!   holder, who lends it and has it back; it counts as lent.
//! - *Pending* carries the fence set: who takes the block comes after all of it, or waits.
//! - Free neighbours are merged at once. Pending neighbours are merged only when their fences are
//!   the same: a union would turn free memory pending. A request that needs the span gets it through
//!   a [`Plan`](plan::Plan), which joins the fences for that request alone.
//!
//! The heap is sans-IO: no clock, no device, no async, no lock. Verbs, in the order of a block's
//! life: [`take`](Heap::take), [`plan`](Heap::plan) and [`commit`](Heap::commit) (when the
//! device must be asked in between), [`give_back`](Heap::give_back),
//! [`complete`](Heap::complete), [`plan_trim`](Heap::plan_trim) and
//! [`commit_trim`](Heap::commit_trim).
//!
//! | file | about |
//! |---|---|
//! | `block` | the nodes and their states |
//! | `fence` | fence sets and vector clocks |
//! | `view` | what an asker may have |
//! | `completion` | what has completed, and what was pending on it |
//! | `filing` | states, indexes and totals, moved together |
//! | `index` | finding a block by size, by who freed it, by ticket |
//! | `fit` | the best of the blocks that do |
//! | `forecast` | which of several is worth waiting for |
//! | `window` | where a contiguous range costs least to build; where a request may lie |
//! | `plan` | claiming a window, and what becomes of it |
//! | `growth` | how much is taken from the device at a time |
//! | `remapping` | how much of the time goes into mapping free memory elsewhere |
//! | `chunks` | handles by number |
//! | `reservation` | memory set aside for one holder |
//! | `exchange` | one piece for many of a reservation |
//! | `trim` | giving memory back |
//! | `coalesce` | how much of the free memory a coalescing makes one piece |
//! | `lookup` | which block an address is in, and all blocks |
//! | `totals` | bytes by state, with their high-water marks |
//! | `figures` | the figures of the heap at one moment |
//! | `policy` | decisions as pure functions |
//! | `check` | the invariants, executable |

mod block;
pub(crate) mod check;
mod chunks;
mod coalesce;
mod completion;
mod exchange;
mod fence;
mod figures;
mod filing;
mod fit;
mod forecast;
mod growth;
mod index;
mod lookup;
mod plan;
pub(crate) mod policy;
mod remapping;
mod reservation;
#[cfg(test)]
mod tests;
mod totals;
mod trim;
mod view;
mod window;

pub(crate) use block::{BlockId, State};
pub(crate) use exchange::{Exchange, Exchanged};
pub(crate) use fence::{Clock, Fence, Fences, StreamClock};
pub(crate) use figures::Figures;
pub(crate) use fit::Fit;
pub(crate) use forecast::Forecast;
pub use growth::GrowBy;
pub(crate) use lookup::{Found, Holding};
pub(crate) use plan::{Mapping, Outcome, Plan, Step};
pub(crate) use remapping::Budget;
pub use remapping::Remapping;
pub(crate) use reservation::{Moves, ReservationId};
pub(crate) use totals::{High, Totals};
pub(crate) use trim::Release;
pub(crate) use view::View;
pub(crate) use window::{Growth, Offers, Placement};

use crate::id::{StreamId, Ticket};
use block::{Block, Blocks};
use chunks::Chunks;
use index::{ByDonor, BySize};
use std::collections::BTreeMap;
use totals::HeapHighs;

/// The step of block sizes and addresses, in bytes.
pub(crate) const GRANULE: u64 = 512;

/// What the heap's memory is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Never more than this from the device, in bytes.
    pub(crate) capacity: u64,
    /// Size of a physical handle, or least size of a segment where memory is plain.
    pub(crate) chunk_bytes: u64,
    /// The device's own step, in bytes.
    pub(crate) granularity: u64,
    /// Whether memory can be mapped elsewhere.
    pub(crate) virtual_memory: bool,
    /// How much is taken at a time.
    pub(crate) growth: GrowBy,
}

/// What is asked for; already rounded, and known to fit the capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
}

/// A block taken from the heap. It is given back with its fences, or used and freed.
#[derive(Debug)]
#[must_use = "a grant that is dropped is memory lost"]
pub(crate) struct Grant {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// What the memory's earlier life left: the taker comes after it, or must be made to.
    pub(crate) fences: Fences,
}

/// Who may have what was given back, once it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Anybodys,
    /// Its reservation's, and nobody else's.
    HeapReservations,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    bytes: u64,
    first: BlockId,
}

/// The shared book; see the [module](self).
#[derive(Debug)]
pub(crate) struct Heap {
    geometry: Geometry,
    blocks: Blocks,
    segments: Vec<Option<Segment>>,
    free: BySize,
    pending: ByDonor,
    reservations: BTreeMap<ReservationId, BySize>,
    reservations_so_far: u64,
    /// Of those reservations in which anything moved.
    moves: BTreeMap<ReservationId, Moves>,
    /// The last complete ticket of each live stream. A stream that is not here is gone, and all of
    /// its work complete.
    completed: BTreeMap<StreamId, Ticket>,
    totals: Totals,
    highs: HeapHighs,
    /// Claimed for releases that are under way, in bytes.
    releasing: u64,
    /// The most that was in use when something was moved, or might have been. Not a high-water mark, which its readers
    /// reset.
    most_in_use: u64,
    /// What was held when the capacity was last set: it may be more.
    held_at_resize: u64,
}

impl Heap {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            blocks: Blocks::default(),
            segments: Vec::new(),
            free: BySize::default(),
            pending: ByDonor::default(),
            reservations: BTreeMap::new(),
            reservations_so_far: 0,
            moves: BTreeMap::new(),
            completed: BTreeMap::new(),
            totals: Totals::default(),
            highs: HeapHighs::default(),
            releasing: 0,
            most_in_use: 0,
            held_at_resize: 0,
        }
    }

    /// Another capacity. What is held above it stays until it is trimmed.
    pub(crate) fn set_capacity(&mut self, bytes: u64) {
        self.geometry.capacity = bytes;
        self.held_at_resize = self.totals.reserved.current + self.totals.planned;
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn mark_free(&mut self) {
        self.totals.mark_free();
    }

    /// Adds a range of addresses with nothing mapped in it.
    pub(crate) fn add_range(&mut self, address: u64, bytes: u64) {
        let id = self.add_segment(address, bytes, State::Hole);
        self.file(id);
    }

    fn add_segment(&mut self, address: u64, bytes: u64, state: State) -> BlockId {
        let first = self.blocks.insert(Block {
            address,
            bytes,
            state,
            user: StreamId::NONE,
            previous: None,
            next: None,
        });
        let entry = Some(Segment {
            address,
            bytes,
            first,
        });
        match self.segments.iter().position(Option::is_none) {
            Some(slot) => self.segments[slot] = entry,
            None => self.segments.push(entry),
        }
        first
    }

    /// Best fit among what is free and what the asker may have.
    pub(crate) fn take(&mut self, request: Request, view: &View<'_>) -> Option<Grant> {
        let grant = match view.placement {
            Placement::Anywhere => {
                let id = self.best_fit(request, view)?;
                self.carve(id, request)
            }
            Placement::Above(id, end) => self.take_above((id, end), request, view)?,
            Placement::WithRoom(_) => return None,
        };
        self.note_borrower(grant.id, view.stream);
        Some(grant)
    }

    /// Where in the block the request would lie, as an offset.
    fn placement(&self, id: BlockId, request: Request) -> Option<u64> {
        let block = &self.blocks[id];
        let offset = if request.alignment.is_power_of_two() {
            // To the next multiple, without a division.
            block.address.wrapping_neg() & (request.alignment - 1)
        } else {
            // A handle can be any multiple of the device's step.
            block.address.next_multiple_of(request.alignment) - block.address
        };
        (offset + request.bytes <= block.bytes).then_some(offset)
    }

    fn may_have(&self, id: BlockId, view: &View<'_>) -> bool {
        match &self.blocks[id].state {
            State::Free => true,
            State::Pending(fences) => view.forecast(fences).is_some(),
            State::Used(_)
            | State::Reserved(..)
            | State::Claimed(_)
            | State::Hole
            | State::Room => false,
        }
    }

    /// Cuts the request out of a free, pending or hoarded block and lends it; what is over stays what it is.
    fn carve(&mut self, whole: BlockId, request: Request) -> Grant {
        let offset = self.placement(whole, request).expect("the block fits");
        self.unindex(whole);
        let mut id = whole;
        if offset > 0 {
            id = self.blocks.split(whole, offset);
            self.index(whole);
        }
        if self.blocks[id].bytes > request.bytes {
            let above = self.blocks.split(id, request.bytes);
            self.index(above);
        }
        let block = &mut self.blocks[id];
        let was = std::mem::replace(&mut block.state, State::Used(None));
        let (address, bytes) = (block.address, block.bytes);
        self.totals.subtract(&was, bytes);
        self.count(&State::Used(None), bytes);
        let fences = match was {
            State::Pending(fences) | State::Reserved(_, fences) => fences,
            _ => Fences::default(),
        };
        // What was cut off is free again by now: this is how little there really was.
        self.totals.note_low();
        Grant {
            id,
            address,
            bytes,
            fences,
        }
    }

    /// The same of a block that its user frees: something moves.
    pub(crate) fn free(&mut self, id: BlockId, fences: Fences) -> Whose {
        self.totals.returns += 1;
        self.note_move(id);
        self.give_back(id, fences)
    }

    /// The same of a block that a lane kept.
    pub(crate) fn take_back(&mut self, id: BlockId, fences: Fences) {
        self.totals.taken_back += 1;
        self.give_back(id, fences);
    }

    /// Takes a lent block back; it is free once the fences are complete.
    pub(crate) fn give_back(&mut self, id: BlockId, mut fences: Fences) -> Whose {
        let block = &self.blocks[id];
        debug_assert!(block.state.is_used());
        self.totals.subtract(&State::Used(None), block.bytes);
        self.discharge(&mut fences);
        let state = self.after_use(id, fences);
        let whose = match state {
            State::Reserved(..) => Whose::HeapReservations,
            _ => Whose::Anybodys,
        };
        self.settle(id, state);
        whose
    }
}
