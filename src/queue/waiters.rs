//! The queue: who waits, and what each gets.
//!
//! A waiter's state changes under its own lock, once:
//!
//! ```text
//!     Waiting ── grant ──▶ Granted ── taken by its future ──▶ Gone
//!        │ └──── fail ───▶ Failed ─── taken by its future ──▶ Gone
//!        └────── cancel ─────────────────────────────────────▶ Gone
//! ```
//!
//! The state is set before the waker is called: woken first, the future could look, find nothing, and
//! sleep for ever. A grant that finds its waiter gone is handed back to whoever made it; a future
//! dropped after the grant hands it back itself. So a grant has one owner at every moment.
//!
//! Who is over the limit of its tag waits at the [quota queue](super::quota_queue), outside the [line](super::fair_queue): it
//! keeps nobody from being served, and the gate does not close for it.

use super::admission::{Admission, QueueLimit};
use super::charge::Charge;
use super::fair_queue::{Cost, FairQueue, Flow, Position, SortKey};
use super::hook::Turned;
use super::notifier::Notifier;
use super::quota_queue::{Admitted, QuotaQueue};
use super::{Demand, Rules, Wants};
use crate::driver::{Allocations, Expected, gate};
use crate::error::AllocError;
use crate::lane::Lane;
use crate::measure::{Account, Accounts, Tag, WaitOutcome, Waits};
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedFlag, SharedNumber, SharedState, plain};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::task::Waker;
use std::time::Duration;

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) sort_key: SortKey,
    flow: Flow,
    pub(crate) lane: Arc<Lane>,
    pub(crate) demand: Demand,
    pub(super) wants: Wants,
    /// When it came, on the device's clock.
    pub(crate) since: Duration,
    /// What is to be passed before new memory is taken for it.
    pub(crate) patience: Expected,
    /// It is at the quota queue: its tag has reached its limit.
    pub(super) is_held: SharedFlag,
    /// By how many, with how many bytes together, it was passed. Written by who serves, and nobody else.
    passed: (SharedNumber, SharedNumber),
    /// Where it stands with the pressure hook.
    pub(super) hook: Turned,
    /// It was granted what it wants.
    is_served: SharedFlag,
    /// How it ends if it is not served: noted by the first that knows, for the statistics.
    unserved: plain::OnceLock<WaitOutcome>,
    state: Mutex<State>,
}

/// One who joins.
pub(super) struct Newcomer<'a> {
    pub(super) lane: &'a Arc<Lane>,
    pub(super) demand: Demand,
    pub(super) wants: Wants,
    /// When it is due.
    pub(super) due: i128,
    pub(super) since: Duration,
    pub(super) patience: Expected,
    pub(super) waker: &'a Waker,
    /// How long it waits at most.
    pub(super) limit: Option<Duration>,
    /// None of one that has no tag, or may claim nothing yet.
    pub(super) charge: Option<Charge<'a>>,
}

#[derive(Debug)]
enum State {
    Waiting(Waker),
    Granted(Allocations),
    Failed(AllocError),
    Gone,
}

