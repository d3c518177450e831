//! Where fronts lie: in slots, which are recycled and never given back to the allocator.
//!
//! A freed block leaves [its count](super::ref_cache) of the stream's owners under the lock of the front, which it reached
//! through that count. So the lock must not depend on it. (Memory that stays of one type: Greenwald and Cheriton, 1996.)
//! There are as many slots as there ever were lanes at a time; one that is vacant has no cache.
//!
//! What is left beside a front is of a type that the lane does not know. Who does has the slot as it is, and the lane has
//! it without the type: on the hot path nothing is looked up by it.

use super::state::StreamState;
use crate::sync::{Guard, Guards, Lasting, Mutex, plain};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// What the lane does not look at.
pub(crate) trait Opaque: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Opaque for T {}

/// What the lock of a lane guards.
#[derive(Debug)]
pub(crate) struct Guarded<K: ?Sized> {
    pub(super) state: StreamState,
    /// What freed blocks left.
    pub(crate) left: K,
}

impl<K: ?Sized> Deref for Guarded<K> {
    type Target = StreamState;

    #[inline(always)]
    fn deref(&self) -> &StreamState {
        &self.state
    }
}

impl<K: ?Sized> DerefMut for Guarded<K> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut StreamState {
        &mut self.state
    }
}

/// A front behind its lock, on cache lines of its own. See the [module](self).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot<K: ?Sized = dyn Opaque>(Mutex<Guarded<K>>);

impl<K: ?Sized> Slot<K> {
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, Guarded<K>> {
        self.0.lock()
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, Guarded<K>>> {
        self.0.try_lock()
    }
}

/// All slots of a kind that are vacant.
#[derive(Debug)]
pub(crate) struct Slots<K: 'static>(plain::Mutex<Vec<Lasting<Slot<K>>>>);

impl<K: Opaque + Default + 'static> Slots<K> {
    pub(crate) const fn new() -> Self {
        Self(plain::Mutex::new(Vec::new()))
    }

    /// A slot for a lane, which gives it back in the end: who has the lane may lock it, and nobody else.
    pub(crate) fn lease(&'static self) -> (Lasting<Slot<K>>, Leased) {
        let vacant = self.0.lock().pop();
        let slot = vacant.unwrap_or_else(|| {
            let guarded = Guarded {
                state: StreamState::vacant(),
                left: K::default(),
            };
            Lasting::new(Slot(Mutex::new(Guards::Lane, guarded)))
        });
        let lease = Lease {
            slots: self,
            slot: slot.clone(),
        };
        let leased = Leased {
            slot: Lasting::<Slot>(slot.clone().0),
            _lease: Box::new(lease),
        };
        (slot, leased)
    }
}

#[derive(Debug)]
struct Lease<K: 'static> {
    slots: &'static Slots<K>,
    slot: Lasting<Slot<K>>,
}

impl<K> Drop for Lease<K> {
    fn drop(&mut self) {
        let gone = std::mem::replace(&mut self.slot.lock().state, StreamState::vacant());
        drop(gone);
        // A slot of one execution of a model is none of the next.
        if !cfg!(weirpool_loom) {
            self.slots.0.lock().push(self.slot.clone());
        }
    }
}

/// The slot of a lane.
#[derive(Debug)]
pub(crate) struct Leased {
    slot: Lasting<Slot>,
    _lease: Box<dyn Opaque>,
}

impl Deref for Leased {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        &self.slot
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_are_as_many_as_there_ever_were_leases_at_a_time() {
        static SLOTS: Slots<u64> = Slots::new();
        let mut seen = HashSet::new();
        for round in 0..100 {
            let leases: Vec<_> = (0..=round % 3).map(|_| SLOTS.lease()).collect();
            seen.extend(leases.iter().map(|(slot, _)| std::ptr::from_ref(&**slot)));
        }
        assert_eq!(seen.len(), 3);
        assert_eq!(SLOTS.0.lock().len(), 3);
    }
}
