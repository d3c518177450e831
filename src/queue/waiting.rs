//! A request's position in the queue. The future that combines it with an [attempt](super::attempt) is
//! [`Request`](crate::Request), in the layer above.

use super::attempt::{Ask, Asker, Denied, count_parts};
use super::throttled;
use super::unclaimed::Unclaimed;
use super::waiter::{Waiter, outcome_of};
use super::waiters::{JoinRefused, Joined, Leaving, Newcomer};
use super::{Demand, Service, Terms, reclaimer, serving};
use crate::engine::{Allocations, Expected, NoMemory};
use crate::error::{AllocError, Shortfall};
use crate::id::ReservationId;
use crate::measure::WaitOutcome;
use crate::seam::Fact;
use crate::sync::{Arc, Rare};
use crate::timer::Deadline;
use std::fmt;
use std::panic::Location;
use std::task::{Poll, Waker};
use std::time::Duration;
use weirpool_queue::{Refused, TagStandstill, due, longest_wait};

/// The place in the source, and the scope, in which a waiting request was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// The reservation in whose scope it was made.
    pub(crate) scope: Option<ReservationId>,
    pub(crate) location: &'static Location<'static>,
}

/// A request's position in the queue, while it has one; see the [module](self).
///
/// It does not keep the pool alive, so that a forgotten request does not either: the request owns or borrows a handle
/// of the pool, and passes the service to every call. It must be [abandoned](Self::abandon) before it is dropped.
pub(crate) struct Waiting(Rare<Membership>);

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self
            .0
            .as_deref()
            .map(|membership| membership.waiter.entry.since);
        f.debug_tuple("WaitingSince").field(&since).finish()
    }
}

struct Membership {
    waiter: Arc<Waiter>,
    deadline: Option<(Duration, Deadline)>,
    /// How long nothing of the tag was freed, if the request is throttled.
    standstill: Option<(TagStandstill, Deadline)>,
    /// The number of the event that told of the wait.
    told: u64,
}

impl Waiting {
    pub(crate) const NONE: Self = Self(Rare::NONE);

    /// Joins the queue with a request that was denied, if waiting may help. [`poll`](Self::poll) it next.
    ///
    /// # Errors
    /// Returns an error if waiting would not help, or the request is not admitted.
    pub(crate) fn join(
        &mut self,
        asker: Asker<'_>,
        (why, charge): Denied<'_>,
        ask: &Ask,
        terms: &Terms,
        made: Made,
        waker: &Waker,
    ) -> Result<(), AllocError> {
        let Asker { service, lane } = asker;
        let patience = match why {
            NoMemory::Never(error) => return Err(error),
            NoMemory::Short(patience) => patience,
            _ => Expected::default(),
        };
        let engine = &service.engine;
        let (now, limit) = (engine.shared.device.now(), longest_wait(terms));
        let newcomer = Newcomer {
            lane,
            demand: ask.demand,
            parts: ask.parts.clone(),
            due: due(terms, now),
            since: now,
            patience,
            waker,
            scope: made.scope,
            location: made.location,
            limit,
            is_charged: charge.is_some(),
        };
        let joined = service.queue.join(newcomer);
        // The bytes belong to the position now, or are uncharged below.
        if let Some(charge) = charge {
            charge.keep();
        }
        let Joined {
            waiter,
            moved,
            displaced,
        } = joined.map_err(|JoinRefused { why, charged }| {
            if let Some((tag, bytes)) = charged {
                service.uncharge(tag, bytes);
            }
            let is_virtual = engine.shared.device.is_time_virtual();
            match why {
                Refused::Full(full) => AllocError::QueueFull(full.into()),
                Refused::Shed { expected, limit } => AllocError::Shed {
                    expected,
                    limit,
                    is_virtual,
                },
            }
        })?;
        service.notify_of_joined(&waiter, moved);
        service.end_displaced(displaced);
        let deadline = limit.map(|limit| (now.saturating_add(limit), service.timer.deadline(true)));
        let told = engine.store.announcer.tell(|| Fact::Waiting {
            stream: lane.id.of_a_stream(),
            name: lane.name(),
            bytes: waiter.demand.request.bytes,
            tag: waiter.demand.tag,
        });
        self.0 = Rare::new(Membership {
            waiter,
            deadline,
            standstill: None,
            told,
        });
        Ok(())
    }

    /// Tries to draw from the reservation in whose scope the waiting request was made. If that succeeds, the request
    /// leaves the queue.
    pub(crate) fn draw<T>(
        &mut self,
        service: &Arc<Service>,
        draw: impl FnOnce(&Demand) -> Result<T, NoMemory>,
    ) -> Option<Result<T, AllocError>> {
        let waiter = &self.0.as_deref()?.waiter;
        waiter.scope?;
        waiter.expect_pieces(true);
        let (how, drawn) = match draw(&waiter.demand) {
            Ok(drawn) => (Leaving::Drawn, Ok(drawn)),
            Err(NoMemory::Never(error)) => {
                waiter.record_unserved(outcome_of(&error));
                (Leaving::Unserved, Err(error))
            }
            // It has enough, in pieces that are too small now.
            Err(NoMemory::NotReserved { .. }) => return None,
            Err(_) => {
                waiter.expect_pieces(false);
                return None;
            }
        };
        self.finish(service, how);
        Some(drawn)
    }

