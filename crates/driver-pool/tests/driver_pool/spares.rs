//! Records of freed blocks that a stream keeps as spares, each of which holds room in the capacity. Nobody may miss that
//! room, nor see a block that is freed.

use crate::common::{MIB, manual_builder, not_ready, now, poll, us};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use weirpool::device::sim::{Call, Checker, Clock, Fault, SimDevice};
use weirpool::device::{DeviceError, DeviceErrorKind, PoolAttribute, RawStream};
use weirpool::extend::{
    BoundedPool, Bounds, CapacitySource, Charge, Event, Joining, Observer, SegmentProperties,
    SegmentSource,
};
use weirpool::{AllocError, Block, Evictable, Pool, PoolBuilder, Stream, Tag};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// Makes a device without the checker, which is an observer of blocks: with one, a stream keeps no spares.
fn manual() -> SimDevice {
    manual_builder().checker(Checker::Off).build()
}

fn passed_through(device: &SimDevice, capacity: u64) -> (DriverPool, Pool) {
    passed_through_by(device, capacity, |builder| builder)
}

fn passed_through_by(
    device: &SimDevice,
    capacity: u64,
    set: impl FnOnce(PoolBuilder) -> PoolBuilder,
) -> (DriverPool, Pool) {
    let driver_pool = DriverPool::builder(device).build().unwrap();
    let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
    let builder = Pool::builder(device.clone()).segment_source(segments);
    let pool = set(builder.capacity(capacity)).build().unwrap();
    (driver_pool, pool)
}

/// Leaves spares of these sizes with the stream.
fn leave_spares(pool: &Pool, stream: &Stream, sizes: &[u64]) {
    let take = |bytes: &u64| pool.try_allocate(stream, *bytes).unwrap();
    drop(sizes.iter().map(take).collect::<Vec<_>>());
}

