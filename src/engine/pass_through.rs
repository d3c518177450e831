//! Frees that are passed on to an ordered source of segments, in the order of a stream.
//!
//! A block is a whole segment then, and leaves the heap with its free: only the source knows whether its memory is
//! pending or free. The stream whose order the free is in is first made to wait for all other streams that used the
//! block. Where no stream takes that, or the block is only a part of its segment, the block is freed as in any pool: it
//! is pending, and maintenance gives its segment back once it is complete.

#![allow(unsafe_code, reason = "device calls on streams of lanes")]

use super::{Change, Engine, announcer, ordering};
use crate::heap::{BlockId, Fence, Fences};
use crate::lane::{Lane, Use};

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
