//! The heap: the shared records of segments and blocks behind the lanes.
//!
//! A *segment* is a range of addresses that the device gave. *Blocks* tile it (invariant *tiling*, see [`check`]). Each
//! block is in one state:
//!
//! - **Free**: no work touches the memory any more. Any stream may take it.
//! - **Pending**: freed, while work before the fences of the block may still touch the memory. A stream may take it if
//!   it comes after all of these fences, or is made to wait for them.
//! - **Used**: granted. The heap does not know whether the memory is in use or cached by a lane.
//! - **Reserved**: set aside for the holder of a reservation, with the fences of its last use. It counts as used.
//! - **Hole**: addresses without memory.
//! - **Room**: a hole that only the block below it, which is used or reserved, may grow into.
//! - **Claimed**: held by a plan or a release that is under way.
//!
//! ```text
//!            take                     give_back, no fence left
//!  Free ──────────────▶ Used ─────────────────────────────────────▶ Free
//!  Pending ───────────▶ Used ──────────────▶ Pending ─────────────▶ Free
//!            take             give_back                 complete
//!  Reserved ──────────▶ Used ──────────────▶ Reserved
//!    reservation::take        give_back
//!  Free, Pending, Hole, Room ──▶ Claimed ──▶ Used, or the state from before
//!                           plan          commit
//!  Free ──▶ Claimed ──▶ Hole, or no block at all
//!   plan_release    commit_release
//! ```
//!
//! Each edge has one owner and a reason:
//!
//! - *take* moves a free or pending block to used. A pending block is taken only by a stream whose view allows every
//!   fence. The grant carries the fences, because the stream may still have to be made to wait for them.
//! - *give_back* moves a used block on. Only its holder may call it. Fences that are complete are dropped. If none is
//!   left, the block is free. If the block was granted from a reservation that still exists, it returns there.
//! - *complete* moves pending blocks to free. Only the last fence does: each ticket completes once, and hearing of it
//!   again changes nothing (invariant *completes-once*).
//! - *plan* claims the blocks of a window, because the device must be asked before it can be granted and no lock is
//!   held meanwhile (invariant *no-lock-across-calls*). *commit* ends every plan, also one that failed: the blocks are
//!   then what the device left them as.
//! - *plan_release* and *commit_release* do the same for memory that goes back to the device. Only free memory does:
//!   work may still touch pending memory (invariant *safe-teardown*).
//! - [`reservation::create`] and `extend` move used blocks to reserved, and `disband` moves reserved blocks to free or pending.
//!   An exchange moves reserved pieces to free and takes one range for them.
//! - A hole becomes the room of a block that asked for room to grow. It is a hole again when that block is given back.
//!
//! A block is *merged* with free neighbours at once. Pending neighbours merge only if their fences are the same: a
//! union would keep memory pending that is free. A request that needs a range across them gets it from a [`Plan`],
//! which joins the fences for that request alone (invariant *order*).
//!
//! The heap does no I/O and knows no clock, device, lock or future. The engine carries out its plans.
//!
//! | file | about |
//! |---|---|
//! | `check` | the invariants, and executable checks of them |
//! | `fence` | fence sets and vector clocks |
//! | `block` | the blocks and their states |
//! | `chunk` | the units in which memory is taken, moved and released |
//! | `index` | finding a block by size, by donor, by ticket; neighbours by the length of their stretch |
//! | `totals` | bytes by state, current and high |
//! | `block_map` | blocks, indexes and totals, changed together |
//! | `completed` | which work is complete |
//! | `request` | requests and grants |
//! | `forecast` | when pending memory is expected |
//! | `fit` | the best fit |
//! | `window` | where a contiguous range costs least to build |
//! | `plan` | claiming a window, and the result |
//! | `growth` | how much may be held, and how much is taken at a time |
//! | `trim` | giving memory back |
//! | `reservation` | memory set aside for one holder |
//! | `exchange` | one range for the scattered blocks of a reservation |
//! | `run` | which blocks have to go for a range to be free |
//! | `inspect` | figures, and which block an address is in |