#[test]
fn room_that_spares_hold_serves_every_request() {
    let device = manual();
    let (driver_pool, pool) = passed_through(&device, 4 * MIB);
    let [stream, other] = [0; 2].map(|_| pool.create_stream().unwrap());
    let spares = [MIB, MIB, 2 * MIB];
    leave_spares(&pool, &stream, &spares);
    drop(pool.try_allocate(&other, 4 * MIB).expect("another stream"));
    leave_spares(&pool, &stream, &spares);
    drop(pool.try_allocate(&stream, 3 * MIB).expect("another size"));
    leave_spares(&pool, &stream, &spares);
    drop(pool.charge(4 * MIB).expect("a charge"));
    leave_spares(&pool, &stream, &spares);
    assert_eq!(pool.resize(MIB).unwrap().reserved, 0, "a smaller capacity");
    let resized = pool.resize(4 * MIB);
    assert_eq!(resized.unwrap().reserved, 0);
    // Larger ones, of which a stream keeps no more than a few.
    leave_spares(&pool, &stream, &[3 * MIB]);
    drop(pool.try_allocate(&other, 4 * MIB).expect("another stream"));
    leave_spares(&pool, &stream, &[4 * MIB]);
    drop(pool.try_allocate(&stream, 3 * MIB).expect("another size"));
    leave_spares(&pool, &stream, &spares);
    drop(stream);
    drop(now(pool.allocate(&other, 4 * MIB)).expect("the stream is gone"));
    let last = pool.try_allocate(&other, 3 * MIB).unwrap();
    let mut request = not_ready(pool.allocate(&other, 2 * MIB));
    drop(last);
    drop(now(&mut request).expect("a request that waited"));
    assert_eq!(driver_pool.used().unwrap().current, 0);
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn freed_blocks_are_in_no_figure() {
    let device = manual();
    let (driver_pool, pool) = passed_through(&device, 4 * MIB);
    let stream = pool.create_stream().unwrap();
    let block = pool.try_allocate(&stream, MIB).unwrap();
    let address = block.address();
    assert!(pool.inspect().block_at(address).is_some());
    drop(block);
    assert_eq!(driver_pool.used().unwrap().current, 0);
    assert_eq!(pool.inspect().block_at(address), None);
    leave_spares(&pool, &stream, &[MIB]);
    assert!(pool.inspect().snapshot().segments.is_empty());
    leave_spares(&pool, &stream, &[MIB, MIB]);
    let figures = pool.inspect().statistics();
    let levels = [figures.reserved, figures.used, figures.pending];
    assert_eq!(levels.map(|level| level.current), [0; 3]);
    assert_eq!((figures.free, figures.live_blocks), (0, 0));
    assert_eq!(figures.released, 4 * MIB, "once for each spare");
    assert_eq!(figures.cached_in_lanes, 0);
    (0..10).for_each(|_| leave_spares(&pool, &stream, &[4096, 8192, 3 * MIB]));
    let after = pool.inspect().statistics();
    assert_eq!(
        after.growths - figures.growths,
        3,
        "ten rounds take three segments"
    );
    assert_eq!(after.released - figures.released, 3 * MIB + 12288);
    let levels = [after.reserved, after.in_use];
    assert!(
        levels.iter().all(|level| level.high <= 4 * MIB),
        "{levels:?}"
    );
}

/// The memory of a spare is with the source already: the end of the pool gives nothing twice.
#[test]
fn pool_that_ends_with_spares_gives_nothing_twice() {
    let device = manual();
    let (driver_pool, pool) = passed_through(&device, 4 * MIB);
    let stream = pool.create_stream().unwrap();
    leave_spares(&pool, &stream, &[4096, MIB, MIB]);
    let live = pool.try_allocate(&stream, 4096).unwrap();
    drop((pool, stream));
    drop(live);
    device.advance(us(1000));
    let calls = device.counters();
    assert_eq!(calls.calls(Call::AllocateFrom), 4);
    assert_eq!(calls.calls(Call::FreeTo), 4);
    assert_eq!(driver_pool.used().unwrap().current, 0);
}

/// Tagged blocks take no spares, and leave none.
#[test]
fn tagged_blocks_leave_no_spares() {
    let (_driver_pool, pool) = passed_through(&manual(), 4 * MIB);
    let stream = pool.create_stream().unwrap();
    let pair = |_| drop(now(pool.allocate(&stream, 4096).tag(Tag::new("spares"))).unwrap());
    (0..100).for_each(pair);
    assert_eq!(pool.inspect().statistics().reserved.high, 4096);
}

/// The address is that of the new block, and not that of the spare.
#[test]
fn spare_takes_the_address_that_the_driver_gives() {
    let device = manual();
    let (_driver_pool, pool) = passed_through(&device, 8 * MIB);
    let [stream, other] = [0; 2].map(|_| pool.create_stream().unwrap());
    leave_spares(&pool, &stream, &[MIB]);
    // The driver gives the same memory to the other stream, or gave it before.
    let blocks = [&other, &stream, &other].map(|stream| pool.try_allocate(stream, MIB).unwrap());
    for block in &blocks {
        let found = pool
            .inspect()
            .block_at(block.address())
            .expect("a live block");
        assert_eq!(found.address, block.address());
        assert_eq!(found.size, block.size());
    }
    pool.inspect().check().unwrap();
}

/// A refusal of the driver is told to the request, whatever spares there are.
#[test]
fn driver_may_refuse_though_there_is_a_spare() {
    let device = manual();
    let (driver_pool, pool) = passed_through(&device, 4 * MIB);
    let stream = pool.create_stream().unwrap();
    leave_spares(&pool, &stream, &[MIB]);
    let faults = device.faults();
    // Once: the search that follows asks again.
    faults.fail_next(Call::AllocateFrom, DeviceErrorKind::OutOfMemory);
    drop(pool.try_allocate(&stream, MIB).unwrap());
    let fails = Fault::Fails(DeviceErrorKind::Other);
    (1..3).for_each(|nth| faults.script(Call::AllocateFrom, nth, fails));
    let failed = pool.try_allocate(&stream, MIB).map(drop).unwrap_err();
    assert!(matches!(failed, AllocError::Device(_)), "{failed}");
    device.advance(us(10));
    assert_eq!(driver_pool.used().unwrap().current, 0);
    assert_eq!(pool.inspect().statistics().live_blocks, 0);
    pool.inspect().check_conserved().unwrap();
}

/// Threads take and free on streams of their own and on shared ones, while one reads figures, which removes spares, and one
/// asks for more than there is, which closes the gate.
#[test]
fn spares_that_are_removed_meanwhile_lose_nothing() {
    let device = SimDevice::builder()
        .clock(Clock::Wall)
        .checker(Checker::Off)
        .build();
    let (driver_pool, pool) = passed_through(&device, 6 * MIB);
    let streams: Vec<_> = (0..3).map(|_| pool.create_stream().unwrap()).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..4 {
            let (pool, streams, is_over) = (&pool, &streams, &is_over);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut blocks = Vec::new();
                while !is_over.load(SeqCst) {
                    let stream = &streams[random.usize(..3)];
                    let bytes = [512, 4096, MIB, 3 * MIB][random.usize(..4)];
                    blocks.extend(pool.try_allocate(stream, bytes));
                    if blocks.len() > 3 || random.bool() {
                        blocks.pop();
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2000 {
                let figures = pool.inspect().statistics();
                assert!(figures.reserved.current <= 6 * MIB, "{figures:?}");
            }
            is_over.store(true, SeqCst);
        });
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let request = pool.allocate(&streams[0], 5 * MIB);
                drop(request.timeout(us(300)).blocking());
            }
        });
    });
    assert_eq!(driver_pool.used().unwrap().current, 0);
    pool.inspect().check_conserved().unwrap();
    assert_eq!(pool.inspect().statistics().reserved.current, 0);
    drop(pool.try_allocate(&streams[1], 6 * MIB).expect("all of it"));
}

