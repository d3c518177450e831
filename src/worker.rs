//! The thread that makes device calls, and calls of other libraries, for drops and futures, which must not block: one
//! per process, started when it is first needed.

use crate::device::{Alarm, Device};
use crate::queue::Passages;
use crate::sync::plain::{self, OnceLock};
use futures::channel::mpsc::{self, UnboundedSender};
use futures::future::poll_fn;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::mem::ManuallyDrop;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a future on the thread. Returns whether the thread runs; else the future is dropped.
pub(crate) fn run(job: impl Future<Output = ()> + Send + 'static) -> bool {
    static JOBS: OnceLock<Option<UnboundedSender<Job>>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (jobs, mut new) = mpsc::unbounded::<Job>();
        let work = move || {
            let mut running = FuturesUnordered::new();
            futures::executor::block_on(poll_fn(|context| {
                while let Poll::Ready(Some(job)) = new.poll_next_unpin(context) {
                    // A job that panics, because a checker found a mistake, ends alone.
                    running.push(AssertUnwindSafe(job).catch_unwind());
                }
                while let Poll::Ready(Some(_)) = running.poll_next_unpin(context) {}
                Poll::<()>::Pending
            }));
        };
        let thread = plain::thread::Builder::new().name("weirpool-worker".into());
        thread.spawn(work).is_ok().then_some(jobs)
    });
    let sent = jobs.as_ref().map(|jobs| jobs.unbounded_send(Box::pin(job)));
    sent.is_some_and(|sent| sent.is_ok())
}

/// Calls `release` on the worker once the passages are over. If the device is broken, or the worker does not run, the
/// values that `release` owns are leaked.
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
                let mut alarm = None;
                poll_fn(|context| {
                    if device.now() >= at {
                        return Poll::Ready(());
                    }
                    alarm = Some(Alarm::new(device, at, context.waker()));
                    Poll::Pending
                })
                .await;
            }
        }
    }
    false
}
