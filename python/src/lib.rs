//! The native part of weirpool's package for Python.
//!
//! The shared object is the Python module `weirpool._native` (feature `module`), and a C library: PyTorch's allocator calls
//! its functions, through `weirpool/torch/allocator.cpp` or through `torch.cuda.memory.CUDAPluggableAllocator`.
//!
//! Each device has a pool. It is created at the first allocation on the device, in the context that PyTorch uses. An
//! allocation blocks until memory is available, for a bounded time ([`settings`]); a free never blocks. A stream can
//! reuse memory it freed immediately, and other streams once that is safe. PyTorch's own allocator keeps memory for the
//! stream that it was first allocated on.
//!
//! PyTorch (at least 2.11) does not check what a pluggable allocator returns: a null pointer becomes a tensor, and a
//! kernel faults on it. So [`weirpool_alloc_or_throw`] throws an exception that C++ catches and Python raises as a
//! `RuntimeError` with the reason. [`weirpool_alloc`] is for callers that check for null.
//!
//! | module | purpose |
//! |---|---|
//! | `module` | the functions for Python, with the feature `module` |
//! | [`settings`] | settings from the environment |
//! | [`device_pool`] | the pool of each device, used by addresses and stream handles |
//! | [`figures`] | the figures of a pool |
//! | [`graphs`] | the memory pools of graphs |
//! | [`checkpoints`] | checkpoints of these pools |
//! | [`exception`] | the exception that C++ catches |
//! | [`fork`] | detection of a process that was forked from the one with the memory |
//! | [`dlpack`] | tensors for other libraries |
//! | [`handles`] | PyTorch's own handles of shared memory, on Linux |
//! | `sharing` | tensors between processes, on Linux |
//! | [`torch`] | the functions that PyTorch's class calls |
//! | [`report`] | messages on stderr |
//! | [`active`] | the reservations, tags and regions that allocations draw from |
//! | [`waiting`] | requests that are awaited |
//! | [`regions`] | memory that is suspended and resumed |
//! | [`evictables`] | tensors that the pool may take back |
//! | `service` | the functions for Python services, with the feature `module` |
//! | `region` | regions for Python, with the feature `module` |

#![cfg_attr(
    not(feature = "module"),
    allow(dead_code, reason = "called from Python")
)]

mod active;
pub mod checkpoints;
mod device_pool;
pub mod dlpack;
mod evictables;
mod exception;
mod figures;
mod fork;
mod graphs;
#[cfg(target_os = "linux")]
pub mod handles;
#[cfg(feature = "module")]
mod module;
#[cfg(feature = "module")]
mod region;
mod regions;
mod report;
#[cfg(feature = "module")]
mod service;
mod settings;
#[cfg(target_os = "linux")]
pub mod sharing;
mod threads;
pub mod torch;
mod waiting;

use cudarc::driver::sys::CUstream;
use device_pool::DevicePool;
use figures::Figures;
pub use graphs::MempoolId;
use report::{Once, print};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Allocates `size` bytes of a device for use in the order of a stream, and waits until memory is available. Returns
/// null for zero bytes, and on failure, with the reason on stderr.
///
/// ```c
/// void* weirpool_alloc(ssize_t size, int device, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream must belong to the device, and must not be destroyed before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_alloc(
    size: usize,
    device: c_int,
    stream: CUstream,
) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    let allocated = guarded(|| unsafe { allocate(size, device, stream) });
    allocated.unwrap_or_else(|reason| {
        print(&reason);
        std::ptr::null_mut()
    })
}

/// Allocates as [`weirpool_alloc`] does, for callers in C++. On failure it throws a `std::runtime_error` with the
/// reason.
///
/// # Safety
/// The conditions of [`weirpool_alloc`] apply. All frames up to the one that catches the exception must allow unwinding.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weirpool_alloc_or_throw(
    size: usize,
    device: c_int,
    stream: CUstream,
) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    match guarded(|| unsafe { allocate(size, device, stream) }) {
        Ok(address) => address,
        // SAFETY: guaranteed by the caller.
        Err(reason) => unsafe { exception::throw(reason) },
    }
}

/// Frees memory in the order of a stream: work that was submitted to the stream before may still use it. A null pointer
/// has no effect. An address that is not allocated here is ignored; the first one is reported on stderr.
///
/// ```c
/// void weirpool_free(void* address, ssize_t size, int device, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream must not be destroyed before this returns, nor any other stream that the memory was used on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_free(
    address: *mut c_void,
    _size: usize,
    device: c_int,
    stream: CUstream,
) {
    static FIRST: Once = Once::new();
    if address.is_null() || fork::is_child() {
        return;
    }
    let freed = guarded(|| match device_pool::opened(device) {
        // SAFETY: guaranteed by the caller.
        Some(pool) => unsafe { pool.free(address as u64, stream) },
        None => Err(format!(
            "{address:p}: nothing was allocated on device {device}"
        )),
    });
    if let Err(reason) = freed {
        FIRST.print(&format!("not freed: {reason}"));
    }
}

