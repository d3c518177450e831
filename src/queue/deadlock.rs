//! Knots: those who wait hold what the others wait for.
//!
//! When the head of the queue cannot be served, nothing is pending, and no block is freed for a while, no work
//! of the device will bring memory back: every byte that the head lacks is held by somebody, and those may be
//! waiting themselves. Then whoever can be served is, in the order of the queue: a holder that asks for a
//! little while the head asks for much goes on, and frees in the end. If nobody can be served, the queue is
//! *knotted*: that is told, and after a time, if the pool has one, the head fails, so that what its task holds
//! comes free. To reserve all that a request needs up front avoids it.

use super::serving::Served;
use super::waiters::Waiter;
use super::{Position, Service, Wants};
use crate::device::Alarm;
use crate::driver::Effort;
use crate::error::AllocError;
use crate::measure::Tag;
use crate::sync::{Arc, Guards, Mutex};
use crate::trace;
use std::task::Waker;
use std::time::Duration;

/// How many holders are named in a warning.
const NAMED: usize = 16;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Deadlock(Mutex<Option<Tied>>);

/// A queue in which nothing moves.
#[derive(Debug)]
struct Tied {
    head: Position,
    /// Blocks given back so far: who frees, also to a reservation, changes it.
    returns: u64,
    since: Duration,
    is_told: bool,
    /// Rings when there is something to be done about it.
    alarm: Option<Alarm>,
}

impl Deadlock {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Queue, None))
    }

    /// Something moved.
    pub(super) fn untie(&self) {
        let tied = self.0.lock().take();
        // The alarm's device is called: outside the lock.
        drop(tied);
    }

    /// Since when nothing moves, if that is so since the last look.
    fn since(&self, head: Position, returns: u64) -> Option<Duration> {
        let tied = self.0.lock();
        let tied = tied.as_ref()?;
        (tied.head == head && tied.returns == returns).then_some(tied.since)
    }

    fn tie(&self, tied: Tied) {
        let old = self.0.lock().replace(tied);
        drop(old);
    }

    /// To be told of it once.
    fn tell(&self) -> bool {
        let mut tied = self.0.lock();
        let is_told = tied
            .as_mut()
            .map(|tied| std::mem::replace(&mut tied.is_told, true));
        is_told == Some(false)
    }

    fn set_alarm(&self, alarm: Alarm) {
        let old = match &mut *self.0.lock() {
            Some(tied) => tied.alarm.replace(alarm),
            None => Some(alarm),
        };
        drop(old);
    }
}

impl Service {
    /// The head cannot be served, nor may anybody pass it: looks whether anything moves, and if nothing does
    /// for a while, serves whoever can be.
    pub(super) fn look_for_deadlock(&self, head: &Arc<Waiter>, effort: Effort) -> Served {
        let Some(returns) = self.driver.returns_if_quiet() else {
            self.deadlock.untie();
            return Served::Short;
        };
        let now = self.driver.device.now();
        let Some(since) = self.deadlock.since(head.sort_key.position, returns) else {
            let at = now.saturating_add(self.rules.deadlock_grace);
            self.deadlock.tie(Tied {
                head: head.sort_key.position,
                returns,
                since: now,
                is_told: false,
                alarm: Some(self.notify_at(at)),
            });
            return Served::Short;
        };
        if now < since.saturating_add(self.rules.deadlock_grace) {
            return Served::Short;
        }
        match self.serve_anybody(effort) {
            Served::Short if self.is_for_others() => Served::Short,
            Served::Short => self.report_deadlock(head, now, since),
            served => served,
        }
    }

    /// Serves the first who can be. What is free is complete, so that nobody is served who asks for a larger
    /// piece than one who was not, and whom any place would have done for.
    fn serve_anybody(&self, effort: Effort) -> Served {
        let mut too_much = u64::MAX;
        for waiter in self.queue.first(usize::MAX).iter().skip(1) {
            if waiter.wants.largest_piece(&waiter.demand) >= too_much {
                continue;
            }
            match self.serve_one(waiter, effort) {
                Served::Short if self.takes_any_place(waiter) => {
                    too_much = waiter.demand.request.bytes;
                }
                Served::Short => {}
                served => return served,
            }
        }
        Served::Short
    }

    /// Nobody holds anything here: others have what the device refuses, and may let go.
    fn is_for_others(&self) -> bool {
        self.driver.pressure.is_felt() && self.driver.totals().used.current == 0
    }

    fn takes_any_place(&self, waiter: &Waiter) -> bool {
        let usual = self.driver.settings.alignment;
        matches!(waiter.wants, Wants::Block) && waiter.demand.request.alignment <= usual
    }

    /// Nobody can be served.
    fn report_deadlock(&self, head: &Arc<Waiter>, now: Duration, since: Duration) -> Served {
        let limit = self.rules.deadlock_limit;
        let until = limit.map(|limit| since.saturating_add(limit.max(self.rules.deadlock_grace)));
        if self.deadlock.tell() {
            trace::deadlocked(&self.shortfall(&head.demand), || self.holders(None));
            if let Some(until) = until.filter(|until| now < *until) {
                self.deadlock.set_alarm(self.notify_at(until));
            }
        }
        if until.is_none_or(|until| now < until) {
            return Served::Short;
        }
        self.deadlock.untie();
        self.fail(
            head,
            AllocError::Deadlocked(self.shortfall(&head.demand).into()),
        );
        Served::Gone
    }

    /// Who holds what, the most first: by tag, and where a history is kept, by place. Of one tag, if one is meant.
    pub(super) fn holders(&self, of: Option<Tag>) -> String {
        let accounts = self.queue.accounts.iter();
        let accounts = accounts.filter(|(tag, _)| of.is_none_or(|of| of == *tag));
        let by_tag = accounts.map(|(tag, account)| (tag.to_string(), account.used().current));
        let by_place = self.driver.held_by_place(of);
        let mut holders: Vec<_> = by_tag.chain(by_place).collect();
        holders.retain(|(_, bytes)| *bytes > 0);
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let most = holders.iter().take(NAMED);
        let lines = most.map(|(holder, bytes)| format!("{holder}: {bytes} bytes"));
        lines.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn notify_at(&self, at: Duration) -> Alarm {
        let waker = Waker::from(self.notifier.clone());
        Alarm::new(&self.driver.device, at, &waker)
    }
}
