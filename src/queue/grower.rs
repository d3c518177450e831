//! Growth off the runtime's workers: where memory calls block, a short-lived thread serves the queue until no request
//! needs such a call. A few chunks of virtual memory are mapped in the first poll of a request instead, which takes less
//! time than starting a thread, and a caller that blocks makes all calls itself.
//!
//! Meanwhile the request that needed it may have been served by memory that came back. The thread still grows the
//! pool, for the next request. Otherwise a pool that is short for moments only would never grow, and its requests would
//! wait again and again.

use super::Service;
use super::demand::Wants;
use super::waiter::Waiter;
use crate::sync::{Arc, ForeignOption, Guards, Ordering, SharedFlag, plain};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Grower {
    /// A thread was started and has not begun to serve.
    is_coming: SharedFlag,
    /// The request that it was started for.
    needy: ForeignOption<Arc<Waiter>>,
}

impl Grower {
    pub(super) fn new() -> Self {
        Self {
            is_coming: SharedFlag::new(false),
            needy: ForeignOption::new(Guards::Queue, None),
        }
    }

    /// Starts the thread for a waiting request, unless one is on its way. Returns whether one comes.
    #[must_use = "without a thread, the calls must be made here"]
    pub(super) fn start_for(&self, waiter: Arc<Waiter>, service: &Arc<Service>) -> bool {
        self.needy.set(Some(waiter));
        self.is_coming.swap(true, Ordering::AcqRel) || self.start(service)
    }

    fn start(&self, service: &Arc<Service>) -> bool {
        let served = service.clone();
        let thread = plain::thread::Builder::new().name("weirpool-grower".into());
        let started = thread.spawn(move || {
            // Before serving: a need that arises from now on gets a thread of its own.
            served.grower.is_coming.store(false, Ordering::Release);
            let needy = served.grower.needy.take();
            let growths = served.driver.growths();
            while !Service::try_serve_fully(&served) {
                plain::thread::yield_now();
            }
            let needy = needy.filter(|_| served.driver.growths() == growths);
            if let Some(waiter) = needy {
                grow_after_all(&served, &waiter);
            }
        });
        if started.is_err() {
            self.needy.set(None);
            self.is_coming.store(false, Ordering::Release);
        }
        started.is_ok()
    }
}

/// Grows for a request that was served by memory that came back.
fn grow_after_all(service: &Service, waiter: &Waiter) {
    if waiter.is_served() && matches!(waiter.wants, Wants::Block) {
        service.driver.grow_after_all(waiter.demand.request);
    }
}
