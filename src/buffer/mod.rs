//! A block of so many elements of a type.

mod copies;

use crate::block::{Block, DeallocateError, Deallocation};
use crate::device::{Argument, DeviceAddress};
use crate::error::{AllocError, StreamError};
use crate::pool::Pool;
use crate::stream::Stream;
use std::fmt;
use std::marker::PhantomData;

/// Device memory for `len` elements of `T`, owned; otherwise as [`Block`].
///
/// The elements live on the device, and are whatever the memory was before until something writes them. The
/// host has references to them in a [guard](Self::host) only, in memory that it sees.
///
/// ```
/// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// # device.block_on(async {
/// let weights: Buffer<f32> = Buffer::allocate(&pool, &stream, 1 << 20).await?;
/// assert_eq!((weights.len(), weights.size()), (1 << 20, 4 << 20));
/// # Ok::<(), weirpool::AllocError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a buffer is freed when it is dropped"]
pub struct Buffer<T> {
    block: Block,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T: Copy + 'static> Buffer<T> {
    /// Allocates `len` elements, waiting for memory if there is none; aligned for `T`.
    ///
    /// # Errors
    /// As [`Allocate`](crate::Allocate); a size over what 64 bits can say is
    /// [`AllocError::TooLarge`].
    ///
    /// # Cancel safety
    /// As [`Allocate`](crate::Allocate).
    #[track_caller]
    pub fn allocate<'a>(
        pool: &'a Pool,
        stream: &'a Stream,
        len: usize,
    ) -> impl Future<Output = Result<Self, AllocError>> {
        // Here and not in the future, since the place in the source is the caller's.
        let allocation = match Self::bytes(pool, len) {
            Ok(bytes) => Ok(pool.allocate(stream, bytes)),
            Err(error) => Err(error),
        };
        async move {
            let block = allocation?.alignment(align_of::<T>() as u64).await?;
            Ok(Self::over(block, len))
        }
    }

    /// Allocates `len` elements now, or not at all.
    ///
    /// # Errors
    /// As [`Pool::try_allocate`].
    #[track_caller]
    pub fn try_allocate(pool: &Pool, stream: &Stream, len: usize) -> Result<Self, AllocError> {
        let bytes = Self::bytes(pool, len)?;
        let request = pool
            .allocate(stream, bytes)
            .alignment(align_of::<T>() as u64);
        let block = request.try_now()?;
        Ok(Self::over(block, len))
    }

    fn bytes(pool: &Pool, len: usize) -> Result<u64, AllocError> {
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        bytes.ok_or(AllocError::TooLarge {
            requested: u64::MAX,
            capacity: pool.capacity(),
        })
    }

    fn over(block: Block, len: usize) -> Self {
        Self {
            block,
            len,
            elements: PhantomData,
        }
    }
}

impl<T> Buffer<T> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first element.
    pub fn address(&self) -> DeviceAddress {
        self.block.address()
    }

    /// The bytes that the elements take.
    pub fn size(&self) -> u64 {
        self.block.requested()
    }

    /// As [`Block::used_on`].
    ///
    /// # Errors
    /// As [`Block::used_on`].
    pub fn used_on(&self, stream: &Stream) -> Result<(), StreamError> {
        self.block.used_on(stream)
    }

    /// As [`Block::on`].
    ///
    /// # Errors
    /// As [`Block::on`].
    pub fn on(&self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.block.on(stream)
    }

    /// As [`Block::read_on`].
    ///
    /// # Errors
    /// As [`Block::read_on`].
    pub fn read_on(&self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.block.read_on(stream)
    }

    /// As [`Block::write_on`].
    ///
    /// # Errors
    /// As [`Block::write_on`].
    pub fn write_on(&mut self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.block.write_on(stream)
    }

    /// As [`Block::deallocate`].
    #[track_caller]
    pub fn deallocate(self) -> Deallocation {
        self.block.deallocate()
    }

    /// As [`Block::deallocate_on`].
    ///
    /// # Errors
    /// As [`Block::deallocate_on`].
    #[track_caller]
    pub fn deallocate_on(self, stream: &Stream) -> Result<Deallocation, DeallocateError> {
        self.block.deallocate_on(stream)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// The block without its type.
    pub fn into_block(self) -> Block {
        self.block
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("type", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.block)
            .finish()
    }
}
