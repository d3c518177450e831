//! The helper thread that moves time when no executor of the device does.
//!
//! The thread starts when an event is first watched, or an alarm first set, while something is due. It is parked while
//! nothing is watched and no alarm is set.
//!
//! - On the virtual clock it waits for a quiet period without device calls. Then it moves to the next thing due, again
//!   and again until a task is woken. An alarm is a deadline of a task, and a busy host would miss it for no reason. So
//!   time moves to an alarm only after a longer quiet period, or once as much real time has passed.
//! - On the wall clock it sleeps until the next thing is due, as [precisely](sleep_precisely) as the system can.
//!
//! The thread does not keep the device alive, and ends with it. It runs in the engine. This file defines its states and
//! how long it rests, and does not know the device.

use std::time::{Duration, Instant};
use weirpool_device::plain::{Condvar, Mutex};

/// The real time without device calls before virtual time moves. Long enough for a woken task to make its next call,
/// short compared with a scheduler's time slice.
pub(super) const QUIET: Duration = Duration::from_micros(60);

/// After this many periods with calls, time moves nevertheless, because a task may be polling until time moves.
const PATIENCE: u32 = 20;

/// The real time without device calls before time moves to an alarm that is at least this far away. Long compared with
/// a scheduler's time slice, so that every runnable thread has run.
const LONG_QUIET: Duration = Duration::from_millis(10);

/// Has the timed sleeps of this thread end on time. Linux ends them up to 50 us late otherwise, to save wake-ups: several
/// kernels late.
pub(super) fn sleep_precisely() {
    #[cfg(target_os = "linux")]
    {
        // A system that refuses keeps its own slack.
        let least = std::num::NonZeroU64::MIN;
        let _ = rustix::thread::set_current_timer_slack(Some(least));
    }
}

/// The state of the thread. Written under the device's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Never started.
    Absent,
    /// Asleep until it is notified.
    Parked,
    /// Asleep until this time of the device's clock, or until it is notified.
    Until(Duration),
    /// About to look at the device by itself.
    Awake,
}

/// What a thread that releases the lock has to do for the helper thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without it the helper thread sleeps on"]
pub(super) enum Action {
    Start,
    Notify,
}

/// How long the thread rests unless it is notified; `None` is until it is notified.
pub(super) type Rest = Option<Duration>;

/// Tells quiet periods from activity.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    seen: u64,
    disturbed: u32,
    alarm: Option<Awaited>,
}

/// The alarm that time moves to next.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    at: Duration,
    /// When it became the next thing due.
    since: Instant,
    /// When a call was last seen.
    called: Instant,
}

impl Quiet {
    pub(super) fn has_come(&mut self, activity: u64) -> bool {
        self.alarm = None;
        if self.seen == activity || self.disturbed == PATIENCE {
            self.disturbed = 0;
            return true;
        }
        self.seen = activity;
        self.disturbed += 1;
        false
    }

    /// Returns whether time may move to an alarm at `at`, which is `gap` away.
    pub(super) fn has_come_for(
        &mut self,
        (at, gap): (Duration, Duration),
        activity: u64,
        now: Instant,
    ) -> bool {
        let known = self.alarm.filter(|alarm| alarm.at == at);
        let mut alarm = known.unwrap_or(Awaited {
            at,
            since: now,
            called: now,
        });
        if self.seen != activity {
            (self.seen, alarm.called) = (activity, now);
        }
        self.alarm = Some(alarm);
        now - alarm.called >= gap.min(LONG_QUIET) || now - alarm.since >= gap
    }
}

/// Wakes the helper thread.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    signal: Mutex<Option<Signal>>,
    changed: Condvar,
    /// The waker of the task that stands in for the thread, if one does.
    #[cfg(feature = "tokio")]
    task: futures_util::task::AtomicWaker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Look at the device, or the time for it has come.
    Look,
    /// The device is gone.
    Closed,
}

impl Notifier {
    pub(super) fn notify(&self) {
        self.signal.lock().get_or_insert(Signal::Look);
        self.wake();
    }

    pub(super) fn close(&self) {
        *self.signal.lock() = Some(Signal::Closed);
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_one();
        #[cfg(feature = "tokio")]
        self.task.wake();
    }

    /// Rests as [`rest`](Self::rest), in a task on tokio's clock.
    #[cfg(feature = "tokio")]
    pub(super) async fn rest_on_tokio(&self, rest: Rest) -> Signal {
        use futures_util::future::{Either, pending, select};
        use std::pin::pin;
        use std::task::Poll;

        let notified = pin!(std::future::poll_fn(|context| {
            self.task.register(context.waker());
            self.signal.lock().take().map_or(Poll::Pending, Poll::Ready)
        }));
        let over = pin!(async {
            match rest {
                Some(rest) => tokio::time::sleep(rest).await,
                None => pending().await,
            }
        });
        match select(notified, over).await {
            Either::Left((signal, _)) => signal,
            Either::Right(_) => Signal::Look,
        }
    }

    /// Rests. A notification that came before ends the rest at once.
    pub(super) fn rest(&self, rest: Rest) -> Signal {
        let signal = self.signal.lock();
        let quiet = |signal: &mut Option<Signal>| signal.is_none();
        let mut signal = match rest {
            None => self
                .changed
                .wait_while(signal, quiet)
                .unwrap_or_else(|poison| poison.into_inner()),
            Some(limit) => {
                self.changed
                    .wait_timeout_while(signal, limit, quiet)
                    .unwrap_or_else(|poison| poison.into_inner())
                    .0
            }
        };
        signal.take().unwrap_or(Signal::Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use weirpool_device::plain::thread;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the first of several looks, one each millisecond, at which time may move to an alarm. `calls` is the
    /// number of device calls by each look.
    fn first_move(gap: Duration, calls: impl Fn(u32) -> u64) -> Option<u32> {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        (0..100).find(|at| quiet.has_come_for((5 * gap, gap), calls(*at), start + *at * MS))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn thread_that_sleeps_precisely_has_the_least_slack() {
        let slack = thread::spawn(|| {
            sleep_precisely();
            rustix::thread::current_timer_slack()
        });
        assert_eq!(slack.join().expect("no panic"), Ok(1));
    }

    #[test]
    fn alarm_waits_for_a_longer_quiet_period() {
        assert_eq!(first_move(Duration::from_secs(2), |_| 0), Some(10));
        assert_eq!(
            first_move(Duration::from_secs(2), |at| u64::from(at.min(7))),
            Some(17)
        );
        assert_eq!(first_move(3 * MS, |_| 0), Some(3));
        assert_eq!(first_move(Duration::ZERO, u64::from), Some(0));
    }

    #[test]
    fn alarm_comes_in_real_time_while_calls_are_made() {
        assert_eq!(first_move(Duration::from_secs(2), u64::from), None);
        assert_eq!(first_move(50 * MS, u64::from), Some(50));
    }

    #[test]
    fn wait_for_an_alarm_restarts_after_work_and_after_another_alarm() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        let mut look =
            |at: u32, ms: u32| quiet.has_come_for((at * MS, at * MS), 1, start + ms * MS);
        assert!(!look(90, 0) && !look(90, 9) && !look(80, 9) && !look(80, 18));
        assert!(look(80, 19));
        quiet.has_come(1);
        assert!(!quiet.has_come_for((80 * MS, 80 * MS), 1, start + 20 * MS));
    }
}
