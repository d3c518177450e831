//! Captures: the driver's own memory serves the allocations of a stream that is being captured.

use super::driver;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of captures that were begun and not ended.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

pub(super) fn begin() {
    ACTIVE.fetch_add(1, Ordering::SeqCst);
}

pub(super) fn end() {
    let less = |active: usize| active.checked_sub(1);
    let _ = ACTIVE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

pub(super) fn are_active() -> bool {
    ACTIVE.load(Ordering::SeqCst) > 0
}

/// Returns whether a stream may be part of a capture. Asks the driver only while there is a capture.
///
/// # Safety
/// The stream is not destroyed.
#[inline]
pub(super) unsafe fn may_have(stream: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    are_active() && unsafe { driver::may_be_captured(stream) }
}
