//! Plain cudarc: memory of the driver's current pool, for applications without a pool of their own.

use crate::{MemoryBlock, StreamMemory};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, sys::CUresult};
use std::future::{Future, ready};
use std::sync::Arc;
use weirpool::device::DeviceAddress;

/// Memory that cudarc allocated with `cuMemAllocAsync`. Dropped, it is freed on its stream.
#[derive(Debug)]
pub struct DriverBlock {
    slice: CudaSlice<u8>,
    address: DeviceAddress,
}

impl DriverBlock {
    /// Returns the memory as cudarc's own type.
    pub fn into_slice(self) -> CudaSlice<u8> {
        self.slice
    }
}

impl MemoryBlock for DriverBlock {
    fn address(&self) -> DeviceAddress {
        self.address
    }

    fn size(&self) -> u64 {
        self.slice.num_bytes() as u64
    }
}

/// Allocates as cudarc does. Nothing waits: where memory is short, the future is ready with the driver's error. The per-thread
/// default stream is refused, since a block can be dropped by another thread.
// SAFETY: cudarc allocates on the stream, and frees there.
unsafe impl StreamMemory for Arc<CudaStream> {
    type Stream = Self;
    type Block = DriverBlock;
    type Error = DriverError;

    fn stream(&self) -> &Self {
        self
    }

    fn allocate(
        &self,
        bytes: u64,
    ) -> impl Future<Output = Result<DriverBlock, DriverError>> + Send {
        ready(self.try_allocate(bytes))
    }

    fn try_allocate(&self, bytes: u64) -> Result<DriverBlock, DriverError> {
        // The handle of the per-thread default stream, which is another stream on each thread.
        if self.cu_stream() as usize == 2 {
            CUresult::CUDA_ERROR_NOT_SUPPORTED.result()?;
        }
        // The driver refuses zero bytes.
        let bytes = bytes.max(1) as usize;
        // SAFETY: bytes have no invalid values; the trait promises none that are written.
        let slice = unsafe { self.alloc::<u8>(bytes) }?;
        let address = {
            let (address, _noted) = slice.device_ptr(self);
            DeviceAddress::from_bits(address)
        };
        Ok(DriverBlock { slice, address })
    }
}
