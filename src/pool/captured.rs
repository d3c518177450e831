//! Requests for blocks of the memory of graphs: on a stream that is being captured, or outside captures, without
//! waiting.

use super::{Layout, Pool};
use crate::block::Block;
use crate::engine::{Engine, captures_of, order};
use crate::error::AllocError;
use crate::handles::{Caller, FromPart, GraphShare, Registration, Reserved, Route};
use crate::heap::{Clock, Placement};
use crate::id::StreamId;
use crate::queue::Demand;
use crate::sync::{Arc, assert_unlocked, plain};
use std::panic::Location;

/// Allocates from the memory of the capture, which takes more from the pool if it has to.
///
/// # Errors
/// Returns [`AllocError::NotReservedForCapture`] if the pool has no more now: nothing waits inside a capture.
#[cold]
pub(crate) fn allocate(
    registration: &Arc<Registration>,
    route: &Route,
    layout: Layout,
    caller: Caller,
) -> Result<Block, AllocError> {
    let engine = &registration.service.engine;
    // The memory is charged to the tags of its reservations.
    let demand = layout.demand(engine, None)?;
    let caller = Caller {
        is_captured: true,
        ..caller
    };
    let route = &present(registration, route)?;
    let draw = || route.draw(&registration.lane, &demand);
    let (memory, after) = (
        (&**registration, &*route.share),
        route.clock.after(route.order),
    );
    match draw_or_grow(memory, &demand, caller, (route.order, &after), draw)? {
        Some((allocation, part)) => {
            let block = Block::reserved(registration, allocation, &demand, caller, &part, false)?;
            Ok(block.of_graph_memory(&route.share, Some(route)))
        }
        None => {
            let (left, largest) = route.share.left();
            Err(AllocError::NotReservedForCapture {
                requested: demand.request.bytes,
                size: route.share.size(),
                left,
                largest,
            })
        }
    }
}

/// Returns the route of the capture that the stream is in now. The body of a conditional node is captured with an id of
/// its own. Memory that was freed under another id is not reused before the session ends: the body runs again.
///
/// # Errors
/// Returns the device's error.
fn present(registration: &Registration, route: &Route) -> Result<Route, AllocError> {
    const CALL: &str = "capture_of";
    let Some(known) = route.clock.id() else {
        return Ok(route.clone());
    };
    let Registration { service, lane, .. } = registration;
    let engine = &service.engine;
    let captures = captures_of(&**lane.device(&engine.shared.device), CALL)?;
    assert_unlocked(CALL);
    // SAFETY: the lane keeps the stream's owner; an external stream is usable in the caller's call.
    #[allow(unsafe_code, reason = "device call on the lane's stream")]
    let present = engine
        .shared
        .noted(unsafe { captures.capture_of(lane.raw) })?;
    match present.filter(|present| *present != known) {
        Some(present) => {
            let clock = route.share.clock_of(present);
            let further = route.go_on(registration, clock);
            Ok(further.unwrap_or_else(|| route.clone()))
        }
        _ => Ok(route.clone()),
    }
}

/// Allocates from memory for graphs outside captures, in the order of the stream. The memory takes more from the pool
/// if it has to.
///
/// # Errors
/// Returns [`AllocError::NotReserved`] if the pool has no more now.
pub(crate) fn allocate_outside(
    registration: &Arc<Registration>,
    share: &plain::Arc<GraphShare>,
    layout: Layout,
    caller: Caller,
) -> Result<Block, AllocError> {
    expect_outside(registration, share, caller)?;
    let demand = layout.demand(&registration.service.engine, None)?;
    let (lane, memory) = (&registration.lane, (&**registration, &**share));
    let draw = || share.draw(lane, &demand);
    match draw_or_grow(
        memory,
        &demand,
        caller,
        (lane.id, &lane.timeline.clock()),
        draw,
    )? {
        Some((allocation, part)) => {
            let block = Block::reserved(registration, allocation, &demand, caller, &part, false)?;
            Ok(block.of_graph_memory(share, None))
        }
        None => {
            let (left, largest) = share.left();
            Err(AllocError::NotReserved {
                requested: demand.request.bytes,
                left,
                largest,
            })
        }
    }
}

/// # Errors
/// Returns an error if the stream is of another pool, or is being captured.
pub(crate) fn expect_outside(
    registration: &Registration,
    share: &GraphShare,
    caller: Caller,
) -> Result<(), AllocError> {
    share.presence.expect_own(registration, caller.location)?;
    match registration.lane.cache.is_captured() {
        true => Err(AllocError::StreamCaptured),
        false => Ok(()),
    }
}