impl Waiter {
    /// Gives the waiter its memory. Returns whom to wake, or the memory if the waiter is gone.
    pub(super) fn grant(&self, allocations: Allocations) -> Result<Waker, Allocations> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waiting(waker) => {
                *state = State::Granted(allocations);
                self.is_served.store(true, Ordering::Release);
                Ok(waker)
            }
            other => {
                *state = other;
                Err(allocations)
            }
        }
    }

    /// Fails the waiter, if it still waits. Returns whom to wake.
    pub(super) fn fail(&self, error: AllocError) -> Option<Waker> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waiting(waker) => {
                // Before the lock is released: whoever hears of the failure finds it counted as what it is.
                self.note_unserved(outcome_of(&error));
                *state = State::Failed(error);
                Some(waker)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Notes how the waiter leaves, unless it is served after all. The first note counts.
    pub(super) fn note_unserved(&self, outcome: WaitOutcome) {
        let _ = self.unserved.set(outcome);
    }

    /// Returns how a waiter that was not served left the queue.
    pub(super) fn unserved(&self) -> WaitOutcome {
        let unserved = self.unserved.get().copied();
        unserved.unwrap_or(WaitOutcome::Cancelled)
    }

    /// What the waiter got, if it got something; else `waker` is the one to be woken.
    pub(super) fn take(&self, waker: &Waker) -> Option<Result<Allocations, AllocError>> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Waiting(last) => {
                let old = (!last.will_wake(waker)).then(|| std::mem::replace(last, waker.clone()));
                drop(state);
                drop(old);
                None
            }
            _ => match std::mem::replace(&mut *state, State::Gone) {
                State::Granted(allocations) => Some(Ok(allocations)),
                State::Failed(error) => Some(Err(error)),
                State::Waiting(_) | State::Gone => None,
            },
        }
    }

    /// The waiter gives up. What it was granted in the meantime comes back.
    pub(super) fn cancel(&self) -> Option<Allocations> {
        let last = std::mem::replace(&mut *self.state.lock(), State::Gone);
        match last {
            State::Granted(allocations) => Some(allocations),
            _ => None,
        }
    }

    /// Whether it is at the quota queue.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// By how many it was passed, with how many bytes together.
    pub(super) fn passed(&self) -> (u64, u64) {
        let (times, bytes) = &self.passed;
        (times.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    pub(super) fn note_passed(&self, by: u64) {
        self.passed.0.fetch_add(1, Ordering::Relaxed);
        self.passed.1.fetch_add(by, Ordering::Relaxed);
    }

    /// Whom to wake, while it waits.
    pub(super) fn waker(&self) -> Option<Waker> {
        match &*self.state.lock() {
            State::Waiting(waker) => Some(waker.clone()),
            _ => None,
        }
    }

    /// Whether it was granted what it wants, and may be gone since.
    pub(super) fn is_served(&self) -> bool {
        self.is_served.load(Ordering::Acquire)
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(&*self.state.lock(), State::Waiting(_))
    }
}

/// All who wait, in the line or at the quota queue.
#[derive(Debug)]
pub(super) struct Standing {
    fair_queue: FairQueue<Arc<Waiter>>,
    /// Those whose tags have reached their limits.
    pub(super) quota_queues: BTreeMap<Tag, QuotaQueue>,
    next: Position,
    admission: Admission,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) standing: Mutex<Standing>,
    /// How the pool's requests waited.
    waits: plain::Arc<Waits>,
    /// What each tag has, and how its requests waited.
    pub(crate) accounts: Accounts,
    /// Who is told who leads.
    notifier: plain::Arc<Notifier>,
    /// How many at the front are looked at when somebody is served.
    looked_at: usize,
}

/// What came of somebody's leaving: those are woken who were let in by it, when this is dropped.
#[derive(Debug, Default)]
#[must_use = "who was let in is to be woken with no lock held"]
pub(super) struct Left {
    admitted: Admitted,
    /// Others may be served now who could not be before.
    pub(super) spills: bool,
}

impl Standing {
    /// # Errors
    /// When somebody may not join.
    fn check(&self, newcomer: &Newcomer<'_>, rules: &Rules) -> Result<(), AllocError> {
        let bytes = newcomer.demand.request.bytes;
        self.admission.check(bytes)?;
        let Some(limit) = newcomer.limit.filter(|_| rules.sheds) else {
            return Ok(());
        };
        // The first waits in any case: it is what the pace is known by.
        if self.fair_queue.is_empty() {
            return Ok(());
        }
        match self.expected_wait(bytes, newcomer.due, newcomer.since) {
            Some(expected) if expected > limit => Err(AllocError::Shed { expected, limit }),
            _ => Ok(()),
        }
    }

    fn expected_wait(&self, bytes: u64, due: i128, now: Duration) -> Option<Duration> {
        let position = self.next;
        let ahead = self.fair_queue.before(SortKey { due, position });
        let ahead = ahead.map(|waiter| waiter.demand.request.bytes);
        let bytes = ahead.fold(bytes, u64::saturating_add);
        self.admission.pace.time_for(bytes, now)
    }
}

impl Queue {
    pub(super) fn new(
        rules: &Rules,
        notifier: plain::Arc<Notifier>,
        waits: plain::Arc<Waits>,
    ) -> Self {
        let standing = Standing {
            fair_queue: FairQueue::new(),
            quota_queues: BTreeMap::new(),
            next: 0,
            admission: Admission::new(rules.queue_limit),
        };
        Self {
            standing: Mutex::new(Guards::Queue, standing),
            waits,
            accounts: Accounts::new(),
            notifier,
            looked_at: rules.overtaking.looked_at(),
        }
    }

