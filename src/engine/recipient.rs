//! The recipient of a search: the stream that memory is for, and how a grant becomes its allocation.

use super::allocation::Allocation;
use super::supply::For;
use super::{Engine, Shared, Source, ordering, supply};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::heap::{
    Clock, Donor, Fence, Fences, Forecast, Grant, Growth, Placement, Plan, Taker, View, WaitLimit,
};
use crate::id::{StreamId, Ticket};
use crate::lane::Lane;
use crate::sync::Arc;
use std::time::Duration;

/// The stream that memory is searched for.
pub(super) struct Recipient<'a> {
    pub(super) engine: &'a Engine,
    pub(super) lane: &'a Arc<Lane>,
    /// The points that the stream comes after, as far as the policy lets them count.
    pub(super) after: Clock,
    /// Where the memory must lie.
    pub(super) placement: Placement,
    /// The stream may be given work here: its user makes this call, or the stream is not external.
    pub(super) may_submit: bool,
    /// The memory must be complete on every stream, and not only safe for this one.
    pub(super) is_for_all: bool,
    /// Collects the points that the stream has to wait for, if the waits are submitted later.
    pub(super) deferred: Option<&'a mut Fences>,
    /// New bytes that the device refused when it was last asked; 0 if it did not.
    pub(super) refused: u64,
}

/// An allocation, and the fences that its memory came with, in case it has to be put back.
pub(super) struct Found {
    pub(super) allocation: Allocation,
    pub(super) fences: Fences,
    /// The chunks of virtual memory that were mapped for it.
    pub(super) mapped: u64,
}

impl<'a> Recipient<'a> {
    /// Creates a recipient for a stream that comes after those points.
    #[inline]
    pub(super) fn new(engine: &'a Engine, lane: &'a Arc<Lane>, after: Clock) -> Self {
        let is_captured = lane.cache.is_captured();
        Self {
            engine,
            lane,
            // The order of a captured stream says nothing of the launches of its graph.
            after: if is_captured { Clock::default() } else { after },
            placement: Placement::Anywhere,
            may_submit: true,
            is_for_all: is_captured,
            deferred: None,
            refused: 0,
        }
    }

    /// Returns whether the policy allows making the stream wait on the device.
    pub(super) fn may_wait(&self) -> bool {
        !self.is_for_all
            && self.may_submit
            && self.can_wait()
            && self.engine.shared.reuse().internal_dependencies
    }

    /// Returns whether the stream can be made to wait on the device.
    pub(super) fn can_wait(&self) -> bool {
        self.engine.shared.capabilities.device_side_waits && self.lane.takes_waits
    }

    /// Returns whether new memory is taken in the order of the stream, from an ordered source.
    pub(super) fn takes_ordered_memory(&self) -> bool {
        self.engine.shared.settings.is_ordered
            && self.may_submit
            && !self.is_for_all
            && self.deferred.is_none()
    }

