//! Records of freed blocks that a stream keeps as spares, each of which holds room in the capacity. Nobody may miss that
//! room, nor see a block that is freed.

use crate::common::{MIB, manual, not_ready, now, us};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Clock, Fault, SimDevice};
use weirpool::{AllocError, Pool, Stream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

fn passed_through(device: &SimDevice, capacity: u64) -> (DriverPool, Pool) {
    let driver_pool = DriverPool::builder(device).build().unwrap();
    let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
    let builder = Pool::builder(device.clone()).segment_source(segments);
    (driver_pool, builder.capacity(capacity).build().unwrap())
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
    let device = SimDevice::builder().clock(Clock::Wall).build();
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
