//! Calls of the driver's own, which the linker does not replace for this library.

use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use std::ffi::c_int;

/// An answer of the driver: `CUresult`, as a number, because a newer driver may answer with one that has no name here.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const INVALID_VALUE: Status = 1;
pub(super) const OUT_OF_MEMORY: Status = 2;

/// The handles of the default streams: of the context, by two names, and of the thread.
pub(super) const LEGACY: [usize; 2] = [0, 1];
pub(super) const PER_THREAD: usize = 2;

fn checked(result: CUresult) -> Result<(), Status> {
    match result as Status {
        SUCCESS => Ok(()),
        status => Err(status),
    }
}

/// Returns the current context of this thread, if it has one.
pub(super) fn current() -> Option<usize> {
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the call writes to the variable.
    checked(unsafe { sys::cuCtxGetCurrent(&mut context) }).ok()?;
    (!context.is_null()).then_some(context as usize)
}

/// Returns the number of the current context's device.
pub(super) fn device_of_current() -> Result<c_int, Status> {
    let mut device = 0;
    // SAFETY: the call writes to the variable.
    checked(unsafe { sys::cuCtxGetDevice(&mut device) })?;
    Ok(device)
}

/// Makes a context current for a call, and then the one that was current.
///
/// # Errors
/// Returns the driver's error, or that of the call.
pub(super) fn in_context<T>(
    context: usize,
    call: impl FnOnce() -> Result<T, Status>,
) -> Result<T, Status> {
    struct Pushed;
    impl Drop for Pushed {
        fn drop(&mut self) {
            let mut popped = std::ptr::null_mut();
            // SAFETY: the call writes to the variable.
            unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
    // SAFETY: the context lives, as its pool does; the one that was current becomes current again.
    checked(unsafe { sys::cuCtxPushCurrent_v2(context as CUcontext) })?;
    // Also if the call makes another context current, or panics.
    let _pushed = Pushed;
    call()
}

/// Waits for all work of a context.
///
/// # Errors
/// Returns the driver's error, that of earlier work included.
pub(super) fn synchronize(context: usize) -> Result<(), Status> {
    // SAFETY: a context is current.
    in_context(context, || checked(unsafe { sys::cuCtxSynchronize() }))
}

/// Returns the context of a stream.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn context_of(stream: usize) -> Result<usize, Status> {
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the caller guarantees the stream; the call writes to the variable.
    checked(unsafe { sys::cuStreamGetCtx(stream as CUstream, &mut context) })?;
    Ok(context as usize)
}

/// Returns whether a stream is part of a capture.
///
/// # Errors
/// Returns the driver's error: the default stream must not be asked for during some captures.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn is_captured(stream: usize) -> Result<bool, Status> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller guarantees the stream; the call writes to the variable.
    checked(unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Ends the capture of a stream, and destroys its graph.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn end_capture(stream: usize) {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the caller guarantees the stream; the call writes to the variable.
    let ended = unsafe { sys::cuStreamEndCapture(stream as CUstream, &mut graph) };
    if checked(ended).is_ok() && !graph.is_null() {
        // SAFETY: the graph is of this function.
        unsafe { sys::cuGraphDestroy(graph) };
    }
}

/// Returns the context of a green context.
///
/// # Safety
/// The green context is not destroyed.
pub(super) unsafe fn context_of_green(green: usize) -> Result<usize, Status> {
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the caller guarantees the green context; the call writes to the variable.
    checked(unsafe { sys::cuCtxFromGreenCtx(&mut context, green as sys::CUgreenCtx) })?;
    Ok(context as usize)
}

/// Returns the handle of the default pool of a device.
pub(super) fn default_pool(device: c_int) -> Option<usize> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: the call writes to the variable.
    checked(unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, device) }).ok()?;
    Some(pool as usize)
}

/// Returns the number of devices.
pub(super) fn devices() -> c_int {
    let mut count = 0;
    // SAFETY: the call writes to the variable.
    let counted = checked(unsafe { sys::cuDeviceGetCount(&mut count) });
    counted.map_or(0, |()| count)
}

/// Returns the primary context of a device, if the program holds it.
pub(super) fn primary(device: c_int) -> Option<usize> {
    let (mut flags, mut is_active) = (0, 0);
    // SAFETY: the call writes to the variables.
    let asked = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active) };
    checked(asked).ok().filter(|()| is_active != 0)?;
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: as above. The context is released at once, and the program still holds it.
    checked(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) }).ok()?;
    // SAFETY: as above.
    checked(unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) }).ok()?;
    Some(context as usize)
}
