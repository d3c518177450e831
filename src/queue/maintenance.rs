//! Who does the maintenance: what the device's alarm wakes.
//!
//! It needs no runtime and no reclaimer. Where memory calls block it is a thread of its own; elsewhere it
//! is done where the alarm rings.

use super::Service;
use crate::sync::{Arc, Guards, Mutex, plain};
use std::task::{Wake, Waker};

/// Holds the pool only for as long as that has handles: it is let go with the last one.
#[derive(Debug)]
pub(super) struct Keeper(Mutex<Option<Arc<Service>>>);

impl Service {
    /// From now on the pool's maintenance is done.
    pub(crate) fn start_maintenance(this: &Arc<Self>) {
        let keeper = Keeper(Mutex::new(Guards::Registry, Some(this.clone())));
        let keeper = plain::Arc::new(keeper);
        *this.keeper.lock() = Some(keeper.clone());
        this.driver.maintenance.set_waker(Some(Waker::from(keeper)));
    }

    /// The pool's last handle is gone.
    pub(super) fn end_maintenance(&self) {
        self.driver.maintenance.set_waker(None);
        let keeper = self.keeper.lock().take();
        let service = keeper.and_then(|keeper| keeper.0.lock().take());
        drop(service);
    }

    /// A failure is noted: a sticky one ends the pool, after another the next maintenance tries again.
    fn keep_up(&self) {
        let _ = self.driver.keep_up();
    }
}

impl Wake for Keeper {
    fn wake(self: plain::Arc<Self>) {
        let Some(service) = self.0.lock().clone() else {
            return;
        };
        if !service.driver.capabilities.memory_calls_block {
            return service.keep_up();
        }
        let thread = plain::thread::Builder::new().name("weirpool-upkeep".into());
        let kept = service.clone();
        if thread.spawn(move || kept.keep_up()).is_err() {
            // Late for whoever shares this thread, rather than never.
            service.keep_up();
        }
    }
}
