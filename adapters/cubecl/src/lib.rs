//! A pool below the memory of cubecl-cuda, by the patch of this folder:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use weirpool::{Pool, device::cuda::CudaDevice};
//! use weirpool_below_cubecl::PoolAllocator;
//!
//! let device = CudaDevice::new(0)?;
//! let pool = Pool::builder(device.clone()).capacity(8 << 30).build()?;
//! let allocator = PoolAllocator::new(&device, &pool, Duration::from_millis(100));
//! assert!(cubecl_cuda::set_gpu_allocator(Arc::new(allocator)).is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! CubeCL's own pools sub-allocate pages, which are blocks of the pool then. `MemoryConfiguration::ExclusivePages` makes each
//! of its buffers a page.

use cubecl_cuda::GpuAllocator;
use cudarc::driver::DriverError;
use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};
use std::cell::Cell;
use std::time::Duration;
use weirpool::Pool;
use weirpool::device::cuda::{CudaDevice, ExternalStream};
use weirpool_compat::RawPool;

/// A pool as the allocator of cubecl-cuda, for programs that use one device.
#[derive(Debug)]
pub struct PoolAllocator {
    device: CudaDevice,
    raw: RawPool,
    wait: Duration,
}

impl PoolAllocator {
    /// Makes a pool an allocator. CubeCL keeps freed pages, and reclaims them when an allocation fails; then it tries once
    /// more. So a first call does not wait: without memory it fails at once. The second call waits up to `wait` for memory of other
    /// users of the pool, and blocks its thread meanwhile.
    ///
    /// Choose a short wait: the thread is the one that launches the kernels of all clients of the device, and memory that only
    /// it can release does not come while it waits.
    pub fn new(device: &CudaDevice, pool: &Pool, wait: Duration) -> Self {
        Self {
            device: device.clone(),
            raw: RawPool::new(pool),
            wait,
        }
    }

    fn stream(&self, stream: CUstream) -> Result<ExternalStream, DriverError> {
        // SAFETY: CubeCL's streams live as long as the storages that call this.
        let stream = unsafe { self.device.external_stream(stream) };
        stream.map_err(|_| DriverError(CUresult::CUDA_ERROR_INVALID_HANDLE))
    }
}

thread_local! {
    /// Whether this thread's last call failed without a wait.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the pool keeps the order of streams.
unsafe impl GpuAllocator for PoolAllocator {
    fn alloc(&self, stream: CUstream, size: u64) -> Result<CUdeviceptr, DriverError> {
        let stream = self.stream(stream)?;
        let mut allocated = self.raw.try_allocate(&stream, size);
        if allocated.is_ok() {
            HAS_FAILED.set(false);
        } else if HAS_FAILED.replace(!HAS_FAILED.get()) {
            allocated = self.raw.allocate(&stream, size, self.wait);
        }
        allocated.map_err(|_| DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY))
    }

    unsafe fn free(&self, stream: CUstream, ptr: CUdeviceptr) -> Result<(), DriverError> {
        let freed = self.raw.free(ptr, &self.stream(stream)?);
        freed.map_err(|_| DriverError(CUresult::CUDA_ERROR_INVALID_VALUE))
    }
}
