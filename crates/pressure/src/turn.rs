//! Whose turn it is: one request asks the hook at a time.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The right to ask the hook, until this is dropped.
pub(crate) struct Turn(Arc<Turns>);

/// Hands out one turn at a time.
#[derive(Default)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    is_taken: bool,
    /// The tasks that wait for a turn, in no order. Some of them may have ended since.
    waiting: Vec<Waker>,
}

impl Turns {
    /// Waits for the turn. Nothing is left behind if the caller stops waiting.
    pub(crate) async fn take(self: Arc<Self>) -> Turn {
        poll_fn(|context| self.poll_take(context)).await;
        Turn(self)
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<()> {
        // With no lock held: that calls foreign code.
        let waker = context.waker().clone();
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_taken, true) {
            // The waker is dropped after the lock is released.
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|known| known.will_wake(&waker)) {
            state.waiting.push(waker);
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    /// Wakes all tasks that wait, since the task of any of them may never run again.
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.lock();
            state.is_taken = false;
            std::mem::take(&mut state.waiting)
        };
        for waker in waiting {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                // It is the waker's, and its destructor may panic.
                std::mem::forget(payload);
            }
        }
    }
}
