//! Random operations on a pool, with one oracle: once the device and all tasks are quiet, a fresh search for every
//! waiting request grants none of them. A request that it grants was not woken for memory that was there.
//!
//! Tasks are polled only when they are woken. Some are never polled again, as on a runtime that runs no more, and some
//! have wakers that panic.
//!
//! `WEIRPOOL_PROGRESS_SEEDS=5000 cargo test --release --test requests progress` runs more seeds.

use super::*;
use std::future::Future;
use std::pin::Pin;
use weirpool::Unordered;
use weirpool::device::DeviceErrorKind::Unsupported;
use weirpool::device::sim::{Call, SimStream};
use weirpool::device::{Device, MemoryKind};

const ALL: u64 = 16 * MIB;
const STREAMS: usize = 3;
const TAG: &str = "waiting: progress";

/// Twice as long is longer than a head may be silent before it is set aside, than notifications may be unanswered, than a
/// deadlock's grace, and than the time after which a pool asks the device again.
const LONG: std::time::Duration = us(100_000);

#[derive(Clone, Copy, Debug)]
struct Settings {
    seed: u64,
    is_virtual: bool,
    has_reclaimer: bool,
    device_waits: bool,
    overtaking: bool,
    /// One tag has a limit.
    limited: bool,
    /// That tag has a weight, which changes.
    weighted: bool,
    order: WhenShort,
    /// Two pools share a device that has too little memory for both.
    two_pools: bool,
    /// How many requests wait at a time.
    waiters: usize,
    /// Further streams, which do nothing. With 70 a search looks at the active ones only.
    idle_streams: usize,
    /// Drains evict all that can be evicted.
    has_drains: bool,
    /// Requests fail in a deadlock, or when the limit or the capacity is below their size.
    may_fail: bool,
    /// Blocks and reservations grow.
    grows: bool,
    /// Other code takes memory of the device, and releases it without a word.
    is_shared: bool,
}

impl Settings {
    fn of_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let [is_virtual, has_reclaimer, device_waits, overtaking] = [(); 4].map(|()| random.bool());
        let [limited, weighted, two_pools, has_drains] = [(); 4].map(|()| random.bool());
        let [waits_first, is_alone, has_idle] = [(); 3].map(|()| random.bool());
        let [may_fail, grows, is_shared] = [(); 3].map(|()| random.bool());
        Self {
            seed,
            is_virtual,
            has_reclaimer,
            device_waits,
            overtaking,
            limited,
            weighted,
            two_pools,
            order: if waits_first {
                WhenShort::WaitBriefly
            } else {
                WhenShort::GrowFirst
            },
            waiters: if is_alone { 1 } else { 6 },
            idle_streams: if has_idle { 70 } else { 0 },
            has_drains,
            may_fail,
            grows,
            is_shared,
        }
    }

    /// Chooses the settings that the operations do not depend on.
    fn tune(self, mut builder: PoolBuilder) -> PoolBuilder {
        let mut random = fastrand::Rng::with_seed(!self.seed);
        let mut chance = || random.u32(..4) == 0;
        if chance() {
            builder = builder.tuning(|tuning| tuning.lane_bytes = 0);
        }
        if chance() {
            builder = builder.tuning(|tuning| tuning.lane_bytes = ALL);
        }
        if chance() {
            builder = builder.tuning(|tuning| tuning.growth = GrowBy::AtLeast(6 * MIB));
        }
        if chance() {
            builder = builder.tuning(|tuning| tuning.remapping = Remapping::Never);
        }
        if chance() {
            builder = builder.tuning(|tuning| tuning.remapping = Remapping::Always);
        }
        if chance() {
            builder = builder.release_threshold(ReleaseThreshold::Bytes(4 * MIB));
        }
        if chance() {
            builder = builder.sealing(Sealing::EveryFree);
        }
        if chance() {
            // No deadlock is looked for in the time of a test.
            return builder.fail_deadlocks_after(10 * us(100_000_000));
        }
        match self.may_fail {
            true => builder.fail_deadlocks_after(us(3000)),
            false => builder,
        }
    }
}

