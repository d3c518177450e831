//! Streams of other libraries, by their raw handles.
//!
//! Nobody keeps such a stream for the pool, and a handle is given to the next stream once its own is destroyed. What
//! is never given to another is the driver's number of a stream: by that it is told apart.

use super::CudaDevice;
use super::driver::{check, stream_id};
use super::stream::{PER_THREAD, context_id, device_id, is_legacy_default, raw};
use cudarc::driver::sys::{self, CUstream};
use std::any::Any;
use weirpool_device::plain::{Arc, OnceLock};
use weirpool_device::{DeviceError, DeviceErrorKind, DeviceId, RawStream};

const CALL: &str = "external_stream";

/// A stream that somebody else made and destroys; made by
/// [`CudaDevice::external_stream`].
///
/// A pool that it is [registered](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.register) with seals every free on it at once: one event for each.
/// A request on it that waits is granted what is complete, or the stream's own, and nothing behind a wait on the
/// device. Two of the same stream are the same to a [`RawPool`](https://docs.rs/weirpool/latest/weirpool/struct.RawPool.html) and to
/// [`Current`](https://docs.rs/weirpool/latest/weirpool/struct.Current.html); to `register`, each is a stream of its own.
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
    /// # use weirpool_cuda::{CudaDevice, ExternalStream};
    /// # use weirpool_device::DeviceError;
    /// # fn wrap(device: &CudaDevice, handle: *mut c_void) -> Result<ExternalStream, DeviceError> {
    /// // SAFETY: the caller keeps the stream alive until its call returns, and uses the answer in no later one.
    /// let stream = unsafe { device.external_stream(handle.cast()) }?;
    /// # Ok(stream) }
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
    /// - during each call that is made with the answer, or with the [`Stream`](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html) that it was registered
    ///   as: of a future, each poll;
    /// - during the free of each block that was allocated on the stream or [used on](https://docs.rs/weirpool/latest/weirpool/struct.Block.html#method.used_on) it: a
    ///   drop is one. ([`RawPool::free`](https://docs.rs/weirpool/latest/weirpool/struct.RawPool.html#method.free) with another stream does without the one that the
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

impl ExternalStream {
    /// The device that the stream belongs to.
    pub fn device_id(&self) -> DeviceId {
        self.device
    }

    /// The driver's handle of the stream.
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// An owner of the legacy default stream, which is never destroyed; for other streams, an owner of nothing.
    pub fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        static FOR_GOOD: OnceLock<Arc<()>> = OnceLock::new();
        match self.id {
            None => FOR_GOOD.get_or_init(Arc::default).clone(),
            Some(_) => Arc::new(()),
        }
    }

    /// Whether a wait may be inserted into the stream: one in the legacy default stream would hold up all others.
    pub fn takes_waits(&self) -> bool {
        !is_legacy_default(self.raw)
    }

    /// The driver's number of the stream, which no other stream of the process ever has; `None` for the legacy
    /// default stream.
    pub fn external_id(&self) -> Option<u64> {
        self.id
    }
}
