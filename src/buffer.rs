//! A block of so many elements of a type.

use crate::block::{Block, DeallocateError, Deallocation};
use crate::copy::{Elements, Upload};
use crate::device::{Argument, DeviceAddress};
use crate::error::{AllocError, CopyError, StreamError};
use crate::pool::Pool;
use crate::stream::Stream;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// Device memory for `len` elements of `T`, owned; otherwise as [`Block`].
///
/// The elements live on the device: the host never has a reference to one, so the memory is whatever
/// it was before until work of the stream writes it.
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
        let block = pool.try_allocate_aligned(stream, bytes, align_of::<T>() as u64)?;
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

    /// The block without its type.
    pub fn into_block(self) -> Block {
        self.block
    }
}

impl<T: bytemuck::NoUninit> Buffer<T> {
    /// Copies elements into the buffer, from the one numbered `at` on; otherwise as [`Block::upload`].
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let buffer = Buffer::<f32>::allocate(&pool, &stream, 100).await?;
    /// let _uploaded = buffer.upload(&stream, 10, &[0.5, 1.5])?;
    /// assert_eq!(buffer.download(&stream, 10..12)?.await?, [0.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Block::upload`]; the range is said in bytes.
    #[track_caller]
    pub fn upload(&self, stream: &Stream, at: usize, elements: &[T]) -> Result<Upload, CopyError> {
        let range = self.bytes_of(at..at.saturating_add(elements.len()))?;
        self.block
            .upload(stream, range.start, bytemuck::cast_slice(elements))
    }
}

impl<T: bytemuck::AnyBitPattern> Buffer<T> {
    /// Copies the elements of a range to the host; otherwise as [`Block::download`]. See
    /// [`upload`](Self::upload) for an example.
    ///
    /// # Errors
    /// As [`Block::download`]; the range is said in bytes.
    #[track_caller]
    pub fn download(&self, stream: &Stream, range: Range<usize>) -> Result<Elements<T>, CopyError> {
        let range = self.bytes_of(range)?;
        Ok(Elements::new(self.block.download(stream, range)?))
    }
}

impl<T> Buffer<T> {
    /// A range of elements, in bytes. (The block may be larger than the elements.)
    pub(crate) fn bytes_of(&self, range: Range<usize>) -> Result<Range<u64>, CopyError> {
        let bytes = |count: usize| (count as u64).saturating_mul(size_of::<T>() as u64);
        let (start, end) = (bytes(range.start), bytes(range.end));
        if range.start > range.end || range.end > self.len {
            let size = bytes(self.len);
            return Err(CopyError::OutOfBounds { start, end, size });
        }
        Ok(start..end)
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
