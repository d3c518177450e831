//! Chunks between processes, as file descriptors.

use super::CudaDevice;
use super::driver::check;
use super::mapping::{MemoryLocation, shareable_properties};
use cudarc::driver::sys::{self, CUmemAllocationHandleType};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use weirpool_device::{Access, Chunk, DeviceError, DeviceErrorKind, Sharing};

pub(super) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Takes the descriptor that the driver returned, and makes it close-on-exec.
///
/// # Errors
/// Returns an error if the driver returned none.
pub(super) fn owned(call: &'static str, descriptor: c_int) -> Result<OwnedFd, DeviceError> {
    if descriptor < 0 {
        let reason = "the driver returned no descriptor";
        return Err(DeviceError::new(call, DeviceErrorKind::Other, reason));
    }
    // SAFETY: the driver has just returned the descriptor for its caller to close.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // A child process would keep the memory. That the flag cannot be set is not the caller's concern.
    let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
    Ok(descriptor)
}

/// Returns a descriptor in the form in which the driver takes it.
pub(super) fn as_driver_takes_it(descriptor: &OwnedFd) -> *mut c_void {
    std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize)
}

// SAFETY: the driver imports the memory that was exported by the descriptor, and no other.
unsafe impl Sharing for CudaDevice {
    fn create_shareable(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let _visit = self.virtual_call("create")?;
        let properties = shareable_properties(MemoryLocation::of(&self.inner.context));
        let mut handle = 0;
        // SAFETY: the call writes to `handle`.
        let result =
            unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties.as_ptr(), 0) };
        check("create", result)?;
        Ok(Chunk(handle))
    }

    unsafe fn export(&self, chunk: Chunk) -> Result<OwnedFd, DeviceError> {
        let _visit = self.virtual_call("export")?;
        let mut descriptor: c_int = -1;
        // SAFETY: the chunk was not destroyed, as the caller guarantees; the call writes a descriptor.
        let result = unsafe {
            sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), chunk.0, DESCRIPTOR, 0)
        };
        check("export", result)?;
        owned("export", descriptor)
    }

    fn import(&self, descriptor: OwnedFd, _bytes: u64) -> Result<Chunk, DeviceError> {
        let _visit = self.virtual_call("import")?;
        let mut handle = 0;
        // SAFETY: the call writes to `handle`. The descriptor is open, and the driver refuses one that is not its own.
        let result = unsafe {
            sys::cuMemImportFromShareableHandle(
                &mut handle,
                as_driver_takes_it(&descriptor),
                DESCRIPTOR,
            )
        };
        // The driver keeps its own reference to the memory.
        check("import", result)?;
        Ok(Chunk(handle))
    }

    unsafe fn map_read_only(
        &self,
        address: u64,
        chunk: Chunk,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.map_memory(address, chunk, bytes, Access::Read) }
    }
}
