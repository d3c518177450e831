//! Reservations: memory that is set aside for one holder.
//!
//! No search, plan or release outside its reservation sees a reserved block. A block that is granted from a reservation
//! returns to it with its fences when it is freed, for as long as the reservation exists. Neighbours in a reservation
//! stay apart until a request fits into no single block: a reservation is small, and joining adds up fences.

use super::Heap;
use super::block::{BlockId, State};
use super::block_map::BlockMap;
use super::completed::Completed;
use super::fence::{Fence, Fences};
use super::fit::{Best, PROBES};
use super::request::{Grant, Placement, Request, View};
use super::window::addresses_above;
use crate::id::ReservationId;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The memory that came to a reservation so far, and that may still come. A search that found too little compares two
/// of these to see whether its result is out of date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// How often memory came to it: a block was freed, an exchange ended, or the reservation was extended.
    pub so_far: u64,
    /// Bytes that were given away for exchanges under way. Some or all of them may return.
    pub under_way: u64,
}

/// The ids of reservations, and the arrivals of each. The blocks of each are in the block map's index.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    created: u64,
    /// Only of reservations to which memory came.
    arrivals: BTreeMap<ReservationId, Arrivals>,
}

impl Reservations {
    /// Creates an empty reservation.
    pub(super) fn create(&mut self, map: &mut BlockMap) -> ReservationId {
        let reservation = ReservationId::after(self.created);
        self.created += 1;
        map.index_mut().reserved.entry(reservation).or_default();
        reservation
    }

    pub(super) fn arrivals(&self, reservation: ReservationId) -> Arrivals {
        self.arrivals.get(&reservation).copied().unwrap_or_default()
    }

    /// Changes the arrivals of a reservation, if it still exists.
    pub(super) fn change_arrivals(
        &mut self,
        map: &BlockMap,
        reservation: ReservationId,
        change: impl FnOnce(&mut Arrivals),
    ) {
        if exists(map, reservation) {
            change(self.arrivals.entry(reservation).or_default());
        }
    }

    /// Continues the ids as if this many reservations had been created.
    #[cfg(test)]
    pub(super) fn skip_ids(&mut self, created: u64) {
        self.created = created;
    }
}

/// The memory that a reservation holds, and the memory that came to it.
#[derive(Clone, Copy, Debug)]
pub struct ReservationState {
    /// Bytes that are not granted.
    pub left: u64,
    /// The bytes of the largest block that is not granted.
    pub largest: u64,
    /// What came back to it.
    pub arrivals: Arrivals,
}

/// Creates a reservation of granted blocks, which are complete.
pub fn create(heap: &mut Heap, granted: impl IntoIterator<Item = BlockId>) -> ReservationId {
    let reservation = heap.reservations.create(&mut heap.map);
    set_aside(&mut heap.map, reservation, granted);
    reservation
}

/// Adds granted blocks, which are complete, to a reservation.
pub fn extend(
    heap: &mut Heap,
    reservation: ReservationId,
    granted: impl IntoIterator<Item = BlockId>,
) {
    set_aside(&mut heap.map, reservation, granted);
    let Heap {
        map, reservations, ..
    } = heap;
    reservations.change_arrivals(map, reservation, |arrivals| arrivals.so_far += 1);
}

/// Returns the state of a reservation; zeros if it does not exist any more.
pub fn state(heap: &Heap, reservation: ReservationId) -> ReservationState {
    let (left, largest) = left(&heap.map, reservation);
    ReservationState {
        left,
        largest,
        arrivals: heap.reservations.arrivals(reservation),
    }
}

