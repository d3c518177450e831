//! The driver: loaded before it is called, and called without side effects on the program's own use of it.

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weirpool_device::plain::{Arc, OnceLock};
use weirpool_device::{DeviceError, DeviceErrorKind};

/// cudarc looks for the driver under these names as well.
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

/// Returns a driver's error as an error of the contract.
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

/// Returns the kind of an error. It is sticky if the driver's manual says that the process must be restarted, or that
/// the context must be destroyed.
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

/// Returns the driver's error, if it is one, as an error of the contract's call.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    result.result().map_err(|error| failure(call, error))
}

/// Returns a function of the driver by its symbol: cudarc has some functions only for some versions of CUDA.
///
/// # Safety
/// `F` is the type of the function of that name.
unsafe fn symbol<F: Copy>(name: &[u8]) -> Option<F> {
    // SAFETY: as in `try_load`; it is loaded already.
    let load = |name: &&str| unsafe { libloading::Library::new(*name) }.ok();
    // Leaked, so that it stays for the life of the process, as cudarc's own does.
    let library = Box::leak(Box::new(LIBRARIES.iter().find_map(load)?));
    // SAFETY: the caller guarantees the type.
    let found = unsafe { library.get::<F>(name) };
    found.ok().map(|symbol| *symbol)
}

/// Makes later work of a stream wait until the word at a device address reaches `value`, counted in a circle: until
/// `word - value`, as a signed number, is not negative. Returns `None` if the driver or the device has no such wait.
///
/// Drivers have the call since CUDA 11.7.
///
/// # Safety
/// The stream is usable, its context current, and the word is memory that the device can read until the stream has
/// passed the wait.
pub(super) unsafe fn wait_for_word(
    stream: sys::CUstream,
    address: sys::CUdeviceptr,
    value: u32,
) -> Option<CUresult> {
    type WaitValue = unsafe extern "C" fn(sys::CUstream, sys::CUdeviceptr, u32, u32) -> CUresult;
    /// `CU_STREAM_WAIT_VALUE_GEQ`
    const REACHED: u32 = 0;
    static WAIT: OnceLock<Option<WaitValue>> = OnceLock::new();
    // SAFETY: this is the symbol's type.
    let wait = WAIT.get_or_init(|| unsafe { symbol(b"cuStreamWaitValue32_v2\0") });
    // SAFETY: the caller guarantees the stream and the word.
    let answer = wait.map(|wait| unsafe { wait(stream, address, value, REACHED) })?;
    (answer != CUresult::CUDA_ERROR_NOT_SUPPORTED).then_some(answer)
}

/// The capture that a stream is part of.
pub(super) struct CaptureInfo {
    /// The driver's number of the capture, which no other capture of the process ever has.
    pub(super) id: u64,
    /// The graph that is being captured. The driver owns it.
    pub(super) graph: sys::CUgraph,
}

/// Returns the capture that a stream is part of, if it is part of one that is not invalidated.
///
/// # Errors
/// Returns an error if the driver lacks the function, or does not know the stream.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn capture_info(
    call: &'static str,
    stream: sys::CUstream,
) -> Result<Option<CaptureInfo>, DeviceError> {
    let (nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller guarantees the stream; the call skips null pointers.
    unsafe { capture_info_with(call, stream, nodes, count) }
}

/// Returns the capture that a stream is part of, as [`capture_info`] does, and the nodes that its next work comes after.
///
/// # Errors
/// Returns the errors of [`capture_info`], and one if the stream comes after a node in another sense than that it is
/// complete.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn frontier(
    call: &'static str,
    stream: sys::CUstream,
) -> Result<Option<(CaptureInfo, Vec<sys::CUgraphNode>)>, DeviceError> {
    let (mut nodes, mut count) = (std::ptr::null(), 0);
    // SAFETY: the caller guarantees the stream; the call writes to the two variables.
    let info = unsafe { capture_info_with(call, stream, &mut nodes, &mut count) }?;
    Ok(info.map(|info| {
        let nodes = match count {
            0 => &[],
            // SAFETY: the driver's array lives until the next call that names the stream.
            _ => unsafe { std::slice::from_raw_parts(nodes, count) },
        };
        (info, nodes.to_vec())
    }))
}