    /// Joins the queue; at the quota queue, if its tag has reached its limit. The gate is raised under the
    /// queue's lock, as it is lowered, so that it is raised whenever somebody waits in the line.
    ///
    /// # Errors
    /// When it may not.
    pub(super) fn join(
        &self,
        newcomer: Newcomer<'_>,
        rules: &Rules,
        gate: &SharedState,
    ) -> Result<Arc<Waiter>, AllocError> {
        let mut standing = self.standing.lock();
        if let Err(refusal) = standing.check(&newcomer, rules) {
            self.note_refusal(&newcomer, &refusal);
            drop(standing);
            // With the lock let go: what was claimed may let in others.
            drop(newcomer);
            return Err(refusal);
        }
        let Newcomer { demand, charge, .. } = newcomer;
        let bytes = demand.request.bytes;
        standing.admission.join(bytes, newcomer.since);
        let account = demand.tag.map(|tag| (tag, self.accounts.of(tag)));
        let is_let_in = match account {
            Some((_, account)) if charge.is_none() => account.charge_or_throttle(bytes).is_ok(),
            _ => true,
        };
        Charge::keep(charge);
        let sort_key = SortKey {
            due: newcomer.due,
            position: standing.next,
        };
        standing.next += 1;
        let waiter = Arc::new(Waiter {
            sort_key,
            flow: demand.tag.filter(|_| account.is_some_and(has_weight)),
            lane: newcomer.lane.clone(),
            demand,
            wants: newcomer.wants,
            since: newcomer.since,
            patience: newcomer.patience,
            is_served: SharedFlag::new(false),
            unserved: plain::OnceLock::new(),
            is_held: SharedFlag::new(!is_let_in),
            passed: (SharedNumber::new(0), SharedNumber::new(0)),
            hook: Turned::new(),
            state: Mutex::new(Guards::Waiter, State::Waiting(newcomer.waker.clone())),
        });
        self.counted_for(&waiter).for_each(Waits::begin);
        match account {
            Some((tag, account)) if !is_let_in => {
                let quota_queue = standing.quota_queues.entry(tag).or_default();
                quota_queue.join(waiter.clone(), account);
            }
            _ => self.enqueue(&mut standing, waiter.clone(), gate),
        }
        Ok(waiter)
    }

