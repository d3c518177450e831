//! The traits.

use std::error::Error;
use std::future::Future;
use weirpool::Block;
use weirpool::device::DeviceAddress;

/// A stream with the memory that is allocated in its order: what a library of kernels takes instead of a pool.
///
/// The library launches its kernels on [`stream`](Self::stream), and drops a block as soon as the last of them is
/// submitted. It need not know which pool, reservation or driver the bytes are of.
///
/// # Safety
/// An implementation guarantees that
///
/// - [`stream`](Self::stream) always returns the same stream;
/// - from its allocation until it is dropped, [`size`](MemoryBlock::size) bytes from the
///   [`address`](MemoryBlock::address) of a block may be used by work of that stream, and by no other code;
/// - after that, the memory is used again only behind all work that was submitted to that stream before the drop. Work
///   of other streams must be ordered before the drop on that stream, as `cudaFreeAsync` requires;
/// - a block and its memory live on when the value that allocated it is dropped.
#[allow(
    unsafe_code,
    reason = "the contract between the library and the application"
)]
pub unsafe trait StreamMemory {
    /// The backend's stream: `SimStream` of the simulated device, cudarc's `Arc<CudaStream>`.
    type Stream;
    /// A block of memory.
    type Block: MemoryBlock;
    /// The reason why there is no memory.
    type Error: Error + Send + Sync + 'static;

    /// Returns the stream in whose order memory is allocated and freed.
    fn stream(&self) -> &Self::Stream;

    /// Allocates at least `bytes` bytes, and waits for memory if there is none and the implementation can wait. Zero bytes
    /// are a valid request. Reports of the pool give the location of the caller.
    ///
    /// # Errors
    /// The output is an error if there is no memory, and none can be awaited.
    ///
    /// # Cancel safety
    /// A future that is dropped early leaks nothing: memory that it was granted goes back.
    #[track_caller]
    fn allocate(&self, bytes: u64)
    -> impl Future<Output = Result<Self::Block, Self::Error>> + Send;

    /// Allocates at least `bytes` bytes if there is memory now.
    ///
    /// # Errors
    /// Returns an error if there is no memory at the moment.
    #[track_caller]
    fn try_allocate(&self, bytes: u64) -> Result<Self::Block, Self::Error>;
}

/// A block of [`StreamMemory`]. Dropping it frees the memory in the order of the stream that it was allocated on, without
/// a wait.
pub trait MemoryBlock: Send + 'static {
    /// Returns the address of the first byte on the device, a multiple of 256.
    fn address(&self) -> DeviceAddress;

    /// Returns the number of usable bytes: at least as many as were requested.
    fn size(&self) -> u64;
}

impl MemoryBlock for Block {
    fn address(&self) -> DeviceAddress {
        self.address()
    }

    fn size(&self) -> u64 {
        self.size()
    }
}
