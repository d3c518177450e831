//! The pool's own calls on a stream, such as the record of an event.
//!
//! A capture refuses new ones, and begins on the device only when the last one has returned. One number holds both: the
//! calls under way, and a bit for the capture. So either the capture sees a call, or the call sees the capture.

use crate::device::{DeviceError, DeviceErrorKind};
use crate::sync::{Ordering, SharedNumber, yield_now};

/// The bit that is set in the number of calls while the stream is captured.
const CAPTURED: u64 = 1 << 63;

/// The pool's own calls on the stream that have not returned, and whether the stream is captured.
#[derive(Debug)]
pub struct OwnCalls(SharedNumber);

/// A call of the pool's own on the stream. While it exists, no capture of the stream begins on the device.
#[derive(Debug)]
pub struct OwnCall<'a>(&'a OwnCalls);

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
    pub fn begin(&self, call: &'static str) -> Result<OwnCall<'_>, DeviceError> {
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

    /// Refuses calls from now on: a capture begins.
    pub(super) fn refuse(&self) {
        self.0.fetch_add(CAPTURED, Ordering::AcqRel);
    }

    /// Allows calls again: the capture is over.
    pub(super) fn allow(&self) {
        self.0.fetch_sub(CAPTURED, Ordering::AcqRel);
    }

    /// Waits, as for a lock, until the calls have returned.
    pub fn wait(&self) {
        while self.0.load(Ordering::Acquire) & !CAPTURED > 0 {
            yield_now();
        }
    }
}

/// Returns the error of a call that is not possible while the stream is captured.
#[cold]
pub fn refused(call: &'static str) -> DeviceError {
    let reason = "the stream is being captured; call again when the capture is over";
    DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
}
