//! Waiting on a thread, for callers without an executor: the thread polls, and is parked in between.

use super::runtime;
use crate::sync::plain;
use plain::{AtomicBool, Ordering, thread};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

/// Runs a future of the pool to its end on this thread. Returns `None` if it has to wait, and this thread runs a task
/// of a current-thread tokio runtime: all other tasks of the runtime would wait as well, among them those that free
/// memory.
pub(crate) fn block_on_unless_in_task<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match at_once(future) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => may_block().then(|| park_until(future)),
    }
}

/// Returns whether this thread may block: it runs no task of a current-thread tokio runtime. A task that asks this must
/// yield before it awaits anything of the runtime, so ask once the answer matters.
pub(crate) fn may_block() -> bool {
    !runtime::is_in_single_thread_task()
}

/// Returns whether this thread is known to block no task, without asking the runtime.
pub(crate) fn is_far_from_tasks() -> bool {
    !runtime::knows_single_thread_runtime()
}

/// Most futures are ready at once, and need no waker. Any other is polled again.
#[inline(always)]
fn at_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(future).poll(&mut context)
}

fn park_until<F: Future + Unpin>(future: &mut F) -> F::Output {
    let parker = plain::Arc::new(Parker::new());
    let waker = Waker::from(parker.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut context) {
            return output;
        }
        parker.park();
    }
}

/// A thread, and whether it was woken.
struct Parker {
    thread: thread::Thread,
    is_woken: AtomicBool,
}

impl Parker {
    fn new() -> Self {
        Self {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        }
    }

    /// Returns once the thread was woken. Unparking it otherwise does not end this.
    fn park(&self) {
        while !self.is_woken.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}

impl Wake for Parker {
    fn wake(self: plain::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
