//! Memory between processes: a part of the contract that a device may lack.

use crate::{Chunk, DeviceError};
use std::os::fd::OwnedFd;

/// The calls with which a chunk is shared with other processes by a file descriptor of POSIX, as CUDA's virtual memory
/// has them (`cuMemExportToShareableHandle` and `cuMemImportFromShareableHandle`).
/// [`Device::sharing`](crate::Device::sharing) returns them where there are any.
///
/// A shareable chunk is mapped, unmapped and destroyed as any other. Its physical memory lives until every process has
/// unmapped and destroyed its chunk and closed its descriptors; no process can take it from another one.
///
/// # Safety
/// An implementation guarantees that the memory of an imported chunk is that of the exported one, and of no other
/// chunk.
pub unsafe trait Sharing {
    /// Takes a chunk of physical memory that can be exported. Can wait.
    ///
    /// # Errors
    /// Returns the errors of [`Device::create`](crate::Device::create).
    fn create_shareable(&self, bytes: u64) -> Result<Chunk, DeviceError>;

    /// Exports a chunk as a descriptor, which is close-on-exec. Can wait.
    ///
    /// # Errors
    /// Returns an error if the chunk was not created for it, or if the process has no free descriptors.
    ///
    /// # Safety
    /// The chunk is a result of [`create_shareable`](Self::create_shareable) that was not destroyed.
    unsafe fn export(&self, chunk: Chunk) -> Result<OwnedFd, DeviceError>;

    /// Imports a chunk of `bytes` that a process exported for the same device. It is destroyed like any other chunk,
    /// and takes no memory. Can wait.
    ///
    /// The descriptor and the size may come from a hostile process. A device that cannot tell the size of a chunk
    /// refuses a wrong one when it is [mapped](crate::Device::map).
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](crate::DeviceErrorKind::InvalidArgument) if the descriptor is not such a chunk, or
    /// any other error of the device. Nothing is imported then.
    fn import(&self, descriptor: OwnedFd, bytes: u64) -> Result<Chunk, DeviceError>;

    /// Maps a chunk like [`map`](crate::Device::map), for reading: work of the device that writes there fails. Can wait.
    ///
    /// # Errors
    /// Returns the errors of `map`.
    ///
    /// # Safety
    /// As for `map`.
    unsafe fn map_read_only(
        &self,
        address: u64,
        chunk: Chunk,
        bytes: u64,
    ) -> Result<(), DeviceError>;
}
