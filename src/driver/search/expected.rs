//! The points that a request awaits before new memory is taken for it.
//!
//! Where waiting comes first, memory that streams are about to pass is worth more than new memory. Memory that was on
//! its way when the request was made is awaited if it is expected in time, and no longer than it may be expected.

use super::super::mode::Patience;
use super::super::recipient::donor_of;
use super::super::registry::Lanes;
use super::{Expected, Search};
use crate::heap::policy::Order;
use crate::lane::Lane;
use crate::sync::Arc;

impl Search<'_> {
    /// Returns the points that are awaited before new memory is taken; none once they are overdue.
    pub(super) fn expected(&self) -> Expected {
        let lanes = self.to.driver.lanes();
        let mut expected = match self.mode.patience {
            Patience::None => return Expected::default(),
            Patience::Fresh => self.on_their_way(&lanes),
            Patience::Known(expected) if self.to.driver.device.now() >= expected.until => {
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
    fn on_their_way(&self, lanes: &Lanes) -> Expected {
        let totals = self.to.driver.totals();
        let settings = &self.to.driver.settings;
        let is_enough = totals.free.current + totals.pending.current >= self.request.bytes;
        if settings.order != Order::WaitFirst || !is_enough {
            return Expected::default();
        }
        let taker = self.to.taker();
        let newest = |lane: &Arc<Lane>| Some(lane.fence(lane.timeline.newest()?.ticket));
        let mut expected = Expected::default();
        for (lane, fence) in lanes.iter().filter_map(|lane| Some((lane, newest(lane)?))) {
            let donor = donor_of(lane, fence);
            if settings.wait_limit.allows(donor, taker) {
                expected.fences.join(fence);
                expected.until = expected.until.max(donor.overdue_at(taker.now));
            }
        }
        expected
    }
}
