//! Locks that outlive their lanes: of a stream's state, and of its shards.
//!
//! A freed block leaves [its reference](super::cache::RefCache) to the stream under a lock that it reached through that
//! reference. Another thread may take the reference and drop it, and the lane with it, before the first one has
//! released the lock. So the lock must not depend on the lane: it is in a *slot*, which is recycled, and never given
//! back to the allocator. (Type-stable memory: Greenwald and Cheriton, 1996.) There are as many slots as there ever
//! were lanes and shards at a time. A vacant one has contents that own no memory.

use crate::sync::{Guard, Guards, Lasting, Mutex, plain};
use std::ops::Deref;

/// What a slot may contain.
pub(super) trait Contents: Sized + 'static {
    /// Creates the contents of a vacant slot.
    fn vacant() -> Self;

    /// Returns the vacant slots of this kind.
    fn vacancies() -> &'static plain::Mutex<Vec<Lasting<Slot<Self>>>>;
}

/// Contents behind their lock, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot<T>(Mutex<T>);

impl<T> Slot<T> {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock()
    }
}

/// A slot in use; vacant again once this is dropped.
#[derive(Debug)]
pub(super) struct OwnedSlot<T: Contents>(Lasting<Slot<T>>);

impl<T: Contents> OwnedSlot<T> {
    pub(super) fn new(contents: T) -> Self {
        let vacant = T::vacancies().lock().pop();
        if let Some(slot) = vacant {
            *slot.lock() = contents;
            return Self(slot);
        }
        Self(Lasting::new(Slot(Mutex::new(Guards::Lane, contents))))
    }

    /// Returns the slot itself: a guard of it needs neither its owner nor the lane.
    #[inline(always)]
    pub(super) fn slot(&self) -> Lasting<Slot<T>> {
        self.0.clone()
    }
}

impl<T: Contents> Deref for OwnedSlot<T> {
    type Target = Slot<T>;

    #[inline]
    fn deref(&self) -> &Slot<T> {
        &self.0
    }
}

impl<T: Contents> Drop for OwnedSlot<T> {
    fn drop(&mut self) {
        let gone = std::mem::replace(&mut *self.0.lock(), T::vacant());
        drop(gone);
        // A slot of one execution of a model must not be used in the next.
        if !cfg!(weirpool_loom) {
            T::vacancies().lock().push(self.0.clone());
        }
    }
}
