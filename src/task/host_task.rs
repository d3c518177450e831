//! A future of the host that holds its stream.

use super::Submitted;
use super::handle::Task;
use super::point::Point;
use crate::device::Hold;
use crate::error::TaskError;
use crate::handles::Registration;
use crate::lane::{Holder, HostTaskEnding};
use crate::queue::Passage;
use crate::seam::Fact;
use crate::sync::{Arc, assert_unlocked};
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project_lite::pin_project! {
    /// A future of the host in the order of a stream. Made by [`Stream::spawn`](crate::Stream::spawn), which says when
    /// it is polled, what it may do, and how long it holds the stream.
    ///
    /// # Errors
    /// Returns the device's error if the stream cannot reach the task; the future is dropped then, without a poll.
    ///
    /// # Panics
    /// Panics if the future does, or if the task is polled after that or after it was ready. The future is dropped, and
    /// the stream goes on.
    ///
    /// # Cancel safety
    /// Dropping the task drops the future, and then lets the stream go on.
    #[must_use = "a task that is dropped lets its stream go on without it"]
    pub struct HostTask<F> {
        end: Task<()>,
        reached: Option<Passage>,
        // Dropped before the stream goes on.
        #[pin]
        future: Option<F>,
        held: HeldStream,
    }
}

impl<F> HostTask<F> {
    pub(super) fn new(end: Task<()>, reached: Point, held: HeldStream, future: F) -> Self {
        Self {
            end,
            reached: Some(reached.passage()),
            future: Some(future),
            held,
        }
    }
}

impl<F: Future> Future for HostTask<F> {
    type Output = Result<F::Output, TaskError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        assert!(
            this.future.is_some(),
            "a host task is not polled after it was ready, or has panicked"
        );
        if let Some(reached) = this.reached {
            let answer = ready!(reached.poll(context));
            *this.reached = None;
            if let Err(error) = answer {
                this.future.set(None);
                this.held.release(HostTaskEnding::Abandoned);
                return Poll::Ready(Err(error.into()));
            }
        }
        let mut unwinding = Unwinding {
            future: this.future,
            held: Some(this.held),
        };
        let future = unwinding.future.as_mut().as_pin_mut();
        let answer = future.expect("present until it has ended").poll(context);
        if answer.is_ready() {
            unwinding.future.set(None);
        }
        let held = unwinding.held.take().expect("held while it is polled");
        answer.map(|output| {
            held.release(HostTaskEnding::Complete);
            held.registration.service.release_synchronized();
            Ok(output)
        })
    }
}

impl<F> Submitted for HostTask<F> {
    fn point(&self) -> &Point {
        self.end.point()
    }
}

impl<F> fmt::Debug for HostTask<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTask")
            .field("stream", &self.end.stream_id())
            .field("name", &self.held.name)
            .field("has_begun", &self.reached.is_none())
            .finish_non_exhaustive()
    }
}

/// If the future panics, drops it, and then lets the stream go on.
struct Unwinding<'a, F> {
    future: Pin<&'a mut Option<F>>,
    held: Option<&'a mut HeldStream>,
}

impl<F> Drop for Unwinding<'_, F> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // The first panic goes on. A second one, of the future's drop, must not end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| self.future.set(None)));
            held.release(HostTaskEnding::Abandoned);
        }
    }
}

/// The hold of a stream by a task. Dropping it lets the stream go on.
#[derive(Debug)]
pub(super) struct HeldStream {
    hold: Option<Box<dyn Hold>>,
    registration: Arc<Registration>,
    name: Option<Cow<'static, str>>,
    /// The number of the task among those of its stream.
    number: u64,
}

impl HeldStream {
    pub(super) fn new(
        hold: Box<dyn Hold>,
        registration: &Arc<Registration>,
        holder: Holder,
    ) -> Self {
        Self {
            hold: Some(hold),
            name: holder.name.clone(),
            number: registration.lane.host_tasks.begin(holder),
            registration: registration.clone(),
        }
    }

    /// Lets the stream go on, the first time it is called.
    fn release(&mut self, ending: HostTaskEnding) {
        let Some(hold) = self.hold.take() else {
            return;
        };
        let lane = &self.registration.lane;
        lane.host_tasks.end(self.number, ending);
        assert_unlocked("release");
        hold.release();
        if ending == HostTaskEnding::Abandoned {
            let announcer = &self.registration.service.engine.store.announcer;
            announcer.tell(|| Fact::HostTaskAbandoned {
                stream: lane.id,
                name: lane.name(),
                task: self.name.as_deref(),
            });
        }
    }
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        self.release(HostTaskEnding::Abandoned);
    }
}
