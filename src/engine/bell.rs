//! The bell: how the engine, and the device, reach whoever drives the waiting.
//!
//! There is at most one driver: a reclaimer that was spawned for it, or else the waiter that was
//! polled last. Device watches hold the bell's waker, not the driver's, so that they stay good when
//! the driver changes.

use crate::sync::{Guards, Mutex, assert_unlocked, plain};
use std::task::{Wake, Waker};

/// Who drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// A reclaimer task.
    Reclaimer(u64),
    /// The waiter with this place in the queue.
    Waiter(u64),
}

#[derive(Debug, Default)]
struct Slot {
    driver: Option<(Driver, Waker)>,
    /// Reclaimers made to last, which drive when the driver leaves.
    standing_by: Vec<Waker>,
    next: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Bell {
    slot: Mutex<Slot>,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self {
            slot: Mutex::new(Guards::Bell, Slot::default()),
        }
    }

    /// Wakes the driver, if there is one; if not, the next that takes over looks at everything. Says
    /// whether there was one.
    pub(crate) fn ring(&self) -> bool {
        let waker = {
            let slot = self.slot.lock();
            slot.driver.as_ref().map(|(_, waker)| waker.clone())
        };
        let is_driven = waker.is_some();
        if let Some(waker) = waker {
            assert_unlocked("wake");
            waker.wake();
        }
        is_driven
    }

    /// Has `waker` called when the driver leaves.
    pub(crate) fn stand_by(&self, waker: &Waker) {
        let mut slot = self.slot.lock();
        if !slot.standing_by.iter().any(|other| other.will_wake(waker)) {
            slot.standing_by.push(waker.clone());
        }
    }

    /// Wakes those that stand by.
    pub(crate) fn call_stand_bys(&self) {
        let standing_by = std::mem::take(&mut self.slot.lock().standing_by);
        assert_unlocked("wake");
        standing_by.into_iter().for_each(Waker::wake);
    }

    /// A name for a reclaimer that is about to drive.
    pub(crate) fn name_reclaimer(&self) -> Driver {
        let mut slot = self.slot.lock();
        slot.next += 1;
        Driver::Reclaimer(slot.next)
    }

    /// Makes `driver` the driver, unless a reclaimer drives already. A reclaimer takes over from
    /// anybody, a waiter from waiters. Says whether it drives now.
    pub(crate) fn take_over(&self, driver: Driver, waker: &Waker) -> bool {
        let mut slot = self.slot.lock();
        let may = match (&slot.driver, driver) {
            (Some((Driver::Reclaimer(current), _)), Driver::Reclaimer(new)) => *current == new,
            (Some((Driver::Reclaimer(_), _)), Driver::Waiter(_)) => false,
            _ => true,
        };
        if may {
            // The old waker is dropped outside the lock: it may own a task, and that anything.
            let old = slot.driver.replace((driver, waker.clone()));
            drop(slot);
            drop(old);
        }
        may
    }

    /// Ends the driving of `driver`, if it drives and `if_so` holds. The condition is looked at under
    /// the bell's lock: who comes later sees that nobody drives.
    pub(crate) fn leave(&self, driver: Driver, if_so: impl FnOnce() -> bool) -> bool {
        let mut slot = self.slot.lock();
        let drives = matches!(&slot.driver, Some((current, _)) if *current == driver);
        if drives && if_so() {
            let old = slot.driver.take();
            drop(slot);
            drop(old);
            self.call_stand_bys();
            return true;
        }
        false
    }

    pub(crate) fn has_reclaimer(&self) -> bool {
        matches!(self.slot.lock().driver, Some((Driver::Reclaimer(_), _)))
    }
}

impl Wake for Bell {
    fn wake(self: plain::Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        self.ring();
    }
}
