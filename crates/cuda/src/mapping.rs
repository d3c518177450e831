//! Memory is mapped, and then made accessible: two calls of the driver's, of which both are done or neither.

use super::driver::check;
use super::memory::{Place, access};
use cudarc::driver::sys;
use weirpool_device::{Chunk, DeviceError};

/// Memory at an address, and from where it is read and written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping<'a> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) chunk: Chunk,
    pub(super) accessors: &'a [Place],
}

/// Who carries it out: the driver, and in a test one that fails.
///
/// # Safety
/// What is mapped and allowed can be used at its address until it is unmapped.
pub(super) unsafe trait Mapper {
    /// # Safety
    /// The range is reserved, nothing is mapped there, and the handle is not mapped elsewhere.
    unsafe fn map(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError>;

    /// # Safety
    /// It is mapped.
    unsafe fn allow(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError>;

    /// # Safety
    /// It is mapped, and no work touches it.
    unsafe fn unmap(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError>;
}

/// The driver; the device's context is current. Its errors are those of the call that is named.
pub(super) struct Driver(pub(super) &'static str);

// SAFETY: the driver maps what it says it does.
unsafe impl Mapper for Driver {
    unsafe fn map(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError> {
        let &Mapping {
            address,
            bytes,
            chunk,
            ..
        } = mapping;
        // SAFETY: as the caller has it.
        check(self.0, unsafe {
            sys::cuMemMap(address, bytes as usize, 0, chunk.0, 0)
        })
    }

    unsafe fn allow(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError> {
        let rights: Vec<_> = mapping.accessors.iter().copied().map(access).collect();
        let size = mapping.bytes as usize;
        // SAFETY: as the caller has it; so many descriptions are given.
        check(self.0, unsafe {
            sys::cuMemSetAccess(mapping.address, size, rights.as_ptr().cast(), rights.len())
        })
    }

    unsafe fn unmap(&self, mapping: &Mapping<'_>) -> Result<(), DeviceError> {
        // SAFETY: as the caller has it.
        check(self.0, unsafe {
            sys::cuMemUnmap(mapping.address, mapping.bytes as usize)
        })
    }
}

impl Mapping<'_> {
    /// Maps, and allows. Where the second fails, the first is undone.
    ///
    /// # Errors
    /// Of the call that failed first; of the undoing, if that says that the device is broken: what is mapped is then
    /// mapped for good.
    ///
    /// # Safety
    /// The range is reserved, nothing is mapped there, and the handle is not mapped elsewhere.
    pub(super) unsafe fn make(&self, driver: &impl Mapper) -> Result<(), DeviceError> {
        // SAFETY: as the caller has it.
        unsafe { driver.map(self) }?;
        // SAFETY: it was just mapped.
        let Err(refused) = (unsafe { driver.allow(self) }) else {
            return Ok(());
        };
        // SAFETY: nobody was told of the mapping.
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

    /// One that keeps book of what it is asked, and fails where it is told.
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

    // SAFETY: nothing is ever used at its addresses.
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

    /// The calls that were made, and which of them the error is of.
    fn made(driver: &Failing) -> (Vec<&'static str>, Option<&'static str>) {
        let mapping = Mapping {
            address: 2 << 20,
            bytes: 2 << 20,
            chunk: Chunk(1),
            accessors: &[Place::Device(0)],
        };
        // SAFETY: it maps nothing.
        let made = unsafe { mapping.make(driver) };
        (driver.calls.take(), made.err().map(|error| error.call()))
    }

    #[test]
    fn what_is_not_allowed_is_not_mapped() {
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

    /// On a GPU: the driver maps for a device that does not exist, and refuses it access. The place, and the
    /// memory, are good for another mapping then, and go back after it.
    #[test]
    fn what_the_driver_does_not_allow_is_not_mapped() {
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
            let nobody = Mapping {
                address,
                bytes,
                chunk,
                accessors: &[Place::Device(i32::MAX)],
            };
            // SAFETY: the range was just reserved, or unmapped, and so was the handle.
            let refused = unsafe { nobody.make(&Driver("map")) };
            assert!(!refused.unwrap_err().is_sticky());
            drop(visit);
            // SAFETY: the range is reserved, and neither it nor the chunk is mapped; no work uses it.
            unsafe {
                device.map_memory(address, chunk, bytes).unwrap();
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
