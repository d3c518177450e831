//! Links to the pool that can be cut, and the wakers that hold one: the timer or the device calls them.

use super::Service;
use crate::background::Errand;
use crate::engine::maintenance;
use crate::sync::{Arc, ForeignOption, Guards, plain};
use std::task::Wake;

/// The service that reclaimers, the stand-in and the keeper act on, until the link is cut: a waker that the device or a
/// dead runtime still holds must not keep the pool alive.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<ForeignOption<Arc<Service>>>);

impl Link {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        let service = Some(service.clone());
        Self(Arc::new(ForeignOption::new(Guards::Registry, service)))
    }

    pub(super) fn service(&self) -> Option<Arc<Service>> {
        self.0.read(|service| service.cloned())
    }

    /// Returns the service that the link kept alive. The caller drops it with no lock held.
    pub(super) fn cut(&self) -> Option<Arc<Service>> {
        self.0.take()
    }
}

/// Does the pool's maintenance when the timer calls it: in that call, or where memory calls block in the
/// [background](crate::background).
#[derive(Debug)]
pub(super) struct Keeper {
    link: Link,
    errand: Errand,
}

impl Keeper {
    pub(super) fn new(link: Link) -> Self {
        let errand = Errand::default();
        Self { link, errand }
    }
}

/// A failure is noted: a sticky one ends the pool, and after another one the next maintenance tries again.
fn keep_up(service: &Arc<Service>) {
    let _ = maintenance::keep_up(&service.engine);
}

impl Wake for Keeper {
    fn wake(self: plain::Arc<Self>) {
        let Some(service) = self.link.service() else {
            return;
        };
        if !service.engine.shared.capabilities.memory_calls_block {
            return keep_up(&service);
        }
        let (keeper, kept) = (self.clone(), service.clone());
        let job = move || keeper.errand.run(|| keep_up(&kept));
        if let Err(job) = service.background.call(&self.errand, job) {
            // Late for the others that share this thread, rather than never.
            job();
        }
    }
}

/// Asks for the maintenance when a stream gets further that pending memory waits for.
#[derive(Debug)]
pub(super) struct Progress(pub(super) Link);

impl Wake for Progress {
    fn wake(self: plain::Arc<Self>) {
        if let Some(service) = self.0.service() {
            maintenance::note_progress(&service.engine);
        }
    }
}

/// Serves in the call of the timer.
#[derive(Debug)]
pub(super) struct StandIn(pub(super) Link);

impl Wake for StandIn {
    fn wake(self: plain::Arc<Self>) {
        if let Some(service) = self.0.service() {
            Service::stand_in(&service);
        }
    }
}
