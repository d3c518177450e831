//! The way back: frees, and allocations that were never used.

use super::pass_through::Given;
use super::{
    Allocation, Allocations, Change, Engine, access, maintenance, ordering, pass_through, reaping,
};
use crate::heap::{Fence, Fences, Order, ReturnedTo};
use crate::id::Ticket;
use crate::lane::{BlockEvent, Closed, Freed, Lane, Use};
use crate::sync::Arc;
use smallvec::SmallVec;
use std::time::Duration;

/// Frees a block that was used on one stream alone, whose free is not awaited. Returns whether its source has it again: it
/// is not counted then.
#[inline]
pub(crate) fn free_unawaited(engine: &Engine, lane: &Lane, block: Use) -> bool {
    if engine.shared.settings.is_ordered {
        return free_in_order(engine, lane, block);
    }
    free_as(engine, lane, block, false);
    false
}

/// Does the same where the source of segments is ordered.
#[inline(never)]
fn free_in_order(engine: &Engine, lane: &Lane, block: Use) -> bool {
    let given = pass_through::give(engine, lane, &block);
    match given {
        Given::Whole => {}
        Given::Refused => free_to_heap(engine, lane, &block, lane.cache.free(block, None)),
        Given::NotPlain => _ = free(engine, lane, block),
    }
    given == Given::Whole
}

/// Frees a block that was used on one stream alone. Returns the ticket that it waits for.
#[inline]
pub(crate) fn free(engine: &Engine, lane: &Lane, block: Use) -> Ticket {
    free_as(engine, lane, block, engine.shared.settings.is_ordered)
}

#[inline(always)]
fn free_as(engine: &Engine, lane: &Lane, block: Use, is_ordered: bool) -> Ticket {
    let now = if lane.cache.may_keep_large(block.bytes) {
        large_caches_now(engine)
    } else {
        None
    };
    let freed = lane.cache.free(block, now);
    let ticket = freed.ticket;
    if freed.is_kept {
        record_closed(engine, lane, freed.closed);
        maintenance::schedule_after_return(engine);
    } else {
        finish_free(engine, lane, &block, freed, is_ordered);
    }
    ticket
}

/// Returns the time, if large blocks may stay with their streams: unless memory is released unasked, or waiting
/// for memory comes before taking more.
fn large_caches_now(engine: &Engine) -> Option<Duration> {
    let may_stay = engine.shared.settings.order == Order::GrowFirst
        && engine.maintenance.keeps_all(&engine.store);
    may_stay.then(|| engine.shared.device.now())
}

#[inline(always)]
fn finish_free(engine: &Engine, lane: &Lane, block: &Use, freed: Freed, is_ordered: bool) {
    if is_ordered {
        let fences = Fences::one(lane.id, freed.ticket);
        if pass_through::pass_on(engine, std::iter::once(lane), &fences, block) {
            return record_closed(engine, lane, freed.closed);
        }
    }
    free_to_heap(engine, lane, block, freed);
}

fn free_to_heap(engine: &Engine, lane: &Lane, block: &Use, freed: Freed) {
    let fences = Fences::one(lane.id, freed.ticket);
    // Another thread can find the block before its event is recorded: it is pending then, and only a stream that may wait for
    // any time waits for it. The publication comes after the record: a request that found it so looks again.
    let returned_to = engine.store.heap.lock().free(block.id, fences);
    record_closed(engine, lane, freed.closed);
    note_free(engine, returned_to);
}

/// Reports a free. Memory that came back to a reservation serves no waiter of the queue.
pub(super) fn note_free(engine: &Engine, returned_to: ReturnedTo) {
    if returned_to == ReturnedTo::AnyStream {
        engine.shared.publish(Change::Memory);
    }
    maintenance::schedule_after_return(engine);
}

/// Frees a block of `home` that was used on several streams. Returns the tickets that the block waits for.
pub(crate) fn free_many(
    engine: &Engine,
    home: &Lane,
    lanes: &[Arc<Lane>],
    earlier: Option<Fence>,
    block: &Use,
) -> Fences {
    home.cache
        .count(BlockEvent::Free, block.bytes, block.rounding);
    free_uncounted(engine, lanes, earlier, block)
}

