//! Address ranges and physical memory.

use super::CudaDevice;
use super::driver::{Visit, check};
use super::mapping::{Driver, Mapping, MemoryLocation, properties};
use cudarc::driver::CudaContext;
use cudarc::driver::sys;
#[cfg(doc)]
use weirpool_device::Device;
use weirpool_device::{Access, Chunk, DeviceError, DeviceErrorKind};

/// Asks the driver for the granularity of virtual memory, in bytes.
pub(super) fn granularity(context: &CudaContext) -> Result<u64, DeviceError> {
    let properties = properties(MemoryLocation::of(context));
    let mut step = 0;
    let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the call writes to `step`.
    let result =
        unsafe { sys::cuMemGetAllocationGranularity(&mut step, properties.as_ptr(), smallest) };
    check("open", result)?;
    Ok(step as u64)
}

impl CudaDevice {
    pub(super) fn memory_call(&self, call: &'static str) -> Result<Visit, DeviceError> {
        weirpool_device::assert_unlocked(call);
        self.visit(call)
    }

    pub(super) fn virtual_call(&self, call: &'static str) -> Result<Visit, DeviceError> {
        if !self.uses_virtual_memory() {
            let reason = "this device was opened without virtual memory; allocate plain memory";
            return Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason));
        }
        self.memory_call(call)
    }

    pub(super) fn reserve_addresses(&self, bytes: u64) -> Result<u64, DeviceError> {
        let _visit = self.virtual_call("reserve")?;
        let mut address = 0;
        // SAFETY: the call writes to `address`.
        let result = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
        check("reserve", result)?;
        Ok(address)
    }

    /// # Safety
    /// As [`Device::unreserve`].
    pub(super) unsafe fn free_addresses(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("unreserve")?;
        // SAFETY: the range was reserved and nothing is mapped in it, as the caller guarantees.
        check("unreserve", unsafe {
            sys::cuMemAddressFree(address, bytes as usize)
        })
    }

    pub(super) fn create_memory(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        #[cfg(target_os = "linux")]
        if self.inner.has_exportable_memory {
            return weirpool_device::Sharing::create_shareable(self, bytes);
        }
        let _visit = self.virtual_call("create")?;
        let properties = properties(MemoryLocation::of(&self.inner.context));
        let mut handle = 0;
        // SAFETY: the call writes to `handle`.
        let result =
            unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties.as_ptr(), 0) };
        check("create", result)?;
        Ok(Chunk(handle))
    }

    /// # Safety
    /// As [`Device::destroy`].
    pub(super) unsafe fn release_memory(&self, chunk: Chunk) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("destroy")?;
        // SAFETY: `create` made the chunk, and it is not mapped, as the caller guarantees.
        check("destroy", unsafe { sys::cuMemRelease(chunk.0) })
    }

    /// Maps a chunk and gives the device access, or does neither.
    ///
    /// # Safety
    /// As [`Device::map`].
    pub(super) unsafe fn map_memory(
        &self,
        address: u64,
        chunk: Chunk,
        bytes: u64,
        rights: Access,
    ) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("map")?;
        let mapping = Mapping {
            address,
            bytes,
            chunk,
            accessors: &[MemoryLocation::of(&self.inner.context)],
            rights,
        };
        // SAFETY: the range is reserved, and neither it nor the chunk is mapped, as the caller guarantees.
        unsafe { mapping.make(&Driver("map")) }
    }

    /// # Safety
    /// As [`Device::unmap`].
    pub(super) unsafe fn unmap_memory(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("unmap")?;
        // SAFETY: no work that touches the range is running or submitted, as the caller guarantees.
        check("unmap", unsafe { sys::cuMemUnmap(address, bytes as usize) })
    }
}
