//! Sources 4 to 6: what is put together, of memory that is free, moved, new, or waited for on the device.

use super::{Allocation, Climb, Refusal, Source};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::driver::memory::For;
use crate::heap::policy::{Order, WaitLimit};
use crate::heap::{Growth, Plan};

impl Climb<'_> {
    /// Growing. Where waiting comes first, what the stream may wait for is part of the span, and new
    /// memory is taken only once what was on its way has come and does not do.
    pub(super) fn grown(&self) -> Result<Option<Allocation>, Refusal> {
        let settings = &self.driver.settings;
        let waits = (settings.order == Order::WaitFirst).then_some(settings.wait_limit);
        let waits = waits.filter(|_| self.may_wait());
        let held_back_by = self.held_back_by();
        let is_held_back = !held_back_by.fences.is_empty();
        let growth = if self.may_call() {
            self.growth()
        } else {
            Growth::None
        };
        // One scan answers what a plan costs, whether growing would help, and what to claim.
        let (plan, growth, could_grow) = self.with_waits(waits, |view| {
            let mut heap = self.driver.heap.lock();
            let offers = heap.offers(self.request, view, growth);
            let growth = if is_held_back && self.may_call() {
                Self::growth_held_back(&offers, growth)
            } else {
                growth
            };
            let plan = heap.plan_from(&offers, self.request, view.placement, growth);
            (plan, growth, offers.could_grow())
        });
        if let Some(allocation) = self.fetch_planned(plan, waits, growth)? {
            return Ok(Some(allocation));
        }
        if is_held_back {
            return Err(Refusal::Short(held_back_by));
        }
        if growth == Growth::None && could_grow {
            return Err(Refusal::NeedsThread);
        }
        Ok(None)
    }

    pub(super) fn device_wait(&self, limit: WaitLimit) -> Result<Option<Allocation>, Refusal> {
        if !self.may_wait() {
            return Ok(None);
        }
        let taken = self.with_waits(Some(limit), |view| {
            self.driver.heap.lock().take(self.request, view)
        });
        match taken {
            Some(grant) => Ok(self.lend_in_order(grant, Source::Free)?),
            None => Ok(self.fetch(Some(limit), Growth::None)?),
        }
    }

    /// Releases all that is free, without publishing it: this request looks at what comes of it.
    fn trim(&self) -> Result<u64, DeviceError> {
        let trimmed = self.driver.trim_quietly_to(0);
        match trimmed.error {
            None => Ok(trimmed.bytes),
            Some(error) => self.driver.noted(Err(error)),
        }
    }

    /// Where memory cannot be mapped elsewhere, a free segment of the wrong size is in the way. Where the
    /// device refuses, what other pools keep is.
    pub(super) fn trimmed(&self) -> Result<Option<Allocation>, Refusal> {
        if !self.may_call() {
            return Ok(None);
        }
        if !self.driver.settings.geometry.virtual_memory && self.trim()? > 0 {
            self.refused.set(0);
            if let Some(allocation) = self.fetch(None, Growth::Allowed)? {
                return Ok(Some(allocation));
            }
        }
        if self.refused.get() == 0 || !self.driver.spill_for(self.request.bytes) {
            return Ok(None);
        }
        Ok(self.fetch(None, Growth::Allowed)?)
    }

    /// Builds a contiguous range, with the device's help if it may grow. `waits` is set only if the stream may wait.
    fn fetch(
        &self,
        waits: Option<WaitLimit>,
        growth: Growth,
    ) -> Result<Option<Allocation>, DeviceError> {
        let plan = self.with_waits(waits, |view| {
            self.driver.heap.lock().plan(self.request, view, growth)
        });
        self.fetch_planned(plan, waits, growth)
    }

    /// Carries a plan out. If the device refuses its new chunks, takes fewer and moves more free ones.
    fn fetch_planned(
        &self,
        plan: Option<Plan>,
        waits: Option<WaitLimit>,
        growth: Growth,
    ) -> Result<Option<Allocation>, DeviceError> {
        let carry_out = |plan| self.carry_out(plan, For::Stream(self.lane.id));
        let Some(plan) = plan else {
            return Ok(None);
        };
        let allocation = carry_out(plan)?;
        if allocation.is_none() && self.was_refused_new(growth) {
            return self.plan_with_less(waits).map_or(Ok(None), carry_out);
        }
        Ok(allocation)
    }

    /// Carries a plan out for the stream, or for a reservation. None, if the device has no memory for it.
    pub(in crate::driver) fn carry_out(
        &self,
        plan: Plan,
        whom: For,
    ) -> Result<Option<Allocation>, DeviceError> {
        // Mapping what there is may need some, too.
        let new = plan.new_bytes().max(1);
        match self.driver.carry_out(plan, whom) {
            Ok(Some(grant)) => self.lend_in_order(grant, Source::Grown),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                self.refused.set(new);
                self.driver.pressure.note(true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