/// Splits a reservation of `bytes` off another one, if that has as many ungranted bytes; in one piece, if it has
/// them. With `only_whole`, not in several.
pub fn split(
    heap: &mut Heap,
    reservation: ReservationId,
    bytes: u64,
    only_whole: bool,
) -> Option<ReservationId> {
    let Heap {
        map,
        completed,
        reservations,
        ..
    } = heap;
    let (all, largest) = left(map, reservation);
    if all < bytes {
        return None;
    }
    if largest < bytes {
        let alignment = 1;
        let request = Request { bytes, alignment };
        // A union of fences is safe to set aside.
        match shortest_run(map, reservation, request, |_| true) {
            Some(run) => _ = join(map, completed, reservation, &run),
            None if only_whole => return None,
            None => {}
        }
    }
    let other = reservations.create(map);
    let mut left = bytes;
    while left > 0 {
        let by_size = &map.index().reserved[&reservation].by_size;
        let piece = by_size.at_least(left).next().or_else(|| by_size.last());
        let (size, id) = piece.expect("the reservation has enough");
        if size > left {
            map.cut(id, left);
        }
        left -= size.min(left);
        let fences = fences_of(map, completed, id);
        map.set_state(id, State::Reserved(other, fences));
    }
    Some(other)
}

/// Moves the ungranted blocks of a reservation into another one; to the pool, if that is disbanded.
pub fn merge(heap: &mut Heap, from: ReservationId, into: ReservationId) {
    let Heap {
        map,
        completed,
        reservations,
        ..
    } = heap;
    let goes_on = exists(map, into);
    for id in blocks_of(map, from) {
        let fences = fences_of(map, completed, id);
        if goes_on {
            map.set_state(id, State::Reserved(into, fences));
        } else {
            map.resettle(id, State::after(fences));
        }
    }
    reservations.change_arrivals(map, into, |arrivals| arrivals.so_far += 1);
}

/// Ends a reservation. Its ungranted blocks become available to all streams; its granted ones do when they are freed.
pub fn disband(heap: &mut Heap, reservation: ReservationId) {
    let Heap {
        map,
        completed,
        reservations,
        ..
    } = heap;
    for id in blocks_of(map, reservation) {
        let fences = fences_of(map, completed, id);
        map.resettle(id, State::after(fences));
    }
    map.index_mut().reserved.remove(&reservation);
    reservations.arrivals.remove(&reservation);
}

pub(super) fn exists(map: &BlockMap, reservation: ReservationId) -> bool {
    map.index().reserved.contains_key(&reservation)
}

/// Moves granted blocks, which are complete, into a reservation.
fn set_aside(
    map: &mut BlockMap,
    reservation: ReservationId,
    granted: impl IntoIterator<Item = BlockId>,
) {
    for id in granted {
        debug_assert!(map.blocks()[id].state.is_used());
        map.set_state(id, State::Reserved(reservation, Fences::default()));
    }
}

/// Returns how many bytes of a reservation are not granted, and the size of its largest ungranted block.
pub(super) fn left(map: &BlockMap, reservation: ReservationId) -> (u64, u64) {
    let Some(reserved) = map.index().reserved.get(&reservation) else {
        return (0, 0);
    };
    (reserved.bytes, reserved.by_size.largest())
}

pub(super) fn blocks_of(map: &BlockMap, reservation: ReservationId) -> SmallVec<[BlockId; 4]> {
    let blocks = map.index().reserved.get(&reservation);
    blocks.map_or_else(SmallVec::new, |blocks| blocks.by_size.all())
}

/// Returns whether a block of the reservation is pending for streams alone, whose events may complete it. Memory that was
/// freed in a capture is not: no event completes it.
pub fn may_complete(
    heap: &Heap,
    reservation: ReservationId,
    is_stream: impl Fn(Fence) -> bool,
) -> bool {
    let Heap { map, completed, .. } = heap;
    blocks_of(map, reservation).into_iter().any(|id| {
        let fences = fences_of(map, completed, id);
        !fences.is_empty() && fences.iter().all(&is_stream)
    })
}

/// Returns the fences of a reserved block that are not complete.
pub(super) fn fences_of(map: &BlockMap, completed: &Completed, id: BlockId) -> Fences {
    let State::Reserved(_, fences) = &map.blocks()[id].state else {
        unreachable!("a reservation's index holds only its reserved blocks");
    };
    let mut fences = fences.clone();
    completed.discharge(&mut fences);
    fences
}

