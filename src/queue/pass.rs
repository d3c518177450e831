//! Serving: one pass over the queue, which serves each request that can be served.
//!
//! The head is granted the memory that the engine finds for it, then the next head, and so on. While the head cannot be
//! served, no other request is served, except for requests that may [overtake](super::Overtaking) it, and in a
//! [deadlock](super::deadlock).
//!
//! The pool cannot tell a request that was forgotten (`mem::forget`) from one whose task is slow. A head that cannot be
//! served, and whose waiter was woken and not polled for 100 ms, is *set aside*: it keeps no memory from those behind it,
//! is granted none, and does not close the gate. Once its waiter is polled, it is back at its position. It loses nothing
//! by that but its turn meanwhile, in which its task did not run.
//!
//! After a search for a request has failed, the pass does not search for it again before a change is
//! [published](super::funnel), or another search finds a stream further: the outcome would be the same.

use super::Service;
use super::funnel::wake_all;
use super::unclaimed::Unclaimed;
use super::waiter::Waiter;
use super::waiters::Leaving;
use crate::engine::{Effort, Mode, NoMemory, maintenance, wait_allowed_at};
use crate::error::AllocError;
use crate::sync::Arc;
use std::cell::Cell;
use std::time::Duration;

/// How long the head may be woken and not polled before it loses its turn, on the device's clock. Long against the delays
/// of a busy runtime.
const SILENCE: Duration = Duration::from_millis(100);

/// The outcome of an attempt to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It left the queue with its memory.
    Granted,
    /// It left the queue without memory: it failed, or waited no longer.
    Gone,
    /// There is not enough memory for it now.
    Short,
    /// Memory calls are needed that may not be made here.
    NeedsThread,
}

/// How a pass ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The request for which memory calls are needed that may not be made here.
    pub(super) needy: Option<Arc<Waiter>>,
    /// When to look again, whatever happens until then.
    pub(super) next_look: Option<Duration>,
}

