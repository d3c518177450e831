//! Questions about a tokio runtime, which must not be blocked.

/// Returns whether this thread may run a task of a current-thread tokio runtime.
#[cfg(feature = "tokio")]
pub(super) fn knows_single_thread_runtime() -> bool {
    use tokio::runtime::{Handle, RuntimeFlavor};

    let runtime = Handle::try_current();
    runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread)
}

/// Returns whether this thread runs a task of a current-thread tokio runtime. Threads that only know such a runtime, by
/// `spawn_blocking` or `Handle::enter`, run none.
#[cfg(feature = "tokio")]
pub(super) fn is_in_single_thread_task() -> bool {
    use std::pin::pin;
    use std::task::{Context, Waker};

    // Tokio has no call that tells. It bounds what a task does in one poll, and nothing that other threads do: a task's
    // budget fits a byte. The task has to yield once that is spent, which it does when it is told the error.
    let mut context = Context::from_waker(Waker::noop());
    let mut is_spent = || {
        pin!(tokio::task::consume_budget())
            .poll(&mut context)
            .is_pending()
    };
    knows_single_thread_runtime() && (0..=u8::MAX).any(|_| is_spent())
}

/// Without tokio there is no such runtime.
#[cfg(not(feature = "tokio"))]
pub(super) fn knows_single_thread_runtime() -> bool {
    false
}

/// Without tokio there is no such task.
#[cfg(not(feature = "tokio"))]
pub(super) fn is_in_single_thread_task() -> bool {
    false
}
