//! Tasks that are polled only when they are woken, as executors do, and counted.

use super::Count;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// More polls at one moment of the clock are a storm of wake-ups.
const MOST_POLLS: usize = 1000;

/// See the [module](self).
pub(crate) struct Woken<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
    pub(crate) output: Option<T>,
    count: Arc<Count>,
    waker: Waker,
    pub(crate) polls: usize,
}

impl<'a, T> Woken<'a, T> {
    /// Polls the future once.
    pub(crate) fn new(future: impl Future<Output = T> + 'a) -> Self {
        let (count, waker) = Count::new();
        let mut task = Self {
            future: Some(Box::pin(future)),
            output: None,
            count,
            waker,
            polls: 0,
        };
        task.poll();
        task
    }

    pub(crate) fn poll(&mut self) {
        self.count.take();
        let Some(future) = &mut self.future else {
            return;
        };
        self.polls += 1;
        let context = &mut Context::from_waker(&self.waker);
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            self.future = None;
            self.output = Some(output);
        }
    }

    /// Polls the future if it was woken. Returns whether it was.
    pub(crate) fn poll_if_woken(&mut self) -> bool {
        let is_woken = self.is_waiting() && self.count.get() > 0;
        if is_woken {
            self.poll();
        }
        is_woken
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.future.is_some()
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.count.get() > 0
    }

    /// Drops the future.
    pub(crate) fn cancel(&mut self) {
        self.future = None;
    }
}

/// Polls tasks that were woken, until none is. Returns the number of polls.
///
/// # Panics
/// When there is no end to it.
#[track_caller]
pub(crate) fn settle<T>(tasks: &mut [Woken<'_, T>]) -> usize {
    let mut polls = 0;
    loop {
        let woken = tasks.iter_mut().map(Woken::poll_if_woken);
        let count = woken.filter(|is_woken| *is_woken).count();
        if count == 0 {
            return polls;
        }
        polls += count;
        assert!(polls < MOST_POLLS, "the tasks wake each other for ever");
    }
}
