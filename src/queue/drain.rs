//! Draining: waits until all memory is back.
//!
//! While a drain waits, a bit of the gate is set. Frees then go to the heap, are sealed, and publish, as they do while
//! a request waits. Allocations are granted as usual, but not from caches. So a drain is woken by each free that may be
//! the last one, and by the device; it does not poll in between.

use super::funnel::Member;
use super::{Service, blocking, serving};
use crate::engine::reaping;
use crate::error::DrainError;
use crate::sync::{Arc, plain};
use crate::timer::Deadline;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The future of [`Pool::drain`](crate::Pool::drain).
///
/// It is a handle of the pool: the pool lives at least as long.
///
/// # Errors
/// - [`DrainError::TimedOut`] when the [timeout](Self::timeout) is over;
/// - [`DrainError::Device`] when the device failed, or cannot tell when a stream passes a point. A stream that is
///   being captured cannot; drain again after the capture.
///
/// # Cancel safety
/// A drain that is dropped early has changed nothing.
///
/// # Panics
/// When polled after it was ready.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Drain {
    service: Arc<Service>,
    /// Keeps the pool alive.
    _handle: plain::Arc<dyn Any + Send + Sync>,
    timeout: Option<Duration>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New,
    Draining {
        member: Member,
        since: Duration,
        deadline: Deadline,
    },
    Done,
}

impl Drain {
    pub(crate) fn new(service: Arc<Service>, handle: plain::Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            service,
            _handle: handle,
            timeout: None,
            stage: Stage::New,
        }
    }

    /// Limits the wait to `timeout`, measured by the device's clock from the first poll on.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Blocks this thread until all memory is back, as [`Allocate::blocking`](crate::Allocate::blocking) does.
    ///
    /// # Errors
    /// Returns the errors of the [future](Self), and [`DrainError::BlocksRuntime`] when it would have to wait in a task
    /// of a current-thread tokio runtime.
    pub fn blocking(mut self) -> Result<(), DrainError> {
        let drained = blocking::block_on_unless_in_task(&mut self);
        drained.unwrap_or(Err(DrainError::BlocksRuntime))
    }

    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DrainError>> {
        let service = &self.service;
        if matches!(self.stage, Stage::New) {
            self.stage = Stage::Draining {
                member: service
                    .drains
                    .begin(&service.engine.shared, &service.funnel),
                since: service.now(),
                deadline: service.timer.deadline(true),
            };
        }
        let Stage::Draining {
            member,
            since,
            deadline,
        } = &mut self.stage
        else {
            panic!("a drain was polled after it was ready");
        };
        // Enlists before it looks: a change in between wakes it.
        service.funnel.enlist(*member, context.waker());
        service.engine.store.evictables.evict(u64::MAX, None);
        let settled = reaping::settle(&service.engine);
        // Serves waiting requests, and starts the watches on streams.
        serving::serve_change(service);
        if is_drained(service) {
            return Poll::Ready(Ok(()));
        }
        settled?;
        if let Some(timeout) = self.timeout {
            let at = since.saturating_add(timeout);
            if deadline.has_come(at, context.waker()) {
                let waited = service.now().saturating_sub(*since);
                return Poll::Ready(Err(not_drained(service, waited)));
            }
        }
        Poll::Pending
    }

    fn finish(&mut self) {
        if let Stage::Draining { member, .. } = std::mem::replace(&mut self.stage, Stage::Done) {
            let service = &self.service;
            service
                .drains
                .end(&service.engine.shared, &service.funnel, member);
            // Nothing is watched for this drain any more.
            serving::serve_candidate(service);
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

/// Returns whether no request waits, nothing is in use or reserved, and nothing is pending.
fn is_drained(service: &Service) -> bool {
    let totals = service.engine.store.totals();
    let is_back = totals.used.current + totals.pending.current == 0;
    is_back && service.queue.waiting() == 0
}

fn not_drained(service: &Service, waited: Duration) -> DrainError {
    let totals = service.engine.store.totals();
    DrainError::TimedOut {
        waited,
        is_virtual: service.engine.shared.device.is_time_virtual(),
        used: totals.used.current,
        pending: totals.pending.current,
        waiting: service.queue.waiting(),
    }
}
