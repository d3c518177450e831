//! Reservations that are awaited on threads of this library, so that neither an event loop nor Python's lock waits.

use crate::active::{Held, locked};
use crate::fault::injected;
use crate::fork;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use weirpool::{AllocError, Pool, Reservation, Tag};

/// Requests for memory are polled by one thread while the other makes a call of the device.
const THREADS: usize = 2;

static HAS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Returns the threads that wait, which are started on the first call.
///
/// # Errors
/// Returns an error in a forked process, at the end of the process, or if the system starts no thread.
pub(crate) fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    if fork::is_child() {
        return Err("this process was forked from the one that uses the pool; start it with spawn instead of fork".to_owned());
    }
    if has_stopped() {
        return Err("the process is ending".to_owned());
    }
    let started = RUNTIME.get_or_init(|| {
        fork::watch();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder.worker_threads(THREADS).thread_name("weirpool");
        let runtime = builder.enable_all().build();
        runtime.map_err(|error| format!("no threads to wait on: {error}"))
    });
    started.as_ref().map_err(Clone::clone)
}

/// Fails all waits, before the interpreter ends.
pub(crate) fn stop() {
    HAS_STOPPED.store(true, Ordering::SeqCst);
}

pub(crate) fn has_stopped() -> bool {
    HAS_STOPPED.load(Ordering::SeqCst)
}

/// The terms of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// The size, or one size for each piece.
    pub(crate) sizes: Vec<u64>,
    pub(crate) tag: Option<Tag>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: i32,
}

impl Terms {
    fn request<'a>(&self, pool: &'a Pool) -> weirpool::Reserve<'a> {
        let request = match self.sizes[..] {
            [bytes] => pool.reserve(bytes),
            _ => pool.reserve_many(self.sizes.iter().copied()),
        };
        request.terms(weirpool::Terms {
            tag: self.tag,
            timeout: self.timeout,
            deadline: self.deadline,
            priority: self.priority,
        })
    }

    /// Reserves memory that is available now.
    ///
    /// # Errors
    /// Returns the errors of [`Request::try_now`](weirpool::Request::try_now).
    pub(crate) fn try_now(&self, pool: &Pool) -> Result<Arc<Held>, AllocError> {
        self.request(pool).try_now().map(Held::new)
    }
}

enum State {
    Waiting,
    Ready(Result<Reservation, AllocError>),
    /// The outcome was taken, or the request was cancelled.
    Over,
}

/// A request that waits in the queue of a pool.
pub(crate) struct Wait {
    state: Mutex<State>,
    is_ready: Condvar,
    task: OnceLock<AbortHandle>,
}

impl Wait {
    /// Begins to wait. Calls `notify` on another thread once the outcome is there, unless the request was cancelled.
    ///
    /// # Errors
    /// Returns the error of [`runtime`].
    pub(crate) fn begin(
        pool: Pool,
        terms: Terms,
        notify: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, String> {
        let runtime = runtime()?;
        let wait = Arc::new(Self {
            state: Mutex::new(State::Waiting),
            is_ready: Condvar::new(),
            task: OnceLock::new(),
        });
        let settled = wait.clone();
        let task = runtime.spawn(async move {
            let outcome = terms.request(&pool).await;
            if settled.settle(outcome) {
                notify();
            }
        });
        let _ = wait.task.set(task.abort_handle());
        Ok(wait)
    }

    /// Stores the outcome. Returns false if the request was cancelled; then its memory goes back to the pool.
    fn settle(&self, outcome: Result<Reservation, AllocError>) -> bool {
        let mut state = locked(&self.state);
        if matches!(*state, State::Over) {
            drop(state);
            drop(outcome);
            return false;
        }
        *state = State::Ready(outcome);
        drop(state);
        self.is_ready.notify_all();
        true
    }

    /// Waits for the outcome for up to `time`. Returns whether it is there.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let state = locked(&self.state);
        let is_waiting = |state: &mut State| matches!(state, State::Waiting);
        let waited = self.is_ready.wait_timeout_while(state, time, is_waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !matches!(*state, State::Waiting)
    }

    /// Takes the outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Result<Arc<Held>, AllocError>> {
        let mut state = locked(&self.state);
        match std::mem::replace(&mut *state, State::Over) {
            State::Ready(outcome) => {
                drop(state);
                Some(outcome.map(Held::new))
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Gives up the position in the queue. Memory that was granted meanwhile goes back to the pool.
    pub(crate) fn cancel(&self) {
        if fork::is_child() {
            return;
        }
        let state = std::mem::replace(&mut *locked(&self.state), State::Over);
        if let (State::Waiting, Some(task)) = (&state, self.task.get()) {
            task.abort();
        }
        if injected("python-grant-kept-by-a-cancelled-wait") {
            return std::mem::forget(state);
        }
        // The reservation, if there is one, ends outside the lock.
        drop(state);
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if fork::is_child() {
            std::mem::forget(std::mem::replace(&mut *locked(&self.state), State::Over));
        }
    }
}

#[cfg(test)]
mod tests;
