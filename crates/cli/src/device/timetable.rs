//! Time on a real device: operations come at the trace's pace, or as fast as the host goes.
//!
//! The thread never sleeps, but polls: the system wakes a sleeping thread some 50 us late, which is the time between
//! two operations of a trace.
//!
//! At full speed, time goes from one operation to the next in the trace's order, on whichever stream: so the same
//! memory is in use at the same point of the trace. Time stands still while a task waits for memory that may come by
//! itself, such as memory that is being taken from the device. At the capacity, the memory may be freed only by a later
//! operation: then time goes on after a quiet while.

use super::machine::{Hope, Time};
use crate::options::{Pace, Policy};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The longest times without a sign of progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// With a task that waits for memory, at full speed, before time goes on.
    pub(crate) quiet: Duration,
    /// With a task that waits for memory, once no operation is due.
    pub(crate) deadlock: Duration,
    /// With no task that waits for memory.
    pub(crate) lost: Duration,
}

impl Limits {
    /// Returns the limits on a real device.
    fn of(policy: &Policy) -> Self {
        let policy = &policy.conditions;
        // A stream that runs behind gives memory back later.
        let behind = policy.lag.saturating_mul(2);
        let quiet = match policy.capacity {
            // A thread that grows the pool starts within 0.1 ms, and its calls are seen.
            Some(_) => Duration::from_millis(10),
            // No free is needed: the memory always comes.
            None => Duration::from_secs(10),
        };
        Self {
            quiet: quiet.saturating_add(behind),
            deadlock: Duration::from_secs(1).saturating_add(behind),
            lost: Duration::from_secs(60).saturating_add(behind),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Timetable {
    pace: Pace,
    limits: Limits,
    began: Cell<Instant>,
    /// The time, at full speed.
    reached: Cell<Duration>,
    sleepers: RefCell<Sleepers>,
    /// The latest signs of memory on its way, and when they were new.
    hope: Cell<Option<(Hope, Instant)>>,
    /// The moment since which no operation is due and no task has gone to sleep.
    idle: Cell<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Sleepers {
    numbered: u64,
    /// The wakers, by the time at which each is due and by number.
    wakers: BTreeMap<(Duration, u64), Waker>,
}

impl Hope {
    /// Returns whether a memory call has begun and not ended.
    fn is_calling(self) -> bool {
        self.calls.begun != self.calls.ended
    }
}

impl Timetable {
    pub(crate) fn new(pace: Pace, policy: &Policy) -> Self {
        Self::with_limits(pace, Limits::of(policy))
    }

    pub(crate) fn with_limits(pace: Pace, limits: Limits) -> Self {
        Self {
            pace,
            limits,
            began: Cell::new(Instant::now()),
            reached: Cell::default(),
            sleepers: RefCell::default(),
            hope: Cell::default(),
            idle: Cell::default(),
        }
    }

    /// Returns whether memory may still come: a call for it has begun, or its signs changed within `patience`.
    fn may_come(&self, hope: Hope, patience: Duration) -> bool {
        match self.hope.get() {
            Some((known, since)) if known == hope => {
                hope.is_calling() || since.elapsed() < patience
            }
            _ => {
                self.hope.set(Some((hope, Instant::now())));
                true
            }
        }
    }

    /// Wakes all tasks that are due. Returns whether there was one.
    fn wake_due(&self) -> bool {
        let now = self.now();
        let mut has_due = false;
        while let Some(waker) = self.take_due(now) {
            has_due = true;
            // The waker may poll, and the poll borrows again: no borrow is held here.
            waker.wake();
        }
        has_due
    }

    fn take_due(&self, now: Duration) -> Option<Waker> {
        let mut sleepers = self.sleepers.borrow_mut();
        let first = sleepers.wakers.first_entry()?;
        let (at, _) = *first.key();
        (at <= now).then(|| first.remove())
    }

    /// Returns the time at which the next task is due.
    fn next(&self) -> Option<Duration> {
        let sleepers = self.sleepers.borrow();
        sleepers.wakers.keys().next().map(|(at, _)| *at)
    }

    fn jump_to_next(&self) -> bool {
        self.reached.set(self.next().unwrap_or(self.now()));
        self.wake_due()
    }

    /// Returns whether the device may still make a task go on, with no operation due and no task that waits for memory.
    fn may_do_something(&self) -> bool {
        let since = self.idle.get().unwrap_or_else(Instant::now);
        self.idle.set(Some(since));
        since.elapsed() < self.limits.lost
    }
}

impl Time for Timetable {
    fn start(&self) {
        self.began.set(Instant::now());
    }

    fn now(&self) -> Duration {
        match self.pace {
            Pace::Trace => self.began.get().elapsed(),
            Pace::Full => self.reached.get(),
        }
    }

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()> {
        self.idle.set(None);
        Sleep {
            timetable: self,
            at,
            number: None,
        }
    }

    fn pass(&self, hope: Option<Hope>) -> bool {
        std::hint::spin_loop();
        let Limits {
            quiet, deadlock, ..
        } = self.limits;
        let goes_on = match self.pace {
            Pace::Trace => self.wake_due() || self.next().is_some(),
            Pace::Full => {
                hope.is_some_and(|hope| self.may_come(hope, quiet)) || self.jump_to_next()
            }
        };
        goes_on
            || match hope {
                Some(hope) => self.may_come(hope, deadlock),
                None => self.may_do_something(),
            }
    }
}

/// The future of [`Timetable::sleep_until`].
struct Sleep<'a> {
    timetable: &'a Timetable,
    at: Duration,
    number: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.timetable.now() >= self.at {
            return Poll::Ready(());
        }
        let mut sleepers = self.timetable.sleepers.borrow_mut();
        sleepers.numbered += 1;
        let newest = sleepers.numbered;
        let number = *self.number.get_or_insert(newest);
        let waker = context.waker().clone();
        sleepers.wakers.insert((self.at, number), waker);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut sleepers = self.timetable.sleepers.borrow_mut();
            sleepers.wakers.remove(&(self.at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::machine::MemoryCalls;
    use crate::options::Replay;
    use clap::Parser;
    use futures::executor::LocalPool;
    use futures::task::LocalSpawnExt;
    use std::rc::Rc;

    const AGES: Duration = Duration::from_secs(3600);

    /// Gives up at once, but for memory at full speed.
    const HASTE: Limits = Limits {
        quiet: AGES,
        deadlock: Duration::ZERO,
        lost: Duration::ZERO,
    };

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Makes one task sleep until each time, and returns the times at which they woke, in that order.
    fn woken(pace: Pace, times: &[Duration]) -> Vec<(Duration, Duration)> {
        let timetable = Rc::new(Timetable::with_limits(pace, HASTE));
        let woken = Rc::new(RefCell::new(Vec::new()));
        let mut executor = LocalPool::new();
        for at in times.iter().copied() {
            let (timetable, woken) = (timetable.clone(), woken.clone());
            let task = async move {
                timetable.sleep_until(at).await;
                woken.borrow_mut().push((at, timetable.now()));
            };
            executor.spawner().spawn_local(task).unwrap();
        }
        timetable.start();
        while woken.borrow().len() < times.len() {
            executor.run_until_stalled();
            timetable.pass(None);
        }
        woken.take()
    }

    #[test]
    fn full_speed_goes_from_one_operation_to_the_next_in_order() {
        let far = AGES * 1000;
        let woken = woken(Pace::Full, &[far, milliseconds(2), Duration::ZERO, far]);
        let expected = [Duration::ZERO, milliseconds(2), far, far].map(|at| (at, at));
        assert_eq!(woken, expected);
    }

    #[test]
    fn trace_pace_wakes_no_task_too_early() {
        let times = [milliseconds(6), milliseconds(3), Duration::ZERO];
        let woken = woken(Pace::Trace, &times);
        assert!(woken.iter().all(|(at, now)| now >= at), "{woken:?}");
        let order: Vec<_> = woken.iter().map(|(at, _)| *at).collect();
        assert_eq!(order, [Duration::ZERO, milliseconds(3), milliseconds(6)]);
    }

    #[test]
    fn dropped_sleep_is_forgotten() {
        let timetable = Timetable::with_limits(Pace::Full, HASTE);
        let mut sleep = Box::pin(timetable.sleep_until(AGES));
        let mut context = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        drop(sleep);
        assert!(!timetable.pass(None));
        assert_eq!(timetable.now(), Duration::ZERO);
    }

    /// Passes these hopes to a timetable at full speed with a sleeper, and returns whether time stood still at each.
    fn stood_still(quiet: Duration, hopes: &[Hope]) -> Vec<bool> {
        let timetable = Timetable::with_limits(Pace::Full, Limits { quiet, ..HASTE });
        let mut sleep = Box::pin(timetable.sleep_until(milliseconds(1)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        let mut stood_still = Vec::new();
        for hope in hopes {
            timetable.pass(Some(*hope));
            stood_still.push(timetable.now() == Duration::ZERO);
        }
        stood_still
    }

    fn hope(signs: u64, begun: u64, ended: u64) -> Hope {
        let calls = MemoryCalls { begun, ended };
        Hope { signs, calls }
    }

    #[test]
    fn time_stands_still_while_memory_may_come() {
        let same = [hope(1, 5, 5), hope(1, 5, 5)];
        assert_eq!(stood_still(AGES, &same), [true, true], "not quiet yet");
        assert_eq!(stood_still(Duration::ZERO, &same), [true, false], "quiet");
        let calling = [hope(1, 6, 5), hope(1, 6, 5), hope(1, 6, 6), hope(1, 6, 6)];
        let stood = stood_still(Duration::ZERO, &calling);
        assert_eq!(stood, [true, true, true, false], "a call is on its way");
        let newer = [hope(1, 0, 0), hope(2, 0, 0)];
        assert_eq!(stood_still(Duration::ZERO, &newer), [true, true]);
    }

    /// Returns how long a timetable under these options stands still for a waiting task.
    fn quiet(arguments: &[&str]) -> Duration {
        let options = Replay::parse_from([&["replay"], arguments].concat());
        let timetable = Timetable::new(Pace::Full, &options.policy);
        timetable.limits.quiet
    }

    #[test]
    fn time_stands_still_longer_without_a_capacity() {
        assert!(quiet(&[]) > quiet(&["--capacity=1GB"]) * 100);
        let behind = quiet(&["--capacity=1GB", "--lag=30ms"]);
        assert!(behind > quiet(&["--capacity=1GB"]) + milliseconds(30));
        assert!(quiet(&["--lag=1h"]) > AGES);
    }

    #[test]
    fn timetable_without_a_sleeper_tells_when_it_gives_up() {
        for pace in [Pace::Trace, Pace::Full] {
            let quiet = Duration::ZERO;
            let passes = |limits, hope| {
                let timetable = Timetable::with_limits(pace, Limits { quiet, ..limits });
                // The first hope is always new.
                timetable.pass(hope);
                timetable.pass(hope)
            };
            let (deadlock, lost) = (AGES, AGES);
            assert!(!passes(HASTE, None));
            assert!(passes(Limits { lost, ..HASTE }, None));
            assert!(!passes(Limits { lost, ..HASTE }, Some(hope(1, 2, 2))));
            assert!(passes(Limits { deadlock, ..HASTE }, Some(hope(1, 2, 2))));
            assert!(passes(HASTE, Some(hope(1, 3, 2))), "a call is on its way");
        }
    }
}
