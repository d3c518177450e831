//! A block that grows in place: what it is to grow by is lent right above it.

use super::Block;
use crate::device::DeviceError;
use crate::driver::{Allocation, Allocations};
use crate::error::AllocError;
use crate::heap::Placement;
use crate::lane::Event;
use crate::queue::{Caller, Demand, Registration};
use crate::sync::Arc;

impl Block {
    /// Addresses above it are kept for it. It bypasses the lane when it is freed, so that they do not stay kept.
    pub(crate) fn give_room(&mut self) {
        self.further.get_mut().get_or_insert_default().has_room = true;
    }

    pub(crate) fn has_room(&self) -> bool {
        let extra = self.further.lock();
        extra.as_ref().is_some_and(|extra| extra.has_room)
    }

    pub(crate) fn placement_above(&self) -> Placement {
        let allocation = self.allocation();
        Placement::Above(allocation.id, allocation.address + allocation.bytes)
    }

    /// It has grown by what was lent right above it.
    ///
    /// # Errors
    /// When a further stream cannot be ordered after that, or it cannot be filled; the block is as it was, then.
    pub(crate) fn extend(
        &mut self,
        allocations: Allocations,
        demand: &Demand,
        caller: Caller,
    ) -> Result<(), AllocError> {
        let mut extension = allocations.into_iter().next().expect("one was asked for");
        let registration = Arc::clone(&self.registration);
        let driver = &registration.service.driver;
        let observers = registration.observers.as_deref();
        if let Some(observers) = observers {
            observers.extension_granted(&extension, &registration.lane, caller);
        }
        if let Err(error) = self.order_after(&mut extension, caller) {
            let lanes = std::slice::from_ref(&registration.lane);
            if let Some(observers) = observers {
                observers.extension_freed(&extension, &lanes[0]);
            }
            driver.free_uncounted(lanes, None, &extension.as_used(0));
            if let Some(tag) = demand.tag {
                registration.service.uncharge(tag, extension.bytes);
            }
            return Err(error.into());
        }
        if let Some(observers) = observers {
            let (allocation, lane) = (self.allocation(), &*registration.lane);
            observers.grown(driver, allocation, extension.bytes, lane, caller);
        }
        driver.join_used(self.allocation(), &extension);
        let cache = &registration.lane.cache;
        cache.count(Event::Growth, extension.bytes, demand.rounding);
        let allocation = self
            .allocation
            .as_mut()
            .expect("taken only when the block ends");
        allocation.bytes += extension.bytes;
        allocation.after = allocation.after.max(extension.after);
        self.charge.add_rounding(demand.rounding);
        if let Some(tag) = demand.tag {
            registration.note_more(tag);
        }
        Ok(())
    }

    /// Fills what it is to grow by, and orders the further streams after that.
    fn order_after(&self, extension: &mut Allocation, caller: Caller) -> Result<(), DeviceError> {
        let Registration { service, lane, .. } = &**self.registration;
        if let Some(observers) = self.registration.observers.as_deref() {
            let (after, block) = (extension.after, extension.as_used(0));
            extension.after =
                self.registration
                    .fill_granted(observers, after, block, caller.location)?;
        }
        let mut further = self.lanes().into_iter().skip(1);
        further.try_for_each(|further| {
            let driver = &service.driver;
            driver.order_after_grant(lane, extension.after, &further)
        })
    }
}
