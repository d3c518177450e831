//! The schedule: a discrete-event simulation of streams that share a bounded number of places.
//!
//! Sans-IO: time is moved by the caller ([`Schedule::move_to`]), who then calls
//! [`Schedule::run`] until it answers nothing. Bodies of operations are handed out as [`Job`]s and
//! reported back by [`Schedule::finish`], so that they run under no lock. Knows nothing of
//! memory, costs, alarms, threads, or who moves the time.
//!
//! A stream is looked at only when it is on the *agenda*: when its first item arrives, when what
//! held its head back is over. So a step costs the logarithm of the number of streams at most.

mod flags;
mod head;
mod stream;
mod timeline;

use crate::label::StreamLabel;
use crate::names::Names;
use crate::operation::Body;
use flags::Flags;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::task::Waker;
use std::time::Duration;
pub(super) use stream::{FlagId, Item, News, Point};
use stream::{Phase, Stream, Submitted, Waiter};
use timeline::{Places, Timeline};
use weirpool_device::plain::Arc;
use weirpool_device::{DeviceId, RawStream, WatchId};

/// The body of an operation whose time is over, to be run outside the lock and then reported with
/// [`Schedule::finish`].
#[must_use = "the operation is not complete until the job is finished"]
pub(super) struct Job {
    pub(super) stream: RawStream,
    pub(super) body: Body,
}

/// A watch on a point.
#[derive(Debug)]
struct Watched {
    waker: Waker,
    point: Point,
}

#[derive(Debug)]
pub(super) struct Schedule {
    now: Duration,
    streams: Names<Stream>,
    pub(super) flags: Flags,
    agenda: VecDeque<RawStream>,
    timeline: Timeline,
    places: Places,
    watches: HashMap<WatchId, Watched>,
    /// The wakers to call, outside the lock.
    pub(super) woken: Vec<Waker>,
    news: Vec<News>,
    generations: u64,
    arrivals: u64,
    /// How many operations completed.
    pub(super) operations: u64,
    /// The stall of all streams.
    pub(super) stall: Duration,
}

