//! A stream that is captured into a graph, as its lane sees it.
//!
//! Work of a captured stream does not run. So its lane grants nothing and keeps nothing, as while the gate is closed: the
//! cache is flushed when the capture begins, and a free reads the state under the lock that the flush takes. No ticket is
//! closed: a block that is freed meanwhile is pending under the open ticket, until an event after the capture proves it.
//!
//! The pool's own calls on the stream, such as the record of an event, are [counted](OwnCall). A capture refuses
//! new ones, and begins on the device only when the last one has returned. One number holds both: the calls under way, and a
//! bit for the capture. So either the capture sees a call, or the call sees the capture.

use super::stream_cache::StreamCache;
use crate::device::{DeviceError, DeviceErrorKind};
use crate::id::StreamId;
use crate::sync::{Ordering, SharedNumber, yield_now};

/// The bit that is set in the number of calls while the stream is captured.
const CAPTURED: u64 = 1 << 63;

/// The pool's own calls on the stream that have not returned, and whether the stream is captured.
#[derive(Debug)]
pub(crate) struct OwnCalls(SharedNumber);

/// A call of the pool's own on the stream. While it exists, no capture of the stream begins on the device.
#[derive(Debug)]
pub(crate) struct OwnCall<'a>(&'a OwnCalls);

impl Drop for OwnCall<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

impl Default for OwnCalls {
    fn default() -> Self {
        Self(SharedNumber::new(0))
    }
}

impl OwnCalls {
    /// Begins a call of the pool's own on the stream.
    ///
    /// # Errors
    /// Returns an error if the stream is being captured.
    #[inline]
    pub(crate) fn begin(&self, call: &'static str) -> Result<OwnCall<'_>, DeviceError> {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        let begun = OwnCall(self);
        if before & CAPTURED != 0 {
            return Err(refused(call));
        }
        Ok(begun)
    }

    /// Returns whether the stream is being captured.
    #[inline]
    pub(super) fn are_refused(&self) -> bool {
        self.0.load(Ordering::Acquire) & CAPTURED != 0
    }

    /// Waits, as for a lock, until the calls have returned.
    pub(crate) fn wait(&self) {
        while self.0.load(Ordering::Acquire) & !CAPTURED > 0 {
            yield_now();
        }
    }
}

/// Returns the error of a call that is not possible while the stream is captured.
#[cold]
pub(crate) fn refused(call: &'static str) -> DeviceError {
    let reason = "the stream is being captured; call again when the capture is over";
    DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
}

impl StreamCache {
    /// Returns the order in which the capture's memory is reused, while the stream is being captured.
    pub(crate) fn capture_order(&self) -> Option<StreamId> {
        if !self.is_captured() {
            return None;
        }
        self.state.lock().capture
    }

    /// Begins a capture whose memory is reused in `order`. From now on the cache grants and keeps nothing, once it is
    /// flushed. Returns whether the stream was not being captured.
    pub(crate) fn begin_capture(&self, order: StreamId) -> bool {
        let mut state = self.state.lock();
        let is_first = state.capture.is_none();
        if is_first {
            state.capture = Some(order);
            self.calls.0.fetch_add(CAPTURED, Ordering::AcqRel);
        }
        is_first
    }

    /// Goes on with another order, if the stream is being captured.
    pub(crate) fn continue_capture(&self, order: StreamId) {
        if let Some(present) = &mut self.state.lock().capture {
            *present = order;
        }
    }

    /// Ends the capture.
    pub(crate) fn end_capture(&self) {
        let mut state = self.state.lock();
        if state.capture.take().is_some() {
            self.calls.0.fetch_sub(CAPTURED, Ordering::AcqRel);
        }
    }
}
