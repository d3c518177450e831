//! Random tasks on random streams, with every operation of the public interface, under three oracles:
//!
//! - **Order.** A [spy](super::oracle) around the device keeps vector clocks of its own: a use of memory must come after
//!   every use of its earlier owners.
//! - **Bytes.** Each owner stamps both ends of its block, and a later operation checks the stamps.
//! - **Progress.** No task holds memory while it waits for more, so each wait must end. A quiet system in which a task
//!   still waits fails the test.
//!
//! `WEIRPOOL_STRESS_SEEDS=5000 cargo test --release --test random stress` runs more seeds; `WEIRPOOL_STRESS_SEED=17`
//! runs one.

use super::oracle::{Oracle, Spy};
use crate::common::*;
use futures::future::{Either, join_all, select};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use weirpool::device::sim::{Checker, Operation, SimDevice, SimStream};
use weirpool::*;
use weirpool_observe::Recorded as _;

const CAPACITY: u64 = 16 * MIB;
const TASKS: usize = 12;
const STEPS: usize = 24;

struct Queue {
    work: SimStream,
    stream: Stream,
}

struct World {
    device: SimDevice,
    oracle: Arc<Mutex<Oracle>>,
    pool: TestPool,
    queues: Vec<Queue>,
    /// Further streams, which do nothing: in every fourth seed 70, so that a search looks at the active ones only.
    _idle: Vec<Queue>,
    /// Blocks that one task allocated and another frees.
    mailbox: Mutex<Vec<(Block, u64)>>,
    /// Blocks that the pool may evict, with their owners.
    cached: Mutex<Vec<(Evictable, u64)>>,
    owners: AtomicU64,
    corruptions: Arc<AtomicU64>,
}

impl World {
    fn new(seed: u64, leaves_out_waits: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = SimDevice::builder()
            .memory(64 * MIB)
            .seed(seed)
            .virtual_memory(random.u8(..4) != 0);
        // Pools without observers take other ways.
        let checker = if leaves_out_waits || random.u8(..3) == 0 {
            Checker::Off
        } else {
            Checker::Panic
        };
        let device = device.checker(checker).build();
        let oracle = Arc::<Mutex<Oracle>>::default();
        let spy = Spy {
            device: device.clone(),
            oracle: oracle.clone(),
            leaves_out_waits,
        };
        let orders = [WhenShort::GrowFirst, WhenShort::WaitBriefly];
        let builder = Pool::builder(spy)
            .capacity(CAPACITY)
            .chunk_bytes(CHUNK)
            .tuning(|tuning| {
                tuning.when_short = orders[random.usize(..2)];
                tuning.reuse = [only_host_waits(), Reuse::ALL][usize::from(random.bool())];
                tuning.lane_bytes = [0, MIB, 8 * MIB, 256 * MIB][random.usize(..4)];
            })
            .sealing([Sealing::OnDemand, Sealing::default()][random.usize(..2)]);
        let builder = if random.u8(..3) == 0 {
            builder.tuning(|tuning| tuning.overtaking = overtaking(4, 8 * MIB))
        } else {
            builder
        };
        let pool = builder.made();
        let queue = |_| {
            let (work, stream) = stream(&device, &pool);
            Queue { work, stream }
        };
        Self {
            queues: (0..random.usize(1..5)).map(queue).collect(),
            _idle: (0..if seed % 4 == 3 { 70 } else { 0 }).map(queue).collect(),
            device,
            oracle,
            pool,
            mailbox: Mutex::default(),
            cached: Mutex::default(),
            owners: AtomicU64::new(1),
            corruptions: Arc::default(),
        }
    }

    /// Submits work of a new owner that stamps both ends of its block. Returns the owner.
    fn write(&self, work: &SimStream, block: &Block, micros: u64) -> u64 {
        let owner = self.owners.fetch_add(1, Ordering::Relaxed);
        let stamp = owner.to_ne_bytes();
        let ends = self.count_use(work, block, owner);
        let operation = Operation::new(us(micros)).writes(block.address(), block.size());
        work.submit(operation.run(move |memory| {
            ends.into_iter().for_each(|end| memory.write(end, &stamp));
        }));
        owner
    }

