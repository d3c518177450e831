//! The thread that watches events until they are complete, and alarms until they are due.
//!
//! The first watch or alarm starts the thread. It sleeps while there is nothing to watch, and ends with the device.
//!
//! While an event is watched, the thread queries the driver every few microseconds and spins in between, because the
//! operating system runs a sleeping thread tens to hundreds of microseconds late. All threads share the driver, so
//! queries take at most 1/10 of the time. Once the youngest wait has lasted long, the thread sleeps between queries,
//! and is late by a small share of the wait. If waits follow each other closely, it keeps spinning for the next one.
//!
//! `cargo bench --bench wake` compares this with other ways: querying without pause, or with sleep; the driver's
//! blocking wait; a host function in the stream; and a word that the device writes.

use super::driver::Visit;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUevent, CUresult, cuEventQuery};
use std::collections::{BTreeMap, HashMap};
use std::task::Waker;
use std::time::{Duration, Instant};
use weirpool_device::plain::{Arc, Condvar, Mutex, MutexGuard, catch, thread};
use weirpool_device::{AlarmId, RawEvent, WatchId};

/// The shortest pause between two queries.
const SHORTEST_PAUSE: Duration = Duration::from_micros(8);
/// A pause lasts at least this many times as long as the query before it, which with many events may take long.
const REST: u32 = 9;
/// Once the youngest wait has lasted this long, the thread sleeps during pauses.
const LONG_WAIT: Duration = Duration::from_millis(25);
/// The next query of such a wait comes after this share of its duration,
const SHARE: u32 = 1024;
/// or after this time if that is sooner.
const LONGEST_PAUSE: Duration = Duration::from_micros(100);
/// The thread spins rather than sleeps if an alarm is due in less than this.
const SHORTEST_SLEEP: Duration = Duration::from_micros(25);
/// If waits follow each other within this time, the thread spins until the next one,
const CLOSE: Duration = Duration::from_micros(300);
/// but at most for this long: little longer than going to sleep and waking takes at worst.
const LINGER: Duration = Duration::from_micros(600);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Watcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    context: Arc<CudaContext>,
    origin: Instant,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug)]
struct State {
    next: u64,
    watches: HashMap<WatchId, Watched>,
    alarms: BTreeMap<(Duration, AlarmId), Arc<Waker>>,
    has_thread: bool,
    is_asleep: bool,
    is_closed: bool,
    /// When the last watch ended.
    idle_since: Instant,
    /// A moving average of the time from then to the next watch.
    gap: Duration,
    /// The duration of the last query.
    look: Duration,
}

#[derive(Debug)]
struct Watched {
    event: RawEvent,
    since: Instant,
    /// Counted: a clone of the waker itself would call foreign code under the lock.
    waker: Arc<Waker>,
}

impl Watcher {
    pub(super) fn new(context: Arc<CudaContext>) -> Self {
        Self(Arc::new(Shared {
            context,
            origin: Instant::now(),
            state: Mutex::new(State::new()),
            news: Condvar::new(),
        }))
    }

    pub(super) fn now(&self) -> Duration {
        self.0.now()
    }

    /// Watches an event.
    ///
    /// # Safety
    /// The event must not be destroyed before the waker is called or the watch is [cancelled](Self::unwatch).
    pub(super) unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        let watched = Watched {
            event,
            since: Instant::now(),
            waker: Arc::new(waker.clone()),
        };
        let mut state = self.0.state.lock();
        let id = WatchId(state.number());
        state.record_coming(watched.since);
        state.watches.insert(id, watched);
        self.announce(state);
        id
    }

    /// Cancels a watch. When this returns, the event is no longer queried, and may be destroyed.
    pub(super) fn unwatch(&self, watch: WatchId) {
        let watched = {
            let mut state = self.0.state.lock();
            let watched = state.watches.remove(&watch);
            if watched.is_some() {
                state.record_going();
            }
            watched
        };
        // The waker is dropped outside the lock, because its task may own objects that call the device.
        drop(watched);
    }

    pub(super) fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        let waker = Arc::new(waker.clone());
        let mut state = self.0.state.lock();
        let id = AlarmId(state.number());
        state.alarms.insert((at, id), waker);
        self.announce(state);
        id
    }

    pub(super) fn cancel_alarm(&self, alarm: AlarmId) {
        let mut state = self.0.state.lock();
        let set = state.alarms.keys().find(|(_, id)| *id == alarm).copied();
        let waker = set.and_then(|set| state.alarms.remove(&set));
        drop(state);
        drop(waker);
    }

    fn announce(&self, mut state: MutexGuard<'_, State>) {
        let has_thread = std::mem::replace(&mut state.has_thread, true);
        let is_asleep = state.is_asleep;
        drop(state);
        if is_asleep {
            self.0.news.notify_one();
        }
        if !has_thread {
            let shared = self.0.clone();
            let thread = thread::Builder::new().name("weirpool-cuda".to_owned());
            if thread.spawn(move || shared.run()).is_err() {
                self.wake_all();
            }
        }
    }
}

impl Watcher {
    /// Wakes every watching task, because no thread can be started to watch for them. Each queries its event itself,
    /// and the next watch or alarm tries again to start a thread.
    fn wake_all(&self) {
        let wakers: Vec<_> = {
            let mut state = self.0.state.lock();
            state.has_thread = false;
            let watches = state.watches.values().map(|watched| &watched.waker);
            watches.chain(state.alarms.values()).cloned().collect()
        };
        call_all(wakers);
    }
}

