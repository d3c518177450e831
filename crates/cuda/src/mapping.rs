//! Mapping memory and allowing access to it: two driver calls, of which both take effect or neither; and the driver's
//! descriptions of locations and rights.

use super::driver::check;
use cudarc::driver::{CudaContext, sys};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use weirpool_device::{Access, Chunk, DeviceError};

/// A location of memory, in the driver's terms.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryLocation {
    /// On the device with that number.
    Device(c_int),
    /// On the host, in the NUMA node with that number.
    Host(c_int),
}

impl MemoryLocation {
    pub(super) fn of(context: &CudaContext) -> Self {
        Self::Device(context.cu_device())
    }

    /// Writes the driver's structure: a kind and a number, each as large as a `c_int`. The number's name depends on
    /// the version of CUDA, and older versions do not know the host's kind.
    ///
    /// # Safety
    /// `location` is valid for writes.
    unsafe fn write(self, location: *mut sys::CUmemLocation) {
        // SAFETY: the structure consists of two numbers, and is valid for writes.
        unsafe { location.cast::<[c_int; 2]>().write(self.numbers()) };
    }

    /// Returns the driver's kind and number.
    pub(super) fn numbers(self) -> [c_int; 2] {
        const DEVICE: c_int = 1;
        const HOST_NUMA: c_int = 3;
        match self {
            Self::Device(number) => [DEVICE, number],
            Self::Host(number) => [HOST_NUMA, number],
        }
    }

    /// Returns the driver's structure.
    pub(super) fn to_raw(self) -> MaybeUninit<sys::CUmemLocation> {
        let mut location = MaybeUninit::zeroed();
        // SAFETY: `location` is valid for writes.
        unsafe { self.write(location.as_mut_ptr()) };
        location
    }
}

const _: () = assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>());

/// Describes memory at a location, in a form that no other process can open.
pub(super) fn properties(location: MemoryLocation) -> MaybeUninit<sys::CUmemAllocationProp> {
    let mut properties = MaybeUninit::<sys::CUmemAllocationProp>::zeroed();
    let fields = properties.as_mut_ptr();
    let pinned = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    // SAFETY: both pointers are fields of `properties`; the other fields may be zero.
    unsafe {
        (&raw mut (*fields).type_).write(pinned);
        location.write(&raw mut (*fields).location);
    }
    properties
}

/// Describes memory at a location that other processes can open by a file descriptor.
#[cfg(target_os = "linux")]
pub(super) fn shareable_properties(
    location: MemoryLocation,
) -> MaybeUninit<sys::CUmemAllocationProp> {
    let mut properties = properties(location);
    let fields = properties.as_mut_ptr();
    let descriptor = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: the pointer is a field of `properties`.
    unsafe { (&raw mut (*fields).requestedHandleTypes).write(descriptor) };
    properties
}

/// Describes rights, from a location.
pub(super) fn access_with(
    location: MemoryLocation,
    rights: Access,
) -> MaybeUninit<sys::CUmemAccessDesc> {
    let mut access = MaybeUninit::<sys::CUmemAccessDesc>::zeroed();
    let fields = access.as_mut_ptr();
    let number: u32 = match rights {
        Access::None => 0,
        Access::Read => 1,
        Access::ReadWrite => 3,
    };
    // SAFETY: both pointers are fields of `access`, and the number is one of the driver's.
    unsafe {
        (&raw mut (*fields).flags).cast::<u32>().write(number);
        location.write(&raw mut (*fields).location);
    }
    access
}

/// A range of addresses, the chunk to map there, and the processors that may access it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping<'a> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) chunk: Chunk,
    pub(super) accessors: &'a [MemoryLocation],
    pub(super) rights: Access,
}

