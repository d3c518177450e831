//! Settings of the CUDA driver, and the compiler of kernels. The benchmarks and the inference example share this file.

use anyhow::{Context, bail};
use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc;
use std::sync::Arc;

/// Settings for the driver, where the user chose none. By default the streams of a context share 8 queues of the
/// hardware, and streams that share one wait for each other; and a kernel is loaded at its first launch, which may wait
/// for the device.
const SETTINGS: [(&str, &str); 2] = [
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_MODULE_LOADING", "EAGER"),
];

/// Sets the settings that the environment lacks. Call this before any thread is started.
pub(crate) fn prepare() {
    for (name, value) in SETTINGS {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread runs that could read or write the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Compiles and loads kernels.
///
/// # Errors
/// Returns an error if there is no NVRTC, or if NVRTC or the driver refuses the source.
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

/// Whether NVRTC can be loaded; cudarc panics where it cannot.
pub(crate) fn has_compiler() -> bool {
    // SAFETY: the library's initializers have no preconditions; cudarc loads it in the same way.
    unsafe { nvrtc::sys::is_culib_present() }
}
