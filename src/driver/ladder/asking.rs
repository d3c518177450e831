//! What is asked of the device before memory is taken elsewhere: as little as will do.
//!
//! A query takes more time than to record an event, or to have a stream wait for one, and most of what is asked after
//! while kernels are short is not complete. So where there is pending memory of just the size that is wanted, its streams
//! alone are asked, beginning with what is expected first; and where no more memory is to be had, a stream that may wait
//! for it on the device is not kept by asking, if it waits for a short while. Only then everybody is asked.

use super::view::{donor_of, find};
use super::{Allocation, Climb, Refusal, Source};
use crate::device::DeviceError;
use crate::heap::policy::Order;
use crate::heap::{Fence, Fences, Forecast, Grant, Placement};
use crate::lane::Lane;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::time::Duration;

/// A stream is set back by so much at most to save the queries: beside a longer wait they take no time. Nor is it made
/// to wait, unasked, for what should have come so long ago.
const UNASKED: Duration = Duration::from_millis(1);

/// Memory is asked after in vain so often before everybody is asked.
const TRIES: usize = 2;

impl Climb<'_> {
    /// Source 2: what is complete, by asking.
    pub(super) fn reaped(&self) -> Result<Option<Allocation>, Refusal> {
        if self.may_pick() {
            if let Some(allocation) = self.picked()? {
                return Ok(Some(allocation));
            }
        }
        let has_news = self.reap()?;
        let is_worth_a_look = has_news || self.is_loose_fit.get();
        Ok(if is_worth_a_look { self.known() } else { None })
    }

    /// Asks every stream, but those that this climb has asked before and that were given no event since: what they passed
    /// since then counts for the next climb.
    pub(super) fn reap(&self) -> Result<bool, DeviceError> {
        let asks_late = self.asks_late();
        let mut asked = self.asked.borrow_mut();
        self.driver.reap_by(|lane| {
            let newest = lane.timeline.newest().map(|marker| marker.ticket);
            let Some(newest) = newest.filter(|newest| !asked.covers(lane.fence(*newest))) else {
                return Ok(None);
            };
            asked.join(lane.fence(newest));
            let device = &*self.driver.device;
            if asks_late {
                lane.timeline.reap_in_order(device)
            } else {
                lane.timeline.reap(device)
            }
        })
    }

    /// Whether an event that is seen late, while its stream goes on, may keep what is behind it for now: there is a last
    /// look before anybody waits or fails. It happens so seldom that it is not worth a second query of each stream.
    fn asks_late(&self) -> bool {
        self.driver.settings.order == Order::GrowFirst
    }

    /// The last look: the same sources once more, if a stream turns out to be further than its oldest event.
    pub(super) fn late(&self) -> Result<Option<Allocation>, Refusal> {
        let late = |lane: &Lane| lane.timeline.reap_late(&*self.driver.device);
        if !self.may_ask() || !self.driver.reap_by(late)? {
            return Ok(None);
        }
        if let Some(allocation) = self.known() {
            return Ok(Some(allocation));
        }
        match self.grown()? {
            Some(allocation) => Ok(Some(allocation)),
            None => self.device_wait(self.driver.settings.wait_limit),
        }
    }

    /// Whether memory of just that size will do as well as any. Where waiting comes first, all that is complete counts:
    /// the less is taken from the device.
    fn may_pick(&self) -> bool {
        let order = self.driver.settings.order;
        order == Order::GrowFirst && self.placement == Placement::Anywhere && !self.is_for_everybody
    }

    /// Memory of just that size, which one stream or few have to pass. Where the device has no more to give and
    /// the stream may not wait, everybody is asked: what merges then is worth more than a few queries.
    fn picked(&self) -> Result<Option<Allocation>, Refusal> {
        let bytes = self.request.bytes;
        let (left, free) = self.driver.heap.lock().left_and_free();
        // What is only too large is had without a wait.
        let is_short = left + free < bytes && !self.is_loose_fit.get();
        if is_short && self.may_wait() {
            return self.picked_to_wait_for();
        }
        if left < bytes {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let Some(fences) = self.first_expected() else {
                return Ok(None);
            };
            if self.have_passed(&fences)? {
                return Ok(self.known());
            }
        }
        Ok(None)
    }

    /// Memory that the stream waits for on the device, within the limit, whether it is complete or not; where there is
    /// no more to be had, what streams were left for their next turn is others' at once.
    fn picked_to_wait_for(&self) -> Result<Option<Allocation>, Refusal> {
        if let Some(allocation) = self.first_in_time()? {
            return Ok(Some(allocation));
        }
        if !self.driver.flush_large_caches() {
            return Ok(None);
        }
        self.driver.seal_lanes()?;
        self.first_in_time()
    }

    /// Of what may be waited for, the first that is expected: those of one size pack alike.
    fn first_in_time(&self) -> Result<Option<Allocation>, Refusal> {
        let (taker, limit) = (self.taker(), self.driver.settings.wait_limit);
        let own = self.lane.timeline.newest().map(|newest| newest.expected_at);
        let latest = own.unwrap_or_default().max(taker.tail) + UNASKED;
        let is_near = |at: Duration| at <= latest && taker.now <= at + UNASKED;
        let forecast = |lane: &Lane, fence: Fence| {
            let donor = donor_of(lane, fence);
            // Of what is long overdue, or of a stream whose pace is not known yet, something may be complete for long.
            let has_pace = donor.expected_at > donor.sealed_at;
            let is_expected = has_pace && donor.expected_at.is_some_and(is_near);
            let may_wait = lane.can_be_awaited(fence.ticket) && limit.allows(donor, taker);
            (is_expected && may_wait).then(|| Forecast::of(donor, taker))
        };
        let taken = self.with_forecasts(forecast, |view| {
            self.driver.heap.lock().take_like(self.request, view)
        });
        match taken {
            Some(grant) => self.lend_or_go_on(grant),
            None => Ok(None),
        }
    }

    /// What cannot be waited for now is pending as before, and something else may be complete.
    fn lend_or_go_on(&self, grant: Grant) -> Result<Option<Allocation>, Refusal> {
        match self.lend_in_order(grant, Source::Free) {
            Err(error) if !error.is_sticky() => Ok(None),
            allocation => Ok(allocation?),
        }
    }

    /// What the first that is expected waits for, of pending memory of just that size whose streams were not asked in
    /// vain just now.
    fn first_expected(&self) -> Option<Fences> {
        let taker = self.taker();
        let forecast = |lane: &Lane, fence: Fence| {
            let may_ask = lane.timeline.is_worth_a_query(fence.ticket, taker.now);
            may_ask.then(|| Forecast::of(donor_of(lane, fence), taker))
        };
        self.with_forecasts(forecast, |view| {
            self.driver.heap.lock().look_like(self.request, view)
        })
    }

    /// Asks the streams of those fences, the one that is expected last first.
    fn have_passed(&self, fences: &Fences) -> Result<bool, DeviceError> {
        let (lanes, view) = (self.driver.lanes(), self.view());
        let to_ask = fences.iter().filter(|fence| !view.is_ordered(*fence));
        let points = to_ask.filter_map(|fence| {
            let lane = find(&lanes, fence)?;
            let expected_at = donor_of(lane, fence).expected_at;
            Some((Reverse(expected_at), fence.ticket, lane))
        });
        let mut points: SmallVec<[_; 2]> = points.collect();
        points.sort_by_key(|(expected_at, ..)| *expected_at);
        for (_, ticket, lane) in points {
            if !self.driver.reap_due(lane, ticket)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
