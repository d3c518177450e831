//! Patience: what an allocation that may wait awaits before new memory is taken for it.
//!
//! Where waiting comes first, memory that streams are about to pass is worth more than new memory. What
//! was on its way when the allocation came is awaited, if it is expected in time, and no longer than it
//! may be expected: after that it grows.

use super::Climb;
use super::view::{donor_of, find};
use crate::heap::Fences;
use crate::heap::policy::Order;
use crate::lane::Lane;
use crate::sync::Arc;
use std::time::Duration;

/// What an allocation that may wait waits for before it takes new memory: see [`Order::WaitFirst`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience<'a> {
    /// Nothing.
    None,
    /// What is on its way now, and expected in time.
    Fresh,
    /// What was on its way when it came.
    For(&'a Expected),
}

/// Points that are expected to be passed soon, and when it is no use to expect them any longer, on the
/// device's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) fences: Fences,
    pub(crate) until: Duration,
}

impl Climb<'_> {
    /// The points that are to be passed before new memory is taken; nothing once they are overdue.
    pub(super) fn held_back_by(&self) -> Expected {
        let lanes = self.driver.lanes();
        let mut expected = match self.patience {
            Patience::None => return Expected::default(),
            Patience::Fresh => self.on_their_way(&lanes),
            Patience::For(expected) if self.driver.device.now() >= expected.until => {
                return Expected::default();
            }
            Patience::For(expected) => expected.clone(),
        };
        expected.fences.discharge(|fence| {
            find(&lanes, fence).is_none_or(|lane| lane.timeline.completed() >= fence.ticket)
        });
        expected
    }

    /// What is sealed on each stream, and expected before this stream's own work is through; nothing
    /// if it could not do anyway.
    fn on_their_way(&self, lanes: &[Arc<Lane>]) -> Expected {
        let totals = self.driver.totals();
        let settings = &self.driver.settings;
        let could_do = totals.free.current + totals.pending.current >= self.request.bytes;
        if settings.order != Order::WaitFirst || !could_do {
            return Expected::default();
        }
        let taker = self.taker();
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
