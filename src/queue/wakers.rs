//! What the timer and the device call: wakers with a link to the pool.

use super::{Service, serving};
use crate::background::Errand;
use crate::engine::maintenance;
use crate::sync::Link;
use crate::sync::{Arc, plain};
use std::task::{Wake, Waker};

/// Starts the maintenance, and the stand-in that answers notifications when no server does.
pub(crate) fn start(service: &Arc<Service>) {
    let link = Link::new(service);
    let keeper = Waker::from(plain::Arc::new(Keeper::new(link.clone())));
    let progress = Waker::from(plain::Arc::new(Progress(link.clone())));
    service
        .engine
        .maintenance
        .start_maintenance(keeper, progress);
    let stand_in = Waker::from(plain::Arc::new(StandIn(link.clone())));
    service.funnel.stand_in.set_waker(Some(stand_in));
    service.link.set(Some(link));
}

/// Does the pool's maintenance when the timer calls it: in that call, or where memory calls block in the
/// [background](crate::background).
#[derive(Debug)]
struct Keeper {
    link: Link<Service>,
    errand: Errand,
}

impl Keeper {
    fn new(link: Link<Service>) -> Self {
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
struct Progress(Link<Service>);

impl Wake for Progress {
    fn wake(self: plain::Arc<Self>) {
        if let Some(service) = self.0.service() {
            maintenance::note_progress(&service.engine);
        }
    }
}

/// Serves in the call of the timer, if no server answered a notification in time.
#[derive(Debug)]
struct StandIn(Link<Service>);

impl Wake for StandIn {
    fn wake(self: plain::Arc<Self>) {
        if let Some(service) = self.0.service() {
            service.funnel.stand_in.mark_called();
            serving::serve(&service);
        }
    }
}
