//! Growth off the runtime's workers: where memory calls block, the queue is served by a short-lived
//! thread until nobody needs such a call.

use super::Service;
use crate::sync::{Arc, Ordering, SharedFlag, plain};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Grower {
    /// A thread was started and has not begun to serve.
    is_coming: SharedFlag,
}

impl Grower {
    pub(super) fn new() -> Self {
        Self {
            is_coming: SharedFlag::new(false),
        }
    }

    /// Starts the thread, unless one is on its way.
    pub(super) fn start(&self, service: &Arc<Service>) {
        if self.is_coming.swap(true, Ordering::AcqRel) {
            return;
        }
        let served = service.clone();
        let thread = plain::thread::Builder::new().name("weirpool-grower".into());
        let started = thread.spawn(move || {
            // Before serving: a need that arises from now on gets a thread of its own.
            served.grower.is_coming.store(false, Ordering::Release);
            while !Service::try_serve_fully(&served) {
                plain::thread::yield_now();
            }
        });
        if started.is_err() {
            // No thread can be had: the waiters are served by what is freed, and the next asks again.
            self.is_coming.store(false, Ordering::Release);
        }
    }
}
