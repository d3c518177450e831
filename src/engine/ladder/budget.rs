//! The budget for remapping, as a climb and its plans see it.

use super::Climb;
use crate::engine::Engine;
use crate::ledger::Growth;
use crate::ledger::policy::WaitLimit;

impl Climb<'_> {
    /// How this request is to grow. Where the device has no new memory, what is free has to do.
    pub(in crate::engine) fn growth(&self) -> Growth {
        let growth = self.engine.growth();
        if self.refused.get() > 0
            || growth.is_sparing() && self.engine.is_short_of(self.request.bytes)
        {
            return Growth::Allowed;
        }
        growth
    }

    /// The same while it may not take new memory yet. What the budget has no moves for would be new, and is waited for
    /// like all that is; unless there is nothing new to be had.
    pub(super) fn growth_held_back(&self, waits: Option<WaitLimit>) -> Growth {
        let growth = self.growth();
        if growth.is_sparing() && self.new_handles(waits, growth) > Some(0) {
            Growth::None
        } else {
            Growth::Remap
        }
    }

    /// The device refused what was to be new: whether less of it would do, were more that is free moved.
    pub(super) fn could_do_with_less(&self, waits: Option<WaitLimit>, growth: Growth) -> bool {
        let handle = self.engine.settings.geometry.handle_bytes;
        let is_less = |new| new * handle < self.refused.get();
        self.was_refused_new(growth)
            && self
                .new_handles(waits, Growth::Allowed)
                .is_some_and(is_less)
    }

    /// Whether the device refused what was to be new, that moves might have been made for. What it refuses to map is not
    /// tried again: a handle is lost each time.
    pub(in crate::engine) fn was_refused_new(&self, growth: Growth) -> bool {
        growth.is_sparing() && self.refused.get() >= self.engine.settings.geometry.handle_bytes
    }

    fn new_handles(&self, waits: Option<WaitLimit>, growth: Growth) -> Option<u64> {
        self.with_waits(waits, |view| {
            let ledger = self.engine.ledger.lock();
            ledger.new_handles(self.request, view, growth)
        })
    }
}

impl Engine {
    fn growth(&self) -> Growth {
        if !self.settings.geometry.virtual_memory {
            return Growth::Allowed;
        }
        let now = self.device.now();
        self.budget.lock().growth(now)
    }

    /// Handles were moved for somebody, and some are new.
    pub(in crate::engine) fn note_moves(&self, moved: u64, new: u64) {
        if moved + new > 0 {
            self.budget.lock().note(moved, new);
        }
    }
}
