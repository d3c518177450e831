//! The locks of lanes: they are recycled, and never given back to the allocator.
//!
//! A freed block leaves [its count](super::ref_cache) of the stream's owners under the lock of the stream's state, which it
//! reached through that count. So the lock must not depend on it. (Type-stable memory: Greenwald and Cheriton, 1996.) There
//! are as many slots as there ever were lanes at a time; the state in a vacant slot has no cache.

use super::state::StreamState;
use crate::sync::{Guard, Guards, Lasting, Mutex, plain};
use std::ops::Deref;

/// A stream's state behind its lock, on cache lines of its own. See the [module](self).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot(Mutex<StreamState>);

impl Slot {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, StreamState> {
        self.0.lock()
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, StreamState>> {
        self.0.try_lock()
    }
}

static VACANT: plain::Mutex<Vec<Lasting<Slot>>> = plain::Mutex::new(Vec::new());

/// A lane's slot, vacant again once this is dropped.
#[derive(Debug)]
pub(super) struct Lease(Lasting<Slot>);

impl Lease {
    pub(super) fn new(state: StreamState) -> Self {
        let vacant = VACANT.lock().pop();
        if let Some(slot) = vacant {
            *slot.lock() = state;
            return Self(slot);
        }
        Self(Lasting::new(Slot(Mutex::new(Guards::Lane, state))))
    }

    /// The slot itself: a guard of it needs neither the lease nor the lane.
    #[inline(always)]
    pub(super) fn slot(&self) -> Lasting<Slot> {
        self.0.clone()
    }
}

impl Deref for Lease {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let gone = std::mem::replace(&mut *self.0.lock(), StreamState::vacant());
        drop(gone);
        // A slot of one execution of a model is none of the next.
        if !cfg!(weirpool_loom) {
            VACANT.lock().push(self.0.clone());
        }
    }
}
