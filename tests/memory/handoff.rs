//! Memory that passes from stream to stream while kernels are short: the number of device calls.
//!
//! The device is simulated, but its calls take the caller's time, as on a busy H200: while the pool makes a call, the
//! caller submits nothing. All time is virtual, and every run is the same.

use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weirpool::device::sim::{Backing, Call, Checker, Counters, Operation, SimDevice, SimStream};
use weirpool::device::*;
use weirpool::*;

/// The duration of the calls on an H200 while kernels of 20 us run on 8 streams.
const LAUNCH: Duration = Duration::from_micros(4);
const QUERY: Duration = Duration::from_nanos(1700);
const ORDER: Duration = Duration::from_nanos(250);

#[derive(Clone, Debug)]
struct Slow(SimDevice);

impl Slow {
    fn new() -> Self {
        let builder = SimDevice::builder().memory(1 << 34);
        let builder = builder.backing(Backing::AddressesOnly);
        Self(builder.checker(Checker::Off).build())
    }

    fn submit(&self, work: &SimStream, kernel: Duration) {
        self.0.advance(LAUNCH);
        work.submit(Operation::new(kernel));
    }
}

// SAFETY: every call is forwarded to the simulated device.
unsafe impl Device for Slow {
    pass_on! {
        |slow| &slow.0 =>
        id, describe, capabilities, memory_info, now, set_alarm, cancel_alarm, reserve, unreserve, create,
        destroy, map, unmap, allocate, free, create_stream, destroy_stream, create_event, destroy_event,
        watch, unwatch, upload, download, fill,
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.0.advance(ORDER);
        self.0.record(event, stream)
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        self.0.advance(QUERY);
        self.0.query(event)
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        self.0.advance(ORDER);
        self.0.wait(stream, event)
    }
}

const STREAMS: usize = 8;
const BLOCK: u64 = 8 * MIB;
/// The iterations until the first blocks exist and the pace of the streams is known.
const WARM_UP: usize = 200;
const ITERATIONS: usize = 1000;

/// The mean cost of an iteration.
#[derive(Debug, PartialEq)]
struct Cost {
    queries: f64,
    records: f64,
    waits: f64,
    memory: f64,
    micros: f64,
}

impl Cost {
    fn of(device: &Slow, iterations: impl FnOnce(usize) + Copy) -> Self {
        iterations(WARM_UP);
        device.0.advance_to_end();
        let before = (device.0.counters(), device.0.now());
        iterations(ITERATIONS);
        device.0.advance_to_end();
        let after = (device.0.counters(), device.0.now());
        let each = |count: u64| count as f64 / ITERATIONS as f64;
        let calls = |call| each(after.0.calls(call) - before.0.calls(call));
        let memory = |counters: &Counters| counters.calls(Call::Create) + counters.calls(Call::Map);
        Self {
            queries: calls(Call::Query),
            records: calls(Call::Record),
            waits: calls(Call::Wait),
            memory: each(memory(&after.0) - memory(&before.0)),
            micros: (after.1 - before.1).as_nanos() as f64 / 1e3 / ITERATIONS as f64,
        }
    }
}

fn lines(device: &Slow, pool: &Pool) -> Vec<(SimStream, Stream)> {
    (0..STREAMS).map(|_| stream(&device.0, pool)).collect()
}

/// Blocks are allocated and used on one stream after the other.
fn in_turn(limit: WhenShort, blocks: u64, kernel: Duration) -> Cost {
    let device = Slow::new();
    let builder = Pool::builder(device.clone()).tuning(|tuning| tuning.when_short = limit);
    let pool = builder.capacity(blocks * BLOCK).made();
    let lines = lines(&device, &pool);
    Cost::of(&device, |iterations| {
        device.0.block_on(async {
            for (work, stream) in lines.iter().cycle().take(iterations) {
                let block = pool.allocate(stream, BLOCK).await.unwrap();
                device.submit(work, kernel);
                drop(block);
            }
        });
    })
}

/// Blocks are written on one stream, and read on the next.
fn handed_on(limit: WhenShort, blocks: u64, kernel: Duration) -> Cost {
    let device = Slow::new();
    let builder = Pool::builder(device.clone()).tuning(|tuning| tuning.when_short = limit);
    let pool = builder.capacity(blocks * BLOCK).made();
    let lines = lines(&device, &pool);
    let pairs: Vec<_> = lines.chunks(2).collect();
    Cost::of(&device, |iterations| {
        device.0.block_on(async {
            for pair in pairs.iter().cycle().take(iterations) {
                let [(writer, own), (reader, last)] = pair else {
                    unreachable!("pairs");
                };
                let block = pool.allocate(own, BLOCK).await.unwrap();
                device.submit(writer, kernel);
                last.wait(&own.event().unwrap()).unwrap();
                last.record_use(Unordered::UntilFreed(&block)).unwrap();
                device.submit(reader, kernel);
                drop(block);
            }
        });
    })
}

/// With this many blocks there is always more memory available.
const PLENTY: u64 = 512;
const LIMITS: [WhenShort; 2] = [WhenShort::GrowFirst, WhenShort::GrowThenWait];

/// Checks that an iteration takes no more than the kernels take with all blocks in use, plus a tenth.
#[track_caller]
fn expect_near(cost: &Cost, allowed: f64) {
    assert!(cost.micros <= 1.1 * allowed, "{cost:?}");
}

/// By default, too, a stream waits on the device if that takes as little time as its task would need to wait and submit.
#[test]
fn stream_that_may_wait_on_the_device_hardly_queries() {
    let waits = [
        (WhenShort::GrowFirst, 20),
        (WhenShort::GrowThenWait, 20),
        (WhenShort::GrowThenWait, 200),
    ];
    for (limit, kernel) in waits {
        let cost = in_turn(limit, 4, us(kernel));
        assert!(
            cost.queries < 0.5 && cost.waits < 1.1,
            "{limit:?}: {cost:?}"
        );
        assert!(cost.records < 1.01 && cost.memory == 0.0, "{cost:?}");
        expect_near(&cost, kernel as f64 / 4.0);
    }
}

