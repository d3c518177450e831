//! Streams of cudarc's, as the pool sees them.

use super::driver::let_go;
use crate::device::{DeviceError, DeviceErrorKind, DeviceId, DeviceStream, RawStream};
use crate::sync::plain::Arc;
use cudarc::driver::sys::{CUcontext, CUstream};
use cudarc::driver::{CudaContext, CudaStream};
use std::any::Any;

/// Handles with a meaning of their own (`CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`).
const LEGACY: u64 = 1;
pub(super) const PER_THREAD: u64 = 2;

/// One context is one device; simulated devices count from 1, and have numbers without the last bit.
pub(super) fn device_id(context: &CudaContext) -> DeviceId {
    context_id(context.cu_ctx())
}

pub(super) fn context_id(context: CUcontext) -> DeviceId {
    DeviceId(context as u64 | 1 << 63)
}

pub(super) fn raw(stream: CUstream) -> RawStream {
    RawStream(stream as u64)
}

pub(super) fn handle(raw: RawStream) -> CUstream {
    raw.0 as CUstream
}

/// Whether it is the stream that all blocking streams are ordered with: a wait in it holds up all.
pub(super) fn is_legacy_default(raw: RawStream) -> bool {
    raw.0 == 0 || raw.0 == LEGACY
}

/// A hold on a stream. cudarc makes its context current when it destroys the stream, wherever that is; here
/// the thread's own is current again afterwards.
struct Kept(Option<Arc<CudaStream>>);

impl Drop for Kept {
    fn drop(&mut self) {
        let stream = self.0.take().expect("held until it is dropped");
        let_go(stream.context().cu_ctx(), stream);
    }
}

impl DeviceStream for Arc<CudaStream> {
    fn device_id(&self) -> DeviceId {
        device_id(self.context())
    }

    fn raw(&self) -> RawStream {
        raw(self.cu_stream())
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Kept(Some(self.clone())))
    }

    fn takes_waits(&self) -> bool {
        !is_legacy_default(raw(self.cu_stream()))
    }

    /// The per-thread default stream is another one on each thread, under one name: its order cannot be
    /// kept by a pool that is called from many threads.
    fn admit(&self) -> Result<(), DeviceError> {
        if raw(self.cu_stream()).0 != PER_THREAD {
            return Ok(());
        }
        Err(DeviceError::new(
            "register",
            DeviceErrorKind::Unsupported,
            "the per-thread default stream is another stream on each thread: make one with `create_stream`",
        ))
    }
}
