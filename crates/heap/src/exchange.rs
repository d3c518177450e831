//! Exchange: a reservation gives its scattered blocks for one contiguous range of the same size.
//!
//! The blocks of a reservation that are not granted can be enough for a request together, while granted blocks lie
//! between them. Then its complete blocks become free, the request is served as any stream's is (from joined, moved or
//! new memory), and the reservation gets the rest of its bytes back from wherever memory is free. All of that happens
//! under one lock. Where the device must be asked in between, a plan claims the range, and the bytes that were given
//! for it are set aside as *escrow*, a reservation of its own, until the plan has ended.

use super::block::{BlockId, State};
use super::fence::Fences;
use super::plan::Plan;
use super::ranges::Ranges;
use super::request::{Grant, Request, View};
use super::reservation::{blocks_of, disband, exists, fences_of};
use super::window::Growth;
use super::{BlockMap, Heap};
use crate::id::ReservationId;
use smallvec::SmallVec;

/// Bytes, some of which are whole chunks. As many chunks must be returned, since only those can be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Portion {
    bytes: u64,
    chunks: u64,
}

/// The memory that is owed once the plan of an exchange has ended.
#[derive(Debug)]
pub struct Exchange {
    reservation: ReservationId,
    /// The memory given for the plan, except the part that the plan itself claims.
    escrow: ReservationId,
    /// The memory that the reservation gave and did not get back yet.
    given: Portion,
    /// The part of `given` that the reservation gets back if the plan is carried out.
    owed: Portion,
}

/// The result of an exchange.
#[derive(Debug)]
pub enum Exchanged {
    /// The range is granted.
    Granted(Grant),
    /// The plan is to be carried out, and committed together with the exchange.
    Planned(Plan, Exchange),
}

impl Exchange {
    /// Serves a request that the complete blocks of a reservation would be enough for, if they were one block. What lies in
    /// `held` stays where it is.
    pub fn begin(
        heap: &mut Heap,
        reservation: ReservationId,
        request: Request,
        view: &View<'_>,
        growth: Growth,
        held: &Ranges,
    ) -> Option<Exchanged> {
        let pieces = complete_parts(heap, reservation, held);
        let bytes = pieces.iter().map(|id| heap.map.blocks()[*id].bytes);
        if bytes.sum::<u64>() < request.bytes {
            return None;
        }
        let all = free_all(heap, &pieces);
        let rest = Portion {
            bytes: all.bytes - request.bytes,
            chunks: all.chunks - heap.map.units().chunks_in(request.bytes).min(all.chunks),
        };
        if let Some(grant) = heap.take(request, view) {
            let missing = set_free_aside(&mut heap.map, reservation, rest);
            debug_assert_eq!(missing.bytes, 0, "the request took no more than its bytes");
            heap.map.set_reservation(grant.id, reservation);
            return Some(Exchanged::Granted(grant));
        }
        let Some(plan) = heap.plan(request, view, growth) else {
            let missing = set_free_aside(&mut heap.map, reservation, all);
            debug_assert_eq!(missing.bytes, 0, "nothing was taken");
            return None;
        };
        let owed = set_free_aside(&mut heap.map, reservation, rest);
        let given = Portion {
            bytes: request.bytes + owed.bytes,
            chunks: all.chunks - rest.chunks + owed.chunks,
        };
        let escrow = heap.reservations.create(&mut heap.map);
        set_free_aside(&mut heap.map, escrow, given);
        heap.reservations
            .change_arrivals(&heap.map, reservation, |arrivals| {
                arrivals.under_way += given.bytes;
            });
        let exchange = Self {
            reservation,
            escrow,
            given,
            owed,
        };
        Some(Exchanged::Planned(plan, exchange))
    }

    /// Commits the plan of an exchange. What the plan claimed and did not grant is free afterwards, and covers what the
    /// reservation is owed.
    pub fn commit(
        self,
        heap: &mut Heap,
        commit: impl FnOnce(&mut Heap) -> Option<Grant>,
    ) -> Option<Grant> {
        disband(heap, self.escrow);
        let bytes = self.given.bytes;
        heap.reservations
            .change_arrivals(&heap.map, self.reservation, |arrivals| {
                arrivals.under_way -= bytes;
                arrivals.so_far += 1;
            });
        let grant = commit(heap);
        let due = match &grant {
            Some(grant) => {
                heap.map.set_reservation(grant.id, self.reservation);
                self.owed
            }
            None => self.given,
        };
        set_free_aside(&mut heap.map, self.reservation, due);
        grant
    }
}

