//! Requests to the heap, the streams that make them, and the grants.

use super::block::BlockId;
use super::fence::{Clock, Fence, Fences};
use super::forecast::Forecast;
use crate::id::{ReservationId, StreamId, Ticket};

/// A request. Its size is already rounded, and does not exceed the capacity.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The size.
    pub bytes: u64,
    /// The alignment of the address, in bytes.
    pub alignment: u64,
}

/// Where a request is to lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// At any address.
    #[default]
    Anywhere,
    /// At the end of this block, which is used or set aside and ends at this address. The block may be gone by now.
    Above(BlockId, u64),
    /// Where this many bytes of addresses above the request can be kept for it. The request and its room are whole
    /// chunks.
    WithRoom(u64),
}

impl Placement {
    /// Returns how many bytes of addresses a request needs, with its room.
    pub fn needs(self, bytes: u64) -> u64 {
        match self {
            Self::Anywhere | Self::Above(..) => bytes,
            Self::WithRoom(room) => bytes.saturating_add(room),
        }
    }
}

/// The requester: which fences do not exclude a block.
pub struct View<'a> {
    /// The stream that asks.
    pub stream: StreamId,
    /// The points before the stream's next work, as far as the policy counts them.
    pub after: &'a Clock,
    /// For each further fence that the stream may be made to wait for on the device, when it is expected to be
    /// complete.
    pub waits: Option<&'a dyn Fn(Fence) -> Option<Forecast>>,
    /// Where the memory may be.
    pub placement: Placement,
}

impl View<'_> {
    /// Returns when the last of the fences that the requester would have to wait for is expected to be complete;
    /// `None` if the requester may not take a block with these fences.
    pub(super) fn forecast(&self, fences: &Fences) -> Option<Forecast> {
        // The most frequent case.
        if let Some(fence) = fences.single() {
            return if self.is_ordered(fence) {
                Some(Forecast::default())
            } else {
                self.waits?(fence)
            };
        }
        let mut to_wait_for = fences.iter().filter(|fence| !self.is_ordered(*fence));
        to_wait_for.try_fold(Forecast::default(), |last, fence| {
            Some(last.and(self.waits?(fence)?))
        })
    }

    /// Returns whether the requester comes after the fence already.
    pub fn is_ordered(&self, fence: Fence) -> bool {
        fence.stream == self.stream || self.after.covers(fence)
    }

    /// Returns whether the requester may take no block that waits for another stream.
    pub(super) fn excludes_other_streams(&self) -> bool {
        self.waits.is_none() && self.after.is_empty()
    }

    /// Returns whether the requester may take any block that waits for this stream.
    pub(super) fn considers(&self, donor: StreamId) -> bool {
        donor == self.stream || self.waits.is_some() || self.after.of(donor) != Ticket::ZERO
    }
}

/// A block that the heap granted. The holder frees it or gives it back.
#[derive(Debug)]
#[must_use = "a grant that is dropped is memory lost"]
pub struct Grant {
    /// The block.
    pub id: BlockId,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// The fences of the memory's earlier use. The stream comes after them, or must be made to wait for them.
    pub fences: Fences,
}

/// Where a returned block went: who may take it once its fences are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnedTo {
    /// To all streams.
    AnyStream,
    /// The block returned to this reservation.
    Reservation(ReservationId),
}
