//! Allocations and frees that are passed on to an ordered source of segments, in the order of a stream.
//!
//! Nearly all of them take the plain path here: [`take`] calls the source, for room that a
//! [spare](crate::lane::StreamCache::keep_spare) of the stream holds, or that is planned in the heap; [`give`] calls the
//! source, and the block's record becomes a spare. An allocation that is not plain, or that the source refuses, is a
//! [search](super::search). The plain path needs a stream that the pool may submit to at any time, an open gate and no
//! observers.
//!
//! A freed block is a whole segment then, and leaves the heap with its free, or as a spare: only the source knows whether
//! its memory is pending or free. The stream whose order the free is in is first made to wait for all other streams that used the
//! block. Where no stream takes that, or the block is only a part of its segment, the block is freed as in any pool: it
//! is pending, and maintenance gives its segment back once it is complete.

#![allow(unsafe_code, reason = "device calls on streams of lanes")]

use super::{Allocation, Change, Engine, Source, announcer, ordering};
use crate::heap::{BlockId, Fence, Fences, Grant, NewSegment, Request};
use crate::lane::{CacheOwner, Lane, Use};
use crate::sync::{Arc, Ordering};

/// Takes a block of a rounded size in the order of the lane's stream, and counts it. Returns it with a reference that an
/// earlier free left. Returns `None` where a search is to look for it: this is not the plain case, or there is no memory.
/// The pool has no observers.
#[inline]
pub(crate) fn take<O: CacheOwner>(
    engine: &Engine,
    lane: &Lane,
    bytes: u64,
    rounding: u32,
) -> Option<(Allocation, Option<Arc<O>>)> {
    // While the source refuses, a search asks it, and evicts or trims.
    if !is_plain(engine, lane) || engine.supply.is_refused() || lane.cache.owes_seal() {
        return None;
    }
    if !lane.cache.expects_spare(bytes) {
        return take_new(engine, lane, bytes, rounding);
    }
    // Until the block is made: if its memory goes back, no capture has begun.
    let _submission = lane.cache.calls.begin("allocate_from").ok()?;
    let address = ask(engine, lane, bytes)?;
    let (spare, after, left) = match lane.cache.take_spare(address, bytes, rounding) {
        Ok(taken) => taken,
        Err(of_another_address) => {
            if let Some(spare) = of_another_address {
                let store = &engine.store;
                store.take_back(&mut store.heap.lock(), lane, vec![spare]);
                engine.shared.publish(Change::Memory);
            }
            return take_late(engine, lane, address, bytes, rounding);
        }
    };
    let allocation = Allocation {
        id: spare.id,
        address,
        bytes,
        after,
        source: Source::Grown,
    };
    Some((allocation, left))
}

/// Asks the source for memory. The call is one of the pool's [own](crate::lane::StreamCache).
#[inline]
fn ask(engine: &Engine, lane: &Lane, bytes: u64) -> Option<u64> {
    let alignment = engine.shared.settings.alignment;
    // SAFETY: the lane keeps the stream's owner.
    let address = unsafe { engine.supply.memory.allocate(bytes, alignment, lane.raw) };
    engine.shared.noted(address).ok()
}

/// Takes a block of a size that there is no spare of.
#[inline(never)]
fn take_new<O: CacheOwner>(
    engine: &Engine,
    lane: &Lane,
    bytes: u64,
    rounding: u32,
) -> Option<(Allocation, Option<Arc<O>>)> {
    let segment = plan(engine, bytes, true)?;
    let submission = lane.cache.calls.begin("allocate_from").ok();
    let address = submission.and_then(|_submission| ask(engine, lane, bytes));
    match address {
        Some(address) => add(engine, lane, segment, address, rounding),
        None => refused(engine, segment),
    }
}

/// Adds memory that the source gave, whose spare was removed. If its room is taken as well, the source gets the memory
/// back; if it does not take it, the block exceeds the capacity.
#[cold]
#[inline(never)]
fn take_late<O: CacheOwner>(
    engine: &Engine,
    lane: &Lane,
    address: u64,
    bytes: u64,
    rounding: u32,
) -> Option<(Allocation, Option<Arc<O>>)> {
    if let Some(segment) = plan(engine, bytes, true) {
        return add(engine, lane, segment, address, rounding);
    }
    // SAFETY: the source has just given the memory in the order of this stream, and nothing uses it. The lane keeps the
    // stream's owner.
    let given = unsafe { engine.supply.memory.give(address, bytes, lane.raw) };
    engine.shared.noted(given).err()?;
    add(engine, lane, plan(engine, bytes, false)?, address, rounding)
}

fn plan(engine: &Engine, bytes: u64, is_bounded: bool) -> Option<NewSegment> {
    let alignment = engine.shared.settings.alignment;
    let request = Request { bytes, alignment };
    engine.store.heap.lock().plan_segment(request, is_bounded)
}

/// Adds a segment that the source gave to the heap, as a used block, and counts it.
fn add<O: CacheOwner>(
    engine: &Engine,
    lane: &Lane,
    segment: NewSegment,
    address: u64,
    rounding: u32,
) -> Option<(Allocation, Option<Arc<O>>)> {
    let Engine { shared, store, .. } = engine;
    let Grant { id, bytes, .. } = {
        let mut heap = store.heap.lock();
        let grant = segment.commit(&mut heap, Some(address), Fences::default())?;
        heap.set_user(grant.id, lane.id);
        store.record_reserved(&heap);
        grant
    };
    shared.counters.growths.fetch_add(1, Ordering::Relaxed);
    store.tell_of_soft_cap();
    let (after, left) = lane.cache.count_taken(bytes, rounding);
    let allocation = Allocation {
        id,
        address,
        bytes,
        after,
        source: Source::Grown,
    };
    Some((allocation, left))
}

/// Ends the plan for a segment that the source did not give. Requests that wait may have lacked its room.
#[cold]
fn refused<T>(engine: &Engine, segment: NewSegment) -> Option<T> {
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
        && !engine.store.is_over()
        && !lane.is_external
        && !lane.is_foreign()
}

/// The outcome of a free in the plain case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// The source has the memory again. The heap still has its record.
    Whole,
    /// The source did not take it, and is not to be asked at once.
    Refused,
    /// It is not the plain case: nothing was done.
    NotPlain,
}

/// Gives a block back that was used on one stream alone, whose free is not awaited, in the order of that stream.
#[inline]
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

/// Removes a block from the heap whose memory the source has again, and for which no spare is kept.
#[cold]
#[inline(never)]
pub(crate) fn remove(engine: &Engine, block: &Use) {
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
    let is_freed = ordering::wait_for_all(engine, lane, others).is_ok()
        && free_in_order_of(engine, lane, block);
    if is_freed {
        remove(engine, block);
    }
    is_freed
}

/// Frees a whole segment behind the present point of a lane's stream.
#[inline]
fn free_in_order_of(engine: &Engine, lane: &Lane, block: &Use) -> bool {
    // If a capture of the stream begins meanwhile, the source refuses.
    if lane.cache.is_captured() {
        return false;
    }
    // SAFETY: the source gave the segment, which this call owns. The stream comes after all uses of it.
    // The lane keeps the stream's owner; an external stream is named only in calls made with it.
    let freed = unsafe {
        engine
            .supply
            .memory
            .give(block.address, block.bytes, lane.raw)
    };
    engine.shared.noted(freed).is_ok()
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
