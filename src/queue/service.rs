//! The driver with its queue, and when the queue is served.

use super::deadlock::Deadlock;
use super::drain::Drains;
use super::grower::Grower;
use super::hook::Hooked;
use super::maintenance::Keeper;
use super::notifier::{Member, Notifier};
use super::observers::Observers;
use super::quota_deadlock::QuotaDeadlocks;
use super::reclaimer::Spawned;
use super::spawn;
use super::terms::{Rules, Terms};
use super::waiters::{Queue, Waiter};
use super::{Demand, Hook};
use crate::device::{Alarm, Device};
use crate::driver::{Change, Driver, Effort, Settings, Spill, Watches, gate};
use crate::error::{AllocError, BuildError, Shortfall, TagShortfall};
use crate::lane::Lane;
use crate::measure::Tag;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedFlag, SharedState, assert_unlocked, plain};
use crate::trace;
use std::task::Waker;
use std::time::Duration;

/// Nobody serves.
const IDLE: u8 = 0;
/// Somebody serves.
const SERVING: u8 = 1;
/// Somebody serves, and something has changed since it looked.
const AGAIN: u8 = 2;

/// The driver with its queue: all that the futures and the reclaimer share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) driver: Driver,
    pub(crate) queue: Queue,
    pub(crate) notifier: plain::Arc<Notifier>,
    /// By what rules they wait.
    pub(super) rules: Rules,
    /// What is known of a queue that nothing moves in.
    pub(super) deadlock: Deadlock,
    /// The same of the doors of tags.
    pub(super) quota_deadlocks: QuotaDeadlocks,
    /// Who is told of blocks' lives, if anybody is.
    pub(crate) observers: Option<plain::Arc<Observers>>,
    serving: SharedState,
    /// What rings the notifier when a stream gets further. Changed by who serves, and nobody else: two
    /// that looked at different times would undo each other's watches.
    watches: Mutex<Watches>,
    pub(super) grower: Grower,
    /// Who does the maintenance, until the last handle is gone.
    pub(super) keeper: Mutex<Option<plain::Arc<Keeper>>>,
    /// Rings while the device refuses what somebody waits for.
    retry: Mutex<Option<Alarm>>,
    /// The reclaimer that was spawned for those who wait now.
    spawned: Mutex<Option<Spawned>>,
    is_orphaned: SharedFlag,
    /// Who waits until everything came back.
    pub(super) drains: Drains,
    /// Who is asked to free something.
    pub(super) hooked: Hooked,
}

