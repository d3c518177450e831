//! Random work of the device and of the host on several streams, ordered after each other, among captures: tasks are
//! polled, dropped and sealed, and host tasks end, panic, or are dropped at any poll. The oracle is a list of what each
//! stream was given: nothing of it is done before all that precedes it.

use crate::common::*;
use std::collections::HashSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::{Capture, Stream, Task, TaskError};

const STEPS: usize = 200;

/// The numbers of items.
type Items = Arc<Mutex<HashSet<u64>>>;
/// A host task: ready once its future is, with an error if the device failed.
type Host = Pin<Box<dyn Future<Output = Result<(), TaskError>>>>;

struct Line {
    stream: Stream,
    /// Work, host tasks, and tasks of other streams that come before later items, by their numbers.
    items: Vec<u64>,
    capture: Option<Capture>,
}

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    pool: TestPool,
    lines: Vec<Line>,
    next: u64,
    /// Work that has run.
    done: Items,
    /// Host tasks that were polled.
    begun: Items,
    /// Host tasks that ended or were dropped, in whatever order.
    released: HashSet<u64>,
    tasks: Vec<(u64, Pin<Box<Task<u64>>>)>,
    hosts: Vec<(u64, Host)>,
    ended: u64,
}

fn is_refused(error: &TaskError) -> bool {
    matches!(error, TaskError::Device(error) if !error.is_sticky())
}

impl World {
    fn new(seed: u64) -> Self {
        let device = manual();
        let pool = pool(&device, 16 * MIB);
        let lines = (0..3).map(|_| Line {
            stream: pool.create_stream().unwrap(),
            items: Vec::new(),
            capture: None,
        });
        Self {
            random: fastrand::Rng::with_seed(seed),
            lines: lines.collect(),
            device,
            pool,
            next: 0,
            done: Items::default(),
            begun: Items::default(),
            released: HashSet::new(),
            tasks: Vec::new(),
            hosts: Vec::new(),
            ended: 0,
        }
    }

    fn submit(&mut self) {
        self.next += 1;
        let (id, done) = (self.next, self.done.clone());
        let line = &mut self.lines[self.random.usize(..3)];
        let note = move || assert!(done.lock().unwrap().insert(id));
        let submitted = match self.random.bool() {
            true => line.stream.run(move || {
                note();
                id
            }),
            false => {
                let is_captured = line.capture.is_some();
                line.stream.submit((), |work: &SimStream, ()| {
                    let operation = Operation::new(us(id % 7));
                    work.submit(match is_captured {
                        true => operation.run_each(|_| unreachable!("it is not launched")),
                        false => operation.run(move |_| note()),
                    });
                    id
                })
            }
        };
        match submitted {
            Err(error) => assert!(line.capture.is_some() && is_refused(&error), "{error}"),
            Ok(_) if line.capture.is_some() => {}
            Ok(task) => {
                line.items.push(id);
                self.tasks.push((id, Box::pin(task)));
            }
        }
    }

    fn spawn(&mut self) {
        self.next += 1;
        let (id, begun) = (self.next, self.begun.clone());
        let line = &mut self.lines[self.random.usize(..3)];
        let mut polls = self.random.u8(..3);
        let panics = self.random.u8(..8) == 0;
        let future = poll_fn(move |_| {
            begun.lock().unwrap().insert(id);
            match polls {
                0 if panics => resume_unwind(Box::new("a host task")),
                0 => return Poll::Ready(()),
                _ => polls -= 1,
            }
            Poll::Pending
        });
        match line.stream.spawn(future) {
            Err(error) => assert!(line.capture.is_some() && is_refused(&error), "{error}"),
            Ok(task) => {
                line.items.push(id);
                self.hosts.push((id, Box::pin(task)));
            }
        }
    }

    fn order(&mut self) {
        let Some((id, task)) = self.random.choice(&self.tasks) else {
            return;
        };
        let line = &mut self.lines[self.random.usize(..3)];
        match line.stream.after(&**task) {
            Ok(()) => line.items.push(*id),
            Err(error) => {
                let is_captured = self.lines.iter().any(|line| line.capture.is_some());
                assert!(is_captured && is_refused(&error), "{error}");
            }
        }
    }

