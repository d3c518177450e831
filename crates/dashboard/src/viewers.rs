//! The figures that a dashboard keeps, its viewers, and the one task that collects for all of them.
//!
//! The task exists as long as the dashboard and its runtime, and owns the seats of the viewers; the dashboard has a weak
//! reference. So whatever ends the task, a panic or the end of its runtime included, ends the viewers' answers, and the
//! next viewer starts another one. The ring stays. Collections run on a thread for blocking work.

use crate::alerts::Watch;
use crate::ring::{ROWS, Ring};
use crate::{Counter, Frame, Latency};
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};
use weirpool::Pool;

/// The least time between frames, and the most until the end of the service is noticed.
const FRAME: Duration = Duration::from_millis(250);
/// The least time between rows of the ring.
const ROW: Duration = Duration::from_secs(1);
/// The least time from one turn of the task to the next.
const TOGETHER: Duration = Duration::from_millis(20);
/// The time from one collection to the next, in units of what the collection takes.
const SHARE: u32 = 400;
/// The most viewers.
pub(super) const MOST: usize = 64;
/// How long a viewer may take nothing until it loses its seat.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Viewers {
    pub(super) pool: Pool,
    latencies: Mutex<Vec<Latency>>,
    counters: Mutex<Vec<Counter>>,
    past: Mutex<Past>,
    latest: tokio::sync::Mutex<Option<Latest>>,
    seats: Mutex<Weak<Seats>>,
    /// A moment on the runtime's clock, and the same in milliseconds since 1970.
    began: (Instant, u64),
}

#[derive(Debug, Default)]
struct Past {
    ring: Ring,
    watch: Watch,
}

/// The latest frame, as JSON.
#[derive(Clone, Debug)]
struct Latest {
    taken: Instant,
    json: Arc<String>,
}

#[derive(Debug, Default)]
struct Seats {
    taken: Mutex<Vec<Seat>>,
    /// A viewer came.
    came: Notify,
}

/// The place of a viewer.
#[derive(Debug)]
struct Seat {
    sender: mpsc::Sender<Bytes>,
    /// It missed something: it gets all rows of the ring and the latest frame.
    is_behind: bool,
    /// Since when it has taken nothing.
    stalled: Option<Instant>,
}

/// Why a viewer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    TooMany,
    NoRuntime,
}

/// When to collect again.
struct Pace {
    least: Duration,
    recent: [Duration; 4],
    next: Instant,
}

impl Pace {
    fn new(least: Duration) -> Self {
        Self {
            least,
            recent: [Duration::MAX; 4],
            next: Instant::now(),
        }
    }

    /// Notes a collection that began at `begin`.
    fn note(&mut self, begin: Instant, took: Duration) {
        // The shortest of the last ones: the others were interrupted.
        self.recent.rotate_left(1);
        self.recent[3] = took;
        let took = self.recent.into_iter().min().unwrap_or_default();
        self.next = begin + took.saturating_mul(SHARE).max(self.least);
    }
}

