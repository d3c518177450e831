//! The backends' own stream objects, behind registered streams.

use std::any::Any;
use std::borrow::Cow;

/// A backend's own stream object, which [`Stream::submit`](crate::Stream::submit) gives to its closure: `SimStream` of
/// the simulated device, cudarc's `Arc<CudaStream>` (or `CudaStream`) on CUDA.
///
/// A service that is generic over this trait runs on each backend. Only its kernels differ:
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Operation, SimDevice, SimStream};
/// use weirpool::device::{Argument, NativeStream};
/// use weirpool::{Buffer, Pool, Stream, TaskError};
///
/// /// The kernels of the service, for one backend.
/// trait Kernels<W> {
///     fn scale(&self, work: &W, values: Argument<'_>);
/// }
///
/// async fn serve<W: NativeStream>(
///     kernels: &impl Kernels<W>,
///     stream: &Stream,
///     values: &mut Buffer<f32>,
/// ) -> Result<(), TaskError> {
///     let scaled = stream.submit(values, |work: &W, values| kernels.scale(work, values))?;
///     scaled.await
/// }
///
/// struct Simulated;
///
/// impl Kernels<SimStream> for Simulated {
///     fn scale(&self, work: &SimStream, values: Argument<'_>) {
///         let scale = Operation::new(Duration::from_micros(20)).named("scale");
///         work.submit(scale.writes(values.address(), values.size()));
///     }
/// }
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).build()?;
/// let stream = pool.create_stream()?;
/// let mut values = pool.buffer(&stream, 1000).try_now()?;
/// device.block_on(serve(&Simulated, &stream, &mut values))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// The pool orders work by the registration, and the closure submits it by this object. An implementation guarantees
/// that [`with`](Self::with) gives the stream for which a backend returned `native`, and no other.
pub unsafe trait NativeStream: 'static {
    /// Calls `enqueue` with the stream behind a result of [`DeviceStream::native`](super::DeviceStream::native) or
    /// [`Device::native_stream`](super::Device::native_stream). Returns `None`, without a call, if that is of another
    /// type. `task` is the name of the work in the backend's reports, if it has one, and the caller is where it is
    /// submitted.
    #[track_caller]
    fn with<R>(
        native: &(dyn Any + Send + Sync),
        task: Option<&Cow<'static, str>>,
        enqueue: impl FnOnce(&Self) -> R,
    ) -> Option<R>;
}

// SAFETY: the simulated device's object stands for one stream.
#[cfg(feature = "sim")]
unsafe impl NativeStream for super::sim::SimStream {
    #[track_caller]
    fn with<R>(
        native: &(dyn Any + Send + Sync),
        task: Option<&Cow<'static, str>>,
        enqueue: impl FnOnce(&Self) -> R,
    ) -> Option<R> {
        let stream = Self::of_native(native, task.cloned())?;
        Some(enqueue(&stream))
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use crate::device::cuda::native::{CudaStream, of_native};
    use crate::sync::plain::Arc;

    // SAFETY: the object holds one stream of cudarc's.
    unsafe impl NativeStream for Arc<CudaStream> {
        fn with<R>(
            native: &(dyn Any + Send + Sync),
            _task: Option<&Cow<'static, str>>,
            enqueue: impl FnOnce(&Self) -> R,
        ) -> Option<R> {
            of_native(native).map(enqueue)
        }
    }

    // SAFETY: as for the shared stream.
    unsafe impl NativeStream for CudaStream {
        fn with<R>(
            native: &(dyn Any + Send + Sync),
            _task: Option<&Cow<'static, str>>,
            enqueue: impl FnOnce(&Self) -> R,
        ) -> Option<R> {
            of_native(native).map(|stream| enqueue(stream))
        }
    }
}
