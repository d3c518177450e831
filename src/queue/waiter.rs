//! A waiting request and its outcome.
//!
//! A waiter's state changes under its own lock:
//!
//! ```text
//!     Waiting ── grant ──▶ Granted ── taken by its future ──▶ Gone
//!        │ └──── fail ───▶ Failed ─── taken by its future ──▶ Gone
//!        └────── cancel ─────────────────────────────────────▶ Gone
//! ```
//!
//! The state is set before the waker is called. In the other order the future could look, find nothing, and sleep for
//! ever. A grant that finds its waiter gone is returned to the server that made it. A future that is dropped after the
//! grant takes the grant out and gives it back. So a grant has one owner at every moment. A grant does not keep the
//! pool alive: a forgotten future leaks its memory, and no more.

use super::Demand;
use super::WaitingRequest;
use crate::engine::{Allocations, Expected, Parts};
use crate::error::AllocError;
use crate::id::ReservationId;
use crate::lane::Lane;
use crate::measure::WaitOutcome;
use crate::sync::plain::{AtomicBool, AtomicU64, OnceLock};
use crate::sync::{Arc, Foreign, Guards, Mutex, Ordering, SharedFlag, SharedState};
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;
use weirpool_queue::Entry;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(super) entry: Entry,
    pub(crate) lane: Arc<Lane>,
    pub(crate) demand: Demand,
    pub(crate) parts: Parts,
    /// The points to be passed before new memory is taken for the request.
    pub(crate) patience: Expected,
    /// The reservation in whose scope the request was made: it also takes memory that returns to it.
    pub(super) scope: Option<ReservationId>,
    /// Where the request was made.
    pub(super) location: &'static Location<'static>,
    /// The reservation has enough, in pieces that could not be drawn.
    expects_pieces: AtomicBool,
    /// The request is in the quota queue: its tag has reached its limit.
    is_throttled: SharedFlag,
    /// The waiter did not answer, and lost its turn until it is polled.
    pub(super) is_aside: SharedFlag,
    /// How many requests overtook this one, and with how many bytes. Written by the server only.
    passed: (AtomicU64, AtomicU64),
    /// The generation at which memory was last searched for in vain, and how often streams had been found further then.
    /// Written by the server only.
    searched: (AtomicU64, AtomicU64),
    /// The device had refused memory at the end of that search. Written by the server only.
    was_refused: AtomicBool,
    /// Its bytes were given back to its tag, although it was not served.
    is_uncharged: AtomicBool,
    pub(super) stall: Stall,
    /// The request was granted, even if it is gone since.
    is_served: SharedFlag,
    /// How the wait ends if the request is not served. The first note counts.
    unserved: OnceLock<WaitOutcome>,
    state: Mutex<WaiterState>,
}

/// A request as it joins.
#[derive(Debug)]
pub(super) struct WaiterOrigin {
    pub(super) entry: Entry,
    pub(super) lane: Arc<Lane>,
    pub(super) demand: Demand,
    pub(crate) parts: Parts,
    pub(super) patience: Expected,
    pub(super) scope: Option<ReservationId>,
    pub(super) location: &'static Location<'static>,
    pub(super) is_throttled: bool,
}

#[derive(Debug)]
enum WaiterState {
    Waiting {
        /// `None` if the waiter was woken to look again and has not been polled since.
        waker: Option<Foreign<Waker>>,
        /// When a server first saw that.
        silent_since: Option<Duration>,
    },
    /// The memory belongs to the future, which frees it if it does not take it.
    Granted(Allocations),
    Failed(AllocError),
    Gone,
}

/// No search yet.
const NEVER: u64 = u64::MAX;

impl Waiter {
    /// Returns the request as plain data.
    pub(super) fn listed(&self, now: Duration) -> WaitingRequest {
        let (bytes, site) = (self.demand.request.bytes, self.location.into());
        let mut listed = WaitingRequest::of(bytes, self.lane.id, site);
        listed.tag = self.demand.tag;
        listed.is_over_limit = self.is_throttled();
        listed.waited = now.saturating_sub(self.entry.since);
        listed
    }

    pub(super) fn new(origin: WaiterOrigin, waker: Waker) -> Self {
        let state = WaiterState::Waiting {
            waker: Some(Foreign::new(waker)),
            silent_since: None,
        };
        Self {
            entry: origin.entry,
            lane: origin.lane,
            demand: origin.demand,
            parts: origin.parts,
            patience: origin.patience,
            scope: origin.scope,
            location: origin.location,
            expects_pieces: AtomicBool::new(false),
            is_throttled: SharedFlag::new(origin.is_throttled),
            is_aside: SharedFlag::new(false),
            passed: (AtomicU64::new(0), AtomicU64::new(0)),
            searched: (AtomicU64::new(NEVER), AtomicU64::new(0)),
            was_refused: AtomicBool::new(false),
            is_uncharged: AtomicBool::new(false),
            stall: Stall::new(),
            is_served: SharedFlag::new(false),
            unserved: OnceLock::new(),
            state: Mutex::new(Guards::Waiter, state),
        }
    }

