//! Std's primitives, and a mutex that does not poison. The crates of the workspace share them; they are not part of the
//! public interface.
//!
//! The pool's loom models take device calls as single steps, so the device layer always uses std.

pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use std::sync::{Arc, Condvar, MutexGuard, OnceLock, Weak};
pub use std::thread;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Calls a waker. One that panics affects neither the wakers that are called next nor the caller, which may be the
/// `drop` of a block. Returns whether it panicked.
pub fn wake(waker: Waker) -> bool {
    let has_panicked = catch(|| waker.wake());
    // Last: the waker is called whatever this check finds.
    crate::assert_unlocked("a waker is called");
    has_panicked
}

/// Calls wakers, every one of them, whatever the others do. Returns how many panicked.
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) -> usize {
    let wakers = wakers.into_iter();
    let panicked = wakers.filter_map(|waker| catch(|| waker.wake()).then_some(()));
    let panicked = panicked.count();
    crate::assert_unlocked("wakers are called");
    panicked
}

/// Calls foreign code: a waker, or a destructor. Returns whether it panicked.
pub fn catch(foreign: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(foreign));
    // Dropping the panic's payload is foreign code as well.
    outcome.map_err(std::mem::forget).is_err()
}

/// A std mutex that does not poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Locks the mutex, whether or not a thread panicked while it held the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
