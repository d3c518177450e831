//! The driver: found before it is called, and called so that nothing of the user's is disturbed.

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weirpool_device::plain::{Arc, OnceLock};
use weirpool_device::{DeviceError, DeviceErrorKind};

/// Under one of these names cudarc finds the driver, too.
#[cfg(not(windows))]
const LIBRARIES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
#[cfg(windows)]
const LIBRARIES: [&str; 2] = ["cuda.dll", "nvcuda.dll"];

/// Loads the driver and initializes it.
///
/// # Errors
/// Returns an error if there is no driver (cudarc would panic then), or if it finds no device.
pub(super) fn load() -> Result<(), DeviceError> {
    static LOADED: OnceLock<Result<(), DeviceError>> = OnceLock::new();
    LOADED.get_or_init(try_load).clone()
}

fn try_load() -> Result<(), DeviceError> {
    let is_present = LIBRARIES.iter().any(|name| {
        // SAFETY: the driver's initializers have no preconditions; cudarc loads it in the same way.
        unsafe { libloading::Library::new(*name) }.is_ok()
    });
    if !is_present {
        let names = LIBRARIES.join(" or ");
        return Err(unavailable(format!(
            "no NVIDIA driver was found ({names} cannot be loaded): install one, or use the simulated device"
        )));
    }
    // A driver that lacks a symbol makes cudarc panic.
    match catch_unwind(AssertUnwindSafe(cudarc::driver::result::init)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failure("initialize", error)),
        Err(_) => Err(unavailable(
            "the NVIDIA driver lacks a function, so it may be too old; update it",
        )),
    }
}

fn unavailable(reason: impl Into<Arc<str>>) -> DeviceError {
    DeviceError::new("initialize", DeviceErrorKind::Unsupported, reason)
}

/// A driver's answer, as the contract has it.
pub(super) fn failure(call: &'static str, error: DriverError) -> DeviceError {
    let text = |words: Result<&std::ffi::CStr, DriverError>| {
        words.map_or_else(
            |_| "unknown error".to_owned(),
            |words| words.to_string_lossy().into_owned(),
        )
    };
    let reason = format!(
        "{}: {}",
        text(error.error_name()),
        text(error.error_string())
    );
    DeviceError::new(call, kind(error.0), reason)
}

/// `CUDA_ERROR_CONTAINED`, `CUDA_ERROR_TENSOR_MEMORY_LEAK` and `CUDA_ERROR_MPS_CLIENT_TERMINATED`, which cudarc does
/// not name for every version of CUDA.
const STICKY_SINCE_LATER: [u32; 3] = [226, 721, 810];

/// The errors after which the context is of no use any more are those of which the driver's manual says
/// that the process must be relaunched, or that the context must be destroyed.
fn kind(result: CUresult) -> DeviceErrorKind {
    use CUresult::*;
    match result {
        CUDA_ERROR_OUT_OF_MEMORY => DeviceErrorKind::OutOfMemory,
        CUDA_ERROR_NOT_SUPPORTED
        | CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUDA_ERROR_NOT_PERMITTED => DeviceErrorKind::Unsupported,
        CUDA_ERROR_INVALID_VALUE
        | CUDA_ERROR_INVALID_HANDLE
        | CUDA_ERROR_INVALID_CONTEXT
        | CUDA_ERROR_INVALID_DEVICE => DeviceErrorKind::InvalidArgument,
        CUDA_ERROR_DEINITIALIZED
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUDA_ERROR_MPS_RPC_FAILURE
        | CUDA_ERROR_EXTERNAL_DEVICE => DeviceErrorKind::Sticky,
        other if STICKY_SINCE_LATER.contains(&(other as u32)) => DeviceErrorKind::Sticky,
        _ => DeviceErrorKind::Other,
    }
}

/// An answer of the driver's, named by the contract's call.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    result.result().map_err(|error| failure(call, error))
}

