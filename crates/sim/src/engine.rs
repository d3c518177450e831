//! The device's lock, and the movement of time under it.
//!
//! A call locks, changes the [`State`], lets the schedule do everything that is possible at this instant, unlocks, and
//! only then wakes tasks. The body of an operation runs outside the lock. Meanwhile other threads add to the schedule
//! and return, and the thread that ran the body continues with their additions. So only one thread moves the schedule
//! at a time, and bodies run in order.

use super::builder::{Checker, Clock, Settings};
use super::checker::Judge;
use super::memory::{Illegal, Memory, MemoryAccess, Space};
use super::outer_clock::OuterClock;
use super::schedule::Job;
use super::state::{Panic, State};
use super::ticker::{Action, Notifier, Phase, QUIET, Quiet, Rest, Signal, sleep_precisely};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};
use weirpool_device::plain::{
    Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Weak, catch, thread, wake_all,
};
use weirpool_device::{DeviceError, DeviceErrorKind, DeviceId, Explain};

/// The pools that explain what their requests wait for.
#[derive(Debug, Default)]
pub(super) struct Explainers(Mutex<Vec<Weak<dyn Explain>>>);

impl Explainers {
    pub(super) fn add(&self, pool: Weak<dyn Explain>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(pool);
    }

    /// Returns the explanations, a line each. Must be called outside the device's lock.
    pub(super) fn explain(&self) -> String {
        let all = self.0.lock().clone();
        let living = all.iter().filter_map(Weak::upgrade);
        let told = living.filter_map(|pool| pool.explain());
        told.map(|line| format!("\n  {line}")).collect()
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The hosts of the process, and some that are gone.
static ALL: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

pub(super) struct Engine {
    /// The id of the first device.
    first: DeviceId,
    /// How many devices the host has.
    devices: u32,
    pub(super) settings: Settings,
    /// The clock that the device follows, unless it has one of its own.
    outer: Option<OuterClock>,
    this: Weak<Self>,
    state: Mutex<State>,
    /// Notified when a body has ended.
    ended: Condvar,
    notifier: Arc<Notifier>,
    pub(super) explainers: Explainers,
}

impl Engine {
    pub(super) fn new(settings: Settings, devices: u32) -> Arc<Self> {
        let first = DeviceId(NEXT_ID.fetch_add(devices.into(), Ordering::Relaxed));
        let engine = Arc::new_cyclic(|this| Self {
            first,
            devices,
            settings,
            outer: OuterClock::of(settings.clock),
            this: this.clone(),
            state: Mutex::new(State::new(first, devices, &settings)),
            ended: Condvar::new(),
            notifier: Arc::default(),
            explainers: Explainers::default(),
        });
        let mut all = ALL.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&engine));
        drop(all);
        engine
    }

    /// Returns all living hosts, in the order of their creation.
    pub(super) fn all() -> Vec<Arc<Self>> {
        let all = ALL.lock().clone();
        all.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns the id of the device with that number.
    pub(super) fn id_of(&self, number: u32) -> DeviceId {
        DeviceId(self.first.0 + u64::from(number))
    }

    /// Returns the number of the device with that id, if it is one of this host.
    pub(super) fn number_of(&self, id: DeviceId) -> Option<u32> {
        let number = u32::try_from(id.0.checked_sub(self.first.0)?).ok()?;
        (number < self.devices).then_some(number)
    }

    fn shared(&self) -> Arc<Self> {
        self.this
            .upgrade()
            .expect("the engine lives while it is called")
    }

    // ---- under the lock --------------------------------------------------------------------

    /// Makes a device call: advances the device to now, makes the change, and carries out its consequences.
    pub(super) fn call<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.locked();
        if let Some(outer) = &self.outer {
            state = self.proceed(state, outer.elapsed());
        }
        state.activity += 1;
        let result = change(&mut state);
        self.leave(state);
        result
    }

