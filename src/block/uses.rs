//! The uses of a block: the streams on which it is used, and the order of the uses.
//!
//! The stream that the block was allocated on, its *home*, needs no note until the block leaves it: uses that must come
//! after it come after all that was submitted to it. Every other use takes two steps: the device orders the stream, and
//! then the use is noted. A note made first could be found by another thread that relies on an order which is not there
//! yet (order).

use super::Block;
use super::further::{Access, Earlier};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::engine::{ordering, release};
use crate::error::StreamError;
use crate::foreign::Residency;
use crate::handles::Registration;
use crate::heap::{Fence, Fences};
use crate::id::Ticket;
use crate::lane::Lane;
use crate::queue::Passages;
use crate::stream::Event;
use crate::sync::Arc;
use smallvec::SmallVec;

pub(crate) type Points = SmallVec<[Event; 2]>;

/// A view of a block. See the [module](self).
#[derive(Clone, Copy)]
pub(crate) struct Uses<'a> {
    pub(super) block: &'a Block,
    pub(super) home: &'a Arc<Registration>,
}

impl<'a> Uses<'a> {
    #[inline]
    pub(super) fn of(block: &'a Block) -> Self {
        let home = block.registration();
        Self { block, home }
    }

    /// Orders a stream after what a use of that kind comes after, and notes the use.
    ///
    /// # Errors
    /// Returns an error if the device cannot order the stream. The stream must not use the block then.
    pub(crate) fn order(self, on: &Arc<Registration>, access: Access) -> Result<(), DeviceError> {
        for point in self.points_before(access, Some(on))? {
            point.bring_behind(on)?;
        }
        self.conclude(on, access)
    }

    /// Orders a stream after all uses so far, and notes that the block is used there from now on. Where the stream
    /// takes no wait (the host's, or one that is being captured), the host waits.
    ///
    /// # Errors
    /// Returns an error if the device cannot tell when the earlier uses are over, or if the host must not wait here.
    pub(super) fn order_for_good(self, on: &Arc<Registration>) -> Result<(), StreamError> {
        for point in self.points_before(Access::Write, Some(on))? {
            point.come_before(on)?;
        }
        Ok(self.record(on, Access::Always)?)
    }

    /// Notes a use on a stream that comes after the [points before it](Self::points_before).
    ///
    /// # Errors
    /// Returns the errors of [`order`](Self::order).
    pub(crate) fn conclude(
        self,
        on: &Arc<Registration>,
        access: Access,
    ) -> Result<(), DeviceError> {
        // First: a use that fails here leaves the earlier ones to the next.
        self.record(on, access)?;
        if access == Access::Write {
            let mut extra = self.block.extra.lock();
            extra
                .iter_mut()
                .for_each(|extra| extra.streams.settle_but(on));
        }
        Ok(())
    }

    /// Notes a use: the memory is not reused before the stream has passed the free. Orders the stream after the grant.
    ///
    /// # Errors
    /// Returns the errors of [`order`](Self::order).
    pub(crate) fn record(self, on: &Arc<Registration>, access: Access) -> Result<(), DeviceError> {
        if self.is_at_home(on) || self.record_if_known(on, access) {
            self.name_captured(on);
            return Ok(());
        }
        // The stream that the block has left comes after its own grant.
        if self.home.lane.id != on.lane.id {
            self.order_after_grant(on)?;
        }
        self.name_captured(on);
        self.record_ordered(on, access);
        Ok(())
    }

    fn order_after_grant(self, on: &Arc<Registration>) -> Result<(), DeviceError> {
        if let Some(granted) = self.captured_point(self.home, Some(on))? {
            return granted.order(on);
        }
        let engine = &self.home.service.engine;
        ordering::order_after_grant(
            engine,
            &self.home.lane,
            self.block.allocation().after,
            &on.lane,
        )
    }

    /// Returns whether this is the block's home, and the block has not left it.
    #[inline]
    fn is_at_home(self, on: &Arc<Registration>) -> bool {
        self.home.lane.id == on.lane.id && self.left_at().is_none()
    }

    fn record_if_known(self, on: &Arc<Registration>, access: Access) -> bool {
        let mut extra = self.block.extra.lock();
        let extra = extra.as_mut();
        extra.is_some_and(|extra| extra.streams.record_if_known(on, access))
    }

    /// Notes a use on a stream that is ordered after the grant already.
    fn record_ordered(self, on: &Arc<Registration>, access: Access) {
        let residency = {
            let mut extra = self.block.extra.lock();
            let extra = extra.get_or_insert_default();
            extra.streams.record(on, access);
            extra.residency.clone()
        };
        if let Some(residency) = residency {
            residency.remember(on);
        }
    }

