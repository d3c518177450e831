//! A block that grows in place: what it is to grow by is lent right above it.

use super::Block;
use crate::device::DeviceError;
use crate::engine::{Lent, Loans};
use crate::error::AllocError;
use crate::ledger::Place;
use crate::sync::Arc;
use crate::wait::{Caller, Demand, Registration};

impl Block {
    /// Addresses above it are kept for it. It bypasses the lane when it is freed, so that they do not stay kept.
    pub(crate) fn give_room(&mut self) {
        self.further.get_mut().get_or_insert_default().has_room = true;
    }

    pub(crate) fn has_room(&self) -> bool {
        let extra = self.further.lock();
        extra.as_ref().is_some_and(|extra| extra.has_room)
    }

    pub(crate) fn place_above(&self) -> Place {
        let lent = self.lent();
        Place::Above(lent.id, lent.address + lent.bytes)
    }

    /// It has grown by what was lent right above it.
    ///
    /// # Errors
    /// When a further stream cannot be ordered after that, or it cannot be filled; the block is as it was, then.
    pub(crate) fn extend(
        &mut self,
        loans: Loans,
        demand: &Demand,
        caller: Caller,
    ) -> Result<(), AllocError> {
        let mut extension = loans.into_iter().next().expect("one was asked for");
        let registration = Arc::clone(&self.registration);
        let engine = &registration.service.engine;
        if let Err(error) = self.order_after(&mut extension, caller) {
            let lanes = std::slice::from_ref(&registration.lane);
            engine.free_many(&lanes[0], lanes, None, &extension.as_used(0));
            if let Some(tag) = demand.tag {
                registration.service.disclaim(tag, extension.bytes);
            }
            return Err(error.into());
        }
        if let Some(onlookers) = registration.onlookers.as_deref() {
            let (lent, lane) = (self.lent(), &*registration.lane);
            onlookers.grown(engine, lent, extension.bytes, lane, caller);
        }
        engine.join_lent(self.lent(), &extension);
        let lent = self.lent.as_mut().expect("taken only when the block ends");
        lent.bytes += extension.bytes;
        lent.after = lent.after.max(extension.after);
        self.charge.add_rounding(demand.rounding);
        if let Some(tag) = demand.tag {
            registration.note_more(tag);
        }
        Ok(())
    }

    /// Fills what it is to grow by, and orders the further streams after that.
    fn order_after(&self, extension: &mut Lent, caller: Caller) -> Result<(), DeviceError> {
        let Registration { service, lane, .. } = &**self.registration;
        if let Some(onlookers) = self.registration.onlookers.as_deref() {
            let (after, block) = (extension.after, extension.as_used(0));
            extension.after =
                self.registration
                    .fill_granted(onlookers, after, block, caller.place)?;
        }
        let mut further = self.lanes().into_iter().skip(1);
        further.try_for_each(|further| {
            let engine = &service.engine;
            engine.order_after_grant(lane, extension.after, &further)
        })
    }
}
