//! Streams as they are registered, and the host as one of them.

use super::{DeviceError, DeviceId, StreamProperties};
use crate::sync::plain::Arc;
use std::any::Any;

/// A stream of a device that can be registered with a pool.
///
/// The pool keeps the stream's [owner](Self::keep_alive) for as long as it may name the stream, so that the driver
/// cannot give its handle to another stream.
///
/// # Safety
/// The pool passes the name in the [properties](Self::properties) to the driver. An implementation guarantees that
///
/// - it is a stream of the device that they name;
/// - it is usable for as long as a result of [`keep_alive`](Self::keep_alive) is held; or, where
///   [`external_id`](StreamProperties::external_id) is some id, during each call that is made with the stream;
/// - all of these always return the same.
///
/// ```compile_fail,E0200
/// use std::any::Any;
/// use std::sync::Arc;
/// use weirpool::device::{DeviceError, DeviceId, DeviceStream, RawStream, StreamProperties};
///
/// struct Made;
/// impl DeviceStream for Made { // does not compile: an implementation is unsafe
///     fn properties(&self) -> Result<StreamProperties, DeviceError> {
///         Ok(StreamProperties::new(DeviceId(1), RawStream(0xdead)))
///     }
///     fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> { Arc::new(()) }
/// }
/// ```
pub unsafe trait DeviceStream {
    /// Returns what the pool has to know of the stream.
    ///
    /// # Errors
    /// Returns the reason and the remedy if a pool cannot keep the stream's order.
    /// [`Pool::register`](crate::Pool::register) fails with it.
    fn properties(&self) -> Result<StreamProperties, DeviceError>;

    /// Returns an owner that keeps the stream usable while it is held.
    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync>;

    /// Returns the backend's own object of the stream, which a [`NativeStream`](super::NativeStream) is found in. The
    /// pool holds it while the stream is registered. The default is `None`: no work can be
    /// [submitted](crate::Stream::submit) through the registration.
    fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Returns the name that the device's user gave the stream. A registration takes it over; see
    /// [`Stream::named`](crate::Stream::named). The default is `None`.
    fn name(&self) -> Option<Arc<str>> {
        None
    }
}

/// The host of a device: a stream of execution that runs in order and accepts no waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(pub(crate) DeviceId);

// SAFETY: the host is always there.
unsafe impl DeviceStream for Host {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(StreamProperties::of_host(self.0))
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }
}

// SAFETY: the handle is of the device, and `keep_alive` holds the stream.
#[cfg(feature = "sim")]
unsafe impl DeviceStream for super::sim::SimStream {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(self.properties())
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.keep_alive()
    }

    fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.native())
    }

    fn name(&self) -> Option<Arc<str>> {
        self.name()
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::cuda::{ExternalStream, native};
    use super::*;
    use native::CudaStream;

    /// The per-thread default stream is refused: it is another stream on each thread, under one name, so that a pool that is
    /// called from several threads cannot keep its order.
    // SAFETY: cudarc destroys the stream when its last `Arc` is dropped, and `keep_alive` holds one.
    unsafe impl DeviceStream for Arc<CudaStream> {
        fn properties(&self) -> Result<StreamProperties, DeviceError> {
            native::properties(self)
        }

        fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
            native::keep_alive(self)
        }

        fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
            Some(native::keep_alive(self))
        }
    }

    // SAFETY: `CudaDevice::external_stream`, which is unsafe, makes its caller keep the stream alive during calls.
    unsafe impl DeviceStream for ExternalStream {
        fn properties(&self) -> Result<StreamProperties, DeviceError> {
            Ok(self.properties())
        }

        fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
            self.keep_alive()
        }
    }
}
