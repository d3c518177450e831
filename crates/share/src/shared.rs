//! Blocks with several owners, and parts of blocks.

use bytemuck::AnyBitPattern;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use weirpool::device::{Argument, DeviceAddress};
use weirpool::{AccessOrder, Accesses, Block, Buffer, CopyError, Download, Stream, StreamError};

/// Shares blocks and buffers.
pub trait Share {
    /// The owner.
    type Shared;

    /// Returns the first owner of this memory. It is freed when its last owner is dropped, in the order of all streams
    /// that it was used on.
    fn share(self) -> Self::Shared;
}

/// An owner of a [`Block`], or of a part of it.
///
/// It is cheap to clone, and to restrict to a part. Each use on a stream is noted in the block's fences, whichever
/// owner declares it. Dropping the last owner frees the block, in the order of all those streams.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_share::Share;
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let (work, other_work) = (device.create_stream(), device.create_stream());
/// # let (stream, other) = (pool.register(&work)?, pool.register(&other_work)?);
/// let weights = pool.try_allocate(&stream, 1 << 20)?.share();
/// let bias = weights.view(4096..8192)?; // keeps the whole block
/// drop(weights);
/// assert_eq!(bias.size(), 4096);
/// other.record_use(&bias)?; // before work of another stream reads it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a block is freed when its last owner is dropped"]
pub struct SharedBlock {
    block: Arc<Block>,
    /// The offset from the beginning of the block, in bytes.
    start: u64,
    bytes: u64,
}

impl SharedBlock {
    /// Returns the device address of the first byte.
    pub fn address(&self) -> DeviceAddress {
        self.block.address() + self.start
    }

    /// Returns the size of this part in bytes.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// Returns the block that this is a part of.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns a part of this part. The range is in bytes from its beginning.
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`] if the range exceeds this part.
    pub fn view(&self, range: Range<u64>) -> Result<Self, CopyError> {
        let within = self.within(&range)?;
        Ok(Self {
            block: self.block.clone(),
            start: within.start,
            bytes: within.end - within.start,
        })
    }

    /// Converts a range of this part to a range of the block.
    fn within(&self, range: &Range<u64>) -> Result<Range<u64>, CopyError> {
        if range.start > range.end || range.end > self.bytes {
            return Err(CopyError::OutOfBounds {
                start: range.start,
                end: range.end,
                size: self.bytes,
            });
        }
        Ok(self.start + range.start..self.start + range.end)
    }

    /// Returns the range of this part in the block, in bytes.
    fn part(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    fn part_of<'a>(&self, block: Argument<'a>) -> Argument<'a> {
        let part = block.part(self.part());
        part.expect("a part lies within its block")
    }

    /// Copies bytes to the host; see [`Block::download`]. The range is counted from the beginning of this part.
    ///
    /// # Errors
    /// Returns the errors of [`Block::download`].
    #[track_caller]
    pub fn download(&self, stream: &Stream, range: Range<u64>) -> Result<Download, CopyError> {
        let within = self.within(&range)?;
        self.block.download(stream, within)
    }

    /// Returns the block if this is its last owner.
    ///
    /// # Errors
    /// Returns this owner again if there are others.
    pub fn into_block(self) -> Result<Block, Self> {
        let Self {
            block,
            start,
            bytes,
        } = self;
        Arc::try_unwrap(block).map_err(|block| Self {
            block,
            start,
            bytes,
        })
    }
}

impl fmt::Debug for SharedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBlock")
            .field("start", &self.start)
            .field("bytes", &self.bytes)
            .field("block", &self.block)
            .finish()
    }
}

/// An owner of a [`Buffer`], or of some of its elements. It behaves like [`SharedBlock`].
///
/// ```
/// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
/// # use weirpool_share::Share;
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let cache = pool.buffer::<f32>(&stream, 1000).try_now()?.share();
/// let head = cache.view(0..10)?;
/// assert_eq!((cache.len(), head.len(), head.address()), (1000, 10, cache.address()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a buffer is freed when its last owner is dropped"]
pub struct SharedBuffer<T> {
    block: SharedBlock,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T> SharedBuffer<T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the device address of the first element.
    pub fn address(&self) -> DeviceAddress {
        self.block.address()
    }