/// Ends the uses of memory on streams. Returns the tickets that the memory waits for: those of the streams, and
/// `earlier`.
pub(crate) fn end_uses(
    engine: &Engine,
    lanes: &[Arc<Lane>],
    earlier: Option<Fence>,
    bytes: u64,
) -> Fences {
    let mut fences = Fences::from_iter(earlier);
    let mut closed: SmallVec<[_; 2]> = SmallVec::new();
    for lane in lanes {
        let freed = lane.cache.count_use(bytes);
        fences.join(lane.fence(freed.ticket));
        if freed.closed.is_some() {
            closed.push((lane, freed.closed));
        }
    }
    // First, so that a stream that finds the memory pending can be made to wait for it: on an external stream no
    // other call records anything.
    for (lane, closed) in closed {
        record_closed(engine, lane, closed);
    }
    fences
}

/// Frees memory that was used on several streams, and counts nothing: it is pending for each of them, and for
/// `earlier`, the point behind which every earlier use of the memory lies, if none of them comes after that. The
/// order of each stream is kept. Returns the tickets that the memory waits for.
pub(crate) fn free_uncounted(
    engine: &Engine,
    lanes: &[Arc<Lane>],
    earlier: Option<Fence>,
    block: &Use,
) -> Fences {
    let fences = end_uses(engine, lanes, earlier, block.bytes);
    if !pass_through::pass_on(engine, lanes.iter().map(|lane| &**lane), &fences, block) {
        let returned_to = engine.store.heap.lock().free(block.id, fences.clone());
        note_free(engine, returned_to);
    }
    fences
}

/// Records the event of a closed ticket. From time to time it first asks how far the stream is, so that events come
/// back and their number stays bounded (invariant `bounded-events`).
///
/// A record that fails leaves the ticket to a later one or, if the error is sticky, ends the pool: a free has no
/// caller to tell.
pub(super) fn record_closed(engine: &Engine, lane: &Lane, closed: Option<Closed>) {
    let Some(closed) = closed else {
        return;
    };
    ordering::thin_out(&engine.shared, &engine.store, lane);
    if lane.timeline.is_full() && !lane.is_external {
        lane.cache.expect_seal(closed.ticket.next());
        return lane.timeline.mark_unrecorded(closed.ticket);
    }
    let recorded =
        engine
            .shared
            .noted(lane.record(closed, &*engine.shared.device, &engine.streams.events));
    // Unless a request waits for the memory, or it goes back to the device, the next event may come a little later.
    match recorded {
        Ok(marker) if engine.shared.is_open() && engine.maintenance.keeps_all(&engine.store) => {
            lane.cache.spacing.record_sealed(marker.sealed_at);
        }
        _ => lane.cache.spacing.reset(),
    }
}

/// Takes back an allocation whose memory was never used: only the earlier uses have to end.
pub(crate) fn give_back(engine: &Engine, lane: &Lane, allocation: Allocation) {
    let Allocation {
        id, address, bytes, ..
    } = allocation;
    if pass_through::pass_back(engine, lane, id, address, bytes) {
        return;
    }
    let fences = ordering::fences_after(lane, allocation.after);
    engine.store.heap.lock().give_back(allocation.id, fences);
    engine.shared.publish(Change::Memory);
    maintenance::schedule_after_return(engine);
}

/// Takes back allocations that were never used.
pub(crate) fn give_all_back(engine: &Engine, lane: &Lane, allocations: Allocations) {
    for allocation in allocations {
        give_back(engine, lane, allocation);
    }
}

/// Ends a stream whose last handle and last block are gone: its freed blocks are sealed, and available to all.
pub(crate) fn retire(engine: &Engine, lane: &Lane) {
    reaping::retire_lane(engine, lane);
    access::settle_access(engine);
    engine.shared.publish(Change::Memory);
    maintenance::schedule_after_return(engine);
}