/// Records that work of another stream uses the memory at `address`: after its free, the memory is not reused before
/// that work is complete. Pass this function to `set_record_stream_fn`, so that `Tensor.record_stream` calls it.
///
/// ```c
/// void weirpool_record_stream(void* address, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream must not be destroyed before the memory is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_record_stream(address: *mut c_void, stream: CUstream) {
    static FIRST: Once = Once::new();
    if address.is_null() || fork::is_child() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    let noted = guarded(|| unsafe { device_pool::record_stream(address as u64, stream) });
    if let Err(reason) = noted {
        FIRST.print(&format!(
            "a use on another stream was not recorded: {reason}"
        ));
    }
}

/// Notes that a stream is never destroyed, such as the streams of PyTorch's own pool. A free on such a stream records
/// no event, and calls do not ask the driver which stream it is.
///
/// ```c
/// void weirpool_keep_stream(int device, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream must belong to the device, and must never be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_keep_stream(device: c_int, stream: CUstream) {
    static FIRST: Once = Once::new();
    if fork::is_child() {
        return;
    }
    let kept = guarded(|| {
        let pool = device_pool::open(device)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pool.keep_stream(stream) }.map_err(|error| error.to_string())
    });
    if let Err(reason) = kept {
        FIRST.print(&format!(
            "stream {stream:p} is treated as one that may be destroyed: {reason}"
        ));
    }
}

/// Announces that this thread is about to begin a capture, whose allocations come from the memory of a pool of graphs.
/// Pass it to `set_begin_allocate_to_pool`.
///
/// ```cpp
/// void weirpool_begin_allocate_to_pool(int device, c10::MempoolId_t id, std::function<bool(cudaStream_t)> filter);
/// ```
///
/// The filter recognises the streams of the capture. It is passed by reference, and not called: the driver reports
/// which capture a stream is part of.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_begin_allocate_to_pool(
    device: c_int,
    id: MempoolId,
    _filter: *const c_void,
) {
    let begun = guarded(|| {
        let pool = device_pool::open(device)?;
        pool.graphs.begin(pool, id);
        Ok(())
    });
    if let Err(reason) = begun {
        print(&format!(
            "no memory for graphs on device {device}: {reason}"
        ));
    }
}

/// Notes the end of a capture. Pass it to `set_end_allocate_to_pool_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_end_allocate_to_pool(device: c_int, id: MempoolId) {
    with_graphs(device, |pool| pool.graphs.end(id));
}

/// Adds an owner to a pool of graphs. [`weirpool_release_pool`] removes it.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_retain_pool(device: c_int, id: MempoolId) {
    let retained = guarded(|| {
        let pool = device_pool::open(device)?;
        pool.graphs.retain(pool, id);
        Ok(())
    });
    if let Err(reason) = retained {
        print(&format!(
            "no memory for graphs on device {device}: {reason}"
        ));
    }
}

/// Returns the number of owners of a pool of graphs.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_pool_uses(device: c_int, id: MempoolId) -> usize {
    figure(device, |pool| pool.graphs.uses(id) as u64) as usize
}

/// Removes an owner from a pool of graphs, such as a graph that was deleted. Pass it to `set_release_pool`.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_release_pool(device: c_int, id: MempoolId) {
    with_graphs(device, |pool| pool.graphs.release(id));
}

/// # Safety
/// The conditions of [`weirpool_alloc`] apply.
unsafe fn allocate(size: usize, device: c_int, stream: CUstream) -> Result<*mut c_void, String> {
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    let pool = device_pool::open(device)?;
    // SAFETY: guaranteed by the caller.
    let address = unsafe { pool.allocate(size as u64, stream) };
    let address = address.map_err(|error| {
        let reason = pool.explained(&error);
        format!("{size} bytes on device {device}: {reason}")
    })?;
    Ok(address as *mut c_void)
}

fn figure(device: c_int, read: impl FnOnce(&DevicePool) -> u64) -> u64 {
    if fork::is_child() {
        return 0;
    }
    let read = guarded(|| Ok(device_pool::opened(device).map_or(0, read)));
    read.unwrap_or(0)
}

fn with_graphs(device: c_int, call: impl FnOnce(&DevicePool)) {
    if fork::is_child() {
        return;
    }
    let called = guarded(|| {
        if let Some(pool) = device_pool::opened(device) {
            call(pool);
        }
        Ok(())
    });
    if let Err(reason) = called {
        print(&reason);
    }
}

/// Calls a function and turns a panic into an error, since panics must not reach callers in C.
fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let panicked = |_| Err("weirpool panicked; this is a bug in weirpool".to_owned());
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

/// Returns the figures of a device's pool.
fn figures_of(device: c_int) -> Figures {
    if fork::is_child() {
        return Figures::default();
    }
    let read = guarded(|| Ok(device_pool::opened(device).map(Figures::of)));
    read.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests;
