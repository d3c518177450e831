//! The seams of a pool at once: memory of others and charges for it, an observer that keeps books of its own, requests whose
//! owner frees memory when they stall, a source that grants and recalls capacity, and a source of segments: plain ones, or
//! those of a pool of the driver, in the order of streams. Some seeds leave one of the two sources out.
//!
//! After each step, no more is held than the source allows, or than was held when it recalled some. When nothing moves any
//! more, the observer's books are those of the pool, and the request that is next cannot be served.

use crate::common::*;
use crate::over_seeds;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool::device::sim::SimDevice;
use weirpool::device::{Device, DeviceError, MemoryKind, RawStream};
use weirpool::device::{DeviceAddress, DeviceId};
use weirpool::extend::{
    BoundedPool, Bounds, CapacitySource, Charge, Event, Fact, ForeignMemory, Joining, Observer,
    Passages, SegmentProperties, SegmentSource,
};
use weirpool::{AllocError, Block, Download, Evictable, Pool, Stream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

const CAPACITY: u64 = 16 * MIB;
const PIECE: u64 = 2 * MIB;
const STEPS: usize = 240;

/// Lends what the test says.
#[derive(Debug, Default)]
struct Lender {
    pool: Mutex<Option<BoundedPool>>,
    needed: AtomicU64,
    ended: AtomicUsize,
}

impl CapacitySource for Lender {
    fn join(&self, _: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
        Ok(Some(u64::MAX))
    }

    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.pool.lock().unwrap() = Some(pool);
        Ok(())
    }

    fn need(&self, bytes: u64) {
        self.needed.store(bytes, SeqCst);
    }

    fn satisfied(&self) {
        self.needed.store(0, SeqCst);
    }

    fn ended(&self) {
        self.ended.fetch_add(1, SeqCst);
    }
}

/// Segments of the device, each of which the pool has at most once.
#[derive(Debug)]
struct Segments {
    device: SimDevice,
    id: DeviceId,
    taken: Mutex<BTreeMap<u64, u64>>,
}

// SAFETY: each segment is memory of the device until it is given back.
unsafe impl SegmentSource for Segments {
    fn properties(&self) -> SegmentProperties {
        SegmentProperties {
            owner: "the test",
            device: self.id,
            kind: MemoryKind::Device,
            granularity: PIECE,
            most: u64::MAX,
            is_ordered: false,
        }
    }

    unsafe fn take(&self, bytes: u64, _: u64, _: RawStream) -> Result<u64, DeviceError> {
        let address = self.device.allocate(MemoryKind::Device, bytes)?;
        let before = self.taken.lock().unwrap().insert(address, bytes);
        assert_eq!(before, None);
        Ok(address)
    }

    unsafe fn give(&self, address: u64, bytes: u64, _: RawStream) -> Result<(), DeviceError> {
        let taken = self.taken.lock().unwrap().remove(&address);
        assert_eq!(taken, Some(bytes), "given back as it was taken");
        self.device.free(MemoryKind::Device, address, bytes)
    }
}

/// What the events say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entries {
    blocks: BTreeMap<DeviceAddress, u64>,
    reserved: u64,
    evicted: u64,
    waiting: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Books(Mutex<Entries>);

impl Observer for Books {
    fn event(&self, event: &Event<'_>) {
        let mut entries = self.0.lock().unwrap();
        match event.fact {
            Fact::Granted { address, size, .. } => {
                let before = entries.blocks.insert(address, size);
                assert_eq!(before, None, "{address} is granted twice");
            }
            Fact::Freed { address, size, .. } => {
                assert_eq!(entries.blocks.remove(&address), Some(size));
            }
            Fact::Grown { bytes, .. } => entries.reserved += bytes,
            Fact::Released { bytes, .. } => entries.reserved -= bytes,
            Fact::Evicted { bytes } => entries.evicted += bytes,
            Fact::Waiting { .. } => drop(entries.waiting.insert(event.number)),
            Fact::Waited { since, .. } => assert!(entries.waiting.remove(&since)),
            _ => {}
        }
    }
}

/// An owner of memory, which it uses again.
#[derive(Debug)]
struct Arena {
    device: SimDevice,
    free: Mutex<Vec<u64>>,
    made: AtomicUsize,
}

#[derive(Debug)]
struct Piece {
    arena: Arc<Arena>,
    address: u64,
    _charge: Charge,
}

// SAFETY: the arena gives out each piece once, and has it back after the passages.
unsafe impl ForeignMemory for Piece {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(self.address), PIECE)
    }

    fn release(self: Box<Self>, after: Passages) {
        after.then(move || self.arena.free.lock().unwrap().push(self.address));
    }
}

