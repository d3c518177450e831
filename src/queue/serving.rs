//! Serving the queue: the head gets what the driver has, then the next.
//!
//! While the head cannot be served nobody is, but for those that may [overtake](super::terms::Overtaking),
//! and those whose turn it is to untie a [deadlock](super::deadlock).

use super::Service;
use super::demand::Wants;
use super::waiters::Waiter;
use crate::driver::{Allocations, Effort, Mode, Refusal};
use crate::error::AllocError;
use crate::sync::{Arc, assert_unlocked};

/// What came of serving one who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It is out of the queue: it has its memory.
    Granted,
    /// It is out of the queue: it failed, or was gone.
    Gone,
    /// There is not enough for it now.
    Short,
    /// Memory calls are needed that may not be made here.
    NeedsThread,
}

impl Service {
    pub(super) fn serve_once(this: &Arc<Self>, effort: Effort) {
        // Before anything is looked at: what comes in between rings anew.
        this.notifier.answer();
        while let Some(head) = this.queue.head() {
            let served = match this.serve_one(&head, effort) {
                Served::Short => this.serve_past(&head, effort),
                served => served,
            };
            match served {
                Served::Granted | Served::Gone => {}
                Served::Short => return this.ask_for(&head),
                Served::NeedsThread => return this.grower.start_for(head, this),
            }
        }
        this.deadlock.untie();
    }

    /// The head cannot be served: those are that may pass it.
    fn serve_past(&self, head: &Arc<Waiter>, effort: Effort) -> Served {
        let mut served = self.serve_overtakers(effort);
        if served == Served::Short {
            served = self.look_for_deadlock(head, effort);
        }
        served
    }

    fn serve_overtakers(&self, effort: Effort) -> Served {
        if self.rules.overtaking.times == 0 {
            return Served::Short;
        }
        let waiters = self.queue.first(self.rules.overtaking.looked_at());
        for (ahead, waiter) in waiters.iter().enumerate().skip(1) {
            let bytes = waiter.demand.request.bytes;
            let passed = &waiters[..ahead];
            let may_pass =
                |passed: &Arc<Waiter>| self.rules.overtaking.allows(passed.passed(), bytes);
            if !passed.iter().all(may_pass) {
                // Whoever comes behind would pass the same ones; but may be smaller.
                continue;
            }
            match self.serve_one(waiter, effort) {
                Served::Granted => {
                    passed.iter().for_each(|passed| passed.note_passed(bytes));
                    return Served::Granted;
                }
                Served::Short => {}
                served => return served,
            }
        }
        Served::Short
    }

    /// Serves one of those who wait, wherever it stands.
    pub(super) fn serve_one(&self, waiter: &Waiter, effort: Effort) -> Served {
        // The lane stays known while a grant for it is on its way, whoever goes meanwhile; and it
        // is known now if the waiter still waits, since that has the stream.
        let _visit = waiter.lane.cache.visit();
        if !waiter.is_waiting() {
            drop(self.queue.leave(waiter, None, &self.driver.gate));
            return Served::Gone;
        }
        if let Some(refusal) = self.refusal_of(&waiter.demand) {
            self.fail(waiter, refusal);
            return Served::Gone;
        }
        match self.search_for(waiter, effort) {
            Ok(allocations) => return self.grant(waiter, allocations),
            Err(Refusal::Device(error)) => self.fail(waiter, error.into()),
            Err(Refusal::Short(_)) => return Served::Short,
            Err(Refusal::NeedsThread) => return Served::NeedsThread,
            Err(Refusal::Hopeless) => {
                let shortfall = self.exhausted(&waiter.lane, &waiter.demand);
                self.fail(waiter, AllocError::Exhausted(shortfall.into()));
            }
            Err(Refusal::NoRoom(room)) => self.fail(waiter, AllocError::NoRoom { room }),
        }
        Served::Gone
    }

    fn search_for(&self, waiter: &Waiter, effort: Effort) -> Result<Allocations, Refusal> {
        let mode = Mode::from_queue(effort, &waiter.patience);
        let driver = &self.driver;
        match &waiter.wants {
            Wants::Block => {
                let request = waiter.demand.request;
                let allocation = driver.search(&waiter.lane, request, mode)?;
                Ok(std::iter::once(allocation).collect())
            }
            Wants::Parts(parts) => driver.search_all(&waiter.lane, parts, mode),
        }
    }

    fn grant(&self, waiter: &Waiter, allocations: Allocations) -> Served {
        let waited = self.driver.device.now().saturating_sub(waiter.since);
        self.deadlock.untie();
        match waiter.grant(allocations) {
            Ok(waker) => {
                drop(self.queue.leave(waiter, Some(waited), &self.driver.gate));
                assert_unlocked("wake");
                waker.wake();
                Served::Granted
            }
            Err(allocations) => {
                drop(self.queue.leave(waiter, None, &self.driver.gate));
                self.driver.give_all_back(&waiter.lane, allocations);
                Served::Gone
            }
        }
    }

    pub(super) fn fail(&self, waiter: &Waiter, error: AllocError) {
        let waker = waiter.fail(error);
        drop(self.queue.leave(waiter, None, &self.driver.gate));
        if let Some(waker) = waker {
            assert_unlocked("wake");
            waker.wake();
        }
        self.tell_drains();
    }
}
