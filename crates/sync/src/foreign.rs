//! Values that run foreign code when they are dropped, behind the pool's locks.
//!
//! The owner of a stream, a waker and a value of a user are *foreign*: their destructor may destroy a stream of the
//! driver, wake a task, or ask this very pool for memory. So no lock is held while one is dropped
//! (*no-lock-across-calls*). What a lock guards, or may own the last reference to, is therefore kept as [`Foreign`],
//! which has no destructor. A critical section that is done with such a value leaves it in its [`Trash`], which is
//! emptied once the lock is released:
//!
//! ```ignore
//! let mut queue = self.queue.lock_with_trash();
//! let (waiters, trash) = queue.parts();
//! trash.add(waiters.remove(&key)); // dropped after the lock is released
//! ```
//!
//! A value that is overlooked leaks, and in debug builds it panics.

use crate::{Arc, Guard, Guards, Mutex, assert_unlocked, plain};
use smallvec::SmallVec;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A value that runs foreign code when it is dropped.
#[derive(Debug)]
#[must_use = "a foreign value that is not released leaks"]
pub struct Foreign<T> {
    value: ManuallyDrop<T>,
    #[cfg(debug_assertions)]
    check: Check,
}

impl<T> Foreign<T> {
    /// Wraps a value.
    #[inline]
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            #[cfg(debug_assertions)]
            check: Check,
        }
    }

    /// Returns the value. The caller drops it with no lock held.
    #[inline]
    pub fn into_inner(self) -> T {
        #[cfg(debug_assertions)]
        std::mem::forget(self.check);
        ManuallyDrop::into_inner(self.value)
    }

    /// Drops the value. A panic of its destructor affects nothing else: the panic hook has reported it.
    pub fn release(self) {
        assert_unlocked("a foreign value is dropped");
        let value = self.into_inner();
        plain::catch(|| drop(value));
    }
}

/// To count a reference runs no foreign code.
impl<T> Clone for Foreign<Arc<T>> {
    #[inline]
    fn clone(&self) -> Self {
        Self::new(Arc::clone(self))
    }
}

impl<T> Deref for Foreign<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Panics when it is dropped: its value was neither released nor taken out.
#[cfg(debug_assertions)]
#[derive(Debug)]
struct Check;

#[cfg(debug_assertions)]
impl Drop for Check {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !std::thread::panicking() {
            panic!("a foreign value was neither released nor left in the trash: it leaks");
        }
    }
}

/// The foreign values that a critical section is done with. Dropping it drops them.
#[derive(Debug)]
pub struct Trash<T>(SmallVec<[Foreign<T>; 1]>);

impl<T> Default for Trash<T> {
    #[inline]
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<T> Trash<T> {
    /// Adds values, or none.
    #[inline]
    pub fn add(&mut self, values: impl IntoIterator<Item = Foreign<T>>) {
        for value in values {
            self.0.push(value);
        }
    }
}

impl<T> Drop for Trash<T> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            empty(std::mem::take(&mut self.0));
        }
    }
}

#[cold]
fn empty<T>(trash: SmallVec<[Foreign<T>; 1]>) {
    trash.into_iter().for_each(Foreign::release);
}

/// The guard of a [`Mutex`] whose critical section leaves foreign values. Dropping it first releases the lock.
#[derive(Debug)]
pub struct GuardWithTrash<'a, T: ?Sized, F> {
    // In this order: fields are dropped as they are declared.
    guard: Guard<'a, T>,
    trash: Trash<F>,
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex for a critical section that leaves foreign values.
    #[inline]
    pub fn lock_with_trash<F>(&self) -> GuardWithTrash<'_, T, F> {
        GuardWithTrash {
            guard: self.lock(),
            trash: Trash::default(),
        }
    }
}

impl<T: ?Sized, F> GuardWithTrash<'_, T, F> {
    /// Returns what the lock guards, and the trash.
    #[inline]
    pub fn parts(&mut self) -> (&mut T, &mut Trash<F>) {
        (&mut self.guard, &mut self.trash)
    }
}

impl<T: ?Sized, F> Deref for GuardWithTrash<'_, T, F> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized, F> DerefMut for GuardWithTrash<'_, T, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A value that several threads set and take, and that may be foreign. The former value is dropped with no lock held.
#[derive(Debug)]
pub struct ForeignOption<T>(Mutex<Option<Foreign<T>>>);

impl<T> ForeignOption<T> {
    /// Creates an option with this value.
    pub fn new(guards: Guards, value: Option<T>) -> Self {
        Self(Mutex::new(guards, value.map(Foreign::new)))
    }

    /// Sets the value, and drops the former one.
    pub fn set(&self, value: Option<T>) {
        let former = self.replace(value);
        former
            .into_iter()
            .for_each(|former| Foreign::new(former).release());
    }

    /// Sets the value. The caller drops the former one with no lock held.
    pub fn replace(&self, value: Option<T>) -> Option<T> {
        let value = value.map(Foreign::new);
        let former = std::mem::replace(&mut *self.0.lock(), value);
        former.map(Foreign::into_inner)
    }

    /// Takes the value. The caller drops it with no lock held.
    pub fn take(&self) -> Option<T> {
        self.replace(None)
    }

    /// Reads the value under the lock.
    pub fn read<R>(&self, read: impl FnOnce(Option<&T>) -> R) -> R {
        read(self.0.lock().as_deref())
    }

    /// Changes the value in its place, under the lock.
    pub fn change<R>(&self, change: impl FnOnce(Option<&mut T>) -> R) -> R {
        change(self.0.lock().as_mut().map(|value| &mut *value.value))
    }
}

impl<T> Drop for ForeignOption<T> {
    fn drop(&mut self) {
        // As any value: a panic of its destructor is its owner's.
        let left = self.0.get_mut().take();
        drop(left.map(Foreign::into_inner));
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Asks for the lock when it is dropped, and panics then.
    struct Asks(Arc<Mutex<u32>>, Arc<AtomicU32>);

    impl Drop for Asks {
        fn drop(&mut self) {
            assert!(self.0.try_lock().is_some(), "dropped under the lock");
            self.1.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("a destructor that panics"));
        }
    }

    #[test]
    fn trash_is_emptied_after_the_lock_is_released_whatever_panics() {
        let lock = Arc::new(Mutex::new(Guards::Queue, 0));
        let dropped = Arc::<AtomicU32>::default();
        let asks = || Foreign::new(Asks(lock.clone(), dropped.clone()));
        {
            let mut guard = lock.lock_with_trash();
            let (value, trash) = guard.parts();
            *value += 1;
            trash.add([asks(), asks()]);
            trash.add(Some(asks()));
            assert_eq!(dropped.load(Ordering::Relaxed), 0);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn former_value_of_an_option_is_dropped_with_no_lock_held() {
        let dropped = Arc::<AtomicU32>::default();
        let lock = Arc::new(Mutex::new(Guards::Queue, 0));
        let asks = || Some(Asks(lock.clone(), dropped.clone()));
        let option = ForeignOption::new(Guards::Queue, asks());
        option.set(asks());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        // The panic is the owner's.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(option)));
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn forgotten_foreign_value_is_reported() {
        let outcome = catch_unwind(AssertUnwindSafe(|| drop(Foreign::new(7))));
        assert!(outcome.is_err());
        Foreign::new(7).release();
        assert_eq!(Foreign::new(7).into_inner(), 7);
    }
}
