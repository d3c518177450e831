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
//! The lock order is book, heap, registry, lane.

use super::Streams;
use crate::fault::injected;
use crate::heap::{Fence, Fences, Request};
use crate::id::{ReservationId, StreamId};
use crate::lane::{CachedBlock, Lane};
use crate::sync::{Arc, Guards, Mutex};
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
pub(crate) struct Book {
    /// Set aside in all, in bytes.
    pub(crate) size: u64,
    /// Drawn of that, or about to be, in bytes. A draw may come to more bytes, or to none.
    pub(crate) drawn: u64,
    /// The handle is gone.
    pub(crate) is_over: bool,
    /// The handle is gone, and nothing is drawn.
    pub(crate) is_spent: bool,
    /// Freed, and not in the heap's books. Empty once the handle is gone.
    kept: Vec<Kept>,
    /// The book is among [`KeptBooks`].
    is_listed: bool,
    /// A block was freed. The first one goes to the heap: many reservations allocate each size once.
    has_freed: bool,
}

/// The books of reservations that may keep blocks.
#[derive(Debug)]
pub(super) struct KeptBooks(Mutex<BTreeMap<ReservationId, Arc<Mutex<Book>>>>);

impl KeptBooks {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Registry, BTreeMap::new()))
    }
}

impl Book {
    pub(crate) fn of_size(size: u64) -> Arc<Mutex<Self>> {
        let book = Self {
            size,
            ..Self::default()
        };
        Arc::new(Mutex::new(Guards::Registry, book))
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

impl Streams {
    /// Has a reservation keep a block that `free` frees. Returns `false` if it does not, and the block is still to be
    /// freed: the reservation has ended, keeps enough blocks already, or `free` did nothing.
    pub(crate) fn keep(
        &self,
        reservation: ReservationId,
        book: &Arc<Mutex<Book>>,
        free: impl FnOnce() -> Option<Kept>,
    ) -> bool {
        let mut entries = book.lock();
        let is_over = entries.is_over && !injected("kept-after-the-end");
        let is_first = !std::mem::replace(&mut entries.has_freed, true);
        if is_over || is_first || entries.kept.len() == ROOM {
            return false;
        }
        let Some(kept) = free() else {
            return false;
        };
        entries.drawn -= kept.block.bytes;
        entries.kept.push(kept);
        if !entries.is_listed {
            entries.is_listed = true;
            self.kept_books.0.lock().insert(reservation, book.clone());
        }
        true
    }

    /// Gives the blocks that a reservation keeps to the heap. They stay in the reservation.
    pub(crate) fn return_kept(&self, book: &mut Book) {
        if book.kept.is_empty() {
            return;
        }
        let lanes = self.lanes();
        let mut heap = self.heap.lock();
        for Kept { stream, block, .. } in &book.kept {
            heap.free(block.id, Fences::one(*stream, block.ticket));
        }
        drop(heap);
        for Kept { stream, block, .. } in book.kept.drain(..) {
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
    }

    /// Gives the blocks that a reservation keeps to the heap, and has it keep none from now on: its handle is gone.
    pub(crate) fn end_keeping(&self, reservation: ReservationId, book: &Mutex<Book>) {
        let mut entries = book.lock();
        entries.is_over = true;
        self.return_kept(&mut entries);
        if entries.is_listed {
            self.kept_books.0.lock().remove(&reservation);
        }
    }

    /// Gives the blocks that any reservation keeps to the heap.
    pub(crate) fn return_all_kept(&self) {
        let books: Vec<_> = self.kept_books.0.lock().values().cloned().collect();
        for book in books {
            self.return_kept(&mut book.lock());
        }
    }
}
