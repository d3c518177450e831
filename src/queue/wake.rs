//! Waking: a waker is code of the user's, and may panic.

use crate::sync::assert_unlocked;
use crate::trace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes a task. A waker that panics affects neither the other tasks to be woken nor the caller, which may be the
/// `drop` of a block.
pub(super) fn wake(waker: Waker) {
    assert_unlocked("wake");
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        trace::waker_panicked();
        // Dropping the panic's payload is the user's code as well.
        std::mem::forget(panic);
    }
}