impl Viewers {
    pub(super) fn new(pool: Pool) -> Arc<Self> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = since.unwrap_or_default().as_millis();
        let viewers = Arc::new(Self {
            pool,
            latencies: Mutex::default(),
            counters: Mutex::default(),
            past: Mutex::default(),
            latest: tokio::sync::Mutex::default(),
            seats: Mutex::default(),
            began: (Instant::now(), u64::try_from(since).unwrap_or(u64::MAX)),
        });
        // Without a runtime, the first viewer starts the task.
        let _ = viewers.seats();
        viewers
    }

    pub(super) fn add_latency(&self, latency: Latency) {
        lock(&self.latencies).push(latency);
    }

    pub(super) fn add_counter(&self, counter: Counter) {
        lock(&self.counters).push(counter);
    }

    /// Returns the number of viewers.
    pub(super) fn count(&self) -> usize {
        let seats = lock(&self.seats).upgrade();
        seats.map_or(0, |seats| seats.count())
    }

    /// Returns the seats, and starts the task if it does not run.
    fn seats(self: &Arc<Self>) -> Result<Arc<Seats>, Refusal> {
        let mut current = lock(&self.seats);
        if let Some(seats) = current.upgrade() {
            return Ok(seats);
        }
        let runtime = Handle::try_current().map_err(|_| Refusal::NoRuntime)?;
        let seats = Arc::new(Seats::default());
        *current = Arc::downgrade(&seats);
        // The task keeps neither the dashboard nor the pool.
        runtime.spawn(collect(Arc::downgrade(self), seats.clone()));
        Ok(seats)
    }

    /// Adds a viewer. Returns the events for it: first the rows so far and a frame, then new ones.
    ///
    /// # Errors
    /// If there are too many viewers, or no runtime.
    pub(super) fn watch(self: &Arc<Self>) -> Result<mpsc::Receiver<Bytes>, Refusal> {
        let seats = self.seats()?;
        let mut taken = lock(&seats.taken);
        taken.retain(|seat| !seat.sender.is_closed());
        if taken.len() >= MOST {
            return Err(Refusal::TooMany);
        }
        let (sender, receiver) = mpsc::channel(1);
        taken.push(Seat {
            sender,
            is_behind: true,
            stalled: None,
        });
        seats.came.notify_one();
        Ok(receiver)
    }

    /// Returns the time in milliseconds since 1970, by the runtime's clock since the dashboard was made.
    fn now(&self) -> u64 {
        let (began, then) = self.began;
        let since = began.elapsed().as_millis();
        then.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Adds a row to the ring. Returns it as an event if it `is_sent`.
    fn sample(&self, is_sent: bool) -> String {
        let statistics = self.pool.inspect().statistics();
        let tags = self.pool.inspect().statistics_by_tag();
        let counters = lock(&self.counters).clone();
        let now = self.now();
        let Past { ring, watch } = &mut *lock(&self.past);
        ring.push(now, &statistics, &tags, &counters);
        watch.update(now, &statistics, &tags);
        if is_sent {
            ring.event(1)
        } else {
            String::new()
        }
    }

    /// Returns a frame that is younger than `age`, as JSON; `None` if the runtime ends.
    pub(super) async fn frame(self: &Arc<Self>, age: Duration) -> Option<Arc<String>> {
        // One at a time: those that come meanwhile get the same one.
        let mut latest = self.latest.lock().await;
        if let Some(latest) = latest
            .as_ref()
            .filter(|latest| latest.taken.elapsed() < age)
        {
            return Some(latest.json.clone());
        }
        let this = self.clone();
        let json = off_the_runtime(move || {
            let latencies = lock(&this.latencies).clone();
            let mut frame = Frame::with(&this.pool, &latencies);
            let health = this.pool.inspect().health();
            frame.note(this.now(), lock(&this.past).watch.alerts(&health));
            serde_json::to_string(&frame).expect("plain data, with names as keys")
        });
        let json = Arc::new(json.await?);
        let taken = Instant::now();
        *latest = Some(Latest {
            taken,
            json: json.clone(),
        });
        Some(json)
    }

    pub(super) const AGE: Duration = FRAME;
}

impl Seats {
    fn count(&self) -> usize {
        lock(&self.taken)
            .iter()
            .filter(|seat| !seat.sender.is_closed())
            .count()
    }

    /// Returns whether a viewer that missed something takes events again.
    fn is_any_to_catch_up(&self) -> bool {
        let taken = lock(&self.taken);
        taken
            .iter()
            .any(|seat| seat.is_behind && seat.sender.capacity() > 0)
    }

    /// Sends `news` to the viewers, and `whole` to those that missed something. None of them holds the others up.
    fn send(&self, news: &Bytes, whole: Option<&Bytes>) {
        let now = Instant::now();
        lock(&self.taken).retain_mut(|seat| {
            let event = if seat.is_behind { whole } else { Some(news) };
            let is_full = match event {
                Some(event) if !event.is_empty() => seat.sender.try_send(event.clone()).is_err(),
                // Nothing for it, or it came just now, and is next.
                _ => seat.sender.capacity() == 0,
            };
            if !is_full {
                seat.is_behind &= event.is_none();
                seat.stalled = None;
                return true;
            }
            seat.is_behind |= !news.is_empty();
            !seat.sender.is_closed()
                && now.duration_since(*seat.stalled.get_or_insert(now)) < PATIENCE
        });
    }
}