#![forbid(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the documentation is read beside the source"
)]

mod block;
mod block_map;
pub mod check;
mod chunk;
mod completed;
mod exchange;
mod fence;
mod fit;
mod forecast;
mod growth;
pub mod id;
mod index;
pub mod inspect;
mod level;
mod plan;
mod ranges;
mod remapping;
mod request;
pub mod reservation;
mod run;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod totals;
mod trim;
pub mod units;
mod window;

pub use block::BlockId;
pub use chunk::GRANULE;
pub use exchange::{Exchange, Exchanged, exchangeable};
pub use fence::{Clock, Fence, Fences, StreamClock};
pub use fit::Fit;
pub use forecast::{Donor, Forecast, TOLERANCE, Taker};
pub use growth::GrowBy;
pub use inspect::{Figures, Found, Holding, SegmentBlocks};
pub use level::{Highs, Level, Mark, fragmentation};
pub use plan::{Mapping, NewSegment, Outcome, Plan, Step};
pub use ranges::Ranges;
pub use remapping::{Budget, Remapping};
pub use request::{Grant, Placement, Request, ReturnedTo, View};
pub use reservation::ReservationState;
pub use run::{Piece, Run};
pub use settings::{Order, ReleaseThreshold, Reuse, Sealing, WaitLimit, WhenShort};
pub use sources::{Action, Facts, Prepare, Rules, Sequence, Try};
pub use totals::{High, Totals};
pub use trim::{Release, Target};
pub use window::{Growth, Offers};

use crate::id::{StreamId, Ticket};
use block::State;
use block_map::BlockMap;
use chunk::Units;
use completed::Completed;
use fit::Search;
use growth::Capacity;
use reservation::Reservations;
use totals::HeapHighs;
use trim::Releases;

/// The shape of a heap's memory.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// The most bytes that may be held from the device.
    pub capacity: u64,
    /// The bytes of a chunk. Where memory is plain, the smallest size of a segment.
    pub chunk_bytes: u64,
    /// The step of the device's own sizes, in bytes.
    pub granularity: u64,
    /// Whether memory can be mapped elsewhere.
    pub virtual_memory: bool,
    /// How much is taken at a time.
    pub growth: GrowBy,
}

/// The shared records; see the [module](self).
#[derive(Debug)]
pub struct Heap {
    map: BlockMap,
    completed: Completed,
    capacity: Capacity,
    releases: Releases,
    reservations: Reservations,
    highs: HeapHighs,
}

