//! The schedule: a discrete-event simulation of streams that share a bounded number of places.
//!
//! Sans-IO: the caller moves time ([`Schedule::move_to`]), and then calls [`Schedule::run`] until it returns `None`.
//! Bodies of operations are handed out as [`Job`]s, and [`Schedule::finish`] reports their end, so that they run
//! outside the lock. This module knows neither memory, costs, alarms and threads nor the part of the device that moves
//! time.
//!
//! A stream is examined only when it is on the *agenda*: when its first item arrives, and when the wait of its head is
//! over. So a step costs at most the logarithm of the number of streams. A record on an idle stream is complete at once,
//! without the agenda.

mod flags;
mod head;
mod stream;
mod timeline;

use crate::label::StreamLabel;
use crate::names::Names;
use crate::operation::{Access, Body};
use flags::Flags;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::task::Waker;
use std::time::Duration;
pub(super) use stream::Released;
pub(super) use stream::{FlagId, Item, News, Point};
use stream::{Phase, Stream, Submitted, Waiter};
use timeline::{Places, Timeline};
use weirpool_device::plain::Arc;
use weirpool_device::{DeviceId, RawStream, WatchId};

/// The body of an operation whose time is over. It has to run outside the lock, and [`Schedule::finish`] has to be
/// called then.
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
    /// The places of each device.
    places: Vec<Places>,
    watches: HashMap<WatchId, Watched>,
    /// The wakers to be called outside the lock.
    pub(super) woken: Vec<Waker>,
    /// Values whose point was reached, to be dropped outside the lock.
    pub(super) released: Vec<Released>,
    news: Vec<News>,
    /// The declared accesses of operations that ran and were not asked after.
    touched: Vec<Access>,
    generations: u64,
    arrivals: u64,
    /// The number of operations that completed.
    pub(super) operations: u64,
    /// The total stall of all streams.
    pub(super) stall: Duration,
}

