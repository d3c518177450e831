//! The reclaimer: the driver of the waiting, as a plain future.

use super::Service;
use crate::engine::bell::Driver;
use crate::sync::Arc;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Moves memory from *pending* to *free*, and grants it to who waits, whenever a stream gets further
/// or a block is freed while somebody waits. It sleeps otherwise: nobody waits, no wake-ups.
///
/// With the `tokio` feature one is spawned when somebody first waits on a tokio runtime, and ends when
/// nobody waits any more. Elsewhere the waiters drive themselves; spawn the one that
/// [`Pool::reclaimer`](crate::Pool::reclaimer) gives on any executor to relieve them. That one lasts
/// until the pool's last handle (pool, stream, block) is gone.
///
/// # Cancel safety
///
/// Dropped at any time, it loses nothing: the next waiter that is polled takes over.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled or spawned"]
pub struct Reclaimer {
    service: Arc<Service>,
    driver: Driver,
    lasts: bool,
}

impl Reclaimer {
    pub(crate) fn lasting(service: &Arc<Service>) -> Self {
        Self::new(service, true)
    }

    pub(super) fn while_awaited(service: &Arc<Service>) -> Self {
        let reclaimer = Self::new(service, false);
        // From now on nobody spawns another; what rings before the first poll is seen by it.
        let bell = &service.engine.bell;
        bell.take_over(reclaimer.driver, Waker::noop());
        reclaimer
    }

    fn new(service: &Arc<Service>, lasts: bool) -> Self {
        Self {
            driver: service.engine.bell.name_reclaimer(),
            service: service.clone(),
            lasts,
        }
    }

    fn is_over(&self) -> bool {
        self.service.queue.is_empty() && (!self.lasts || self.service.is_orphaned())
    }
}

impl Future for Reclaimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let bell = &self.service.engine.bell;
        if !bell.take_over(self.driver, context.waker()) {
            // Another drives. One made to last waits for its turn, at the pool's end at the latest.
            return if self.lasts && !self.is_over() {
                bell.stand_by(context.waker());
                Poll::Pending
            } else {
                Poll::Ready(())
            };
        }
        Service::serve(&self.service);
        if bell.leave(self.driver, || self.is_over()) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if self.service.engine.bell.leave(self.driver, || true) {
            self.service.wake_head();
        }
    }
}
