//! Loads and stores of the host, in memory that it sees.
//!
//! On [`RawStream::HOST`](weirpool_device::RawStream::HOST) they happen during the call. In the order of a stream,
//! the driver calls a function of the host when the stream gets there, and the stream continues after it. (For a
//! copy within the host's memory, `cuMemcpyAsync` would block the calling thread until it is done.)

use super::CudaDevice;
use super::host_work::call_in_order;
use cudarc::driver::sys::{CUresult, CUstream};
use weirpool_device::{Device, DeviceError, RawEvent, Transfer};

/// A complete copy by the host. Its event was never recorded, and so counts as complete.
struct Arrived {
    device: CudaDevice,
    event: RawEvent,
    bytes: Vec<u8>,
}

impl CudaDevice {
    /// # Safety
    /// All other uses of the range are complete, and none is submitted before the call returns.
    pub(super) unsafe fn host_upload(
        &self,
        address: u64,
        bytes: &[u8],
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let target = self
            .inner
            .plain
            .seen_by_host("upload", address, bytes.len() as u64)?;
        // SAFETY: the segment has these bytes, which no other use touches now, as the caller guarantees. `bytes` is
        // borrowed from elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        self.arrived(Vec::new())
    }

    /// # Safety
    /// As [`host_upload`](Self::host_upload).
    pub(super) unsafe fn host_download(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let source = self.inner.plain.seen_by_host("download", address, bytes)?;
        let mut read = vec![0; bytes as usize];
        // SAFETY: the segment has these bytes, which no other use writes now, as the caller guarantees.
        unsafe { std::ptr::copy_nonoverlapping(source, read.as_mut_ptr(), read.len()) };
        self.arrived(read)
    }

    /// # Safety
    /// As [`host_upload`](Self::host_upload).
    pub(super) unsafe fn host_fill(
        &self,
        address: u64,
        bytes: u64,
        value: u8,
    ) -> Result<(), DeviceError> {
        let target = self.inner.plain.seen_by_host("fill", address, bytes)?;
        // SAFETY: the segment has these bytes, which no other use touches now, as the caller guarantees.
        unsafe { std::ptr::write_bytes(target, value, bytes as usize) };
        Ok(())
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
        // The driver cleans up an event that cannot be destroyed.
        // SAFETY: the event is this copy's own, and a watch of it ends before the copy is dropped.
        let _ = unsafe { self.device.destroy_event(self.event) };
    }
}

/// Makes the host copy when the stream gets there. If the context is broken by then, the host never copies.
///
/// # Safety
/// Both ranges are memory of the host, do not overlap, and stay valid until the stream has passed the copy, during
/// which no other use touches them. The stream is usable, and its context current.
pub(super) unsafe fn copy_in_order(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let (target, source) = (target as usize, source as usize);
    let copy = move || {
        let (target, source) = (target as *mut u8, source as *const u8);
        // SAFETY: both ranges are valid and unused, as the caller guarantees.
        unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
    };
    // SAFETY: the caller guarantees the stream; the copy calls no driver function.
    unsafe { call_in_order(stream, Box::new(copy)) }
}
