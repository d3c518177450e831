//! The item at the head of a stream: from its start to the next item.
//!
//! This module knows neither when it is called nor the body of an operation.

use super::stream::{Phase, Stream, Waiter};
use super::{Item, Job, News, Point, Schedule};
use crate::operation::Operation;
use weirpool_device::RawStream;

impl Schedule {
    /// Carries out the items at the stream's head that take no time.
    pub(super) fn look_at(&mut self, name: RawStream) {
        while let Some(item) = self.open_head(name) {
            match *item {
                Item::Operation(_) => return self.prepare(name),
                Item::Record | Item::Release(_) => {}
                Item::Signal(flag, value) => {
                    self.news.push(News::Signalled(name, flag));
                    self.set_flag(flag, value);
                }
                Item::Wait(point) if !self.is_complete(point) => {
                    return self.block(name, |all| all.await_point(point, Waiter::Stream(name)));
                }
                Item::WaitUntil(flag, at_least) if self.flags.value(flag) < at_least => {
                    return self.block(name, |all| all.flags.wait(flag, at_least, name));
                }
                Item::Wait(_) => self.end_wait(name),
                Item::WaitUntil(flag, _) => {
                    self.news.push(News::Waited(name, flag));
                    self.end_wait(name);
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

    fn end_wait(&mut self, name: RawStream) {
        let now = self.now;
        self.stream(name).waited_until = now;
    }

    fn block(&mut self, name: RawStream, enlist: impl FnOnce(&mut Self)) {
        self.stream(name).phase = Phase::Waiting;
        enlist(self);
    }

    pub(super) fn await_point(&mut self, point: Point, waiter: Waiter) {
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
        let device = stream.device;
        self.stall += stall;
        if start > now {
            self.timeline.push(start, name);
        } else {
            self.places[device as usize].ask(now, name);
        }
    }

    /// Handles an entry of the timeline that is due for a stream.
    pub(super) fn meet(&mut self, name: RawStream) -> Option<Job> {
        let now = self.now;
        let stream = self.stream(name);
        match stream.phase {
            Phase::Behind => {
                stream.phase = Phase::Ready;
                let device = stream.device;
                self.places[device as usize].ask(now, name);
                None
            }
            Phase::Running => self.complete(name),
            phase => unreachable!("nothing is due for a stream that is {phase:?}"),
        }
    }

    pub(super) fn start(&mut self, name: RawStream) {
        let now = self.now;
        let stream = self.stream(name);
        stream.phase = Phase::Running;
        let end = now.saturating_add(head_operation(stream).duration);
        self.timeline.push(end, name);
    }

    /// Ends the time of the operation at the head. If it has a body, that still has to run.
    fn complete(&mut self, name: RawStream) -> Option<Job> {
        let stream = self.stream(name);
        stream.phase = Phase::Finishing;
        let operation = head_operation(stream);
        let body = operation.body.take();
        let mut touched = operation.take_accesses();
        self.touched.append(&mut touched);
        match body {
            Some(body) => Some(Job { stream: name, body }),
            None => {
                self.finish(name);
                None
            }
        }
    }

    /// Completes the operation at the head. If the stream was halted meanwhile, nothing completes.
    pub(crate) fn finish(&mut self, name: RawStream) {
        let now = self.now;
        let stream = self.streams.get_mut(name.0);
        let Some(stream) = stream.filter(|stream| stream.phase == Phase::Finishing) else {
            return;
        };
        stream.free_at = now;
        let device = stream.device;
        self.operations += 1;
        self.places[device as usize].take_back();
        self.pass(name);
        self.agenda.push_back(name);
    }

    /// Removes the head, and notifies those that wait for it.
    fn pass(&mut self, name: RawStream) {
        let stream = self.stream(name);
        stream.phase = Phase::Open;
        let head = stream.items.pop_front();
        stream.done += 1;
        if let Some(Item::Release(released)) = head.map(|head| head.item) {
            self.released.push(released);
        }
        while let Some(waiter) = self.stream(name).next_to_tell() {
            self.tell(waiter);
        }
        self.recycle(name);
    }

    fn tell(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Stream(name) => self.reopen(name),
            Waiter::Watch(id) => {
                if let Some(watched) = self.watches.remove(&id) {
                    self.news.push(News::WatchCompleted(id));
                    self.woken.push(watched.waker);
                }
            }
        }
    }

    /// Continues a stream whose wait is over.
    pub(super) fn reopen(&mut self, name: RawStream) {
        self.stream(name).phase = Phase::Open;
        self.agenda.push_back(name);
    }

    pub(super) fn recycle(&mut self, name: RawStream) {
        if self.streams.get(name.0).is_some_and(Stream::is_gone) {
            self.streams.remove(name.0);
        }
    }

    pub(super) fn stream(&mut self, name: RawStream) -> &mut Stream {
        self.streams.get_mut(name.0).expect("a stream that exists")
    }
}

/// Returns the operation at the head of a stream that has one there.
fn head_operation(stream: &mut Stream) -> &mut Operation {
    match stream.items.front_mut().map(|head| &mut head.item) {
        Some(Item::Operation(operation)) => operation,
        other => unreachable!("the head is an operation, not {other:?}"),
    }
}
