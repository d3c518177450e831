//! Rungs 4 to 6: what is put together, of memory that is free, moved, new, or waited for on the device.

use super::{Climb, Lent, Refusal, Rung};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::engine::memory::For;
use crate::ledger::policy::{Order, WaitLimit};
use crate::ledger::{Growth, Plan};

impl Climb<'_> {
    /// Growing. Where waiting comes first, what the stream may wait for is part of the span, and new
    /// memory is taken only once what was on its way has come and does not do.
    pub(super) fn grown(&self) -> Result<Option<Lent>, Refusal> {
        let settings = &self.engine.settings;
        let waits = (settings.order == Order::WaitFirst).then_some(settings.wait_limit);
        let waits = waits.filter(|_| self.may_wait());
        let held_back_by = self.held_back_by();
        let is_held_back = !held_back_by.fences.is_empty();
        let growth = match () {
            () if !self.may_call() => Growth::None,
            () if is_held_back => self.growth_held_back(waits),
            () => self.growth(),
        };
        if let Some(lent) = self.fetch(waits, growth)? {
            return Ok(Some(lent));
        }
        if is_held_back {
            return Err(Refusal::Short(held_back_by));
        }
        if growth == Growth::None && self.could_grow() {
            return Err(Refusal::NeedsThread);
        }
        Ok(None)
    }

    fn could_grow(&self) -> bool {
        let ledger = self.engine.ledger.lock();
        ledger.could_grow(self.request, &self.view())
    }

    pub(super) fn device_wait(&self, limit: WaitLimit) -> Result<Option<Lent>, Refusal> {
        if !self.may_wait() {
            return Ok(None);
        }
        let taken = self.with_waits(Some(limit), |view| {
            self.engine.ledger.lock().take(self.request, view)
        });
        match taken {
            Some(grant) => Ok(self.lend_in_order(grant, Rung::Free)?),
            None => Ok(self.fetch(Some(limit), Growth::None)?),
        }
    }

    /// Where memory cannot be mapped elsewhere, a free segment of the wrong size is in the way. Where the
    /// device refuses, what other pools keep is.
    pub(super) fn trimmed(&self) -> Result<Option<Lent>, Refusal> {
        if !self.may_call() {
            return Ok(None);
        }
        if !self.engine.settings.geometry.virtual_memory && self.engine.trim_to(0)? > 0 {
            self.refused.set(0);
            if let Some(lent) = self.fetch(None, Growth::Allowed)? {
                return Ok(Some(lent));
            }
        }
        if self.refused.get() == 0 || !self.engine.make_way_for(self.request.bytes) {
            return Ok(None);
        }
        Ok(self.fetch(None, Growth::Allowed)?)
    }

    /// Puts a span together, with the device's help if it may grow. What the device has no new memory for is moved.
    /// `waits` only if the stream may wait at all.
    fn fetch(&self, waits: Option<WaitLimit>, growth: Growth) -> Result<Option<Lent>, DeviceError> {
        let lent = self.fetch_so(waits, growth)?;
        if lent.is_none() && self.could_do_with_less(waits, growth) {
            return self.fetch_so(waits, Growth::Allowed);
        }
        Ok(lent)
    }

    fn fetch_so(
        &self,
        waits: Option<WaitLimit>,
        growth: Growth,
    ) -> Result<Option<Lent>, DeviceError> {
        let plan = self.with_waits(waits, |view| {
            self.engine.ledger.lock().plan(self.request, view, growth)
        });
        let Some(plan) = plan else {
            return Ok(None);
        };
        self.carry_out(plan, For::Stream(self.lane.id))
    }

    /// Carries a plan out for the stream, or for a hoard. None, if the device has no memory for it.
    pub(in crate::engine) fn carry_out(
        &self,
        plan: Plan,
        whom: For,
    ) -> Result<Option<Lent>, DeviceError> {
        // Mapping what there is may need some, too.
        let new = plan.new_bytes().max(1);
        match self.engine.carry_out(plan, whom) {
            Ok(Some(grant)) => self.lend_in_order(grant, Rung::Grown),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                self.refused.set(new);
                self.engine.pressure.note(true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
