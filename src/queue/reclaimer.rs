//! The reclaimer: who drives the waiting, as a plain future.

use super::Service;
use super::funnel::Member;
use super::link::Link;
use crate::sync::Arc;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Moves memory from *pending* to *free*, and grants it to who waits, whenever a stream gets further
/// or a block is freed while somebody waits. It sleeps otherwise: nobody waits, no wake-ups.
///
/// With the `tokio` feature one is spawned when somebody first waits on a tokio runtime, and ends when
/// nobody waits any more. Elsewhere the waiters drive themselves, and every one of them is woken when
/// something came back: any of them may be one that is not polled again; spawn the one that
/// [`Pool::reclaimer`](crate::Pool::reclaimer) gives, on any executor, to relieve them. That one lasts until the pool's last handle (pool, stream, block) is gone.
///
/// # Cancel safety
///
/// Dropped at any time, it loses nothing: the waiters drive themselves.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled or spawned"]
pub struct Reclaimer {
    link: Link,
    member: Member,
    lasts: bool,
}

/// A reclaimer that was spawned for as long as somebody waits, as the service knows it.
#[derive(Debug)]
pub(super) struct Spawned {
    link: Link,
    member: Member,
}

impl Spawned {
    /// Lets the reclaimer go. Returns the waker by which its task hears of it.
    pub(super) fn dismiss(self, service: &Service) -> Option<Waker> {
        drop(self.link.cut());
        service.funnel.resign(self.member)
    }
}

impl Reclaimer {
    pub(crate) fn lasting(service: &Arc<Service>) -> Self {
        Self::new(service, true)
    }

    /// One that ends when it is dismissed.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    pub(super) fn while_awaited(service: &Arc<Service>) -> (Self, Spawned) {
        let reclaimer = Self::new(service, false);
        let spawned = Spawned {
            link: reclaimer.link.clone(),
            member: reclaimer.member,
        };
        (reclaimer, spawned)
    }

    fn new(service: &Arc<Service>, lasts: bool) -> Self {
        Self {
            member: service.funnel.name_reclaimer(),
            link: Link::new(service),
            lasts,
        }
    }
}

impl Future for Reclaimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(service) = self.link.service() else {
            return Poll::Ready(());
        };
        // Enlists first, then looks: a change in between notifies it. Polled for nothing, it searches nothing.
        service.funnel.enlist(self.member, context.waker());
        Service::serve(&service);
        // Requests have or borrow a handle: any that wait without one were forgotten.
        let is_over = self.lasts && service.is_orphaned();
        if is_over || self.link.service().is_none() {
            drop(service.funnel.resign(self.member));
            drop(self.link.cut());
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        let Some(service) = self.link.cut() else {
            return;
        };
        // A notification that nobody answered goes to another driver.
        if service.funnel.resign(self.member).is_some() {
            service.funnel.pass_on();
        }
    }
}