/// One pass over the queue. It goes on after each request that leaves the queue, so that it finds every candidate.
pub(super) struct Pass<'a> {
    pub(super) service: &'a Arc<Service>,
    pub(super) effort: Effort,
    pub(super) generation: u64,
    /// When a search may end differently although no change is published until then.
    next_look: Cell<Option<Duration>>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(service: &'a Arc<Service>, effort: Effort, generation: u64) -> Self {
        Self {
            service,
            effort,
            generation,
            next_look: Cell::new(None),
        }
    }

    /// Serves every request that can be served.
    pub(super) fn run(self) -> Ended {
        let service = self.service;
        let lease = &service.engine.store.lease;
        if lease.lender.is_some() {
            lease.begin_turn(self.generation);
        }
        while let Some(head) = service.queue.head() {
            let served = match self.serve_one(&head) {
                Served::Short => self.serve_past(&head),
                served => served,
            };
            let needy = match served {
                Served::Granted | Served::Gone => continue,
                // The search for another request found memory complete that may suit the head.
                Served::Short if !head.was_searched_at(self.moment()) => continue,
                Served::Short if self.set_aside(&head) => continue,
                Served::Short => {
                    service.stall(&head);
                    None
                }
                Served::NeedsThread => Some(head),
            };
            let next_look = self.next_look.get();
            return Ended { needy, next_look };
        }
        service.end_deadlock();
        Ended::default()
    }

    /// Asks for another pass at that time, or earlier.
    pub(super) fn look_again_at(&self, at: Duration) {
        let earlier = self.next_look.get().filter(|earlier| *earlier < at);
        self.next_look.set(Some(earlier.unwrap_or(at)));
    }

    /// Sets the head aside if its waiter was woken long ago and has not been polled since: it may have been forgotten.
    /// Returns whether it did.
    fn set_aside(&self, head: &Arc<Waiter>) -> bool {
        let service = self.service;
        let now = service.now();
        let Some(since) = head.silent_since(now) else {
            return false;
        };
        let until = since.saturating_add(SILENCE);
        if now < until {
            self.look_again_at(until);
            return false;
        }
        let is_aside = service.queue.set_aside(head);
        if is_aside {
            // It may have been the last one that the maintenance was put off for.
            maintenance::resume(&service.engine);
        }
        is_aside
    }

    /// Serves a request that may pass the head, which cannot be served.
    fn serve_past(&self, head: &Arc<Waiter>) -> Served {
        match self.serve_overtakers() {
            Served::Short => self.look_for_deadlock(head),
            served => served,
        }
    }

    /// Looks for a deadlock, when the head cannot be served and no request may overtake it. If nothing moves for the
    /// grace, serves the first request that can be served.
    fn look_for_deadlock(&self, head: &Arc<Waiter>) -> Served {
        let service = self.service;
        let Some(returns) = service
            .engine
            .streams
            .returns_if_quiet(&service.engine.store)
        else {
            service.end_deadlock();
            return Served::Short;
        };
        let now = service.now();
        let (position, queued) = (
            head.entry.sort_key.position,
            service.queue.lock().queue.queued(),
        );
        let mut standstill = service.standstill.lock();
        let grace_ends = standstill.look(position, returns, queued, &service.rules, now);
        drop(standstill);
        if let Some(grace_ends) = grace_ends {
            self.look_again_at(grace_ends);
            return Served::Short;
        }
        match self.serve_any() {
            Served::Short if service.is_short_for_others() => Served::Short,
            Served::Short => self.report_deadlock(head, now),
            served => served,
        }
    }

    fn serve_overtakers(&self) -> Served {
        let rules = &self.service.rules;
        if rules.overtaking.times == 0 {
            return Served::Short;
        }
        let waiters = self.service.queue.looked_at();
        for (ahead, waiter) in waiters.iter().enumerate().skip(1) {
            let bytes = waiter.demand.request.bytes;
            let passed = &waiters[..ahead];
            let may_pass = |passed: &Arc<Waiter>| rules.may_overtake(passed.passed(), bytes);
            if !passed.iter().all(may_pass) {
                // A request further behind would pass the same ones; but it may be smaller.
                continue;
            }
            match self.serve_one(waiter) {
                Served::Granted => {
                    passed.iter().for_each(|passed| passed.count_passed(bytes));
                    return Served::Granted;
                }
                Served::Short => {}
                served => return served,
            }
        }
        Served::Short
    }

    /// Serves a request, wherever it stands in the queue.
    pub(super) fn serve_one(&self, waiter: &Waiter) -> Served {
        let service = self.service;
        // The lane stays registered while a grant for it is on its way. It is registered now if the waiter still waits,
        // because the waiter holds the stream.
        let _visit = waiter.lane.cache.visit();
        if !waiter.is_waiting() {
            let _ = service.leave(waiter, Leaving::Unserved);
            return Served::Gone;
        }
        if let Some(refusal) = service.refusal_of(&waiter.demand) {
            service.fail(waiter, refusal);
            return Served::Gone;
        }
        if waiter.was_searched_at(self.moment()) {
            self.record_times(waiter);
            return Served::Short;
        }
        match self.search(waiter) {
            Ok(found) => return self.grant(waiter, found),
            Err(NoMemory::NeedsThread) => return Served::NeedsThread,
            Err(NoMemory::Never(error)) => service.fail(waiter, error),
            Err(NoMemory::Hopeless) => {
                let shortfall = service.exhausted(&waiter.lane, &waiter.demand);
                service.fail(waiter, AllocError::Exhausted(shortfall.into()));
            }
            Err(_) => {
                waiter.record_searched(self.moment(), service.engine.supply.is_refused());
                self.record_times(waiter);
                return Served::Short;
            }
        }
        Served::Gone
    }

    /// Returns the generation, and how often streams were found further until now.
    fn moment(&self) -> (u64, u64) {
        (self.generation, self.service.engine.store.totals().progress)
    }

    fn search(&self, waiter: &Waiter) -> Result<Unclaimed, NoMemory> {
        let mode = Mode::from_queue(self.effort, &waiter.patience);
        let engine = &self.service.engine;
        let allocations = engine.search(&waiter.lane, &waiter.parts, mode)?;
        Ok(Unclaimed::new(self.service, waiter, allocations))
    }

    /// Notes the times at which a failed search may succeed although no change is published.
    fn record_times(&self, waiter: &Waiter) {
        let now = self.service.now();
        if waiter.was_refused() {
            // Other clients of the device hold the memory, and do not announce when they release it.
            self.look_again_at(now.saturating_add(maintenance::INTERVAL));
        }
        let patience = &waiter.patience;
        let patience_ends = (!patience.fences.is_empty()).then_some(patience.until);
        let wait_is_allowed = wait_allowed_at(&self.service.engine, &waiter.lane);
        let times = [patience_ends, wait_is_allowed].into_iter().flatten();
        times
            .filter(|at| *at > now)
            .for_each(|at| self.look_again_at(at));
    }

    fn grant(&self, waiter: &Waiter, found: Unclaimed) -> Served {
        let service = self.service;
        service.end_deadlock();
        match waiter.grant(found.claim()) {
            Ok(waker) => {
                let _ = service.leave(waiter, Leaving::Served);
                wake_all(&self.service.engine.store.announcer, waker);
                Served::Granted
            }
            Err(found) => {
                let found = Unclaimed::new(service, waiter, found);
                let _ = service.leave(waiter, Leaving::Unserved);
                drop(found);
                Served::Gone
            }
        }
    }
}
