//! The errors of submitted work.

use super::StreamError;
use std::error::Error;
use weirpool_device::DeviceError;

/// The reason why work could not be submitted to a stream, or did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The closure takes another type of stream than the stream is of. Nothing was submitted.
    #[error(
        "the closure takes a stream of type `{expected}`, but the stream is one of {device}; take that device's type, and \
         register its own stream"
    )]
    OtherBackend {
        /// The type that the closure takes.
        expected: &'static str,
        /// The description of the stream's device.
        device: String,
    },
    /// The pool is [closed](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.close). Nothing was submitted.
    #[error("the pool is closed; submit the work before the pool is closed")]
    Closed,
    /// The function of a [run](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.run) panicked. The stream went on.
    #[error("the host function panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// The stream cannot use the memory, or cannot be ordered after the task.
    #[error(transparent)]
    Stream(StreamError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<StreamError> for TaskError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Device(error) => Self::Device(error),
            error => Self::Stream(error),
        }
    }
}

/// The error of a closure that submits work, of any type.
pub type EnqueueError = Box<dyn Error + Send + Sync>;

/// The reason why work was not submitted by a closure that can fail; of
/// [`Native::try_submit`](https://docs.rs/weirpool/latest/weirpool/struct.Native.html#method.try_submit) and [`Submission::try_submit`](https://docs.rs/weirpool/latest/weirpool/struct.Submission.html#method.try_submit).
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The stream does not take the work. The closure was not called.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The closure failed.
    #[error(transparent)]
    Enqueue(EnqueueError),
}
