//! The budget for remapping, as a climb and its plans see it.

use super::Climb;
use crate::driver::Driver;
use crate::heap::Growth;
use crate::heap::policy::WaitLimit;

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

    /// The same while it may not take new memory yet. What the budget has no moves for would be new, and is waited for
    /// like all that is; unless there is nothing new to be had.
    pub(super) fn growth_held_back(&self, waits: Option<WaitLimit>) -> Growth {
        let growth = self.growth();
        if growth.is_sparing() && self.new_chunks(waits, growth) > Some(0) {
            Growth::None
        } else {
            Growth::Remap
        }
    }

    /// The device refused what was to be new: whether less of it would do, were more that is free moved.
    pub(super) fn could_do_with_less(&self, waits: Option<WaitLimit>, growth: Growth) -> bool {
        let chunk = self.driver.settings.geometry.chunk_bytes;
        let is_less = |new| new * chunk < self.refused.get();
        self.was_refused_new(growth) && self.new_chunks(waits, Growth::Allowed).is_some_and(is_less)
    }

    /// Whether the device refused what was to be new, that moves might have been made for. What it refuses to map is not
    /// tried again: a handle is lost each time.
    pub(in crate::driver) fn was_refused_new(&self, growth: Growth) -> bool {
        growth.is_sparing() && self.refused.get() >= self.driver.settings.geometry.chunk_bytes
    }

    fn new_chunks(&self, waits: Option<WaitLimit>, growth: Growth) -> Option<u64> {
        self.with_waits(waits, |view| {
            let heap = self.driver.heap.lock();
            heap.new_chunks(self.request, view, growth)
        })
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
