//! A stream that allocates from the memory of graphs while it is being captured.

use crate::device::{CaptureId, Captures, DeviceError, DeviceErrorKind, DeviceId};
use crate::engine::{Change, Engine, captured, captures_of, maintenance};
use crate::error::StreamError;
use crate::handles::{GraphUses, Registration, Route};
use crate::stream::Stream;
use crate::sync::{assert_unlocked, plain};
use smallvec::smallvec;

/// Routes the allocations of a stream until it is dropped.
#[derive(Debug)]
pub(super) struct Routed {
    stream: Stream,
}

impl Routed {
    /// Begins to route a stream. Its freed blocks stay pending until this ends, and the pool makes no call on it.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the memory is of another pool, [`StreamError::Closed`] if the pool is
    /// closed, and an error if the stream is routed already.
    pub(super) fn begin(
        uses: &plain::Arc<GraphUses>,
        stream: &Stream,
    ) -> Result<Self, StreamError> {
        let share = &uses.share;
        if !stream.is_of(&share.presence) {
            return Err(StreamError::ForeignPool);
        }
        let registration = stream.registration();
        let (engine, lane) = (&registration.service.engine, &registration.lane);
        expect_open(registration, "begin_capture")?;
        let order =
            captured::begin_capture(&engine.streams, &engine.store, lane).ok_or_else(|| {
                let reason = "the stream is being captured already; end that capture first";
                DeviceError::new("begin_capture", DeviceErrorKind::Unsupported, reason)
            })?;
        let former = registration.set_route(Some(Route {
            uses: uses.clone(),
            orders: smallvec![order],
            capture: None,
        }));
        drop(former);
        Ok(Self {
            stream: stream.clone(),
        })
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the id of the stream's device.
    pub(super) fn device_id(&self) -> DeviceId {
        self.stream.registration().stream_device().id()
    }

    fn engine(&self) -> &Engine {
        &self.stream.registration().service.engine
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

    /// Notes the capture that the stream is part of, and returns it.
    ///
    /// # Errors
    /// Returns the errors of [`capture`](Self::capture).
    pub(super) fn note_capture(&self) -> Result<Option<CaptureId>, DeviceError> {
        let capture = self.capture()?;
        self.stream.registration().note_capture(capture);
        Ok(capture)
    }

    /// Returns the capture that the stream is part of; `None` if it is part of none, or of one that was invalidated.
    ///
    /// # Errors
    /// Returns the device's error, or an error if the device has no graphs.
    pub(super) fn capture(&self) -> Result<Option<CaptureId>, DeviceError> {
        self.call("capture_of", |captures, stream| {
            // SAFETY: the lane keeps the stream's owner; an external stream is usable in the caller's call.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.capture_of(stream)
            }
        })
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
        assert_unlocked(name);
        let engine = self.engine();
        let lane = &self.stream.registration().lane;
        let captures = captures_of(&**lane.device(&engine.shared.device), name)?;
        engine.shared.noted(call(captures, self.stream.raw()))
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let registration = self.stream.registration();
        let (service, lane) = (&registration.service, &registration.lane);
        let route = registration.set_route(None);
        let orders = route.as_ref().map(|route| route.orders.clone());
        captured::end_capture(&service.engine, lane, &orders.unwrap_or_default());
        service.publish(Change::Memory);
        // Memory that was freed on the captured stream had no event to watch.
        maintenance::note_progress(&service.engine);
    }
}

/// # Errors
/// Returns an error if the pool is closed, or the stream is the host, which no graph call names.
pub(super) fn expect_open(
    registration: &Registration,
    call: &'static str,
) -> Result<(), StreamError> {
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