impl Schedule {
    /// Creates the schedule of `devices` devices, the first of which has the id `first`.
    pub(super) fn new((first, devices): (DeviceId, u32), places: usize, seed: u64) -> Self {
        let place = |number| Places::new(places, seed.wrapping_add(u64::from(number)));
        Self {
            now: Duration::ZERO,
            streams: Names::new(first),
            flags: Flags::default(),
            agenda: VecDeque::new(),
            timeline: Timeline::default(),
            places: (0..devices).map(place).collect(),
            watches: HashMap::new(),
            woken: Vec::new(),
            released: Vec::new(),
            news: Vec::new(),
            touched: Vec::new(),
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

    /// Moves time. It does not go back: an earlier `at` changes nothing.
    pub(super) fn move_to(&mut self, at: Duration) {
        self.now = self.now.max(at);
    }

    /// Returns when the next thing happens. [`run`](Self::run) must have returned `None` before.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.timeline.next()
    }

    /// Does everything that can be done now, up to the next body.
    ///
    /// Places are given only when nothing else can happen at this instant, so that all streams that become ready in it
    /// have the same chance.
    pub(super) fn run(&mut self) -> Option<Job> {
        loop {
            if let Some(name) = self.agenda.pop_front() {
                self.look_at(name);
            } else if let Some(name) = self.timeline.pop_due(self.now) {
                if let Some(job) = self.meet(name) {
                    return Some(job);
                }
            } else if let Some(name) = self.places.iter_mut().find_map(Places::give) {
                self.start(name);
            } else {
                return None;
            }
        }
    }

    // ---- streams ---------------------------------------------------------------------------

    pub(super) fn create_stream(&mut self, device: u32, name: Option<Arc<str>>) -> RawStream {
        self.generations += 1;
        let number = self.generations;
        let insert = |raw| Stream::new(device, StreamLabel::new(RawStream(raw), number, name));
        RawStream(self.streams.insert_with(insert))
    }

    /// Returns the label by which reports name a stream, if it exists.
    pub(super) fn label(&self, name: RawStream) -> Option<&StreamLabel> {
        self.streams.get(name.0).map(|stream| &stream.label)
    }

    /// Returns the number of the device that a stream is of.
    pub(super) fn device_of(&self, name: RawStream) -> Option<u32> {
        self.streams.get(name.0).map(|stream| stream.device)
    }

    /// Returns whether a device has such a stream that is not destroyed.
    pub(super) fn is_open_on(&self, device: u32, name: RawStream) -> bool {
        let stream = self.streams.get(name.0);
        stream.is_some_and(|stream| stream.is_open_on(device))
    }

    /// Adds an owner to a stream that has one.
    pub(super) fn share(&mut self, name: RawStream) {
        self.stream(name).owners += 1;
    }

    /// Removes an owner. A stream without owners is closed, but its submitted work still runs.
    pub(super) fn release(&mut self, name: RawStream) {
        self.stream(name).owners -= 1;
        self.recycle(name);
    }

    /// Makes the contract the owner of a stream that was just created.
    pub(super) fn give_to_contract(&mut self, name: RawStream) {
        self.stream(name).has_contract = true;
    }

    /// Returns whether the contract created the stream and did not destroy it.
    pub(super) fn is_contracts(&self, name: RawStream) -> bool {
        let stream = self.streams.get(name.0);
        stream.is_some_and(|stream| stream.has_contract)
    }

    /// Removes the contract's share in a stream. Returns whether it had one.
    pub(super) fn destroy_stream(&mut self, name: RawStream) -> bool {
        let stream = self.streams.get_mut(name.0);
        let is_owner = stream.is_some_and(|stream| std::mem::take(&mut stream.has_contract));
        if is_owner {
            self.release(name);
        }
        is_owner
    }

    /// Returns how many items are not complete, and how many are.
    pub(super) fn progress(&self, name: RawStream) -> (u64, u64) {
        self.streams
            .get(name.0)
            .map_or((0, 0), |stream| (stream.items.len() as u64, stream.done))
    }

    /// Submits an item to an open stream, and returns the point behind it.
    ///
    /// Every item of every stream passes here, in the order of submission.
    pub(super) fn submit(&mut self, name: RawStream, item: Item) -> Point {
        let at = self.now;
        let stream = self.stream(name);
        let point = Point {
            stream: name,
            generation: stream.generation,
            index: stream.submitted(),
        };
        if stream.items.is_empty() && matches!(item, Item::Record) {
            // Everything before it is complete, and nothing waits for a point that is new.
            stream.done += 1;
            return point;
        }
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

    /// Wakes `waker` once when `point` completes, or at once if it is complete.
    pub(super) fn watch(&mut self, id: WatchId, point: Option<Point>, waker: Waker) {
        match point.filter(|&point| !self.is_complete(point)) {
            Some(point) => {
                self.await_point(point, Waiter::Watch(id));
                self.watches.insert(id, Watched { waker, point });
            }
            None => self.woken.push(waker),
        }
    }

    /// Cancels a watch. Returns the waker, because dropping it may call the device.
    pub(super) fn unwatch(&mut self, id: WatchId) -> Option<Waker> {
        let Watched { waker, point } = self.watches.remove(&id)?;
        let stream = self.stream(point.stream);
        stream.waiters.remove(&(point.index, id.0));
        Some(waker)
    }

    pub(super) fn watched(&self) -> usize {
        self.watches.len()
    }

    /// Takes the accesses of operations that ran since the last such call.
    pub(super) fn take_touched(&mut self) -> Vec<Access> {
        std::mem::take(&mut self.touched)
    }

    /// Takes the news since the last such call, in order.
    pub(super) fn take_news(&mut self) -> std::vec::Drain<'_, News> {
        self.news.drain(..)
    }

    /// Returns a number for a watch. Watches share the sequence with streams that wait, so that the waiters of a point
    /// are notified in the order of their arrival.
    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    // ---- totals ----------------------------------------------------------------------------

    /// Returns the number of streams of a device that are not destroyed.
    pub(super) fn open_streams(&self, device: u32) -> usize {
        let streams = self.streams.iter();
        streams
            .filter(|(_, stream)| stream.is_open_on(device))
            .count()
    }

    // ---- the end of everything -------------------------------------------------------------

    /// Stops permanently: nothing that was submitted runs any more, and every watch is woken. Returns the submitted
    /// items, because dropping them may call the device.
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
        self.places.iter_mut().for_each(Places::clear);
        self.flags.forget_waiters();
        let mut watches: Vec<_> = self.watches.drain().collect();
        watches.sort_by_key(|(id, _)| *id);
        self.woken
            .extend(watches.into_iter().map(|(_, watched)| watched.waker));
        dropped
    }

    // ---- for people ------------------------------------------------------------------------

    /// Writes a line for each stream that has work left, with the reason why its head waits.
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
                if let Some(holder) = self.flags.holder(*flag) {
                    return format!("is held by the host task {holder:?}, which has not ended");
                }
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
