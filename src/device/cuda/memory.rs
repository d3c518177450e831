//! Address ranges, physical memory, and plain memory.

use super::CudaDevice;
use super::driver::{Visit, check};
use crate::device::{DeviceError, DeviceErrorKind, PhysicalHandle};
use cudarc::driver::CudaContext;
use cudarc::driver::sys;
use std::ffi::c_int;

/// The kind of memory that handles are: of this device, in no form that another process could open.
fn properties(context: &CudaContext) -> sys::CUmemAllocationProp {
    // SAFETY: a structure of numbers and pointers, all of which may be zero.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(context);
    properties
}

fn location(context: &CudaContext) -> sys::CUmemLocation {
    // SAFETY: as above.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // The field after the type has other names in other versions, and the same place.
    let fields = std::ptr::from_mut(&mut location).cast::<c_int>();
    // SAFETY: the structure is the type followed by the device's number, each as large as a `c_int`.
    unsafe { fields.add(1).write(context.cu_device()) };
    location
}

const _: () = assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>());

/// The step of virtual memory, in bytes.
pub(super) fn granularity(context: &CudaContext) -> Result<u64, DeviceError> {
    let mut step = 0;
    let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: writes the step to the place given.
    let result =
        unsafe { sys::cuMemGetAllocationGranularity(&mut step, &properties(context), smallest) };
    check("open", result)?;
    Ok(step as u64)
}

/// How plain memory lies that the driver did not align by itself: its own address, by the aligned one.
pub(super) type Misaligned = std::collections::HashMap<u64, u64>;

impl CudaDevice {
    fn memory_call(&self, call: &'static str) -> Result<Visit, DeviceError> {
        crate::sync::assert_unlocked(call);
        self.visit(call)
    }

    fn virtual_call(&self, call: &'static str) -> Result<Visit, DeviceError> {
        if !self.uses_virtual_memory() {
            let reason = "this device is used without virtual memory";
            return Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason));
        }
        self.memory_call(call)
    }

    pub(super) fn reserve_addresses(&self, bytes: u64) -> Result<u64, DeviceError> {
        let _visit = self.virtual_call("reserve")?;
        let mut address = 0;
        // SAFETY: writes the address to the place given.
        let result = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
        check("reserve", result)?;
        Ok(address)
    }

    pub(super) fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("unreserve")?;
        // SAFETY: the driver refuses what was not reserved, or has something mapped.
        check("unreserve", unsafe {
            sys::cuMemAddressFree(address, bytes as usize)
        })
    }

    pub(super) fn create_memory(&self, bytes: u64) -> Result<PhysicalHandle, DeviceError> {
        let _visit = self.virtual_call("create")?;
        let properties = properties(&self.inner.context);
        let mut handle = 0;
        // SAFETY: writes the handle to the place given.
        let result = unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties, 0) };
        check("create", result)?;
        Ok(PhysicalHandle(handle))
    }

    pub(super) fn release_memory(&self, handle: PhysicalHandle) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("destroy")?;
        // SAFETY: by the contract the handle is one of `create`'s, and not mapped.
        check("destroy", unsafe { sys::cuMemRelease(handle.0) })
    }

    /// Maps, and gives the device access. Where the second fails the first is undone.
    pub(super) fn map_memory(
        &self,
        address: u64,
        handle: PhysicalHandle,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("map")?;
        let size = bytes as usize;
        // SAFETY: by the contract the range is reserved, and nothing is mapped there.
        check("map", unsafe {
            sys::cuMemMap(address, size, 0, handle.0, 0)
        })?;
        let access = sys::CUmemAccessDesc {
            location: location(&self.inner.context),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range was just mapped; one description is given.
        let result = unsafe { sys::cuMemSetAccess(address, size, &access, 1) };
        check("map", result).inspect_err(|_| {
            // SAFETY: nobody was told of the mapping.
            let _ = unsafe { sys::cuMemUnmap(address, size) };
        })
    }

    pub(super) fn unmap_memory(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("unmap")?;
        // SAFETY: by the contract no work that touches the range is running or submitted.
        check("unmap", unsafe { sys::cuMemUnmap(address, bytes as usize) })
    }

    pub(super) fn allocate_plain(&self, bytes: u64) -> Result<u64, DeviceError> {
        let _visit = self.memory_call("allocate")?;
        let step = self.inner.facts.step();
        let address = allocate(bytes)?;
        if address % step == 0 {
            return Ok(address);
        }
        // Not promised by the driver, and not seen for whole steps.
        // SAFETY: nobody was told of it.
        check("allocate", unsafe { sys::cuMemFree_v2(address) })?;
        let own = allocate(bytes + step)?;
        let address = own.next_multiple_of(step);
        self.inner.misaligned.lock().insert(address, own);
        Ok(address)
    }

    /// Waits for all work of the device.
    pub(super) fn free_plain(&self, address: u64) -> Result<(), DeviceError> {
        let _visit = self.memory_call("free")?;
        let own = self.inner.misaligned.lock().get(&address).copied();
        // SAFETY: the driver refuses what is not the beginning of an allocation.
        check("free", unsafe { sys::cuMemFree_v2(own.unwrap_or(address)) })?;
        self.inner.misaligned.lock().remove(&address);
        Ok(())
    }
}

fn allocate(bytes: u64) -> Result<u64, DeviceError> {
    let mut address = 0;
    // SAFETY: writes the address to the place given.
    check("allocate", unsafe {
        sys::cuMemAlloc_v2(&mut address, bytes as usize)
    })?;
    Ok(address)
}
