//! The thread that makes device calls for drops and futures, which must not block: one per process, started when it is
//! first needed.

use crate::sync::plain::{self, OnceLock};
use futures::channel::mpsc::{self, UnboundedSender};
use futures::future::poll_fn;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::Poll;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a future on the thread. Returns whether the thread runs; else the future is dropped.
pub(super) fn run(job: impl Future<Output = ()> + Send + 'static) -> bool {
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
        let thread = plain::thread::Builder::new().name("weirpool-ipc".into());
        thread.spawn(work).is_ok().then_some(jobs)
    });
    let sent = jobs.as_ref().map(|jobs| jobs.unbounded_send(Box::pin(job)));
    sent.is_some_and(|sent| sent.is_ok())
}
