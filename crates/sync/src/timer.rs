//! The timer of a pool: all its deadlines, on the device's clock, behind one alarm of the device.
//!
//! The maintenance, the stand-in, the next look at the queue, and each wait with a limit have a [`Deadline`]. The alarm
//! is set to the first of them. The device calls it whatever becomes of runtimes and executors, so none of them loses a
//! deadline.

use crate::{Foreign, ForeignOption, Guards, Mutex, Ordering, SharedFlag, assert_unlocked, plain};
use std::collections::{BTreeMap, BTreeSet};
use std::task::{Wake, Waker};
use std::time::Duration;
use weirpool_device::{AlarmId, Device};

/// The deadlines of a pool, behind one alarm of the device.
#[derive(Debug)]
pub struct Timer {
    device: plain::Arc<dyn Device>,
    deadlines: Mutex<Deadlines>,
}

#[derive(Debug, Default)]
struct Deadlines {
    /// The times of the deadlines that are set, by number.
    times: BTreeMap<u64, Duration>,
    /// Their wakers, by time.
    wakers: BTreeMap<(Duration, u64), Foreign<Waker>>,
    /// The number of deadlines so far.
    count: u64,
    alarm: Option<AlarmId>,
    /// The time that the alarm is set to, or that a thread sets it to now.
    alarm_at: Option<Duration>,
    /// How often the alarm was set.
    turn: u64,
    /// Calls of the device under way that set the alarm.
    setting: u64,
    /// The alarm went off inside such a call, before its time: the device cannot keep the time.
    is_early: bool,
    /// The deadlines that tasks look at themselves when they are polled.
    of_tasks: BTreeSet<u64>,
}

impl Deadlines {
    fn remove(&mut self, number: u64) -> Option<Foreign<Waker>> {
        let at = self.times.remove(&number)?;
        self.of_tasks.remove(&number);
        self.wakers.remove(&(at, number))
    }
}

impl Timer {
    /// Creates a timer on the clock of this device.
    pub fn new(device: plain::Arc<dyn Device>) -> plain::Arc<Self> {
        let deadlines = Mutex::new(Guards::Registry, Deadlines::default());
        plain::Arc::new(Self { device, deadlines })
    }

    /// Creates a deadline that is not set. Its task looks at the time itself when it is polled, or is the pool.
    pub fn deadline(self: &plain::Arc<Self>, is_of_task: bool) -> Deadline {
        let (timer, mut deadlines) = (self.clone(), self.deadlines.lock());
        deadlines.count += 1;
        let number = deadlines.count;
        Deadline {
            timer,
            number,
            is_of_task,
        }
    }

    /// Changes the deadlines, and sets the alarm to the first one. Where the device cannot keep the time, the tasks that look at
    /// it themselves are called at once, until their time has come. The pool's own deadlines are left to their polls.
    fn change<R>(self: &plain::Arc<Self>, change: impl FnOnce(&mut Deadlines) -> R) -> R {
        let mut deadlines = self.deadlines.lock();
        let changed = change(&mut deadlines);
        let first = deadlines.wakers.keys().next().map(|(at, _)| *at);
        if first == deadlines.alarm_at {
            return changed;
        }
        deadlines.alarm_at = first;
        deadlines.turn += 1;
        deadlines.setting += 1;
        let turn = deadlines.turn;
        drop(deadlines);
        assert_unlocked("set_alarm");
        // It may go off at once.
        let set = |at| self.device.set_alarm(at, &Waker::from(self.clone()));
        let mut alarm = first.map(set);
        let mut deadlines = self.deadlines.lock();
        deadlines.setting -= 1;
        if deadlines.turn == turn {
            std::mem::swap(&mut deadlines.alarm, &mut alarm);
        }
        let mut early = Vec::new();
        if std::mem::take(&mut deadlines.is_early) {
            deadlines.alarm_at = None;
            let tasks = std::mem::take(&mut deadlines.of_tasks);
            early.extend(tasks.iter().filter_map(|number| deadlines.remove(*number)));
        }
        drop(deadlines);
        if let Some(unneeded) = alarm {
            self.device.cancel_alarm(unneeded);
        }
        plain::wake_all(early.into_iter().map(Foreign::into_inner));
        changed
    }
}

