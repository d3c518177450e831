//! A handle of submitted work: a future of its end.

use super::outcome::Outcome;
use super::point::Point;
use crate::device::DeviceError;
use crate::error::TaskError;
use crate::id::StreamId;
use crate::queue::Passage;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project_lite::pin_project! {
    /// Work that was [submitted](crate::Stream::submit) to a stream: a future that is ready once the device has passed
    /// the work, and returns the closure's value.
    ///
    /// Dropping a task detaches it: the work runs all the same, and later work of the stream comes after it.
    ///
    /// The event behind the work is recorded when the task is first polled, or when a stream is ordered
    /// [after](crate::Stream::after) it. So the task also waits for work that was submitted to its stream in between.
    /// [`seal`](Self::seal) records the event at once. A task of which neither is asked costs no device call.
    ///
    /// # Errors
    /// Returns the device's error, and [`TaskError::Panicked`] if it was a [`run`](crate::Stream::run) whose function
    /// panicked.
    ///
    /// # Panics
    /// Panics if it is polled after it was ready.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting and nothing else.
    pub struct Task<T> {
        point: Point,
        name: Option<Cow<'static, str>>,
        value: Option<Value<T>>,
        passage: Option<Passage>,
    }
}

/// The value of a task.
#[derive(Debug)]
pub(super) enum Value<T> {
    /// The value of the closure that submitted the work.
    Known(T),
    /// The value of the function that the device calls.
    Coming(Outcome<T>),
}

impl<T> Task<T> {
    pub(super) fn new(point: Point, name: Option<Cow<'static, str>>, value: Value<T>) -> Self {
        Self {
            point,
            name,
            value: Some(value),
            passage: None,
        }
    }

    /// Returns the id of the stream that the work was submitted to.
    pub(super) fn stream_id(&self) -> StreamId {
        self.point.registration.lane.id
    }

    /// Records the event behind the work now, unless a later event of the stream covers it already. From then on the
    /// task does not wait for work that is submitted later.
    ///
    /// # Errors
    /// Returns an error if the device cannot record; a later poll tries again.
    pub fn seal(&self) -> Result<(), DeviceError> {
        self.point.marker().map(drop)
    }

    /// Returns whether the device has passed the work. [Seals](Self::seal) the task.
    ///
    /// # Errors
    /// Returns the device's error. An error never means "not yet".
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        self.seal()?;
        self.point.passage().is_passed()
    }
}

const ENDED: &str = "a task is not polled after it was ready";

impl<T> Future for Task<T> {
    type Output = Result<T, TaskError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        assert!(this.value.is_some(), "{ENDED}");
        let passage = match this.passage {
            Some(passage) => passage,
            None => {
                // Sealed before it is asked for, so that a task whose work is over is ready at once.
                this.point.marker()?;
                this.passage.insert(this.point.passage())
            }
        };
        ready!(passage.poll_synchronizing(context))?;
        *this.passage = None;
        Poll::Ready(match this.value.take().expect(ENDED) {
            Value::Known(value) => Ok(value),
            Value::Coming(outcome) => outcome.take(),
        })
    }
}

impl<T> super::Submitted for Task<T> {
    fn point(&self) -> &Point {
        &self.point
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("stream", &self.stream_id())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
