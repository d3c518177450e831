//! Waiting until everything came back.
//!
//! While somebody drains, a bit of the gate is raised: frees go to the heap, are sealed, and ring, as they
//! do while somebody waits for memory; allocations are granted as ever, but not from lanes. So whoever drains
//! is woken by what may be the last free, and by the device; nobody polls in between.

use super::funnel::Member;
use super::{Presence, Service, blocking};
use crate::device::Alarm;
use crate::driver::gate;
use crate::error::DrainError;
use crate::sync::{Guards, Mutex, Ordering, plain};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The future of [`Pool::drain`](crate::Pool::drain).
///
/// It is a handle: the pool lives for as long as it does.
///
/// # Errors
/// - [`DrainError::TimedOut`] when a [timeout](Self::timeout) was set and is over;
/// - [`DrainError::Device`] when the device failed, or cannot say when a stream will have passed: a stream that
///   is being captured cannot. Once that is over, drain again.
///
/// # Cancel safety
/// Dropped early, it has changed nothing.
///
/// # Panics
/// When polled after it was ready.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Drain {
    presence: plain::Arc<Presence>,
    timeout: Option<Duration>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New,
    Draining {
        member: Member,
        since: Duration,
        alarm: Option<Alarm>,
    },
    Done,
}

impl Drain {
    pub(crate) fn new(presence: plain::Arc<Presence>) -> Self {
        Self {
            presence,
            timeout: None,
            stage: Stage::New,
        }
    }

    /// Waits no longer than `timeout`, measured by the device's clock from the first poll on.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Blocks this thread until everything came back: as [`Allocate::blocking`](crate::Allocate::blocking).
    ///
    /// # Errors
    /// As when it is [awaited](Self); [`DrainError::BlocksRuntime`] when it would have to wait in a task of a current-thread
    /// tokio runtime.
    pub fn blocking(self) -> Result<(), DrainError> {
        let drained = blocking::block_on_unless_in_task(self);
        drained.unwrap_or(Err(DrainError::BlocksRuntime))
    }

    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DrainError>> {
        let service = &self.presence.service;
        let now = service.driver.device.now();
        if matches!(self.stage, Stage::New) {
            self.stage = Stage::Draining {
                member: service.drains.begin(service),
                since: now,
                alarm: None,
            };
        }
        let Stage::Draining {
            member,
            since,
            alarm,
        } = &mut self.stage
        else {
            panic!("a drain was polled after it was ready");
        };
        // Enlists first, then looks: a change in between wakes it.
        service.funnel.enlist(*member, context.waker());
        let settled = service.driver.settle();
        // Serves waiting requests, and has the streams watched.
        Service::serve_change(service);
        if is_drained(service) {
            return Poll::Ready(Ok(()));
        }
        settled?;
        if let Some(timeout) = self.timeout {
            let at = since.saturating_add(timeout);
            if now >= at {
                return Poll::Ready(Err(not_drained(service, now.saturating_sub(*since))));
            }
            *alarm = Some(Alarm::new(&service.driver.device, at, context.waker()));
        }
        Poll::Pending
    }

    fn finish(&mut self) {
        if let Stage::Draining { member, .. } = std::mem::replace(&mut self.stage, Stage::Done) {
            let service = &self.presence.service;
            service.drains.end(service, member);
            // Nothing is watched for it any more.
            Service::serve_candidate(service);
        }
    }
}

impl Future for Drain {
    type Output = Result<(), DrainError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.look(context);
        if polled.is_ready() {
            self.finish();
        }
        polled
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.finish();
    }
}

/// How many drain.
#[derive(Debug)]
pub(super) struct Drains(Mutex<usize>);

impl Drains {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Queue, 0))
    }

    /// The gate is raised and lowered under the lock, so that it is raised whenever somebody drains.
    fn begin(&self, service: &Service) -> Member {
        let mut drains = self.0.lock();
        *drains += 1;
        if *drains == 1 {
            service
                .driver
                .gate
                .fetch_or(gate::DRAINING, Ordering::SeqCst);
        }
        drop(drains);
        service.funnel.name_drain()
    }

    fn end(&self, service: &Service, member: Member) {
        drop(service.funnel.resign(member));
        let mut drains = self.0.lock();
        *drains -= 1;
        if *drains == 0 {
            service
                .driver
                .gate
                .fetch_and(!gate::DRAINING, Ordering::SeqCst);
        }
    }
}

/// Whether no request waits, nothing is in use or set aside, and nothing is pending.
fn is_drained(service: &Service) -> bool {
    let totals = service.driver.totals();
    let is_back = totals.used.current + totals.pending.current == 0;
    is_back && service.queue.waiting() == 0
}

fn not_drained(service: &Service, waited: Duration) -> DrainError {
    let totals = service.driver.totals();
    DrainError::TimedOut {
        waited,
        used: totals.used.current,
        pending: totals.pending.current,
        waiting: service.queue.waiting(),
    }
}
