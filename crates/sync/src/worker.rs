//! Futures that make device calls, or calls of other libraries, for drops and futures, which must not block: all of the
//! process run on one [background](Background) thread at a time.

use crate::background::{Background, Errand};
use crate::plain::{Arc, Mutex, OnceLock};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::mem;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The futures of the process.
#[derive(Default)]
struct Worker {
    errand: Errand,
    new: Mutex<Vec<Job>>,
    /// Taken out while they are polled.
    running: Mutex<FuturesUnordered<Job>>,
}

impl Worker {
    fn poll(self: &Arc<Self>) {
        let mut running = mem::take(&mut *self.running.lock());
        running.extend(mem::take(&mut *self.new.lock()));
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        while let Poll::Ready(Some(())) = running.poll_next_unpin(&mut context) {}
        *self.running.lock() = running;
    }
}

impl Wake for Worker {
    fn wake(self: Arc<Self>) {
        let this = self.clone();
        let poll = move || this.errand.run(|| this.poll());
        if let Err(poll) = Background::of_process().call(&self.errand, poll) {
            // This thread is held up, rather than the futures lost.
            poll();
        }
    }
}

/// Runs a future in the background.
pub fn run(job: impl Future<Output = ()> + Send + 'static) {
    static WORKER: OnceLock<Arc<Worker>> = OnceLock::new();
    let worker = WORKER.get_or_init(Arc::default);
    // A job that panics, because a checker found a mistake, ends alone.
    let job = AssertUnwindSafe(job).catch_unwind().map(|ended| {
        let _ = ended.map_err(mem::forget);
    });
    worker.new.lock().push(Box::pin(job));
    worker.clone().wake();
}
