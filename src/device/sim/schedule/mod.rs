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
mod stream;
mod timeline;

use crate::device::sim::names::Names;
use crate::device::sim::operation::{Body, Operation};
use crate::device::{DeviceId, RawStream, WatchId};
use flags::Flags;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::task::Waker;
use std::time::Duration;
pub(super) use stream::{FlagId, Item, Point};
use stream::{Phase, Stream, Submitted, Waiter};
use timeline::{Places, Timeline};

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
    flags: Flags,
    agenda: VecDeque<RawStream>,
    timeline: Timeline,
    places: Places,
    watches: HashMap<WatchId, Watched>,
    woken: Vec<Waker>,
    generations: u64,
    arrivals: u64,
    operations: u64,
    stall: Duration,
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

    pub(super) fn create_stream(&mut self) -> RawStream {
        self.generations += 1;
        RawStream(self.streams.insert(Stream::new(self.generations)))
    }

    /// Whether there is such a stream, not destroyed yet.
    pub(super) fn is_open(&self, name: RawStream) -> bool {
        self.streams.get(name.0).is_some_and(|stream| stream.open)
    }

    /// Answers whether there was such a stream. What was submitted to it still runs.
    pub(super) fn destroy_stream(&mut self, name: RawStream) -> bool {
        let Some(stream) = self.streams.get_mut(name.0).filter(|stream| stream.open) else {
            return false;
        };
        stream.open = false;
        self.recycle(name);
        true
    }

    /// Keeps the name from being given to another stream until [`release`](Self::release).
    pub(super) fn hold(&mut self, name: RawStream) {
        self.stream(name).holds += 1;
    }

    pub(super) fn release(&mut self, name: RawStream) {
        self.stream(name).holds -= 1;
        self.recycle(name);
    }

    /// How many items are not complete, and how many are.
    pub(super) fn progress(&self, name: RawStream) -> (u64, u64) {
        self.streams
            .get(name.0)
            .map_or((0, 0), |stream| (stream.items.len() as u64, stream.done))
    }

    /// Submits an item to an open stream, and answers the point behind it.
    ///
    /// Every item of every stream passes here in the order of submission: this is where a checker
    /// of orderings listens, since a wait names the very point it waits for.
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

    pub(super) fn create_flag(&mut self) -> FlagId {
        self.flags.create()
    }

    pub(super) fn flag_value(&self, flag: FlagId) -> u64 {
        self.flags.value(flag)
    }

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

    /// The wakers to call, outside the lock.
    pub(super) fn woken(&mut self) -> &mut Vec<Waker> {
        &mut self.woken
    }

    /// A number for a watch; in one sequence with the streams that wait, so that the waiters of a
    /// point are told in the order they came.
    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    // ---- totals ----------------------------------------------------------------------------

    /// How many operations completed.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// The stall of all streams.
    pub(super) fn stall(&self) -> Duration {
        self.stall
    }

    /// How many streams are not destroyed.
    pub(super) fn open_streams(&self) -> usize {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.open)
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

    // ---- the head of a stream --------------------------------------------------------------

    /// Carries out what the stream's head needs no time for.
    fn look_at(&mut self, name: RawStream) {
        while let Some(item) = self.open_head(name) {
            match *item {
                Item::Operation(_) => return self.prepare(name),
                Item::Record => {}
                Item::Signal(flag, value) => self.set_flag(flag, value),
                Item::Wait(point) if !self.is_complete(point) => {
                    return self.block(name, |all| all.await_point(point, Waiter::Stream(name)));
                }
                Item::WaitUntil(flag, at_least) if self.flags.value(flag) < at_least => {
                    return self.block(name, |all| all.flags.wait(flag, at_least, name));
                }
                Item::Wait(_) | Item::WaitUntil(..) => {
                    let now = self.now;
                    self.stream(name).waited_until = now;
                }
            }
            self.pass(name);
        }
    }

    fn open_head(&self, name: RawStream) -> Option<&Item> {
        let stream = self.streams.get(name.0)?;
        let head = stream.items.front()?;
        (stream.phase == Phase::Open).then_some(&head.item)
    }

    fn block(&mut self, name: RawStream, enlist: impl FnOnce(&mut Self)) {
        self.stream(name).phase = Phase::Waiting;
        enlist(self);
    }

    fn await_point(&mut self, point: Point, waiter: Waiter) {
        let arrival = match waiter {
            Waiter::Watch(id) => id.0,
            Waiter::Stream(_) => self.next_arrival(),
        };
        let key = (point.index, arrival);
        self.stream(point.stream).waiters.insert(key, waiter);
    }

    /// Decides when the operation at the head may start.
    fn prepare(&mut self, name: RawStream) {
        let now = self.now;
        let stream = self.stream(name);
        let head = stream.items.front().expect("a head to prepare");
        let Item::Operation(operation) = &head.item else {
            unreachable!("only operations are prepared");
        };
        let (start, stall) = stream.start_of(operation, head.at);
        stream.stall += stall;
        stream.phase = if start > now {
            Phase::Behind
        } else {
            Phase::Ready
        };
        self.stall += stall;
        if start > now {
            self.timeline.push(start, name);
        } else {
            self.places.ask(now, name);
        }
    }

    /// What the timeline had for a stream is due.
    fn meet(&mut self, name: RawStream) -> Option<Job> {
        let now = self.now;
        let stream = self.stream(name);
        match stream.phase {
            Phase::Behind => {
                stream.phase = Phase::Ready;
                self.places.ask(now, name);
                None
            }
            Phase::Running => self.complete(name),
            phase => unreachable!("nothing is due for a stream that is {phase:?}"),
        }
    }

    fn start(&mut self, name: RawStream) {
        let now = self.now;
        let stream = self.stream(name);
        stream.phase = Phase::Running;
        let end = now.saturating_add(head_operation(stream).duration);
        self.timeline.push(end, name);
    }

    /// The head's time is over; its body, if any, still has to run.
    fn complete(&mut self, name: RawStream) -> Option<Job> {
        let stream = self.stream(name);
        stream.phase = Phase::Finishing;
        match head_operation(stream).body.take() {
            Some(body) => Some(Job { stream: name, body }),
            None => {
                self.finish(name);
                None
            }
        }
    }

    /// The operation at the head is complete. Of a stream that was halted meanwhile, nothing is.
    pub(super) fn finish(&mut self, name: RawStream) {
        let now = self.now;
        let stream = self.streams.get_mut(name.0);
        let Some(stream) = stream.filter(|stream| stream.phase == Phase::Finishing) else {
            return;
        };
        stream.free_at = now;
        self.operations += 1;
        self.places.take_back();
        self.pass(name);
        self.agenda.push_back(name);
    }

    /// The head is done: tells who waits for it.
    fn pass(&mut self, name: RawStream) {
        let stream = self.stream(name);
        stream.phase = Phase::Open;
        stream.items.pop_front();
        stream.done += 1;
        while let Some(waiter) = self.stream(name).next_to_tell() {
            self.tell(waiter);
        }
        self.recycle(name);
    }

    fn tell(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Stream(name) => self.reopen(name),
            Waiter::Watch(id) => {
                let watched = self.watches.remove(&id);
                self.woken.extend(watched.map(|watched| watched.waker));
            }
        }
    }

    /// What the stream waited for has come.
    fn reopen(&mut self, name: RawStream) {
        self.stream(name).phase = Phase::Open;
        self.agenda.push_back(name);
    }

    fn recycle(&mut self, name: RawStream) {
        if self.streams.get(name.0).is_some_and(Stream::is_gone) {
            self.streams.remove(name.0);
        }
    }

    fn stream(&mut self, name: RawStream) -> &mut Stream {
        self.streams.get_mut(name.0).expect("a stream that exists")
    }

    // ---- for people ------------------------------------------------------------------------

    /// One line for each stream that has work left, saying what its head waits for.
    pub(super) fn describe_backlog(&self, out: &mut String) {
        for (name, stream) in self.streams.iter() {
            if let Some(head) = stream.items.front() {
                let (items, why) = (stream.items.len(), self.why(stream, &head.item));
                let _ = write!(
                    out,
                    "\n  stream {name:#x}: {items} item(s) not complete, {why}"
                );
            }
        }
    }

    fn why(&self, stream: &Stream, head: &Item) -> String {
        match (head, stream.phase) {
            (Item::Wait(point), _) => {
                let (behind, done) = self.progress(point.stream);
                let (name, index) = (point.stream.0, point.index + 1);
                let of = behind + done;
                format!("waits for item {index} of {of} of stream {name:#x}, which has done {done}")
            }
            (Item::WaitUntil(flag, at_least), _) => {
                let (number, value) = (flag.0, self.flags.value(*flag));
                format!("waits until flag {number} is at least {at_least}; it is {value}")
            }
            (Item::Operation(operation), Phase::Running) => format!("runs {operation}"),
            (Item::Operation(operation), Phase::Ready) => format!("has no place for {operation}"),
            (Item::Operation(operation), Phase::Finishing) => format!("ends {operation}"),
            (item, _) => format!("is about to do {item:?}"),
        }
    }
}

/// The operation at the head of a stream that has one there.
fn head_operation(stream: &mut Stream) -> &mut Operation {
    match stream.items.front_mut().map(|head| &mut head.item) {
        Some(Item::Operation(operation)) => operation,
        other => unreachable!("the head is an operation, not {other:?}"),
    }
}
