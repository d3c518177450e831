//! Failures inside a call of onnxruntime.

use std::time::Duration;
use weirpool::AllocError;
use weirpool::device::DeviceError;
use weirpool_compat::RawError;

/// Why a call of onnxruntime got no memory, or freed none. onnxruntime sees the exception `std::bad_alloc`, and its run fails; the
/// reason goes to the function of [`MemoryBuilder::report`](crate::MemoryBuilder::report).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is no memory, or none within the limit.
    #[error("onnxruntime gets no memory: {0}")]
    Alloc(#[from] AllocError),
    /// Memory for any stream was found, and earlier work on it is not complete within the limit.
    #[error(
        "onnxruntime gets no memory: earlier work on {bytes} bytes was not complete after {waited:?}; allow a longer wait"
    )]
    InUse {
        /// The size of the memory.
        bytes: u64,
        /// How long the call waited for that work.
        waited: Duration,
    },
    /// A session allocates on a stream of its own.
    #[error(
        "a session of onnxruntime allocates on stream {handle:#x}, which the pool does not know; make the session from \
         `Memory::session`"
    )]
    UnknownStream {
        /// The handle of the stream.
        handle: usize,
    },
    /// The address was not allocated here, or was freed before. Nothing was freed.
    #[error("onnxruntime frees what is not allocated: {0}")]
    Free(#[from] RawError),
    /// The device failed.
    #[error("the device failed under onnxruntime: {0}")]
    Device(#[from] DeviceError),
    /// The pool panicked. An allocation failed, or the memory of a free stays allocated.
    #[error("a panic in `{call}` of onnxruntime's allocator: {message}")]
    Panicked {
        /// The function of the allocator.
        call: &'static str,
        /// The message of the panic.
        message: String,
    },
}
