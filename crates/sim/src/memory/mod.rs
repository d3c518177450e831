//! The device's memory, and the part of it that the body of an operation reaches.

mod access;
mod budget;
mod bytes;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod shared_bytes;
mod space;

pub(super) use access::{Illegal, Viewer};
#[cfg(target_os = "linux")]
pub(super) use shared::{Imported, PoolFile};
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
/// An access to an address with nothing mapped, to memory that only the host sees, or to memory of another device
/// without access has no effect, reads zeros, and breaks the device. On CUDA, too, an illegal address is a sticky
/// error, which every later call reports.
pub struct Memory {
    device: Arc<dyn MemoryAccess>,
    viewer: Viewer,
}

impl Memory {
    /// The bytes as the device with that number sees them.
    pub(super) fn new(device: Arc<dyn MemoryAccess>, number: u32) -> Self {
        let viewer = Viewer::Device(number);
        Self { device, viewer }
    }

    /// Copies bytes between two devices. The ranges do not overlap.
    pub(super) fn copy_between(&mut self, from: u64, to: u64, bytes: u64) {
        let own = std::mem::replace(&mut self.viewer, Viewer::Copier);
        self.copy(from, to, bytes);
        self.viewer = own;
    }

    /// Fills `into` with the bytes that begin at `address`.
    pub fn read(&mut self, address: impl Into<DeviceAddress>, into: &mut [u8]) {
        let address = address.into().to_bits();
        let viewer = self.viewer;
        self.device
            .access("read", &mut |space| space.read(viewer, address, into));
    }

    /// Writes `from` to the bytes that begin at `address`.
    pub fn write(&mut self, address: impl Into<DeviceAddress>, from: &[u8]) {
        let address = address.into().to_bits();
        let viewer = self.viewer;
        self.device
            .access("write", &mut |space| space.write(viewer, address, from));
    }

    /// Writes `value` to `bytes` bytes that begin at `address`.
    pub fn fill(&mut self, address: impl Into<DeviceAddress>, bytes: u64, value: u8) {
        let address = address.into().to_bits();
        let viewer = self.viewer;
        self.device.access("fill", &mut |space| {
            space.fill(viewer, address, bytes, value)
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