/// Pairs of a stream do not go on above a capacity that was lowered.
#[test]
fn lowered_capacity_holds_for_pairs() {
    let lower: [fn(&Pool, &Lender); 2] = [
        |pool, _| drop(pool.resize(4 * MIB).unwrap()),
        |_, lender| lender.apply(4 * MIB, false),
    ];
    for lower in lower {
        let lender = Arc::<Lender>::default();
        let source = |builder: PoolBuilder| builder.capacity_source(lender.clone());
        let (_driver_pool, pool) = passed_through_by(&manual(), 8 * MIB, source);
        lender.apply(8 * MIB, false);
        let stream = pool.create_stream().unwrap();
        leave_spares(&pool, &stream, &[4 * MIB, 4 * MIB]);
        let [first, second] = [0; 2].map(|_| pool.try_allocate(&stream, 4 * MIB).unwrap());
        lower(&pool, &lender);
        drop(second);
        assert!(pool.try_allocate(&stream, 4 * MIB).is_err());
        drop(first);
        drop(
            pool.try_allocate(&stream, 4 * MIB)
                .expect("within the capacity"),
        );
        leave_spares(&pool, &stream, &[MIB]);
        pool.inspect().check_conserved().unwrap();
    }
}

#[test]
fn charges_find_the_room_of_spares_and_evict_no_more_than_they_need() {
    let (_driver_pool, pool) = passed_through(&manual(), 4 * MIB);
    let stream = pool.create_stream().unwrap();
    leave_spares(&pool, &stream, &[MIB]);
    drop(pool.charge(4 * MIB).expect("nothing is in use"));
    let kept = pool
        .try_allocate(&stream, 2 * MIB)
        .unwrap()
        .into_evictable();
    leave_spares(&pool, &stream, &[MIB, MIB]);
    drop(pool.charge(2 * MIB).expect("the room of two spares"));
    assert!(kept.is_present());
    drop(kept);
    let evictable = |_| pool.try_allocate(&stream, MIB).unwrap().into_evictable();
    let kept: Vec<_> = (0..4).map(evictable).collect();
    drop(pool.charge(MIB).expect("the room of one that is evicted"));
    assert_eq!(kept.iter().filter(|kept| kept.is_present()).count(), 3);
}