/// The driver's number of a stream, which no other stream of the process ever has.
///
/// By its symbol: cudarc has the call for some versions of CUDA, and drivers since CUDA 12 have it.
///
/// # Errors
/// Returns an error if the driver has no such numbers, or does not know the stream.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn stream_id(
    call: &'static str,
    stream: sys::CUstream,
) -> Result<u64, DeviceError> {
    type GetId = unsafe extern "C" fn(sys::CUstream, *mut u64) -> CUresult;
    static GET_ID: OnceLock<Option<GetId>> = OnceLock::new();
    let found = GET_ID.get_or_init(|| {
        // SAFETY: as in `try_load`; it is loaded already.
        let load = |name: &&str| unsafe { libloading::Library::new(*name) }.ok();
        // For as long as the process, as cudarc has it.
        let library = Box::leak(Box::new(LIBRARIES.iter().find_map(load)?));
        // SAFETY: this is the symbol's type.
        let found = unsafe { library.get::<GetId>(b"cuStreamGetId\0") };
        found.ok().map(|symbol| *symbol)
    });
    let Some(get_id) = found else {
        let reason = "this driver has no numbers for streams: install one of CUDA 12 or later, or register a \
                      stream of cudarc's";
        return Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason));
    };
    let mut id = 0;
    // SAFETY: the stream is not destroyed; writes the number to the place given.
    check(call, unsafe { get_id(stream, &mut id) })?;
    Ok(id)
}

/// A visit to the driver on the pool's own account: the device's context is current, and no capture of
/// the user's is invalidated by what is called. Undone when dropped.
///
/// While a stream is captured in the global mode, a query of any event, on any thread in the default
/// mode, breaks the capture; in relaxed mode none does.
pub(super) struct Visit {
    mode: sys::CUstreamCaptureMode,
    /// What was current, if it was another context or none: it is left so. A context of ours that stayed
    /// current on some thread could be destroyed later, and what is destroyed must not be named again.
    context: Option<sys::CUcontext>,
}

impl Visit {
    pub(super) fn new(call: &'static str, device: &CudaContext) -> Result<Self, DeviceError> {
        let mine = device.cu_ctx();
        let mut current = std::ptr::null_mut();
        // SAFETY: writes the current context, or null, to the place given.
        check(call, unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current != mine {
            // SAFETY: the context lives for as long as the device holds it.
            check(call, unsafe { sys::cuCtxSetCurrent(mine) })?;
        }
        let context = (current != mine).then_some(current);
        let mut visit = Self {
            mode: sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            context,
        };
        exchange_mode(&mut visit.mode);
        Ok(visit)
    }
}

/// Swaps the thread's capture mode with the one given.
fn exchange_mode(mode: &mut sys::CUstreamCaptureMode) {
    // SAFETY: swaps the thread's mode with the one in place; nothing but a bad value could fail.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
}

impl Drop for Visit {
    fn drop(&mut self) {
        exchange_mode(&mut self.mode);
        if let Some(context) = self.context {
            // SAFETY: it was current when the visit began, and its owner does not destroy it meanwhile on
            // another thread: that thread's user would call the driver with it, too. Or it is none.
            let _ = unsafe { sys::cuCtxSetCurrent(context) };
        }
    }
}

/// Lets something of cudarc's go, perhaps with the context itself: cudarc makes that current for it, and
/// leaves it so. What was current before is current again afterwards. No capture is broken by it.
pub(super) fn let_go<T>(context: sys::CUcontext, owned: T) {
    let mut before = std::ptr::null_mut();
    // SAFETY: writes the current context, or null, to the place given.
    let asked = unsafe { sys::cuCtxGetCurrent(&mut before) };
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange_mode(&mut mode);
    drop(owned);
    exchange_mode(&mut mode);
    // If it was the context's own, that may be destroyed by now, and is current still if it is not.
    if asked == CUresult::CUDA_SUCCESS && before != context {
        // SAFETY: it was current above, or is none.
        let _ = unsafe { sys::cuCtxSetCurrent(before) };
    }
}
