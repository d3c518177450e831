//! Memory of graphs: allocations and frees inside a capture.
//!
//! The memory is set aside from the heap as reservations are. It is reused in the *order* of one captured stream, which
//! has an id of its own: work outside the graph is ordered by the stream, and work inside it by the capture. A block
//! that is freed in the capture has a fence of that order, which no event proves. Other streams of the capture are granted
//! the block once the capture orders them after it (`handles::clock`). The fence counts as complete when the
//! capture is over: later captures with the same memory can be granted the block then.

use super::{Allocation, Engine, HeapStore, Source, Streams, ordering, reaping, release};
use crate::device::DeviceError;
use crate::heap::reservation::Extension;
use crate::heap::{self, Clock, Fences, Grant, Placement, Request, View};
use crate::id::{ReservationId, StreamId, Ticket};
use crate::lane::{BlockEvent, Flush, Lane, Use};
use crate::sync::Arc;
use smallvec::SmallVec;

/// Begins the capture of a lane's stream, in an order of its own, once the pool's own calls on it have returned. Its cached
/// blocks go to the heap. Returns whether the stream was not being captured already.
pub(crate) fn begin_capture(store: &HeapStore, lane: &Lane, order: StreamId) -> bool {
    if !lane.cache.begin_capture(order) {
        return false;
    }
    {
        let mut heap = store.heap.lock();
        store.take_back(&mut heap, lane, lane.cache.flush(Flush::All));
    }
    lane.cache.calls.wait();
    true
}

/// Returns an order for a stream that is being captured.
pub(crate) fn create(streams: &Streams, store: &HeapStore) -> StreamId {
    let order = streams.lanes.lock().next_id().as_order();
    store.heap.lock().register(order, Ticket::ZERO);
    order
}

/// Ends an order that no capture uses any more: memory that was freed in it is complete.
pub(crate) fn end(store: &HeapStore, order: StreamId) {
    store.heap.lock().forget(order);
}

/// Ends the capture of a lane's stream. Blocks from before the capture that were freed during it are sealed now.
pub(crate) fn end_capture(engine: &Engine, lane: &Lane) {
    lane.cache.end_capture();
    // A failure is noted; the memory stays pending then.
    let _ = ordering::seal_for_others(engine, lane);
}

/// Allocates from memory that is set aside for graphs, in an order of a capture: memory that is complete, or was freed
/// in that order or at a point that it comes after. `None` if the reservation has no such memory. `after` returns those
/// points, and asks the device for them first if it is told to.
///
/// # Errors
/// Returns a sticky error.
pub(crate) fn draw(
    engine: &Engine,
    lane: &Lane,
    (order, after): (StreamId, &dyn Fn(bool) -> Clock),
    reservation: ReservationId,
    request: Request,
) -> Result<Option<Allocation>, DeviceError> {
    let store = &engine.store;
    let take = |asks| take(store, lane, (order, &after(asks)), reservation, request);
    let mut grant = take(false);
    if grant.is_none() && store.left_in_reservation(reservation).0 >= request.bytes {
        grant = take(true);
    }
    if grant.is_none() && may_complete(&engine.streams, store, reservation, request) {
        // Streams may have passed the frees of the rest.
        complete(engine)?;
        grant = take(false);
    }
    Ok(grant.map(|grant| {
        let source = match grant.fences.is_empty() {
            true => Source::Free,
            false => Source::SameStream,
        };
        Allocation {
            id: grant.id,
            address: grant.address,
            bytes: grant.bytes,
            after: Ticket::ZERO,
            source,
        }
    }))
}

/// Returns whether streams may have passed the frees of memory that the request lacks.
fn may_complete(
    streams: &Streams,
    store: &HeapStore,
    reservation: ReservationId,
    request: Request,
) -> bool {
    if store.left_in_reservation(reservation).0 < request.bytes {
        return false;
    }
    let lanes = streams.lanes();
    let heap = store.heap.lock();
    heap::reservation::may_complete(&heap, reservation, |fence| lanes.find(fence).is_some())
}

fn take(
    store: &HeapStore,
    lane: &Lane,
    (stream, after): (StreamId, &Clock),
    reservation: ReservationId,
    request: Request,
) -> Option<Grant> {
    let view = View {
        stream,
        after,
        waits: None,
        placement: Placement::Anywhere,
    };
    let mut heap = store.heap.lock();
    let grant = heap::reservation::take(&mut heap, reservation, request, &view)?;
    heap.set_user(grant.id, lane.id);
    Some(grant)
}

/// Asks every stream how far it is, so that memory that was freed outside captures counts as complete.
///
/// # Errors
/// Returns a sticky error.
pub(crate) fn complete(engine: &Engine) -> Result<(), DeviceError> {
    ordering::seal_lanes(engine)?;
    reaping::reap(engine).map(drop)
}

/// Returns a piece of the memory above which it could be extended for a request, in an order of a capture.
pub(crate) fn extension(
    store: &HeapStore,
    (stream, after): (StreamId, &Clock),
    reservation: ReservationId,
    request: Request,
) -> Option<Extension> {
    let view = View {
        stream,
        after,
        waits: None,
        placement: Placement::Anywhere,
    };
    heap::reservation::extension(&store.heap.lock(), reservation, request, &view)
}

/// Frees a block in the capture that it was allocated in. The block waits for `fences`, of the streams that are part of
/// the capture, and for the other streams as usual.
pub(crate) fn free(
    engine: &Engine,
    home: &Lane,
    (mut fences, others): (Fences, &[&Arc<Lane>]),
    block: &Use,
) {
    home.cache
        .count(BlockEvent::Free, block.bytes, block.rounding);
    let mut closed = SmallVec::<[_; 1]>::new();
    for lane in others {
        let freed = lane.cache.count_use(block.bytes);
        fences.join(lane.fence(freed.ticket));
        closed.push((lane, freed));
    }
    for (lane, freed) in closed {
        release::record_closed(engine, lane, freed.closed);
    }
    let recipient = engine.store.heap.lock().free(block.id, fences);
    release::note_free(engine, recipient);
}