#[derive(Debug)]
enum Granted {
    Block(Block),
    Blocks(Vec<Block>),
    Reservation(Reservation),
}

type Answer = Result<Granted, AllocError>;
type Task = Woken<'static, Answer>;

struct World {
    settings: Settings,
    random: fastrand::Rng,
    device: SimDevice,
    pools: Vec<TestPool>,
    capacities: Vec<u64>,
    /// The streams of each pool.
    streams: Vec<Vec<(SimStream, Stream)>>,
    _idle: Vec<(SimStream, Stream)>,
    blocks: Vec<Block>,
    reservations: Vec<Reservation>,
    /// Memory that other code has: addresses and bytes.
    outside: Vec<(u64, u64)>,
    evictables: Vec<Evictable>,
    pins: Vec<Pinned>,
    /// Tasks that are polled when they are woken.
    tasks: Vec<Task>,
    /// Tasks that are never polled again.
    dead: Vec<Task>,
    reclaimers: Vec<Woken<'static, ()>>,
    /// Drains that are polled when they are woken.
    drains: Vec<Woken<'static, Result<(), DrainError>>>,
    /// Drains that are never polled again: what they are told, nobody passes on.
    dead_drains: Vec<Woken<'static, Result<(), DrainError>>>,
}

impl World {
    fn new(settings: Settings) -> Self {
        let is_scarce = settings.two_pools || settings.is_shared;
        let device = sized(if is_scarce { 20 } else { 64 } * MIB, settings.is_virtual);
        let pool = || {
            let mut builder = settings
                .tune(builder(&device, ALL).tuning(|tuning| tuning.when_short = settings.order));
            if !settings.device_waits {
                builder = builder.tuning(|tuning| tuning.reuse = only_host_waits());
            }
            if settings.overtaking {
                builder = builder.tuning(|tuning| tuning.overtaking = overtaking(2, ALL));
            }
            let pool = builder.made();
            if settings.limited {
                pool.tag(Tag::new(TAG)).set_limit(Some(8 * MIB));
            }
            pool
        };
        let count = if settings.two_pools { 2 } else { 1 };
        let pools: Vec<_> = (0..count).map(|_| pool()).collect();
        let of_pool = |pool| (0..STREAMS).map(|_| stream(&device, pool)).collect();
        let idle = pools.iter().flat_map(|pool| {
            let idle = 0..settings.idle_streams;
            idle.map(|_| stream(&device, pool)).collect::<Vec<_>>()
        });
        let reclaimer = |pool: &Pool| Woken::new(pool.maintain().reclaimer());
        let with_reclaimer = if settings.has_reclaimer {
            &pools[..]
        } else {
            &[]
        };
        Self {
            random: fastrand::Rng::with_seed(settings.seed),
            streams: pools.iter().map(|pool| of_pool(pool)).collect(),
            _idle: idle.collect(),
            blocks: Vec::new(),
            reservations: Vec::new(),
            outside: Vec::new(),
            evictables: Vec::new(),
            pins: Vec::new(),
            tasks: Vec::new(),
            dead: Vec::new(),
            reclaimers: with_reclaimer.iter().map(|pool| reclaimer(pool)).collect(),
            drains: Vec::new(),
            dead_drains: Vec::new(),
            settings,
            device,
            capacities: vec![ALL; pools.len()],
            pools,
        }
    }

    fn any_pool(&mut self) -> usize {
        self.random.usize(..self.pools.len())
    }

    fn any_stream(&mut self, pool: usize) -> (SimStream, Stream) {
        let (work, stream) = &self.streams[pool][self.random.usize(..STREAMS)];
        (work.clone(), stream.clone())
    }

    fn any_block(&mut self) -> Option<usize> {
        let count = self.blocks.len();
        (count > 0).then(|| self.random.usize(..count))
    }

