//! The helper thread that moves time where no executor of the device's own does.
//!
//! It starts when an event is first watched, or an alarm set, and something is due; it is parked
//! whenever nobody watches. On the virtual clock it waits for a quiet period, without a device
//! call, and then moves to the next thing due, again and again until somebody is woken. An alarm is
//! another matter: it is somebody's deadline, and a host that is busy meanwhile would be late for no
//! reason. So time moves to it after a longer quiet, or when so much real time has gone by. On the wall
//! clock it sleeps until the next thing is due. It keeps no device alive, and ends with it.

use super::builder::Clock;
use super::engine::Engine;
use super::state::State;
use std::time::{Duration, Instant};
use weirpool_device::plain::{Arc, Condvar, Mutex, MutexGuard, Weak, thread};

/// So long must no device call be made before virtual time moves; real time. Long enough for a
/// woken task to make its next call, short against a scheduler's time slice.
const QUIET: Duration = Duration::from_micros(60);

/// After so many periods that were not quiet time moves nevertheless, since the calls may be those
/// of somebody who polls for it to move.
const PATIENCE: u32 = 20;

/// So long must none be made before it moves to an alarm that is as far away, or further: long against a
/// scheduler's time slice, so that who can run has run.
const LONG_QUIET: Duration = Duration::from_millis(10);

/// What the thread is at; written under the device's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Never started.
    Absent,
    /// Asleep until the bell.
    Parked,
    /// Asleep until this time of the device's clock, or the bell.
    Until(Duration),
    /// It will look at the device by itself.
    Awake,
}

/// What somebody who leaves the lock has to do for the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the thread sleeps on"]
pub(super) enum Errand {
    Start,
    Ring,
}

/// Whether the thread has to learn of what is due now.
pub(super) fn errand(state: &mut State, clock: Clock) -> Option<Errand> {
    if state.ticker == Phase::Awake {
        return None;
    }
    let due = state.next_awaited(clock)?;
    let errand = match state.ticker {
        Phase::Absent => Errand::Start,
        Phase::Until(time) if time <= due => return None,
        _ => Errand::Ring,
    };
    state.ticker = Phase::Awake;
    Some(errand)
}

impl Errand {
    /// To be run outside the device's lock.
    pub(super) fn run(self, bell: &Arc<Bell>, engine: &Weak<Engine>) {
        match self {
            Self::Ring => bell.ring(),
            Self::Start => start(bell.clone(), engine.clone()),
        }
    }
}

/// # Panics
/// When the operating system has no thread to give.
fn start(bell: Arc<Bell>, engine: Weak<Engine>) {
    thread::Builder::new()
        .name("weirpool-sim".to_owned())
        .spawn(move || run(&bell, &engine))
        .expect("a thread for the simulated device's time");
}

fn run(bell: &Bell, engine: &Weak<Engine>) {
    let mut quiet = Quiet::default();
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let rest = match engine.settings.clock {
            Clock::Wall => tick_wall(&engine),
            Clock::Virtual | Clock::Manual => tick_virtual(&engine, &mut quiet),
        };
        drop(engine);
        if bell.rest(rest) == Source::Closed {
            return;
        }
    }
}

/// How long the thread rests, unless the bell rings; `None` is until it rings.
type Rest = Option<Duration>;

fn tick_wall(engine: &Engine) -> Rest {
    engine.catch_up();
    let mut state = engine.locked();
    let due = state.next_awaited(Clock::Wall);
    state.ticker = due.map_or(Phase::Parked, Phase::Until);
    drop(state);
    // Never zero: what is overdue waits for a body that another thread runs.
    due.map(|due| {
        due.saturating_sub(engine.now())
            .max(Duration::from_micros(1))
    })
}

fn tick_virtual(engine: &Engine, quiet: &mut Quiet) -> Rest {
    let mut state = engine.locked();
    if state.next_awaited(Clock::Virtual).is_none() {
        state.ticker = Phase::Parked;
        return None;
    }
    let may_move = match state.next_alarm() {
        Some(at) => {
            let gap = at.saturating_sub(state.schedule.now());
            quiet.has_come_for((at, gap), state.activity, Instant::now())
        }
        None => quiet.has_come(state.activity),
    };
    if may_move {
        advance_until_noticed(engine, state);
    }
    Some(QUIET)
}

