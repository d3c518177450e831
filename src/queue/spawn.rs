//! The pool on a tokio runtime: the runtime may drive the waiting, and must not be blocked.

use super::Service;
use super::reclaimer::Spawned;
use crate::sync::Arc;

/// Spawns a reclaimer on the tokio runtime that is running here, if one is.
#[cfg(feature = "tokio")]
pub(super) fn reclaimer(service: &Arc<Service>) -> Option<Spawned> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let (reclaimer, spawned) = super::Reclaimer::while_awaited(service);
    // A runtime that is shutting down drops the task at once; the waiters then drive.
    drop(runtime.spawn(reclaimer));
    Some(spawned)
}

/// Without a runtime the waiters drive.
#[cfg(not(feature = "tokio"))]
pub(super) fn reclaimer(_service: &Arc<Service>) -> Option<Spawned> {
    None
}

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
