//! Chunks between processes, implemented by the simulated device: their bytes are files without names.

use super::SimDevice;
use super::call::Call;
use std::os::fd::OwnedFd;
use weirpool_device::{Chunk, DeviceError, Sharing};

// SAFETY: the bytes of a chunk are those of its descriptor's file, and each chunk that is created has a file of its own.
unsafe impl Sharing for SimDevice {
    fn create_shareable(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let chunk = self.memory_call(
            Call::Create,
            |_| bytes,
            |space| space.create_shareable(self.number, bytes),
        )?;
        Ok(Chunk(chunk))
    }

    unsafe fn export(&self, chunk: Chunk) -> Result<OwnedFd, DeviceError> {
        self.memory_call(
            Call::Export,
            |space| space.size_of(chunk.0),
            |space| space.export(chunk.0),
        )
    }

    fn import(&self, descriptor: OwnedFd, bytes: u64) -> Result<Chunk, DeviceError> {
        let chunk = self.memory_call(
            Call::Import,
            |_| bytes,
            |space| space.import(self.number, descriptor, bytes),
        )?;
        Ok(Chunk(chunk))
    }
}
