//! Parts of buffers and blocks that are written alone.

use super::Buffer;
use crate::block::{Access, Block, Part};
use crate::copy::{Elements, Upload};
use crate::device::DeviceAddress;
use crate::engine::Fill;
use crate::error::CopyError;
use crate::stream::Stream;
use bytemuck::{AnyBitPattern, NoUninit, Zeroable};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::Location;

/// A part of a [`Buffer`] or [`Block`], borrowed mutably: no other part overlaps it. For kernels that write one part
/// each, and, with the feature `cuda`, as a `DevicePtrMut` of cudarc's.
///
/// ```
/// # use weirpool::{Buffer, CopyError, Pool, device::sim::{Operation, SimDevice}};
/// # use std::time::Duration;
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let works = [device.create_stream(), device.create_stream()];
/// # let [a, b] = [0, 1].map(|n| pool.register(&works[n]).unwrap());
/// let mut rows = pool.buffer::<f32>(&a, 1000).try_now()?;
/// let (mut top, mut bottom) = rows.split_at_mut(400)?;
/// let parts = [a.record_use(&mut top)?, b.record_use(&mut bottom)?]; // of 1600 and 2400 bytes
/// for (work, part) in works.iter().zip(parts) {
///     let kernel = Operation::new(Duration::from_micros(50));
///     work.submit(kernel.writes(part.address(), part.size())); // both at the same time
/// }
/// assert!(matches!(rows.slice_mut(990..1010), Err(CopyError::OutOfBounds { end: 4040, size: 4000, .. })));
/// # device.advance_to_end();
/// # assert_eq!(device.now(), Duration::from_micros(50));
/// # device.assert_ordered();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A block that is in use by a part cannot be used as a whole:
///
/// ```compile_fail,E0499
/// # use weirpool::{Buffer, Stream};
/// # fn run(mut rows: Buffer<f32>, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
/// let mut head = rows.slice_mut(0..10)?;
/// rows.as_slice_mut().zero(stream)?;
/// head.zero(stream)?;
/// # Ok(()) }
/// ```
///
/// A use of a part is ordered after the earlier uses of the whole block, on every stream, and a later use of the block
/// is ordered after it. Work on another part counts among the earlier uses once it is submitted: make the arguments of
/// all parts first, then submit, so that their work runs at the same time.
#[derive(Debug)]
pub struct SliceMut<'a, T> {
    block: &'a Block,
    /// The bytes from the block's beginning.
    start: u64,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl Block {
    /// Returns a part of the block, in bytes from its beginning, for writing. See [`SliceMut`].
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`] if the range is not within the block's [`size`](Self::size).
    pub fn slice_mut(&mut self, range: Range<u64>) -> Result<SliceMut<'_, u8>, CopyError> {
        Part::new(self, Access::Part, range.clone())?;
        Ok(SliceMut {
            start: range.start,
            len: (range.end - range.start) as usize,
            block: self,
            elements: PhantomData,
        })
    }
}

impl<T> Buffer<T> {
    /// Returns some of the elements, for writing. See [`SliceMut`].
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`], in bytes, if the range is not within the buffer.
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<SliceMut<'_, T>, CopyError> {
        self.as_slice_mut().part(range)
    }

    /// Returns the first `mid` elements, and the rest, each for writing. See [`SliceMut`].
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`], in bytes, if the buffer has fewer elements.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(SliceMut<'_, T>, SliceMut<'_, T>), CopyError> {
        self.as_slice_mut().split(mid)
    }

    /// Returns all elements, for writing. See [`SliceMut`].
    pub fn as_slice_mut(&mut self) -> SliceMut<'_, T> {
        SliceMut {
            block: &self.block,
            start: 0,
            len: self.len,
            elements: PhantomData,
        }
    }
}

/// Converts a range of `len` elements to bytes.
///
/// # Errors
/// Returns [`CopyError::OutOfBounds`], in bytes, if the range is not within the elements.
pub(super) fn bytes_of<T>(len: usize, range: &Range<usize>) -> Result<Range<u64>, CopyError> {
    let bytes = |count: usize| (count as u64).saturating_mul(size_of::<T>() as u64);
    let (start, end) = (bytes(range.start), bytes(range.end));
    if range.start > range.end || range.end > len {
        let size = bytes(len);
        return Err(CopyError::OutOfBounds { start, end, size });
    }
    Ok(start..end)
}

impl<'a, T> SliceMut<'a, T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn size(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Returns the device address of the first element.
    pub fn address(&self) -> DeviceAddress {
        self.block.address() + self.start
    }

    /// Returns some of these elements, for writing.
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`], in bytes, if the range is not within this part.
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<SliceMut<'_, T>, CopyError> {
        self.reborrow().part(range)
    }

    /// Returns the first `mid` elements, and the rest, each for writing.
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`], in bytes, if this part has fewer elements.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(SliceMut<'_, T>, SliceMut<'_, T>), CopyError> {
        self.reborrow().split(mid)
    }

    fn reborrow(&mut self) -> SliceMut<'_, T> {
        SliceMut { ..*self }
    }

    fn part(self, range: Range<usize>) -> Result<Self, CopyError> {
        let start = bytes_of::<T>(self.len, &range)?.start;
        Ok(Self {
            start: self.start + start,
            len: range.len(),
            ..self
        })
    }

    fn split(self, mid: usize) -> Result<(Self, Self), CopyError> {
        let len = self.len;
        // Two views of the block that do not overlap; `self` is the only other one.
        let rest = Self { ..self };
        Ok((self.part(0..mid)?, rest.part(mid..len)?))
    }

    /// Returns these bytes as a call uses them.
    pub(crate) fn as_part(&self, access: Access) -> Part<'a> {
        Part {
            block: self.block,
            access,
            range: self.start..self.start + self.size(),
        }
    }

    pub(crate) fn block(&self) -> &'a Block {
        self.block
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn start(&self) -> u64 {
        self.start
    }
}

impl<T: NoUninit> SliceMut<'_, T> {
    /// Copies elements to this part, from its first one on, as [`Block::upload`].
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let mut sums = pool.buffer::<f32>(&stream, 100).await?;
    /// sums.as_slice_mut().zero(&stream)?;
    /// let _uploaded = sums.slice_mut(10..12)?.upload(&stream, &[0.5, 1.5])?;
    /// assert_eq!(sums.download(&stream, 9..12)?.await?, [0.0, 0.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Block::upload`]. The range in an error is in bytes.
    #[track_caller]
    pub fn upload(&mut self, stream: &Stream, elements: &[T]) -> Result<Upload, CopyError> {
        let target = self.slice_mut(0..elements.len())?.as_part(Access::Part);
        target.upload(stream, bytemuck::cast_slice(elements), Location::caller())
    }
}

impl<T: AnyBitPattern> SliceMut<'_, T> {
    /// Copies the elements of this part to the host, as [`Block::download`].
    ///
    /// # Errors
    /// Returns the errors of [`Block::download`].
    #[track_caller]
    pub fn download(&self, stream: &Stream) -> Result<Elements<T>, CopyError> {
        Ok(self.as_part(Access::Read).download(stream)?.elements())
    }

    /// Fills each byte of this part with one value, in the order of `stream`, as [`Block::fill`].
    ///
    /// # Errors
    /// Returns the errors of [`Block::fill`].
    #[track_caller]
    pub fn fill(&mut self, stream: &Stream, fill: impl Into<Fill>) -> Result<(), CopyError> {
        self.as_part(Access::Part).fill(stream, fill.into())
    }
}

impl<T: Zeroable> SliceMut<'_, T> {
    /// Fills this part with zeros, in the order of `stream`, as [`Block::fill`].
    ///
    /// # Errors
    /// Returns the errors of [`Block::fill`].
    #[track_caller]
    pub fn zero(&mut self, stream: &Stream) -> Result<(), CopyError> {
        self.as_part(Access::Part).fill(stream, Fill::Zero)
    }
}
