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

use crate::engine::{Expected, Lent, gate};
use crate::error::AllocError;
use crate::lane::Lane;
use crate::ledger::Request;
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
    pub(crate) request: Request,
    /// When it came, on the device's clock.
    pub(crate) since: Duration,
    /// What is to be passed before new memory is taken for it.
    pub(crate) patience: Expected,
    state: Mutex<State>,
}

/// One who joins.
pub(super) struct Newcomer<'a> {
    pub(super) lane: &'a Arc<Lane>,
    pub(super) request: Request,
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

/// How long requests waited, on the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStatistics {
    /// Requests that are waiting now.
    pub waiting: usize,
    /// Requests that waited, and were served.
    pub served: u64,
    /// Requests that waited, and were not served: cancelled, timed out, or failed.
    pub abandoned: u64,
    /// The longest wait of a served request.
    pub longest: Duration,
    /// All waits of served requests together.
    pub total: Duration,
}

#[derive(Debug, Default)]
struct Line {
    waiters: BTreeMap<Place, Arc<Waiter>>,
    next: Place,
    statistics: WaitStatistics,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queue {
    line: Mutex<Line>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            line: Mutex::new(Guards::Queue, Line::default()),
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
            request: newcomer.request,
            since: newcomer.since,
            patience: newcomer.patience,
            state: Mutex::new(Guards::Waiter, State::Waiting(newcomer.waker.clone())),
        });
        line.waiters.insert(place, waiter.clone());
        if line.waiters.len() == 1 {
            gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
        waiter
    }

    /// Leaves the queue, served after `waited` or not at all. Whoever is second does nothing.
    pub(super) fn leave(&self, place: Place, waited: Option<Duration>, gate: &SharedState) {
        let mut line = self.line.lock();
        if line.waiters.remove(&place).is_none() {
            return;
        }
        let statistics = &mut line.statistics;
        match waited {
            Some(waited) => {
                statistics.served += 1;
                statistics.total += waited;
                statistics.longest = statistics.longest.max(waited);
            }
            None => statistics.abandoned += 1,
        }
        if line.waiters.is_empty() {
            gate.fetch_and(!gate::WAITING, Ordering::SeqCst);
        }
    }

    /// Who is served next.
    pub(super) fn head(&self) -> Option<Arc<Waiter>> {
        self.line.lock().waiters.values().next().cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.lock().waiters.is_empty()
    }

    pub(crate) fn statistics(&self) -> WaitStatistics {
        let line = self.line.lock();
        WaitStatistics {
            waiting: line.waiters.len(),
            ..line.statistics
        }
    }
}