#[test]
fn reserved_bytes_are_set_as_if_there_were_no_spares() {
    let (_driver_pool, pool) = passed_through(&manual(), 8 * MIB);
    let stream = pool.create_stream().unwrap();
    leave_spares(&pool, &stream, &[MIB, MIB, 2 * MIB]);
    let attribute = PoolAttribute::ReservedMemCurrent;
    pool.maintain().set_attribute(attribute, 4 * MIB).unwrap();
    assert_eq!(pool.inspect().statistics().reserved.current, 4 * MIB);
}

/// The room is taken while the source is asked, and the source does not take the memory back: it is the request's.
#[test]
fn memory_that_comes_late_is_not_lost() {
    let device = manual();
    let driver_pool = DriverPool::builder(&device).build().unwrap();
    let source = Arc::new(Hooked {
        inner: driver_pool.segments(DriverPoolUse::PassedThrough),
        hook: Mutex::new(None),
        fails: AtomicBool::new(false),
        out: Mutex::default(),
    });
    let builder = Pool::builder(device.clone()).segment_source(source.clone());
    let pool = builder.capacity(4 * MIB).build().unwrap();
    let [stream, other] = [0; 2].map(|_| pool.create_stream().unwrap());
    leave_spares(&pool, &stream, &[MIB]);
    let meanwhile = Arc::<Mutex<Option<Block>>>::default();
    *source.hook.lock().unwrap() = Some(Box::new({
        let (pool, other) = (pool.clone(), other.clone());
        let (meanwhile, source) = (meanwhile.clone(), source.clone());
        move || {
            let block = pool.try_allocate(&other, 4 * MIB).unwrap();
            *meanwhile.lock().unwrap() = Some(block);
            source.fails.store(true, SeqCst);
        }
    }));
    let late = pool.try_allocate(&stream, MIB).unwrap();
    assert!(pool.inspect().block_at(late.address()).is_some());
    drop(late);
    drop(meanwhile.lock().unwrap().take());
    pool.inspect().check_conserved().unwrap();
    drop((stream, other, pool));
    device.advance(us(1000));
    assert!(source.out.lock().unwrap().is_empty());
    assert_eq!(driver_pool.used().unwrap().current, 0);
}

/// A pool with an observer keeps no spares: both answer alike.
#[test]
fn answers_are_those_of_a_pool_without_spares() {
    for seed in 0..150 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sides = [true, false].map(Side::new);
        for step in 0..120 {
            let choice = [14, 3, 1 << 20].map(|below| random.usize(..below));
            let [without, with] = sides.each_mut().map(|side| side.step(choice));
            assert_eq!(with, without, "seed {seed}, step {step}: {choice:?}");
        }
        sides.into_iter().for_each(Side::end);
    }
}

struct Side {
    device: SimDevice,
    driver_pool: DriverPool,
    pool: Pool,
    streams: [Stream; 3],
    blocks: Vec<Block>,
    charges: Vec<Charge>,
    kept: Vec<Evictable>,
}

#[derive(Debug)]
struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