impl Schedule {
    pub(super) fn new(device: DeviceId, places: usize, seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            streams: Names::new(device),
            flags: Flags::default(),
            agenda: VecDeque::new(),
            timeline: Timeline::default(),
            places: Places::new(places, seed),
            watches: HashMap::new(),
            woken: Vec::new(),
            news: Vec::new(),
            generations: 0,
            arrivals: 0,
            operations: 0,
            stall: Duration::ZERO,
        }
    }

    // ---- time ------------------------------------------------------------------------------

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// Time does not go back; an earlier `at` changes nothing.
    pub(super) fn move_to(&mut self, at: Duration) {
        self.now = self.now.max(at);
    }

    /// When the next thing happens by itself; [`run`](Self::run) must have answered nothing.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.timeline.next()
    }

    /// Does all that can be done now, up to the next body.
    ///
    /// Places are given only when nothing else can happen at this instant, so that all streams
    /// that become ready at it have the same chance.
    pub(super) fn run(&mut self) -> Option<Job> {
        loop {
            if let Some(name) = self.agenda.pop_front() {
                self.look_at(name);
            } else if let Some(name) = self.timeline.pop_due(self.now) {
                if let Some(job) = self.meet(name) {
                    return Some(job);
                }
            } else if let Some(name) = self.places.give() {
                self.start(name);
            } else {
                return None;
            }
        }
    }

    // ---- streams ---------------------------------------------------------------------------

    pub(super) fn create_stream(&mut self, name: Option<Arc<str>>) -> RawStream {
        self.generations += 1;
        let number = self.generations;
        let insert = |raw| Stream::new(StreamLabel::new(RawStream(raw), number, name));
        RawStream(self.streams.insert_with(insert))
    }

    /// How reports name a stream that exists.
    pub(super) fn label(&self, name: RawStream) -> Option<&StreamLabel> {
        self.streams.get(name.0).map(|stream| &stream.label)
    }

    /// Whether there is such a stream, not destroyed yet.
    pub(super) fn is_open(&self, name: RawStream) -> bool {
        self.streams.get(name.0).is_some_and(Stream::is_open)
    }

    /// Adds an owner to a stream that has one.
    pub(super) fn share(&mut self, name: RawStream) {
        self.stream(name).owners += 1;
    }

    /// Takes an owner away. Without owners the stream is closed; what was submitted to it still runs.
    pub(super) fn release(&mut self, name: RawStream) {
        self.stream(name).owners -= 1;
        self.recycle(name);
    }

    /// Makes the contract the owner of a stream that was just created.
    pub(super) fn give_to_contract(&mut self, name: RawStream) {
        self.stream(name).has_contract = true;
    }

    /// Takes the contract's share in a stream away. Returns whether it had one.
    pub(super) fn destroy_stream(&mut self, name: RawStream) -> bool {
        let stream = self.streams.get_mut(name.0);
        let is_owner = stream.is_some_and(|stream| std::mem::take(&mut stream.has_contract));
        if is_owner {
            self.release(name);
        }
        is_owner
    }

    /// How many items are not complete, and how many are.
    pub(super) fn progress(&self, name: RawStream) -> (u64, u64) {
        self.streams
            .get(name.0)
            .map_or((0, 0), |stream| (stream.items.len() as u64, stream.done))
    }

    /// Submits an item to an open stream, and answers the point behind it.
    ///
    /// Every item of every stream passes here in the order of submission.
    pub(super) fn submit(&mut self, name: RawStream, item: Item) -> Point {
        let at = self.now;
        let stream = self.stream(name);
        let point = Point {
            stream: name,
            generation: stream.generation,
            index: stream.submitted(),
        };
        stream.items.push_back(Submitted { item, at });
        if stream.items.len() == 1 {
            self.agenda.push_back(name);
        }
        point
    }

    pub(super) fn is_complete(&self, point: Point) -> bool {
        let stream = self.streams.get(point.stream.0);
        stream
            .is_none_or(|stream| stream.generation != point.generation || stream.done > point.index)
    }

    // ---- flags -----------------------------------------------------------------------------

    pub(super) fn set_flag(&mut self, flag: FlagId, value: u64) {
        self.flags.set(flag, value);
        while let Some(name) = self.flags.next_to_tell(flag) {
            self.reopen(name);
        }
    }

    // ---- watches ---------------------------------------------------------------------------

    /// Wakes once when `point` completes, at once if it has.
    pub(super) fn watch(&mut self, id: WatchId, point: Option<Point>, waker: Waker) {
        match point.filter(|&point| !self.is_complete(point)) {
            Some(point) => {
                self.await_point(point, Waiter::Watch(id));
                self.watches.insert(id, Watched { waker, point });
            }
            None => self.woken.push(waker),
        }
    }

    /// Hands the forgotten waker out, since dropping it may call the device.
    pub(super) fn unwatch(&mut self, id: WatchId) -> Option<Waker> {
        let Watched { waker, point } = self.watches.remove(&id)?;
        let stream = self.stream(point.stream);
        stream.waiters.remove(&(point.index, id.0));
        Some(waker)
    }

    pub(super) fn watched(&self) -> usize {
        self.watches.len()
    }

    /// What happened since this was asked, in its order.
    pub(super) fn take_news(&mut self) -> std::vec::Drain<'_, News> {
        self.news.drain(..)
    }

    /// A number for a watch; in one sequence with the streams that wait, so that the waiters of a
    /// point are told in the order they came.
    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    // ---- totals ----------------------------------------------------------------------------

    /// How many streams are not destroyed.
    pub(super) fn open_streams(&self) -> usize {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.is_open())
            .count()
    }

    // ---- the end of everything -------------------------------------------------------------

    /// Stops for good: nothing submitted runs any more, every watcher is woken. Hands out what was
    /// submitted, since dropping it may call the device.
    #[must_use = "to be dropped outside the lock"]
    pub(super) fn halt(&mut self) -> Vec<Item> {
        let mut dropped = Vec::new();
        for stream in self.streams.iter_mut() {
            stream.done = stream.submitted();
            dropped.extend(stream.items.drain(..).map(|submitted| submitted.item));
            stream.waiters.clear();
            stream.phase = Phase::Open;
        }
        self.agenda.clear();
        self.timeline.clear();
        self.places.clear();
        self.flags.forget_waiters();
        let mut watches: Vec<_> = self.watches.drain().collect();
        watches.sort_by_key(|(id, _)| *id);
        self.woken
            .extend(watches.into_iter().map(|(_, watched)| watched.waker));
        dropped
    }

    // ---- for people ------------------------------------------------------------------------

    /// One line for each stream that has work left, saying what its head waits for.
    pub(crate) fn describe_backlog(&self, out: &mut String) {
        for (_, stream) in self.streams.iter() {
            if let Some(head) = stream.items.front() {
                let (items, why) = (stream.items.len(), self.why(stream, &head.item));
                let _ = write!(
                    out,
                    "\n  {}: {items} item(s) not complete, {why}",
                    stream.label
                );
            }
        }
    }

    fn why(&self, stream: &Stream, head: &Item) -> String {
        match (head, stream.phase) {
            (Item::Wait(point), _) => {
                let (behind, done) = self.progress(point.stream);
                let index = point.index + 1;
                let label = self.label(point.stream).map(ToString::to_string);
                let label = label.unwrap_or_default();
                let of = behind + done;
                format!("waits for item {index} of {of} of {label}, which has completed {done}")
            }
            (Item::WaitUntil(flag, at_least), _) => {
                let (number, value) = (flag.0, self.flags.value(*flag));
                format!("waits until flag {number} is at least {at_least}; it is {value}")
            }
            (Item::Operation(operation), Phase::Running) => format!("runs {operation}"),
            (Item::Operation(operation), Phase::Ready) => {
                format!("has no free place for {operation}")
            }
            (Item::Operation(operation), Phase::Finishing) => format!("ends {operation}"),
            (item, _) => format!("is about to start {item:?}"),
        }
    }
}