/// The calls that map memory: those of the driver, or in a test those of a mapper that fails.
///
/// # Safety
/// Memory that is mapped and allowed must be usable at its address until it is unmapped.
pub(super) unsafe trait Mapper {
    /// # Safety
    /// The range must be reserved and have nothing mapped, and the chunk must not be mapped elsewhere.
    unsafe fn map(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError>;

    /// # Safety
    /// The range must be mapped.
    unsafe fn allow(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError>;

    /// # Safety
    /// The range must be mapped, and no work may touch it.
    unsafe fn unmap(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError>;
}

/// The driver, with the device's context current. Errors name the given call.
pub(super) struct Driver(pub(super) &'static str);

// SAFETY: each method is the driver call of that meaning.
unsafe impl Mapper for Driver {
    unsafe fn map(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError> {
        let &Mapping {
            address,
            bytes,
            chunk,
            ..
        } = mapping;
        // SAFETY: the caller's contract is that of the driver call.
        check(self.0, unsafe {
            sys::cuMemMap(address, bytes as usize, 0, chunk.0, 0)
        })
    }

    unsafe fn allow(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError> {
        let accessors = mapping.accessors.iter();
        let rights = accessors.map(|location| access_with(*location, mapping.rights));
        let rights: Vec<_> = rights.collect();
        let size = mapping.bytes as usize;
        // SAFETY: the caller's contract is that of the driver call; `rights` has the given length.
        check(self.0, unsafe {
            sys::cuMemSetAccess(mapping.address, size, rights.as_ptr().cast(), rights.len())
        })
    }

    unsafe fn unmap(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract is that of the driver call.
        check(self.0, unsafe {
            sys::cuMemUnmap(mapping.address, mapping.bytes as usize)
        })
    }
}

impl Mapping<'_> {
    /// Maps the memory and allows access to it. If access is refused, unmaps it again.
    ///
    /// # Errors
    /// Returns the error of the call that failed first. If unmapping fails because the device is broken, returns that
    /// error; the memory then stays mapped.
    ///
    /// # Safety
    /// The range must be reserved and have nothing mapped, and the chunk must not be mapped elsewhere.
    pub(super) unsafe fn make(&self, driver: &impl Mapper) -> Result<(), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { driver.map(self) }?;
        // SAFETY: it was just mapped.
        let Err(refused) = (unsafe { driver.allow(self) }) else {
            return Ok(());
        };
        // SAFETY: it was just mapped, and no caller knows of the mapping yet.
        match unsafe { driver.unmap(self) } {
            Err(broken) if broken.is_sticky() => Err(broken),
            _ => Err(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaDevice;
    use std::cell::RefCell;
    use weirpool_device::{Device, DeviceErrorKind};

    /// A mapper that records its calls, and fails where the test says so.
    #[derive(Default)]
    struct Failing {
        calls: RefCell<Vec<&'static str>>,
        errors: Vec<(&'static str, DeviceErrorKind)>,
    }

    impl Failing {
        fn at(errors: &[(&'static str, DeviceErrorKind)]) -> Self {
            Self {
                errors: errors.to_vec(),
                ..Self::default()
            }
        }

        fn call(&self, name: &'static str) -> Result<(), DeviceError> {
            self.calls.borrow_mut().push(name);
            match self.errors.iter().find(|(call, _)| *call == name) {
                Some((_, kind)) => Err(DeviceError::new(name, *kind, "as it was told")),
                None => Ok(()),
            }
        }
    }

    // SAFETY: nothing uses its addresses.
    unsafe impl Mapper for Failing {
        unsafe fn map(&self, _: &Mapping<'_>) -> Result<(), DeviceError> {
            self.call("map")
        }

        unsafe fn allow(&self, _: &Mapping<'_>) -> Result<(), DeviceError> {
            self.call("allow")
        }

        unsafe fn unmap(&self, _: &Mapping<'_>) -> Result<(), DeviceError> {
            self.call("unmap")
        }
    }

    /// Maps once. Returns the calls that were made, and the call that the error names.
    fn made(driver: &Failing) -> (Vec<&'static str>, Option<&'static str>) {
        let mapping = Mapping {
            address: 2 << 20,
            bytes: 2 << 20,
            chunk: Chunk(1),
            accessors: &[MemoryLocation::Device(0)],
            rights: Access::ReadWrite,
        };
        // SAFETY: it maps nothing.
        let made = unsafe { mapping.make(driver) };
        (driver.calls.take(), made.err().map(|error| error.call()))
    }

    #[test]
    fn mapping_without_access_is_undone() {
        use DeviceErrorKind::{Other, OutOfMemory, Sticky};
        assert_eq!(made(&Failing::at(&[])), (vec!["map", "allow"], None));
        let unmapped = Failing::at(&[("map", OutOfMemory)]);
        assert_eq!(made(&unmapped), (vec!["map"], Some("map")));
        let all = vec!["map", "allow", "unmap"];
        let refused = Failing::at(&[("allow", OutOfMemory)]);
        assert_eq!(made(&refused), (all.clone(), Some("allow")));
        let stays = Failing::at(&[("allow", OutOfMemory), ("unmap", Other)]);
        assert_eq!(made(&stays), (all.clone(), Some("allow")));
        let broken = Failing::at(&[("allow", OutOfMemory), ("unmap", Sticky)]);
        assert_eq!(made(&broken), (all, Some("unmap")));
    }

    /// On a GPU, maps memory for a device that does not exist, so that access is refused. Afterwards the range and the
    /// chunk can be mapped properly, and released.
    #[test]
    fn mapping_is_undone_when_the_driver_refuses_access() {
        let device = match CudaDevice::new(0) {
            Ok(device) => device,
            Err(error) => {
                let is_required = std::env::var_os("WEIRPOOL_REQUIRE_GPU").is_some();
                assert!(!is_required, "a GPU is required: {error}");
                return eprintln!("skipped: {error}");
            }
        };
        if !device.capabilities().virtual_memory {
            return eprintln!("skipped: no virtual memory");
        }
        let bytes = device.capabilities().granularity;
        let address = device.reserve_addresses(bytes).unwrap();
        let chunk = device.create_memory(bytes).unwrap();
        for _ in 0..2 {
            let visit = device.visit("map").unwrap();
            let inaccessible = Mapping {
                address,
                bytes,
                chunk,
                accessors: &[MemoryLocation::Device(i32::MAX)],
                rights: Access::ReadWrite,
            };
            // SAFETY: the range was just reserved, or unmapped, and the chunk is not mapped.
            let refused = unsafe { inaccessible.make(&Driver("map")) };
            assert!(!refused.unwrap_err().is_sticky());
            drop(visit);
            // SAFETY: the range is reserved, and neither it nor the chunk is mapped; no work uses it.
            unsafe {
                device
                    .map_memory(address, chunk, bytes, Access::ReadWrite)
                    .unwrap();
                device.unmap_memory(address, bytes).unwrap();
            }
        }
        // SAFETY: the chunk is not mapped, and nothing is in the range.
        unsafe {
            device.release_memory(chunk).unwrap();
            device.free_addresses(address, bytes).unwrap();
        }
    }
}
