//! Blocks of a pool as buffers of cuda-core.

use cuda_core::sys::CUdeviceptr;
use cuda_core::{Context, DeviceAllocation, RawDeviceBuffer};
use std::sync::Arc;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{Device, DeviceError};
use weirpool::{AllocError, Block, Pool, Stream, StreamError, Terms};

/// A pool as memory of a cuda-core context.
///
/// cuda-core chooses the stream of an operation when it is scheduled, and keeps a buffer until the work that uses it is
/// complete. So a buffer is allocated in no stream's order: it may be used on any stream at once. Its memory returns to
/// the pool when the last view and the last operation of it have ended.
#[derive(Debug)]
pub struct Memory {
    pool: Pool,
    /// The order in which buffers are allocated and freed. No work is submitted to it.
    own: Stream,
    context: Arc<Context>,
    terms: Terms,
}

/// Why a pool cannot be memory of a context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The pool is of another device, or works in another context of it.
    #[error(
        "the pool is of another context; build it on `CudaDevice::new({ordinal})`, which has the primary context"
    )]
    ForeignContext {
        /// The number of the context's device.
        ordinal: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pool cannot make a stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl Memory {
    /// Makes a pool the memory of a context, which must be the one that the pool works in: the primary context of its
    /// device, as [`Context::new`] and [`CudaDevice::new`] have it.
    ///
    /// # Errors
    /// Returns an error if the pool works in another context, or the device cannot make a stream.
    pub fn new(pool: &Pool, context: &Arc<Context>) -> Result<Self, MemoryError> {
        let ordinal = context.ordinal();
        let device = CudaDevice::new(ordinal)?;
        let is_primary = device.context().cu_ctx().cast::<()>() == context.cu_ctx().cast();
        if !is_primary || device.id() != pool.device().id() {
            return Err(MemoryError::ForeignContext { ordinal });
        }
        Ok(Self {
            pool: pool.clone(),
            own: pool.create_stream()?,
            context: context.clone(),
            terms: Terms::default(),
        })
    }

    /// Sets the terms on which allocations wait: a tag, a timeout, a priority.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Allocates `bytes` bytes, and waits in the pool's queue if there is no memory. Their values are not initialized:
    /// `DeviceBuffer::from_storage` of cuda-core, which makes typed memory of them, is unsafe.
    ///
    /// # Errors
    /// Returns the errors of [`Request`](weirpool::Request).
    ///
    /// # Cancel safety
    /// If the future is dropped early, its place in the queue, or its memory, goes to the next request.
    pub async fn allocate(&self, bytes: usize) -> Result<RawDeviceBuffer, AllocError> {
        let request = self.pool.allocate(&self.own, bytes as u64);
        let block = request.terms(self.terms).await?;
        // The pool may have made the stream wait for work of others.
        self.own.synchronize().await?;
        Ok(self.foreign(block, bytes))
    }

    /// Makes a buffer of a block that was allocated in the order of a [`CoreStream`](crate::CoreStream). The memory is
    /// free to use in that order: another stream must be ordered after it first.
    ///
    /// # Errors
    /// Returns the block if it is of another pool.
    pub fn adopt(&self, block: Block) -> Result<RawDeviceBuffer, Block> {
        if block.stream().pool() != self.pool {
            return Err(block);
        }
        let bytes = block.requested() as usize;
        Ok(self.foreign(block, bytes))
    }

    fn foreign(&self, block: Block, bytes: usize) -> RawDeviceBuffer {
        let context = self.context.clone();
        RawDeviceBuffer::foreign(Arc::new(Owner { block, context }), bytes)
    }
}

/// What a buffer keeps.
struct Owner {
    block: Block,
    context: Arc<Context>,
}

// SAFETY: the block keeps its memory at its address, which is mapped in every context of its device, until it is dropped;
// the context is kept beside it.
unsafe impl DeviceAllocation for Owner {
    fn device_ptr(&self) -> CUdeviceptr {
        self.block.address().to_bits()
    }

    fn len_bytes(&self) -> usize {
        self.block.size() as usize
    }

    fn context(&self) -> Arc<Context> {
        self.context.clone()
    }
}
