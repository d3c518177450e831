//! Tensors that the pool may take back before a request waits or fails.
//!
//! A tensor's memory becomes evictable when PyTorch frees it: the block is then kept in an [`Entry`] instead of being
//! freed. Such an entry gives the block back as the next allocation of its thread, so that PyTorch owns it again.

use crate::active::locked;
use crate::device_pool::DevicePool;
use crate::fork;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use weirpool::device::cuda::ExternalStream;
use weirpool::{AllocError, Block, Evictable, Pool, Stream, Unordered};
use weirpool_compat::RawError;

/// The number of blocks that threads are about to take over. While it is 0, an allocation looks no further.
static HANDED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The block that the next allocation of this thread takes over.
    static NEXT: RefCell<Option<(Arc<Entry>, Block)>> = const { RefCell::new(None) };
}

/// Memory that a tensor had, or has.
pub(crate) struct Entry {
    pool: Pool,
    state: Mutex<State>,
}

enum State {
    /// In a tensor.
    InUse,
    Evictable(Evictable),
    /// It was evicted, or freed for good.
    Gone,
}

impl Entry {
    /// Prepares a block to be handed to this thread's next allocation. Returns false if it was evicted.
    pub(crate) fn hand_over(self: &Arc<Self>) -> bool {
        let mut state = locked(&self.state);
        let State::Evictable(evictable) = &mut *state else {
            return false;
        };
        let taken = evictable.take();
        let next = match taken {
            Some(_) => State::InUse,
            None => State::Gone,
        };
        let earlier = std::mem::replace(&mut *state, next);
        drop(state);
        drop(earlier);
        let Some(block) = taken else {
            return false;
        };
        HANDED.fetch_add(1, Ordering::Relaxed);
        NEXT.with(|slot| *slot.borrow_mut() = Some((self.clone(), block)));
        true
    }

    /// Takes a block back that no allocation took over. Returns whether one took it.
    pub(crate) fn was_taken(self: &Arc<Self>) -> bool {
        match next_of(&self.pool) {
            Some((entry, block)) => {
                entry.keep(block);
                false
            }
            None => true,
        }
    }

    /// Returns whether its memory was evicted, or is gone with its tensor.
    pub(crate) fn is_gone(&self) -> bool {
        match &*locked(&self.state) {
            State::InUse => false,
            State::Evictable(evictable) => !evictable.is_present(),
            State::Gone => true,
        }
    }

    fn keep(&self, block: Block) {
        let evictable = block.into_evictable();
        *locked(&self.state) = State::Evictable(evictable);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if fork::is_child() {
            let state = std::mem::replace(&mut *locked(&self.state), State::Gone);
            std::mem::forget(state);
        }
    }
}

/// Returns the block that this thread's next allocation takes over.
fn next_of(pool: &Pool) -> Option<(Arc<Entry>, Block)> {
    if HANDED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let next = NEXT.try_with(|slot| {
        let mut slot = slot.borrow_mut();
        let is_its = slot.as_ref().is_some_and(|(entry, _)| entry.pool == *pool);
        is_its.then(|| slot.take()).flatten()
    });
    let next = next.ok().flatten();
    if next.is_some() {
        HANDED.fetch_sub(1, Ordering::Relaxed);
    }
    next
}

/// The entries of a pool whose memory is in use, by its address.
#[derive(Default)]
pub(crate) struct Entries {
    in_use: Mutex<FxHashMap<u64, Weak<Entry>>>,
    /// The length of the map. While it is 0, a free looks no further.
    count: AtomicUsize,
}

impl Entries {
    fn insert(&self, address: u64, entry: &Arc<Entry>) {
        let mut in_use = locked(&self.in_use);
        in_use.insert(address, Arc::downgrade(entry));
        self.count.store(in_use.len(), Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn remove(&self, address: u64) -> Option<Arc<Entry>> {
        if self.is_empty() {
            return None;
        }
        let mut in_use = locked(&self.in_use);
        let entry = in_use.remove(&address);
        self.count.store(in_use.len(), Ordering::Release);
        entry?.upgrade()
    }
}

impl DevicePool {
    /// Returns an entry that keeps the memory at an address once PyTorch frees it.
    pub(crate) fn entry_at(&self, address: u64) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            pool: self.pool().clone(),
            state: Mutex::new(State::InUse),
        });
        self.entries.insert(address, &entry);
        entry
    }

    /// Gives up an entry whose memory PyTorch still owns: an ordinary free follows.
    pub(crate) fn forget_entry(&self, address: u64) {
        drop(self.entries.remove(address));
    }

    /// Keeps the memory at an address instead of freeing it, if it has an entry. Returns whether it has.
    ///
    /// # Errors
    /// Returns an error if the address is not allocated here, or if the stream cannot be used with the pool.
    pub(crate) fn keep_evictable(
        &self,
        address: u64,
        stream: &ExternalStream,
    ) -> Result<bool, RawError> {
        let Some(entry) = self.entries.remove(address) else {
            return Ok(false);
        };
        // Its next use, or its reuse, comes after the work that is submitted to this stream so far.
        self.raw().record_stream(address, stream)?;
        entry.keep(self.raw().take(address)?);
        Ok(true)
    }

    /// Returns the block of an entry that this thread's next allocation is to take over, for use on a stream.
    pub(crate) fn handed_over(&self, stream: &Stream) -> Option<Result<Block, AllocError>> {
        let (entry, block) = next_of(self.pool())?;
        // The stream waits for the work that wrote the memory.
        if let Err(error) = stream.record_use(Unordered::UntilFreed(&block)) {
            entry.keep(block);
            return Some(Err(error.into()));
        }
        self.entries.insert(block.address().to_bits(), &entry);
        Some(Ok(block))
    }

    /// Returns whether a block is to be handed over to any thread.
    pub(crate) fn hands_over(&self) -> bool {
        HANDED.load(Ordering::Relaxed) > 0
    }
}
