//! Streams of other libraries, by their raw handles.
//!
//! Nobody keeps such a stream for the pool, and a handle is given to the next stream once its own is destroyed. What
//! is never given to another is the driver's number of a stream: by that it is told apart.

use super::CudaDevice;
use super::driver::{check, stream_id};
use super::stream::{PER_THREAD, context_id, device_id, is_legacy_default, raw};
use crate::device::{DeviceError, DeviceErrorKind, DeviceId, DeviceStream, RawStream};
use crate::sync::plain::{Arc, OnceLock};
use cudarc::driver::sys::{self, CUstream};
use std::any::Any;

const CALL: &str = "external_stream";

/// A stream that somebody else made and destroys; made by
/// [`CudaDevice::external_stream`].
///
/// A pool that it is [registered](crate::Pool::register) with seals every free on it at once: one event for each.
/// A request on it that waits is granted what is complete, or the stream's own, and nothing behind a wait on the
/// device. Two of the same stream are the same to a [`RawPool`](crate::RawPool) and to
/// [`Current`](crate::Current); to `register`, each is a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExternalStream {
    device: DeviceId,
    raw: RawStream,
    /// None of the legacy default stream, which is never destroyed.
    id: Option<u64>,
}

impl CudaDevice {
    /// A stream of another library's (PyTorch's, cuBLAS's, a C program's), by its raw handle: a `cudaStream_t` is
    /// one, too.
    ///
    /// The legacy default stream (a null handle, or `CU_STREAM_LEGACY`) is ordered like any other, and never made to
    /// wait, since that would hold up all blocking streams: what needs a wait there is had later, or refused. A
    /// library that was compiled with per-thread default streams means those by a null handle; it must not be
    /// given on here.
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # use weirpool::{RawPool, device::cuda::CudaDevice};
    /// # use std::time::Duration;
    /// # fn allocate(device: &CudaDevice, raw: &RawPool, handle: *mut c_void) -> Result<u64, weirpool::AllocError> {
    /// // SAFETY: whoever calls with the stream has it alive until the call returns.
    /// let stream = unsafe { device.external_stream(handle.cast()) }?;
    /// raw.allocate(&stream, 1 << 20, Duration::from_secs(5))
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](DeviceErrorKind::Unsupported) for the per-thread default stream, which is another stream on
    /// each thread, and where the driver is older than CUDA 12 and has no numbers for streams; the driver's error
    /// when it does not know the stream.
    ///
    /// # Safety
    /// The handle is of a stream that is not destroyed
    ///
    /// - during this call;
    /// - during each call that is made with the answer, or with the [`Stream`](crate::Stream) that it was registered
    ///   as: of a future, each poll;
    /// - during the free of each block that was allocated on the stream or [used on](crate::Block::used_on) it: a
    ///   drop is one. ([`RawPool::free`](crate::RawPool::free) with another stream does without the one that the
    ///   block was allocated on.)
    ///
    /// In between nothing uses it: it may be destroyed then, whatever of it is pending, and its handle be another's.
    pub unsafe fn external_stream(&self, handle: CUstream) -> Result<ExternalStream, DeviceError> {
        let device = device_id(&self.inner.context);
        let name = raw(handle);
        if is_legacy_default(name) {
            let raw = RawStream(0);
            let id = None;
            return Ok(ExternalStream { device, raw, id });
        }
        if name.0 == PER_THREAD {
            let reason = "the per-thread default stream is another stream on each thread: have the library work on \
                          a stream that it made";
            return Err(DeviceError::new(CALL, DeviceErrorKind::Unsupported, reason));
        }
        let _visit = self.visit(CALL)?;
        // SAFETY: the caller's stream is not destroyed.
        let id = unsafe { stream_id(CALL, handle) }?;
        let mut context = std::ptr::null_mut();
        // SAFETY: as above; writes the context to the place given.
        check(CALL, unsafe { sys::cuStreamGetCtx(handle, &mut context) })?;
        Ok(ExternalStream {
            device: context_id(context),
            raw: name,
            id: Some(id),
        })
    }
}

impl DeviceStream for ExternalStream {
    fn device_id(&self) -> DeviceId {
        self.device
    }

    fn raw(&self) -> RawStream {
        self.raw
    }

    /// The legacy default stream is there for good; another nobody can keep.
    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        static FOR_GOOD: OnceLock<Arc<()>> = OnceLock::new();
        match self.id {
            None => FOR_GOOD.get_or_init(Arc::default).clone(),
            Some(_) => Arc::new(()),
        }
    }

    fn takes_waits(&self) -> bool {
        !is_legacy_default(self.raw)
    }

    fn external_id(&self) -> Option<u64> {
        self.id
    }
}