/// Grants the best fit of a reservation: a block that the requester is ordered after, or else one that it may be made
/// to wait for, or else several neighbours together.
pub fn take(
    heap: &mut Heap,
    reservation: ReservationId,
    request: Request,
    view: &View<'_>,
) -> Option<Grant> {
    let best = best_fit(heap, reservation, request, view);
    let Heap { map, completed, .. } = heap;
    let run = match best {
        Some(id) => vec![id],
        None if left(map, reservation).0 < request.bytes => return None,
        None => {
            let is_allowed = |id| view.forecast(&fences_of(map, completed, id)).is_some();
            shortest_run(map, reservation, request, is_allowed)?
        }
    };
    let id = join(map, completed, reservation, &run);
    Some(grant(heap, reservation, request, view, id))
}

/// Grants one of the smallest blocks that are large enough, if the requester is ordered after it. Most requests find
/// one, and need no forecasts.
pub fn take_ordered(
    heap: &mut Heap,
    reservation: ReservationId,
    request: Request,
    view: &View<'_>,
) -> Option<Grant> {
    let Heap { map, completed, .. } = heap;
    let is_ordered = |id| {
        let fences = fences_of(map, completed, id);
        fences.iter().all(|fence| view.is_ordered(fence))
    };
    let by_size = &map.index().reserved.get(&reservation)?.by_size;
    let large_enough = by_size.at_least(request.bytes).map(|(_, id)| id);
    let id = large_enough
        .take(PROBES)
        .find(|id| map.offset_of(*id, request).is_some() && is_ordered(*id));
    Some(grant(heap, reservation, request, view, id?))
}

/// A piece of a reservation, right above which the memory that a request lacks could lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Where the lacking memory is to lie.
    pub placement: Placement,
    /// How much the request lacks, in bytes.
    pub lacking: u64,
}

/// The number of pieces that are considered for an extension, and the part of a request that a piece holds at least.
const EXTENDED: (usize, u64) = (64, 16);

/// Returns the piece that the request lacks the least bytes above, among those that the requester comes after and whose
/// addresses above are not in use.
pub fn extension(
    heap: &Heap,
    reservation: ReservationId,
    request: Request,
    view: &View<'_>,
) -> Option<Extension> {
    let Heap { map, completed, .. } = heap;
    let blocks = map.blocks();
    let is_own =
        |id: BlockId| matches!(blocks[id].state, State::Reserved(of, _) if of == reservation);
    let is_allowed = |id| is_own(id) && view.forecast(&fences_of(map, completed, id)).is_some();
    let by_size = &map.index().reserved.get(&reservation)?.by_size;
    let (most, part) = EXTENDED;
    let pieces = by_size.at_least((request.bytes / part).max(1)).take(most);
    let extension = |id: BlockId| {
        let end = blocks[id].end();
        if !is_allowed(id) || blocks[id].next.is_some_and(is_allowed) {
            return None;
        }
        let mut first = id;
        while let Some(below) = blocks[first].previous.filter(|below| is_allowed(*below)) {
            first = below;
        }
        let start = blocks[first].address.next_multiple_of(request.alignment);
        let lacking = (start + request.bytes).checked_sub(end)?;
        let has_room = start < end && lacking > 0 && addresses_above(map, id, end) >= lacking;
        has_room.then_some(Extension {
            placement: Placement::Above(id, end),
            lacking,
        })
    };
    let all = pieces.filter_map(|(_, id)| extension(id));
    all.min_by_key(|extension| extension.lacking)
}

/// Grants exactly the range from `start`, if all of it lies in neighbours of the reservation that the requester comes
/// after or may be made to wait for.
pub fn take_at(
    heap: &mut Heap,
    reservation: ReservationId,
    (start, bytes): (u64, u64),
    view: &View<'_>,
) -> Option<Grant> {
    let Heap { map, completed, .. } = heap;
    let first = map.reserved_up_to(reservation, start)?;
    let is_allowed = |id| view.forecast(&fences_of(map, completed, id)).is_some();
    let whole = Request {
        bytes: start - map.blocks()[first].address + bytes,
        alignment: 1,
    };
    let run = run_from(map, reservation, first, whole, is_allowed).ok()?;
    let mut id = join(map, completed, reservation, &run);
    let below = start - map.blocks()[id].address;
    if below > 0 {
        id = map.cut(id, below);
    }
    let request = Request {
        bytes,
        alignment: 1,
    };
    Some(grant(heap, reservation, request, view, id))
}

