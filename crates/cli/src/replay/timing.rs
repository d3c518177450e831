//! The CPU time of a call, also of an awaited one.
//!
//! An awaited allocation is several calls: it is made, and then polled until it is ready. The time between polls is
//! waiting, not work, and does not count.

use pin_project::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Adds up the time of calls that belong together.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    spent: Duration,
}

impl Stopwatch {
    /// Runs `call` on the watch.
    pub(crate) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = call();
        self.spent += started.elapsed();
        result
    }

    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }
}

/// A future that returns the output of its inner one and the time of its calls.
#[pin_project]
#[derive(Debug)]
pub(crate) struct Timed<F> {
    #[pin]
    future: F,
    watch: Stopwatch,
}

impl<F: Future> Timed<F> {
    /// Times `make` and every poll of the future that it makes.
    pub(crate) fn new(make: impl FnOnce() -> F) -> Self {
        let mut watch = Stopwatch::default();
        let future = watch.time(make);
        Self { future, watch }
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = (F::Output, Duration);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.watch.time(|| this.future.poll(context));
        polled.map(|output| (output, this.watch.spent()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use std::thread::sleep;

    const STEP: Duration = Duration::from_millis(5);

    #[test]
    fn time_between_polls_does_not_count() {
        let mut polls = 0;
        let twice = std::future::poll_fn(|context| {
            sleep(STEP);
            polls += 1;
            context.waker().wake_by_ref();
            if polls == 2 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let mut timed = std::pin::pin!(Timed::new(|| twice));
        let ((), spent) = block_on(std::future::poll_fn(|context| {
            let polled = timed.as_mut().poll(context);
            sleep(STEP * 20);
            polled
        }));
        assert!(spent >= STEP * 2 && spent < STEP * 20, "{spent:?}");
    }

    #[test]
    fn making_the_future_counts() {
        let slow = Timed::new(|| {
            sleep(STEP);
            std::future::ready(7)
        });
        let (output, spent) = block_on(slow);
        assert_eq!(output, 7);
        assert!(spent >= STEP);
    }
}
