//! What the host does itself, in memory that it sees: loads and stores.
//!
//! On its own account it does so at once. In the order of a stream the driver calls it when the stream comes
//! there, and the stream goes on when it is through: a copy between two places of the host's memory is none
//! for the device, and the driver would keep the calling thread until it is done.

use super::CudaDevice;
use cudarc::driver::sys::{self, CUresult, CUstream};
use std::ffi::c_void;
use weirpool_device::{Device, DeviceError, DeviceErrorKind, MemoryKind, RawEvent, Transfer};

/// A copy of the host's own, which is over. Its event was never recorded.
struct Arrived {
    device: CudaDevice,
    event: RawEvent,
    bytes: Vec<u8>,
}

impl CudaDevice {
    pub(super) fn host_upload(
        &self,
        address: u64,
        bytes: &[u8],
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let target = self.seen_by_host("upload", address, bytes.len() as u64)?;
        // SAFETY: so many bytes are there, and the host may write them. They are the caller's, who comes after
        // everybody else's use of them; what is borrowed is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        self.arrived(Vec::new())
    }

    pub(super) fn host_download(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let source = self.seen_by_host("download", address, bytes)?;
        let mut read = vec![0; bytes as usize];
        // SAFETY: as above, for reading.
        unsafe { std::ptr::copy_nonoverlapping(source, read.as_mut_ptr(), read.len()) };
        self.arrived(read)
    }

    pub(super) fn host_fill(&self, address: u64, bytes: u64, value: u8) -> Result<(), DeviceError> {
        let target = self.seen_by_host("fill", address, bytes)?;
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(target, value, bytes as usize) };
        Ok(())
    }

    /// Where the host finds the bytes.
    fn seen_by_host(
        &self,
        call: &'static str,
        address: u64,
        bytes: u64,
    ) -> Result<*mut u8, DeviceError> {
        let kind = self.kind_of(address, bytes);
        if kind.is_some_and(MemoryKind::is_seen_by_host) {
            return Ok(address as *mut u8);
        }
        let reason = format!("the host does not see {bytes} bytes at {address:#x}");
        let invalid = DeviceErrorKind::InvalidArgument;
        Err(DeviceError::new(call, invalid, reason))
    }

    /// Whether the bytes are page-locked memory of the host's.
    pub(super) fn is_of_host(&self, address: u64, bytes: u64) -> bool {
        let kind = self.kind_of(address, bytes);
        kind.is_some_and(MemoryKind::is_of_host)
    }

    fn arrived(&self, bytes: Vec<u8>) -> Result<Box<dyn Transfer>, DeviceError> {
        Ok(Box::new(Arrived {
            event: self.create_event()?,
            device: self.clone(),
            bytes,
        }))
    }
}

impl Transfer for Arrived {
    fn event(&self) -> RawEvent {
        self.event
    }

    fn bytes(&mut self) -> Result<Option<Vec<u8>>, DeviceError> {
        Ok(Some(std::mem::take(&mut self.bytes)))
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        // One that cannot be destroyed is the device's to clean up.
        let _ = self.device.destroy_event(self.event);
    }
}

/// A copy within the host's memory.
struct HostCopy {
    target: *mut u8,
    source: *const u8,
    bytes: usize,
}

/// Has the host copy when the stream comes here. If the context is broken by then it never does, and what says
/// so stays.
///
/// # Safety
/// Both places are the host's memory, apart from each other, and stay so until the stream has passed; nobody
/// else uses them meanwhile. The stream is alive, and its context current.
pub(super) unsafe fn copy_in_order(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    unsafe extern "C" fn run(copy: *mut c_void) {
        // SAFETY: it is the box below, and the driver runs this once.
        let copy = unsafe { Box::from_raw(copy.cast::<HostCopy>()) };
        // SAFETY: as whoever asked for it has promised.
        unsafe { std::ptr::copy_nonoverlapping(copy.source, copy.target, copy.bytes) };
    }

    let copy = Box::into_raw(Box::new(HostCopy {
        target,
        source,
        bytes,
    }));
    // SAFETY: the stream is alive; `run` owns what it is given, and calls no driver.
    let answer = unsafe { sys::cuLaunchHostFunc(stream, Some(run), copy.cast()) };
    if answer != CUresult::CUDA_SUCCESS {
        // SAFETY: the driver did not take it.
        drop(unsafe { Box::from_raw(copy) });
    }
    answer
}
