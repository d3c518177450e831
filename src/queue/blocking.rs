//! Waiting on a thread, for callers without an executor: the thread polls, and is parked in between.

use crate::sync::plain;
use plain::{AtomicBool, Ordering, thread};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

/// Runs a future of the pool's to its end, on this thread. It knows no executor, and so may be called inside any; that
/// executor's thread is blocked.
pub(crate) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let mut poll = |waker| Pin::new(&mut future).poll(&mut Context::from_waker(waker));
    // Most are ready at once, and need no waker. Any other is polled again below.
    if let Poll::Ready(output) = poll(Waker::noop()) {
        return output;
    }
    let parker = plain::Arc::new(Parker::new());
    let waker = Waker::from(parker.clone());
    loop {
        if let Poll::Ready(output) = poll(&waker) {
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
