//! The host tier: which memory is where, and the copies to the host.

use crate::books::{Books, HostTierFigures, Trash};
use crate::error::SpillError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weirpool::device::MemoryKind;
use weirpool::{Block, Evictable, Pinned, Pool, Stream};
use weirpool_sync::{Guards, Mutex};

/// Where the contents of [spillable](crate::Spillable) memory are kept while the pool of the device uses the memory for
/// others: a pool of pinned memory, whose capacity bounds them. Clones are the same tier.
///
/// The copies in both directions run on one stream of the tier's own, beside the work of other streams. A tier is for
/// memory of one device.
#[derive(Clone)]
pub struct HostTier(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    host: Pool,
    /// The stream of the copies, and of the host's memory.
    pub(crate) copies: Stream,
    books: Mutex<Books>,
    /// The host refused memory last: others use it, or its free memory is in pieces.
    has_refused: AtomicBool,
}

impl HostTier {
    /// Makes a tier of a pool of pinned memory, built with [`Upstream::Pinned`](weirpool::Upstream::Pinned) over the device
    /// whose memory is to be spilled. Its capacity is the capacity of the tier. Memory is pinned when it is first needed, which
    /// is slow: [`initial_size`](weirpool::Tuning::initial_size) pins it ahead. Others may use the pool as well.
    ///
    /// # Errors
    /// Returns [`SpillError::NotPinned`] if the memory is of another kind, or an error if the device makes no stream.
    pub fn new(host: &Pool) -> Result<Self, SpillError> {
        let kind = host.inspect().memory_kind();
        if kind != MemoryKind::Pinned {
            return Err(SpillError::NotPinned { kind });
        }
        Ok(Self(Arc::new(Shared {
            host: host.clone(),
            copies: host.create_stream()?.named("spills"),
            books: Mutex::new(Guards::Registry, Books::default()),
            has_refused: AtomicBool::new(false),
        })))
    }

    /// Returns what the tier holds now, and what it did so far.
    pub fn figures(&self) -> HostTierFigures {
        self.0.with(|books, _| books.figures)
    }
}

impl Shared {
    /// Reads and changes the books. The trash is dropped outside the lock.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Books, &mut Trash) -> R) -> R {
        let mut trash = Trash::default();
        let has_refused = self.has_refused.load(Ordering::Relaxed);
        let used = has_refused.then(|| self.host.inspect().statistics().used.current);
        let capacity = self.host.capacity();
        let mut books = self.books.lock();
        let by_others = used.map_or(0, |used| used.saturating_sub(books.figures.spilled));
        books.capacity = capacity.saturating_sub(by_others);
        let changed = change(&mut books, &mut trash);
        drop(books);
        drop(trash);
        changed
    }

    /// Makes memory of a block evictable once it is no longer pinned. To evict it is to spill it.
    pub(crate) fn evictable(self: &Arc<Self>, block: Block, id: u64) -> (Arc<Evictable>, Pinned) {
        let tier = self.clone();
        let (memory, pin) =
            Evictable::evicted_by(block, Box::new(move |block| tier.spill(id, block)));
        (Arc::new(memory), pin)
    }

    /// Submits a copy of memory that is being evicted, and frees the memory behind it. Returns false if it stays: then it is
    /// not evictable until the host has more room.
    fn spill(self: &Arc<Self>, id: u64, block: Block) -> bool {
        let Some(bytes) = self.with(|books, trash| books.begin_spill(id, trash)) else {
            // Its user has dropped it.
            return true;
        };
        let mut leaving = Leaving {
            tier: self,
            id,
            bytes,
            block: Some(block),
        };
        let host = leaving.copy();
        self.has_refused.store(host.is_none(), Ordering::Relaxed);
        let Some(host) = host else {
            return false;
        };
        // An ordinary free: pending until the copy is complete.
        drop(leaving.block.take());
        self.with(|books, trash| books.end_spill(id, bytes, host, trash));
        true
    }
}

/// Memory whose copy is being submitted. If that fails, or panics, it stays.
struct Leaving<'a> {
    tier: &'a Arc<Shared>,
    id: u64,
    bytes: u64,
    /// Until it is freed.
    block: Option<Block>,
}

impl Leaving<'_> {
    /// Copies the memory to the host. Returns `None` if the host has no room, or the device cannot copy.
    fn copy(&self) -> Option<Block> {
        let Shared { host, copies, .. } = &**self.tier;
        let block = self.block.as_ref()?;
        if block.stream().pool() == *host {
            return None;
        }
        let mut held = host.try_allocate(copies, self.bytes).ok()?;
        // It takes place whether it is awaited or not. An error of its work is one of the whole device.
        drop(block.copy_to(0..self.bytes, &mut held, 0, copies).ok()?);
        Some(held)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let stays = self.tier.evictable(block, self.id);
            self.tier
                .with(|books, trash| books.refuse_spill(self.id, self.bytes, stays, trash));
        }
    }
}

impl fmt::Debug for HostTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTier")
            .field("figures", &self.figures())
            .finish_non_exhaustive()
    }
}
