//! The points that a request awaits before new memory is taken for it.
//!
//! Where waiting comes first, memory that streams are about to pass is worth more than new memory. Memory that was on
//! its way when the request was made is awaited if it is expected in time, and no longer than it may be expected.

use super::super::mode::Patience;
use super::Recipient;
use crate::engine::Expected;
use crate::lane::Lane;
use crate::lane::Lanes;
use crate::sync::Arc;

/// Returns the points that a request of that size awaits before new memory is taken; none once they are overdue.
pub(super) fn awaited(patience: Patience<'_>, to: &Recipient<'_>, bytes: u64) -> Expected {
    let lanes = to.engine.streams.lanes();
    let mut expected = match patience {
        Patience::None => return Expected::default(),
        Patience::Fresh => on_their_way(to, bytes, &lanes),
        Patience::Known(expected) if to.engine.shared.device.now() >= expected.until => {
            return Expected::default();
        }
        Patience::Known(expected) => expected.clone(),
    };
    expected.fences.discharge(|fence| {
        lanes
            .find(fence)
            .is_none_or(|lane| lane.timeline.completed() >= fence.ticket)
    });
    expected
}

/// Returns the sealed points that are expected before this stream's own work is done; none if that memory would
/// not be enough.
fn on_their_way(to: &Recipient<'_>, bytes: u64, lanes: &Lanes) -> Expected {
    let totals = to.engine.store.totals();
    let settings = &to.engine.shared.settings;
    if totals.unused() < bytes {
        return Expected::default();
    }
    let taker = to.taker();
    let newest = |lane: &Arc<Lane>| Some(lane.fence(lane.timeline.newest()?.ticket));
    let mut expected = Expected::default();
    for (lane, fence) in lanes.iter().filter_map(|lane| Some((lane, newest(lane)?))) {
        let donor = lane.timeline.donor(fence.ticket);
        if settings.wait_limit.allows(donor, taker) {
            expected.fences.join(fence);
            expected.until = expected.until.max(donor.overdue_at(taker.now));
        }
    }
    expected
}
