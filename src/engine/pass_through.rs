//! Allocations and frees that are passed on to an ordered source of segments, in the order of a stream.
//!
//! Nearly all of them take the plain path here: [`take`] reserves room, calls the source, and adds the segment to the heap
//! as a used block; [`give`] calls the source and removes the block. An allocation that is not plain, or that the source
//! refuses, is a [search](super::search). The plain path needs a stream that the pool may submit to at any time, an open
//! gate and no observers.
//!
//! A freed block is a whole segment then, and leaves the heap with its free: only the source knows whether its memory is
//! pending or free. The stream whose order the free is in is first made to wait for all other streams that used the
//! block. Where no stream takes that, or the block is only a part of its segment, the block is freed as in any pool: it
//! is pending, and maintenance gives its segment back once it is complete.

#![allow(unsafe_code, reason = "device calls on streams of lanes")]

use super::{Allocation, Change, Engine, Source, announcer, ordering};
use crate::heap::{BlockId, Fence, Fences, NewSegment, Request};
use crate::id::Ticket;
use crate::lane::{Lane, Use};
use crate::sync::Ordering;

/// Takes a block of a rounded size in the order of the lane's stream. Returns `None` where a search is to look for it:
/// this is not the plain case, or there is no memory. The block is not counted, and its point is not known: see
/// [`StreamCache::count_taken`](crate::lane::StreamCache::count_taken). The pool has no observers.
#[inline(never)]
pub(crate) fn take(engine: &Engine, lane: &Lane, bytes: u64) -> Option<Allocation> {
    let Engine {
        shared,
        store,
        supply,
        ..
    } = engine;
    // While the source refuses, a search asks it, and evicts or trims.
    if !is_plain(engine, lane) || supply.is_refused() || lane.cache.owes_seal() {
        return None;
    }
    let request = Request {
        bytes,
        alignment: shared.settings.alignment,
    };
    let segment = store.heap.lock().plan_segment(request)?;
    let submission = lane.cache.submit("allocate_from").ok();
    let address = submission.and_then(|_submission| {
        // SAFETY: the lane keeps the stream's owner.
        let address = unsafe { supply.memory.allocate(bytes, segment.alignment(), lane.raw) };
        shared.noted(address).ok()
    });
    let Some(address) = address else {
        return refused(engine, segment);
    };
    let grant = {
        let mut heap = store.heap.lock();
        let grant = segment.commit(&mut heap, Some(address), Fences::default())?;
        heap.set_user(grant.id, lane.id);
        store.record_reserved(&heap);
        grant
    };
    shared.counters.growths.fetch_add(1, Ordering::Relaxed);
    store.tell_of_soft_cap();
    Some(Allocation {
        id: grant.id,
        address,
        bytes,
        after: Ticket::ZERO,
        source: Source::Grown,
    })
}

/// Ends the plan for a segment that the source did not give. Requests that wait may have lacked its room.
#[cold]
fn refused(engine: &Engine, segment: NewSegment) -> Option<Allocation> {
    let nothing = segment.commit(&mut engine.store.heap.lock(), None, Fences::default());
    debug_assert!(nothing.is_none(), "there is no memory");
    engine.shared.publish(Change::Memory);
    None
}

/// Returns whether allocations and frees on the lane's stream are passed on without a search.
#[inline]
fn is_plain(engine: &Engine, lane: &Lane) -> bool {
    let shared = &engine.shared;
    shared.settings.is_ordered
        && shared.gate.load(Ordering::Relaxed) == 0
        && !lane.is_external
        && !lane.is_foreign()
}

/// The outcome of a free in the plain case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// The source has the memory again.
    Whole,
    /// The source did not take it, and is not to be asked at once.
    Refused,
    /// It is not the plain case: nothing was done.
    NotPlain,
}

/// Gives a block back that was used on one stream alone, whose free is not awaited, in the order of that stream.
#[inline(never)]
pub(super) fn give(engine: &Engine, lane: &Lane, block: &Use) -> Given {
    let is_whole =
        || !engine.supply.has_parts() || engine.store.heap.lock().is_whole_segment(block.id);
    if !is_plain(engine, lane) || !is_whole() {
        return Given::NotPlain;
    }
    match free_in_order_of(engine, lane, block) {
        true => Given::Whole,
        false => Given::Refused,
    }
}

/// Passes the free of a block on, in the order of one of the lanes it was used on, which are usable now. `fences`
/// are the points after which the block is unused. Returns whether the block is gone.
#[inline]
pub(super) fn pass_on<'a>(
    engine: &Engine,
    mut lanes: impl Iterator<Item = &'a Lane>,
    fences: &Fences,
    block: &Use,
) -> bool {
    if !engine.shared.settings.is_ordered || !engine.store.heap.lock().is_whole_segment(block.id) {
        return false;
    }
    // The source is called with streams of its own device.
    let takes_waits =
        |lane: &&Lane| !lane.is_foreign() && (lane.takes_waits || is_alone(lane, fences));
    let Some(lane) = lanes.find(takes_waits) else {
        return false;
    };
    let others = fences.iter().filter(|fence| fence.stream != lane.id);
    // A failure is noted.
    ordering::wait_for_all(engine, lane, others).is_ok() && free_in_order_of(engine, lane, block)
}

/// Frees a whole segment behind the present point of a lane's stream.
fn free_in_order_of(engine: &Engine, lane: &Lane, block: &Use) -> bool {
    let Ok(_submission) = lane.cache.submit("free_to") else {
        return false;
    };
    // SAFETY: the source gave the segment, which this call owns. The stream comes after all uses of it.
    // The lane keeps the stream's owner; an external stream is named only in calls made with it.
    let freed = unsafe {
        engine
            .supply
            .memory
            .give(block.address, block.bytes, lane.raw)
    };
    if engine.shared.noted(freed).is_err() {
        return false;
    }
    let announcer = &engine.store.announcer;
    let time = announcer.time();
    let noted = {
        let mut heap = engine.store.heap.lock();
        heap.remove_segment(block.id);
        engine.store.record_reserved(&heap);
        let facts = || announcer::released(&[(block.address, block.bytes)]);
        time.map(|time| announcer.note(time, heap.totals(), facts()))
    };
    engine.shared.counters.released.add(block.bytes);
    announcer.tell_noted(noted);
    engine.store.tell_of_soft_cap();
    engine.shared.publish(Change::Memory);
    true
}

/// Passes on a block that was granted to a stream and never used.
pub(super) fn pass_back(
    engine: &Engine,
    lane: &Lane,
    id: BlockId,
    address: u64,
    bytes: u64,
) -> bool {
    let block = Use {
        id,
        address,
        bytes,
        rounding: 0,
    };
    // The owner of an external stream may be gone by now.
    let lanes = Some(lane).filter(|lane| !lane.is_external);
    pass_on(engine, lanes.into_iter(), &Fences::default(), &block)
}

/// Returns whether the fences are of the lane's stream alone.
fn is_alone(lane: &Lane, fences: &Fences) -> bool {
    fences.iter().all(|Fence { stream, .. }| stream == lane.id)
}
