//! All blocks at one moment, and whence they are.

use super::Driver;
use super::event_log::{EventLog, Live, Origins, Pages, ReservationOrigin};
use super::lookup::{BlockInfo, BlockState};
use crate::device::DeviceAddress;
use crate::heap::{BlockId, Fences, Found, Heap, Holding};
use crate::id::{StreamId, Ticket};
use std::collections::HashMap;
use std::ops::Range;

/// A segment of a pool, with its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its first address.
    pub address: DeviceAddress,
    /// Its addresses, in bytes. With virtual memory they are several times the pool's capacity, and memory
    /// is mapped to some of them.
    pub size: u64,
    /// Bytes of memory in it: those of its blocks.
    pub mapped: u64,
    /// In the order of their addresses. They tile the segment, but for where there is no memory.
    pub blocks: Vec<BlockInfo>,
}

impl SegmentInfo {
    /// The addresses to which no memory is mapped, in order.
    pub fn unmapped(&self) -> impl Iterator<Item = Range<DeviceAddress>> + '_ {
        let starts = self.blocks.iter().map(|block| block.address);
        let ends = self.blocks.iter().map(|block| block.address + block.size);
        let gaps = std::iter::once(self.address)
            .chain(ends)
            .zip(starts.chain([self.address + self.size]));
        gaps.filter(|(end, start)| end < start)
            .map(|(end, start)| end..start)
    }
}

/// A reservation that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReservationInfo {
    /// What is set aside and not allocated of it, in bytes.
    pub left: u64,
    /// Whence it is, where the pool keeps a [history](crate::PoolBuilder::history).
    pub origin: Option<ReservationOrigin>,
}

/// All that is at one moment.
#[derive(Debug)]
pub(crate) struct HeapWalk {
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) pages: Pages,
}

/// What lanes keep: by block the stream and the ticket, and whether that is complete.
type CachedBlock = HashMap<BlockId, (StreamId, Ticket, bool)>;

impl Driver {
    /// All segments, and all reservations. Takes time in proportion to the blocks, under the heap's lock.
    pub(crate) fn holdings(&self) -> (Vec<SegmentInfo>, Vec<ReservationInfo>) {
        let heap = self.heap.lock();
        let known = self.known_origins();
        let reservations = heap
            .reservations()
            .map(|(reservation, left)| ReservationInfo {
                left,
                origin: known.reservations.get(&reservation).cloned(),
            });
        let reservations = reservations.collect();
        (self.list(&heap), reservations)
    }

    /// The segments with what led there: under the lock under which memory is mapped and released, so that both
    /// tell of the same memory.
    pub(crate) fn heap_walk(&self) -> HeapWalk {
        let heap = self.heap.lock();
        HeapWalk {
            segments: self.list(&heap),
            pages: self.pages(),
        }
    }

    /// Without the heap's lock no block comes into a lane, nor leaves it for another: what a lane takes and
    /// frees meanwhile changes whether a block is used, and no more.
    fn list(&self, heap: &Heap) -> Vec<SegmentInfo> {
        let cached = self.cached_in_lanes();
        let known = self.known_origins();
        let segments = heap.segments().map(|(address, size, blocks)| {
            let blocks: Vec<_> = blocks
                .into_iter()
                .map(|found| info(found, &cached, &known))
                .collect();
            SegmentInfo {
                address: address.into(),
                size,
                mapped: blocks.iter().map(|block| block.size).sum(),
                blocks,
            }
        });
        segments.collect()
    }

    fn known_origins(&self) -> Origins {
        let event_log = self.event_log.as_ref();
        event_log.map(EventLog::origins).unwrap_or_default()
    }

    fn cached_in_lanes(&self) -> CachedBlock {
        let lanes = self.lanes();
        let mut all = CachedBlock::new();
        for lane in lanes.iter() {
            let completed = lane.timeline.completed();
            let cached = lane.cache.cached().into_iter();
            all.extend(cached.map(|(id, ticket)| (id, (lane.id, ticket, ticket <= completed))));
        }
        all
    }
}

fn info(found: Found, cached: &CachedBlock, known: &Origins) -> BlockInfo {
    let mut reservation = None;
    let (state, stream, fences) = match found.holding {
        Holding::Free => (BlockState::Free, None, Fences::default()),
        Holding::Pending(fences) => (BlockState::Pending, None, fences),
        Holding::Reserved(id, fences) => {
            reservation = known.reservations.get(&id).cloned();
            (BlockState::Reserved, None, fences)
        }
        Holding::Used(borrower) => match cached.get(&found.id) {
            None => (BlockState::Used, borrower.of_a_stream(), Fences::default()),
            Some((stream, _, true)) => (BlockState::Free, Some(*stream), Fences::default()),
            Some((stream, ticket, false)) => {
                let fences = Fences::one(*stream, *ticket);
                (BlockState::Pending, Some(*stream), fences)
            }
        },
    };
    let of_used = |_: &&Live| state == BlockState::Used;
    let live = known.live.get(&found.address).filter(of_used);
    BlockInfo {
        address: found.address.into(),
        size: found.bytes,
        state,
        stream,
        waits_for: fences.iter().map(|fence| fence.stream).collect(),
        origin: live.map(|live| live.origin.clone()),
        reservation,
    }
}