    /// Returns the memory that the stream may take as it is.
    pub(super) fn view(&self) -> View<'_> {
        View {
            stream: if self.is_for_all {
                StreamId::NONE
            } else {
                self.lane.id
            },
            after: &self.after,
            waits: None,
            placement: self.placement,
        }
    }

    /// Looks with a view in which the stream may be made to wait within the limit, if there is one.
    pub(super) fn with_waits<R>(
        &self,
        limit: Option<WaitLimit>,
        look: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let Some(limit) = limit else {
            return look(&self.view());
        };
        let taker = self.taker();
        let forecast = |lane: &Lane, fence: Fence| {
            let can_be_awaited = lane.can_be_awaited(fence.ticket);
            can_be_awaited.then(|| limit.forecast(lane.timeline.donor(fence.ticket), taker))?
        };
        self.with_forecasts(forecast, look)
    }

    /// Looks with a view in which the stream may have further fences, those with a forecast.
    pub(super) fn with_forecasts<R>(
        &self,
        forecast: impl Fn(&Lane, Fence) -> Option<Forecast>,
        look: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let lanes = self.engine.streams.lanes();
        let waits = |fence: Fence| match lanes.find(fence) {
            Some(lane) => forecast(lane, fence),
            // It is complete when the capture is over, and no wait comes after that.
            None if fence.stream.is_order() => None,
            // A stream without a lane is gone and complete, though the heap may not know that yet. Or it came after
            // this look, and is found when its point is to be waited for.
            None => Some(Forecast::default()),
        };
        look(&View {
            waits: Some(&waits),
            ..self.view()
        })
    }

    /// Returns the state of the stream as one that would wait.
    pub(super) fn taker(&self) -> Taker {
        taker(&self.engine.shared, self.lane)
    }

    /// Returns how a request of that size may grow. Where the device has no new memory, free memory has to do.
    pub(super) fn growth(&self, bytes: u64) -> Growth {
        let growth = self.engine.supply.growth(&self.engine.shared);
        if self.refused > 0 || growth.is_sparing() && self.engine.supply.is_short_of(bytes) {
            return Growth::Allowed;
        }
        growth
    }

    /// Returns whether the device refused new memory in place of which free memory might be moved. A chunk that it
    /// refuses to map is not tried again: a chunk is lost each time.
    pub(super) fn was_refused_new(&self, growth: Growth) -> bool {
        growth.is_sparing() && self.refused >= self.engine.shared.settings.geometry.chunk_bytes
    }

    /// Carries a plan out, for the stream or for a reservation. `None` if the device has no memory for it.
    pub(super) fn carry_out(
        &mut self,
        plan: Plan,
        whom: For,
    ) -> Result<Option<Found>, DeviceError> {
        // Mapping memory that is there may need some, too.
        let new = plan.new_bytes().max(1);
        match supply::carry_out(self.engine, plan, whom) {
            Ok(Some(grant)) => self.accept(grant, Source::Grown),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                self.refused = new;
                self.engine.supply.record_refused(true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes an allocation of a grant, once the stream comes after all of its fences: by a wait on the device where
    /// it does not yet. `None` where a stream takes no event or no wait now because it is captured: the memory is
    /// pending as before.
    pub(super) fn accept(
        &mut self,
        grant: Grant,
        source: Source,
    ) -> Result<Option<Found>, DeviceError> {
        let ordered = match self.defer(&grant) {
            Some(has_deferred) => Ok(has_deferred),
            None => self.order_after(&grant),
        };
        match ordered {
            Ok(true) => Ok(Some(self.found_with(grant, Source::DeviceWait))),
            Ok(false) => Ok(Some(self.found_with(grant, source))),
            Err(error) => {
                self.engine
                    .store
                    .heap
                    .lock()
                    .give_back(grant.id, grant.fences);
                match error.kind() {
                    DeviceErrorKind::Unsupported => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    /// Collects the fences that the stream does not come after yet, if its waits are deferred. Says whether there
    /// were any.
    fn defer(&mut self, grant: &Grant) -> Option<bool> {
        let deferred = self.deferred.take()?;
        let view = self.view();
        let behind = grant.fences.iter().filter(|fence| !view.is_ordered(*fence));
        let count = behind.map(|fence| deferred.join(fence)).count();
        self.deferred = Some(deferred);
        Some(count > 0)
    }

    /// Makes the stream wait, on the device, for every fence that it does not come after yet. Says whether there
    /// was one.
    fn order_after(&self, grant: &Grant) -> Result<bool, DeviceError> {
        let view = self.view();
        let behind = grant.fences.iter().filter(|fence| !view.is_ordered(*fence));
        ordering::wait_for_all(self.engine, self.lane, behind)
    }

    /// Makes an allocation of a grant whose fences the stream comes after.
    #[inline]
    pub(super) fn found_with(&self, grant: Grant, source: Source) -> Found {
        let is_own = |fence: Fence| fence.stream == self.lane.id;
        let (after, source) = match grant.fences.single() {
            _ if grant.fences.is_empty() => (Ticket::ZERO, source),
            Some(fence) if is_own(fence) => (fence.ticket, named(source, Source::SameStream)),
            _ if self.may_submit && self.deferred.is_none() => {
                let point = ordering::present_point(self.engine, self.lane);
                (point, named(source, Source::Ordered))
            }
            _ => (
                self.lane.cache.open_ticket(),
                named(source, Source::Ordered),
            ),
        };
        let allocation = Allocation {
            id: grant.id,
            address: grant.address,
            bytes: grant.bytes,
            after,
            source,
        };
        Found {
            allocation,
            fences: grant.fences,
            mapped: 0,
        }
    }
}

/// The heap's memory is named by why it was safe, other memory by how it was obtained.
fn named(source: Source, why: Source) -> Source {
    if source == Source::Free { why } else { source }
}

fn taker(shared: &Shared, lane: &Lane) -> Taker {
    let now = shared.device.now();
    let timeline = &lane.timeline;
    let tail = timeline
        .newest()
        .map_or(now, |_| now.saturating_add(timeline.latency()));
    Taker { now, tail }
}

/// Returns the next time from which a queued request for the lane's stream may be made to wait on the device for a
/// point of another stream, if nothing else happens until then.
pub(crate) fn wait_allowed_at(engine: &Engine, lane: &Lane) -> Option<Duration> {
    let limit = engine.shared.settings.wait_limit;
    let may_wait = engine.shared.capabilities.device_side_waits
        && engine.shared.reuse().internal_dependencies
        && limit == WaitLimit::Tail
        && lane.takes_waits
        && !lane.is_external;
    if !may_wait {
        return None;
    }
    let taker = taker(&engine.shared, lane);
    let lanes = engine.streams.lanes();
    let others = lanes.iter().filter(|other| other.id != lane.id);
    let times = others.filter_map(|other| {
        let latency = other.timeline.latency();
        let mut sealed_at = other.timeline.sealed_at().into_iter();
        sealed_at.find_map(|sealed_at| {
            let donor = Donor {
                sealed_at: Some(sealed_at),
                expected_at: None,
                number: 0,
                latency,
            };
            limit.allows_from(donor, taker)
        })
    });
    times.min()
}