impl Service {
    /// # Errors
    /// As [`Driver::new`].
    pub(crate) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        spill: Spill,
        rules: Rules,
        hook: Option<Hook>,
    ) -> Result<Self, BuildError> {
        let notifier = plain::Arc::new(Notifier::new());
        let driver = Driver::new(device, settings, spill, notifier.clone())?;
        Ok(Self {
            rules,
            deadlock: Deadlock::new(),
            quota_deadlocks: QuotaDeadlocks::new(),
            observers: Observers::of(&driver),
            queue: Queue::new(&rules, notifier.clone(), driver.waits.clone()),
            notifier,
            driver,
            serving: SharedState::new(IDLE),
            watches: Mutex::new(Guards::Queue, Watches::new()),
            grower: Grower::new(),
            keeper: Mutex::new(Guards::Queue, None),
            retry: Mutex::new(Guards::Queue, None),
            spawned: Mutex::new(Guards::Queue, None),
            is_orphaned: SharedFlag::new(false),
            drains: Drains::new(),
            hooked: Hooked::new(hook),
        })
    }

    /// Serves the queue as far as it goes, without memory calls where they block. One thread at a
    /// time: another leaves a note, and the one that serves looks again.
    pub(crate) fn serve(this: &Arc<Self>) {
        if this.serving.swap(AGAIN, Ordering::AcqRel) == IDLE {
            Self::serve_until_done(this, Effort::Poll);
        }
    }

    /// The same with memory calls, for a thread of its own. Says whether it served: a note would have
    /// been read by one that may not make the calls.
    pub(super) fn try_serve_fully(this: &Arc<Self>) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let taken = this
            .serving
            .compare_exchange(IDLE, SERVING, success, failure);
        if taken.is_ok() {
            Self::serve_until_done(this, Effort::Thread);
        }
        taken.is_ok()
    }

    fn serve_until_done(this: &Arc<Self>, effort: Effort) {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let reset = ResetOnPanic(this);
        loop {
            this.serving.swap(SERVING, Ordering::AcqRel);
            Self::serve_once(this, effort);
            this.set_watches();
            let done = this
                .serving
                .compare_exchange(SERVING, IDLE, success, failure);
            if done.is_ok() {
                // Another may serve by now: nothing is to be reset, even if this thread unwinds.
                return std::mem::forget(reset);
            }
        }
    }

    /// Watches streams while a request waits or a drain is under way. Otherwise no stream is watched, and a reclaimer
    /// that was spawned for the waiters is dismissed.
    fn set_watches(&self) {
        // Out of the lock: a watch may call at once.
        let mut watches = std::mem::take(&mut *self.watches.lock());
        let is_awaited = !self.queue.is_empty();
        if !is_awaited {
            self.dismiss_reclaimer();
        }
        self.set_retry(is_awaited && self.driver.pressure.is_felt());
        let is_watched = is_awaited || self.driver.is_draining();
        if !is_watched {
            return drop(watches);
        }
        let waker = Waker::from(self.notifier.clone());
        self.driver.watch_streams(&mut watches, &waker);
        *self.watches.lock() = watches;
    }

    /// Others have memory that somebody waits for, and cannot tell when they let go: the device is asked
    /// again after a while.
    fn set_retry(&self, is_due: bool) {
        let alarm = is_due.then(|| {
            let now = self.driver.device.now();
            self.notify_at(now.saturating_add(self.driver.maintenance.interval()))
        });
        let old = std::mem::replace(&mut *self.retry.lock(), alarm);
        drop(old);
    }

    fn dismiss_reclaimer(&self) {
        let spawned = self.spawned.lock().take();
        if let Some(waker) = spawned.and_then(|spawned| spawned.dismiss(self)) {
            assert_unlocked("wake");
            waker.wake();
        }
    }

    /// A waiter came: on a runtime, a reclaimer drives for it. The waiter drives as well whenever it is
    /// woken, so nothing rests on the runtime.
    pub(super) fn ensure_reclaimer(this: &Arc<Self>) {
        if this.spawned.lock().is_some() {
            return;
        }
        if let Some(spawned) = spawn::reclaimer(this) {
            let other = this.spawned.lock().replace(spawned);
            drop(other.and_then(|other| other.dismiss(this)));
        }
    }

    /// A waiter is gone. If that makes way for others they are served here and now: whom else it would be left to may
    /// never be polled again. The same, if it was woken to serve, and did not. After the last, nothing is
    /// watched any more.
    pub(super) fn see_off(this: &Arc<Self>, waiter: &Waiter, spills: bool) {
        let notifier = &this.notifier;
        drop(notifier.resign(Member::Waiter(waiter.sort_key.position)));
        drop(notifier.resign(Member::Held(waiter.sort_key.position)));
        if let Some(tag) = waiter.demand.tag {
            this.forget_throttled(tag);
        }
        if spills || notifier.is_unanswered() || this.queue.is_empty() {
            Self::serve(this);
        }
        this.tell_drains();
    }

    /// Publishes a change to memory or to a stream's order, if any request or drain can wait for it.
    pub(crate) fn publish(&self, change: Change) {
        match change {
            // The caller served the queue. Throttled requests look for themselves.
            Change::Terms => self.notifier.notify_throttled(),
            _ => self.driver.publish(change),
        }
    }

    /// Somebody left the queue.
    pub(super) fn tell_drains(&self) {
        if self.driver.is_draining() {
            self.notifier.notify_drains();
        }
    }

    /// No more grants; who waits fails. Says whether this is the first time.
    pub(crate) fn close(this: &Arc<Self>) -> bool {
        let before = this.driver.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
        let is_first = before & gate::CLOSED == 0;
        if is_first {
            trace::closed();
        }
        this.hooked.end();
        Self::serve(this);
        this.publish(Change::Terms);
        is_first
    }

    /// How long a plain request for so many bytes would wait that came now, as far as can be told.
    pub(crate) fn expected_wait(&self, bytes: u64) -> Option<Duration> {
        let now = self.driver.device.now();
        let due = Terms::default().due(now, &self.rules);
        self.queue.expected_wait(bytes, due, now)
    }

    /// Why nothing can be granted at all, if so.
    pub(crate) fn refusal(&self) -> Option<AllocError> {
        if self.driver.is_closed() {
            return Some(AllocError::Closed);
        }
        self.driver.fault().map(AllocError::Device)
    }

    /// A request failed for want of memory: how that stood.
    pub(crate) fn exhausted(&self, lane: &Lane, demand: &Demand) -> Shortfall {
        let shortfall = self.shortfall(demand);
        trace::exhausted(&shortfall);
        self.driver.write_exhausted(lane.id, shortfall);
        shortfall
    }

    pub(super) fn shortfall(&self, demand: &Demand) -> Shortfall {
        let waiting = self.queue.waiting();
        let shortfall = self.driver.shortfall(demand.request, waiting);
        Shortfall {
            tag: demand.tag.and_then(|tag| self.shortfall_of(tag)),
            ..shortfall
        }
    }

    fn shortfall_of(&self, tag: Tag) -> Option<TagShortfall> {
        let account = self.queue.accounts.of(tag);
        Some(TagShortfall {
            tag,
            used: account.charged(),
            limit: account.limit()?,
        })
    }

    /// The last handle is gone: a reclaimer that was made to last ends.
    pub(super) fn orphan(&self) {
        self.is_orphaned.store(true, Ordering::Release);
        self.notifier.notify();
        self.end_maintenance();
    }

    pub(super) fn is_orphaned(&self) -> bool {
        self.is_orphaned.load(Ordering::Acquire)
    }
}

/// If serving panics (a waker of a user's may), others serve again: what was answered is not served.
struct ResetOnPanic<'a>(&'a Service);

impl Drop for ResetOnPanic<'_> {
    fn drop(&mut self) {
        self.0.notifier.take_back_answer();
        self.0.serving.swap(IDLE, Ordering::AcqRel);
    }
}
