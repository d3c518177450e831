//! Host memory that the device copies from and to asynchronously.
//!
//! Where the driver supports it, this is virtual memory, which is created and released without waiting for device work.
//! Elsewhere it is page-locked memory. Unlocking that waits for all work of the device (`cuMemFreeHost` takes 300 ms
//! behind a kernel of 300 ms), so it is done on a separate thread.

use super::driver::{Visit, check};
use super::mapping::{Driver, Mapping, MemoryLocation, properties};
use cudarc::driver::CudaContext;
use cudarc::driver::result::device::get_attribute;
use cudarc::driver::sys::{self, CUdevice_attribute};
use std::ffi::c_int;
use std::ptr::NonNull;
use weirpool_device::plain::{Arc, thread};
use weirpool_device::{Chunk, DeviceError};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Stage {
    start: NonNull<u8>,
    bytes: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The size in bytes, and the chunk.
    Virtual(u64, u64),
    Locked,
}

// SAFETY: the stage owns its memory, which has no thread affinity.
unsafe impl Send for Stage {}
// SAFETY: no method writes through a shared reference.
unsafe impl Sync for Stage {}

impl Stage {
    /// Allocates at least this many bytes. The context must be current.
    pub(super) fn new(context: &CudaContext, bytes: u64) -> Result<Self, DeviceError> {
        match Self::mapped(context, bytes) {
            Ok(stage) => Ok(stage),
            // The driver or device has no virtual memory for the host, or none is left.
            Err(_) => Self::locked(bytes),
        }
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn locked(bytes: u64) -> Result<Self, DeviceError> {
        let mut start = std::ptr::null_mut();
        // SAFETY: `start` is valid for the write.
        check("copy", unsafe {
            sys::cuMemAllocHost_v2(&mut start, bytes as usize)
        })?;
        let start = NonNull::new(start.cast::<u8>()).expect("memory has an address");
        let kind = Kind::Locked;
        Ok(Self { start, bytes, kind })
    }

    fn mapped(context: &CudaContext, bytes: u64) -> Result<Self, DeviceError> {
        let host = MemoryLocation::Host(nearest_node(context));
        let properties = properties(host);
        let mut step = 0;
        let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: `step` is valid for the write.
        check("copy", unsafe {
            sys::cuMemGetAllocationGranularity(&mut step, properties.as_ptr(), smallest)
        })?;
        let size = (bytes as usize).next_multiple_of(step.max(1));
        let (mut handle, mut address) = (0, 0);
        // SAFETY: `handle` is valid for the write.
        check("copy", unsafe {
            sys::cuMemCreate(&mut handle, size, properties.as_ptr(), 0)
        })?;
        // SAFETY: `address` is valid for the write.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut address, size, 0, 0, 0) };
        let made = Self {
            start: NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling()),
            bytes,
            kind: Kind::Virtual(size as u64, handle),
        };
        let mapping = Mapping {
            address,
            bytes: size as u64,
            chunk: Chunk(handle),
            accessors: &[MemoryLocation::of(context), host],
            rights: weirpool_device::Access::ReadWrite,
        };
        let mapped = check("copy", reserved).and_then(|()| {
            // SAFETY: the range was just reserved and has nothing mapped, and the chunk is not mapped.
            unsafe { mapping.make(&Driver("copy")) }
        });
        match mapped {
            Ok(()) => Ok(made),
            Err(error) => {
                made.unmap();
                Err(error)
            }
        }
    }

    /// Undoes each step of `mapped`. A call fails for a step that was not done; memory that cannot be released is
    /// leaked.
    fn unmap(&self) {
        let Kind::Virtual(size, handle) = self.kind else {
            return;
        };
        let (address, size) = (self.start.as_ptr() as u64, size as usize);
        // SAFETY: the stage owns this memory.
        unsafe {
            let _ = sys::cuMemUnmap(address, size);
            let _ = sys::cuMemRelease(handle);
            let _ = sys::cuMemAddressFree(address, size);
        }
    }

    /// Releases the memory, which no work uses any more. Memory that cannot be released is leaked.
    pub(super) fn free(self, context: &Arc<CudaContext>) {
        match self.kind {
            Kind::Virtual(..) => self.free_now(context),
            Kind::Locked => {
                let context = context.clone();
                let thread = thread::Builder::new().name("weirpool-stage".to_owned());
                let _ = thread.spawn(move || self.free_now(&context));
            }
        }
    }

    fn free_now(&self, context: &CudaContext) {
        let Ok(_visit) = Visit::new("copy", context) else {
            return;
        };
        match self.kind {
            Kind::Virtual(..) => self.unmap(),
            // SAFETY: the stage owns this memory.
            Kind::Locked => unsafe {
                let _ = sys::cuMemFreeHost(self.start.as_ptr().cast());
            },
        }
    }
}

/// Returns the NUMA node that the device is attached to if the system reports it, and otherwise node 0.
fn nearest_node(context: &CudaContext) -> c_int {
    use CUdevice_attribute::*;
    // SAFETY: the device is the context's own. (cudarc's own query does not report user errors.)
    let ask = |attribute| unsafe { get_attribute(context.cu_device(), attribute) }.ok();
    let read = || {
        let domain = ask(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = ask(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = ask(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        let name = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
        let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{name}/numa_node"));
        node.ok()?.trim().parse().ok()
    };
    read().filter(|node: &c_int| *node >= 0).unwrap_or(0)
}
