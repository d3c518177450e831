//! Capture of a stream's work into a graph.

use super::{CaptureId, CapturedWork, DeviceError, RawStream};
use std::any::Any;
use std::fmt;
use std::panic::Location;

/// A value that a graph keeps until it is gone and its last launch is complete; see [`Captures::keep`].
pub type Kept = Box<dyn Any + Send>;

/// The calls of a device whose streams can be captured; see [`Device::captures`](super::Device::captures).
///
/// Work that is submitted to a captured stream does not run. It becomes part of a graph, and runs at each launch of the
/// graph. A further stream joins a capture by waiting for an event that was recorded in it.
///
/// The preconditions are those of [`Device`](super::Device). No call can wait.
///
/// # Safety
/// An implementation guarantees that a value given to [`keep`](Self::keep) is not dropped while work of the graph runs
/// or may still run: the graph exists, or a launch of it is not complete.
pub unsafe trait Captures: Send + Sync {
    /// Begins to capture a stream.
    ///
    /// # Errors
    /// Returns an error if the stream is being captured already, or cannot be.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn begin_capture(&self, stream: RawStream) -> Result<(), DeviceError>;

    /// Ends the capture that began on a stream, and returns its graph, ready to be launched.
    ///
    /// # Errors
    /// Returns an error if the capture was invalidated, a stream that joined it was not joined again, or the stream is
    /// not being captured. The stream is not being captured then, and there is no graph.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn end_capture(&self, stream: RawStream) -> Result<Box<dyn Graph>, DeviceError>;

    /// Returns the capture that a stream is part of; `None` if it is part of none, or of one that was invalidated.
    ///
    /// # Errors
    /// Returns an error of the device, and one if the device cannot tell.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn capture_of(&self, stream: RawStream) -> Result<Option<CaptureId>, DeviceError>;

    /// Returns the capture that a stream is part of, and the work that the stream's next work comes after
    /// directly; `None` as for [`capture_of`](Self::capture_of).
    ///
    /// # Errors
    /// Returns an error of the device, and one if the device cannot tell.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn frontier(
        &self,
        stream: RawStream,
    ) -> Result<Option<(CaptureId, Vec<CapturedWork>)>, DeviceError>;

    /// Returns the work that captured work comes after directly, in the sense that it begins only once that is complete.
    ///
    /// # Errors
    /// Returns an error of the device, and one if the device cannot tell.
    ///
    /// # Safety
    /// The stream is one of this device, usable during the call, and part of the capture that the work is of.
    unsafe fn before(
        &self,
        stream: RawStream,
        work: CapturedWork,
    ) -> Result<Vec<CapturedWork>, DeviceError>;

    /// Makes a stream's next work come after captured work of a capture that `captured` is part of. If the
    /// stream is not being captured, it joins that capture.
    ///
    /// # Errors
    /// Returns an error if `captured` is not being captured, or the stream is part of another capture, or cannot be
    /// captured.
    ///
    /// # Safety
    /// Both streams are of this device and usable during the call. The work is of the capture of `captured`.
    unsafe fn come_after(
        &self,
        stream: RawStream,
        captured: RawStream,
        work: &[CapturedWork],
    ) -> Result<(), DeviceError>;

    /// Keeps a value with the graph that a stream is being captured into. The device drops it once the graph is gone
    /// and the last launch of it is complete, from a place where the device may be called; or when the capture ends
    /// without a graph.
    ///
    /// # Errors
    /// Returns an error if the stream is not being captured, or the capture was invalidated. The value is dropped then.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn keep(&self, stream: RawStream, kept: Kept) -> Result<(), DeviceError>;

    /// Captures a fill, which is as [`Device::fill`](super::Device::fill) at each launch.
    ///
    /// # Errors
    /// Returns an error if nothing was captured.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call. At each launch the range is mapped, and other uses
    /// of it are ordered before or after the fill.
    unsafe fn capture_fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError>;

    /// Captures a copy of bytes of the host to the device. The call has read `bytes` when it returns, and the graph
    /// keeps them: each launch copies the same bytes.
    ///
    /// # Errors
    /// Returns an error if nothing was captured.
    ///
    /// # Safety
    /// Those of [`capture_fill`](Self::capture_fill).
    unsafe fn capture_upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError>;
}

/// A graph of captured work, ready to be launched. It may be dropped while a launch of it runs.
pub trait Graph: fmt::Debug + Send + Sync {
    /// Submits the captured work to a stream, behind everything submitted to it so far and behind the earlier launches
    /// of the graph. Cannot wait.
    ///
    /// # Errors
    /// Returns an error if nothing was submitted, also if the stream is being captured: that capture goes on.
    ///
    /// # Safety
    /// The stream is one of the graph's device and usable during the call. The memory that the captured work touches is
    /// mapped until the launch is complete.
    unsafe fn launch(&self, stream: RawStream) -> Result<(), DeviceError>;
}
