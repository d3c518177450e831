//! Filling memory: when it is granted or freed, for pools that are built so; and when a caller requests it.
//!
//! A fill is work of the device, in the order of a stream that the block is used on, so that it comes after every
//! earlier use of the memory and before every later one. No thread waits for it.

use super::{Engine, Fill, ordering};
use crate::device::{Captures, Device, DeviceError, DeviceErrorKind};
use crate::id::Ticket;
use crate::lane::Lane;
use crate::sync::{Arc, assert_unlocked};
use std::panic::Location;

/// The fill of one block, or of a part of it.
pub(crate) struct Filling<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) fill: Fill,
    /// Whether the fill is part of the graph that the stream is being captured into.
    pub(crate) is_captured: bool,
    /// Where the block was allocated or freed, or the fill requested.
    pub(crate) location: &'static Location<'static>,
}

impl Filling<'_> {
    /// Fills a block that was granted after the point `after` of the lane's stream. Returns the point that a further
    /// stream must come after: the fill's own.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the caller still has the block. Where the stream does not run its
    /// work now, a fill that is not required is left out: in a graph it would be made again at each launch.
    pub(crate) fn granted(
        &self,
        lane: &Lane,
        after: Ticket,
        is_required: bool,
    ) -> Result<Ticket, DeviceError> {
        match self.submit(lane) {
            Ok(()) if self.is_captured => Ok(after),
            // Any event that is recorded from now on is behind the fill.
            Ok(()) => Ok(ordering::present_point(self.engine, lane)),
            Err(error) if error.kind() == DeviceErrorKind::Unsupported && !is_required => Ok(after),
            Err(error) => Err(error),
        }
    }

    /// Fills a block that is about to be freed, behind all work that its streams were given, and behind an earlier
    /// point of its own stream if that is not among them. Says whether the first of the streams comes after all of
    /// that now, so that the block depends on no other.
    ///
    /// A free reports no error: it is noted, and the memory goes back as it is.
    pub(crate) fn freed(&self, lanes: &[Arc<Lane>], earlier: Option<(&Lane, Ticket)>) -> bool {
        let filler = filler(lanes);
        self.submit_behind(lanes, filler, earlier).is_ok() && filler == 0
    }

    fn submit_behind(
        &self,
        lanes: &[Arc<Lane>],
        filler: usize,
        earlier: Option<(&Lane, Ticket)>,
    ) -> Result<(), DeviceError> {
        let engine = self.engine;
        if let Some((home, after)) = earlier {
            ordering::order_after_grant(engine, home, after, &lanes[filler])?;
        }
        for (at, lane) in lanes.iter().enumerate() {
            if at != filler {
                let marker = ordering::mark(engine, lane)?;
                ordering::order_behind(engine, &lanes[filler], &marker)?;
            }
        }
        self.submit(&lanes[filler])
    }

    /// Submits the fill to the lane's stream.
    ///
    /// # Errors
    /// Returns an error if the device call fails: nothing is filled then.
    pub(crate) fn submit(&self, lane: &Lane) -> Result<(), DeviceError> {
        assert_unlocked("fill");
        let Self { address, bytes, .. } = *self;
        if bytes == 0 {
            return Ok(());
        }
        let (byte, location) = (self.fill.byte(), self.location);
        let device = lane.device(&self.engine.shared.device);
        if self.is_captured {
            let captures = captures_of(&**device, "fill")?;
            // SAFETY: the lane keeps the stream's owner. The memory belongs to the graph, or its user keeps it for the
            // launches; the order within the graph is that of the stream.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            let filled = unsafe { captures.capture_fill(lane.raw, address, bytes, byte, location) };
            return self.engine.shared.noted(filled);
        }
        let _submission = lane.cache.calls.begin("fill")?;
        // SAFETY: the lane keeps the stream's owner. The block's memory is mapped until it is free, which is after the
        // fill, and the fill comes in the order of the block's stream, like the uses of the block.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let filled = unsafe { device.fill(lane.raw, address, bytes, byte, location) };
        self.engine.shared.noted(filled)
    }
}

/// Returns the calls with which the device's streams are captured.
///
/// # Errors
/// Returns an error in the name of `call` if the device has no graphs.
pub(crate) fn captures_of<'a>(
    device: &'a dyn Device,
    call: &'static str,
) -> Result<&'a dyn Captures, DeviceError> {
    device.captures().ok_or_else(|| {
        let reason = "the device has no graphs; submit the work to a stream at each run";
        DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
    })
}

/// Returns which of a block's streams can come after all the others: its own, if it can be made to wait; else another
/// one that can. The host cannot be made to wait, and no stream needs to wait for it.
fn filler(lanes: &[Arc<Lane>]) -> usize {
    let first = |is_able: fn(&Lane) -> bool| lanes.iter().position(|lane| is_able(lane));
    match lanes.len() {
        1 => 0,
        _ => first(|lane| lane.takes_waits)
            .or_else(|| first(|lane| !lane.is_host()))
            .unwrap_or(0),
    }
}
