//! The heap walk: which block an address is in, and all blocks at one moment.

use super::lanes::Lanes;
use super::{Announcer, Engine, HeapStore, keeping};
use crate::device::DeviceAddress;
use crate::heap::{BlockId, Fence, Found, Heap, Holding, SegmentBlocks, inspect};
use crate::id::{StreamId, Ticket};
use crate::measure::debug_in_units;
use crate::seam::{BlockOrigin, ReservationOrigin};
use crate::sync::Guard;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum BlockState {
    /// Allocated and not freed.
    Used,
    /// Freed, but behind work that is not known to be complete.
    Pending,
    /// Freed, and complete.
    Free,
    /// Set aside by a [reservation](crate::Reservation), and not allocated from it.
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

/// A block of a pool, as it was when it was looked up; see
/// [`Inspect::block_at`](crate::Inspect::block_at).
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockInfo {
    /// The first address of the block.
    pub address: DeviceAddress,
    /// The size in bytes.
    pub size: u64,
    /// Whether it is used, pending, free or reserved.
    pub state: BlockState,
    /// Whether a block in use can be [evicted](crate::Evictable) now.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_evictable: bool,
    /// The stream that uses the block, or whose cache holds it; `None` for other blocks.
    pub stream: Option<StreamId>,
    /// For a pending block, the streams whose work it waits for.
    pub waits_for: Vec<StreamId>,
    /// For a block in use, where it was allocated, if an [observer](crate::extend::Observer) remembers.
    pub origin: Option<BlockOrigin>,
    /// For a reserved block, where it was reserved, if an observer remembers.
    pub reservation: Option<ReservationOrigin>,
}

debug_in_units!(struct BlockInfo { address, size as bytes, state, is_evictable, stream, waits_for, origin, reservation });

/// A segment of a pool, with its blocks.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The first address of the segment.
    pub address: DeviceAddress,
    /// The addresses of the segment, in bytes. With virtual memory they are several times the pool's capacity, and
    /// memory is mapped to some of them.
    pub size: u64,
    /// Bytes of memory in the segment: those of its blocks.
    pub mapped: u64,
    /// The blocks in the order of their addresses. They tile the segment, except where no memory is mapped.
    pub blocks: Vec<BlockInfo>,
}

debug_in_units!(struct SegmentInfo { address, size as bytes, mapped as bytes, blocks });

impl SegmentInfo {
    /// Returns the addresses to which no memory is mapped, in order.
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

/// A live reservation.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReservationInfo {
    /// Bytes that are set aside and not allocated.
    pub left: u64,
    /// Where it was made, if an [observer](crate::extend::Observer) remembers.
    pub origin: Option<ReservationOrigin>,
}

debug_in_units!(struct ReservationInfo { left as bytes, origin });

/// All memory at one moment.
#[derive(Debug)]
pub(crate) struct HeapWalk {
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) reservations: Vec<ReservationInfo>,
    /// The number of the last event that led there.
    pub(crate) events: u64,
}

/// A cached block: the stream that freed it, the ticket, and whether that is complete.
type Cached = (StreamId, Ticket, bool);

/// A walk over the heap under its lock: no block enters a cache, or leaves it for another stream. Blocks that a cache
/// takes in or gives to its own stream meanwhile are seen as used or not, and nothing else changes.
pub(super) struct Walk<'a> {
    store: &'a HeapStore,
    heap: Guard<'a, Box<Heap>>,
    lanes: Lanes,
    known: Known<'a>,
}

