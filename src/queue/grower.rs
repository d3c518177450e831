//! Growth off the runtime's workers: where memory calls block, a [background](crate::background) thread serves the queue
//! until no request needs such a call. A few chunks of virtual memory are mapped in the first poll of a request instead,
//! and a caller that blocks makes all calls itself.
//!
//! Meanwhile the request that needed it may have been served by memory that came back. The thread still grows the
//! pool, for the next request. Otherwise a pool that is short for moments only would never grow, and its requests would
//! wait again and again.

use super::Service;
use super::waiter::Waiter;
use crate::background::Errand;
use crate::engine::supply;
use crate::sync::{Arc, ForeignOption, Guards, plain::thread};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Grower {
    errand: Errand,
    /// The request that it was called for.
    needy: ForeignOption<Arc<Waiter>>,
}

impl Grower {
    pub(super) fn new() -> Self {
        Self {
            errand: Errand::default(),
            needy: ForeignOption::new(Guards::Queue, None),
        }
    }

    /// Has a thread serve for a waiting request. Returns whether one does.
    #[must_use = "without a thread, the calls must be made here"]
    pub(super) fn start_for(&self, waiter: Arc<Waiter>, service: &Arc<Service>) -> bool {
        self.needy.set(Some(waiter));
        let serving = service.clone();
        let job = move || serving.grower.errand.run(|| serve(&serving));
        let is_called = service.background.call(&self.errand, job).is_ok();
        if !is_called {
            self.needy.set(None);
            self.errand.cancel();
        }
        is_called
    }
}

/// Serves the queue, and grows for the request that was in need of it.
fn serve(service: &Arc<Service>) {
    let needy = service.grower.needy.take();
    let growths = service.engine.shared.growths();
    while !Service::try_serve_fully(service) {
        thread::yield_now();
    }
    let needy = needy.filter(|_| service.engine.shared.growths() == growths);
    if let Some(waiter) = needy {
        grow_after_all(service, &waiter);
    }
}

/// Grows for a request that was served by memory that came back.
fn grow_after_all(service: &Service, waiter: &Waiter) {
    if let Some(part) = waiter.parts.plain()
        && waiter.is_served()
    {
        supply::grow_after_all(&service.engine, part.request);
    }
}
