//! Streams as they are registered.

use super::{DeviceError, DeviceId, RawStream};
use crate::sync::plain::Arc;
use std::any::Any;

/// A stream of some device, as its owner has it.
///
/// The pool keeps `keep_alive` for as long as it may record an event on the stream, so that a
/// driver's handle cannot be recycled under it.
pub trait DeviceStream {
    /// The device that the stream belongs to.
    fn device_id(&self) -> DeviceId;

    /// The backend's name of the stream.
    fn raw(&self) -> RawStream;

    /// An owner that keeps the stream usable while it is held.
    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync>;

    /// The backend's own object of the stream, for who knows its type: on CUDA, cudarc's. Held for as long as the
    /// stream is registered. `None`, the default, where there is none.
    fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Whether a wait may be inserted into the stream. Where it may not (CUDA's legacy default stream
    /// would hold up all others), the pool never makes it wait for memory on the device.
    fn takes_waits(&self) -> bool {
        true
    }

    /// Of a stream that is lent only, a number that no other stream of the device ever has: its owner destroys
    /// it when it likes, and then the backend may give its [name](Self::raw) to another. Default: none, and
    /// `keep_alive` keeps the stream.
    ///
    /// The pool uses the name of such a stream only inside calls that are made with it, and records the event of
    /// each free before the free returns. From then on it needs the stream no more.
    fn external_id(&self) -> Option<u64> {
        None
    }

    /// Whether a pool can keep the stream's order at all; asked when it is registered.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    fn admit(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[cfg(feature = "sim")]
impl DeviceStream for super::sim::SimStream {
    fn device_id(&self) -> DeviceId {
        self.device_id()
    }

    fn raw(&self) -> RawStream {
        self.raw()
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.keep_alive()
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::cuda::{ExternalStream, native};
    use super::*;
    use native::CudaStream;

    impl DeviceStream for Arc<CudaStream> {
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

    impl DeviceStream for ExternalStream {
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