    /// Notes a use on a stream that its user ordered after the grant: nothing is submitted to it.
    pub(super) fn record_ordered_by_user(self, on: &Arc<Registration>) {
        self.name_captured(on);
        if !self.is_at_home(on) {
            self.record_ordered(on, Access::Always);
        }
    }

    /// Makes the free follow the order of a stream that does not use the block.
    #[inline]
    pub(super) fn free_with(self, on: &Arc<Registration>) {
        if self.is_at_home(on) {
            return;
        }
        let after = self.block.allocation().after;
        self.record_ordered(on, Access::Always);
        if self.home.lane.is_external {
            let mut extra = self.block.extra.lock();
            extra.get_or_insert_default().left_at.get_or_insert(after);
        }
    }

    /// Returns the points that a use comes after: of every stream but its own, as of now.
    ///
    /// # Errors
    /// Returns an error if the device cannot record an event for one of them.
    pub(crate) fn points_before(
        self,
        access: Access,
        on: Option<&Arc<Registration>>,
    ) -> Result<Points, DeviceError> {
        let is_for_home = on.is_some_and(|on| Arc::ptr_eq(on, self.home));
        let has_left = self.left_at().is_some();
        let home = (!is_for_home && !has_left).then(|| Earlier {
            registration: self.home.clone(),
            point: None,
        });
        let mut earlier: SmallVec<[Earlier; 2]> = home.into_iter().collect();
        if let Some(extra) = &**self.block.extra.lock() {
            earlier.extend(extra.streams.before(access, on));
        }
        let points = earlier
            .into_iter()
            .map(|earlier| self.point_of(earlier, on));
        let mut points = points.collect::<Result<Points, _>>()?;
        self.add_launches(on, &mut points)?;
        Ok(points)
    }

    fn point_of(
        self,
        earlier: Earlier,
        on: Option<&Arc<Registration>>,
    ) -> Result<Event, DeviceError> {
        let Earlier {
            registration,
            point,
        } = earlier;
        if let Some(marker) = point {
            return Ok(Event::recorded(registration, marker));
        }
        if let Some(point) = self.captured_point(&registration, on)? {
            return Ok(Event::captured(registration, point));
        }
        if registration.lane.is_external {
            let reason = "the block was used on an external stream, which may be gone: order the streams with an event \
                          of your own, and record the use as `Unordered`";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("record", kind, reason));
        }
        let marker = ordering::mark(&registration.service.engine, &registration.lane)?;
        if let Some(extra) = &mut **self.block.extra.lock() {
            extra.streams.keep(&registration, &marker);
        }
        Ok(Event::recorded(registration, marker))
    }

    /// Returns the streams that the block is used on: its home first, unless the block has left it, and the further
    /// ones.
    pub(super) fn lanes(self) -> SmallVec<[Arc<Lane>; 2]> {
        let extra = self.block.extra.lock();
        let is_left = extra.as_ref().is_some_and(|extra| extra.left_at.is_some());
        let mut lanes = SmallVec::new();
        if !is_left {
            lanes.push(self.home.lane.clone());
        }
        // Pushed one by one, which takes half the instructions of an iterator over all.
        for extra in extra.iter() {
            for further in extra.streams.registrations() {
                lanes.push(further.lane.clone());
            }
            if let Some(copies) = extra.residency.as_ref().and_then(Residency::copies) {
                lanes.push(copies.clone());
            }
        }
        lanes
    }

    /// Ends the uses so far of a block of this many bytes. Returns the points that they wait for, and a future's state
    /// that does.
    pub(super) fn end(self, bytes: u64) -> (Fences, Passages) {
        let (lanes, service) = (self.lanes(), &self.home.service);
        let earlier = self.fence_left_behind();
        let fences = release::end_uses(&service.engine, &lanes, earlier, bytes);
        let passages = Passages::new(service, &lanes, &fences);
        (fences, passages)
    }

    /// Returns the block's own stream: the one that it was moved to last, or else that of its allocation.
    pub(super) fn stream(self) -> Arc<Registration> {
        let moved_to = self.block.extra(|extra| {
            extra.left_at?;
            extra.streams.registrations().next().cloned()
        });
        moved_to.unwrap_or_else(|| self.home.clone())
    }

    /// Returns the point of the stream that it was allocated on at which the block left that stream, if it did.
    pub(super) fn left_at(self) -> Option<Ticket> {
        self.block.extra(|extra| extra.left_at)
    }

    /// Returns what the memory waits for besides the streams that the block is used on, if the block left its home.
    pub(super) fn fence_left_behind(self) -> Option<Fence> {
        let (after, lane) = (self.left_at()?, &self.home.lane);
        (lane.timeline.completed() < after).then(|| lane.fence(after))
    }
}