/// # Safety
/// The stream is not destroyed. The pointers are null or may be written to.
unsafe fn capture_info_with(
    call: &'static str,
    stream: sys::CUstream,
    nodes: *mut *const sys::CUgraphNode,
    count: *mut usize,
) -> Result<Option<CaptureInfo>, DeviceError> {
    type GetInfo = unsafe extern "C" fn(
        sys::CUstream,
        *mut sys::CUstreamCaptureStatus,
        *mut u64,
        *mut sys::CUgraph,
        *mut *const sys::CUgraphNode,
        *mut usize,
    ) -> CUresult;
    static GET_INFO: OnceLock<Option<GetInfo>> = OnceLock::new();
    // SAFETY: this is the symbol's type.
    let find = || unsafe { symbol::<GetInfo>(b"cuStreamGetCaptureInfo_v2\0") };
    let Some(get_info) = GET_INFO.get_or_init(find) else {
        let reason = "this driver does not tell which graph is being captured: install one of CUDA 11.3 or later";
        return Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason));
    };
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, std::ptr::null_mut());
    // SAFETY: the caller guarantees the stream and the pointers; the call writes to the three variables.
    let answer = unsafe { get_info(stream, &mut status, &mut id, &mut graph, nodes, count) };
    check(call, answer)?;
    let is_active = status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    Ok(is_active.then_some(CaptureInfo { id, graph }))
}

/// Returns the nodes that a node of a graph comes after.
///
/// # Errors
/// Returns an error if the driver lacks the function, or if the node comes after one in another sense than that it is
/// complete.
///
/// # Safety
/// The node is one of a graph that exists.
pub(super) unsafe fn nodes_before(
    call: &'static str,
    node: sys::CUgraphNode,
) -> Result<Vec<sys::CUgraphNode>, DeviceError> {
    type GetDependencies =
        unsafe extern "C" fn(sys::CUgraphNode, *mut sys::CUgraphNode, *mut usize) -> CUresult;
    static GET: OnceLock<Option<GetDependencies>> = OnceLock::new();
    // SAFETY: this is the symbol's type.
    let find = || unsafe { symbol::<GetDependencies>(b"cuGraphNodeGetDependencies\0") };
    let get = GET.get_or_init(find).ok_or_else(|| {
        let reason = "this driver does not tell the order of captured work";
        DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
    })?;
    // Most nodes come after one or two.
    let mut nodes = vec![std::ptr::null_mut(); 4];
    loop {
        let mut count = nodes.len();
        // SAFETY: the caller guarantees the node; the call writes at most `count` nodes.
        check(call, unsafe { get(node, nodes.as_mut_ptr(), &mut count) })?;
        if count < nodes.len() {
            nodes.truncate(count);
            return Ok(nodes);
        }
        nodes.resize(2 * count, std::ptr::null_mut());
    }
}

/// Makes the next work of a captured stream come after nodes of its graph: besides what it comes after, or in place of it.
///
/// # Errors
/// Returns an error if the driver lacks the function, or the stream is not being captured.
///
/// # Safety
/// The stream is not destroyed, and the nodes are of the graph that it is captured into.
pub(super) unsafe fn set_frontier(
    call: &'static str,
    stream: sys::CUstream,
    nodes: &[sys::CUgraphNode],
    in_place: bool,
) -> Result<(), DeviceError> {
    type Update = unsafe extern "C" fn(
        sys::CUstream,
        *const sys::CUgraphNode,
        usize,
        std::ffi::c_uint,
    ) -> CUresult;
    static UPDATE: OnceLock<Option<Update>> = OnceLock::new();
    // SAFETY: this is the symbol's type.
    let find = || unsafe { symbol::<Update>(b"cuStreamUpdateCaptureDependencies\0") };
    let update = UPDATE.get_or_init(find).ok_or_else(|| {
        let reason = "this driver does not order the streams of a capture by their work: install one of CUDA 11.3 or later";
        DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
    })?;
    use sys::CUstreamUpdateCaptureDependencies_flags as Flags;
    let flags = match in_place {
        true => Flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES,
        false => Flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES,
    };
    // SAFETY: the caller guarantees the stream and the nodes.
    check(call, unsafe {
        update(stream, nodes.as_ptr(), nodes.len(), flags as _)
    })
}