    fn ask(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        let at = self.random.usize(..self.tasks.len());
        let (id, task) = &mut self.tasks[at];
        let is_done = || self.done.lock().unwrap().contains(id);
        let ended = match self.random.u8(..4) {
            0 => true,
            1 => {
                if let Ok(true) = task.is_complete() {
                    assert!(is_done(), "{id} is complete before it is done");
                }
                false
            }
            _ => match poll(task) {
                Poll::Pending => false,
                Poll::Ready(Ok(value)) => {
                    assert!(value == *id && is_done(), "{id} is ready before it is done");
                    self.ended += 1;
                    true
                }
                // Its stream is captured, and no event was recorded before that.
                Poll::Ready(Err(error)) => {
                    assert!(is_refused(&error), "{error}");
                    false
                }
            },
        };
        if ended {
            drop(self.tasks.swap_remove(at));
        }
    }

    fn poll_host(&mut self) {
        if self.hosts.is_empty() {
            return;
        }
        let at = self.random.usize(..self.hosts.len());
        let is_dropped = self.random.u8(..8) == 0;
        let task = &mut self.hosts[at].1;
        let ends = is_dropped || {
            let polled = catch_unwind(AssertUnwindSafe(|| poll(task)));
            !matches!(polled, Ok(Poll::Pending))
        };
        if ends {
            let (id, task) = self.hosts.swap_remove(at);
            drop(task);
            self.released.insert(id);
        }
    }

    fn capture(&mut self) {
        let line = &mut self.lines[self.random.usize(..3)];
        match line.capture.take() {
            Some(capture) if self.random.bool() => drop(capture),
            Some(capture) => drop(capture.end().unwrap()),
            None => line.capture = Some(self.pool.capture(&line.stream).unwrap()),
        }
    }

    fn step(&mut self) {
        match self.random.u8(..16) {
            0..5 => self.submit(),
            5 | 6 => self.spawn(),
            7 | 8 => self.order(),
            9 | 10 => self.ask(),
            11 | 12 => self.poll_host(),
            13 => self.capture(),
            _ => self.device.advance(us(self.random.u64(..30))),
        }
        self.assert_ordered();
    }

    fn assert_ordered(&self) {
        let (done, begun) = (self.done.lock().unwrap(), self.begun.lock().unwrap());
        for Line { items, .. } in &self.lines {
            let is_over = |item: &u64| done.contains(item) || self.released.contains(item);
            let at = items.iter().position(|item| !is_over(item));
            let Some(at) = at else { continue };
            let behind = items[at + 1..].iter();
            // A task of another stream that was named twice is done wherever it stands.
            let own = behind.filter(|item| !items[..=at].contains(item));
            let own: Vec<_> = own.filter(|item| self.is_of(items, **item)).collect();
            let early = own
                .iter()
                .find(|item| done.contains(item) || begun.contains(item));
            assert!(early.is_none(), "{early:?} before {}", items[at]);
        }
    }

    /// Returns whether the item is the stream's own, and not one of another stream that it comes after.
    fn is_of(&self, items: &[u64], item: u64) -> bool {
        let lines = self.lines.iter().map(|line| &line.items);
        let mut first = lines.filter(|others| others.contains(&item));
        first.all(|others| std::ptr::eq(others.as_slice(), items))
    }

    fn finish(mut self) -> u64 {
        self.hosts.drain(..).for_each(|(id, task)| {
            drop(task);
            self.released.insert(id);
        });
        for line in &mut self.lines {
            drop(line.capture.take());
        }
        self.device.advance_to_end();
        let done = self.done.lock().unwrap().clone();
        let mut items = self.lines.iter().flat_map(|line| &line.items);
        let is_over = |item| done.contains(item) || self.released.contains(item);
        assert!(items.all(is_over), "all of it is done");
        for (id, task) in self.tasks.drain(..) {
            assert_eq!(now(task), Ok(id));
        }
        let held = self.lines.iter().map(|line| line.stream.statistics());
        assert!(held.into_iter().all(|figures| figures.host_tasks == 0));
        self.device.assert_ordered();
        self.ended
    }
}

#[test]
fn streams_run_work_and_host_tasks_in_order() {
    let ended = crate::over_seeds(|seed| {
        let mut world = World::new(seed);
        (0..STEPS).for_each(|_| world.step());
        world.finish()
    });
    assert!(ended > crate::SEEDS, "tasks are awaited");
}