#[test]
fn stream_pair_that_may_wait_on_the_device_hardly_queries() {
    for (limit, kernel) in LIMITS
        .iter()
        .flat_map(|limit| [(*limit, 20), (*limit, 200)])
    {
        let cost = handed_on(limit, 4, us(kernel));
        assert!(cost.queries < 1.5 && cost.waits < 2.5, "{cost:?}");
        assert_eq!(cost.records, 3.0, "{cost:?}");
        expect_near(&cost, kernel as f64 / 2.0);
    }
}

/// By default a stream is not made to wait for long. Each stream is queried once.
#[test]
fn stream_that_may_not_wait_queries_each_stream_once() {
    let cost = in_turn(WhenShort::GrowFirst, 4, us(200));
    assert!(cost.queries <= STREAMS as f64, "{cost:?}");
    expect_near(&cost, 50.0);
}

#[test]
fn stream_queries_few_others_while_new_memory_is_available() {
    let cost = handed_on(WhenShort::GrowFirst, PLENTY, us(20));
    assert!(cost.queries <= 4.0 && cost.memory == 0.0, "{cost:?}");
    assert_eq!((cost.records, cost.waits), (3.0, 1.0));
    let alone = in_turn(WhenShort::GrowFirst, PLENTY, us(20));
    let found = (alone.queries, alone.records, alone.waits, alone.memory);
    assert_eq!(found, (0.0, 0.0, 0.0, 0.0));
}

/// An allocation looks several times for a scope that it is in. Another thread that enters one and leaves it in between
/// changes nothing: the stream's own blocks are searched once.
#[test]
fn scopes_of_other_threads_change_no_cost() {
    let cost = || in_turn(WhenShort::GrowFirst, 4, us(20));
    let alone = cost();
    let elsewhere = builder(&manual(), 32 * MIB).build().unwrap();
    let reservation = elsewhere.reserve(MIB).try_now().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(reservation.enter());
            }
        });
        let other = (0..50).map(|_| cost()).find(|cost| *cost != alone);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(other, None, "alone: {alone:?}");
    });
}

/// A stream that was slow so far is still queried before a request fails, and before more memory is taken.
#[test]
fn work_that_completes_sooner_than_expected_counts() {
    for blocks in [1, 2] {
        let (device, pool, [slow, other]) = set_up_with(|device| builder(device, blocks * BLOCK));
        let used_for = |time| {
            let block = pool.try_allocate(&slow.1, BLOCK).unwrap();
            use_block(&slow.0, &block, time);
            drop(block);
            slow.1.seal().unwrap();
        };
        for _ in 0..4 {
            used_for(us(1000));
            device.advance(us(1000));
            // The pool sees that it is complete.
            drop(pool.try_allocate(&other.1, BLOCK).unwrap());
        }
        used_for(us(10));
        device.advance(us(10));
        let block = pool.try_allocate(&other.1, BLOCK).unwrap();
        assert_eq!(block.source(), Source::Free);
        assert_eq!(pool.inspect().statistics().reserved.current, BLOCK);
    }
}

/// This holds for every wait limit: beside a long wait a query takes no time, and other memory is complete.
#[test]
fn stream_queries_before_a_long_wait() {
    let device = manual();
    let limit = WhenShort::GrowThenWait;
    let pool = tuned(&device, 3 * BLOCK, |tuning| tuning.when_short = limit);
    let [slow, quick, taker] = streams(&device, &pool);
    let used = |on: &(SimStream, Stream), bytes, time| {
        let block = pool.try_allocate(&on.1, bytes).unwrap();
        use_block(&on.0, &block, time);
        drop(block);
        on.1.seal().unwrap();
    };
    for _ in 0..2 {
        device.advance(us(50_000));
        pool.maintain().reap().unwrap();
        used(&slow, BLOCK, us(50_000));
    }
    used(&quick, 2 * BLOCK, us(10));
    device.advance(us(10));
    let block = pool.try_allocate(&taker.1, BLOCK).unwrap();
    assert_eq!(block.source(), Source::Free);
    // It does not wait for overdue work either.
    drop(block);
    pool.maintain().reap().unwrap();
    slow.0.submit(Operation::new(us(1_000_000)));
    used(&slow, BLOCK, us(10));
    device.advance(us(200_000));
    used(&quick, 2 * BLOCK, us(10));
    device.advance(us(10));
    let block = pool.try_allocate(&taker.1, BLOCK).unwrap();
    assert_eq!(block.source(), Source::Free);
}

/// A large block of the stream's own is split, and the stream does not wait for one of another stream.
#[test]
fn stream_with_loose_fit_does_not_wait_for_others() {
    let device = manual();
    let limit = WhenShort::GrowThenWait;
    let pool = tuned(&device, 6 * CHUNK, |tuning| tuning.when_short = limit);
    let [own, other] = streams(&device, &pool);
    let large = pool.try_allocate(&own.1, 4 * CHUNK).unwrap();
    let used = || {
        let block = pool.try_allocate(&other.1, 2 * CHUNK).unwrap();
        use_block(&other.0, &block, us(100));
        drop(block);
        other.1.seal().unwrap();
    };
    used();
    device.advance(us(100));
    pool.maintain().reap().unwrap();
    used();
    use_block(&own.0, &large, us(100));
    drop(large);
    let block = pool.try_allocate(&own.1, 2 * CHUNK).unwrap();
    assert_eq!(block.source(), Source::SameStream);
}