impl Heap {
    /// Creates an empty heap.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            map: BlockMap::new(Units {
                chunk_bytes: geometry.chunk_bytes,
                granularity: geometry.granularity,
                virtual_memory: geometry.virtual_memory,
            }),
            completed: Completed::default(),
            capacity: Capacity::new(geometry.capacity, geometry.growth),
            releases: Releases::default(),
            reservations: Reservations::default(),
            highs: HeapHighs::default(),
        }
    }

    /// Sets another capacity. Memory held above it stays until it is released.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity.resize(bytes, self.map.totals());
    }

    /// Sets the part of the capacity that may be held. Memory held above it stays until it is released.
    pub fn set_lease(&mut self, bytes: u64) {
        self.capacity.set_lease(bytes, self.map.totals());
    }

    /// Returns the part of the capacity that may be held.
    pub fn lease(&self) -> u64 {
        self.capacity.lease()
    }

    /// Returns how many bytes the lease lacks for the request to be served by growth; 0 if a larger lease would not
    /// help.
    pub fn lacking(&mut self, request: Request, view: &View<'_>) -> u64 {
        self.map.update_stretches();
        let whole = self.capacity.without_lease();
        let (map, totals) = (&self.map, self.map.totals());
        let new = if map.units().virtual_memory {
            let offers = Offers::find(map, &whole, request, view, Growth::Allowed);
            let chunks = offers.new_chunks(Growth::Allowed);
            chunks.map(|chunks| chunks * map.units().chunk_bytes)
        } else {
            whole.segment_for(map.units(), totals, request.bytes)
        };
        new.unwrap_or(0).saturating_sub(self.capacity.left(totals))
    }

    /// Charges the capacity for memory outside of the heap, if it has room. Returns whether it has.
    pub fn charge_outside(&mut self, bytes: u64) -> bool {
        let has_room = bytes <= self.capacity.left(self.map.totals());
        if has_room {
            self.map.totals_mut().outside += bytes;
        }
        has_room
    }

    /// Ends a charge for memory outside of the heap.
    pub fn uncharge_outside(&mut self, bytes: u64) {
        self.map.totals_mut().outside -= bytes;
        self.map.totals_mut().returns += 1;
    }

    /// Adds a range of addresses with no memory mapped in it.
    pub fn add_range(&mut self, address: u64, bytes: u64) {
        let id = self.map.add_segment(address, bytes, State::Hole);
        self.map.file(id);
    }

    /// Returns the bytes by state.
    pub fn totals(&self) -> Totals {
        *self.map.totals()
    }

    /// Starts a new watch for the least that is free: [`Totals::free_low`].
    pub fn mark_free(&mut self) {
        self.map.totals_mut().mark_free();
    }

    /// Keeps the high-water marks since now, until [`end_mark`](Self::end_mark) is called.
    pub fn begin_mark(&mut self, mark: Mark) {
        self.highs.begin(mark, self.map.totals_mut());
    }

    /// Keeps no high-water marks for a mark any more.
    pub fn end_mark(&mut self, mark: Mark) {
        self.highs.end(mark);
    }

    /// Sets a high-water mark to the present figure.
    pub fn reset_high(&mut self, high: High) {
        self.highs.reset(high, self.map.totals_mut());
    }

    /// Adds a stream whose tickets up to `completed` are complete.
    pub fn register(&mut self, stream: StreamId, completed: Ticket) {
        self.completed.set(stream, completed);
    }

    /// Forgets a retired stream, whose work is complete. Its id is never used again (invariant *stable-ids*).
    pub fn forget(&mut self, stream: StreamId) {
        self.complete(stream, Ticket::LAST);
        self.map.index_mut().pending.forget(stream);
        self.completed.forget(stream);
    }

    /// Notes that a ticket is complete, and all tickets of that stream before it. Returns whether that is new.
    pub fn complete(&mut self, stream: StreamId, ticket: Ticket) -> bool {
        if self.completed.contains(Fence { stream, ticket }) {
            return false;
        }
        self.completed.set(stream, ticket);
        self.map.totals_mut().progress += 1;
        while let Some((due, id)) = self.map.index_mut().pending.next_due(stream, ticket) {
            let fence = Fence {
                stream,
                ticket: due,
            };
            if !self.map.blocks().is_waiting(id, fence) {
                continue;
            }
            let State::Pending(fences) = &self.map.blocks()[id].state else {
                unreachable!("only pending blocks wait for a ticket");
            };
            // A block that waits for no other stream is free.
            let mut left = match fences.single() {
                Some(_) => Fences::default(),
                None => fences.clone(),
            };
            self.completed.discharge(&mut left);
            self.map.resettle(id, State::after(left));
        }
        true
    }

    /// Grants the best fit of the free blocks, and of the pending blocks that the requester may take.
    pub fn take(&mut self, request: Request, view: &View<'_>) -> Option<Grant> {
        let id = self.search(request, view)?.block()?;
        Some(self.carve(id, request, view))
    }

    /// Grants the best fit, unless that would break up a much larger block while blocks of other streams are pending:
    /// one of them may fit better.
    pub fn take_good_fit(&mut self, request: Request, view: &View<'_>) -> Fit {
        let Some(search) = self.search(request, view) else {
            return Fit::None;
        };
        match search.block() {
            None => Fit::None,
            Some(id) if search.is_loose(id) => Fit::Loose,
            Some(id) => Fit::Good(self.carve(id, request, view)),
        }
    }

    /// Grants a pending block of exactly the requested size.
    pub fn take_exact_fit(&mut self, request: Request, view: &View<'_>) -> Option<Grant> {
        let id = self.search(request, view)?.exact_fit()?;
        Some(self.carve(id, request, view))
    }

    /// Returns the fences of the block that [`take_exact_fit`](Self::take_exact_fit) would grant.
    pub fn fences_of_exact_fit(&self, request: Request, view: &View<'_>) -> Option<Fences> {
        self.search(request, view)?.fences_of_exact_fit()
    }

    /// `None` if the unused memory is too little.
    fn search<'a>(&'a self, request: Request, view: &'a View<'a>) -> Option<Search<'a>> {
        let map = &self.map;
        (map.totals().unused() >= request.bytes).then_some(Search { map, request, view })
    }

    fn carve(&mut self, id: BlockId, request: Request, view: &View<'_>) -> Grant {
        let grant = self.map.carve(id, request);
        self.map.set_user(grant.id, view.stream);
        grant
    }

    /// Returns how many bytes of addresses there are with this placement. A request that [needs](Placement::needs) more
    /// cannot lie there for now.
    pub fn addresses(&self, placement: Placement) -> u64 {
        placement.addresses(&self.map)
    }

    /// Finds the cheapest windows for a request, in one scan of the blocks. `growth` is the one to plan with, or any
    /// that [spares](Growth::is_sparing) nothing.
    pub fn offers(&mut self, request: Request, view: &View<'_>, growth: Growth) -> Offers {
        let totals = self.map.totals();
        if self.capacity.left(totals) + totals.unused() < request.bytes {
            return Offers::default();
        }
        self.map.update_stretches();
        Offers::find(&self.map, &self.capacity, request, view, growth)
    }

    /// Claims the cheapest of the offers with this growth. The heap must not have changed since they were found.
    pub fn plan_from(
        &mut self,
        offers: &Offers,
        request: Request,
        placement: Placement,
        growth: Growth,
    ) -> Option<Plan> {
        let map = &mut self.map;
        if let Some(window) = offers.window(growth) {
            if growth.is_sparing() {
                self.capacity.record_use(map.totals(), request.bytes);
            }
            let mapping = Mapping::claim(map, window, request);
            if let Placement::WithRoom(room) = placement {
                map.keep_room(mapping.last_piece(), room);
            }
            return Some(Plan::Map(mapping));
        }
        let is_anywhere = placement == Placement::Anywhere;
        let is_plain = is_anywhere && growth == Growth::Allowed && !map.units().virtual_memory;
        let segment = is_plain.then(|| self.plan_segment(request, true))?;
        segment.map(Plan::Memory)
    }

    /// Plans a segment of plain memory for the request, if the capacity holds it, or unless it `is_bounded`.
    pub fn plan_segment(&mut self, request: Request, is_bounded: bool) -> Option<NewSegment> {
        let (map, bytes) = (&mut self.map, request.bytes);
        let within = self.capacity.segment_for(map.units(), map.totals(), bytes);
        let bytes = within.or((!is_bounded).then_some(bytes))?;
        Some(NewSegment::planned(map, bytes, request))
    }

    /// Finds the cheapest way to build a range for the request with this growth, and claims it.
    pub fn plan(&mut self, request: Request, view: &View<'_>, growth: Growth) -> Option<Plan> {
        let offers = self.offers(request, view, growth);
        self.plan_from(&offers, request, view.placement, growth)
    }

    /// Plans this much new memory as one free block, or as much of it as the capacity and one hole hold. Where memory
    /// is plain, plans all of it or nothing.
    pub fn plan_new(&mut self, bytes: u64) -> Option<Plan> {
        Plan::of_new(&mut self.map, &self.capacity, bytes)
    }

    /// Returns how many more bytes to take ahead, after a request was served by taking `grown` bytes.
    pub fn ahead(&self, grown: u64) -> u64 {
        self.capacity.ahead(self.map.totals(), grown)
    }

    /// Plans a part of the bytes to take ahead, after a request was served by taking `grown` bytes.
    pub fn plan_ahead(&mut self, ahead: u64, grown: u64) -> Option<Plan> {
        let units = self.map.units();
        let left = self.capacity.left(self.map.totals()) / units.granularity * units.granularity;
        self.plan_new(Capacity::part_of(ahead, grown, units).min(left))
    }

    /// Plans new memory for one more request like this one, if no free block holds it and the capacity does.
    pub fn plan_one_more(&mut self, request: Request) -> Option<Plan> {
        let fits = |id| self.map.offset_of(id, request);
        let free = &self.map.index().free;
        let is_there = free.best(request.bytes, usize::MAX, fits).is_some();
        let may_grow = !is_there && request.bytes <= self.capacity.left(self.map.totals());
        may_grow.then(|| self.plan_new(request.bytes))?
    }

    /// Commits a plan for memory that is to be free. No high-water mark counts it as used.
    pub fn commit_as_free(&mut self, commit: impl FnOnce(&mut Self) -> Option<Grant>) {
        let totals = self.map.totals();
        let (used, in_use) = (totals.used.high, totals.in_use.high);
        if let Some(grant) = commit(self) {
            self.give_back(grant.id, grant.fences);
        }
        let totals = self.map.totals_mut();
        (totals.used.high, totals.in_use.high) = (used, in_use);
    }

    /// Notes which stream a block was granted to by a commit.
    #[inline]
    pub fn set_user(&mut self, id: BlockId, stream: StreamId) {
        self.map.set_user(id, stream);
    }

    /// Takes back a block that its user freed.
    pub fn free(&mut self, id: BlockId, fences: Fences) -> ReturnedTo {
        self.map.totals_mut().returns += 1;
        let returned_to = self.give_back(id, fences);
        if let ReturnedTo::Reservation(reservation) = returned_to {
            let arrivals = &mut self.reservations;
            arrivals.change_arrivals(&self.map, reservation, |arrivals| arrivals.so_far += 1);
        }
        returned_to
    }

    /// Takes back a block that a lane cached.
    pub fn take_back(&mut self, id: BlockId, fences: Fences) {
        self.map.totals_mut().taken_back += 1;
        self.give_back(id, fences);
    }

    /// Takes back a used block. It is free once the fences are complete.
    pub fn give_back(&mut self, id: BlockId, mut fences: Fences) -> ReturnedTo {
        let reservation = self.map.take_used(id);
        self.completed.discharge(&mut fences);
        let reservation = reservation.filter(|id| reservation::exists(&self.map, *id));
        let (state, returned_to) = match reservation {
            Some(id) => (State::Reserved(id, fences), ReturnedTo::Reservation(id)),
            None => (State::after(fences), ReturnedTo::AnyStream),
        };
        self.map.settle(id, state);
        returned_to
    }

    /// Returns whether a used block is a whole segment, and of no reservation.
    pub fn is_whole_segment(&self, id: BlockId) -> bool {
        let block = &self.map.blocks()[id];
        matches!(block.state, State::Used(None)) && block.previous.is_none() && block.next.is_none()
    }

    /// Removes a used block that is a [whole segment](Self::is_whole_segment), whose memory the device has again.
    pub fn remove_segment(&mut self, id: BlockId) {
        let bytes = self.map.blocks()[id].bytes;
        self.map.remove_segment(id);
        let totals = self.map.totals_mut();
        totals.returns += 1;
        totals.taken_back += 1;
        totals.reserved.subtract(bytes);
    }

    /// Makes one block of a used block and of the block that was granted right above it.
    pub fn join_used(&mut self, lower: BlockId, upper: BlockId) {
        self.map.unfile(lower);
        self.map.unfile(upper);
        self.map.join(&[lower, upper]);
        self.map.file(lower);
    }

    /// Claims free memory for release to the device.
    pub fn plan_release(&mut self, target: Target) -> Release {
        self.releases.plan(&mut self.map, target)
    }

    /// Returns whether a release with this target would release anything now.
    pub fn could_release(&self, target: Target) -> bool {
        self.releases.could_release(&self.map, target)
    }

    /// Ends a release of which the first `done` spans are gone. Returns the bytes released.
    pub fn commit_release(&mut self, release: Release, done: usize) -> u64 {
        self.releases.commit(&mut self.map, release, done)
    }
}