    /// Submits work that checks the stamps of the block's owner.
    fn read(&self, work: &SimStream, block: &Block, owner: u64, micros: u64) {
        let corruptions = self.corruptions.clone();
        let ends = self.count_use(work, block, owner);
        let operation = Operation::new(us(micros)).reads(block.address(), block.size());
        work.submit(operation.run(move |memory| {
            for end in ends {
                let mut seen = [0; 8];
                memory.read(end, &mut seen);
                corruptions.fetch_add(u64::from(seen != owner.to_ne_bytes()), Ordering::Relaxed);
            }
        }));
    }

    /// Tells the oracle of a use. Returns the addresses of the two stamps.
    fn count_use(&self, work: &SimStream, block: &Block, owner: u64) -> [u64; 2] {
        let (start, end) = (
            block.address().to_bits(),
            block.address().to_bits() + block.size(),
        );
        let mut oracle = self.oracle.lock().unwrap();
        oracle.use_range(owner, work.raw(), start, end);
        [start, end - 8]
    }
}

struct Task<'a> {
    world: &'a World,
    random: fastrand::Rng,
}

impl<'a> Task<'a> {
    fn queue(&mut self) -> &'a Queue {
        let at = self.random.usize(..self.world.queues.len());
        &self.world.queues[at]
    }

    fn bytes(&mut self) -> u64 {
        let bits = self.random.u32(4..24);
        self.random
            .u64((1 << bits)..=(1 << (bits + 1)).min(CAPACITY / 2))
            .max(16)
    }

    fn micros(&mut self) -> u64 {
        1 << self.random.u32(0..9)
    }

    async fn run(mut self) {
        for _ in 0..STEPS {
            match self.random.u32(..22) {
                0..=6 => self.request().await,
                7 => self.hand_over().await,
                8 => self.cancel(),
                9 => self.many().await,
                10 => self.reserve().await,
                11 => self.with_a_limit().await,
                12 => self.grow().await,
                13 => self.manage(),
                14 => self.free_another(),
                15 => self.short_stream().await,
                16 => {
                    let stream = &self.queue().stream;
                    stream.seal().unwrap();
                    drop(stream.event().unwrap());
                }
                17 => self.queue().stream.synchronize().await.unwrap(),
                18 => self.cache().await,
                19 => self.read_cached().await,
                _ => {
                    let time = us(self.micros());
                    self.world.device.sleep(time).await;
                }
            }
        }
    }

    /// Allocates, uses the block on its own stream and perhaps on another, and frees it.
    async fn request(&mut self) {
        let bytes = self.bytes();
        let world = self.world;
        let home = self.queue();
        let block = world.pool.allocate(&home.stream, bytes).await.unwrap();
        let micros = self.micros();
        let owner = world.write(&home.work, &block, micros);
        if self.random.bool() {
            let further = self.queue();
            further.stream.wait(&home.stream.event().unwrap()).unwrap();
            until_freed(&further.stream, &block);
            world.read(&further.work, &block, owner, micros);
        }
        match self.random.u32(..4) {
            0 => block.deallocate().await.unwrap(),
            1 => world.mailbox.lock().unwrap().push((block, owner)),
            _ => {
                world.read(&home.work, &block, owner, micros);
                drop(block);
            }
        }
        // A task that waits holds nothing, in the mailbox either.
        self.free_another();
    }

    /// Writes a block that the pool may evict.
    async fn cache(&mut self) {
        let (world, bytes) = (self.world, self.bytes());
        let home = self.queue();
        let block = world.pool.allocate(&home.stream, bytes).await.unwrap();
        let owner = world.write(&home.work, &block, self.micros());
        let mut cached = world.cached.lock().unwrap();
        cached.push((block.into_evictable(), owner));
        if cached.len() > 6 {
            let oldest = cached.remove(0);
            drop(cached);
            drop(oldest);
        }
    }

    /// Reads a block that the pool may evict, on any stream, if it is there.
    async fn read_cached(&mut self) {
        let world = self.world;
        let pinned = {
            let cached = world.cached.lock().unwrap();
            let at = self.random.usize(..cached.len().max(1));
            cached
                .get(at)
                .and_then(|(block, owner)| Some((block.pin()?, *owner)))
        };
        let Some((pin, owner)) = pinned else {
            return;
        };
        let queue = self.queue();
        let _ = queue.stream.record_use(&*pin).unwrap();
        let micros = self.micros();
        world.read(&queue.work, &pin, owner, micros);
        if self.random.bool() {
            world.device.sleep(us(micros)).await;
        }
    }

    fn free_another(&mut self) {
        let taken = std::mem::take(&mut *self.world.mailbox.lock().unwrap());
        for (block, owner) in taken {
            let home = self
                .world
                .queues
                .iter()
                .find(|queue| queue.stream.id() == block.stream().id());
            let home = home.expect("the stream of the block");
            self.world.read(&home.work, &block, owner, 5);
        }
    }

    /// A producer and a consumer on two streams.
    async fn hand_over(&mut self) {
        let (world, bytes) = (self.world, self.bytes());
        let (from, to) = (0, world.queues.len() - 1);
        let (from, to) = (&world.queues[from], &world.queues[to]);
        let block = world.pool.allocate(&from.stream, bytes).await.unwrap();
        let owner = world.write(&from.work, &block, 30);
        to.stream.wait(&from.stream.event().unwrap()).unwrap();
        to.stream.record_use(Unordered::UntilFreed(&block)).unwrap();
        world.read(&to.work, &block, owner, 30);
    }

    /// Polls a request some times and drops it.
    fn cancel(&mut self) {
        let (bytes, polls) = (self.bytes(), self.random.u32(..3));
        let request = self.world.pool.allocate(&self.queue().stream, bytes);
        let mut request = pin!(request);
        for _ in 0..polls {
            if request
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
            {
                break;
            }
        }
    }

    async fn many(&mut self) {
        let (world, sizes) = (self.world, [self.bytes() / 4 + 16, self.bytes() / 4 + 16]);
        let home = &world.queues[0];
        let blocks = world.pool.allocate_many(&home.stream, sizes).await.unwrap();
        for block in blocks {
            let owner = world.write(&home.work, &block, 10);
            world.read(&home.work, &block, owner, 10);
        }
    }

    async fn reserve(&mut self) {
        let (world, bytes) = (self.world, self.bytes().max(1024));
        let reservation = world.pool.reserve(bytes).await.unwrap();
        // Mostly for one stream, in two sizes: as blocks are kept for.
        let mut home = self.queue();
        let mut held = None;
        for _ in 0..8 {
            if self.random.u8(..4) == 0 {
                home = self.queue();
            }
            let bytes = bytes >> self.random.u8(0..2);
            if let Ok(block) = reservation.allocate(&home.stream, bytes / 2) {
                let owner = world.write(&home.work, &block, 10);
                world.read(&home.work, &block, owner, 10);
                if self.random.u8(..3) == 0 {
                    held = Some((block, home, owner));
                }
            }
            if let Some((block, home, owner)) = held.take_if(|_| self.random.bool()) {
                world.read(&home.work, &block, owner, 10);
            }
            if self.random.u8(..8) == 0 {
                let _ = world.pool.inspect().snapshot();
            }
        }
    }

    async fn with_a_limit(&mut self) {
        let (world, bytes, limit) = (self.world, self.bytes(), us(self.micros()));
        let tag = Tag::new(["red", "green"][self.random.usize(..2)]);
        let home = &world.queues[0];
        let request = world.pool.allocate(&home.stream, bytes).tag(tag);
        let answer = if self.random.bool() {
            request.timeout(limit).await
        } else {
            request
                .deadline(limit)
                .priority(self.random.i32(-2..3))
                .await
        };
        match answer {
            Ok(block) => {
                world.write(&home.work, &block, 10);
            }
            Err(error) => assert_matches!(error, AllocError::TimedOut { .. }),
        }
    }

    async fn grow(&mut self) {
        let world = self.world;
        let home = &world.queues[0];
        let request = world.pool.allocate(&home.stream, MIB).room(2 * MIB);
        let mut block = match request.await {
            Ok(block) => block,
            Err(AllocError::NoRoom { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        // A task that held memory and waited for more could wait for ever.
        drop(block.grow(MIB).try_now());
        world.write(&home.work, &block, 10);
    }

    fn manage(&mut self) {
        let pool = &self.world.pool;
        match self.random.u32(..6) {
            0 => drop(pool.trim_to(self.random.u64(..CAPACITY)).unwrap()),
            1 => drop(pool.maintain().coalesce().unwrap()),
            2 => drop(
                pool.resize(CAPACITY + CHUNK * self.random.u64(..4))
                    .unwrap(),
            ),
            3 => drop(pool.maintain().reap().unwrap()),
            4 => drop((
                pool.inspect().statistics(),
                pool.inspect().snapshot(),
                pool.leaks(),
            )),
            _ => drop(pool.try_allocate(&self.world.queues[0].stream, 4096)),
        }
    }

    /// A stream that is gone while its memory is pending.
    async fn short_stream(&mut self) {
        let (world, bytes) = (self.world, self.bytes());
        let (work, stream) = stream(&world.device, &world.pool);
        let block = world.pool.allocate(&stream, bytes).await.unwrap();
        world.write(&work, &block, 40);
    }
}

fn run_seed(seed: u64, leaves_out_waits: bool) -> Result<u64, String> {
    let world = World::new(seed, leaves_out_waits);
    let tasks = (0..TASKS).map(|task| {
        let random = fastrand::Rng::with_seed(seed.wrapping_mul(1009).wrapping_add(task as u64));
        Task {
            world: &world,
            random,
        }
        .run()
    });
    world.device.block_on(async {
        let all = pin!(join_all(tasks));
        // Longer than any backlog of work: if tasks still wait by then, they wait for ever.
        let limit = pin!(world.device.sleep(us(60_000_000)));
        match select(all, limit).await {
            Either::Left(_) => {}
            Either::Right(_) => panic!(
                "a task waits although the system is quiet: {}",
                world.pool.inspect().describe()
            ),
        }
        world.mailbox.lock().unwrap().clear();
        world.pool.drain().await.unwrap();
    });
    let oracle = world.oracle.lock().unwrap();
    if let Some(violation) = oracle.violations.first() {
        return Err(violation.clone());
    }
    world.device.assert_ordered();
    assert_eq!(
        world.corruptions.load(Ordering::Relaxed),
        0,
        "an owner's bytes were overwritten"
    );
    let checked = oracle.checked;
    drop(oracle);
    world.pool.inspect().check_conserved()?;
    Ok(checked)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn random_tasks_keep_order_bytes_and_progress() {
    if let Some(seed) = number("WEIRPOOL_STRESS_SEED") {
        run_seed(seed, false).unwrap();
        return;
    }
    let seeds = number("WEIRPOOL_STRESS_SEEDS").unwrap_or(200);
    let mut checked = 0;
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| run_seed(seed, false));
        let outcome = outcome.unwrap_or_else(|_| Err("panicked".to_owned()));
        checked += outcome.unwrap_or_else(|why| panic!("WEIRPOOL_STRESS_SEED={seed}: {why}"));
        if (seed + 1) % 10_000 == 0 {
            println!("{} seeds so far", seed + 1);
        }
    }
    println!("{seeds} seeds, {checked} orders checked");
    assert!(checked > seeds, "memory went from owner to owner");
}

#[test]
fn oracle_notices_waits_that_are_left_out() {
    // A use of memory that is not mapped any more breaks the device, and the run panics.
    let notices = |seed| !matches!(std::panic::catch_unwind(|| run_seed(seed, true)), Ok(Ok(_)));
    assert!(
        (0..50).any(notices),
        "50 runs without a single wait on the device looked right"
    );
}
