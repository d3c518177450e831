//! Why a tensor was not exported or imported.

use dlpark::ffi::DLDevice;
use dlpark::{Managed, ManagedTensorBase};
use std::fmt;
use weirpool::StreamError;
use weirpool::device::DeviceError;

/// The reason why a tensor was not exported or imported.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// The shape has a negative dimension, too many of them, or more elements than can be counted.
    #[error("the shape {shape:?} is not valid: {reason}; correct it")]
    InvalidShape {
        /// The shape.
        shape: Vec<i64>,
        /// The reason.
        reason: String,
    },
    /// The shape needs another number of bytes than the memory has.
    #[error(
        "a tensor of {needed} bytes does not match {size} bytes of memory; correct the shape, or take a view"
    )]
    WrongSize {
        /// The bytes of the tensor.
        needed: u64,
        /// The bytes of the memory.
        size: u64,
    },
    /// The tensor is on another device than the stream's.
    #[error(
        "the tensor is on a device of type {} with number {}, the stream on one of type {} with number {}; copy the \
         tensor, or import it on a stream of its device",
        .tensor.0, .tensor.1, .stream.0, .stream.1
    )]
    OtherDevice {
        /// The type and number of the tensor's device, as DLPack counts them.
        tensor: (u32, i32),
        /// Those of the stream's device.
        stream: (u32, i32),
    },
    /// The tensor is not in row-major order. Make a contiguous copy.
    #[error(
        "the tensor of shape {shape:?} is not in row-major order; import a contiguous copy of it"
    )]
    NotContiguous {
        /// The shape.
        shape: Vec<i64>,
    },
    /// The tensor has no bytes, or no address.
    #[error("the tensor of shape {shape:?} has no memory; there is nothing to import")]
    NoMemory {
        /// The shape.
        shape: Vec<i64>,
    },
    /// The tensor describes itself in a way that DLPack does not allow.
    #[error("the tensor is malformed: {reason}; report it to its producer")]
    Malformed {
        /// The reason.
        reason: String,
    },
    /// The memory cannot be used on the stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device failed, or cannot order the stream.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl DlpackError {
    pub(super) fn other_device(tensor: DLDevice, stream: DLDevice) -> Self {
        Self::OtherDevice {
            tensor: tensor.into(),
            stream: stream.into(),
        }
    }
}

/// The error of an import. Nothing is lost: it holds the tensor.
#[derive(thiserror::Error)]
#[error("the tensor was not imported, and this error holds it: {reason}")]
pub struct ImportError<M: ManagedTensorBase> {
    /// The tensor.
    pub tensor: Managed<M>,
    /// Why it was not imported.
    #[source]
    pub reason: DlpackError,
}

impl<M: ManagedTensorBase> fmt::Debug for ImportError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportError")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}
