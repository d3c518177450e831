//! PyTorch's memory from weirpool: a C library for `torch.cuda.memory.CUDAPluggableAllocator`.
//!
//! ```text
//! cargo build --release --features cuda --example pytorch   # target/release/examples/libpytorch.so
//! python3 examples/pytorch/train_and_serve.py
//! ```
//!
//! Each device has a pool, made when memory of it is first asked for, in the context that PyTorch works in. An
//! allocation blocks until there is memory, for a bounded time ([`settings`]); a free never does. What a stream
//! freed it has back at once, and others once that is safe: PyTorch's own allocator keeps it for the stream that
//! it was first allocated on.
//!
//! PyTorch (2.11 at least) does not look at what its allocator returns: a null pointer becomes a tensor, and a
//! kernel faults on it. So [`weirpool_alloc_or_throw`] throws what C++ catches, and Python has a `RuntimeError`
//! with the reason. [`weirpool_alloc`] is for those who do look. `Tensor.record_stream` does nothing unless it is
//! told of [`weirpool_record_stream`]; the script shows how.
//!
//! What PyTorch cannot do with any allocator of this kind: its own figures (`memory_stats`, `memory_allocated`,
//! `max_memory_reserved`, `reset_peak_memory_stats`, `memory_snapshot`), which raise; CUDA graphs, whose memory
//! would be given to others between two replays; tensors shared with other processes. `empty_cache` does nothing.
//!
//! | module | what it is for |
//! |---|---|
//! | [`settings`] | what the environment says |
//! | [`device_pool`] | the pools of the devices, by addresses and handles |
//! | [`exception`] | what C++ catches |
//! | [`fork`] | whether this process is a child of the one that has the memory |
//! | [`report`] | lines on stderr |

mod device_pool;
mod exception;
mod fork;
mod report;
mod settings;

use cudarc::driver::sys::CUstream;
use device_pool::DevicePool;
use report::{Once, tell};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Allocates `size` bytes of a device for use in the order of a stream, once there is memory. Null for no bytes,
/// and on failure, with the reason on stderr.
///
/// ```c
/// void* weirpool_alloc(ssize_t size, int device, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream is one of the device's, and not destroyed before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_alloc(
    size: usize,
    device: c_int,
    stream: CUstream,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let allocated = guarded(|| unsafe { allocate(size, device, stream) });
    allocated.unwrap_or_else(|reason| {
        tell(&reason);
        std::ptr::null_mut()
    })
}

/// The same for callers in C++: on failure it throws a `std::runtime_error` with the reason.
///
/// # Safety
/// As [`weirpool_alloc`]; and an exception may pass through all frames up to one that catches it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weirpool_alloc_or_throw(
    size: usize,
    device: c_int,
    stream: CUstream,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    match guarded(|| unsafe { allocate(size, device, stream) }) {
        Ok(address) => address,
        // SAFETY: as the caller promises.
        Err(reason) => unsafe { exception::throw(reason) },
    }
}

/// Frees what was allocated, in the order of a stream: work that was given to that before may still use it. A
/// null pointer is nothing to free. Another address that is not allocated here stays as it is; the first is told
/// of on stderr.
///
/// ```c
/// void weirpool_free(void* address, ssize_t size, int device, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream is not destroyed before this returns, nor is any other that the memory was used on.
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
        // SAFETY: as the caller promises.
        Some(pool) => unsafe { pool.free(address as u64, stream) },
        None => Err(format!(
            "{address:p}: nothing was allocated on device {device}"
        )),
    });
    if let Err(reason) = freed {
        FIRST.tell(&format!("not freed: {reason}"));
    }
}

/// Says that work of a further stream will use what is allocated at `address`: it is not reused before that work
/// is complete, when it is freed. For `set_record_stream_fn`, so that `Tensor.record_stream` does it.
///
/// ```c
/// void weirpool_record_stream(void* address, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream is not destroyed before the memory is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_record_stream(address: *mut c_void, stream: CUstream) {
    static FIRST: Once = Once::new();
    if address.is_null() || fork::is_child() {
        return;
    }
    // SAFETY: as the caller promises.
    let noted = guarded(|| unsafe { device_pool::record_stream(address as u64, stream) });
    if let Err(reason) = noted {
        FIRST.tell(&format!("a use on a further stream is not known: {reason}"));
    }
}

/// The most bytes that the device's pool held at a time; 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_peak_reserved(device: c_int) -> u64 {
    figure(device, |pool| pool.statistics().reserved.high)
}

/// The most bytes that were allocated at a time.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_peak_used(device: c_int) -> u64 {
    figure(device, |pool| pool.statistics().used.high)
}

/// Allocations that waited on the host, and got their memory.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_waits(device: c_int) -> u64 {
    figure(device, |pool| pool.statistics().waits.served)
}

/// All their waits together, in microseconds.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_waited_us(device: c_int) -> u64 {
    figure(device, |pool| {
        let waited = pool.statistics().waits.times.total().as_micros();
        waited.try_into().unwrap_or(u64::MAX)
    })
}

/// Times that a stream was made to wait for another, on the device, before it had that one's memory.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_device_waits(device: c_int) -> u64 {
    figure(device, |pool| pool.statistics().device_waits)
}

/// Allocations that failed.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_failures(device: c_int) -> u64 {
    figure(device, DevicePool::failures)
}

/// # Safety
/// As [`weirpool_alloc`].
unsafe fn allocate(size: usize, device: c_int, stream: CUstream) -> Result<*mut c_void, String> {
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    let pool = device_pool::open(device)?;
    // SAFETY: as the caller promises.
    let address = unsafe { pool.allocate(size as u64, stream) };
    let address = address.map_err(|reason| format!("{size} bytes on device {device}: {reason}"))?;
    Ok(address as *mut c_void)
}

fn figure(device: c_int, read: impl FnOnce(&DevicePool) -> u64) -> u64 {
    if fork::is_child() {
        return 0;
    }
    let read = guarded(|| Ok(device_pool::opened(device).map_or(0, read)));
    read.unwrap_or(0)
}

/// No panic goes out to callers in C.
fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let panicked = |_| Err("weirpool panicked, which is a defect of it".to_owned());
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests;
