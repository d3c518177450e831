//! Streams as they are registered, and the host as one of them.

use super::{DeviceError, DeviceId, RawStream};
use crate::sync::plain::Arc;
use std::any::Any;

/// A stream of a device that can be registered with a pool.
///
/// The pool keeps the stream's [owner](Self::keep_alive) for as long as it may name the stream, so that the driver
/// cannot give its handle to another stream.
///
/// # Safety
/// The pool passes [`raw`](Self::raw) to the driver. An implementation guarantees that
///
/// - it is a stream of the device [`device_id`](Self::device_id);
/// - it is usable for as long as a result of [`keep_alive`](Self::keep_alive) is held; or, where
///   [`external_id`](Self::external_id) is some id, during each call that is made with the stream;
/// - all of these always return the same.
///
/// ```compile_fail,E0200
/// use std::any::Any;
/// use std::sync::Arc;
/// use weirpool::device::{DeviceId, DeviceStream, RawStream};
///
/// struct Made;
/// impl DeviceStream for Made { // does not compile: an implementation is unsafe
///     fn device_id(&self) -> DeviceId { DeviceId(1) }
///     fn raw(&self) -> RawStream { RawStream(0xdead) }
///     fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> { Arc::new(()) }
/// }
/// ```
pub unsafe trait DeviceStream {
    /// Returns the id of the device that the stream belongs to.
    fn device_id(&self) -> DeviceId;

    /// Returns the backend's name of the stream.
    fn raw(&self) -> RawStream;

    /// Returns an owner that keeps the stream usable while it is held.
    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync>;

    /// Returns the backend's own object of the stream, which a [`NativeStream`](super::NativeStream) is found in. The
    /// pool holds it while the stream is registered. The default is `None`: no work can be
    /// [submitted](crate::Stream::submit) through the registration.
    fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Returns whether a device-side wait may be inserted into the stream. Where it may not, the pool never makes the
    /// stream wait for memory. (A wait in CUDA's legacy default stream would hold up all others.)
    fn takes_waits(&self) -> bool {
        true
    }

    /// Returns the name that the device's user gave the stream. A registration takes it over; see
    /// [`Stream::named`](crate::Stream::named). The default is `None`.
    fn name(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns an id of a stream that another library owns and may destroy at any time between two calls. The device
    /// never gives the id to another stream, unlike its [name](Self::raw). The default is `None`: `keep_alive` keeps
    /// the stream.
    ///
    /// The pool uses the name of such a stream only inside calls that are made with it, and records the event of
    /// each free before the free returns. From then on it does not need the stream.
    fn external_id(&self) -> Option<u64> {
        None
    }

    /// Checks whether a pool can keep the stream's order. [`Pool::register`](crate::Pool::register) calls this.
    ///
    /// # Errors
    /// Returns the reason and the remedy if it cannot.
    fn admit(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// The host of a device: a stream of execution that runs in order and accepts no waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(pub(crate) DeviceId);

// SAFETY: the host is always there.
unsafe impl DeviceStream for Host {
    fn device_id(&self) -> DeviceId {
        self.0
    }

    fn raw(&self) -> RawStream {
        RawStream::HOST
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }

    fn takes_waits(&self) -> bool {
        false
    }
}

// SAFETY: the handle is of the device, and `keep_alive` holds the stream.
#[cfg(feature = "sim")]
unsafe impl DeviceStream for super::sim::SimStream {
    fn device_id(&self) -> DeviceId {
        self.device_id()
    }

    fn raw(&self) -> RawStream {
        self.raw()
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

    // SAFETY: cudarc destroys the stream when its last `Arc` is dropped, and `keep_alive` holds one.
    unsafe impl DeviceStream for Arc<CudaStream> {
        fn device_id(&self) -> DeviceId {
            native::names_of(self).0
        }

        fn raw(&self) -> RawStream {
            native::names_of(self).1
        }

        fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
            native::keep_alive(self)
        }

        fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
            Some(native::keep_alive(self))
        }

        fn takes_waits(&self) -> bool {
            native::takes_waits(self)
        }

        /// Refuses the per-thread default stream: it is another stream on each thread, under one name, so that a
        /// pool that is called from several threads cannot keep its order.
        fn admit(&self) -> Result<(), DeviceError> {
            native::admit(self)
        }
    }

    // SAFETY: `CudaDevice::external_stream`, which is unsafe, makes its caller keep the stream alive during calls.
    unsafe impl DeviceStream for ExternalStream {
        fn device_id(&self) -> DeviceId {
            self.device_id()
        }

        fn raw(&self) -> RawStream {
            self.raw()
        }

        fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
            self.keep_alive()
        }

        fn takes_waits(&self) -> bool {
            self.takes_waits()
        }

        fn external_id(&self) -> Option<u64> {
            self.external_id()
        }
    }
}
