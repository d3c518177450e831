//! Without pooling nobody need wait for memory, and yet somebody must give it back: whoever rings the notifier.
//!
//! The returner is a member of the notifier whose waker serves, on the thread that rings. It is source by every
//! free, and by the device when a stream gets further; it lasts until the last handle is gone and nothing is
//! left to give back.

use super::Service;
use super::notifier::Member;
use crate::sync::{Arc, Guards, Mutex, plain};
use std::task::{Wake, Waker};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Returner {
    service: Mutex<Option<Arc<Service>>>,
    member: Member,
}

impl Returner {
    /// Makes one a member.
    pub(super) fn enlist(service: &Arc<Service>) -> plain::Arc<Self> {
        let notifier = &service.notifier;
        let member = notifier.name_reclaimer();
        let returner = plain::Arc::new(Self {
            service: Mutex::new(Guards::Registry, Some(service.clone())),
            member,
        });
        notifier.enlist(member, &Waker::from(returner.clone()));
        returner
    }

    /// Ends it. What it kept alive is returned, to be let go where that can do no harm.
    pub(super) fn dismiss(&self) -> Option<Arc<Service>> {
        let service = self.service.lock().take()?;
        drop(service.notifier.resign(self.member));
        Some(service)
    }
}

impl Wake for Returner {
    fn wake(self: plain::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        let service = self.service.lock().clone();
        if let Some(service) = service {
            Service::serve(&service);
        }
    }
}
