//! A future that a thread waits for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};

/// Polls a future on this thread until it is ready, for at most `limit`. Returns `None` after that.
pub(crate) fn wait_for<F: Future>(future: F, limit: Duration) -> Option<F::Output> {
    let end = Instant::now().checked_add(limit);
    let woken = Arc::new(Woken {
        thread: current(),
        is_woken: AtomicBool::new(false),
    });
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        while !woken.is_woken.swap(false, Ordering::Acquire) {
            // Without an end that a clock can count to: for a time that is long enough.
            let left = end.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            park_timeout(left);
        }
    }
}

struct Woken {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
