//! Pending memory of exactly the size that is wanted.
//!
//! A query takes longer than to record an event, or to make a stream wait for one, and most streams that are asked
//! while kernels are short are not done. So where there is pending memory of exactly the size, its streams alone are
//! asked, the one that is expected first before the others. Where no more memory is available, a stream that may wait
//! on the device is not delayed by queries either, if the wait is short.

use super::super::recipient::Found;
use super::{NoMemory, Search, Source, reaping};
use crate::device::DeviceError;
use crate::heap::{Fence, Fences, Forecast};
use crate::lane::Lane;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::time::Duration;

/// A stream is delayed by at most this long to save the queries: beside a longer wait they take no time. A point that
/// is overdue by this long is asked for, too.
const UNASKED: Duration = Duration::from_millis(1);

/// The number of blocks that are asked for before all streams are.
const TRIES: usize = 2;

/// Asks the streams of the block that is expected first. Says whether all of them have passed it.
pub(super) fn poll_likely(search: &Search<'_>) -> Result<bool, DeviceError> {
    for _ in 0..TRIES {
        let Some(fences) = first_expected(search) else {
            return Ok(false);
        };
        if have_passed(search, &fences)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the block that is expected first, of those that the stream may wait for: blocks of one size pack alike.
pub(super) fn wait_for_exact(search: &mut Search<'_>) -> Result<Option<Found>, NoMemory> {
    let (taker, limit) = (
        search.to.taker(),
        search.to.engine.shared.settings.wait_limit,
    );
    let own = search.to.lane.timeline.newest();
    let own = own.map(|newest| newest.expected_at).unwrap_or_default();
    let latest = own.max(taker.tail).saturating_add(UNASKED);
    let is_near = |at: Duration| at <= latest && taker.now <= at.saturating_add(UNASKED);
    let forecast = |lane: &Lane, fence: Fence| {
        let donor = lane.timeline.donor(fence.ticket);
        // A block that is long overdue, or whose stream has no known pace yet, may have been complete for long.
        let has_pace = donor.expected_at > donor.sealed_at;
        let is_expected = has_pace && donor.expected_at.is_some_and(is_near);
        let may_wait = lane.can_be_awaited(fence.ticket) && limit.allows(donor, taker);
        (is_expected && may_wait).then(|| Forecast::of(donor, taker))
    };
    let taken = search.to.with_forecasts(forecast, |view| {
        let mut heap = search.to.engine.store.heap.lock();
        heap.take_exact_fit(search.request, view)
    });
    let Some(grant) = taken else {
        return Ok(None);
    };
    match search.to.accept(grant, Source::Free) {
        // The block is pending as before, and another may be complete.
        Err(error) if !error.is_sticky() => Ok(None),
        found => Ok(found?),
    }
}

/// Returns the fences of the block that is expected first, of those whose streams were not asked in vain just
/// now.
fn first_expected(search: &Search<'_>) -> Option<Fences> {
    let taker = search.to.taker();
    let forecast = |lane: &Lane, fence: Fence| {
        let donor = lane.timeline.donor_to_query(fence.ticket, taker.now);
        donor.map(|donor| Forecast::of(donor, taker))
    };
    search.to.with_forecasts(forecast, |view| {
        let heap = search.to.engine.store.heap.lock();
        heap.fences_of_exact_fit(search.request, view)
    })
}

/// Asks the streams of those fences, the one that is expected last first. Says whether all have passed.
fn have_passed(search: &Search<'_>, fences: &Fences) -> Result<bool, DeviceError> {
    let (lanes, view) = (search.to.engine.streams.lanes(), search.to.view());
    let behind = fences.iter().filter(|fence| !view.is_ordered(*fence));
    let points = behind.filter_map(|fence| {
        let lane = lanes.find(fence)?;
        let expected_at = lane.timeline.donor(fence.ticket).expected_at;
        Some((Reverse(expected_at), fence.ticket, lane))
    });
    let mut points: SmallVec<[_; 2]> = points.collect();
    points.sort_by_key(|(expected_at, ..)| *expected_at);
    for (_, ticket, lane) in points {
        if !reaping::reap_due(
            &search.to.engine.shared,
            &search.to.engine.store,
            lane,
            ticket,
        )? {
            return Ok(false);
        }
    }
    Ok(true)
}
