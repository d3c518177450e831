//! Contexts beside the one that is under test.

use cudarc::driver::sys::{CUcontext, CUdevice, CUresult};
use cudarc::driver::{CudaContext, result};
use std::ffi::c_uint;
use std::sync::Arc;

/// The driver under its names; cudarc has loaded it.
#[cfg(not(windows))]
const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const DRIVER: [&str; 2] = ["nvcuda.dll", "cuda.dll"];

/// Whether there is a driver, of whatever use.
pub(crate) fn has_driver() -> bool {
    driver_library().is_some()
}

fn driver_library() -> Option<libloading::Library> {
    let load = |name: &&str| {
        // SAFETY: the driver's initializers have no preconditions.
        unsafe { libloading::Library::new(*name) }.ok()
    };
    DRIVER.iter().find_map(load)
}

/// A further context of the same GPU, which is current on this thread from now on.
///
/// By its symbol: cudarc has the call in some versions of CUDA, and the driver in all of them.
pub(crate) fn another_context(context: &CudaContext) -> Arc<CudaContext> {
    type Create = unsafe extern "C" fn(*mut CUcontext, c_uint, CUdevice) -> CUresult;
    let (ordinal, device) = (context.ordinal(), context.cu_device());
    let library = driver_library().expect("the driver that is in use");
    // SAFETY: this is the symbol's type.
    let create = unsafe { library.get::<Create>(b"cuCtxCreate_v2\0") };
    let create = create.expect("a driver of CUDA 4 or later");
    let mut raw = std::ptr::null_mut();
    // SAFETY: writes the context to the place given.
    let created = unsafe { create(&mut raw, 0, device) };
    created.result().expect("a further context");
    // SAFETY: the context was made above, and no other code has it.
    let context = unsafe { CudaContext::from_raw_context(ordinal, device, raw) };
    context.expect("a context that works")
}

/// The context that is current on this thread, if any is.
pub(crate) fn current_context() -> Option<CUcontext> {
    result::ctx::get_current().expect("a driver that works")
}
