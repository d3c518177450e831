//! What examples ask of the driver, and of the compiler of kernels.

use anyhow::{Context, bail};
use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc;
use std::sync::Arc;

/// What is asked of the driver, for who has not said otherwise. By default the streams of a context
/// share 8 queues of the hardware, and those that share one wait for each other; and a kernel is loaded
/// when it is first launched, which may wait for the device.
const SETTINGS: [(&str, &str); 2] = [
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_MODULE_LOADING", "EAGER"),
];

/// Asks for the settings. To be called first of all, while there is no other thread.
pub(crate) fn prepare() {
    for (name, value) in SETTINGS {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread runs that could read or write the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Kernels, compiled and loaded.
///
/// # Errors
/// When there is no NVRTC, or it or the driver refuses the source.
pub(crate) fn compile(context: &Arc<CudaContext>, source: &str) -> anyhow::Result<Arc<CudaModule>> {
    if !has_compiler() {
        bail!(
            "kernels need NVRTC, which was not found: install the CUDA toolkit (or the package \
             nvidia-cuda-nvrtc of PyPI), and have LD_LIBRARY_PATH name the folder of libnvrtc.so"
        );
    }
    let compiled = nvrtc::compile_ptx(source).context("NVRTC cannot compile the kernels")?;
    let module = context.load_module(compiled);
    module.context("the driver cannot load the kernels: is NVRTC newer than it?")
}

/// Whether there is an NVRTC; cudarc panics where there is none.
pub(crate) fn has_compiler() -> bool {
    // SAFETY: the library's initializers have no preconditions; cudarc loads it in the same way.
    unsafe { nvrtc::sys::is_culib_present() }
}