/// Locks a mutex whose value is valid at every point at which a holder can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a thread for blocking work, or here if there is no runtime. Returns `None` if the runtime ends, or if
/// the work panics.
pub(super) async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.ok(),
        Err(_) => Some(work()),
    }
}

/// Adds rows to the ring while the dashboard lives and the pool is open, and collects frames while there are viewers. Their
/// answers end when the pool admits no more requests, so that a server need not wait for them.
async fn collect(viewers: Weak<Viewers>, seats: Arc<Seats>) {
    let (mut rows, mut frames) = (Pace::new(ROW), Pace::new(FRAME));
    // A viewer that comes to a closed pool starts a task of its own, which adds no row.
    let is_closed = |this: Arc<Viewers>| this.pool.inspect().health().is_closed;
    let mut has_last_row = viewers.upgrade().is_some_and(is_closed);
    loop {
        let Some(this) = viewers.upgrade() else {
            return;
        };
        // Before the frame, so that the last one shows that the service ends.
        let health = this.pool.inspect().health();
        if health.is_closed {
            // Viewers that come from now on start another task.
            *lock(&this.seats) = Weak::new();
        }
        let is_last = health.is_closed || health.is_stopping && seats.count() > 0;
        // However many viewers come to the end, one row is added for it.
        let is_due = !health.is_closed && Instant::now() >= rows.next;
        let adds_row = is_due || is_last && !has_last_row;
        has_last_row |= is_last;
        let paces = (&mut rows, &mut frames);
        let Some(rest) = turn(&this, &seats, paces, adds_row, is_last).await else {
            return;
        };
        if health.is_closed {
            return;
        }
        if is_last {
            lock(&seats.taken).clear();
        }
        drop(this);
        // Viewers that come in quick succession are served together.
        sleep(TOGETHER).await;
        let _ = timeout(rest.saturating_sub(TOGETHER), seats.came.notified()).await;
    }
}

/// Collects a row, if it is to be added, and a frame if one is due, and sends them. Returns the time until something may be
/// due again; `None` if the runtime ends.
async fn turn(
    this: &Arc<Viewers>,
    seats: &Seats,
    (rows, frames): (&mut Pace, &mut Pace),
    adds_row: bool,
    is_last: bool,
) -> Option<Duration> {
    let begin = Instant::now();
    let mut news = String::new();
    if adds_row {
        let (this, is_sent) = (this.clone(), seats.count() > 0);
        let timed = move || {
            let took = Instant::now();
            (this.sample(is_sent), took.elapsed())
        };
        // Without the time until a thread has begun.
        let (row, took) = off_the_runtime(timed).await?;
        news = row;
        rows.note(begin, took);
    }
    if seats.count() > 0 {
        let (mut frame, mut whole) = (None, None);
        if is_last || begin >= frames.next {
            let took = Instant::now();
            // At the end, viewers that come one by one share frames.
            let age = if adds_row { Duration::ZERO } else { FRAME };
            let json = this.frame(age).await?;
            frames.note(begin, took.elapsed());
            add_event(&mut news, &json);
            frame = Some(json);
        }
        if seats.is_any_to_catch_up() {
            let frame = match frame {
                Some(frame) => frame,
                None => this.frame(Duration::MAX).await?,
            };
            let this = this.clone();
            let past = move || {
                let mut past = lock(&this.past).ring.event(ROWS);
                add_event(&mut past, &frame);
                past
            };
            whole = Some(off_the_runtime(past).await?.into());
        }
        seats.send(&news.into(), whole.as_ref());
        return Some(FRAME);
    }
    Some(rows.next.saturating_duration_since(Instant::now()))
}

/// Adds a frame as a server-sent event. JSON has no line breaks.
fn add_event(events: &mut String, json: &str) {
    events.reserve_exact(json.len() + 8);
    events.extend(["data: ", json, "\n\n"]);
}
