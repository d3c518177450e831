//! The thread that watches: events until they are complete, alarms until they are due.
//!
//! It is started by the first watch or alarm, asleep whenever there is none, and ends with the device.
//!
//! While an event is watched it asks the driver every few microseconds, and is awake in between: a thread that
//! sleeps is run again by the operating system some tens of microseconds late, now and then some hundreds. The
//! driver is shared by all threads, so it is asked for a tenth of the time at most; and once the youngest wait has
//! lasted for long, the thread sleeps in between after all, and is late by a small share of the wait. Where waits
//! follow each other closely it stays awake for the next.
//!
//! `cargo bench --bench wake` measures this beside other ways: asking without pause, or with sleep, the driver's
//! blocking wait, a function that it calls, a word that the device writes.

use super::driver::Visit;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUevent, CUresult, cuEventQuery};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::{Duration, Instant};
use weirpool_device::plain::{Arc, Condvar, Mutex, MutexGuard, thread};
use weirpool_device::{AlarmId, RawEvent, WatchId};

/// Between two looks, at least.
const SHORTEST_PAUSE: Duration = Duration::from_micros(8);
/// A pause is so many times as long as the look before it, at least: what many events take.
const REST: u32 = 9;
/// Once the youngest wait has lasted for so long, pauses are spent asleep.
const LONG_WAIT: Duration = Duration::from_millis(25);
/// A look is taken again after this share of such a wait,
const SHARE: u32 = 1024;
/// or after this, if it is sooner.
const LONGEST_PAUSE: Duration = Duration::from_micros(100);
/// An alarm that is due in less is awaited awake.
const SHORTEST_SLEEP: Duration = Duration::from_micros(25);
/// Who waits again within this time after the last wait is worth staying awake for.
const CLOSE: Duration = Duration::from_micros(300);
/// For so long: not much longer than it takes to be put to sleep and run again, at worst.
const LINGER: Duration = Duration::from_micros(600);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Watcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    context: Arc<CudaContext>,
    origin: Instant,
    books: Mutex<Books>,
    news: Condvar,
}

#[derive(Debug)]
struct Books {
    next: u64,
    watches: HashMap<WatchId, Watched>,
    alarms: BTreeMap<(Duration, AlarmId), Waker>,
    has_thread: bool,
    is_asleep: bool,
    is_closed: bool,
    /// When the last watch ended.
    idle_since: Instant,
    /// How soon after that the next one comes, lately.
    gap: Duration,
    /// What the last look took.
    look: Duration,
}

#[derive(Debug)]
struct Watched {
    event: RawEvent,
    since: Instant,
    waker: Waker,
}

impl Watcher {
    pub(super) fn new(context: Arc<CudaContext>) -> Self {
        Self(Arc::new(Shared {
            context,
            origin: Instant::now(),
            books: Mutex::new(Books::new()),
            news: Condvar::new(),
        }))
    }

    pub(super) fn now(&self) -> Duration {
        self.0.now()
    }

