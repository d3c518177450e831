//! A stream that allocates from the memory of graphs while it is being captured.

use crate::device::{CaptureId, Captures, DeviceError, DeviceErrorKind, DeviceId};
use crate::engine::captures_of;
use crate::error::StreamError;
use crate::handles::{CaptureClock, GraphShare, GraphUses, Registration, Route};
use crate::stream::Stream;
use crate::sync::{assert_unlocked, plain};

/// Routes the allocations of a stream until it is dropped.
#[derive(Debug)]
pub(super) struct Routed {
    stream: Stream,
}

impl Routed {
    /// Begins to route a stream. Its freed blocks stay pending until this ends, and the pool makes no call on it.
    ///
    /// # Errors
    /// Returns an error if the stream is routed already.
    pub(super) fn begin(
        share: &plain::Arc<GraphShare>,
        uses: &plain::Arc<GraphUses>,
        clock: &plain::Arc<CaptureClock>,
        stream: &Stream,
    ) -> Result<Self, DeviceError> {
        Route::begin(&stream.registration, share, uses, clock)?;
        Ok(Self {
            stream: stream.clone(),
        })
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the id of the stream's device.
    pub(super) fn device_id(&self) -> DeviceId {
        self.stream.registration.stream_device().id()
    }

    /// Makes the graph that the stream is being captured into keep its memory, and what it will use.
    ///
    /// # Errors
    /// Returns an error if the stream is not being captured, or the device has no graphs.
    pub(super) fn keep(&self, uses: &plain::Arc<GraphUses>) -> Result<(), DeviceError> {
        let kept = Box::new(plain::Arc::clone(uses));
        self.call("keep", |captures, lane| {
            // SAFETY: the lane keeps the stream's owner; an external stream is usable in the caller's call.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.keep(lane, kept)
            }
        })
    }

    /// Returns the capture that the stream is part of; `None` if it is part of none, or of one that was invalidated.
    ///
    /// # Errors
    /// Returns the device's error, or an error if the device has no graphs.
    pub(super) fn capture(&self) -> Result<Option<CaptureId>, DeviceError> {
        capture_of(&self.stream)
    }

    /// Makes a call on the captured stream.
    ///
    /// # Errors
    /// Returns the errors of the call, or an error if the device has no graphs.
    pub(super) fn call<R>(
        &self,
        name: &'static str,
        call: impl FnOnce(&dyn Captures, crate::device::RawStream) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        call_on(&self.stream, name, call)
    }
}

/// Returns the capture that a stream is part of; `None` if it is part of none, or of one that was invalidated.
///
/// # Errors
/// Returns the device's error, or an error if the device has no graphs.
pub(super) fn capture_of(stream: &Stream) -> Result<Option<CaptureId>, DeviceError> {
    call_on(stream, "capture_of", |captures, stream| {
        // SAFETY: the lane keeps the stream's owner; an external stream is usable in the caller's call.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        unsafe {
            captures.capture_of(stream)
        }
    })
}

fn call_on<R>(
    stream: &Stream,
    name: &'static str,
    call: impl FnOnce(&dyn Captures, crate::device::RawStream) -> Result<R, DeviceError>,
) -> Result<R, DeviceError> {
    assert_unlocked(name);
    let Registration { service, lane, .. } = &*stream.registration;
    let shared = &service.engine.shared;
    let captures = captures_of(&**lane.device(&shared.device), name)?;
    shared.noted(call(captures, stream.raw()))
}

impl Drop for Routed {
    fn drop(&mut self) {
        Route::end(&self.stream.registration);
    }
}

/// # Errors
/// Returns [`StreamError::ForeignPool`] if the memory is of another pool than the stream, [`StreamError::Closed`] if the
/// pool is closed, and an error if the stream is the host, which no graph call names.
pub(super) fn expect_usable(
    share: &GraphShare,
    stream: &Stream,
    call: &'static str,
) -> Result<(), StreamError> {
    if !stream.is_of(&share.presence) {
        return Err(StreamError::ForeignPool(Box::default()));
    }
    let registration = &stream.registration;
    if registration.service.engine.shared.is_closed() {
        return Err(StreamError::Closed);
    }
    if !registration.lane.is_host() {
        return Ok(());
    }
    let reason =
        "the host is no stream of the device, and has no graphs; use a stream of the device";
    Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason).into())
}
