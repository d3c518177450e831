//! Random tasks under random schedules, where loom's models are too small: four threads with a stream each share a
//! small pool, beside a reclaimer and a thread that lets the device proceed.
//!
//! Each execution ends with every thread joined, every byte given back, and no finding of the ordering checker. A lost
//! wake-up leaves a thread asleep, which shuttle reports as a deadlock.
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER=.ci/with/shuttle cargo test --release -p weirpool-models --test shuttle
//! ```
//!
//! `WEIRPOOL_SCHEDULES=100000` runs more schedules. A failure prints the schedule, and `WEIRPOOL_REPLAY=FILE` runs the
//! schedule in that file again: it is the text between the quotes.
#![cfg(weirpool_shuttle)]

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, Runner, thread};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weirpool::device::sim::{Backing, Clock, Operation, SimDevice, SimStream};
use weirpool::{Allocate, Block, Evictable, Overtaking, Pool, Stream, Tag, Unordered};

const MIB: u64 = 1 << 20;
const THREADS: usize = 4;
const STEPS: usize = 6;

/// The device proceeds by this much at a time. All steps together stay far below the time after which a pool helps
/// itself: an alarm would hide a lost wake-up.
const STEP: Duration = Duration::from_micros(5);

/// Lets the device proceed while it has work, and sleeps while it has none: the device alone must not keep an execution
/// alive in which a waiter was forgotten.
struct Proceeding {
    device: SimDevice,
    works: Vec<SimStream>,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Proceeding {
    fn run(&self) {
        let mut is_over = self.is_over.lock().unwrap();
        while !*is_over {
            if self.works.iter().any(|work| work.backlog() > 0) {
                drop(is_over);
                self.device.advance(STEP);
                thread::yield_now();
                is_over = self.is_over.lock().unwrap();
            } else {
                is_over = self.changed.wait(is_over).unwrap();
            }
        }
    }

    fn note_work(&self) {
        let _is_over = self.is_over.lock().unwrap();
        self.changed.notify_all();
    }

    fn end(&self) {
        *self.is_over.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

fn schedules() -> usize {
    let chosen = std::env::var("WEIRPOOL_SCHEDULES").ok();
    chosen.map_or(1500, |number| {
        number.parse().expect("a number of schedules")
    })
}

/// The kinds of steps that threads take: the fewer, the more often are those in which waiting requests depend on each
/// other.
#[derive(Clone, Copy)]
enum Steps {
    /// Threads allocate, free, order streams, and make memory evictable.
    Requests = 10,
    /// They also trim, coalesce, poll, synchronize, and register streams.
    Maintenance = 16,
    /// They also allocate several blocks, draw from reservations, resize, drain, and change limits; requests have
    /// priorities.
    All = 22,
}

#[derive(Clone, Copy)]
struct Setting {
    virtual_memory: bool,
    has_reclaimer: bool,
    steps: Steps,
    overtaking: Overtaking,
    lane_bytes: u64,
    /// The most bytes of half of the requests.
    limit: Option<u64>,
}

struct Task {
    pool: Pool,
    tag: Tag,
    proceeding: Arc<Proceeding>,
    work: SimStream,
    stream: Stream,
    other: Stream,
    /// Registered for one block at a time.
    brief: SimStream,
    steps: Steps,
}

impl Task {
    fn use_block(&self, block: &Block) {
        let time = Duration::from_micros(thread_rng().gen_range(1..4));
        let operation = Operation::new(time).writes(block.address(), block.size());
        self.work.submit(operation);
        self.proceeding.note_work();
    }

    fn bytes(&self) -> u64 {
        [512, 4096, MIB, 2 * MIB, 3 * MIB][thread_rng().gen_range(0..5)]
    }

    /// A request, with the tag or without.
    fn allocate(&self) -> Allocate<'_> {
        let request = self.pool.allocate(&self.stream, self.bytes());
        let request = match self.steps {
            Steps::All => request.priority(thread_rng().gen_range(0..3)),
            _ => request,
        };
        match thread_rng().gen_bool(0.5) {
            true => request.tag(self.tag),
            false => request,
        }
    }

    /// Polls a request once and drops it: it may be granted in between.
    fn give_up(&self) {
        let mut request = self.allocate();
        let context = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(block)) = Pin::new(&mut request).poll(context) {
            self.use_block(&block);
        }
    }

    /// A task never waits for memory while it holds some that cannot be evicted, so every wait ends.
    fn step(&self, evictables: &mut Vec<Evictable>) {
        match thread_rng().gen_range(0..self.steps as u32) {
            0..3 => {
                let block = block_on(self.allocate()).unwrap();
                self.use_block(&block);
            }
            9 => {
                let block = block_on(self.allocate()).unwrap();
                self.use_block(&block);
                evictables.push(block.into_evictable());
            }
            3 => {
                if let Ok(block) = self.pool.try_allocate(&self.stream, self.bytes()) {
                    self.use_block(&block);
                    block_on(block.deallocate()).unwrap();
                }
            }
            4 => self.give_up(),
            5 => {
                let Ok(block) = self.pool.try_allocate(&self.stream, self.bytes()) else {
                    return;
                };
                self.use_block(&block);
                self.other
                    .record_use(Unordered::UntilFreed(&block))
                    .unwrap();
            }
            6 => {
                self.other.wait(&self.stream.event().unwrap()).unwrap();
            }
            7 => {
                let reservation = block_on(self.pool.reserve(MIB)).unwrap();
                let block = reservation.allocate(&self.stream, 4096).unwrap();
                self.use_block(&block);
                drop(reservation);
                thread::yield_now();
                drop(block);
            }
            8 => self.stream.seal().unwrap(),
            10 => block_on(self.stream.synchronize()).unwrap(),
            11 => drop(self.stream.event().unwrap().is_complete().unwrap()),
            12 => drop(self.pool.maintain().reap().unwrap()),
            13 => drop(self.pool.trim_to(0).unwrap()),
            14 => drop(self.pool.maintain().coalesce().unwrap()),
            15 => {
                let brief = self.pool.register(&self.brief).unwrap();
                if let Ok(block) = self.pool.try_allocate(&brief, self.bytes()) {
                    let time = Duration::from_micros(1);
                    let operation = Operation::new(time).writes(block.address(), block.size());
                    self.brief.submit(operation);
                    self.proceeding.note_work();
                }
            }
            16 => {
                let request = self
                    .pool
                    .allocate_many(&self.stream, [MIB, 4096, self.bytes().min(2 * MIB)]);
                let blocks = block_on(request).unwrap();
                blocks.iter().for_each(|block| self.use_block(block));
            }
            17 => {
                let reservation = block_on(self.pool.reserve(2 * MIB)).unwrap();
                for bytes in [MIB, 2 * MIB, 4096] {
                    let scoped = reservation.scope(self.pool.allocate(&self.stream, bytes));
                    let block = block_on(scoped).unwrap();
                    self.use_block(&block);
                }
            }
            18 => drop(
                self.pool
                    .resize(thread_rng().gen_range(4..6) * MIB)
                    .unwrap(),
            ),
            19 => block_on(self.pool.drain()).unwrap(),
            20 => drop(self.pool.maintain().evict(self.bytes())),
            _ => {
                let limit = [None, Some(3 * MIB), Some(4 * MIB)];
                self.pool
                    .tag(self.tag)
                    .set_limit(limit[thread_rng().gen_range(0..3)]);
            }
        }
    }
}

fn execute(setting: Setting) {
    let device = SimDevice::builder()
        .memory(64 * MIB)
        .backing(Backing::AddressesOnly)
        .virtual_memory(setting.virtual_memory)
        .clock(Clock::Manual)
        .build();
    let pool = Pool::builder(device.clone())
        .capacity(4 * MIB)
        .chunk_bytes(2 * MIB)
        .tuning(|tuning| {
            tuning.lane_bytes = setting.lane_bytes;
            tuning.overtaking = setting.overtaking;
        })
        .build()
        .unwrap();
    let tag = Tag::new("limited");
    pool.tag(tag).set_limit(setting.limit);
    let works: Vec<_> = (0..THREADS).map(|_| device.create_stream()).collect();
    let streams: Vec<_> = works
        .iter()
        .map(|work| pool.register(work).unwrap())
        .collect();
    let reclaiming = setting.has_reclaimer.then(|| {
        let reclaimer = pool.maintain().reclaimer();
        thread::spawn(move || block_on(reclaimer))
    });
    let briefs: Vec<_> = (0..THREADS).map(|_| device.create_stream()).collect();
    let proceeding = Arc::new(Proceeding {
        device: device.clone(),
        works: works.iter().chain(&briefs).cloned().collect(),
        is_over: Mutex::new(false),
        changed: Condvar::new(),
    });
    // Task n uses its own stream, and orders the next task's after it.
    let tasks: Vec<_> = works
        .into_iter()
        .enumerate()
        .map(|(number, work)| {
            let task = Task {
                pool: pool.clone(),
                tag,
                proceeding: proceeding.clone(),
                work,
                stream: streams[number].clone(),
                other: streams[(number + 1) % THREADS].clone(),
                brief: briefs[number].clone(),
                steps: setting.steps,
            };
            thread::spawn(move || {
                let mut evictables = Vec::new();
                (0..STEPS).for_each(|_| task.step(&mut evictables));
            })
        })
        .collect();
    drop(streams);
    let device_thread = thread::spawn({
        let proceeding = proceeding.clone();
        move || proceeding.run()
    });
    for task in tasks {
        task.join().unwrap();
    }
    proceeding.end();
    device_thread.join().unwrap();
    drop(proceeding);
    device.advance(STEP * 100);
    pool.inspect().check_conserved().unwrap();
    drop(pool);
    if let Some(reclaiming) = reclaiming {
        reclaiming.join().unwrap();
    }
    device.assert_ordered();
}

fn run(scheduler: impl Scheduler + 'static, setting: Setting) {
    let mut config = Config::new();
    config.stack_size = 0x40000;
    Runner::new(scheduler, config).run(move || execute(setting));
}

fn run_both(setting: Setting) {
    if let Ok(path) = std::env::var("WEIRPOOL_REPLAY") {
        let schedule = std::fs::read_to_string(path).expect("a file with a schedule");
        return run(ReplayScheduler::new_from_encoded(schedule.trim()), setting);
    }
    run(RandomScheduler::new(schedules()), setting);
    run(PctScheduler::new(3, schedules()), setting);
}

#[test]
fn waiters_are_served_under_random_schedules() {
    run_both(Setting {
        virtual_memory: true,
        has_reclaimer: false,
        steps: Steps::Requests,
        overtaking: Overtaking::NONE,
        lane_bytes: MIB,
        limit: None,
    });
}

#[test]
fn waiters_are_served_beside_a_reclaimer_under_random_schedules() {
    run_both(Setting {
        virtual_memory: true,
        has_reclaimer: true,
        steps: Steps::Requests,
        overtaking: Overtaking::NONE,
        lane_bytes: MIB,
        limit: None,
    });
}

#[test]
fn waiters_for_plain_memory_are_served_under_random_schedules() {
    run_both(Setting {
        virtual_memory: false,
        has_reclaimer: true,
        steps: Steps::Requests,
        overtaking: Overtaking::NONE,
        lane_bytes: 0,
        limit: None,
    });
}

#[test]
fn throttled_requests_are_served_under_random_schedules() {
    run_both(Setting {
        virtual_memory: true,
        has_reclaimer: false,
        steps: Steps::Requests,
        overtaking: Overtaking::NONE,
        lane_bytes: MIB,
        limit: Some(3 * MIB),
    });
}

#[test]
fn waiters_are_served_beside_maintenance_under_random_schedules() {
    run_both(Setting {
        virtual_memory: true,
        has_reclaimer: false,
        steps: Steps::Maintenance,
        overtaking: Overtaking::NONE,
        lane_bytes: MIB,
        limit: None,
    });
}

#[test]
fn waiters_are_served_beside_everything_under_random_schedules() {
    run_both(Setting {
        virtual_memory: true,
        has_reclaimer: false,
        steps: Steps::All,
        overtaking: Overtaking::NONE,
        lane_bytes: MIB,
        limit: Some(3 * MIB),
    });
}

#[test]
fn overtaken_requests_are_served_under_random_schedules() {
    run_both(Setting {
        virtual_memory: false,
        has_reclaimer: false,
        steps: Steps::All,
        overtaking: Overtaking {
            times: 3,
            bytes: 8 * MIB,
        },
        lane_bytes: 0,
        limit: None,
    });
}
