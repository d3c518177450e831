//! Which block an address is in, and what it is at.

use super::recipient::find;
use super::{BlockOrigin, Driver, ReservationOrigin};
use crate::device::DeviceAddress;
use crate::heap::{BlockId, Fence, Fences, Holding};
use crate::id::{StreamId, Ticket};
use std::fmt;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum BlockState {
    /// Somebody owns it.
    Used,
    /// Given back, but behind work that is not known to be complete.
    Pending,
    /// Given back, and complete.
    Free,
    /// Set aside by a [reservation](crate::Reservation), and used by nobody now.
    Reserved,
}

/// `used`
impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Used => "used",
            Self::Pending => "pending",
            Self::Free => "free",
            Self::Reserved => "reserved",
        })
    }
}

/// A block of a pool, as it was when it was looked up; see [`pool_of`](crate::compat::pool_of).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockInfo {
    /// Its first address.
    pub address: DeviceAddress,
    /// Its bytes.
    pub size: u64,
    /// What it is.
    pub state: BlockState,
    /// Of a block in use, the stream that it was allocated on; none, if it is about to be set aside. Of one that a
    /// stream's lane keeps for it, that stream. None of another.
    pub stream: Option<StreamId>,
    /// Of a pending block, the streams whose work it waits for.
    pub waits_for: Vec<StreamId>,
    /// Of a block in use, whence it is, where the pool keeps a [history](crate::PoolBuilder::history).
    pub origin: Option<BlockOrigin>,
    /// Of a reserved one, whence the reservation is, where the pool keeps a history.
    pub reservation: Option<ReservationOrigin>,
}

impl Driver {
    /// The block that the address is in; none where the pool has no memory. Takes time in proportion to the
    /// number of blocks, under the heap's lock.
    pub(crate) fn block_at(&self, address: u64) -> Option<BlockInfo> {
        let heap = self.heap.lock();
        let found = heap.block_at(address)?;
        // Under the heap's lock, without which no block comes into a lane, nor leaves it for another.
        let mut reservation = None;
        let (state, stream, fences) = match found.holding {
            Holding::Free => (BlockState::Free, None, Fences::default()),
            Holding::Pending(fences) => (BlockState::Pending, None, fences),
            Holding::Reserved(id, fences) => {
                let event_log = self.event_log.as_ref();
                reservation = event_log.and_then(|event_log| event_log.reservation(id));
                (BlockState::Reserved, None, fences)
            }
            Holding::Used(stream) => {
                let (state, fences) = self.in_lane(stream, found.id);
                (state, stream.of_a_stream(), fences)
            }
        };
        Some(BlockInfo {
            address: found.address.into(),
            size: found.bytes,
            state,
            stream,
            waits_for: fences.iter().map(|fence| fence.stream).collect(),
            origin: self.origin(state, found.address),
            reservation,
        })
    }

    fn origin(&self, state: BlockState, address: u64) -> Option<BlockOrigin> {
        let event_log = self.event_log.as_ref()?;
        (state == BlockState::Used).then(|| event_log.origin(address))?
    }

    /// Whether what a stream was lent is used, or kept by its lane: no other lane has it.
    fn in_lane(&self, stream: StreamId, id: BlockId) -> (BlockState, Fences) {
        let lanes = self.lanes();
        let lane = find(
            &lanes,
            Fence {
                stream,
                ticket: Ticket::ZERO,
            },
        );
        let cached = lane.and_then(|lane| Some((lane, lane.cache.ticket_of(id)?)));
        match cached {
            None => (BlockState::Used, Fences::default()),
            Some((lane, ticket)) if lane.timeline.completed() >= ticket => {
                (BlockState::Free, Fences::default())
            }
            Some((_, ticket)) => (BlockState::Pending, Fences::one(stream, ticket)),
        }
    }
}
