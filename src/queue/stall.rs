//! Whether the owner of a waiting request is to be told that nothing can serve it.

use crate::sync::{Ordering, SharedState};

/// The owner does not watch for it.
const UNWATCHED: u8 = 0;
const WATCHED: u8 = 1;
/// Nothing could serve the request, and its owner was not told yet.
const STALLED: u8 = 2;
const TOLD: u8 = 3;

/// The stall of a waiting request, which is the head of the queue or the first at its tag's limit; see
/// [`Request::poll_stalled`](crate::Request::poll_stalled).
#[derive(Debug)]
pub(super) struct Stall(SharedState);

impl Stall {
    pub(super) fn new() -> Self {
        Self(SharedState::new(UNWATCHED))
    }

    /// Has the owner told. Returns whether this is the first time.
    pub(super) fn watch(&self) -> bool {
        self.exchange(UNWATCHED, WATCHED)
    }

    pub(super) fn is_watched(&self) -> bool {
        self.0.load(Ordering::SeqCst) != UNWATCHED
    }

    /// Begins the stall. Returns whether the owner is to be woken.
    pub(super) fn begin(&self) -> bool {
        self.0.load(Ordering::SeqCst) == WATCHED && self.exchange(WATCHED, STALLED)
    }

    /// Returns whether the owner is to be told.
    pub(super) fn has_begun(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STALLED
    }

    /// Ends a stall of which the owner was not told. Returns whether there was one.
    pub(super) fn take(&self) -> bool {
        self.exchange(STALLED, WATCHED)
    }

    /// Notes that the owner is told.
    pub(super) fn mark_told(&self) {
        self.0.store(TOLD, Ordering::SeqCst);
    }

    /// Has the owner told again: the request enters the fair queue from a quota queue.
    pub(super) fn reset(&self) {
        if self.is_watched() {
            self.0.store(WATCHED, Ordering::SeqCst);
        }
    }

    fn exchange(&self, current: u8, new: u8) -> bool {
        let order = Ordering::SeqCst;
        self.0.compare_exchange(current, new, order, order).is_ok()
    }
}