/// For the device's alarm.
impl Wake for Timer {
    fn wake(self: plain::Arc<Self>) {
        let now = self.device.now();
        {
            let mut deadlines = self.deadlines.lock();
            let is_due = deadlines
                .wakers
                .keys()
                .next()
                .is_some_and(|(at, _)| *at <= now);
            if deadlines.setting > 0 && !is_due {
                deadlines.is_early = true;
                return;
            }
        }
        let due = self.change(|deadlines| {
            deadlines.alarm_at = None;
            let later = deadlines.wakers.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut deadlines.wakers, later);
            for (_, number) in due.keys() {
                deadlines.times.remove(number);
                deadlines.of_tasks.remove(number);
            }
            due
        });
        plain::wake_all(due.into_values().map(Foreign::into_inner));
    }
}

/// A time at which the timer calls a waker, unless it is not set. Dropping it takes it back.
#[derive(Debug)]
pub struct Deadline {
    timer: plain::Arc<Timer>,
    number: u64,
    is_of_task: bool,
}

impl Deadline {
    /// Calls the waker once at that time or soon after, and no waker at the time that was set before.
    pub fn set(&self, call: Option<(Duration, Waker)>) {
        let former = self.timer.change(|deadlines| {
            let former = deadlines.remove(self.number);
            if let Some((at, waker)) = call {
                if self.is_of_task {
                    deadlines.of_tasks.insert(self.number);
                }
                deadlines.times.insert(self.number, at);
                let waker = Foreign::new(waker);
                deadlines.wakers.insert((at, self.number), waker);
            }
            former
        });
        former.into_iter().for_each(Foreign::release);
    }

    /// Returns whether that time has come. Otherwise the waker is called then.
    pub fn has_come(&self, at: Duration, waker: &Waker) -> bool {
        let has_come = self.timer.device.now() >= at;
        if !has_come {
            self.set(Some((at, waker.clone())));
        }
        has_come
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// A call after some time, for which many ask: they get one together.
#[derive(Debug)]
pub struct DelayedCall {
    is_due: SharedFlag,
    /// The task that is called; none before the pool is complete, and after its last handle is gone.
    waker: ForeignOption<Waker>,
    deadline: Deadline,
}

impl DelayedCall {
    /// Creates a call that no task gets yet.
    pub fn new(timer: &plain::Arc<Timer>) -> Self {
        Self {
            is_due: SharedFlag::new(false),
            waker: ForeignOption::new(Guards::Registry, None),
            deadline: timer.deadline(false),
        }
    }

    /// Sets the waker; `None` takes the call back, and nothing is called from then on.
    pub fn set_waker(&self, waker: Option<Waker>) {
        if waker.is_none() {
            self.deadline.set(None);
        }
        self.waker.set(waker);
    }

    /// Returns the waker, if one is set.
    pub fn waker(&self) -> Option<Waker> {
        self.waker.read(|waker| waker.cloned())
    }

    /// Returns whether a caller has asked for the call, and it has not come.
    pub fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// Has the waker called after the time that `after` returns, unless it is due already or there is none. Calls `after`
    /// only if it does.
    pub fn ask(&self, after: impl FnOnce() -> Duration) {
        if self.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.waker() {
            Some(waker) => {
                let after = after();
                let now = self.deadline.timer.device.now();
                self.deadline.set(Some((now.saturating_add(after), waker)));
            }
            None => self.mark_called(),
        }
    }

    /// Notes that the call came: the next one can be asked for. Read and written: a caller that asked either found it
    /// unset, or is seen here.
    pub fn mark_called(&self) {
        self.is_due.swap(false, Ordering::AcqRel);
    }
}
