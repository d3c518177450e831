//! Requests for blocks of the memory of graphs: on a stream that is being captured, or outside captures, without
//! waiting.

use super::{Layout, Pool};
use crate::block::Block;
use crate::error::AllocError;
use crate::handles::{Caller, FromPart, GraphShare, Registration, Route};
use crate::queue::Demand;
use crate::sync::Arc;

/// Allocates from the memory of the capture, which takes more from the pool if it has to.
///
/// # Errors
/// Returns [`AllocError::NotReservedForCapture`] if the pool has no more now: nothing waits inside a capture.
#[cold]
pub(super) fn allocate(
    registration: &Arc<Registration>,
    route: &Route,
    layout: Layout,
    caller: Caller,
) -> Result<Block, AllocError> {
    let driver = &registration.service.driver;
    // The memory is charged to the tags of its reservations.
    let demand = layout.demand(driver, None)?;
    let caller = Caller {
        is_captured: true,
        ..caller
    };
    let draw = || route.draw(&registration.lane, &demand);
    match draw_or_grow(registration, &route.share, &demand, caller, draw)? {
        Some((allocation, part)) => {
            let from = (&part, route.order);
            Block::captured(registration, allocation, &demand, caller, from)
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

/// Allocates from memory for graphs outside captures, in the order of the stream. The memory takes more from the pool
/// if it has to.
///
/// # Errors
/// Returns [`AllocError::NotReserved`] if the pool has no more now.
pub(crate) fn allocate_outside(
    registration: &Arc<Registration>,
    share: &GraphShare,
    layout: Layout,
    caller: Caller,
) -> Result<Block, AllocError> {
    expect_outside(registration, share)?;
    let demand = layout.demand(&registration.service.driver, None)?;
    let draw = || share.draw(&registration.lane, &demand);
    match draw_or_grow(registration, share, &demand, caller, draw)? {
        Some((allocation, part)) => {
            Block::reserved(registration, allocation, &demand, caller, &part)
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
) -> Result<(), AllocError> {
    share.presence.expect_own(registration)?;
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
    share: &GraphShare,
    (start, bytes): (u64, u64),
    caller: Caller,
) -> Result<Option<Block>, AllocError> {
    let demand = Layout::new(bytes).demand(&registration.service.driver, None)?;
    let drawn = share.draw_at(&registration.lane, start, &demand)?;
    let block = drawn.map(|(allocation, part)| {
        Block::restored(registration, allocation, &demand, caller, &part)
    });
    Ok(block)
}

/// Draws, and if there is too little, once more after the memory took more from the pool. `None` if the pool has no
/// more.
///
/// # Errors
/// Returns an error if waiting would not help.
fn draw_or_grow(
    registration: &Registration,
    share: &GraphShare,
    demand: &Demand,
    caller: Caller,
    draw: impl Fn() -> Result<Option<FromPart>, AllocError>,
) -> Result<Option<FromPart>, AllocError> {
    if let Some(drawn) = draw()? {
        return Ok(Some(drawn));
    }
    match grow(registration, share, demand, caller)? {
        true => draw(),
        false => Ok(None),
    }
}

/// Adds memory for one request to that of the capture: whole chunks, or if the pool does not have them, as little as
/// the request needs. Returns whether the pool had memory.
///
/// # Errors
/// Returns an error if waiting would not help.
fn grow(
    registration: &Registration,
    share: &GraphShare,
    demand: &Demand,
    caller: Caller,
) -> Result<bool, AllocError> {
    let settings = &registration.service.driver.settings;
    let least = demand.request.bytes + demand.request.alignment - settings.alignment;
    let chunks = match settings.geometry.virtual_memory {
        true => least.checked_next_multiple_of(settings.geometry.chunk_bytes),
        false => None,
    };
    let pool = Pool::of_presence(registration.presence.clone());
    for bytes in chunks.into_iter().chain([least]) {
        match pool.reserve(bytes).location(caller.location).try_now() {
            Ok(reservation) => {
                share.add(reservation.into_handle());
                return Ok(true);
            }
            Err(AllocError::Exhausted(_) | AllocError::TooLarge { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