/// Moves to the next thing due until somebody is woken, or nobody would be, or the next is an alarm.
fn advance_until_noticed<'a>(engine: &'a Engine, mut state: MutexGuard<'a, State>) {
    loop {
        let awaited = state.next_awaited(Clock::Virtual);
        // A body that another thread runs keeps time where it is.
        let Some(due) = awaited.filter(|_| state.running.is_none()) else {
            return;
        };
        state = engine.proceed(state, due);
        if engine.unlock_and_wake(state) {
            return;
        }
        state = engine.locked();
        if state.next_alarm().is_some() {
            return;
        }
    }
}

/// Tells quiet from work.
#[derive(Debug, Default)]
struct Quiet {
    seen: u64,
    disturbed: u32,
    alarm: Option<Awaited>,
}

/// An alarm that time is to move to.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    at: Duration,
    /// When it came to be the next thing due.
    since: Instant,
    /// When a call was last seen to have been made.
    called: Instant,
}

impl Quiet {
    fn has_come(&mut self, activity: u64) -> bool {
        self.alarm = None;
        if self.seen == activity || self.disturbed == PATIENCE {
            self.disturbed = 0;
            return true;
        }
        self.seen = activity;
        self.disturbed += 1;
        false
    }

    /// The same for an alarm at that time, so far away.
    fn has_come_for(
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

/// How the thread is woken.
#[derive(Debug, Default)]
pub(super) struct Bell {
    source: Mutex<Option<Source>>,
    sound: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Look at the device, or the time for it has come.
    Look,
    /// The device is gone.
    Closed,
}

impl Bell {
    fn ring(&self) {
        self.source.lock().get_or_insert(Source::Look);
        self.sound.notify_one();
    }

    pub(super) fn close(&self) {
        *self.source.lock() = Some(Source::Closed);
        self.sound.notify_one();
    }

    /// A ring before the rest ends it at once.
    fn rest(&self, rest: Rest) -> Source {
        let source = self.source.lock();
        let quiet = |source: &mut Option<Source>| source.is_none();
        let mut source = match rest {
            None => self
                .sound
                .wait_while(source, quiet)
                .unwrap_or_else(|poison| poison.into_inner()),
            Some(limit) => {
                self.sound
                    .wait_timeout_while(source, limit, quiet)
                    .unwrap_or_else(|poison| poison.into_inner())
                    .0
            }
        };
        source.take().unwrap_or(Source::Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The first look, of one each millisecond, at which time may move to an alarm; so many calls were made by each.
    fn first_move(gap: Duration, calls: impl Fn(u32) -> u64) -> Option<u32> {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        (0..100).find(|at| quiet.has_come_for((5 * gap, gap), calls(*at), start + *at * MS))
    }

    #[test]
    fn an_alarm_waits_for_a_longer_quiet() {
        assert_eq!(first_move(Duration::from_secs(2), |_| 0), Some(10));
        assert_eq!(
            first_move(Duration::from_secs(2), |at| u64::from(at.min(7))),
            Some(17)
        );
        assert_eq!(first_move(3 * MS, |_| 0), Some(3));
        assert_eq!(first_move(Duration::ZERO, u64::from), Some(0));
    }

    #[test]
    fn while_calls_are_made_an_alarm_comes_when_it_would_in_real_time() {
        assert_eq!(first_move(Duration::from_secs(2), u64::from), None);
        assert_eq!(first_move(50 * MS, u64::from), Some(50));
    }

    #[test]
    fn an_alarm_is_waited_for_anew_after_work_and_after_another() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        let mut look =
            |at: u32, ms: u32| quiet.has_come_for((at * MS, at * MS), 1, start + ms * MS);
        assert!(!look(90, 0) && !look(90, 9) && !look(80, 9) && !look(80, 18));
        assert!(look(80, 19));
        quiet.has_come(1);
        assert!(!quiet.has_come_for((80 * MS, 80 * MS), 1, start + 20 * MS));
    }
}
