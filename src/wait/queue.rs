//! The queue: who waits, in the order of coming, and what each gets.
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

use super::Demand;
use crate::engine::{Expected, Lent, gate};
use crate::error::AllocError;
use crate::lane::Lane;
use crate::measure::{Accounts, Histogram, Recorder, WaitStatistics, Waits};
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedState};
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

/// A place in the queue: lower is earlier.
pub(crate) type Place = u64;

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) place: Place,
    pub(crate) lane: Arc<Lane>,
    pub(crate) demand: Demand,
    /// When it came, on the device's clock.
    pub(crate) since: Duration,
    /// What is to be passed before new memory is taken for it.
    pub(crate) patience: Expected,
    state: Mutex<State>,
}

/// One who joins.
pub(super) struct Newcomer<'a> {
    pub(super) lane: &'a Arc<Lane>,
    pub(super) demand: Demand,
    pub(super) since: Duration,
    pub(super) patience: Expected,
    pub(super) waker: &'a Waker,
}

#[derive(Debug)]
enum State {
    Waiting(Waker),
    Granted(Lent),
    Failed(AllocError),
    Gone,
}

impl Waiter {
    /// Gives the waiter its block. Returns whom to wake, or the block if the waiter is gone.
    pub(super) fn grant(&self, lent: Lent) -> Result<Waker, Lent> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waiting(waker) => {
                *state = State::Granted(lent);
                Ok(waker)
            }
            other => {
                *state = other;
                Err(lent)
            }
        }
    }

    /// Fails the waiter, if it still waits. Returns whom to wake.
    pub(super) fn fail(&self, error: AllocError) -> Option<Waker> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waiting(waker) => {
                *state = State::Failed(error);
                Some(waker)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// What the waiter got, if it got something; else `waker` is the one to be woken.
    pub(super) fn take(&self, waker: &Waker) -> Option<Result<Lent, AllocError>> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Waiting(last) => {
                let old = (!last.will_wake(waker)).then(|| std::mem::replace(last, waker.clone()));
                drop(state);
                drop(old);
                None
            }
            _ => match std::mem::replace(&mut *state, State::Gone) {
                State::Granted(lent) => Some(Ok(lent)),
                State::Failed(error) => Some(Err(error)),
                State::Waiting(_) | State::Gone => None,
            },
        }
    }

    /// The waiter gives up. What it was granted in the meantime comes back.
    pub(super) fn cancel(&self) -> Option<Lent> {
        let last = std::mem::replace(&mut *self.state.lock(), State::Gone);
        match last {
            State::Granted(lent) => Some(lent),
            _ => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(&*self.state.lock(), State::Waiting(_))
    }
}

#[derive(Debug, Default)]
struct Line {
    waiters: BTreeMap<Place, Arc<Waiter>>,
    next: Place,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queue {
    line: Mutex<Line>,
    waits: Waits,
    /// How long those waited who were served.
    times: Recorder,
    /// What each tag has, and how its requests waited.
    pub(crate) accounts: Accounts,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            line: Mutex::new(Guards::Queue, Line::default()),
            waits: Waits::default(),
            times: Recorder::new(),
            accounts: Accounts::new(),
        }
    }

    /// Joins the end of the queue. The gate is raised under the queue's lock, as it is lowered, so
    /// that it is raised whenever somebody waits.
    pub(super) fn join(&self, newcomer: Newcomer<'_>, gate: &SharedState) -> Arc<Waiter> {
        let mut line = self.line.lock();
        let place = line.next;
        line.next += 1;
        let waiter = Arc::new(Waiter {
            place,
            lane: newcomer.lane.clone(),
            demand: newcomer.demand,
            since: newcomer.since,
            patience: newcomer.patience,
            state: Mutex::new(Guards::Waiter, State::Waiting(newcomer.waker.clone())),
        });
        line.waiters.insert(place, waiter.clone());
        self.counted_for(&waiter).for_each(Waits::begin);
        if line.waiters.len() == 1 {
            gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
        waiter
    }

    /// Leaves the queue, served after `waited` or not at all. Whoever is second does nothing.
    pub(super) fn leave(&self, waiter: &Waiter, waited: Option<Duration>, gate: &SharedState) {
        let mut line = self.line.lock();
        if line.waiters.remove(&waiter.place).is_none() {
            return;
        }
        // Before the lock is let go: who hears that it was served finds it counted.
        self.counted_for(waiter).for_each(|waits| waits.end(waited));
        if let Some(waited) = waited {
            self.times.record(waited);
        }
        if line.waiters.is_empty() {
            gate.fetch_and(!gate::WAITING, Ordering::SeqCst);
        }
    }

    /// Whose waits a waiter's is.
    fn counted_for<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = &'a Waits> {
        let of_tag = waiter.demand.tag.map(|tag| &self.accounts.of(tag).waits);
        [&self.waits, &waiter.lane.waits].into_iter().chain(of_tag)
    }

    /// Who is served next.
    pub(super) fn head(&self) -> Option<Arc<Waiter>> {
        self.line.lock().waiters.values().next().cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.lock().waiters.is_empty()
    }

    pub(crate) fn statistics(&self) -> WaitStatistics {
        // With nobody coming or leaving meanwhile.
        let _line = self.line.lock();
        self.waits.statistics()
    }

    /// How long those waited who were served.
    pub(crate) fn times(&self) -> Histogram {
        self.times.histogram()
    }
}
