//! Std's primitives, and parking_lot's mutex, which does not poison. The crates of the workspace share them; they are
//! not part of the public interface.
//!
//! The pool's loom models take device calls as single steps, so the device layer always uses these.

pub use parking_lot::{Condvar, Mutex, MutexGuard};
pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use std::sync::{Arc, OnceLock, Weak};
pub use std::thread;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Calls a waker. One that panics affects neither the wakers that are called next nor the caller, which may be the
/// `drop` of a block. Returns whether it panicked.
pub fn wake(waker: Waker) -> bool {
    crate::assert_unlocked("a waker is called");
    let outcome = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    // Dropping the panic's payload is the user's code as well.
    outcome.map_err(std::mem::forget).is_err()
}
