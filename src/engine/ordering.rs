//! Sealing, and the order of streams: which point of a stream other streams come after.

use super::{Engine, HeapStore, Shared};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::heap::{Fence, Fences};
use crate::id::Ticket;
use crate::lane::{Lane, Marker, refused};
use crate::seam::Fact;
use crate::sync::{Arc, assert_unlocked};

/// Records an event on every stream that freed something no event covers. External streams were sealed when they
/// freed.
///
/// # Errors
/// Returns a sticky error; freed memory stays pending.
pub(crate) fn seal_lanes(engine: &Engine) -> Result<(), DeviceError> {
    for lane in engine.streams.active_lanes().iter() {
        match seal_for_others(engine, lane) {
            Err(error) if error.is_sticky() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Seals a stream because another one wants its memory, unless the stream is external.
///
/// # Errors
/// Returns the errors of [`seal`].
pub(super) fn seal_for_others(engine: &Engine, lane: &Lane) -> Result<(), DeviceError> {
    if lane.is_external {
        return Ok(());
    }
    if lane.cache.last_closed().1 {
        lane.cache.spacing.reset();
    }
    seal(engine, lane)
}

/// Records an event behind what the stream freed, if no event covers it.
///
/// # Errors
/// Returns an error if the device call fails; freed memory stays pending.
pub(crate) fn seal(engine: &Engine, lane: &Lane) -> Result<(), DeviceError> {
    let shared = &engine.shared;
    if lane.cache.last_closed().1 {
        thin_out(shared, &engine.store, lane);
        shared.noted(lane.seal(&*shared.device, &engine.streams.events))?;
    }
    Ok(())
}

/// Asks a stream with many recorded events how far it is, so that the events come back and their number stays
/// bounded (invariant `bounded-events`).
pub(super) fn thin_out(shared: &Shared, store: &HeapStore, lane: &Lane) {
    if lane.should_query() {
        // A failure is noted, and met again by the caller that needs the answer.
        let _ = shared.unless_sticky(lane.timeline.reap(&*shared.device));
        store.catch_up(shared, lane);
        lane.timeline.record_queried();
    }
}

/// Records an event behind all work that the stream was given so far.
///
/// # Errors
/// Returns an error if the device call fails.
pub(crate) fn mark(engine: &Engine, lane: &Lane) -> Result<Arc<Marker>, DeviceError> {
    let shared = &engine.shared;
    thin_out(shared, &engine.store, lane);
    shared.noted(lane.mark(&*shared.device, &engine.streams.events))
}

/// Records an event as [`mark`] does, for a user. If the stream's earlier events are overdue, the new
/// one may be the first to prove memory free: waiting requests have it watched.
///
/// # Errors
/// Returns an error if the device call fails.
pub(crate) fn mark_for_user(engine: &Engine, lane: &Lane) -> Result<Arc<Marker>, DeviceError> {
    let earlier = lane.timeline.newest();
    let marker = mark(engine, lane)?;
    if earlier.is_some_and(|earlier| earlier.expected_at <= marker.sealed_at) {
        engine.shared.publish(super::Change::Memory);
    }
    Ok(marker)
}

/// Returns the stream's present point, behind all work that it was given so far. An external stream is sealed
/// there at once: a later caller may not seal it.
pub(crate) fn present_point(engine: &Engine, lane: &Lane) -> Ticket {
    let point = lane.cache.open_ticket();
    if lane.is_external {
        // A failure is noted; no stream can be made to come after the point then.
        let _ = mark(engine, lane);
    }
    point
}

/// Returns the fences that are left before memory that was never used is available to all.
pub(super) fn fences_after(lane: &Lane, point: Ticket) -> Fences {
    if point == Ticket::ZERO {
        return Fences::default();
    }
    lane.cache.expect_seal(point);
    Fences::one(lane.id, point)
}

/// Returns a marker that proves a ticket, sealed now if it was not; `None` if the ticket is complete.
///
/// # Errors
/// Returns an error if the device call fails.
pub(crate) fn marker_for(
    engine: &Engine,
    lane: &Lane,
    ticket: Ticket,
) -> Result<Option<Arc<Marker>>, DeviceError> {
    engine
        .shared
        .noted(lane.marker_for(ticket, &*engine.shared.device, &engine.streams.events))
}

/// Makes `lane`'s stream wait on the device for every fence, one wait for each stream. Says whether there was one.
///
/// # Errors
/// Returns an error if the device call fails.
pub(super) fn wait_for_all(
    engine: &Engine,
    lane: &Lane,
    fences: impl Iterator<Item = Fence>,
) -> Result<bool, DeviceError> {
    let mut fences = fences.peekable();
    if fences.peek().is_none() {
        return Ok(false);
    }
    let lanes = engine.streams.lanes();
    let mut has_waited = false;
    for fence in fences {
        if let Some(donor) = lanes.find(fence) {
            has_waited |= wait_for(engine, lane, donor, fence.ticket)?;
        }
    }
    Ok(has_waited)
}

/// Makes `lane`'s stream wait on the device for a point of `donor`'s, unless it is complete.
fn wait_for(
    engine: &Engine,
    lane: &Lane,
    donor: &Lane,
    ticket: Ticket,
) -> Result<bool, DeviceError> {
    let Some(marker) = marker_for(engine, donor, ticket)? else {
        return Ok(false);
    };
    order_behind(engine, lane, &marker)?;
    engine.shared.counters.device_waits.add(1);
    engine.store.tell(|| Fact::DeviceWait {
        stream: lane.id,
        name: lane.name(),
        donor: donor.id,
        donor_name: donor.name(),
    });
    Ok(true)
}

/// Makes a stream wait on the device for a marker, and remembers that it does.
///
/// # Errors
/// Returns an error if the device call fails; the order is then not counted on.
pub(crate) fn order_behind(
    engine: &Engine,
    lane: &Lane,
    marker: &Marker,
) -> Result<(), DeviceError> {
    assert_unlocked("wait");
    submit_wait(&engine.shared, lane, marker)?;
    // After the call: see `Timeline::join`.
    let ticket = Ticket::ZERO;
    if lane.timeline.join(&marker.clock) {
        let lanes = engine.streams.lanes();
        let is_retired = |stream| lanes.find(Fence { stream, ticket }).is_none();
        lane.timeline.drop_retired(is_retired);
    }
    lane.timeline.delay(marker.expected_at);
    Ok(())
}

/// Submits a wait. A captured stream and the host are not made to wait: they come after complete work, and the host
/// awaits the rest. A point of the host needs no wait: work submitted from now on comes after it.
fn submit_wait(shared: &Shared, lane: &Lane, marker: &Marker) -> Result<(), DeviceError> {
    if !marker.has_event() {
        return Ok(());
    }
    if lane.cache.is_captured() {
        // Its work does not run, but comes after complete work.
        let is_complete = shared.noted(marker.event().is_complete())?;
        return is_complete.then_some(()).ok_or_else(|| refused("wait"));
    }
    if !lane.is_host() {
        let _submission = lane.cache.calls.begin("wait")?;
        // SAFETY: the lane keeps the stream's owner; an external stream waits only in calls made with it.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let waits = unsafe {
            marker
                .event()
                .delay(&**lane.device(&shared.device), lane.raw)
        };
        return shared.noted(waits);
    }
    if shared.noted(marker.event().is_complete())? {
        return Ok(());
    }
    let reason = "the host is not made to wait for the device: await the event first";
    let kind = DeviceErrorKind::Unsupported;
    Err(DeviceError::new("wait", kind, reason))
}

/// Makes a stream wait for a point of another pool's stream. This pool's clocks know nothing of that stream.
///
/// # Errors
/// Returns an error if the device call fails.
pub(crate) fn order_behind_other_pool(
    shared: &Shared,
    lane: &Lane,
    marker: &Marker,
) -> Result<(), DeviceError> {
    assert_unlocked("wait");
    submit_wait(shared, lane, marker)?;
    lane.timeline.delay(marker.expected_at);
    Ok(())
}

/// Makes a stream come after a point at a user's request, unless it does already.
///
/// # Errors
/// Returns the errors of [`order_behind`].
pub(crate) fn bring_behind(
    engine: &Engine,
    lane: &Lane,
    donor: &Lane,
    marker: &Marker,
) -> Result<(), DeviceError> {
    let is_complete = donor.timeline.completed() >= marker.ticket;
    if is_complete || lane.timeline.clock().covers(donor.fence(marker.ticket)) {
        return Ok(());
    }
    order_behind(engine, lane, marker)?;
    engine.shared.publish(super::Change::Order(lane.id));
    Ok(())
}

/// Makes a further stream come after the grant of a block: after every earlier use of its memory, from which only
/// `home`'s own order has kept it so far.
///
/// # Errors
/// Returns an error if the device call fails; the stream must not use the block then.
pub(crate) fn order_after_grant(
    engine: &Engine,
    home: &Lane,
    after: Ticket,
    further: &Lane,
) -> Result<(), DeviceError> {
    let is_ordered =
        home.timeline.completed() >= after || further.timeline.clock().covers(home.fence(after));
    if is_ordered {
        return Ok(());
    }
    if let Some(marker) = marker_for(engine, home, after)? {
        order_behind(engine, further, &marker)?;
        engine.shared.publish(super::Change::Order(further.id));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::device::sim::{Operation, SimDevice};
    use crate::{Pool, Stream};
    use std::time::Duration;

    /// A stream for each request hands its result to a stream that stays, and takes its input from there.
    #[test]
    fn clocks_stay_bounded_with_a_stream_per_request() {
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let hub = pool.register(&device.create_stream()).unwrap();
        let lane_of = |stream: &Stream| stream.registration.lane.clone();
        let mut longest = 0;
        let requests = if cfg!(miri) { 40 } else { 1000 };
        for _ in 0..requests {
            let work = device.create_stream();
            let request = pool.register(&work).unwrap();
            request.wait(&hub.event().unwrap()).unwrap();
            let block = pool.try_allocate(&request, 1 << 20).unwrap();
            work.submit(Operation::new(Duration::from_micros(1)));
            drop(block);
            hub.wait(&request.event().unwrap()).unwrap();
            for stream in [&hub, &request] {
                longest = longest.max(lane_of(stream).timeline.clock().iter().count());
            }
            drop(request);
            device.advance(Duration::from_micros(10));
            pool.maintain().reap().unwrap();
        }
        assert!(longest < 50, "{longest} entries");
    }
}
