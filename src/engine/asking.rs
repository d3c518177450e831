//! What is asked of the device before memory is taken elsewhere: as little as will do.
//!
//! A query takes more time than to record an event, or to have a stream wait for one, and most of what is asked after
//! while kernels are short is not complete. So where there is pending memory of just the size that is wanted, its streams
//! alone are asked, and not before it can be expected to be complete; and where no more memory is to be had, a stream that
//! may wait for it on the device is not kept by asking first. Only then everybody is asked.

use super::ladder::{Climb, donor_of, find};
use super::{Lent, Refusal, Rung};
use crate::device::DeviceError;
use crate::id::Ticket;
use crate::lane::Lane;
use crate::ledger::policy::Order;
use crate::ledger::{Fence, Fences, Forecast, Place, View};
use crate::sync::Arc;
use smallvec::SmallVec;
use std::time::Duration;

/// Memory is asked after in vain so often before everybody is asked.
const TRIES: usize = 2;

impl Climb<'_> {
    /// Rung 2: what is complete, by asking.
    pub(super) fn harvested(&self) -> Result<Option<Lent>, Refusal> {
        if self.may_pick() {
            if let Some(lent) = self.picked()? {
                return Ok(Some(lent));
            }
        }
        let has_news = self.harvest()?;
        Ok(if has_news { self.known() } else { None })
    }

    /// Asks every stream, but those that this climb has asked before and that were given no event since.
    pub(super) fn harvest(&self) -> Result<bool, DeviceError> {
        let asks_late = self.asks_late();
        let mut asked = self.asked.borrow_mut();
        self.engine.harvest_by(|lane| {
            let newest = lane.timeline.newest().map(|marker| marker.ticket);
            let Some(newest) = newest.filter(|newest| !asked.covers(lane.fence(*newest))) else {
                return Ok(None);
            };
            asked.join(lane.fence(newest));
            let device = &*self.engine.device;
            if asks_late {
                lane.timeline.harvest_in_order(device)
            } else {
                lane.timeline.harvest(device)
            }
        })
    }

    /// Whether an event that is seen late, while its stream goes on, may keep what is behind it for now. There is a last
    /// look, before anybody waits or fails, and it is seldom in vain that the others are asked half as much.
    fn asks_late(&self) -> bool {
        self.engine.settings.order == Order::GrowFirst
    }

    /// The last look: the same rungs once more, if a stream turns out to be further than its oldest event.
    pub(super) fn late(&self) -> Result<Option<Lent>, Refusal> {
        let late = |lane: &Lane| lane.timeline.harvest_late(&*self.engine.device);
        if !self.may_ask() || !self.engine.harvest_by(late)? {
            return Ok(None);
        }
        if let Some(lent) = self.known() {
            return Ok(Some(lent));
        }
        match self.grown()? {
            Some(lent) => Ok(Some(lent)),
            None => self.device_wait(self.engine.settings.wait_limit),
        }
    }

    /// Whether memory of just that size will do as well as any. Where waiting comes first, all that is complete counts:
    /// the less is taken from the device.
    fn may_pick(&self) -> bool {
        let order = self.engine.settings.order;
        order == Order::GrowFirst && self.place == Place::Anywhere && !self.is_for_everybody
    }

    /// Memory of just that size, which one stream or few have to pass.
    fn picked(&self) -> Result<Option<Lent>, Refusal> {
        if self.may_wait() && !self.is_more_to_be_had() {
            if let Some(lent) = self.picked_to_wait_for()? {
                return Ok(Some(lent));
            }
        }
        let lanes = self.engine.lanes();
        for _ in 0..TRIES {
            let Some(fences) = self.due(&lanes) else {
                return Ok(None);
            };
            if self.have_passed(&lanes, &fences)? {
                return Ok(self.known());
            }
        }
        Ok(None)
    }

    /// Memory that the stream waits for on the device, within the limit, whether it is complete or not; where there is
    /// no more to be had, what streams were left for their next turn is others' at once.
    fn picked_to_wait_for(&self) -> Result<Option<Lent>, Refusal> {
        if let Some(lent) = self.like_it()? {
            return Ok(Some(lent));
        }
        if !self.engine.drain_shelves() {
            return Ok(None);
        }
        self.engine.seal_lanes()?;
        self.like_it()
    }

    fn like_it(&self) -> Result<Option<Lent>, Refusal> {
        let lanes = self.engine.lanes();
        let taker = self.taker();
        let limit = self.engine.settings.wait_limit;
        // Those of one size are alike: whatever is in time, the first to be expected is best.
        let waits = |fence: Fence| {
            let Some(lane) = find(&lanes, fence) else {
                return Some(Forecast::default());
            };
            let donor = donor_of(lane, fence);
            let may = lane.can_be_awaited(fence.ticket) && limit.allows(donor, taker);
            may.then(|| Forecast::of(donor, taker))
        };
        let view = View {
            waits: Some(&waits),
            ..self.view()
        };
        let taken = self.engine.ledger.lock().take_like(self.request, &view);
        match taken {
            Some(grant) => Ok(self.lend_in_order(grant, Rung::Free)?),
            None => Ok(None),
        }
    }

    /// Whether the device may be asked for more, or what is free be put together.
    fn is_more_to_be_had(&self) -> bool {
        let ledger = self.engine.ledger.lock();
        ledger.could_come_to(self.request.bytes)
    }

    /// What pending memory of just that size waits for, if all of it can be expected to have been passed by now.
    fn due(&self, lanes: &[Arc<Lane>]) -> Option<Fences> {
        let taker = self.taker();
        let waits = |fence: Fence| {
            let Some(lane) = find(lanes, fence) else {
                return Some(Forecast::default());
            };
            let may_ask = lane.timeline.may_be_asked(fence.ticket, taker.now);
            may_ask.then(|| Forecast::of(donor_of(lane, fence), taker))
        };
        let view = View {
            waits: Some(&waits),
            ..self.view()
        };
        self.engine.ledger.lock().look_like(self.request, &view)
    }

    /// Asks the streams of those fences, the one that is expected last first.
    fn have_passed(&self, lanes: &[Arc<Lane>], fences: &Fences) -> Result<bool, DeviceError> {
        let view = self.view();
        let mut points: SmallVec<[(Duration, Ticket, &Arc<Lane>); 2]> = fences
            .iter()
            .filter(|fence| !view.is_ordered(*fence))
            .filter_map(|fence| {
                let lane = find(lanes, fence)?;
                let marker = lane.timeline.covering(fence.ticket);
                let expected_at = marker.map(|marker| marker.expected_at);
                Some((expected_at.unwrap_or_default(), fence.ticket, lane))
            })
            .collect();
        points.sort_by_key(|(expected_at, ..)| std::cmp::Reverse(*expected_at));
        for (_, ticket, lane) in points {
            if !self.engine.harvest_due(lane, ticket)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