    fn any_bytes(&mut self) -> u64 {
        let bytes = [512, 4096, MIB / 2, MIB, 3 * MIB, 5 * MIB, 8 * MIB, 12 * MIB];
        bytes[self.random.usize(..bytes.len())]
    }

    fn request(&mut self) {
        if self.tasks.len() >= self.settings.waiters {
            return;
        }
        let at = self.any_pool();
        let (_, stream) = self.any_stream(at);
        let (pool, bytes) = (self.pools[at].clone(), self.any_bytes());
        let priority = self.random.i32(-1..2);
        let timeout = us(self.random.u64(1..3000));
        let has_tag = self.settings.limited || self.settings.weighted;
        let is_tagged = has_tag && bytes <= 8 * MIB;
        let more = self.random.u64(1..4 * MIB);
        let (blocks, reservations) = (self.blocks.len(), self.reservations.len());
        let future: Pin<Box<dyn Future<Output = Answer>>> = match self.random.u32(..14) {
            10 if self.settings.grows && blocks > 0 => {
                let mut block = self.blocks.swap_remove(self.random.usize(..blocks));
                Box::pin(async move {
                    // The addresses above it may be in use.
                    let _ = block.grow(more).await;
                    Ok(Granted::Block(block))
                })
            }
            11 if self.settings.grows && reservations > 0 => {
                let at = self.random.usize(..reservations);
                let mut reservation = self.reservations.swap_remove(at);
                Box::pin(async move {
                    drop(reservation.split(more / 4));
                    let _ = reservation.grow(more).await;
                    Ok(Granted::Reservation(reservation))
                })
            }
            12 if reservations > 0 => {
                let nested = async move { Ok(Granted::Reservation(pool.reserve(bytes).await?)) };
                Box::pin(self.reservations[self.random.usize(..reservations)].scope(nested))
            }
            13 if is_tagged => Box::pin(async move {
                let reservation = pool.reserve(bytes).tag(Tag::new(TAG)).await?;
                Ok(Granted::Reservation(reservation))
            }),
            0 => Box::pin(async move {
                let parts = [bytes / 2 + 512, bytes / 2 + 512];
                let blocks = pool.allocate_many(&stream, parts).await?;
                Ok(Granted::Blocks(blocks.into_iter().collect()))
            }),
            1 => Box::pin(async move { Ok(Granted::Reservation(pool.reserve(bytes).await?)) }),
            2 if reservations > 0 => {
                let at = self.random.usize(..reservations);
                let scoped = self.reservations[at].scope(async move {
                    let block = pool.allocate(&stream, bytes).await?;
                    Ok(Granted::Block(block))
                });
                Box::pin(scoped)
            }
            3..7 if is_tagged => Box::pin(async move {
                let request = pool.allocate(&stream, bytes).tag(Tag::new(TAG));
                Ok(Granted::Block(request.await?))
            }),
            7 => Box::pin(async move {
                let block = pool.allocate(&stream, bytes).timeout(timeout).await?;
                Ok(Granted::Block(block))
            }),
            _ => Box::pin(async move {
                let block = pool.allocate(&stream, bytes).priority(priority).await?;
                Ok(Granted::Block(block))
            }),
        };
        let task = match self.random.u32(..20) {
            0 => Woken::panicking(future),
            _ => Woken::new(future),
        };
        if task.is_waiting() && self.dead.len() < 2 && self.random.u32(..10) == 0 {
            self.dead.push(task);
        } else {
            self.tasks.push(task);
        }
    }

