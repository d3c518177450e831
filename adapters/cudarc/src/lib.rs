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
//!
//! A wrapper from `CudaContext::wrap_borrowed_stream` does not own its stream, and counts as retained from the first
//! allocation on it. So the stream's owner must not destroy it before the process ends: the contract of that function says the
//! same of whatever retains the wrapper.

use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{CudaStream, DeviceAllocator, DriverError};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::{AllocError, Pool, StreamError};
use weirpool_compat::{RawError, RawPool};

/// A pool as the allocator of a context. A stream of a kind that no pool supports, such as the per-thread default stream, is
/// left to the driver. Other streams that the pool refuses, such as those of another device, are an error.
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
            Err(error) => in_place_of_block(&error).map_or(Ok(None), |code| Err(DriverError(code))),
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

/// Returns the driver's code for an error of the pool, or `None` to leave the allocation to the driver.
fn in_place_of_block(error: &AllocError) -> Option<CUresult> {
    match error {
        AllocError::Stream(StreamError::Device(error))
            if error.kind() == DeviceErrorKind::Unsupported =>
        {
            None
        }
        AllocError::Stream(_) => Some(CUresult::CUDA_ERROR_INVALID_HANDLE),
        _ => Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirpool::device::DeviceError;

    #[test]
    fn only_an_unsupported_stream_is_left_to_the_driver() {
        let of_device = |kind| StreamError::Device(DeviceError::new("register", kind, "test"));
        let code = |error: StreamError| in_place_of_block(&error.into());
        assert_eq!(code(of_device(DeviceErrorKind::Unsupported)), None);
        for refused in [
            StreamError::ForeignDevice,
            of_device(DeviceErrorKind::InvalidArgument),
            of_device(DeviceErrorKind::Sticky),
        ] {
            let refused = code(refused);
            assert_eq!(refused, Some(CUresult::CUDA_ERROR_INVALID_HANDLE));
        }
        let exhausted = in_place_of_block(&AllocError::Closed);
        assert_eq!(exhausted, Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
}
