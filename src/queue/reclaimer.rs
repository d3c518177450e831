//! The reclaimer: a future that serves the queue.

use super::funnel::Member;
use super::spawned::Spawned;
use super::{Service, serving};
use crate::sync::Arc;
use crate::sync::Link;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Frees pending memory and grants it to waiting requests, whenever a stream gets further or a block is freed. It
/// sleeps while no request waits.
///
/// With the `tokio` feature, a reclaimer is spawned when a request first waits on a tokio runtime, and ends when no
/// request waits any more. On other executors the waiting requests serve the queue themselves. To relieve them, spawn
/// the one that [`Maintain::reclaimer`](crate::Maintain::reclaimer) returns, on any executor. That one lasts until the pool's
/// last handle (pool, stream, block) is dropped.
///
/// # Cancel safety
///
/// It can be dropped at any time: the waiting requests then serve the queue themselves.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled or spawned"]
pub struct Reclaimer {
    link: Link<Service>,
    member: Member,
    lasts: bool,
}

impl Reclaimer {
    /// Makes a reclaimer that ends when it is dismissed.
    #[cfg_attr(
        not(feature = "tokio"),
        allow(dead_code, reason = "only the task on tokio's runtime")
    )]
    fn while_awaited(service: &Arc<Service>) -> (Self, Spawned<Service>) {
        let reclaimer = Self::new(service, false);
        let spawned = Spawned {
            link: reclaimer.link.clone(),
            member: reclaimer.member,
        };
        (reclaimer, spawned)
    }

    /// Makes a reclaimer that lasts as long as the pool has a handle, or as long as its link is whole.
    pub(crate) fn new(service: &Arc<Service>, lasts: bool) -> Self {
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
        // Enlists before it looks: a change in between notifies it. A poll without a change searches nothing.
        service.funnel.enlist(self.member, context.waker());
        serving::serve(&service);
        // Requests own or borrow a handle. Any that wait without one were forgotten.
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
        // An unanswered notification goes to another driver.
        if service.funnel.resign(self.member).is_some() {
            service.funnel.pass_on();
        }
    }
}

/// Spawns a reclaimer for the requests that wait, if a runtime runs here and none was spawned yet. Waiters serve as
/// well, so nothing rests on the runtime.
pub(super) fn ensure(service: &Arc<Service>) {
    if service.spawned.read(|spawned| spawned.is_some()) {
        return;
    }
    if let Some(spawned) = spawn(service) {
        let other = service.spawned.replace(Some(spawned));
        drop(other.and_then(|other| other.dismiss(&service.funnel)));
    }
}

/// Spawns a reclaimer on the tokio runtime that is running here, if one is.
#[cfg(feature = "tokio")]
fn spawn(service: &Arc<Service>) -> Option<Spawned<Service>> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let (reclaimer, spawned) = Reclaimer::while_awaited(service);
    // A runtime that is shutting down drops the task at once; the waiters then drive.
    drop(runtime.spawn(reclaimer));
    Some(spawned)
}

/// Without a runtime the waiters drive.
#[cfg(not(feature = "tokio"))]
fn spawn(_service: &Arc<Service>) -> Option<Spawned<Service>> {
    None
}