    pub(super) fn enqueue(&self, standing: &mut Standing, waiter: Arc<Waiter>, gate: &SharedState) {
        if let Some(tag) = waiter.demand.tag {
            self.accounts.of(tag).promise(waiter.demand.request.bytes);
        }
        if standing.fair_queue.is_empty() {
            gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
        standing
            .fair_queue
            .join(waiter.flow, waiter.sort_key, waiter);
        self.tell_lead(standing);
    }

    fn tell_lead(&self, standing: &Standing) {
        let head = standing.fair_queue.head();
        self.notifier
            .set_lead(head.map(|head| head.sort_key.position));
    }

    /// Leaves the queue, served after `waited` or not at all. Whoever is second does nothing.
    pub(super) fn leave(
        &self,
        waiter: &Waiter,
        waited: Option<Duration>,
        gate: &SharedState,
    ) -> Left {
        let bytes = waiter.demand.request.bytes;
        let mut standing = self.standing.lock();
        let account = waiter.demand.tag.map(|tag| (tag, self.accounts.of(tag)));
        let served = waited.map(|_| self.cost_of(waiter));
        let mut left = Left {
            // Who was served is followed by the next without more.
            spills: served.is_none() && self.is_looked_at(&standing, waiter),
            ..Left::default()
        };
        if standing
            .fair_queue
            .leave(waiter.flow, waiter.sort_key, served)
            .is_some()
        {
            self.tell_lead(&standing);
            if let Some((_, account)) = account {
                account.end_promise(bytes);
            }
            if standing.fair_queue.is_empty() {
                gate.fetch_and(!gate::WAITING, Ordering::SeqCst);
            }
        } else {
            let quota_queue =
                account.and_then(|(tag, _)| Some((tag, standing.quota_queues.get_mut(&tag)?)));
            let Some((tag, quota_queue)) = quota_queue else {
                return left;
            };
            if quota_queue.leave(waiter.sort_key).is_none() {
                return left;
            }
            left.admitted = self.admit_from(&mut standing, tag, gate);
            left.spills = !left.admitted.is_empty();
        }
        let served_at = waited.map(|waited| waiter.since.saturating_add(waited));
        standing.admission.leave(bytes, served_at);
        // Before the lock is let go: who hears that it was served finds it counted.
        let outcome = waited.map_or_else(|| waiter.unserved(), |_| WaitOutcome::Served);
        let waited = waited.unwrap_or_default();
        self.counted_for(waiter)
            .for_each(|waits| waits.end(outcome, waited));
        left
    }

    /// Whether it keeps others from being served: as the head, or as one whom others may pass only so often, or
    /// behind whom nobody is looked at.
    fn is_looked_at(&self, standing: &Standing, waiter: &Waiter) -> bool {
        let cost = |waiter: &Arc<Waiter>| self.cost_of(waiter);
        let first = standing.fair_queue.first(self.looked_at, cost);
        first.iter().any(|first| first.sort_key == waiter.sort_key)
    }

    pub(crate) fn set_queue_limit(&self, limit: QueueLimit) {
        self.standing.lock().admission.limit = limit;
    }

    pub(crate) fn queue_limit(&self) -> QueueLimit {
        self.standing.lock().admission.limit
    }

    /// How long a request would wait that comes now and is due then, as far as can be told.
    pub(super) fn expected_wait(&self, bytes: u64, due: i128, now: Duration) -> Option<Duration> {
        self.standing.lock().expected_wait(bytes, due, now)
    }

    fn note_refusal(&self, newcomer: &Newcomer<'_>, refusal: &AllocError) {
        let all = self.waits_of(newcomer.lane, &newcomer.demand);
        match refusal {
            AllocError::Shed { .. } => all.for_each(Waits::note_shed),
            _ => all.for_each(Waits::note_refused),
        }
    }

    /// Whose waits a waiter's is.
    fn counted_for<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = &'a Waits> {
        self.waits_of(&waiter.lane, &waiter.demand)
    }

    fn waits_of<'a>(&'a self, lane: &'a Lane, demand: &Demand) -> impl Iterator<Item = &'a Waits> {
        let of_tag = demand.tag.map(|tag| &self.accounts.of(tag).waits);
        [&*self.waits, &lane.waits].into_iter().chain(of_tag)
    }

    /// Who is served next.
    pub(super) fn head(&self) -> Option<Arc<Waiter>> {
        self.standing.lock().fair_queue.head().cloned()
    }

    /// The first so many, in the order in which they are served if nobody comes.
    pub(super) fn first(&self, most: usize) -> Vec<Arc<Waiter>> {
        let standing = self.standing.lock();
        let first = standing
            .fair_queue
            .first(most, |waiter| self.cost_of(waiter));
        first.into_iter().cloned().collect()
    }

    /// What it costs a waiter's flow to have it served.
    fn cost_of(&self, waiter: &Waiter) -> Cost {
        let weight = waiter.flow.and_then(|tag| self.accounts.of(tag).weight());
        Cost {
            bytes: waiter.demand.request.bytes,
            weight: weight.map_or(1, NonZeroU32::get),
        }
    }

    /// Whether nobody waits in the line.
    pub(crate) fn is_empty(&self) -> bool {
        self.standing.lock().fair_queue.is_empty()
    }

    /// Returns the number of requests that wait, in the fair queue or in a quota queue.
    pub(crate) fn waiting(&self) -> usize {
        // No request joins or leaves meanwhile.
        let _standing = self.standing.lock();
        self.waits.waiting()
    }
}

/// Returns the outcome of a wait that ends with an error.
pub(super) fn outcome_of(error: &AllocError) -> WaitOutcome {
    match error {
        AllocError::TimedOut { .. } => WaitOutcome::TimedOut,
        AllocError::Deadlocked(_) | AllocError::DeadlockedAtLimit { .. } => WaitOutcome::Deadlocked,
        _ => WaitOutcome::Failed,
    }
}

fn has_weight((_, account): (Tag, &Account)) -> bool {
    account.weight().is_some()
}
