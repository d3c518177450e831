//! Counts the work of the queue, for the tests of the pool.

use std::cell::Cell;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn count() {
    VISITS.set(VISITS.get() + 1);
}

/// Returns how many waiters this thread looked at in fair queues, and how many tags in shares, since it last asked.
pub fn take() -> u64 {
    VISITS.take()
}