    fn act(&mut self) {
        let pool = self.any_pool();
        match self.random.u32(..36) {
            0..6 => self.request(),
            6..10 => {
                if let Some(at) = self.any_block() {
                    drop(self.blocks.swap_remove(at));
                }
            }
            10..13 => {
                let (work, stream) = self.any_stream(pool);
                let duration = us(self.random.u64(1..3000));
                if let Some(at) = self.any_block() {
                    // Fails if the block is another pool's.
                    let _ = stream.record_use(Unordered::UntilFreed(&self.blocks[at]));
                }
                run(&work, duration);
            }
            13 => {
                let ((_, before), (_, after)) = (self.any_stream(pool), self.any_stream(pool));
                let _ = before.event().map(|event| after.wait(&event));
            }
            14 => drop(self.any_stream(pool).1.seal()),
            15 => drop(self.pools[pool].maintain().reap()),
            16 => drop(self.pools[pool].trim_to(self.random.u64(..ALL))),
            17 => {
                let count = self.tasks.len();
                if count > 0 {
                    drop(self.tasks.swap_remove(self.random.usize(..count)));
                }
            }
            18 => {
                // The stream is gone, but for its blocks and requests.
                let at = self.random.usize(..STREAMS);
                self.streams[pool][at] = stream(&self.device, &self.pools[pool]);
            }
            19 => {
                if self.random.bool() {
                    drop(self.reservations.pop());
                }
                let (_, stream) = self.any_stream(pool);
                let bytes = self.random.u64(1..4 * MIB);
                let drawn = self
                    .reservations
                    .last()
                    .map(|of| of.allocate(&stream, bytes));
                self.blocks.extend(drawn.and_then(Result::ok));
            }
            // As on a stream that is captured. Errors of these calls are expected.
            20 => self.device.faults().fail_next(Call::Record, Unsupported),
            21 => {
                let (_, stream) = self.any_stream(pool);
                let bytes = self.any_bytes();
                self.blocks
                    .extend(self.pools[pool].try_allocate(&stream, bytes));
            }
            22 if self.settings.has_drains => self.drain(pool),
            24..27 => {
                if let Some(at) = self.any_block() {
                    let block = self.blocks.swap_remove(at);
                    self.evictables.push(block.into_evictable());
                }
            }
            27 => {
                self.evictables.retain(Evictable::is_present);
                if self.random.bool() {
                    drop(self.pins.pop());
                } else if !self.evictables.is_empty() {
                    let at = self.random.usize(..self.evictables.len());
                    self.pins.extend(self.evictables[at].pin());
                }
            }
            28 if self.settings.limited => {
                let lowest = if self.settings.may_fail { 2 } else { 8 };
                let limits = [Some(lowest * MIB), Some(10 * MIB), None];
                let limit = limits[self.random.usize(..limits.len())];
                self.pools[pool].tag(Tag::new(TAG)).set_limit(limit);
            }
            23 => {
                let drains = [&mut self.drains, &mut self.dead_drains];
                drop(drains.map(Vec::pop));
            }
            29 if self.settings.weighted => {
                let weight = self.random.u32(..4);
                self.pools[pool].tag(Tag::new(TAG)).set_weight(weight);
            }
            30 => {
                let most = if self.settings.may_fail { 6 } else { 2 };
                let capacity = ALL - CHUNK * self.random.u64(..most);
                self.capacities[pool] = capacity;
                let _ = self.pools[pool].resize(capacity).unwrap();
            }
            31 => {
                let reuse = if self.random.bool() {
                    Reuse::ALL
                } else {
                    only_host_waits()
                };
                self.pools[pool].maintain().set_reuse(reuse);
            }
            32 if self.settings.is_shared => match self.outside.pop() {
                Some(memory) if self.random.bool() => self.release(memory),
                memory => {
                    self.outside.extend(memory);
                    let bytes = CHUNK * self.random.u64(1..4);
                    let taken = self.device.allocate(MemoryKind::Device, bytes);
                    self.outside.extend(taken.map(|address| (address, bytes)));
                }
            },
            _ => self.device.advance(us(self.random.u64(1..500))),
        }
        self.settle();
    }

    fn release(&self, (address, bytes): (u64, u64)) {
        let released = self.device.free(MemoryKind::Device, address, bytes);
        released.unwrap();
    }