/// Allocates exactly a range of memory for graphs, for use in the order of the stream. The bytes stay as they are.
/// `None` if a part of the range is not available.
///
/// # Errors
/// Returns an error if the pool is closed or the device failed.
pub(crate) fn allocate_at(
    registration: &Arc<Registration>,
    share: &plain::Arc<GraphShare>,
    (start, bytes): (u64, u64),
    caller: Caller,
) -> Result<Option<Block>, AllocError> {
    let demand = Layout::new(bytes).demand(&registration.service.engine, None)?;
    let drawn = share.draw_at(&registration.lane, start, &demand)?;
    let Some((allocation, part)) = drawn else {
        return Ok(None);
    };
    let block = Block::reserved(registration, allocation, &demand, caller, &part, true)?;
    Ok(Some(block.of_graph_memory(share, None)))
}

/// Draws, and if there is too little, once more after the memory took more from the pool. `None` if the pool has no
/// more. Where memory can be mapped elsewhere, the memory takes as little as it can: what no graph holds is exchanged for
/// a contiguous range, and what a graph holds is extended where it is.
///
/// # Errors
/// Returns an error if waiting would not help.
fn draw_or_grow(
    (registration, share): (&Registration, &GraphShare),
    demand: &Demand,
    caller: Caller,
    view: (StreamId, &Clock),
    draw: impl Fn() -> Result<Option<FromPart>, AllocError>,
) -> Result<Option<FromPart>, AllocError> {
    if let Some(drawn) = draw()? {
        return Ok(Some(drawn));
    }
    let growth = Growth {
        registration,
        share,
        demand,
        caller,
    };
    if registration
        .service
        .engine
        .shared
        .settings
        .geometry
        .virtual_memory
    {
        if let Some(drawn) = growth.exchange()? {
            return Ok(Some(drawn));
        }
        if growth.extend(view)?
            && let Some(drawn) = draw()?
        {
            return Ok(Some(drawn));
        }
        if growth.complement()?
            && let Some(drawn) = growth.exchange()?
        {
            return Ok(Some(drawn));
        }
    }
    let with_room = growth.room().map(Placement::WithRoom);
    for placement in with_room.into_iter().chain([Placement::Anywhere]) {
        for _ in 0..TRIES {
            if !growth.take(growth.least(), placement)? {
                break;
            }
            if let Some(drawn) = draw()? {
                return Ok(Some(drawn));
            }
        }
    }
    Ok(None)
}

/// How often new memory is taken for a request. Another capture may allocate from it first.
const TRIES: usize = 4;

/// Addresses are kept for memory of graphs while a hole has this many times those of the capacity: other requests need
/// holes, too.
const ADDRESSES: u64 = 3;

/// A request for which memory of graphs has to grow.
struct Growth<'a> {
    registration: &'a Registration,
    share: &'a GraphShare,
    demand: &'a Demand,
    caller: Caller,
}

