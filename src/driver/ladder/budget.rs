//! The budget for remapping, as a climb and its plans see it.

use super::Climb;
use crate::driver::Driver;
use crate::heap::policy::WaitLimit;
use crate::heap::{Growth, Offers, Plan};

impl Climb<'_> {
    /// How this request is to grow. Where the device has no new memory, what is free has to do.
    pub(in crate::driver) fn growth(&self) -> Growth {
        let growth = self.driver.growth();
        if self.refused.get() > 0
            || growth.is_sparing() && self.driver.is_short_of(self.request.bytes)
        {
            return Growth::Allowed;
        }
        growth
    }

    /// Returns the growth for a request that may not take new memory yet. Where the budget lacks moves, a plan would
    /// take new memory instead, so the request waits; unless there is no new memory to take.
    pub(super) fn growth_held_back(offers: &Offers, growth: Growth) -> Growth {
        if growth.is_sparing() && offers.new_chunks(growth) > Some(0) {
            Growth::None
        } else {
            Growth::Remap
        }
    }

    /// Plans with fewer new chunks than the device refused, by moving more free ones.
    pub(super) fn plan_with_less(&self, waits: Option<WaitLimit>) -> Option<Plan> {
        let (request, growth) = (self.request, Growth::Allowed);
        let chunk = self.driver.settings.geometry.chunk_bytes;
        self.with_waits(waits, |view| {
            let mut heap = self.driver.heap.lock();
            let offers = heap.offers(request, view, growth);
            let new = offers.new_chunks(growth)? * chunk;
            let is_less = new < self.refused.get();
            is_less.then(|| heap.plan_from(&offers, request, view.placement, growth))?
        })
    }

    /// Whether the device refused what was to be new, that moves might have been made for. What it refuses to map is not
    /// tried again: a handle is lost each time.
    pub(in crate::driver) fn was_refused_new(&self, growth: Growth) -> bool {
        growth.is_sparing() && self.refused.get() >= self.driver.settings.geometry.chunk_bytes
    }
}

impl Driver {
    fn growth(&self) -> Growth {
        if !self.settings.geometry.virtual_memory {
            return Growth::Allowed;
        }
        let now = self.device.now();
        self.budget.lock().growth(now)
    }

    /// Handles were moved for somebody, and some are new.
    pub(in crate::driver) fn note_moves(&self, moved: u64, new: u64) {
        if moved + new > 0 {
            self.budget.lock().note(moved, new);
        }
    }
}
