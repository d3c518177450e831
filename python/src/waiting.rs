//! Waits on threads of this library, for reservations and regions, so that neither an event loop nor Python's lock waits.

use crate::active::{Held, locked};
use crate::fork;
use futures::future::BoxFuture;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use weirpool::{AllocError, Pool, Tag};

/// Requests for memory are polled by one thread while the other makes a call of the device.
const THREADS: usize = 2;

static HAS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Returns the threads that wait, which are started on the first call.
///
/// # Errors
/// Returns an error in a forked process, at the end of the process, or if the system starts no thread.
pub(crate) fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if fork::is_child() {
        return Err("this process was forked from the one that uses the pool; start it with spawn instead of fork".to_owned());
    }
    if has_stopped() {
        return Err("the process is ending".to_owned());
    }
    let _starting = locked(&STARTING);
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    fork::watch();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let builder = builder.worker_threads(THREADS).thread_name("weirpool");
    // It panics if the system starts no thread. The next call tries again.
    let runtime = catch_unwind(AssertUnwindSafe(|| builder.enable_all().build()));
    let runtime = runtime.map_err(|_| "the system starts no thread to wait on".to_owned())?;
    let runtime = runtime.map_err(|error| format!("no threads to wait on: {error}"))?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Ends blocking waits, and refuses others, before the interpreter ends.
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

    /// Waits for the reservation.
    ///
    /// # Errors
    /// Returns the errors of [`Request`](weirpool::Request).
    pub(crate) async fn reserved(self, pool: Pool) -> Result<Arc<Held>, AllocError> {
        self.request(&pool).await.map(Held::new)
    }

    /// Reserves memory that is available now.
    ///
    /// # Errors
    /// Returns the errors of [`Request::try_now`](weirpool::Request::try_now).
    pub(crate) fn try_now(&self, pool: &Pool) -> Result<Arc<Held>, AllocError> {
        self.request(pool).try_now().map(Held::new)
    }
}

enum State<T> {
    Waiting,
    Ready(T),
    /// The outcome was taken, or the request was cancelled.
    Over,
}

/// A request that waits, such as one in the queue of a pool.
pub(crate) struct Wait<T> {
    state: Mutex<State<T>>,
    is_ready: Condvar,
    /// The request itself, until it has its outcome or is cancelled.
    request: Mutex<Option<BoxFuture<'static, T>>>,
    task: OnceLock<AbortHandle>,
}

impl<T: Send + 'static> Wait<T> {
    /// Begins to wait, behind the requests that began before. Calls `notify` once the outcome is there, unless the request
    /// was cancelled: on another thread, or in this call.
    ///
    /// # Errors
    /// Returns the error of [`runtime`].
    pub(crate) fn begin(
        request: impl Future<Output = T> + Send + 'static,
        notify: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<Arc<Self>, String> {
        let runtime = runtime()?;
        let wait = Arc::new(Self {
            state: Mutex::new(State::Waiting),
            is_ready: Condvar::new(),
            request: Mutex::new(Some(Box::pin(request))),
            task: OnceLock::new(),
        });
        // On this thread, so that requests join the queue in the order in which they were made. A task goes on with the
        // wait, and is woken from its own first poll on.
        let first = {
            let _entered = runtime.enter();
            wait.poll(&mut Context::from_waker(Waker::noop()))
        };
        match first {
            Poll::Ready(outcome) => wait.settle(outcome, notify),
            Poll::Pending => {
                let waiting = wait.clone();
                let task = runtime.spawn(async move {
                    let outcome = poll_fn(|context| waiting.poll(context)).await;
                    waiting.settle(outcome, notify);
                });
                let _ = wait.task.set(task.abort_handle());
            }
        }
        Ok(wait)
    }

    /// Polls the request; `None` if it was cancelled.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut request = locked(&self.request);
        let Some(waiting) = &mut *request else {
            return Poll::Ready(None);
        };
        let polled = waiting.as_mut().poll(context);
        let finished = request.take_if(|_| polled.is_ready());
        // Outside the lock: it may have the last handle of the pool.
        drop(request);
        drop(finished);
        polled.map(Some)
    }

    /// Stores the outcome, and tells of it. If the request was cancelled, its memory goes back to the pool.
    fn settle(self: &Arc<Self>, outcome: Option<T>, notify: impl FnOnce(&Arc<Self>)) {
        let Some(outcome) = outcome else {
            return;
        };
        let mut state = locked(&self.state);
        if matches!(*state, State::Over) {
            drop(state);
            return drop(outcome);
        }
        *state = State::Ready(outcome);
        drop(state);
        self.is_ready.notify_all();
        notify(self);
    }

    /// Waits for the outcome for up to `time`. Returns whether it is there.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let state = locked(&self.state);
        let is_waiting = |state: &mut State<T>| matches!(state, State::Waiting);
        let waited = self.is_ready.wait_timeout_while(state, time, is_waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !matches!(*state, State::Waiting)
    }

    /// Takes the outcome, if it is there.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = locked(&self.state);
        match std::mem::replace(&mut *state, State::Over) {
            State::Ready(outcome) => {
                drop(state);
                Some(outcome)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Gives up the position in the queue, before it returns. Memory that was granted meanwhile goes back to the pool.
    pub(crate) fn cancel(&self) {
        if fork::is_child() {
            return;
        }
        let state = std::mem::replace(&mut *locked(&self.state), State::Over);
        if let State::Waiting = state {
            // Waits, as for a lock, for a poll that is under way.
            let request = locked(&self.request).take();
            drop(request);
            self.task.get().map(AbortHandle::abort);
        }
        // The outcome, if there is one, ends outside the lock.
        drop(state);
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        if fork::is_child() {
            // A lock may be held by a thread that this process does not have.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(state, State::Over));
            let request = self
                .request
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(request.take());
        }
    }
}

#[cfg(test)]
mod tests;