    /// Reads the state on behalf of the host, which from then on knows the state that it read.
    pub(super) fn observe<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        if self.outer.is_some() {
            self.catch_up();
        }
        look(&mut self.locked())
    }

    /// Reads the state without effect: this does not count as activity.
    pub(super) fn peek<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        if self.outer.is_some() {
            self.catch_up();
        }
        look(&self.locked())
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Does everything that is possible at this instant, unlocks, and wakes tasks.
    pub(super) fn leave(&self, state: MutexGuard<'_, State>) {
        let now = state.schedule.now();
        let state = self.proceed(state, now);
        self.unlock_and_wake(state);
    }

    /// Unlocks and wakes tasks. Returns whether any task was woken.
    pub(super) fn unlock_and_wake(&self, mut state: MutexGuard<'_, State>) -> bool {
        let woken = state.take_woken();
        let debris = std::mem::take(&mut state.debris);
        let released = std::mem::take(&mut state.schedule.released);
        let action = state.ticker_action(self.settings.clock);
        drop(state);
        match action {
            Some(Action::Notify) => self.notifier.notify(),
            Some(Action::Start) => self.start_ticker(),
            None => {}
        }
        let is_any = !woken.is_empty();
        if is_any {
            wake_all(woken);
        }
        // Last, and each for itself: a panic of a user's destructor loses no wake-up.
        for item in debris {
            catch(|| drop(item));
        }
        for held in released {
            catch(|| drop(held));
        }
        is_any
    }

    fn start_ticker(&self) {
        let (notifier, engine) = (self.notifier.clone(), self.this.clone());
        #[cfg(feature = "tokio")]
        if let Some(OuterClock::Tokio(clock)) = &self.outer
            && !clock.has_ended()
        {
            drop(clock.runtime.spawn(run_task(notifier, Standing(engine))));
            return;
        }
        start(notifier, engine);
    }

    /// Follows real time from now on, since the runtime of tokio's clock has ended.
    #[cfg(feature = "tokio")]
    fn leave_tokio(&self) {
        if let Some(OuterClock::Tokio(clock)) = &self.outer {
            clock.mark_ended();
        }
        let mut state = self.locked();
        state.ticker = Phase::Absent;
        self.unlock_and_wake(state);
    }

    // ---- time ------------------------------------------------------------------------------

    pub(super) fn now(&self) -> Duration {
        match &self.outer {
            Some(outer) => outer.elapsed(),
            None => self.peek(|state| state.schedule.now()),
        }
    }

    /// Does everything due up to `target`, in order, and stops there. While another thread runs a body this does
    /// nothing: that thread continues with the schedule as it is then.
    pub(super) fn proceed<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        target: Duration,
    ) -> MutexGuard<'a, State> {
        if state.running.is_some() {
            return state;
        }
        loop {
            while let Some(job) = state.schedule.run() {
                state.tell_news();
                state = self.run_body(state, job);
            }
            state.tell_news();
            state.wake_alarms();
            match state.next_due() {
                Some(at) if at <= target => state.schedule.move_to(at),
                _ => break,
            }
        }
        state.schedule.move_to(target);
        state
    }

    fn run_body<'a>(&'a self, mut state: MutexGuard<'a, State>, job: Job) -> MutexGuard<'a, State> {
        state.running = Some(thread::current().id());
        let Job { stream, body } = job;
        let number = state.schedule.device_of(stream).unwrap_or_default();
        drop(state);
        let mut memory = Memory::new(self.shared(), number);
        let outcome = catch_unwind(AssertUnwindSafe(|| body.run(&mut memory)));
        let mut state = self.locked();
        state.running = None;
        if state.waiting > 0 {
            self.ended.notify_all();
        }
        match outcome {
            Ok(()) => state.schedule.finish(stream),
            Err(panic) => self.record_panic(&mut state, panic),
        }
        state
    }

    fn record_panic(&self, state: &mut State, panic: Panic) {
        let words = panic.downcast_ref::<&str>().copied();
        let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let words = words.unwrap_or("no message");
        state.break_device(format!("the body of an operation panicked: {words}").into());
        state.panic = Some(panic);
    }

    /// Resumes a body's panic, and raises violations that the ordering checker found.
    #[track_caller]
    pub(super) fn pass_panic_on(&self) {
        let panic = self.locked().panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        self.raise(Location::caller());
    }

    /// Locks when no body is running, so that time can be moved.
    ///
    /// # Panics
    /// Panics if called inside a body, which would wait for itself.
    fn locked_to_move(&self) -> MutexGuard<'_, State> {
        let mut state = self.locked();
        while let Some(mover) = state.running {
            assert!(
                mover != thread::current().id(),
                "the body of an operation must not move the device's time"
            );
            state.waiting += 1;
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(|poison| poison.into_inner());
            state.waiting -= 1;
        }
        state
    }

    /// Moves simulated time to the result of `target`, and does everything due on the way. Returns whether there was a
    /// target.
    #[track_caller]
    pub(super) fn move_to(&self, target: impl FnOnce(&State) -> Option<Duration>) -> bool {
        assert!(
            self.outer.is_none(),
            "the time of a device on the wall clock or tokio's cannot be moved: use a virtual or manual clock, or \
             `tokio::time::advance`"
        );
        let state = self.locked_to_move();
        // Items that other threads added during a body come first.
        let now = state.schedule.now();
        let mut state = self.proceed(state, now);
        let target = target(&state);
        if let Some(target) = target {
            state = self.proceed(state, target);
        }
        self.unlock_and_wake(state);
        self.pass_panic_on();
        target.is_some()
    }

    /// Does everything that has become due on the clock that the device follows, if it follows one.
    pub(super) fn catch_up(&self) {
        let Some(outer) = &self.outer else { return };
        let state = self.locked();
        let state = self.proceed(state, outer.elapsed());
        self.unlock_and_wake(state);
    }

    /// Raises the first violation that was not raised, where the checker is to panic. Never while panicking. Names `call`,
    /// since the panic may be in the poll of a future that it made.
    #[track_caller]
    pub(super) fn raise(&self, call: &'static Location<'static>) {
        if self.settings.checker != Checker::Panic || thread::panicking() {
            return;
        }
        let found = self.locked().judge.as_mut().and_then(Judge::raise_first);
        if let Some(violation) = found {
            match call == Location::caller() {
                true => panic!("{violation}"),
                false => panic!("{violation}\n  raised by:    the call at {call}"),
            }
        }
    }

    /// Returns how many violations were raised and not taken since.
    pub(super) fn raised(&self) -> usize {
        self.locked().judge.as_ref().map_or(0, Judge::raised)
    }

    // ---- memory ----------------------------------------------------------------------------

    /// Reads or writes bytes. An illegal address breaks the device.
    ///
    /// # Errors
    /// Returns an error if the device is broken, or breaks by this access.
    pub(super) fn access(
        &self,
        what: &'static str,
        access: impl FnOnce(&mut Space) -> Result<(), Illegal>,
    ) -> Result<(), DeviceError> {
        self.call(|state| {
            state.check(what)?;
            access(&mut state.space).map_err(|illegal| {
                let reason: Arc<str> = format!("illegal address: {what} at {illegal}").into();
                state.break_device(reason.clone());
                DeviceError::new(what, DeviceErrorKind::Sticky, reason)
            })
        })
    }
}