    /// Returns the answer, if there is one, with what it answers. Otherwise serves the queue, and looks again.
    ///
    /// # Panics
    /// When no request waits here.
    pub(crate) fn poll(
        &mut self,
        service: &Arc<Service>,
        waker: &Waker,
    ) -> Poll<Result<(Arc<Waiter>, Allocations), AllocError>> {
        let membership = self.0.as_deref_mut();
        let membership = membership.expect("a request was polled after it was ready");
        let polled = membership.look(service, waker);
        let Poll::Ready(answer) = polled else {
            return Poll::Pending;
        };
        let waiter = membership.waiter.clone();
        if let Ok(allocations) = &answer {
            count_parts(&waiter.lane, allocations, &waiter.parts);
        }
        let how = match &answer {
            Ok(_) => Leaving::Served,
            Err(error) => {
                waiter.record_unserved(outcome_of(error));
                Leaving::Unserved
            }
        };
        self.finish(service, how);
        Poll::Ready(answer.map(|allocations| (waiter, allocations)))
    }

    /// Has the owner told, if the request waits and nothing can serve it: by [`poll_stalled`](Self::poll_stalled).
    #[cold]
    pub(crate) fn watch_for_stall(&self, service: &Service) {
        if let Some(membership) = self.0.as_deref() {
            service.queue.watch(&membership.waiter);
        }
    }

    /// Is ready, once, if the request is the first and nothing can serve it. Serves the queue if anything changed.
    pub(crate) fn poll_stalled(&self, service: &Arc<Service>, waker: &Waker) -> Poll<Shortfall> {
        let Some(Membership { waiter, .. }) = self.0.as_deref() else {
            return Poll::Pending;
        };
        // Stores the waker before it looks: a stall in between calls it.
        if !waiter.register(waker) {
            return Poll::Pending;
        }
        let is_new = service.queue.watch(waiter);
        match waiter.demand.tag.filter(|_| waiter.is_throttled()) {
            Some(tag) => service.relieve(tag),
            None if is_new => serving::serve_candidate(service),
            None => serving::serve(service),
        }
        match service.queue.tell_of_stall(waiter) {
            true => Poll::Ready(service.shortfall(&waiter.demand)),
            false => Poll::Pending,
        }
    }

    /// Notes that the request fails, with an error of its caller's.
    #[cold]
    pub(crate) fn record_failed(&self) {
        if let Some(membership) = self.0.as_deref() {
            membership.waiter.record_unserved(WaitOutcome::Failed);
        }
    }

    /// Returns the size of the waiting request in bytes, rounded up to the pool's step; 0 if none waits.
    #[cold]
    pub(crate) fn requested(&self) -> u64 {
        let membership = self.0.as_deref();
        membership.map_or(0, |membership| membership.waiter.demand.request.bytes)
    }

    /// Returns whether the request is in the queue, or was granted and has not taken the grant.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves the queue, if the request is in it. A grant that the request did not take goes to others.
    #[cold]
    #[inline(never)]
    pub(crate) fn abandon(&mut self, service: &Arc<Service>) {
        self.finish(service, Leaving::Unserved);
    }

    /// Leaves the queue, whatever the outcome. A grant that the request did not take goes to others.
    fn finish(&mut self, service: &Arc<Service>, how: Leaving) {
        let Some(membership) = self.0.take() else {
            return;
        };
        let Membership { waiter, told, .. } = *membership;
        let left_over = waiter.cancel();
        let left_over = left_over.map(|found| Unclaimed::new(service, &waiter, found));
        let time_waited = service.now().saturating_sub(waiter.entry.since);
        let outcome = match how {
            Leaving::Served | Leaving::Drawn => WaitOutcome::Served,
            Leaving::Unserved => waiter.unserved(),
        };
        serving::depart(service, &waiter, how);
        service.engine.store.tell(|| Fact::Waited {
            since: told,
            stream: waiter.lane.id.of_a_stream(),
            requested: waiter.demand.requested(),
            tag: waiter.demand.tag,
            waited: time_waited,
            outcome,
        });
        drop(left_over);
    }
}

impl Membership {
    /// Looks for an answer. If there is none, serves the queue if anything changed, and looks again.
    fn look(
        &mut self,
        service: &Arc<Service>,
        waker: &Waker,
    ) -> Poll<Result<Allocations, AllocError>> {
        let waiter = &self.waiter;
        // Stores the waker before it looks at memory: a change in between calls it.
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        if let Some(refusal) = service.refusal_of(&waiter.demand) {
            return Poll::Ready(Err(refusal));
        }
        if waiter.is_aside() {
            service.bring_back(waiter);
        }
        match waiter.demand.tag.filter(|_| waiter.is_throttled()) {
            Some(tag) => {
                // Memory may have become evictable before this request was throttled.
                service.relieve(tag);
                let standstill = &mut self.standstill;
                if let Some(error) = throttled::look(service, waiter, tag, standstill, waker) {
                    return Poll::Ready(Err(error));
                }
                if waiter.scope.is_some() {
                    // Starts the watches on streams.
                    serving::serve_candidate(service);
                }
            }
            None => {
                self.standstill = None;
                reclaimer::ensure(service);
                serving::serve(service);
            }
        }
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        match &self.deadline {
            // The task may have another waker by now.
            Some((at, deadline)) if deadline.has_come(*at, waker) => {
                Poll::Ready(self.time_out(service))
            }
            _ => Poll::Pending,
        }
    }

    /// Ends the wait, unless a grant came in the same moment: that is taken.
    fn time_out(&mut self, service: &Service) -> Result<Allocations, AllocError> {
        let waiter = &self.waiter;
        // Before the cancellation: after that, another thread may see the request leave.
        waiter.record_unserved(WaitOutcome::TimedOut);
        if let Some(found) = waiter.cancel() {
            return Ok(found);
        }
        let shortfall = service.exhausted(&waiter.lane, &waiter.demand);
        Err(AllocError::TimedOut {
            waited: service.now().saturating_sub(waiter.entry.since),
            is_virtual: service.engine.shared.device.is_time_virtual(),
            shortfall: shortfall.into(),
        })
    }
}
