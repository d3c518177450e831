//! Streams of other libraries, by their raw handles.
//!
//! The pool cannot keep such a stream alive, and CUDA reuses the handle of a destroyed stream for another one. So
//! streams are told apart by the driver's stream id, which is never reused. Asking for the id of a stream invalidates
//! its capture; so a stream that is being captured has an id for that capture.

use super::CudaDevice;
use super::driver::{capture_info, check, stream_id};
use super::stream::{PER_THREAD, context_id, device_id, is_legacy_default, raw};
use cudarc::driver::sys::{self, CUstream};
use std::any::Any;
use std::collections::BTreeMap;
use weirpool_device::plain::{Arc, Mutex, OnceLock};
use weirpool_device::{DeviceError, DeviceErrorKind, DeviceId, RawStream, StreamProperties};

const CALL: &str = "external_stream";

/// The ids of streams that were wrapped while they were captured: by the stream's name, the last capture and the id.
#[derive(Debug, Default)]
pub(super) struct CapturedStreams(Mutex<Ids>);

#[derive(Debug, Default)]
struct Ids {
    of_streams: BTreeMap<RawStream, (u64, u64)>,
    count: u64,
}

/// Tells these ids from the driver's, which count up from small numbers.
const OF_A_CAPTURE: u64 = 1 << 63;

impl CapturedStreams {
    fn id_of(&self, stream: RawStream, capture: u64) -> u64 {
        let mut ids = self.0.lock();
        match ids.of_streams.get(&stream) {
            Some((last, id)) if *last == capture => *id,
            _ => {
                let id = OF_A_CAPTURE | ids.count;
                ids.count += 1;
                ids.of_streams.insert(stream, (capture, id));
                id
            }
        }
    }
}

/// A stream that another library creates and destroys. Created by [`CudaDevice::external_stream`], or by
/// [`CudaDevice::permanent_stream`] if it is never destroyed.
///
/// What follows is for streams that may be destroyed; a permanent one is treated like a stream that the pool keeps. A pool that it is [registered](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.register) with
/// records an event at every free on it. A waiting request on it is granted only memory that is complete or was freed
/// on the same stream, not memory behind a wait on the device. A
/// [`RawPool`](https://docs.rs/weirpool-compat/latest/weirpool_compat/struct.RawPool.html) and
/// [`Current`](https://docs.rs/weirpool-compat/latest/weirpool_compat/struct.Current.html) treat two of these for one stream as the
/// same stream; `register` treats each as a separate one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExternalStream {
    device: DeviceId,
    raw: RawStream,
    /// `None` for a stream that is never destroyed.
    id: Option<u64>,
}

impl CudaDevice {
    /// Wraps a stream of another library (PyTorch, cuBLAS, a C program), given its raw handle. A `cudaStream_t` is such
    /// a handle, too.
    ///
    /// The legacy default stream (a null handle, or `CU_STREAM_LEGACY`) is ordered like any other. The pool never makes
    /// it wait, since that would hold up all blocking streams: an allocation that needs a wait there is granted later,
    /// or refused. In a library that was compiled with per-thread default streams, a null handle means those; do not
    /// pass such a handle.
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # use weirpool_cuda::{CudaDevice, ExternalStream};
    /// # use weirpool_device::DeviceError;
    /// # fn wrap(device: &CudaDevice, handle: *mut c_void) -> Result<ExternalStream, DeviceError> {
    /// // SAFETY: the caller keeps the stream alive until its call returns, and does not use the result in later calls.
    /// let stream = unsafe { device.external_stream(handle.cast()) }?;
    /// # Ok(stream) }
    /// ```
    ///
    /// # Errors
    /// Returns [`Unsupported`](DeviceErrorKind::Unsupported) for the per-thread default stream, which is another stream
    /// on each thread, and for drivers older than CUDA 12, which have no stream ids. Returns the driver's error if it
    /// does not know the stream.
    ///
    /// # Safety
    /// The stream of this handle must not be destroyed
    ///
    /// - during this call;
    /// - during each call with the result, or with the
    ///   [`Stream`](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html) that it was registered as; for a
    ///   future, during each poll;
    /// - during the free or drop of each block that was allocated on the stream, or
    ///   [used on](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.record_use) it.
    ///   ([`RawPool::free`](https://docs.rs/weirpool-compat/latest/weirpool_compat/struct.RawPool.html#method.free) on another stream
    ///   does not use the stream that the block was allocated on.)
    ///
    /// Between these calls nothing uses the stream. It may then be destroyed, even with pending work, and its handle
    /// may be reused.
    pub unsafe fn external_stream(&self, handle: CUstream) -> Result<ExternalStream, DeviceError> {
        let name = raw(handle);
        if is_legacy_default(name) {
            // SAFETY: it is never destroyed.
            return unsafe { self.permanent_stream(handle) };
        }
        if name.0 == PER_THREAD {
            return Err(per_thread(CALL));
        }
        let _visit = self.visit(CALL)?;
        // SAFETY: the caller's stream is not destroyed.
        let id = match unsafe { capture_info(CALL, handle) }? {
            Some(capture) => self.inner.captured.id_of(name, capture.id),
            // SAFETY: as above.
            None => unsafe { stream_id(CALL, handle) }?,
        };
        Ok(ExternalStream {
            // SAFETY: as above.
            device: unsafe { context_of(CALL, handle) }?,
            raw: name,
            id: Some(id),
        })
    }
}

