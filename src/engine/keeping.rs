//! Blocks that reservations keep for the streams that freed them.
//!
//! A stream often frees a block of its reservation and allocates the same size from it again. The reservation keeps such
//! a block: the stream's own order protects it, as in the stream's cache, and neither the heap nor its lock is involved.
//!
//! The heap counts a kept block as allocated. So everything that looks at a reservation's memory in any other way gives
//! its kept blocks to the heap first, with their fences: draws that find no kept block of their size and stream, splits,
//! merges, the end of the reservation, and statistics and walks of the whole pool. A stream is not done while a block is
//! kept for it, so the fence is known to the heap.
//!
//! The lock order is the reservation's state, heap, registry, lane.

use super::{HeapStore, Kept, Lanes, ReservationState, Shared, Streams};
use crate::heap::{Fence, Fences, Heap};
use crate::id::ReservationId;
use crate::lane::Flush;
use crate::sync::{Arc, Foreign, Guard, Mutex, Trash};

/// Has a reservation keep a block that `free` frees. Returns `false` if it does not, and the block is still to be
/// freed: the reservation has ended, keeps enough blocks already, figures are to be exact, or `free` did nothing.
pub(crate) fn keep(
    streams: &Streams,
    shared: &Shared,
    reservation: ReservationId,
    state: &Arc<Mutex<ReservationState>>,
    free: impl FnOnce() -> Option<Kept>,
) -> bool {
    let mut locked = state.lock();
    let is_first = !std::mem::replace(&mut locked.has_freed, true);
    if locked.is_over || is_first || locked.kept.len() == Kept::MOST || shared.is_measured() {
        return false;
    }
    let Some(kept) = free() else {
        return false;
    };
    locked.drawn -= kept.block.bytes;
    locked.kept.push(kept);
    if !locked.is_listed {
        locked.is_listed = true;
        streams.keeping.lock().insert(reservation, state.clone());
    }
    true
}

/// Gives the blocks that a reservation keeps to the heap. They stay in the reservation.
pub(crate) fn return_kept(
    streams: &Streams,
    store: &HeapStore,
    state: &mut ReservationState,
    trash: &mut Trash<Lanes>,
) {
    if state.kept.is_empty() {
        return;
    }
    // The last owner of a stream's owner, perhaps.
    let lanes = Foreign::new(streams.lanes());
    let mut heap = store.heap.lock();
    for Kept { stream, block, .. } in &state.kept {
        heap.free(block.id, Fences::one(*stream, block.ticket));
    }
    drop(heap);
    for Kept { stream, block, .. } in state.kept.drain(..) {
        let fence = Fence {
            stream,
            ticket: block.ticket,
        };
        let lane = lanes.find(fence);
        debug_assert!(
            lane.is_some(),
            "a block is kept for a stream that is registered"
        );
        if let Some(lane) = lane {
            lane.cache.record_kept_returned();
        }
    }
    trash.add([lanes]);
}

/// Gives the blocks that a reservation keeps to the heap, and has it keep none from now on: its handle is gone.
pub(crate) fn end_keeping(
    streams: &Streams,
    store: &HeapStore,
    reservation: ReservationId,
    state: &Mutex<ReservationState>,
) {
    let mut locked = state.lock_with_trash();
    let (locked, trash) = locked.parts();
    locked.is_over = true;
    return_kept(streams, store, locked, trash);
    if locked.is_listed {
        streams.keeping.lock().remove(&reservation);
    }
}

/// Locks the heap once it has the blocks that any reservation keeps, and no spares of the streams: what figures and walks
/// of the whole pool read.
pub(crate) fn whole_heap<'a>(streams: &Streams, store: &'a HeapStore) -> Guard<'a, Box<Heap>> {
    if store.keeps_spares {
        streams.flush(store, Flush::All);
    }
    let states: Vec<_> = streams.keeping.lock().values().cloned().collect();
    for state in states {
        let mut locked = state.lock_with_trash();
        let (state, trash) = locked.parts();
        return_kept(streams, store, state, trash);
    }
    store.heap.lock()
}
