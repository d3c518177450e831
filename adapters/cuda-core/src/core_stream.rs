//! Streams of cuda-core in a pool.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{
    DeviceError, DeviceErrorKind, DeviceStream, NativeStream, StreamProperties,
};

/// A stream of cuda-core that can be [registered](weirpool::Pool::register) with a pool: blocks are allocated and freed in its
/// order, and [`Stream::submit`](weirpool::Stream::submit) gives it to closures that launch on it. The pool keeps it alive
/// as long as it may name it.
#[derive(Clone, Debug)]
pub struct CoreStream {
    stream: Arc<cuda_core::Stream>,
    properties: StreamProperties,
}

impl CoreStream {
    /// Wraps a stream of cuda-core, of a context of `device`.
    ///
    /// # Errors
    /// Returns the driver's error if it does not know the stream,
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a stream of another context than that of `device`, and
    /// [`Unsupported`](DeviceErrorKind::Unsupported) for the per-thread default stream.
    pub fn new(device: &CudaDevice, stream: &Arc<cuda_core::Stream>) -> Result<Self, DeviceError> {
        // The handle of the default stream does not tell its context.
        if stream.context().cu_ctx().cast::<()>() != device.context().cu_ctx().cast() {
            let reason = "the stream is of another context than the device; make it in the context of `CudaDevice::context`";
            return Err(DeviceError::new(
                "CoreStream::new",
                DeviceErrorKind::InvalidArgument,
                reason,
            ));
        }
        // SAFETY: the properties name it only while this value, or an owner from `keep_alive`, holds the stream.
        let external = unsafe { device.permanent_stream(stream.cu_stream().cast()) }?;
        Ok(Self {
            stream: stream.clone(),
            properties: external.properties(),
        })
    }

    /// Returns the stream of cuda-core, for operations on it.
    pub fn core(&self) -> &Arc<cuda_core::Stream> {
        &self.stream
    }
}

// SAFETY: the properties are of the stream, and `keep_alive` holds it. cuda-core destroys it, or gives it to other code,
// when the last owner is dropped.
unsafe impl DeviceStream for CoreStream {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(self.properties)
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.stream.clone()
    }

    fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(self.clone()))
    }
}

// SAFETY: the object is this stream.
unsafe impl NativeStream for CoreStream {
    fn with<R>(
        native: &(dyn Any + Send + Sync),
        _task: Option<&Cow<'static, str>>,
        enqueue: impl FnOnce(&Self) -> R,
    ) -> Option<R> {
        native.downcast_ref().map(enqueue)
    }
}