impl CudaDevice {
    /// Wraps a stream of another library that is never destroyed, such as the streams of PyTorch's own pool, given its
    /// raw handle. A pool treats it like a stream that it keeps: it records an event once some MiB are freed, not at
    /// every free, and a waiting request on it may be granted memory behind a wait on the device.
    ///
    /// # Errors
    /// Returns [`Unsupported`](DeviceErrorKind::Unsupported) for the per-thread default stream, which is another stream
    /// on each thread. Returns the driver's error if it does not know the stream.
    ///
    /// # Safety
    /// The stream of this handle must never be destroyed, nor the context that it belongs to.
    pub unsafe fn permanent_stream(&self, handle: CUstream) -> Result<ExternalStream, DeviceError> {
        const CALL: &str = "permanent_stream";
        let raw = raw(handle);
        if raw.0 == PER_THREAD {
            return Err(per_thread(CALL));
        }
        let id = None;
        if is_legacy_default(raw) {
            let (device, raw) = (device_id(&self.inner.context), RawStream(0));
            return Ok(ExternalStream { device, raw, id });
        }
        let _visit = self.visit(CALL)?;
        // SAFETY: the stream lives.
        let device = unsafe { context_of(CALL, handle) }?;
        Ok(ExternalStream { device, raw, id })
    }
}

fn per_thread(call: &'static str) -> DeviceError {
    let reason = "the per-thread default stream is another stream on each thread: have the library work on \
                  a stream that it made";
    DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
}

/// # Safety
/// The stream is not destroyed during the call.
unsafe fn context_of(call: &'static str, handle: CUstream) -> Result<DeviceId, DeviceError> {
    let mut context = std::ptr::null_mut();
    // SAFETY: guaranteed by the caller; `context` is valid for the write.
    check(call, unsafe { sys::cuStreamGetCtx(handle, &mut context) })?;
    Ok(context_id(context))
}

impl ExternalStream {
    /// Returns the id of the device that the stream belongs to.
    pub fn device_id(&self) -> DeviceId {
        self.device
    }

    /// Returns the driver's handle of the stream.
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// Returns an owner of a stream that is never destroyed; for other streams, an owner of nothing.
    pub fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        static FOR_GOOD: OnceLock<Arc<()>> = OnceLock::new();
        match self.id {
            None => FOR_GOOD.get_or_init(Arc::default).clone(),
            Some(_) => Arc::new(()),
        }
    }

    /// Returns what a pool has to know of the stream. Its id is the driver's, which no other stream of the process ever has,
    /// or one for the capture that the stream is part of; a stream that is never destroyed has none. No wait may be
    /// inserted into the legacy default stream: it would hold up all others.
    pub fn properties(&self) -> StreamProperties {
        let mut properties = StreamProperties::new(self.device, self.raw);
        properties.takes_waits = !is_legacy_default(self.raw);
        properties.external_id = self.id;
        properties
    }
}
