//! Device memory for elements of a type.
//!
//! | file | about |
//! |---|---|
//! | `mod` | the buffer: a block of elements |
//! | `allocate` | requests for buffers |
//! | `copies` | elements between a buffer and the host |
//! | `slice` | parts of a buffer that are written alone |
#![allow(
    private_interfaces,
    reason = "the traits of requests are sealed: users cannot name them, nor what their methods take"
)]

mod allocate;
mod copies;
mod slice;

pub use allocate::AllocateBuffer;
pub use slice::SliceMut;

use crate::block::Block;
use crate::device::DeviceAddress;
use crate::measure::Bytes;
use crate::pool::{Layout, Pool, Request};
use crate::stream::Stream;
use bytemuck::{AnyBitPattern, Zeroable};
use std::marker::PhantomData;
use std::panic::Location;

/// Device memory for `len` elements of `T`, owned; otherwise as [`Block`].
///
/// The elements live on the device. Unless they were allocated [zeroed](Self::allocate_zeroed), they are whatever the
/// memory was before. The host has references to them in a [guard](Self::host) only, in memory that it sees.
///
/// ```
/// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// # device.block_on(async {
/// let weights: Buffer<f32> = pool.buffer(&stream, 1 << 20).await?;
/// assert_eq!((weights.len(), weights.as_block().size()), (1 << 20, 4 << 20));
/// # Ok::<(), weirpool::AllocError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a buffer is freed when it is dropped"]
pub struct Buffer<T> {
    block: Block,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Creates a buffer of `len` elements in a block that was requested with [terms](crate::Request), drawn from a
    /// [reservation](crate::Reservation), or received. The elements are whatever the block holds.
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let block = pool.allocate(&stream, 4000).tag(Tag::new("logits")).zeroed().await?;
    /// let logits = Buffer::<f32>::from_block(block, 1000)?;
    /// assert_eq!(logits.read(&stream).await?, [0.0; 1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the block if it is too small, or not aligned for `T`.
    pub fn from_block(block: Block, len: usize) -> Result<Self, FromBlockError> {
        let needed = Layout {
            bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
            alignment: align_of::<T>() as u64,
        };
        if block.size() < needed.bytes || !block.address().is_aligned_to(needed.alignment) {
            return Err(FromBlockError { block, needed });
        }
        Ok(Self::over(block, len))
    }
}

impl<T: Zeroable + Copy + 'static> Buffer<T> {
    /// Allocates `len` elements, aligned for `T` and filled with zeros, and waits for memory if there is none.
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let flags = Buffer::<bool>::allocate_zeroed(&pool, &stream, 100).await?;
    /// let bytes = flags.into_block().download(&stream, 0..100)?.await?;
    /// assert_eq!(bytes, [0; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// See [`Request`] for the terms of waiting and errors.
    #[track_caller]
    pub fn allocate_zeroed<'a>(
        pool: &'a Pool,
        stream: &'a Stream,
        len: usize,
    ) -> AllocateBuffer<'a, T> {
        let kind = allocate::ForBuffer::new(pool, stream, len);
        Request::new(kind, Location::caller()).zeroed()
    }
}

impl<T> Buffer<T> {
    fn over(block: Block, len: usize) -> Self {
        Self {
            block,
            len,
            elements: PhantomData,
        }
    }
}

impl<T> Buffer<T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device address of the first element.
    pub fn address(&self) -> DeviceAddress {
        self.block.address()
    }

    /// Returns the block, which may be larger than the elements.
    pub fn as_block(&self) -> &Block {
        &self.block
    }

    /// Returns the block without its type, to free it on another stream or to move it.
    pub fn into_block(self) -> Block {
        self.block
    }
}

/// The error of [`Buffer::from_block`]: the elements do not fit. Nothing is lost: it holds the block.
#[derive(Debug, thiserror::Error)]
#[error(
    "the elements need {}, aligned to {}, and the block has {} at {}; request as many bytes, with `alignment`",
    Bytes(needed.bytes), Bytes(needed.alignment), Bytes(block.size()), block.address()
)]
pub struct FromBlockError {
    /// The block, still allocated.
    pub block: Block,
    /// What the elements need.
    pub needed: Layout,
}
