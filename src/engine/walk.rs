//! The heap walk: which block an address is in, and all blocks at one moment.

use super::{Announcer, Engine, HeapStore, keeping};
use crate::device::DeviceAddress;
use crate::heap::{BlockId, Fence, Found, Heap, Holding, SegmentBlocks, inspect};
use crate::id::{StreamId, Ticket};
use crate::lane::Lanes;
use crate::measure::{BlockInfo, BlockState, ReservationInfo, SegmentInfo};
use crate::sync::Guard;
use std::collections::{HashMap, HashSet};

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
        let heap = keeping::whole_heap(&engine.streams, &engine.store);
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
            SegmentInfo::of(segment.address.into(), segment.bytes, blocks)
        });
        let reservations = reservations.into_iter();
        let reservations = reservations.map(|(reservation, left)| {
            let origin = known.announcer.origin_of_reservation(reservation);
            ReservationInfo::of(left, origin)
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
        // It may gain fields, so another crate than its own sets them one by one.
        let mut block = BlockInfo::of(address, found.bytes, state);
        block.is_evictable = is_used && self.evictable.contains(&address);
        (block.stream, block.waits_for) = (stream, waits_for);
        block.origin = origin;
        block.reservation = reservation;
        block
    }
}
