//! A pool below every `CudaSlice` of a context, by the patch of this folder:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use cudarc::driver::CudaContext;
//! use weirpool::{Pool, device::cuda::CudaDevice};
//! use weirpool_below_cudarc::PoolAllocator;
//!
//! let pool = Pool::builder(CudaDevice::new(0)?).capacity(8 << 30).build()?;
//! let context = CudaContext::new(0)?;
//! context.set_allocator(Arc::new(PoolAllocator::new(&pool, Duration::from_secs(5)))).expect("the first one");
//! let stream = context.new_stream()?;
//! let zeros = stream.alloc_zeros::<f32>(1 << 20)?; // of the pool: waits up to 5 s for memory
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The allocator keeps the context's streams that it has seen, and the context keeps the allocator: both live until the
//! process ends.

use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{CudaStream, DeviceAllocator, DriverError};
use std::sync::Arc;
use std::time::Duration;
use weirpool::{AllocError, Pool};
use weirpool_compat::{RawError, RawPool};

/// A pool as the allocator of a context. A stream that the pool cannot keep, such as the per-thread default stream, is left to
/// the driver.
#[derive(Debug)]
pub struct PoolAllocator {
    raw: RawPool,
    wait: Duration,
}

impl PoolAllocator {
    /// Makes a pool an allocator whose calls wait for memory up to `wait`, and block their thread meanwhile.
    pub fn new(pool: &Pool, wait: Duration) -> Self {
        let raw = RawPool::new(pool);
        Self { raw, wait }
    }
}

// SAFETY: the pool keeps the order of streams.
unsafe impl DeviceAllocator for PoolAllocator {
    fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        num_bytes: usize,
    ) -> Result<Option<CUdeviceptr>, DriverError> {
        match self.raw.allocate(stream, num_bytes as u64, self.wait) {
            Ok(address) => Ok(Some(address)),
            Err(AllocError::Stream(_)) => Ok(None),
            Err(_) => Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)),
        }
    }

    unsafe fn free(
        &self,
        stream: &Arc<CudaStream>,
        cu_device_ptr: CUdeviceptr,
    ) -> Result<bool, DriverError> {
        match self.raw.free(cu_device_ptr, stream) {
            Ok(()) => Ok(true),
            Err(RawError::NotGivenOut { .. }) => Ok(false),
            // The stream is not known, so that the pool did not look for the address.
            Err(_) if self.raw.pool().inspect().block_at(cu_device_ptr).is_none() => Ok(false),
            Err(_) => Err(DriverError(CUresult::CUDA_ERROR_INVALID_HANDLE)),
        }
    }
}
