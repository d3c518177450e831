//! Spares: what a stream's cache keeps where its blocks are passed through to an ordered source of segments.
//!
//! A spare is the heap's record of a block whose memory the source has again: it holds the room in the capacity for the next
//! block of that size, so that a pair of an allocation and a free leaves the heap alone. Spares lie in the cache in place of
//! blocks, and whatever takes blocks back from caches removes them from the heap.

use super::block::{CachedBlock, Use};
use super::cache::{CacheBounds, CacheOwner};
use super::count::BlockEvent;
use super::state::StreamState;
use super::stream_cache::StreamCache;
use crate::heap::GRANULE;
use crate::id::Ticket;
use crate::measure::Source;
use crate::sync::{Arc, Ordering};

/// The size of the largest spare that has a stack.
const LARGEST: u64 = 2 << 20;

impl CacheBounds {
    /// Returns the size of the largest block, or spare, that has a stack.
    pub(super) fn largest_stack(&self) -> u64 {
        self.largest.max(self.spares.unwrap_or(0).min(LARGEST))
    }
}

/// Returns the bit of a size among those of which there are spares. Some sizes share one.
#[inline]
fn bit_of(bytes: u64) -> u64 {
    1 << (bytes / GRANULE % u64::from(u64::BITS))
}

/// A spare that is taken, the open ticket then, and a reference to the stream's owner, if one was left.
type TakenSpare<O> = (CachedBlock, Ticket, Option<Arc<O>>);

impl StreamCache {
    /// Returns whether there probably is a spare of this size.
    #[inline]
    pub fn expects_spare(&self, bytes: u64) -> bool {
        self.spare.load(Ordering::Relaxed) & bit_of(bytes) != 0
    }

    /// Takes a spare of this size for memory that the source has just given at this address, and counts the block. Returns
    /// the open ticket with it, and a reference that an earlier free [left](Self::keep_spare).
    ///
    /// # Errors
    /// Returns a spare of another address, if there is one: it is the caller's to remove.
    #[inline]
    pub fn take_spare<O: CacheOwner>(
        &self,
        address: u64,
        bytes: u64,
        rounding: u32,
    ) -> Result<TakenSpare<O>, Option<CachedBlock>> {
        let mut state = self.state.lock();
        let spare = state.cache.pop(bytes);
        if !state.cache.has_stacked(bytes) {
            let others = self.spare.load(Ordering::Relaxed) & !bit_of(bytes);
            self.spare.store(others, Ordering::Relaxed);
        }
        let spare = spare
            .filter(|spare| spare.address == address)
            .ok_or(spare)?;
        let event = BlockEvent::Granted(Source::Grown);
        state.counters.count(event, bytes, rounding);
        Ok((spare, state.cache.open, state.cache.references.take()))
    }

    /// Counts a block whose memory was given back to the source in the order of the stream. Keeps its record as a spare, if it
    /// `may_keep` it, and leaves its reference with the stream, if there is room for them. Returns whether the record is kept.
    ///
    /// A flush leaves no unused entry. So where there is one, the cache was not flushed since the gate was closed, and the
    /// spare will be found.
    #[inline]
    pub fn keep_spare<O: CacheOwner>(
        owner: &mut Option<Arc<O>>,
        cache_of: impl FnOnce(&O) -> &Self,
        block: &Use,
        may_keep: bool,
    ) -> bool {
        let Some(registration) = owner else {
            return false;
        };
        let this = cache_of(registration);
        // As in `free_at_once`.
        let slot = this.state.slot();
        let mut state = slot.lock();
        state
            .counters
            .count(BlockEvent::Free, block.bytes, block.rounding);
        let spare = CachedBlock::freed(block, Ticket::ZERO);
        let bound = this.bounds.spares.filter(|bound| may_keep && *bound > 0);
        let is_kept = bound.is_some_and(|bound| {
            state.cache.push_at_once(spare, bound) || this.keep_first(&mut state, spare, bound)
        });
        if !is_kept {
            return false;
        }
        let sizes = this.spare.load(Ordering::Relaxed) | bit_of(block.bytes);
        this.spare.store(sizes, Ordering::Relaxed);
        state.cache.references.leave(owner);
        true
    }

    /// Counts a block that was granted in the order of the stream by a source of segments. Returns the open ticket, and a
    /// reference that an earlier free [left](Self::keep_spare).
    pub fn count_taken<O: CacheOwner>(
        &self,
        bytes: u64,
        rounding: u32,
    ) -> (Ticket, Option<Arc<O>>) {
        let event = BlockEvent::Granted(Source::Grown);
        let mut state = self.state.lock();
        state.counters.count(event, bytes, rounding);
        (state.cache.open, state.cache.references.take())
    }

    /// Keeps a spare that is large, or where the cache has no unused entry, perhaps after a flush.
    #[cold]
    #[inline(never)]
    fn keep_first(&self, state: &mut StreamState, spare: CachedBlock, bound: u64) -> bool {
        self.activity.begin();
        if self.is_bypassed() || state.is_retired || state.capture.is_some() {
            return false;
        }
        match state.cache.has_stack(spare.bytes) {
            true => state.cache.push(spare, bound),
            false => state.cache.large.push(spare),
        }
    }
}
