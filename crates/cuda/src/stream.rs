//! Streams of cudarc's, as the pool sees them.

use super::driver::let_go;
use cudarc::driver::sys::{CUcontext, CUstream};
use cudarc::driver::{CudaContext, CudaStream};
use std::any::Any;
use std::collections::BTreeMap;
use weirpool_device::plain::{Arc, Mutex};
use weirpool_device::{DeviceError, DeviceErrorKind, DeviceId, RawStream};

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

/// What a stream of cudarc's is to the pools.
pub fn names_of(stream: &CudaStream) -> (DeviceId, RawStream) {
    (device_id(stream.context()), raw(stream.cu_stream()))
}

/// The default streams live as long as their context, and so can be had again by who only borrows one.
pub fn default_of(stream: &CudaStream) -> Option<Arc<CudaStream>> {
    match raw(stream.cu_stream()).0 {
        0 | LEGACY => Some(stream.context().default_stream()),
        PER_THREAD => Some(stream.context().per_thread_stream()),
        _ => None,
    }
}

/// What a native stream is, if it is one of cudarc's.
pub fn of_native(native: &(dyn Any + Send + Sync)) -> Option<&Arc<CudaStream>> {
    native.downcast_ref::<Kept>()?.0.as_ref()
}

/// How many holds there are on each stream, by where it lies.
static HOLDS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// A hold on a stream. cudarc makes its context current when it destroys the stream, wherever that is; here
/// the thread's own is current again afterwards.
pub(super) struct Kept(Option<Arc<CudaStream>>);

impl Kept {
    fn new(stream: &Arc<CudaStream>) -> Self {
        *HOLDS
            .lock()
            .entry(Arc::as_ptr(stream) as usize)
            .or_default() += 1;
        Self(Some(stream.clone()))
    }

    /// Whether there are only holds on the stream, and nobody who has it otherwise.
    pub(super) fn is_last(&self) -> bool {
        let holds = HOLDS.lock();
        let of_it = |stream: &Arc<CudaStream>| {
            let held = holds.get(&(Arc::as_ptr(stream) as usize));
            held.is_some_and(|held| Arc::strong_count(stream) <= *held)
        };
        self.0.as_ref().is_some_and(of_it)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let stream = self.0.take().expect("held until it is dropped");
        {
            let (mut holds, at) = (HOLDS.lock(), Arc::as_ptr(&stream) as usize);
            let left = holds.get_mut(&at).map(|held| {
                *held -= 1;
                *held
            });
            if left == Some(0) {
                holds.remove(&at);
            }
        }
        let_go(stream.context().cu_ctx(), stream);
    }
}

/// An owner that keeps the stream usable while it is held; see [`of_native`].
pub fn keep_alive(stream: &Arc<CudaStream>) -> Arc<dyn Any + Send + Sync> {
    Arc::new(Kept::new(stream))
}

/// Whether a wait may be inserted into the stream: one in the legacy default stream would hold up all others.
pub fn takes_waits(stream: &CudaStream) -> bool {
    !is_legacy_default(raw(stream.cu_stream()))
}

/// Whether a pool can keep the stream's order.
///
/// # Errors
/// [`Unsupported`](DeviceErrorKind::Unsupported) for the per-thread default stream: it is another stream on each
/// thread, under one name.
pub fn admit(stream: &CudaStream) -> Result<(), DeviceError> {
    if raw(stream.cu_stream()).0 != PER_THREAD {
        return Ok(());
    }
    Err(DeviceError::new(
        "register",
        DeviceErrorKind::Unsupported,
        "the per-thread default stream is another stream on each thread: make one with `create_stream`",
    ))
}
