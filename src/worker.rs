//! Futures that make device calls, or calls of other libraries, for drops and futures, which must not block: all of the
//! process run on one [background](Background) thread at a time.

use crate::background::{Background, Errand};
use crate::device::Device;
use crate::queue::Passages;
use crate::sync::plain::{self, Arc, Mutex, OnceLock};
use crate::timer::Timer;
use futures::future::poll_fn;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::mem::{self, ManuallyDrop};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

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
pub(crate) fn run(job: impl Future<Output = ()> + Send + 'static) {
    static WORKER: OnceLock<Arc<Worker>> = OnceLock::new();
    let worker = WORKER.get_or_init(Arc::default);
    // A job that panics, because a checker found a mistake, ends alone.
    let job = AssertUnwindSafe(job).catch_unwind().map(|ended| {
        let _ = ended.map_err(mem::forget);
    });
    worker.new.lock().push(Box::pin(job));
    worker.clone().wake();
}

/// Calls `release` in the background once the passages are over. If the device is broken, the values that `release` owns
/// are leaked.
pub(crate) fn release_later(
    device: plain::Arc<dyn Device>,
    passages: Option<Passages>,
    release: impl FnOnce() + Send + 'static,
) {
    let release = ManuallyDrop::new(release);
    run(async move {
        if let Some(passages) = passages
            && !are_over(passages, &device).await
        {
            return;
        }
        ManuallyDrop::into_inner(release)();
    });
}

/// Waits until passages are over, as far as the device can tell. Returns whether they are: not if it is broken, because
/// the work may still run then.
///
/// A device that cannot record an event now is asked again: at once a few times, and then from time to time.
async fn are_over(mut passages: Passages, device: &plain::Arc<dyn Device>) -> bool {
    const AT_ONCE: u32 = 3;
    const LONGEST: Duration = Duration::from_secs(1);
    for round in 0.. {
        match poll_fn(|context| passages.poll(context)).await {
            Ok(()) => return true,
            Err(error) if error.is_sticky() => return false,
            Err(_) if round < AT_ONCE => {}
            Err(_) => {
                let pause = Duration::from_millis(1 << round.min(10)).min(LONGEST);
                let at = device.now().saturating_add(pause);
                let deadline = Timer::new(device.clone()).deadline();
                poll_fn(|context| match deadline.has_come(at, context.waker()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                })
                .await;
            }
        }
    }
    false
}