/// Facts about blocks that are kept outside the heap.
struct Known<'a> {
    announcer: &'a Announcer,
    evictable: HashSet<DeviceAddress>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(engine: &'a Engine) -> Self {
        keeping::return_all_kept(&engine.streams, &engine.store);
        let heap = engine.store.heap.lock();
        let known = Known {
            announcer: &engine.store.announcer,
            evictable: engine.store.evictables.addresses(),
        };
        Self {
            lanes: engine.streams.lanes(),
            known,
            store: &engine.store,
            heap,
        }
    }

    /// Returns the block that an address is in, in time proportional to the number of blocks.
    pub(super) fn block_at(self, address: u64) -> Option<BlockInfo> {
        let found = Found::at(&self.heap, address)?;
        let cached = match found.holding {
            Holding::Used(stream) => self.find_cached(stream, found.id),
            _ => None,
        };
        let Self { heap, known, .. } = self;
        drop(heap);
        Some(known.describe(found, cached))
    }

    /// Returns all segments and reservations, in time proportional to the number of
    /// blocks. They are described without the lock.
    pub(super) fn all(self) -> HeapWalk {
        let cached = self.all_cached();
        let segments: Vec<_> = SegmentBlocks::all(&self.heap).collect();
        let reservations: Vec<_> = inspect::reservations(&self.heap).collect();
        // Within the lock: events and blocks tell of the same memory.
        let events = self.store.announcer.told();
        let Self { heap, known, .. } = self;
        drop(heap);
        let segments = segments.into_iter().map(|segment| {
            let describe = |found: Found| {
                let cached = cached.get(&found.id).copied();
                known.describe(found, cached)
            };
            let blocks: Vec<_> = segment.blocks.into_iter().map(describe).collect();
            SegmentInfo {
                address: segment.address.into(),
                size: segment.bytes,
                mapped: blocks.iter().map(|block| block.size).sum(),
                blocks,
            }
        });
        let reservations = reservations.into_iter();
        let reservations = reservations.map(|(reservation, left)| ReservationInfo {
            left,
            origin: known.announcer.origin_of_reservation(reservation),
        });
        HeapWalk {
            segments: segments.collect(),
            reservations: reservations.collect(),
            events,
        }
    }

    fn all_cached(&self) -> HashMap<BlockId, Cached> {
        let mut all = HashMap::new();
        for lane in self.lanes.iter() {
            let completed = lane.timeline.completed();
            let cached = lane.cache.cached().into_iter();
            all.extend(cached.map(|(id, ticket)| (id, (lane.id, ticket, ticket <= completed))));
        }
        all
    }

    /// Looks for a block in the cache of the stream that last had it: no other cache can hold it.
    fn find_cached(&self, stream: StreamId, id: BlockId) -> Option<Cached> {
        let ticket = Ticket::ZERO;
        let lane = self.lanes.find(Fence { stream, ticket })?;
        let mut cached = lane.cache.cached().into_iter();
        let (_, ticket) = cached.find(|(cached, _)| *cached == id)?;
        Some((stream, ticket, ticket <= lane.timeline.completed()))
    }
}

impl Known<'_> {
    fn describe(&self, found: Found, cached: Option<Cached>) -> BlockInfo {
        let (mut waits_for, mut reservation) = (Vec::new(), None);
        let (state, stream) = match (found.holding, cached) {
            (Holding::Free, _) => (BlockState::Free, None),
            (Holding::Pending(fences), _) => {
                waits_for = fences.iter().map(|fence| fence.stream).collect();
                (BlockState::Pending, None)
            }
            (Holding::Reserved(id, fences), _) => {
                waits_for = fences.iter().map(|fence| fence.stream).collect();
                reservation = self.announcer.origin_of_reservation(id);
                (BlockState::Reserved, None)
            }
            (Holding::Used(borrower), None) => (BlockState::Used, borrower.of_a_stream()),
            (Holding::Used(_), Some((stream, _, true))) => (BlockState::Free, Some(stream)),
            (Holding::Used(_), Some((stream, ..))) => {
                waits_for.push(stream);
                (BlockState::Pending, Some(stream))
            }
        };
        let is_used = state == BlockState::Used;
        let address = found.address.into();
        let origin = is_used.then(|| self.announcer.origin_of(address)).flatten();
        BlockInfo {
            address,
            size: found.bytes,
            state,
            is_evictable: is_used && self.evictable.contains(&address),
            stream,
            waits_for,
            origin,
            reservation,
        }
    }
}
