use super::MOST_OUTSTANDING;
use weirpool::device::DeviceError;
use weirpool::{AllocError, StreamError};
use weirpool_device::plain::Arc;

/// Why memory was not exported or imported.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// The device has no memory that can be shared with other processes.
    #[error("{device} cannot share memory by file descriptors; use a device with virtual memory")]
    Unsupported {
        /// The device, in words.
        device: String,
    },
    /// The peer holds as many blocks as one connection allows.
    #[error(
        "the peer has not released {MOST_OUTSTANDING} blocks; await one of them, or use another connection"
    )]
    Outstanding,
    /// The label is longer than [`MOST_LABEL`](super::MOST_LABEL) bytes.
    #[error(
        "a label of {bytes} bytes is too long; use up to {}",
        super::MOST_LABEL
    )]
    LongLabel {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The peer could not import the block.
    #[error(
        "the peer refused the block: {reason}; remove the cause there, and send the block again"
    )]
    Refused {
        /// The peer's reason.
        reason: String,
    },
    /// The block is in the memory of another device.
    #[error(
        "the peer's block is on the device with id {theirs}, and the pool's device has {own}; open the pool on that device"
    )]
    WrongDevice {
        /// The device of the block.
        theirs: String,
        /// The device of the pool.
        own: String,
    },
    /// The connection has ended: the peer closed it or died, or one of the two broke the protocol.
    #[error("the connection has ended: {reason}")]
    Ended {
        /// Why it ended.
        reason: Arc<str>,
    },
    /// The connection could not be opened.
    #[error("the connection could not be opened: {reason}")]
    Thread {
        /// The error of the operating system, which starts no more threads.
        reason: String,
    },
    /// The stream cannot use the memory.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The pool grants nothing.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
