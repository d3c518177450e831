//! The streams of cudarc, as pools see them.

use super::driver::let_go;
use cudarc::driver::sys::{CUcontext, CUstream};
use cudarc::driver::{CudaContext, CudaStream};
use std::any::Any;
use std::collections::BTreeMap;
use weirpool_device::plain::{Arc, Mutex};
use weirpool_device::{DeviceError, DeviceErrorKind, DeviceId, RawStream, StreamProperties};

/// Handles with a special meaning: `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: u64 = 1;
pub(super) const PER_THREAD: u64 = 2;

/// Returns the id of a context's device. Bit 63 tells it from a simulated device, whose ids count up from 1.
pub(super) fn device_id(context: &CudaContext) -> DeviceId {
    context_id(context.cu_ctx())
}

pub(super) fn context_id(context: CUcontext) -> DeviceId {
    DeviceId(context as u64 | 1 << 63)
}

/// Returns the context of a device.
pub(super) fn context_of(id: DeviceId) -> CUcontext {
    (id.0 & !(1 << 63)) as CUcontext
}

pub(super) fn raw(stream: CUstream) -> RawStream {
    RawStream(stream as u64)
}

pub(super) fn handle(raw: RawStream) -> CUstream {
    raw.0 as CUstream
}

/// Returns whether this is the stream that all blocking streams are ordered with: a wait in it holds up all of them.
pub(super) fn is_legacy_default(raw: RawStream) -> bool {
    raw.0 == 0 || raw.0 == LEGACY
}

/// Returns the ids by which pools identify a stream.
pub fn names_of(stream: &CudaStream) -> (DeviceId, RawStream) {
    (device_id(stream.context()), raw(stream.cu_stream()))
}

/// Returns the owner of a borrowed default stream. Default streams live as long as their context.
pub fn default_of(stream: &CudaStream) -> Option<Arc<CudaStream>> {
    match raw(stream.cu_stream()).0 {
        0 | LEGACY => Some(stream.context().default_stream()),
        PER_THREAD => Some(stream.context().per_thread_stream()),
        _ => None,
    }
}

/// Returns the stream of cudarc behind a native stream, if it is one.
pub fn of_native(native: &(dyn Any + Send + Sync)) -> Option<&Arc<CudaStream>> {
    native.downcast_ref::<Kept>()?.0.as_ref()
}

/// The number of owners of each stream that pools hold, by the stream's address.
static HOLDS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// An owner of a stream. When cudarc destroys a stream, it makes the stream's context current. This type restores the
/// thread's own context afterwards.
pub(super) struct Kept(Option<Arc<CudaStream>>);

impl Kept {
    fn new(stream: &Arc<CudaStream>) -> Self {
        *HOLDS
            .lock()
            .entry(Arc::as_ptr(stream) as usize)
            .or_default() += 1;
        Self(Some(stream.clone()))
    }

    /// Returns whether all owners of the stream are of this type.
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

/// Returns an owner that keeps the stream usable; see [`of_native`].
pub fn keep_alive(stream: &Arc<CudaStream>) -> Arc<dyn Any + Send + Sync> {
    Arc::new(Kept::new(stream))
}

/// Returns what a pool has to know of the stream. No wait may be inserted into the legacy default stream: it would hold up all
/// others.
///
/// # Errors
/// Returns [`Unsupported`](DeviceErrorKind::Unsupported) for the per-thread default stream, which is another stream on
/// each thread, under one handle.
pub fn properties(stream: &CudaStream) -> Result<StreamProperties, DeviceError> {
    let (device, raw) = names_of(stream);
    if raw.0 != PER_THREAD {
        let mut properties = StreamProperties::new(device, raw);
        properties.takes_waits = !is_legacy_default(raw);
        return Ok(properties);
    }
    Err(DeviceError::new(
        "register",
        DeviceErrorKind::Unsupported,
        "the per-thread default stream is another stream on each thread; create one with `create_stream`",
    ))
}