impl Growth<'_> {
    /// Returns how many bytes of addresses to keep above new memory, so that it can be extended: as many as there is memory,
    /// if there are plenty.
    fn room(&self) -> Option<u64> {
        let Engine { shared, store, .. } = &self.registration.service.engine;
        let geometry = &shared.settings.geometry;
        let info = shared.device.memory_info(shared.settings.kind).ok()?;
        let capacity = store
            .capacity()
            .min(info.total)
            .next_multiple_of(geometry.chunk_bytes);
        let has_plenty = || store.addresses(Placement::WithRoom(0)) / ADDRESSES > capacity;
        (geometry.virtual_memory && has_plenty()).then_some(capacity)
    }

    /// Returns how many bytes hold the request wherever they begin.
    fn least(&self) -> u64 {
        let settings = &self.registration.service.engine.shared.settings;
        self.demand.request.bytes + self.demand.request.alignment - settings.alignment
    }

    /// Serves the request from memory that no graph holds, if that is enough.
    fn exchange(&self) -> Result<Option<FromPart>, AllocError> {
        let lane = &self.registration.lane;
        order::complete(&self.registration.service.engine)?;
        let held = self.share.held();
        for part in self.share.parts_with(self.demand.request.bytes, &held) {
            if let Some(allocation) = part.draw_in_exchange(lane, self.demand, &held)? {
                return Ok(Some((allocation, part)));
            }
        }
        Ok(None)
    }

    /// Adds what a piece of the memory lacks, right above it. Returns whether there was such a piece, and memory.
    fn extend(&self, view: (StreamId, &Clock)) -> Result<bool, AllocError> {
        let store = &self.registration.service.engine.store;
        let request = self.demand.request;
        let of = |part: Arc<Reserved>| order::extension(store, view, part.id(), request);
        let best = self.share.extensible().into_iter().filter_map(of);
        match best.min_by_key(|extension| extension.lacking) {
            Some(best) => self.take(best.lacking, best.placement),
            None => Ok(false),
        }
    }

    /// Adds what the memory lacks that no graph holds, so that all of it can be exchanged. Returns whether there is any,
    /// and the pool had the rest.
    fn complement(&self) -> Result<bool, AllocError> {
        let Engine { shared, store, .. } = &self.registration.service.engine;
        let (bytes, held) = (self.demand.request.bytes, self.share.held());
        let movable = |part: Arc<Reserved>| store.exchangeable(part.id(), &held.ranges);
        let movable = self.share.extensible().into_iter().map(movable).max();
        let worth = shared.settings.geometry.chunk_bytes..bytes;
        match movable.filter(|movable| worth.contains(movable)) {
            Some(movable) => self.take(bytes - movable, Placement::Anywhere),
            None => Ok(false),
        }
    }

    /// Adds at least that many bytes: whole chunks, or if the pool does not have them, no more. Returns whether the pool had
    /// memory.
    ///
    /// # Errors
    /// Returns an error if waiting would not help.
    fn take(&self, least: u64, placement: Placement) -> Result<bool, AllocError> {
        let settings = &self.registration.service.engine.shared.settings;
        let chunks = match settings.geometry.virtual_memory {
            true => least.checked_next_multiple_of(settings.geometry.chunk_bytes),
            false => None,
        };
        let pool = Pool::of_presence(self.registration.presence.clone());
        for bytes in chunks.into_iter().chain([least]) {
            match pool
                .reserve_at(bytes, placement)
                .location(self.caller.location)
                .try_now()
            {
                Ok(reservation) => {
                    self.share.add(reservation.into_handle());
                    return Ok(true);
                }
                Err(
                    AllocError::Exhausted(_)
                    | AllocError::TooLarge { .. }
                    | AllocError::NoRoom { .. },
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Returns the caller of an allocation from memory of graphs outside captures.
pub(crate) fn at(location: &'static Location<'static>) -> Caller {
    Caller {
        shares_with_graphs: true,
        ..Caller::at(location)
    }
}

#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::device::sim::{Call, Checker, Clock, SimDevice};
    use crate::sync::census;

    const CHUNK: u64 = 2 << 20;

    /// What one more allocation of a capture costs that has grown by some blocks, and restoring one of them: locks, and
    /// queries of events.
    fn costs(is_virtual: bool, bytes: u64, count: usize) -> [u64; 4] {
        let device = SimDevice::builder().memory(1 << 40);
        let device = device.clock(Clock::Manual).checker(Checker::Off);
        let device = device.virtual_memory(is_virtual).build();
        let builder = Pool::builder(device.clone()).capacity(1 << 38);
        let pool = builder.chunk_bytes(CHUNK).build().unwrap();
        let streams = [0; 8].map(|_| pool.create_stream().unwrap());
        let stream = &streams[0];
        let memory = pool.graph_memory();
        let capture = memory.capture(stream).unwrap();
        let allocate = || pool.try_allocate(stream, bytes).unwrap();
        let mut blocks: Vec<_> = (0..count).map(|_| allocate()).collect();
        let locks = || {
            census()
                .locks
                .into_iter()
                .map(|(_, times)| times)
                .sum::<u64>()
        };
        let queries = || device.counters().calls(Call::Query);
        let (_, queried) = (locks(), queries());
        blocks.push(allocate());
        let grown = (locks(), queries() - queried);
        drop(capture);
        let state = memory.checkpoint();
        drop(blocks);
        device.advance_to_end();
        let (_, queried) = (locks(), queries());
        let restored = memory.restore(&state, stream).unwrap();
        let (locked, queried) = (locks(), queries() - queried);
        let each = restored.len() as u64;
        [grown.0, grown.1, locked / each, queried / each]
    }

    /// Each block of the size of a part, or larger, makes the memory grow by a part.
    #[test]
    fn cost_of_a_captured_allocation_does_not_depend_on_earlier_ones() {
        for (is_virtual, bytes) in [
            (false, 512),
            (false, CHUNK),
            (true, CHUNK),
            (true, 3 * CHUNK),
        ] {
            let [few, many] = [20, 640].map(|count| costs(is_virtual, bytes, count));
            for (few, many) in few.into_iter().zip(many) {
                assert!(
                    many <= few + few / 2 + 2,
                    "{is_virtual}, {bytes}: {few} and {many}"
                );
            }
        }
    }
}