    /// Watches an event.
    ///
    /// # Safety
    /// The event is not destroyed before the waker was called or the watch was [cancelled](Self::unwatch).
    pub(super) unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        let watched = Watched {
            event,
            since: Instant::now(),
            waker: waker.clone(),
        };
        let mut books = self.0.books.lock();
        let id = WatchId(books.number());
        books.note_coming(watched.since);
        books.watches.insert(id, watched);
        self.announce(books);
        id
    }

    /// Once this returns, the event is not asked after any more, and may be destroyed.
    pub(super) fn unwatch(&self, watch: WatchId) {
        let watched = {
            let mut books = self.0.books.lock();
            let watched = books.watches.remove(&watch);
            if watched.is_some() {
                books.note_going();
            }
            watched
        };
        // The waker is dropped outside the lock: its task may own what calls the device.
        drop(watched);
    }

    pub(super) fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        let waker = waker.clone();
        let mut books = self.0.books.lock();
        let id = AlarmId(books.number());
        books.alarms.insert((at, id), waker);
        self.announce(books);
        id
    }

    pub(super) fn cancel_alarm(&self, alarm: AlarmId) {
        let mut books = self.0.books.lock();
        let set = books.alarms.keys().find(|(_, id)| *id == alarm).copied();
        let waker = set.and_then(|set| books.alarms.remove(&set));
        drop(books);
        drop(waker);
    }

    fn announce(&self, mut books: MutexGuard<'_, Books>) {
        let has_thread = std::mem::replace(&mut books.has_thread, true);
        let is_asleep = books.is_asleep;
        drop(books);
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
    /// Wakes every watcher, because no thread can be started to watch for it: each looks for itself, and the next watch
    /// or alarm tries to start a thread again.
    fn wake_all(&self) {
        let wakers: Vec<_> = {
            let mut books = self.0.books.lock();
            books.has_thread = false;
            let watches = books.watches.values().map(|watched| &watched.waker);
            watches.chain(books.alarms.values()).cloned().collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Watcher {
    /// Does not wait for the thread, which may be the one that runs this.
    fn drop(&mut self) {
        self.0.books.lock().is_closed = true;
        self.0.news.notify_one();
    }
}

impl Books {
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

    /// A watch is about to begin.
    fn note_coming(&mut self, now: Instant) {
        if self.watches.is_empty() {
            let gap = now.saturating_duration_since(self.idle_since);
            // One long gap is forgotten after a few short ones.
            self.gap = (self.gap + gap.min(CLOSE * 4)) / 2;
        }
    }

    /// A watch has ended.
    fn note_going(&mut self) {
        if self.watches.is_empty() {
            self.idle_since = Instant::now();
        }
    }

    /// Whether the next watch will probably come before a thread could be put to sleep and woken.
    fn is_lingering(&self) -> bool {
        self.watches.is_empty() && self.gap < CLOSE && self.idle_since.elapsed() < LINGER
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes out the wakers of what is due by now.
    fn take_due(&mut self, now: Duration) -> Vec<Waker> {
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
        // For as long as the thread lives: it does nothing else.
        let visit = Visit::new("watch", &self.context);
        let mut books = self.books.lock();
        while !books.is_closed {
            let mut wakers = books.take_due(self.now());
            wakers.extend(take_complete(&mut books, visit.is_ok()));
            if wakers.is_empty() {
                books = self.pause(books);
            } else {
                drop(books);
                wakers.into_iter().for_each(wake);
                books = self.books.lock();
            }
        }
    }

    /// Lets the lock go until it is time to look again, or there is something new.
    fn pause<'a>(&'a self, mut books: MutexGuard<'a, Books>) -> MutexGuard<'a, Books> {
        match self.until_next_look(&books) {
            Some(pause) if pause < SHORTEST_SLEEP => {
                drop(books);
                spend(pause);
                self.books.lock()
            }
            None if books.is_lingering() => {
                drop(books);
                spend(Duration::from_micros(1));
                self.books.lock()
            }
            pause => {
                books.is_asleep = true;
                let mut books = self.sleep(books, pause);
                books.is_asleep = false;
                books
            }
        }
    }

    /// None while there is nothing to look for.
    fn until_next_look(&self, books: &Books) -> Option<Duration> {
        let watched = books.watches.values();
        let youngest = watched.map(|watched| watched.since.elapsed()).min();
        let look = youngest.map(|age| pause_after(books.look, age));
        let alarm = books.alarms.keys().next();
        let ring = alarm.map(|(at, _)| at.saturating_sub(self.now()));
        look.into_iter().chain(ring).min()
    }

    fn sleep<'a>(
        &'a self,
        books: MutexGuard<'a, Books>,
        pause: Option<Duration>,
    ) -> MutexGuard<'a, Books> {
        let slept = match pause {
            None => self.news.wait(books).map_err(|_| ()),
            Some(pause) => {
                let slept = self.news.wait_timeout(books, pause);
                slept.map(|(books, _)| books).map_err(|_| ())
            }
        };
        // Nothing panics while the books are open.
        slept.unwrap_or_else(|()| self.books.lock())
    }
}

/// Takes out the wakers of what is complete, or has failed: who is woken asks, and is told.
///
/// The events are asked under the lock, so that none is destroyed meanwhile; a query does not wait.
fn take_complete(books: &mut Books, may_ask: bool) -> Vec<Waker> {
    if books.watches.is_empty() {
        return Vec::new();
    }
    let start = Instant::now();
    let is_over = |watched: &Watched| !may_ask || !is_under_way(watched.event);
    let ids = books.watches.iter().filter(|(_, watched)| is_over(watched));
    let over: Vec<_> = ids.map(|(id, _)| *id).collect();
    let watched = over.iter().filter_map(|id| books.watches.remove(id));
    let wakers: Vec<_> = watched.map(|watched| watched.waker).collect();
    books.look = start.elapsed();
    if !wakers.is_empty() {
        books.note_going();
    }
    wakers
}

/// How long until the next look, when the last one took so long, and the youngest wait has.
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

/// A waker of a user's that panics must not end the thread that others rely on.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

fn spend(pause: Duration) {
    let start = Instant::now();
    while start.elapsed() < pause {
        std::hint::spin_loop();
    }
}

/// By default Linux lets a thread oversleep by 50 us, to save power.
fn sleep_exactly() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
