//! Blocks that reservations keep for the streams that freed them.

use crate::heap::Request;
use crate::id::{ReservationId, StreamId};
use crate::sync::{Arc, Guard, Guards, Mutex};
use crate::{CachedBlock, Lane};
use std::any::Any;
use std::collections::BTreeMap;

/// A block that was freed into its reservation, for the stream that freed it.
#[derive(Debug)]
pub struct Kept {
    /// The stream.
    pub stream: StreamId,
    /// The block, with the ticket of its free.
    pub block: CachedBlock,
    /// Memory of the host that the next owner of the block need not allocate. It owns nothing.
    pub spare: Box<dyn Any + Send>,
}

/// What a reservation's handle and the blocks drawn from it hold in common.
#[derive(Debug, Default)]
pub struct ReservationState {
    /// Set aside in all, in bytes.
    pub size: u64,
    /// Drawn of that, or about to be, in bytes. A draw may come to more bytes, or to none.
    pub drawn: u64,
    /// The handle is gone.
    pub is_over: bool,
    /// The handle is gone, and nothing is drawn.
    pub is_spent: bool,
    /// Freed, and allocated as far as the heap knows. Empty once the handle is gone.
    pub kept: Vec<Kept>,
    /// The state is among [`KeepingReservations`].
    pub is_listed: bool,
    /// A block was freed. The first one goes to the heap: many reservations allocate each size once.
    pub has_freed: bool,
}

/// The states of reservations that may keep blocks.
#[derive(Debug)]
pub struct KeepingReservations(Mutex<BTreeMap<ReservationId, Arc<Mutex<ReservationState>>>>);

impl Default for KeepingReservations {
    fn default() -> Self {
        Self(Mutex::new(Guards::Registry, BTreeMap::new()))
    }
}

impl KeepingReservations {
    /// Locks the list.
    #[inline]
    pub fn lock(&self) -> Guard<'_, BTreeMap<ReservationId, Arc<Mutex<ReservationState>>>> {
        self.0.lock()
    }
}

impl Kept {
    /// Maximum number of blocks that a reservation keeps.
    pub const MOST: usize = 4;
}

impl ReservationState {
    /// Creates the state of a reservation of `size` bytes, all of which are left.
    #[inline]
    pub fn of_size(size: u64) -> Arc<Mutex<Self>> {
        let state = Self {
            size,
            ..Self::default()
        };
        Arc::new(Mutex::new(Guards::Registry, state))
    }

    /// Draws a block of exactly the requested size that is kept for the lane's stream, if `take` agrees.
    pub fn take_kept<R>(
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