/// Returns the driver's number of a stream, which no other stream of the process ever has.
///
/// Drivers have the call since CUDA 12.
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
    // SAFETY: this is the symbol's type.
    let found = GET_ID.get_or_init(|| unsafe { symbol(b"cuStreamGetId\0") });
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

/// A visit to the driver for a call of the pool's own: the device's context is current, and the call invalidates no
/// capture of the program. Dropping the visit restores the previous state.
///
/// While a stream is captured in the global mode, a query of any event on any thread in the default mode invalidates
/// the capture. In the relaxed mode no query does.
pub(super) struct Visit {
    mode: sys::CUstreamCaptureMode,
    /// The context that was current, if it was another one or none. It is restored. If our context stayed current on a
    /// thread, it could be destroyed later, and a destroyed context must not be used.
    context: Option<sys::CUcontext>,
}

impl Visit {
    pub(super) fn new(call: &'static str, device: &CudaContext) -> Result<Self, DeviceError> {
        Self::of(call, device.cu_ctx())
    }

    /// Begins a visit to a context, which lives until it is over.
    pub(super) fn of(call: &'static str, mine: sys::CUcontext) -> Result<Self, DeviceError> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes the current context, or null, to the place given.
        check(call, unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current != mine {
            // SAFETY: the context lives for as long as the device holds it.
            check(call, unsafe { sys::cuCtxSetCurrent(mine) })?;
        }
        let context = (current != mine).then_some(current);
        let mut visit = Self::in_any_context();
        visit.context = context;
        Ok(visit)
    }

    /// Begins a visit for a call on a stream that has a context of its own: the current one does not matter.
    #[inline(always)]
    pub(super) fn in_any_context() -> Self {
        let mut visit = Self {
            mode: sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            context: None,
        };
        exchange_mode(&mut visit.mode);
        visit
    }
}

/// Exchanges the thread's capture mode with `mode`.
fn exchange_mode(mode: &mut sys::CUstreamCaptureMode) {
    // SAFETY: exchanges the thread's mode with `mode`; only an invalid value could fail.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
}

impl Drop for Visit {
    #[inline(always)]
    fn drop(&mut self) {
        exchange_mode(&mut self.mode);
        if let Some(context) = self.context {
            // SAFETY: it was current when the visit began, and its owner does not destroy it meanwhile on
            // another thread: that thread's user would call the driver with it, too. Or it is none.
            let _ = unsafe { sys::cuCtxSetCurrent(context) };
        }
    }
}

/// Drops an object of cudarc, perhaps with the context itself. For the drop, cudarc makes the context current and
/// leaves it current. Afterwards this makes the previous context current again. No capture is invalidated.
pub(super) fn let_go<T>(context: sys::CUcontext, owned: T) {
    let mut before = std::ptr::null_mut();
    // SAFETY: writes the current context, or null, to the place given.
    let asked = unsafe { sys::cuCtxGetCurrent(&mut before) };
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange_mode(&mut mode);
    drop(owned);
    exchange_mode(&mut mode);
    // If the previous context was this one, it may be destroyed by now; and if it is not, it is still current.
    if asked == CUresult::CUDA_SUCCESS && before != context {
        // SAFETY: it was current above, or is none.
        let _ = unsafe { sys::cuCtxSetCurrent(before) };
    }
}
