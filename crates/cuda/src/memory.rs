//! Address ranges and physical memory.

use super::CudaDevice;
use super::driver::{Visit, check};
use super::mapping::{Driver, Mapping};
use cudarc::driver::CudaContext;
use cudarc::driver::sys;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use weirpool_device::{Chunk, DeviceError, DeviceErrorKind};

/// Where memory lies, as the driver is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// On the device of that number.
    Device(c_int),
    /// On the host, in that NUMA node.
    Host(c_int),
}

impl Place {
    pub(super) fn of(context: &CudaContext) -> Self {
        Self::Device(context.cu_device())
    }

    /// The driver's structure: a kind and a number, each as large as a `c_int`. The number has other names
    /// in other versions, and older ones do not know the host's kind.
    ///
    /// # Safety
    /// The structure can be written to.
    unsafe fn write(self, location: *mut sys::CUmemLocation) {
        const DEVICE: c_int = 1;
        const HOST_NUMA: c_int = 3;
        let (kind, number) = match self {
            Self::Device(number) => (DEVICE, number),
            Self::Host(number) => (HOST_NUMA, number),
        };
        // SAFETY: the caller's structure is two numbers, one after the other.
        unsafe { location.cast::<[c_int; 2]>().write([kind, number]) };
    }
}

const _: () = assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>());

/// Memory at a place, in no form that another process could open.
pub(super) fn properties(place: Place) -> MaybeUninit<sys::CUmemAllocationProp> {
    let mut properties = MaybeUninit::<sys::CUmemAllocationProp>::zeroed();
    let fields = properties.as_mut_ptr();
    let pinned = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    // SAFETY: the fields are the structure's own; the others may be zero.
    unsafe {
        (&raw mut (*fields).type_).write(pinned);
        place.write(&raw mut (*fields).location);
    }
    properties
}

/// The right to read and write, from a place.
pub(super) fn access(place: Place) -> MaybeUninit<sys::CUmemAccessDesc> {
    let mut access = MaybeUninit::<sys::CUmemAccessDesc>::zeroed();
    let fields = access.as_mut_ptr();
    let both = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // SAFETY: as above.
    unsafe {
        (&raw mut (*fields).flags).write(both);
        place.write(&raw mut (*fields).location);
    }
    access
}

/// The step of virtual memory, in bytes.
pub(super) fn granularity(context: &CudaContext) -> Result<u64, DeviceError> {
    let properties = properties(Place::of(context));
    let mut step = 0;
    let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: writes the step to the place given.
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

    pub(super) fn create_memory(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let _visit = self.virtual_call("create")?;
        let properties = properties(Place::of(&self.inner.context));
        let mut handle = 0;
        // SAFETY: writes the handle to the place given.
        let result =
            unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties.as_ptr(), 0) };
        check("create", result)?;
        Ok(Chunk(handle))
    }

    pub(super) fn release_memory(&self, handle: Chunk) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("destroy")?;
        // SAFETY: by the contract the handle is one of `create`'s, and not mapped.
        check("destroy", unsafe { sys::cuMemRelease(handle.0) })
    }

    /// Maps, and gives the device access; or neither.
    pub(super) fn map_memory(
        &self,
        address: u64,
        handle: Chunk,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("map")?;
        let mapping = Mapping {
            address,
            bytes,
            handle,
            accessors: &[Place::of(&self.inner.context)],
        };
        // SAFETY: by the contract the range is reserved, nothing is mapped there, and the handle is not mapped.
        unsafe { mapping.make(&Driver("map")) }
    }

    pub(super) fn unmap_memory(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let _visit = self.virtual_call("unmap")?;
        // SAFETY: by the contract no work that touches the range is running or submitted.
        check("unmap", unsafe { sys::cuMemUnmap(address, bytes as usize) })
    }
}
