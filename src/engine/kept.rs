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

use super::{HeapStore, Lanes, Shared, Streams};
use crate::fault::injected;
use crate::heap::{Fence, Fences, Request};
use crate::id::{ReservationId, StreamId};
use crate::lane::{CachedBlock, Lane};
use crate::sync::{Arc, Foreign, Guards, Mutex, Trash};
use std::any::Any;
use std::collections::BTreeMap;

/// Maximum number of blocks that a reservation keeps.
const ROOM: usize = 4;

/// A block that was freed into its reservation, for the stream that freed it.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) stream: StreamId,
    pub(crate) block: CachedBlock,
    /// Memory of the host that the next owner of the block need not allocate. It owns nothing.
    pub(crate) spare: Box<dyn Any + Send>,
}

/// What a reservation's handle and the blocks drawn from it hold in common.
#[derive(Debug, Default)]
pub(crate) struct ReservationState {
    /// Set aside in all, in bytes.
    pub(crate) size: u64,
    /// Drawn of that, or about to be, in bytes. A draw may come to more bytes, or to none.
    pub(crate) drawn: u64,
    /// The handle is gone.
    pub(crate) is_over: bool,
    /// The handle is gone, and nothing is drawn.
    pub(crate) is_spent: bool,
    /// Freed, and allocated as far as the heap knows. Empty once the handle is gone.
    kept: Vec<Kept>,
    /// The state is among [`KeepingReservations`].
    is_listed: bool,
    /// A block was freed. The first one goes to the heap: many reservations allocate each size once.
    has_freed: bool,
}

/// The states of reservations that may keep blocks.
#[derive(Debug)]
pub(super) struct KeepingReservations(Mutex<BTreeMap<ReservationId, Arc<Mutex<ReservationState>>>>);

impl KeepingReservations {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Registry, BTreeMap::new()))
    }
}

impl ReservationState {
    pub(crate) fn of_size(size: u64) -> Arc<Mutex<Self>> {
        let state = Self {
            size,
            ..Self::default()
        };
        Arc::new(Mutex::new(Guards::Registry, state))
    }

    /// Draws a block of exactly the requested size that is kept for the lane's stream, if `take` agrees.
    pub(crate) fn take_kept<R>(
        &mut self,
        lane: &Lane,
        Request { bytes, alignment }: Request,
        take: impl FnOnce(&CachedBlock) -> Option<R>,
    ) -> Option<(Kept, R)> {
        // Other alignments are found by the heap.
        let below = alignment.is_power_of_two().then(|| alignment - 1)?;
        let is_meant = |kept: &Kept| {
            let block = &kept.block;
            kept.stream == lane.id && block.bytes == bytes && block.address & below == 0
        };
        let at = self.kept.iter().rposition(is_meant)?;
        let taken = take(&self.kept[at].block)?;
        self.drawn += bytes;
        Some((self.kept.swap_remove(at), taken))
    }
}

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
    let is_over = locked.is_over && !injected("kept-after-the-end");
    let is_first = !std::mem::replace(&mut locked.has_freed, true);
    if is_over || is_first || locked.kept.len() == ROOM || shared.is_measured() {
        return false;
    }
    let Some(kept) = free() else {
        return false;
    };
    locked.drawn -= kept.block.bytes;
    locked.kept.push(kept);
    if !locked.is_listed {
        locked.is_listed = true;
        streams.keeping.0.lock().insert(reservation, state.clone());
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
            lane.cache.note_kept_returned();
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
        streams.keeping.0.lock().remove(&reservation);
    }
}

/// Gives the blocks that any reservation keeps to the heap.
pub(crate) fn return_all_kept(streams: &Streams, store: &HeapStore) {
    let states: Vec<_> = streams.keeping.0.lock().values().cloned().collect();
    for state in states {
        let mut locked = state.lock_with_trash();
        let (state, trash) = locked.parts();
        return_kept(streams, store, state, trash);
    }
}