impl Side {
    fn new(is_observed: bool) -> Self {
        let device = manual();
        let (driver_pool, pool) =
            passed_through_by(&device, 16 * MIB, |builder| match is_observed {
                true => builder.observer(Arc::new(Silent)),
                false => builder,
            });
        pool.tag(Tag::new("side")).set_limit(Some(8 * MIB));
        Self {
            device,
            driver_pool,
            streams: [0; 3].map(|_| pool.create_stream().unwrap()),
            pool,
            blocks: Vec::new(),
            charges: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Makes the step that these numbers choose. Returns the answer, and which evictable blocks are present.
    fn step(&mut self, [what, at, size]: [usize; 3]) -> (Option<bool>, Vec<bool>) {
        let (pool, stream) = (&self.pool, &self.streams[at]);
        let bytes = [512, 4096, MIB, 3 * MIB, 5 * MIB, 7 * MIB][size % 6];
        let mut answer = None;
        match what {
            0..4 => {
                let block = pool.try_allocate(stream, bytes);
                answer = Some(block.is_ok());
                self.blocks.extend(block);
            }
            4 => {
                let mut request = pool.allocate(stream, bytes).tag(Tag::new("side"));
                if let Poll::Ready(block) = poll(&mut request) {
                    answer = Some(block.is_ok());
                    self.blocks.extend(block);
                }
            }
            5 => {
                let charge = pool.charge(bytes);
                answer = Some(charge.is_ok());
                self.charges.extend(charge);
            }
            6 => self.charges.clear(),
            7 => answer = Some(pool.resize([4, 8, 12, 16][size % 4] * MIB).is_ok()),
            8 => self.streams[at] = pool.create_stream().unwrap(),
            9 => {
                let block = self.blocks.pop();
                self.kept.extend(block.map(Block::into_evictable));
            }
            10 => self.kept.clear(),
            11 => self.device.advance(us(5)),
            _ if !self.blocks.is_empty() => {
                drop(self.blocks.swap_remove(size % self.blocks.len()));
            }
            _ => {}
        }
        self.pool.inspect().check().unwrap();
        let present = self.kept.iter().map(Evictable::is_present);
        (answer, present.collect())
    }

    fn end(mut self) {
        self.blocks.clear();
        self.charges.clear();
        self.kept.clear();
        self.device.advance(us(100_000));
        self.pool.inspect().check_conserved().unwrap();
        let reserved = self.pool.inspect().statistics().reserved.current;
        let used = self.driver_pool.used().unwrap().current;
        assert_eq!((used, reserved), (0, 0));
    }
}

/// Lends what the test says.
#[derive(Debug, Default)]
struct Lender(Mutex<Option<BoundedPool>>);

impl CapacitySource for Lender {
    fn join(&self, _: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
        Ok(Some(u64::MAX))
    }

    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.0.lock().unwrap() = Some(pool);
        Ok(())
    }
}

impl Lender {
    fn apply(&self, bound: u64, is_binding: bool) {
        let bounds = Bounds {
            first: bound,
            bound,
            is_binding,
            ..Bounds::default()
        };
        let mut pool = self.0.lock().unwrap();
        pool.as_mut().unwrap().apply(bounds).unwrap();
    }
}

/// An ordered source over another one, which calls the test once while it is asked, and may fail once to take memory back.
struct Hooked {
    inner: Arc<dyn SegmentSource>,
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    fails: AtomicBool,
    out: Mutex<BTreeMap<u64, u64>>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

// SAFETY: as the inner one.
unsafe impl SegmentSource for Hooked {
    fn properties(&self) -> SegmentProperties {
        self.inner.properties()
    }

    unsafe fn take(
        &self,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        // SAFETY: the caller's guarantee.
        let address = unsafe { self.inner.take(bytes, alignment, stream) }?;
        self.out.lock().unwrap().insert(address, bytes);
        let hook = self.hook.lock().unwrap().take();
        hook.into_iter().for_each(|hook| hook());
        Ok(address)
    }

    unsafe fn give(&self, address: u64, bytes: u64, stream: RawStream) -> Result<(), DeviceError> {
        if self.fails.swap(false, SeqCst) {
            let kind = DeviceErrorKind::Other;
            return Err(DeviceError::new("give", kind, "as the test says"));
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.inner.give(address, bytes, stream) }?;
        self.out.lock().unwrap().remove(&address);
        Ok(())
    }
}