    /// Returns an owner of some of these elements.
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`], with figures in bytes, if the range exceeds these elements.
    pub fn view(&self, range: Range<usize>) -> Result<Self, CopyError> {
        let bytes = |count: usize| (count as u64).saturating_mul(size_of::<T>() as u64);
        let (start, end) = (bytes(range.start), bytes(range.end));
        if range.start > range.end || range.end > self.len {
            let size = self.block.bytes;
            return Err(CopyError::OutOfBounds { start, end, size });
        }
        Ok(Self {
            block: self.block.view(start..end)?,
            len: range.len(),
            elements: PhantomData,
        })
    }

    /// Copies the elements to the host; see [`Buffer::read`].
    ///
    /// # Errors
    /// Returns the errors of [`Block::download`].
    ///
    /// # Cancel safety
    /// See [`Buffer::read`].
    #[track_caller]
    #[must_use = "the future returns the elements when it is awaited"]
    pub fn read(
        &self,
        stream: &Stream,
    ) -> impl Future<Output = Result<Vec<T>, CopyError>> + Send + use<T>
    where
        T: AnyBitPattern,
    {
        let SharedBlock { block, .. } = &self.block;
        let download = block.download(stream, self.block.part());
        async move { Ok(download.map(Download::elements)?.await?) }
    }

    /// Returns the owner without its element type.
    pub fn into_shared_block(self) -> SharedBlock {
        self.block
    }
}

impl Share for Block {
    type Shared = SharedBlock;

    fn share(self) -> SharedBlock {
        SharedBlock {
            start: 0,
            bytes: self.size(),
            block: Arc::new(self),
        }
    }
}

impl<T> Share for Buffer<T> {
    type Shared = SharedBuffer<T>;

    fn share(self) -> SharedBuffer<T> {
        let len = self.len();
        let mut block = self.into_block().share();
        // The block may be larger than the elements.
        block.bytes = len as u64 * size_of::<T>() as u64;
        SharedBuffer {
            block,
            len,
            elements: PhantomData,
        }
    }
}

impl<T> Clone for SharedBuffer<T> {
    fn clone(&self) -> Self {
        Self {
            block: self.block.clone(),
            len: self.len,
            elements: PhantomData,
        }
    }
}

impl<T> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("type", &std::any::type_name::<T>())
            .field("len", &self.len())
            .field("block", &self.block)
            .finish()
    }
}

impl<'a> Accesses for &'a SharedBlock {
    type Arguments = Argument<'a>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Argument<'a>, StreamError> {
        Ok(self.part_of(self.block().order(order)?))
    }
}

impl<'a, T> Accesses for &'a SharedBuffer<T> {
    type Arguments = Argument<'a>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Argument<'a>, StreamError> {
        (&self.block).order(order)
    }
}

/// Gives parts to cudarc's copies and libraries, as `weirpool` gives blocks.
#[cfg(feature = "cuda")]
mod cuda {
    use super::{SharedBlock, SharedBuffer};
    use std::sync::Arc;
    use weirpool::device::cuda::native::{
        CUdeviceptr, CudaStream, DevicePtr, DeviceSlice, SyncOnDrop,
    };

    /// Gives cudarc the part's bytes as a slice, as far as they were requested.
    impl DeviceSlice<u8> for SharedBlock {
        fn len(&self) -> usize {
            let requested = self.block.requested().saturating_sub(self.start);
            self.bytes.min(requested) as usize
        }

        fn stream(&self) -> &Arc<CudaStream> {
            DeviceSlice::stream(self.block())
        }
    }

    /// Gives cudarc the part's bytes to read. [`Stream::record_use`](weirpool::Stream::record_use) describes how the use is ordered.
    impl DevicePtr<u8> for SharedBlock {
        fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
            let (block, submitted) = self.block().device_ptr(stream);
            (block + self.start, submitted)
        }
    }

    /// Gives cudarc the elements of a shared buffer as a slice.
    impl<T> DeviceSlice<T> for SharedBuffer<T> {
        fn len(&self) -> usize {
            self.len()
        }

        fn stream(&self) -> &Arc<CudaStream> {
            DeviceSlice::stream(self.block.block())
        }
    }

    /// Gives cudarc the elements of a shared buffer to read. [`Stream::record_use`](weirpool::Stream::record_use) describes how the use is ordered.
    impl<T> DevicePtr<T> for SharedBuffer<T> {
        fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
            self.block.device_ptr(stream)
        }
    }
}