impl Arena {
    fn block(self: &Arc<Self>, stream: &Stream, charge: Charge) -> Block {
        let free = self.free.lock().unwrap().pop();
        let address = free.unwrap_or_else(|| {
            self.made.fetch_add(1, SeqCst);
            self.device.allocate(MemoryKind::Device, PIECE).unwrap()
        });
        let (arena, _charge) = (self.clone(), charge);
        // SAFETY: the pool's device allocated it.
        unsafe {
            stream.adopt(Box::new(Piece {
                arena,
                address,
                _charge,
            }))
        }
    }
}

/// Awaits a request. With spare blocks, frees one of them whenever it stalls.
macro_rules! relieved {
    ($request:expr, $spare:expr) => {{
        let (mut request, spare) = (pin!($request), $spare);
        poll_fn(move |context| {
            if let Some(spare) = &spare
                && request.as_mut().poll_stalled(context).is_ready()
            {
                let freed = spare.lock().unwrap().pop();
                drop(freed);
            }
            request.as_mut().poll(context)
        })
        .await
    }};
}

#[derive(Debug)]
enum Granted {
    Block(Block),
    Foreign(Block),
    Charge(Charge),
}

type Task = Woken<'static, Result<Granted, AllocError>>;

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    pool: Option<TestPool>,
    streams: Vec<Stream>,
    lender: Arc<Lender>,
    segments: Arc<Segments>,
    books: Arc<Books>,
    arena: Arc<Arena>,
    is_leased: bool,
    counts_segments: bool,
    bound: u64,
    /// The most that may be held: the bound, or the bytes held when it fell, as far as they were not released since.
    most: u64,
    tasks: Vec<Task>,
    blocks: Vec<(Block, u64)>,
    foreign: Vec<(Block, u64)>,
    charges: Vec<Charge>,
    evictable: Vec<Evictable>,
    /// Blocks that the owners of stalled requests free.
    spare: Arc<Mutex<Vec<Block>>>,
    /// What blocks contained when they were freed.
    contents: Vec<(u64, Download)>,
    last: u64,
    served: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let device = manual();
        let segments = Arc::new(Segments {
            device: device.clone(),
            id: device.id(),
            taken: Mutex::default(),
        });
        let (lender, books) = (Arc::new(Lender::default()), Arc::new(Books::default()));
        let (is_leased, from) = (!seed.is_multiple_of(5), seed % 4);
        let builder = builder(&device, CAPACITY);
        let mut builder = match from {
            0 => builder,
            1 => {
                let driver_pool = DriverPool::builder(&device).build().unwrap();
                let passed = driver_pool.segments(DriverPoolUse::PassedThrough);
                let builder = Pool::builder(device.clone()).capacity(CAPACITY);
                builder.segment_source(passed)
            }
            _ => builder.segment_source(segments.clone()),
        };
        if is_leased {
            builder = builder.capacity_source(lender.clone());
        }
        let builder = builder.observer(books.clone());
        let pool = builder.fail_deadlocks_after(10 * us(1_000_000_000)).made();
        Self {
            random: fastrand::Rng::with_seed(seed),
            streams: (0..3).map(|_| pool.create_stream().unwrap()).collect(),
            arena: Arc::new(Arena {
                device: device.clone(),
                free: Mutex::default(),
                made: AtomicUsize::new(0),
            }),
            device,
            pool: Some(pool),
            lender,
            segments,
            books,
            bound: if is_leased { 0 } else { CAPACITY },
            most: if is_leased { 0 } else { CAPACITY },
            is_leased,
            counts_segments: from > 1,
            tasks: Vec::new(),
            blocks: Vec::new(),
            foreign: Vec::new(),
            charges: Vec::new(),
            evictable: Vec::new(),
            spare: Arc::default(),
            contents: Vec::new(),
            last: 0,
            served: 0,
        }
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the pool lives")
    }

    fn stream(&mut self) -> Stream {
        self.streams[self.random.usize(..3)].clone()
    }

    fn apply(&mut self, bound: u64) {
        if !self.is_leased {
            return;
        }
        let bounds = Bounds {
            first: bound,
            bound,
            is_binding: self.random.bool(),
            ..Bounds::default()
        };
        let mut pool = self.lender.pool.lock().unwrap().take();
        let holding = pool.as_mut().unwrap().apply(bounds).unwrap();
        *self.lender.pool.lock().unwrap() = pool;
        self.bound = bound;
        self.most = bound.max(holding.held);
    }

    fn request(&mut self) {
        let (pool, stream) = (self.pool().clone(), self.stream());
        let bytes = match self.random.u8(..3) {
            0 => self.random.u64(1..64) * 1024,
            _ => self.random.u64(1..=10) * MIB / 2,
        };
        let timeout = us(self.random.u64(100..3000));
        let spare = self.random.bool().then(|| self.spare.clone());
        let what = self.random.u8(..4);
        let arena = self.arena.clone();
        self.tasks.push(Woken::new(async move {
            Ok(match what {
                0 | 1 => {
                    let request = pool.allocate_owned(&stream, bytes).timeout(timeout);
                    Granted::Block(relieved!(request, spare)?)
                }
                2 => Granted::Charge(pool.charge_for(bytes).timeout(timeout).await?),
                _ => {
                    let charge = relieved!(pool.charge_for(PIECE), spare)?;
                    Granted::Foreign(arena.block(&stream, charge))
                }
            })
        }));
    }

    /// Writes what the block is to contain.
    fn mark(&mut self, mut block: Block) -> (Block, u64) {
        self.last += 1;
        let (mark, stream) = (self.last.to_le_bytes(), block.stream());
        let end = block.size() - 8;
        drop(block.upload(&stream, 0, &mark).unwrap());
        drop(block.upload(&stream, end, &mark).unwrap());
        (block, self.last)
    }

    /// Reads what the block contains, in the order of a stream, and frees it.
    fn free(&mut self, (mut block, mark): (Block, u64)) {
        let stream = self.stream();
        let end = block.size();
        for range in [0..8, end - 8..end] {
            let read = block.download(&stream, range).unwrap();
            self.contents.push((mark, read));
        }
        match self.random.u8(..4) {
            0 => drop(block.deallocate()),
            1 => {
                block.move_to(&stream).unwrap();
                drop(block);
            }
            2 => std::thread::spawn(move || drop(block)).join().unwrap(),
            _ => drop(block),
        }
    }

    fn free_one(&mut self, is_foreign: bool) {
        let list = match is_foreign {
            true => &mut self.foreign,
            false => &mut self.blocks,
        };
        if !list.is_empty() {
            let at = self.random.usize(..list.len());
            let freed = list.swap_remove(at);
            self.free(freed);
        }
    }

    fn step(&mut self) {
        match self.random.u8(..16) {
            0..5 if self.tasks.len() < 6 => self.request(),
            5 | 6 => self.free_one(false),
            7 => self.free_one(true),
            8 if !self.charges.is_empty() => {
                let at = self.random.usize(..self.charges.len());
                drop(self.charges.swap_remove(at));
            }
            9 => {
                // The contents of evictable memory are not compared.
                let block = self.blocks.pop();
                let cached = block.map(|(block, _)| block.into_evictable());
                self.evictable.extend(cached);
            }
            10 => {
                let spare = self.blocks.pop();
                self.spare
                    .lock()
                    .unwrap()
                    .extend(spare.map(|(block, _)| block));
            }
            11 => {
                let bound = self.random.u64(0..=CAPACITY / MIB) * MIB;
                self.apply(bound);
            }
            12 => {
                let needed = self.lender.needed.load(SeqCst);
                self.apply((self.bound + needed).min(CAPACITY));
            }
            13 if !self.tasks.is_empty() && self.random.bool() => {
                let at = self.random.usize(..self.tasks.len());
                drop(self.tasks.swap_remove(at));
            }
            14 if self.random.bool() => {
                let at = self.evictable.pop();
                let taken = at.and_then(|mut cached| cached.take());
                drop(taken);
            }
            15 => {
                let bytes = self.random.u64(1..4) * MIB;
                let charge = self.pool().charge(bytes).ok();
                self.charges.extend(charge);
            }
            _ => self.device.advance(us(self.random.u64(..200))),
        }
        self.settle();
        self.check_bound();
    }

    /// Polls the tasks that were woken, and takes their grants.
    fn settle(&mut self) {
        loop {
            let polls = settle(&mut self.tasks);
            let (waiting, ended) = std::mem::take(&mut self.tasks)
                .into_iter()
                .partition(Woken::is_waiting);
            self.tasks = waiting;
            let ended: Vec<Task> = ended;
            if polls == 0 && ended.is_empty() {
                break;
            }
            for task in ended {
                match task.output.expect("it has ended") {
                    Ok(granted) => {
                        self.served += 1;
                        match granted {
                            Granted::Block(block) => {
                                let marked = self.mark(block);
                                self.blocks.push(marked);
                            }
                            Granted::Foreign(block) => {
                                let marked = self.mark(block);
                                self.foreign.push(marked);
                            }
                            Granted::Charge(charge) => self.charges.push(charge),
                        }
                    }
                    Err(AllocError::TimedOut { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let read = |(mark, read): &mut (u64, Download)| match poll(read) {
            Poll::Pending => true,
            Poll::Ready(bytes) => {
                assert_eq!(bytes.unwrap(), mark.to_le_bytes(), "a block's contents");
                false
            }
        };
        self.contents.retain_mut(read);
    }

    fn check_bound(&mut self) {
        let figures = self.pool().inspect().statistics();
        let held = figures.reserved.current + figures.charged;
        assert!(held <= self.most, "{held} of {} are held", self.most);
        self.most = self.bound.max(held);
    }

    /// Waits until nothing moves any more.
    fn rest(&mut self) {
        let mut is_still = 0;
        eventually(|| {
            self.device.advance_to_end();
            self.settle();
            let foreign = PIECE * self.foreign.len() as u64;
            let is_over =
                self.pool().inspect().statistics().foreign == foreign && self.contents.is_empty();
            is_still = if is_over { is_still + 1 } else { 0 };
            is_still == 3
        });
        self.check_bound();
        self.check_books();
        self.check_next();
    }

    fn check_books(&self) {
        let (figures, entries) = (
            self.pool().inspect().statistics(),
            self.books.0.lock().unwrap(),
        );
        assert_eq!(entries.blocks.values().sum::<u64>(), figures.used.current);
        assert_eq!(entries.blocks.len() as u64, figures.live_blocks);
        assert_eq!(entries.reserved, figures.reserved.current);
        assert_eq!(entries.evicted, figures.evicted);
        assert_eq!(entries.waiting.len(), figures.waits.waiting);
        if self.counts_segments {
            let taken: u64 = self.segments.taken.lock().unwrap().values().sum();
            assert_eq!(taken, figures.reserved.current);
        }
        let charges = self.charges.iter().map(Charge::bytes).sum::<u64>();
        let foreign = PIECE * self.foreign.len() as u64;
        assert_eq!(figures.charged, charges + foreign);
    }

    /// Checks that the request that is next cannot be served.
    fn check_next(&self) {
        let figures = self.pool().inspect().statistics();
        let Some(next) = self.pool().inspect().waiting_requests(1).pop() else {
            return;
        };
        let is_block = self.streams.iter().any(|stream| stream.id() == next.stream);
        let kept = figures.reserved.current - figures.releasable_bytes + figures.charged;
        let room = self.bound.saturating_sub(kept);
        let is_room = match is_block {
            true => room >= next.requested.next_multiple_of(PIECE),
            false => room >= next.requested,
        };
        assert!(!is_room, "{next:?} sleeps beside {figures:?}");
        let is_within = figures.reserved.current + figures.charged <= self.bound;
        assert!(
            !(is_block && is_within && figures.largest_free >= next.requested),
            "{next:?} sleeps beside {figures:?}"
        );
    }

    fn end(mut self) -> u64 {
        self.apply(CAPACITY);
        let mut rounds = 0;
        while !self.tasks.is_empty() {
            self.device.advance(us(50));
            self.free_one(false);
            self.free_one(true);
            self.charges.pop();
            self.settle();
            self.check_bound();
            rounds += 1;
            assert!(rounds < 10_000, "requests that are never served");
        }
        while !self.blocks.is_empty() || !self.foreign.is_empty() {
            self.free_one(false);
            self.free_one(true);
        }
        self.charges.clear();
        self.evictable.clear();
        self.spare.lock().unwrap().clear();
        self.rest();
        self.pool().inspect().check_conserved().unwrap();
        assert_eq!(self.pool().inspect().statistics().charged, 0);
        let pieces = self.arena.free.lock().unwrap().len();
        assert_eq!(pieces, self.arena.made.load(SeqCst), "all pieces are back");
        self.streams.clear();
        self.pool = None;
        eventually(|| {
            self.device.advance(us(10));
            let has_ended = !self.is_leased || self.lender.ended.load(SeqCst) == 1;
            has_ended && self.segments.taken.lock().unwrap().is_empty()
        });
        assert!(self.books.0.lock().unwrap().blocks.is_empty());
        self.device.assert_ordered();
        self.served
    }
}

#[test]
fn all_seams_at_once_keep_their_promises() {
    let served = over_seeds(|seed| {
        let mut world = World::new(seed);
        world.apply(CAPACITY / 2);
        for step in 0..STEPS {
            world.step();
            if step % 15 == 0 {
                world.rest();
            }
        }
        world.end()
    });
    assert!(served > 2000, "{served}");
}