fn complete_blocks(heap: &Heap, reservation: ReservationId) -> SmallVec<[BlockId; 4]> {
    let mut pieces = blocks_of(&heap.map, reservation);
    pieces.retain(|id| fences_of(&heap.map, &heap.completed, *id).is_empty());
    pieces
}

/// Returns how many bytes of a reservation an exchange could give: those that are complete, and not held.
pub fn exchangeable(heap: &Heap, reservation: ReservationId, held: &Ranges) -> u64 {
    let blocks = complete_blocks(heap, reservation).into_iter();
    let blocks = blocks.map(|id| &heap.map.blocks()[id]);
    let gaps = blocks.flat_map(|block| held.gaps(block.address, block.end()));
    gaps.map(|(start, end)| end - start).sum()
}

/// Returns the complete blocks of a reservation, of which the held parts are cut off.
fn complete_parts(
    heap: &mut Heap,
    reservation: ReservationId,
    held: &Ranges,
) -> SmallVec<[BlockId; 4]> {
    let mut parts = complete_blocks(heap, reservation);
    if *held == Ranges::default() {
        return parts;
    }
    for id in std::mem::take(&mut parts) {
        let mut block = id;
        let (start, end) = (heap.map.blocks()[id].address, heap.map.blocks()[id].end());
        for (from, to) in held.gaps(start, end).collect::<SmallVec<[_; 4]>>() {
            let part = heap.map.cut_out(block, from, to);
            parts.push(part);
            block = heap.map.blocks()[part].next.unwrap_or(part);
        }
    }
    parts
}

/// Frees complete blocks of a reservation. Returns how much they are.
fn free_all(heap: &mut Heap, pieces: &[BlockId]) -> Portion {
    let before = heap.map.totals().whole_free_chunks;
    let mut bytes = 0;
    for id in pieces {
        bytes += heap.map.blocks()[*id].bytes;
        heap.map.resettle(*id, State::Free);
    }
    let chunks = heap.map.totals().whole_free_chunks - before;
    Portion {
        bytes,
        chunks: chunks.min(heap.map.units().chunks_in(bytes)),
    }
}

/// Sets free memory aside in a reservation, in as few blocks as possible. Returns the missing part: all of it, if the
/// reservation does not exist any more.
fn set_free_aside(map: &mut BlockMap, reservation: ReservationId, portion: Portion) -> Portion {
    let mut left = portion;
    while left.bytes > 0 && exists(map, reservation) {
        let Some(id) = whole_chunks(map, left).or_else(|| any_block(map, left.bytes)) else {
            break;
        };
        let block = &map.blocks()[id];
        let chunks = map.units().whole_chunks(block).count();
        left.chunks -= chunks.min(left.chunks);
        left.bytes -= block.bytes;
        map.set_state(id, State::Reserved(reservation, Fences::default()));
    }
    left
}

/// Cuts whole chunks out of a free block: no more than the portion, from the smallest block that has any.
fn whole_chunks(map: &mut BlockMap, most: Portion) -> Option<BlockId> {
    let units = *map.units();
    let most = most.chunks.min(most.bytes / units.chunk_bytes);
    if most == 0 {
        return None;
    }
    let free = map.index().free.at_least(units.chunk_bytes);
    let (id, whole) = free
        .map(|(_, id)| (id, units.whole_chunks(&map.blocks()[id])))
        .find(|(_, whole)| whole.count() > 0)?;
    let end = whole.first + whole.count().min(most);
    let id = map.cut_out(id, whole.first * units.chunk_bytes, end * units.chunk_bytes);
    Some(id)
}

/// Cuts no more than `most` bytes out of the free block that fits best, or the largest one.
fn any_block(map: &mut BlockMap, most: u64) -> Option<BlockId> {
    let free = &map.index().free;
    let (size, id) = free.at_least(most).next().or_else(|| free.last())?;
    if size > most {
        map.cut(id, most);
    }
    Some(id)
}