fn grant(
    heap: &mut Heap,
    reservation: ReservationId,
    request: Request,
    view: &View<'_>,
    id: BlockId,
) -> Grant {
    let Heap { map, completed, .. } = heap;
    let mut grant = map.carve(id, request);
    completed.discharge(&mut grant.fences);
    map.set_reservation(grant.id, reservation);
    map.set_user(grant.id, view.stream);
    grant
}

/// Joins a run of reserved neighbours into one block, which is pending for all of their fences.
fn join(
    map: &mut BlockMap,
    completed: &Completed,
    reservation: ReservationId,
    run: &[BlockId],
) -> BlockId {
    if let [id] = run {
        return *id;
    }
    let mut fences = Fences::default();
    for id in run {
        fences.join_all(&fences_of(map, completed, *id));
        map.unfile(*id);
    }
    let whole = map.join(run);
    map.settle(whole, State::Reserved(reservation, fences))
}

/// Returns the best fit among the single blocks of a reservation.
fn best_fit(
    heap: &Heap,
    reservation: ReservationId,
    request: Request,
    view: &View<'_>,
) -> Option<BlockId> {
    let Heap { map, completed, .. } = heap;
    let by_size = &map.index().reserved.get(&reservation)?.by_size;
    let mut allowed = None;
    let mut probes = 0;
    for (size, id) in by_size.at_least(request.bytes) {
        if map.offset_of(id, request).is_none() {
            continue;
        }
        let fences = fences_of(map, completed, id);
        if fences.iter().all(|fence| view.is_ordered(fence)) {
            return Some(id);
        }
        let is_larger = allowed.as_ref().is_some_and(|best: &Best| size > best.size);
        if is_larger || probes == PROBES {
            continue;
        }
        if let Some(forecast) = view.forecast(&fences) {
            probes += 1;
            Best::consider(&mut allowed, Best { size, id, forecast });
        }
    }
    allowed.map(|best| best.id)
}

/// Returns the lowest run of several neighbours that the request fits into.
fn shortest_run(
    map: &BlockMap,
    reservation: ReservationId,
    request: Request,
    is_allowed: impl Fn(BlockId) -> bool,
) -> Option<Vec<BlockId>> {
    let mut starts = blocks_of(map, reservation);
    starts.sort_by_key(|id| map.blocks()[*id].address);
    let mut from = 0;
    for first in starts {
        if map.blocks()[first].address < from {
            continue;
        }
        match run_from(map, reservation, first, request, &is_allowed) {
            Ok(run) if run.len() > 1 => return Some(run),
            Ok(_) => {}
            // From a later block on, the neighbours before this end are fewer.
            Err(end) => from = end,
        }
    }
    None
}

/// Returns the shortest run of neighbours from this one on that the request fits into.
///
/// # Errors
/// Returns where the neighbours end, if they are too few.
fn run_from(
    map: &BlockMap,
    reservation: ReservationId,
    first: BlockId,
    request: Request,
    is_allowed: impl Fn(BlockId) -> bool,
) -> Result<Vec<BlockId>, u64> {
    let address = map.blocks()[first].address;
    let start = address.next_multiple_of(request.alignment);
    let (mut run, mut end) = (Vec::new(), address);
    for (id, block) in map.blocks().from(first) {
        let is_ours = matches!(&block.state, State::Reserved(owner, _) if *owner == reservation);
        if !is_ours || !is_allowed(id) {
            break;
        }
        run.push(id);
        end = block.end();
        if end >= start + request.bytes {
            return Ok(run);
        }
    }
    Err(end)
}
