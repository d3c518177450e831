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

/// Makes a context current for a call.
///
/// # Errors
/// Returns the driver's error, or that of the call.
pub(super) fn in_context<T>(
    context: usize,
    call: impl FnOnce() -> Result<T, Status>,
) -> Result<T, Status> {
    if current() == Some(context) {
        return call();
    }
    // SAFETY: the context lives, as its pool does; the one that was current becomes current again.
    checked(unsafe { sys::cuCtxPushCurrent_v2(context as CUcontext) })?;
    let answer = call();
    let mut popped = std::ptr::null_mut();
    // SAFETY: as above.
    checked(unsafe { sys::cuCtxPopCurrent_v2(&mut popped) })?;
    answer
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

/// Returns whether a stream is not known to be outside of every capture.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn may_be_captured(stream: usize) -> bool {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller guarantees the stream; the call writes to the variable.
    let asked = unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    asked != CUresult::CUDA_SUCCESS
        || status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
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
