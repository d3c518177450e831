//! Copies of elements between a buffer and the host.

use super::{Buffer, slice};
use crate::block::HostGuard;
use crate::copy::{Download, Elements, Upload};
use crate::error::{CopyError, StreamError};
use crate::stream::Stream;
use bytemuck::{AnyBitPattern, NoUninit};
use std::ops::Range;
use std::panic::Location;

impl<T> Buffer<T> {
    /// Copies all elements to the beginning of another buffer, of any pool and of any device of the same host, in the
    /// order of `stream`; see [`Block::copy_to`](crate::Block::copy_to).
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
    /// # let [first, second] = SimDevice::builder().build_host();
    /// # let pools = [Pool::builder(first.clone()).build()?, Pool::builder(second).build()?];
    /// # let streams = [pools[0].create_stream()?, pools[1].create_stream()?];
    /// # first.block_on(async {
    /// let mut here = pools[0].buffer::<f32>(&streams[0], 3).await?;
    /// let mut there = pools[1].buffer::<f32>(&streams[1], 3).await?;
    /// here.write(&streams[0], &[0.5, 1.5, 2.5]).await?;
    /// here.copy_to(&mut there, &streams[0])?.await?;
    /// assert_eq!(there.read(&streams[1]).await?, [0.5, 1.5, 2.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Block::copy_to`](crate::Block::copy_to), with the range in bytes.
    #[track_caller]
    pub fn copy_to(&self, to: &mut Self, stream: &Stream) -> Result<Upload, CopyError> {
        let range = self.bytes_of(0..self.len)?;
        to.bytes_of(0..self.len)?;
        self.block.copy_to(range, &mut to.block, 0, stream)
    }
}

impl<T: NoUninit> Buffer<T> {
    /// Copies elements to the beginning of the buffer, after all earlier uses on every stream. Later uses are ordered
    /// after the copy as after a [use that writes](crate::Stream::record_use). When this returns, the elements are taken
    /// and the copy is submitted; the future is ready once the copy is complete.
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # let other = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let mut buffer = pool.buffer::<f32>(&stream, 3).await?;
    /// buffer.write(&stream, &[0.5, 1.5, 2.5]).await?;
    /// assert_eq!(buffer.read(&other).await?, [0.5, 1.5, 2.5]); // after the write
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Block::upload`](crate::Block::upload), with the range in bytes.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting. The copy still takes place.
    #[track_caller]
    #[must_use = "errors are returned when the future is awaited"]
    pub fn write(
        &mut self,
        stream: &Stream,
        elements: &[T],
    ) -> impl Future<Output = Result<(), CopyError>> + Send + use<T> {
        let upload = self.start_write(stream, elements);
        async move { Ok(upload?.await?) }
    }

    #[track_caller]
    fn start_write(&mut self, stream: &Stream, elements: &[T]) -> Result<Upload, CopyError> {
        let range = self.bytes_of(0..elements.len())?;
        let bytes = bytemuck::cast_slice(elements);
        self.block.upload(stream, range.start, bytes)
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Copies the elements of a range to the host; otherwise as [`Block::download`](crate::Block::download).
    ///
    /// # Errors
    /// Returns the errors of [`Block::download`](crate::Block::download), with the range in bytes.
    #[track_caller]
    pub fn download(&self, stream: &Stream, range: Range<usize>) -> Result<Elements<T>, CopyError> {
        let range = self.bytes_of(range)?;
        Ok(self.block.download(stream, range)?.elements())
    }

    /// Copies all elements to the host, after all work that may have written them on any stream; see
    /// [`Stream::record_use`], and [`write`](Self::write) for an example. When this returns, the
    /// copy is submitted; the future is ready with the elements.
    ///
    /// # Errors
    /// Returns the errors of [`Block::download`](crate::Block::download).
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting. Host memory that the copy needs lives until the copy is complete.
    #[track_caller]
    #[must_use = "the future returns the elements when it is awaited"]
    pub fn read(
        &self,
        stream: &Stream,
    ) -> impl Future<Output = Result<Vec<T>, CopyError>> + Send + use<T> {
        let download = self.start_read(stream, self.len);
        async move { Ok(download?.elements().await?) }
    }
}

impl<T: AnyBitPattern + NoUninit> Buffer<T> {
    /// Copies the first elements to the host, as many as the slice holds; otherwise as [`read`](Self::read).
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// # let mut buffer = pool.buffer::<u16>(&stream, 3).await?;
    /// # buffer.write(&stream, &[7, 8, 9]).await?;
    /// let mut first = [0; 2];
    /// buffer.read_into(&stream, &mut first).await?;
    /// assert_eq!(first, [7, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Block::download`](crate::Block::download), with the range in bytes.
    ///
    /// # Cancel safety
    /// A poll of the future writes the slice; the device never does. After the future is dropped or forgotten, the
    /// slice is not written.
    #[track_caller]
    pub fn read_into<'a>(
        &self,
        stream: &Stream,
        into: &'a mut [T],
    ) -> impl Future<Output = Result<(), CopyError>> + Send + use<'a, T> {
        let download = self.start_read(stream, into.len());
        let into: &'a mut [u8] = bytemuck::cast_slice_mut(into);
        async move { Ok(download?.copy_to(into).await?) }
    }

    /// Returns the elements for the host to read and write in place; see [`Block::host`](crate::Block::host).
    ///
    /// ```
    /// # use weirpool::{Buffer, Pool, Upstream, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).upstream(Upstream::Managed).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let mut buffer = pool.buffer::<u32>(&stream, 100).await?;
    /// for (n, element) in buffer.host().await?.iter_mut().enumerate() {
    ///     *element = n as u32;
    /// }
    /// assert_eq!(buffer.read(&stream).await?[99], 99);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Block::host`](crate::Block::host).
    ///
    /// # Cancel safety
    /// See [`Block::host`](crate::Block::host).
    #[track_caller]
    #[must_use = "the future returns the elements when it is awaited"]
    pub fn host(&mut self) -> impl Future<Output = Result<HostGuard<'_, T>, StreamError>> + Send {
        let len = self.len;
        HostGuard::of(&mut self.block, len, Location::caller())
    }
}

impl<T> Buffer<T> {
    #[track_caller]
    fn start_read(&self, stream: &Stream, count: usize) -> Result<Download, CopyError> {
        let range = self.bytes_of(0..count)?;
        self.block.download(stream, range)
    }

    /// Converts a range of elements to bytes. It is checked against the elements, since the block may be larger.
    pub(crate) fn bytes_of(&self, range: Range<usize>) -> Result<Range<u64>, CopyError> {
        slice::bytes_of::<T>(self.len, &range)
    }
}