impl MemoryAccess for Engine {
    fn access(
        &self,
        what: &'static str,
        access: &mut dyn FnMut(&mut Space) -> Result<(), Illegal>,
    ) {
        // The error is not lost: it broke the device.
        let _broke = Self::access(self, what, access);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.notifier.close();
    }
}

// ---- the helper thread -----------------------------------------------------------------------

/// # Panics
/// Panics if the operating system cannot start a thread.
fn start(notifier: Arc<Notifier>, engine: Weak<Engine>) {
    thread::Builder::new()
        .name("weirpool-sim".to_owned())
        .spawn(move || run(&notifier, &engine))
        .expect("the operating system can start a thread");
}

fn run(notifier: &Notifier, engine: &Weak<Engine>) {
    sleep_precisely();
    let mut quiet = Quiet::default();
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let rest = match engine.settings.clock {
            Clock::Virtual | Clock::Manual => tick_virtual(&engine, &mut quiet),
            _ => tick_outer(&engine),
        };
        drop(engine);
        if notifier.rest(rest) == Signal::Closed {
            return;
        }
    }
}

/// The engine of the task that stands in for the thread on tokio's clock. A runtime that ends drops the task, and so does
/// one that has ended already.
#[cfg(feature = "tokio")]
struct Standing(Weak<Engine>);

#[cfg(feature = "tokio")]
impl Drop for Standing {
    fn drop(&mut self) {
        // The task itself ends with the engine.
        if let Some(engine) = self.0.upgrade() {
            engine.leave_tokio();
        }
    }
}

/// The task that stands in for the thread on tokio's clock.
#[cfg(feature = "tokio")]
async fn run_task(notifier: Arc<Notifier>, engine: Standing) {
    while let Some(rest) = engine.0.upgrade().map(|engine| tick_outer(&engine)) {
        if notifier.rest_on_tokio(rest).await == Signal::Closed {
            return;
        }
    }
}

fn tick_outer(engine: &Engine) -> Rest {
    engine.catch_up();
    let mut state = engine.locked();
    let due = state.next_awaited(engine.settings.clock);
    state.ticker = due.map_or(Phase::Parked, Phase::Until);
    drop(state);
    // At least 1 us: anything overdue waits for a body that another thread runs.
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

/// Moves to the next thing due until a task is woken, no task would be, or the next thing is an alarm.
fn advance_until_noticed<'a>(engine: &'a Engine, mut state: MutexGuard<'a, State>) {
    loop {
        let awaited = state.next_awaited(Clock::Virtual);
        // Time stands still while another thread runs a body.
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