    fn drain(&mut self, pool: usize) {
        let drain = Woken::new(self.pools[pool].drain());
        match self.random.bool() {
            true => self.drains.push(drain),
            false => self.dead_drains.push(drain),
        }
    }

    /// Polls tasks that were woken, until none is.
    fn settle(&mut self) {
        while settle(&mut self.reclaimers) + settle(&mut self.tasks) + settle(&mut self.drains) > 0
        {
        }
        self.drains.retain(Woken::is_waiting);
        for mut task in self.tasks.extract_if(.., |task| !task.is_waiting()) {
            match task.output.take().unwrap() {
                Ok(Granted::Block(block)) => self.blocks.push(block),
                Ok(Granted::Blocks(blocks)) => self.blocks.extend(blocks),
                Ok(Granted::Reservation(reservation)) => self.reservations.push(reservation),
                Err(AllocError::TimedOut { .. }) => {}
                Err(
                    AllocError::Deadlocked(_)
                    | AllocError::DeadlockedAtLimit { .. }
                    | AllocError::OverLimit { .. }
                    | AllocError::TooLarge { .. },
                ) if self.settings.may_fail => {}
                Err(error) => panic!("{error}: {:?}", self.settings),
            }
        }
    }

    /// Lets the device and the tasks become quiet.
    fn quiet(&mut self) {
        // Until no scripted fault is left.
        while self.streams[0][0].1.event().is_err() {}
        for (_, stream) in self.streams.iter().flatten() {
            stream.seal().unwrap();
        }
        for _ in 0..20 {
            self.settle();
            self.device.advance(LONG / 10);
        }
        self.settle();
    }

    /// Searches afresh for every request.
    fn expect_no_lost_wake(&mut self) {
        self.quiet();
        assert!(self.tasks.iter().all(|task| !task.is_woken()));
        let is_unwoken = |task: &&mut Task| !task.is_woken();
        let mut unwoken: Vec<_> = self.dead.iter_mut().filter(is_unwoken).collect();
        // New terms, which are the old ones: every request is searched for.
        for (pool, capacity) in self.pools.iter().zip(&self.capacities) {
            let _ = pool.resize(*capacity).unwrap();
        }
        // A request that was let in by the search is woken by it.
        let is_idle = |task: &Task| task.is_waiting() && !task.is_woken();
        self.tasks.iter_mut().for_each(Woken::poll);
        let are_idle = self.tasks.iter().all(is_idle);
        assert!(are_idle, "not woken: {:?}", self.settings);
        unwoken.iter_mut().for_each(|task| task.poll());
        let are_idle = unwoken.iter().all(|task| is_idle(task));
        assert!(are_idle, "not woken: {:?}", self.settings);
        self.pools
            .iter()
            .for_each(|pool| pool.inspect().check().unwrap());
    }

    /// Gives everything back, little by little. All requests that are polled end.
    fn end(mut self) {
        // First: dead requests keep the memory that they were granted.
        self.dead.clear();
        self.evictables.clear();
        self.pins.clear();
        for memory in std::mem::take(&mut self.outside) {
            self.release(memory);
        }
        self.quiet();
        while !self.blocks.is_empty() || !self.reservations.is_empty() {
            self.blocks.pop();
            self.reservations.pop();
            self.quiet();
        }
        // A block that grows keeps its memory, and may wait for that of another one that does.
        let may_wait = self.settings.grows || self.tasks.is_empty();
        assert!(may_wait, "no progress: {:?}", self.settings);
        self.tasks.clear();
        self.quiet();
        self.pools
            .iter()
            .for_each(|pool| pool.inspect().check_conserved().unwrap());
    }
}

#[test]
fn request_that_could_be_granted_does_not_sleep() {
    let seeds = std::env::var("WEIRPOOL_PROGRESS_SEEDS");
    let seeds = seeds.map_or(1024, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let mut world = World::new(Settings::of_seed(seed));
        for _ in 0..6 {
            for _ in 0..25 {
                world.act();
            }
            world.expect_no_lost_wake();
        }
        world.end();
    }
}