    /// Gives the waiter its memory. Returns the waker to call, unless it was called before and the waiter has not been
    /// polled since.
    ///
    /// # Errors
    /// Returns the memory if the waiter is gone.
    pub(super) fn grant(&self, found: Allocations) -> Result<Option<Waker>, Allocations> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, WaiterState::Gone) {
            WaiterState::Waiting { waker, .. } => {
                *state = WaiterState::Granted(found);
                self.is_served.store(true, Ordering::Release);
                Ok(waker.map(Foreign::into_inner))
            }
            other => {
                *state = other;
                Err(found)
            }
        }
    }

    /// Fails the waiter, if it still waits. Returns the waker to call, as [`grant`](Self::grant) does; `None` if it does
    /// not wait.
    pub(super) fn fail(&self, error: AllocError) -> Option<Option<Waker>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, WaiterState::Gone) {
            WaiterState::Waiting { waker, .. } => {
                // Before the lock is released: a task that hears of the failure finds it counted by its outcome.
                self.record_unserved(outcome_of(&error));
                *state = WaiterState::Failed(error);
                Some(waker.map(Foreign::into_inner))
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Notes how the wait ends, unless the request is served after all.
    pub(super) fn record_unserved(&self, outcome: WaitOutcome) {
        let _ = self.unserved.set(outcome);
    }

    /// Returns how the wait of a request ended that was not served.
    pub(super) fn unserved(&self) -> WaitOutcome {
        let unserved = self.unserved.get().copied();
        unserved.unwrap_or(WaitOutcome::Cancelled)
    }

    /// Returns the outcome, if there is one. Otherwise registers `waker` as the one to call: the waiter was polled.
    pub(super) fn take(&self, waker: &Waker) -> Option<Result<Allocations, AllocError>> {
        let outcome = self.register_or(waker, |state| std::mem::replace(state, WaiterState::Gone));
        match outcome? {
            WaiterState::Granted(found) => Some(Ok(found)),
            WaiterState::Failed(error) => Some(Err(error)),
            WaiterState::Waiting { .. } | WaiterState::Gone => None,
        }
    }

    /// Registers `waker` as the one to call: the waiter was polled. Returns whether it still waits.
    pub(super) fn register(&self, waker: &Waker) -> bool {
        self.register_or(waker, |_| ()).is_none()
    }

    /// Registers `waker`, or calls `end` with the lock held if the wait is over.
    #[inline]
    fn register_or<R>(&self, waker: &Waker, end: impl FnOnce(&mut WaiterState) -> R) -> Option<R> {
        let is_known =
            |last: &Option<Foreign<Waker>>| last.as_ref().is_some_and(|last| last.will_wake(waker));
        match &*self.state.lock() {
            WaiterState::Waiting { waker: last, .. } if is_known(last) => return None,
            _ => {}
        }
        // With no lock held: that calls foreign code. The waiter may be served meanwhile.
        let waker = Foreign::new(waker.clone());
        let mut state = self.state.lock_with_trash();
        let (state, trash) = state.parts();
        if let WaiterState::Waiting {
            waker: last,
            silent_since,
        } = state
        {
            *silent_since = None;
            trash.add(last.replace(waker));
            return None;
        }
        trash.add([waker]);
        Some(end(state))
    }

    /// Gives the wait up. Returns a grant that came in the meantime.
    pub(super) fn cancel(&self) -> Option<Allocations> {
        let last = std::mem::replace(&mut *self.state.lock(), WaiterState::Gone);
        match last {
            WaiterState::Granted(found) => Some(found),
            WaiterState::Waiting { waker, .. } => {
                waker.into_iter().for_each(Foreign::release);
                None
            }
            WaiterState::Failed(_) | WaiterState::Gone => None,
        }
    }

    /// Returns the waker to call for the waiter to look again, unless it was called already and the waiter has not been
    /// polled since: that call covers this one, or the waiter does not answer. A waker may therefore change the pool
    /// itself, without end or recursion.
    pub(super) fn notify(&self) -> Option<Waker> {
        match &mut *self.state.lock() {
            WaiterState::Waiting { waker, .. } => waker.take().map(Foreign::into_inner),
            _ => None,
        }
    }

    /// Returns since when the waiter is known to have been woken and not polled, if it is.
    pub(super) fn silent_since(&self, now: Duration) -> Option<Duration> {
        match &mut *self.state.lock() {
            WaiterState::Waiting {
                waker: None,
                silent_since,
            } => Some(*silent_since.get_or_insert(now)),
            _ => None,
        }
    }

    /// Sets the request aside, if the waiter has still not been polled. Returns whether it was.
    pub(super) fn set_aside(&self) -> bool {
        let state = self.state.lock();
        let is_silent = matches!(&*state, WaiterState::Waiting { waker: None, .. });
        // Under the lock: a poll comes before this, or sees it.
        self.is_aside.store(is_silent, Ordering::Release);
        is_silent
    }

    /// Returns whether the request was set aside.
    pub(super) fn is_aside(&self) -> bool {
        self.is_aside.load(Ordering::Acquire)
    }

    /// Returns whether a change to the pool's memory may let the request draw from its reservation.
    pub(super) fn expects_pieces(&self) -> bool {
        self.expects_pieces.load(Ordering::Acquire)
    }

    /// Set before each attempt to draw, so that a change during the attempt is heard.
    pub(super) fn expect_pieces(&self, expects: bool) {
        self.expects_pieces.store(expects, Ordering::Release);
    }

    /// Returns whether the request is in the quota queue.
    pub(super) fn is_throttled(&self) -> bool {
        self.is_throttled.load(Ordering::Acquire)
    }

    /// Notes that the request left the quota queue for the fair queue.
    pub(super) fn end_throttling(&self) {
        self.is_throttled.store(false, Ordering::Release);
        self.stall.reset();
    }

    /// Returns how many requests overtook this one, and with how many bytes.
    pub(super) fn passed(&self) -> (u64, u64) {
        let (times, bytes) = &self.passed;
        (times.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    pub(super) fn count_passed(&self, by: u64) {
        self.passed.0.fetch_add(1, Ordering::Relaxed);
        self.passed.1.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns whether a search at this generation and progress was in vain.
    pub(super) fn was_searched_at(&self, (generation, progress): (u64, u64)) -> bool {
        let (searched, searched_at) = &self.searched;
        searched.load(Ordering::Relaxed) == generation
            && searched_at.load(Ordering::Relaxed) == progress
    }

    /// Returns whether the device had refused memory when it was last searched for in vain.
    pub(super) fn was_refused(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed)
    }

    /// Notes that the bytes of a request that was not served are given back to its tag. Returns whether this is the
    /// first time.
    pub(super) fn mark_uncharged(&self) -> bool {
        !self.is_uncharged.swap(true, Ordering::AcqRel)
    }

    pub(super) fn record_searched(&self, (generation, progress): (u64, u64), is_refused: bool) {
        self.was_refused.store(is_refused, Ordering::Relaxed);
        let (searched, searched_at) = &self.searched;
        searched.store(generation, Ordering::Relaxed);
        searched_at.store(progress, Ordering::Relaxed);
    }

    /// Returns whether the request was granted. It may be gone since.
    pub(super) fn is_served(&self) -> bool {
        self.is_served.load(Ordering::Acquire)
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(&*self.state.lock(), WaiterState::Waiting { .. })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let waker = match self.state.get_mut() {
            WaiterState::Waiting { waker, .. } => waker.take(),
            _ => None,
        };
        waker.into_iter().for_each(Foreign::release);
    }
}

/// Returns the outcome of a wait that ends with an error.
pub(super) fn outcome_of(error: &AllocError) -> WaitOutcome {
    match error {
        AllocError::TimedOut { .. } => WaitOutcome::TimedOut,
        AllocError::Deadlocked(_) | AllocError::DeadlockedAtLimit { .. } => WaitOutcome::Deadlocked,
        AllocError::QueueFull(_) => WaitOutcome::Refused,
        _ => WaitOutcome::Failed,
    }
}

/// The owner does not watch for it.
const UNWATCHED: u8 = 0;
const WATCHED: u8 = 1;
/// Nothing could serve the request, and its owner was not told yet.
const STALLED: u8 = 2;
const TOLD: u8 = 3;

/// The stall of a waiting request, which is the head of the queue or the first at its tag's limit; see
/// [`Request::poll_stalled`](crate::Request::poll_stalled).
#[derive(Debug)]
pub(super) struct Stall(SharedState);

impl Stall {
    fn new() -> Self {
        Self(SharedState::new(UNWATCHED))
    }

    /// Has the owner told. Returns whether this is the first time.
    pub(super) fn watch(&self) -> bool {
        self.exchange(UNWATCHED, WATCHED)
    }

    pub(super) fn is_watched(&self) -> bool {
        self.0.load(Ordering::SeqCst) != UNWATCHED
    }

    /// Begins the stall. Returns whether the owner is to be woken.
    pub(super) fn begin(&self) -> bool {
        self.0.load(Ordering::SeqCst) == WATCHED && self.exchange(WATCHED, STALLED)
    }

    /// Returns whether the owner is to be told.
    pub(super) fn has_begun(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STALLED
    }

    /// Ends a stall of which the owner was not told. Returns whether there was one.
    pub(super) fn take(&self) -> bool {
        self.exchange(STALLED, WATCHED)
    }

    /// Notes that the owner is told.
    pub(super) fn mark_told(&self) {
        self.0.store(TOLD, Ordering::SeqCst);
    }

    /// Has the owner told again: the request enters the fair queue from a quota queue.
    pub(super) fn reset(&self) {
        if self.is_watched() {
            self.0.store(WATCHED, Ordering::SeqCst);
        }
    }

    fn exchange(&self, current: u8, new: u8) -> bool {
        let order = Ordering::SeqCst;
        self.0.compare_exchange(current, new, order, order).is_ok()
    }
}
