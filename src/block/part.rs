//! Parts of a block, as calls use them.

use super::{Access, Block};
use crate::copy::{Download, Upload};
use crate::device::Argument;
use crate::engine::{Fill, Filling, captures_of};
use crate::error::{CopyError, StreamError};
use crate::foreign::Resident;
use crate::handles::Registration;
use crate::stream::Stream;
use crate::sync::Arc;
use std::ops::Range;
use std::panic::Location;

/// Some bytes of a block, counted from its beginning, which lie within it, and how a call uses them.
pub(crate) struct Part<'a> {
    pub(crate) block: &'a Block,
    pub(crate) access: Access,
    pub(crate) range: Range<u64>,
}

impl<'a> Part<'a> {
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`] if the range is not within the block.
    pub(crate) fn new(
        block: &'a Block,
        access: Access,
        range: Range<u64>,
    ) -> Result<Self, CopyError> {
        let (Range { start, end }, size) = (range.clone(), block.size());
        if start > end || end > size {
            return Err(CopyError::OutOfBounds { start, end, size });
        }
        Ok(Self {
            block,
            access,
            range,
        })
    }

    pub(crate) fn whole(block: &'a Block, access: Access) -> Self {
        let range = 0..block.size();
        Self {
            block,
            access,
            range,
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.block.allocation().address + self.range.start
    }

    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the part as an argument of work on a stream, and notes the use; see [`Stream::record_use`].
    pub(crate) fn argument(&self, stream: &Stream) -> Result<Argument<'a>, StreamError> {
        let (on, uses) = (self.block.own(stream)?, self.block.uses());
        match self.access {
            Access::Read | Access::Write | Access::Part => uses.order(on, self.access)?,
            Access::Any | Access::Always => uses.record(on, self.access)?,
        }
        Ok(Argument::new(self.address(), self.bytes()))
    }

    /// Returns the part as an argument of work on a stream that its user ordered after the grant.
    pub(crate) fn argument_ordered_by_user(
        &self,
        stream: &Stream,
    ) -> Result<Argument<'a>, StreamError> {
        let on = self.block.own(stream)?;
        self.block.uses().record_ordered_by_user(on);
        Ok(Argument::new(self.address(), self.bytes()))
    }

    /// Holds the memory for a use on a stream until that is submitted, and orders the stream.
    fn begin<'s>(
        &self,
        stream: &'s Stream,
    ) -> Result<(&'s Arc<Registration>, Option<Resident>), CopyError> {
        let (on, uses) = (self.block.own(stream)?, self.block.uses());
        let resident = uses.hold_for(on)?;
        uses.order(on, self.access)?;
        Ok((on, resident))
    }

    /// Copies bytes into the part, which is as large; see [`Block::upload`].
    pub(crate) fn upload(
        &self,
        stream: &Stream,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<Upload, CopyError> {
        let (on, _resident) = self.begin(stream)?;
        let Registration { service, lane, .. } = &**on;
        let device = lane.device(&service.engine.shared.device);
        if lane.cache.is_captured() {
            let captures = captures_of(&**device, "upload")?;
            // SAFETY: as below, at each launch: the graph keeps the block.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            let captured =
                unsafe { captures.capture_upload(lane.raw, self.address(), bytes, location) };
            service.engine.shared.noted(captured)?;
            return Ok(Upload::captured());
        }
        // SAFETY: the lane keeps the stream's owner. The memory stays mapped until this block is freed and the stream
        // has passed the free, since the use is noted; and the copy is ordered after every other use.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let transfer = unsafe { device.upload(lane.raw, self.address(), bytes, location) };
        let transfer = service.engine.shared.noted(transfer)?;
        Ok(Upload::new(on.clone(), transfer))
    }

    /// Copies the part to the host; see [`Block::download`].
    #[track_caller]
    pub(crate) fn download(&self, stream: &Stream) -> Result<Download, CopyError> {
        let (on, _resident) = self.begin(stream)?;
        let Registration { service, lane, .. } = &**on;
        let (device, location) = (
            lane.device(&service.engine.shared.device),
            Location::caller(),
        );
        // SAFETY: as for `upload`; the copy is ordered after every use that may have written the block.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let transfer = unsafe { device.download(lane.raw, self.address(), self.bytes(), location) };
        let transfer = service.engine.shared.noted(transfer)?;
        Ok(Download::new(on.clone(), transfer))
    }

    /// Fills the part; see [`Block::fill`].
    #[track_caller]
    pub(crate) fn fill(&self, stream: &Stream, fill: Fill) -> Result<(), CopyError> {
        let (on, _resident) = self.begin(stream)?;
        let filling = Filling {
            engine: &on.service.engine,
            address: self.address(),
            bytes: self.bytes(),
            fill,
            is_captured: on.lane.cache.is_captured(),
            location: Location::caller(),
        };
        Ok(filling.submit(&on.lane)?)
    }
}
