//! What a climb sees of the heap: what its stream comes after, what it may be made to wait for, and when that is
//! expected.

use super::Climb;
use crate::driver::Driver;
use crate::heap::policy::{Donor, Taker, WaitLimit};
use crate::heap::{Fence, Forecast, View};
use crate::id::StreamId;
use crate::lane::Lane;
use crate::sync::Arc;
use std::time::Duration;

impl Climb<'_> {
    pub(super) fn view(&self) -> View<'_> {
        View {
            stream: if self.is_for_everybody {
                StreamId::NONE
            } else {
                self.lane.id
            },
            after: &self.after,
            waits: None,
            placement: self.placement,
        }
    }

    /// Looks with a view in which the stream may be made to wait within the limit.
    pub(in crate::driver) fn with_waits<R>(
        &self,
        limit: Option<WaitLimit>,
        look: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let Some(limit) = limit else {
            return look(&self.view());
        };
        let taker = self.taker();
        let forecast = |lane: &Lane, fence| limit.forecast(donor_of(lane, fence), taker);
        self.with_forecasts(
            |lane, fence| {
                lane.can_be_awaited(fence.ticket)
                    .then(|| forecast(lane, fence))?
            },
            look,
        )
    }

    /// Looks with a view in which there are further fences that the asker may have, and when they are expected.
    pub(super) fn with_forecasts<R>(
        &self,
        forecast: impl Fn(&Lane, Fence) -> Option<Forecast>,
        look: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let lanes = self.driver.lanes();
        let waits = |fence: Fence| match find(&lanes, fence) {
            Some(lane) => forecast(lane, fence),
            // A stream without a lane is gone, and complete, though the heap may not have heard of it yet; or it came
            // after this look, and is found when its point is to be waited for.
            None => Some(Forecast::default()),
        };
        look(&View {
            waits: Some(&waits),
            ..self.view()
        })
    }

    pub(super) fn taker(&self) -> Taker {
        taker(self.driver, self.lane)
    }
}

fn taker(driver: &Driver, lane: &Lane) -> Taker {
    let now = driver.device.now();
    let timeline = &lane.timeline;
    let tail = timeline
        .newest()
        .map_or(now, |_| now.saturating_add(timeline.latency()));
    Taker { now, tail }
}

/// The lane of a fence; a stream that is gone has no lane, and all its work is complete.
pub(in crate::driver) fn find(lanes: &[Arc<Lane>], fence: Fence) -> Option<&Arc<Lane>> {
    let at = lanes
        .binary_search_by_key(&fence.stream, |lane| lane.id)
        .ok()?;
    Some(&lanes[at])
}

pub(super) fn donor_of(lane: &Lane, fence: Fence) -> Donor {
    let marker = lane.timeline.covering(fence.ticket);
    Donor {
        sealed_at: marker.as_ref().map(|marker| marker.sealed_at),
        expected_at: marker.as_ref().map(|marker| marker.expected_at),
        number: marker.map_or(u64::MAX, |marker| marker.number()),
        latency: lane.timeline.latency(),
    }
}

impl Driver {
    /// Returns the next time from which a request for the lane's stream may be made to wait on the device for a point of
    /// another stream, if nothing else happens until then.
    pub(crate) fn wait_allowed_at(&self, lane: &Lane) -> Option<Duration> {
        let limit = self.settings.wait_limit;
        let may_wait = self.capabilities.device_side_waits
            && self.settings.reuse.internal_dependencies
            && limit == WaitLimit::Tail
            && lane.takes_waits
            && !lane.is_external;
        if !may_wait {
            return None;
        }
        let taker = taker(self, lane);
        let lanes = self.lanes();
        let others = lanes.iter().filter(|other| other.id != lane.id);
        let times = others.filter_map(|other| {
            let latency = other.timeline.latency();
            let sealed_at = other.timeline.sealed_at();
            let mut times = sealed_at.into_iter().filter_map(|sealed_at| {
                let donor = Donor {
                    sealed_at: Some(sealed_at),
                    expected_at: None,
                    number: 0,
                    latency,
                };
                limit.allows_from(donor, taker)
            });
            times.next()
        });
        times.min()
    }
}
