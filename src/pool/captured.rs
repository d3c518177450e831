//! Requests for blocks on a stream that is being captured: from the memory of the capture, without waiting.

use super::request::Request;
use super::reservation::ForReservation;
use super::{Layout, Pool};
use crate::block::Block;
use crate::error::AllocError;
use crate::handles::{Caller, Registration, Route};
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
    let mut has_grown = false;
    loop {
        if let Some((allocation, part)) = route.draw(&registration.lane, &demand)? {
            let from = (&part, route.order);
            return Block::captured(registration, allocation, &demand, caller, from);
        }
        if has_grown || !grow(registration, route, &demand, caller)? {
            let (left, largest) = route.share.left();
            return Err(AllocError::NotReservedForCapture {
                requested: demand.request.bytes,
                size: route.share.size(),
                left,
                largest,
            });
        }
        has_grown = true;
    }
}

/// Adds memory for one request to that of the capture: whole chunks, or if the pool does not have them, as little as the
/// request needs. Returns whether the pool had memory.
///
/// # Errors
/// Returns an error if waiting would not help.
fn grow(
    registration: &Registration,
    route: &Route,
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
        let kind = ForReservation::whole(&pool, bytes);
        match Request::new(kind, caller.location).try_now() {
            Ok(reservation) => {
                route.share.add(reservation.into_handle());
                return Ok(true);
            }
            Err(AllocError::Exhausted(_) | AllocError::TooLarge { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
