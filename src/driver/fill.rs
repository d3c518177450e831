//! Memory that is filled when it is granted, or when it is freed, where a pool was asked to.
//!
//! A fill is work of the device, in the order of a stream that the block is used on, so that it comes after
//! all that was done with the memory before and before all that is done with it later. Nobody waits for it.

use super::Driver;
use crate::device::{DeviceError, DeviceErrorKind};
use crate::id::Ticket;
use crate::lane::{Lane, Use};
use crate::sync::{Arc, assert_unlocked};
use std::panic::Location;

/// What memory is filled with: see [`PoolBuilder::fill_on_allocate`](crate::PoolBuilder::fill_on_allocate) and
/// [`PoolBuilder::fill_on_free`](crate::PoolBuilder::fill_on_free), and the
/// [page on debugging](crate::guide::observability) for when each is of use.
///
/// ```
/// use weirpool::Fill;
///
/// let poison = [Fill::Poison.byte(); 4];
/// assert!(f32::from_ne_bytes(poison).is_nan());
/// assert_eq!(i32::from_ne_bytes(poison), -1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Fill {
    /// Zeros.
    Zero,
    /// `0xff`: not a number in every type of floating point, down to those of 8 bits, and so in whatever is
    /// computed from it; -1 as an integer, which is no index; nobody's address. (PyTorch fills memory that
    /// nobody wrote with NaN and the largest integers for the same reason.)
    Poison,
    /// A byte of one's own: to tell memory that was never written from memory that was freed, as jemalloc does
    /// with `0xa5` and `0x5a`.
    Byte(u8),
}

impl Fill {
    /// The byte that is written.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::Poison => 0xff,
            Self::Byte(byte) => byte,
        }
    }
}

/// When a pool fills its memory, and with what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fills {
    pub(crate) on_allocate: Option<Fill>,
    pub(crate) on_free: Option<Fill>,
}

impl Fills {
    pub(crate) fn are_asked_for(self) -> bool {
        self.on_allocate.is_some() || self.on_free.is_some()
    }
}

impl Driver {
    /// Fills a block that was granted after the point `after` of the lane's stream. Returns the point that a
    /// further stream must come after now: the fill's own.
    ///
    /// # Errors
    /// When the device cannot; the block is the caller's still. Where the stream does not run now what it is
    /// given, the fill is left out: in a graph it would be made again at each launch.
    pub(crate) fn fill_granted(
        &self,
        lane: &Lane,
        after: Ticket,
        block: Use,
        fill: Fill,
        location: &'static Location<'static>,
    ) -> Result<Ticket, DeviceError> {
        match self.fill(lane, block, fill, location) {
            // Whatever closes it from now on closes it behind the fill.
            Ok(()) => Ok(self.present_point(lane)),
            Err(error) if error.kind() == DeviceErrorKind::Unsupported => Ok(after),
            Err(error) => Err(error),
        }
    }

    /// Fills a block that is about to be freed, behind all that the streams that it was used on have been
    /// given, and behind an earlier point of its own stream, if that is not among them. Says whether the first of
    /// the streams comes after all of that now, so that the block is free of the others.
    ///
    /// A free has nobody to tell of an error: it is noted, and the memory goes back as it is.
    pub(crate) fn fill_freed(
        &self,
        lanes: &[Arc<Lane>],
        earlier: Option<(&Lane, Ticket)>,
        block: Use,
        fill: Fill,
        location: &'static Location<'static>,
    ) -> bool {
        let filler = filler(lanes);
        let after_earlier = earlier.map_or(Ok(()), |(home, after)| {
            self.order_after_grant(home, after, &lanes[filler])
        });
        let filled = after_earlier
            .and_then(|()| self.flush_behind(lanes, filler))
            .and_then(|()| self.fill(&lanes[filler], block, fill, location));
        filled.is_ok() && filler == 0
    }

    /// Makes one of the streams wait, on the device, for what the others were given so far.
    fn flush_behind(&self, lanes: &[Arc<Lane>], filler: usize) -> Result<(), DeviceError> {
        for (at, lane) in lanes.iter().enumerate() {
            if at != filler {
                let marker = self.mark(lane)?;
                self.order_behind(&lanes[filler], &marker)?;
            }
        }
        Ok(())
    }

    fn fill(
        &self,
        lane: &Lane,
        block: Use,
        fill: Fill,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        assert_unlocked("fill");
        let Use { address, bytes, .. } = block;
        // SAFETY: the lane keeps the stream's owner. The block's memory is mapped until it is free, which is after the
        // fill, and the fill comes in the order of the block's stream, like the uses of the block.
        #[allow(unsafe_code)]
        let filled = unsafe { (self.device).fill(lane.raw, address, bytes, fill.byte(), location) };
        self.noted(filled)
    }
}

/// Which of the streams that a block was used on can come after all the others: its own, if it can be made to
/// wait; else another that can. The host is not made to wait, and nobody need wait for it.
fn filler(lanes: &[Arc<Lane>]) -> usize {
    let first = |is_able: fn(&Lane) -> bool| lanes.iter().position(|lane| is_able(lane));
    match lanes.len() {
        1 => 0,
        _ => first(|lane| lane.takes_waits)
            .or_else(|| first(|lane| !lane.is_host()))
            .unwrap_or(0),
    }
}
