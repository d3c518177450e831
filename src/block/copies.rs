//! Copies between a block and the host.

use super::{Access, Block};
use crate::copy::{Download, Upload};
use crate::device::DeviceError;
use crate::error::CopyError;
use crate::queue::Registration;
use crate::stream::Stream;
use crate::sync::Arc;
use std::ops::Range;
use std::panic::Location;

impl Block {
    /// Copies `bytes` into the block, `offset` bytes from its beginning, in the order of `stream`. The
    /// bytes are taken before this returns; the future says when the copy is complete.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let block = pool.allocate(&stream, 1024).await?;
    /// let _uploaded = block.upload(&stream, 0, b"weir")?; // what is submitted now comes after it
    /// assert_eq!(block.download(&stream, 1..4)?.await?, b"eir");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Like [`on`](Self::on) it comes after the grant, and after nothing else of other streams: a kernel may be
    /// told something while it runs.
    ///
    /// # Errors
    /// When the bytes do not fit there, as [`used_on`](Self::used_on), or when the device cannot copy.
    /// Nothing is copied then, save where the device could not record the event behind the copy.
    #[track_caller]
    pub fn upload(&self, stream: &Stream, offset: u64, bytes: &[u8]) -> Result<Upload, CopyError> {
        let address = self.place_of(offset, offset.saturating_add(bytes.len() as u64))?;
        self.expect_of_pool(stream)?;
        self.note_use(stream.registration(), Access::Any)?;
        Ok(start_upload(stream, address, bytes)?)
    }

    /// Copies the bytes of `range`, counted from the block's beginning, to the host, in the order of
    /// `stream`. The future is ready with them. See [`upload`](Self::upload) for an example, and for the order.
    ///
    /// # Errors
    /// When the range is not within the block, as [`used_on`](Self::used_on), or when the device cannot
    /// copy.
    #[track_caller]
    pub fn download(&self, stream: &Stream, range: Range<u64>) -> Result<Download, CopyError> {
        let address = self.place_of(range.start, range.end)?;
        self.expect_of_pool(stream)?;
        self.note_use(stream.registration(), Access::Read)?;
        Ok(start_download(stream, address, range.end - range.start)?)
    }

    /// The same as [`upload`](Self::upload), after all earlier uses.
    #[track_caller]
    pub(crate) fn write(
        &mut self,
        stream: &Stream,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Upload, CopyError> {
        let address = self.place_of(offset, offset.saturating_add(bytes.len() as u64))?;
        self.expect_of_pool(stream)?;
        self.use_in_order(stream.registration(), Access::Write)?;
        Ok(start_upload(stream, address, bytes)?)
    }

    /// The same as [`download`](Self::download), after all that may have written the block.
    #[track_caller]
    pub(crate) fn read(&self, stream: &Stream, range: Range<u64>) -> Result<Download, CopyError> {
        let address = self.place_of(range.start, range.end)?;
        self.expect_of_pool(stream)?;
        self.use_in_order(stream.registration(), Access::Read)?;
        Ok(start_download(stream, address, range.end - range.start)?)
    }

    /// The address of a range within the block.
    fn place_of(&self, start: u64, end: u64) -> Result<u64, CopyError> {
        if start > end || end > self.size() {
            return Err(CopyError::OutOfBounds {
                start,
                end,
                size: self.size(),
            });
        }
        Ok(self.allocation().address + start)
    }
}

#[track_caller]
fn start_upload(stream: &Stream, address: u64, bytes: &[u8]) -> Result<Upload, DeviceError> {
    let registration: &Arc<Registration> = stream.registration();
    let Registration { service, lane, .. } = &**registration;
    let device = &service.driver.device;
    // SAFETY: the lane keeps the stream's owner. The caller has the block, whose memory stays mapped until it is freed and
    // the stream has passed the free; `used_on` has noted this use.
    #[allow(unsafe_code)]
    let transfer = unsafe { device.upload(lane.raw, address, bytes, Location::caller()) };
    let transfer = service.driver.noted(transfer)?;
    Ok(Upload::new(registration.clone(), transfer))
}

#[track_caller]
fn start_download(stream: &Stream, address: u64, bytes: u64) -> Result<Download, DeviceError> {
    let registration: &Arc<Registration> = stream.registration();
    let Registration { service, lane, .. } = &**registration;
    let device = &service.driver.device;
    // SAFETY: as in `start_upload`.
    #[allow(unsafe_code)]
    let transfer = unsafe { device.download(lane.raw, address, bytes, Location::caller()) };
    let transfer = service.driver.noted(transfer)?;
    Ok(Download::new(registration.clone(), transfer))
}
