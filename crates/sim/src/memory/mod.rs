//! The device's memory, and the part of it that the body of an operation reaches.

mod access;
mod budget;
mod bytes;
#[cfg(target_os = "linux")]
mod shared;
mod space;

pub(super) use access::{Illegal, Viewer};
pub(super) use space::{Refusal, Space};
use std::fmt;
use weirpool_device::DeviceAddress;
use weirpool_device::plain::Arc;

/// A device, as far as the body of an operation can reach it.
pub(super) trait MemoryAccess: Send + Sync {
    /// Reads or writes bytes. An illegal address breaks the device.
    fn access(&self, what: &'static str, access: &mut dyn FnMut(&mut Space) -> Result<(), Illegal>);
}

/// The bytes of the device, for the body of an operation.
///
/// An access to an address with nothing mapped, or to memory that only the host sees, has no effect, reads zeros, and
/// breaks the device. On CUDA, too, an illegal address is a sticky error, which every later call reports.
pub struct Memory {
    device: Arc<dyn MemoryAccess>,
}

impl Memory {
    pub(super) fn new(device: Arc<dyn MemoryAccess>) -> Self {
        Self { device }
    }

    /// Fills `into` with the bytes that begin at `address`.
    pub fn read(&mut self, address: impl Into<DeviceAddress>, into: &mut [u8]) {
        let address = address.into().to_bits();
        self.device.access("read", &mut |space| {
            space.read(Viewer::Device, address, into)
        });
    }

    /// Writes `from` to the bytes that begin at `address`.
    pub fn write(&mut self, address: impl Into<DeviceAddress>, from: &[u8]) {
        let address = address.into().to_bits();
        self.device.access("write", &mut |space| {
            space.write(Viewer::Device, address, from)
        });
    }

    /// Writes `value` to `bytes` bytes that begin at `address`.
    pub fn fill(&mut self, address: impl Into<DeviceAddress>, bytes: u64, value: u8) {
        let address = address.into().to_bits();
        self.device.access("fill", &mut |space| {
            space.fill(Viewer::Device, address, bytes, value)
        });
    }

    /// Copies `bytes` bytes. The ranges may overlap.
    pub fn copy(
        &mut self,
        from: impl Into<DeviceAddress>,
        to: impl Into<DeviceAddress>,
        bytes: u64,
    ) {
        let mut buffer = vec![0; usize::try_from(bytes).expect("a copy that the host can hold")];
        self.read(from, &mut buffer);
        self.write(to, &buffer);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}
