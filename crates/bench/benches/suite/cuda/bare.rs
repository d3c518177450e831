//! Copies without a pool.

use cudarc::driver::{DriverError, result, sys};
use std::sync::Arc;
use std::time::Instant;
use weirpool::device::cuda::CudaDevice;

const GIB: usize = 1 << 30;
const COPIES: usize = 8;

/// Returns the bandwidth of `cuMemcpyAsync` between one pinned allocation and one of the device, of 1 GiB, in GiB/s: to the host, and to
/// the device.
///
/// # Errors
/// Returns the driver's error.
pub(super) fn copies(device: &CudaDevice) -> Result<[f64; 2], DriverError> {
    device.context().bind_to_thread()?;
    let stream: Arc<_> = device.context().new_stream()?;
    let raw = stream.cu_stream();
    // SAFETY: both allocations are of 1 GiB, and live until the copies are complete.
    unsafe {
        let host = result::malloc_host(GIB, 0)?;
        let memory = result::malloc_sync(GIB)?;
        let mut measured = [0.0; 2];
        for (to_device, speed) in measured.iter_mut().enumerate() {
            let copies = |count| -> Result<f64, DriverError> {
                let begin = Instant::now();
                for _ in 0..count {
                    let host = host.cast();
                    match to_device {
                        0 => sys::cuMemcpyDtoHAsync_v2(host, memory, GIB, raw).result()?,
                        _ => sys::cuMemcpyHtoDAsync_v2(memory, host, GIB, raw).result()?,
                    }
                }
                stream.synchronize()?;
                Ok(count as f64 / begin.elapsed().as_secs_f64())
            };
            copies(1)?;
            *speed = copies(COPIES)?;
        }
        result::free_host(host)?;
        result::free_sync(memory)?;
        Ok(measured)
    }
}
