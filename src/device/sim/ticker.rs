//! The helper thread that moves time where no executor of the device's own does.
//!
//! It starts when an event is first watched, or an alarm set, and something is due; it is parked
//! whenever nobody watches. On the virtual clock it waits for a quiet period, without a device
//! call, and then moves to the next thing due, again and again until somebody is woken. On the wall
//! clock it sleeps until the next thing is due. It keeps no device alive, and ends with it.

use super::builder::Clock;
use super::engine::Engine;
use super::state::State;
use crate::sync::plain::{Arc, Condvar, Mutex, Weak, thread};
use std::time::Duration;

/// So long must no device call be made before virtual time moves; real time. Long enough for a
/// woken task to make its next call, short against a scheduler's time slice.
const QUIET: Duration = Duration::from_micros(60);

/// After so many periods that were not quiet time moves nevertheless, since the calls may be those
/// of somebody who polls for it to move.
const PATIENCE: u32 = 20;

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
        if bell.rest(rest) == Rung::Closed {
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
    if quiet.has_come(state.activity) {
        drop(state);
        advance_until_noticed(engine);
    }
    Some(QUIET)
}

/// Moves to the next thing due until somebody is woken, or nobody would be.
fn advance_until_noticed(engine: &Engine) {
    loop {
        let state = engine.locked();
        let awaited = state.next_awaited(Clock::Virtual);
        // A body that another thread runs keeps time where it is.
        let Some(due) = awaited.filter(|_| state.running.is_none()) else {
            return;
        };
        let state = engine.proceed(state, due);
        if engine.unlock_and_wake(state) {
            return;
        }
    }
}

/// Tells quiet from work.
#[derive(Debug, Default)]
struct Quiet {
    seen: u64,
    disturbed: u32,
}

impl Quiet {
    fn has_come(&mut self, activity: u64) -> bool {
        if self.seen == activity || self.disturbed == PATIENCE {
            self.disturbed = 0;
            return true;
        }
        self.seen = activity;
        self.disturbed += 1;
        false
    }
}

/// How the thread is woken.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<Option<Rung>>,
    sound: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    /// Look at the device, or the time for it has come.
    Look,
    /// The device is gone.
    Closed,
}

impl Bell {
    fn ring(&self) {
        self.rung.lock().get_or_insert(Rung::Look);
        self.sound.notify_one();
    }

    pub(super) fn close(&self) {
        *self.rung.lock() = Some(Rung::Closed);
        self.sound.notify_one();
    }

    /// A ring before the rest ends it at once.
    fn rest(&self, rest: Rest) -> Rung {
        let rung = self.rung.lock();
        let quiet = |rung: &mut Option<Rung>| rung.is_none();
        let mut rung = match rest {
            None => self
                .sound
                .wait_while(rung, quiet)
                .unwrap_or_else(|poison| poison.into_inner()),
            Some(limit) => {
                self.sound
                    .wait_timeout_while(rung, limit, quiet)
                    .unwrap_or_else(|poison| poison.into_inner())
                    .0
            }
        };
        rung.take().unwrap_or(Rung::Look)
    }
}