impl Drop for Watcher {
    /// Does not wait for the thread, which may be the one that runs this.
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.news.notify_one();
    }
}

impl State {
    fn new() -> Self {
        Self {
            next: 0,
            watches: HashMap::new(),
            alarms: BTreeMap::new(),
            has_thread: false,
            is_asleep: false,
            is_closed: false,
            idle_since: Instant::now(),
            gap: CLOSE * 2,
            look: Duration::ZERO,
        }
    }

    /// Updates the average gap when a watch begins.
    fn record_coming(&mut self, now: Instant) {
        if self.watches.is_empty() {
            let gap = now.saturating_duration_since(self.idle_since);
            // A single long gap is forgotten after a few short ones.
            self.gap = (self.gap + gap.min(CLOSE * 4)) / 2;
        }
    }

    /// Notes the time when the last watch ends.
    fn record_going(&mut self) {
        if self.watches.is_empty() {
            self.idle_since = Instant::now();
        }
    }

    /// Returns whether the next watch will probably come before a thread could be put to sleep and woken.
    fn is_lingering(&self) -> bool {
        self.watches.is_empty() && self.gap < CLOSE && self.idle_since.elapsed() < LINGER
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes the wakers of the alarms that are due by now.
    fn take_due(&mut self, now: Duration) -> Vec<Arc<Waker>> {
        let later = self.alarms.split_off(&(now, AlarmId(u64::MAX)));
        let due = std::mem::replace(&mut self.alarms, later);
        due.into_values().collect()
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn run(&self) {
        sleep_exactly();
        // The context is current for as long as the thread lives: it does nothing else.
        let visit = Visit::new("watch", &self.context);
        let mut state = self.state.lock();
        while !state.is_closed {
            let mut wakers = state.take_due(self.now());
            wakers.extend(take_complete(&mut state, visit.is_ok()));
            if wakers.is_empty() {
                state = self.pause(state);
            } else {
                drop(state);
                call_all(wakers);
                state = self.state.lock();
            }
        }
    }

    /// Releases the lock until it is time for the next query, or a watch or alarm is added.
    fn pause<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        match self.until_next_look(&state) {
            Some(pause) if pause < SHORTEST_SLEEP => {
                drop(state);
                spend(pause);
                self.state.lock()
            }
            None if state.is_lingering() => {
                drop(state);
                spend(Duration::from_micros(1));
                self.state.lock()
            }
            pause => {
                state.is_asleep = true;
                let mut state = self.sleep(state, pause);
                state.is_asleep = false;
                state
            }
        }
    }

    /// Returns the time until the next query; `None` while there is nothing to watch.
    fn until_next_look(&self, state: &State) -> Option<Duration> {
        let watched = state.watches.values();
        let youngest = watched.map(|watched| watched.since.elapsed()).min();
        let look = youngest.map(|age| pause_after(state.look, age));
        let alarm = state.alarms.keys().next();
        let ring = alarm.map(|(at, _)| at.saturating_sub(self.now()));
        look.into_iter().chain(ring).min()
    }

    fn sleep<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        pause: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let slept = match pause {
            None => self.news.wait(state).map_err(|_| ()),
            Some(pause) => {
                let slept = self.news.wait_timeout(state, pause);
                slept.map(|(state, _)| state).map_err(|_| ())
            }
        };
        // No code panics while it holds this lock.
        slept.unwrap_or_else(|()| self.state.lock())
    }
}

/// Takes the wakers of the events that are complete or have failed. A woken task queries its event, and gets the error.
///
/// The events are queried under the lock, so that none is destroyed meanwhile. A query does not wait.
fn take_complete(state: &mut State, may_ask: bool) -> Vec<Arc<Waker>> {
    if state.watches.is_empty() {
        return Vec::new();
    }
    let start = Instant::now();
    let is_over = |watched: &Watched| !may_ask || !is_under_way(watched.event);
    let ids = state.watches.iter().filter(|(_, watched)| is_over(watched));
    let over: Vec<_> = ids.map(|(id, _)| *id).collect();
    let watched = over.iter().filter_map(|id| state.watches.remove(id));
    let wakers: Vec<_> = watched.map(|watched| watched.waker).collect();
    state.look = start.elapsed();
    if !wakers.is_empty() {
        state.record_going();
    }
    wakers
}

/// Returns the pause before the next query, given the duration of the last one and the age of the youngest wait.
fn pause_after(look: Duration, age: Duration) -> Duration {
    let least = SHORTEST_PAUSE.max(look * REST);
    if age < LONG_WAIT {
        return least;
    }
    (age / SHARE).min(LONGEST_PAUSE).max(least)
}

fn is_under_way(event: RawEvent) -> bool {
    // SAFETY: the caller of `watch` guarantees that the event lives as long as the watch; the lock is held, so that
    // `unwatch` has not returned yet.
    let answer = unsafe { cuEventQuery(event.0 as CUevent) };
    answer == CUresult::CUDA_ERROR_NOT_READY
}

/// Calls wakers, with no lock held. A panic in one does not end the thread, because other tasks rely on it.
fn call_all(wakers: Vec<Arc<Waker>>) {
    for waker in wakers {
        catch(|| waker.wake_by_ref());
        catch(|| drop(waker));
    }
}

fn spend(pause: Duration) {
    let start = Instant::now();
    while start.elapsed() < pause {
        std::hint::spin_loop();
    }
}

/// Asks the operating system for exact sleeps. By default Linux lets a thread oversleep by 50 us to save power.
fn sleep_exactly() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
