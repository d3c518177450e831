//! Several blocks in one request: all or none, from one queue position, with one wait.

use super::*;
use weirpool::Unordered;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::Call;

/// All blocks are granted together or none is, in the order of the layouts, from one queue position.
#[test]
fn request_for_several_blocks_holds_nothing_while_it_waits() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let layouts = [MIB, 16 * MIB, 2 * MIB, 9 * MIB];
    let refused = pool.allocate_many(&stream, layouts).try_now().unwrap_err();
    assert_matches!(refused, AllocError::Exhausted(s) if s.requested == 28 * MIB);
    assert_eq!(used(&pool), 8 * MIB, "none of them");
    let never = pool.allocate_many(&stream, [16 * MIB, 17 * MIB]).try_now();
    assert_matches!(never, Err(AllocError::TooLarge { requested, .. }) if *requested == 33 * MIB);
    let waiting = not_ready(pool.allocate_many(&stream, layouts));
    let behind = not_ready(pool.allocate(&stream, 512));
    assert_eq!(used(&pool), 8 * MIB, "it holds nothing while it waits");
    drop(held);
    let blocks = now(waiting).unwrap();
    assert_eq!(blocks.iter().map(Block::size).collect::<Vec<_>>(), layouts);
    drop(now(behind).unwrap());
    drop(blocks);
    let found = now(pool.allocate_many(&stream, [0u64; 0])).unwrap().len();
    assert_eq!(found, 0);
}

/// Tasks that allocate two blocks one after the other deadlock; with one request for both they do not. In random order,
/// on several streams, with memory for two tasks.
#[test]
fn requests_for_several_blocks_do_not_deadlock() {
    let device = SimDevice::new();
    let pool = builder(&device, 16 * MIB).made();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, device) = (&pool, &device);
            scope.spawn(move || {
                let (work, stream) = stream(device, pool);
                let mut random = fastrand::Rng::with_seed(thread);
                for round in 0..200 {
                    let sizes = [random.u64(1..4 * MIB), random.u64(1..4 * MIB)];
                    if round % 2 == 0 {
                        let blocks = pool.allocate_many(&stream, sizes);
                        let blocks = futures::executor::block_on(blocks).unwrap();
                        use_block(&work, &blocks[0], us(5));
                    } else {
                        let reserving = pool.reserve_many(sizes);
                        let reservation = futures::executor::block_on(reserving).unwrap();
                        let first = reservation.allocate(&stream, sizes[0]).unwrap();
                        use_block(&work, &first, us(5));
                        let second = reservation.allocate(&stream, sizes[1]).unwrap();
                        drop((first, reservation, second));
                    }
                }
            });
        }
    });
    device.block_on(async {});
    pool.maintain().reap().unwrap();
    pool.inspect().check_conserved().unwrap();
}

/// A failed attempt to find several blocks leaves the memory unchanged: it is available to others as soon as it would
/// have been.
#[test]
fn failed_attempt_for_several_blocks_delays_no_memory() {
    let device = manual();
    let pool = tuned(&device, 8 * MIB, |tuning| {
        tuning.lane_bytes = 0;
        tuning.when_short = WhenShort::GrowThenWait;
    });
    let [(short, a), (long, b), (_, c)] = streams(&device, &pool);
    let block = pool.try_allocate(&a, 4 * MIB).unwrap();
    let held = pool.try_allocate(&a, 4 * MIB).unwrap();
    use_block(&short, &block, us(100));
    run(&long, us(100_000));
    drop(block);
    // The second stream may be made to wait for the first. Its own work takes longer.
    let both = not_ready(pool.allocate_many(&b, [3 * MIB, 3 * MIB]));
    drop(both);
    device.advance(us(100));
    let block = pool.try_allocate(&c, 4 * MIB).expect("its work is over");
    assert_eq!(block.source(), Source::Free);
    drop((block, held));
    device.advance(us(100_000));
    pool.maintain().reap().unwrap();
}

/// Creates a pool of 8 MiB with unlimited device-side waits, half of it pending on one stream.
fn half_pending(device: &SimDevice) -> (TestPool, Stream, Block) {
    let pool = tuned(device, 8 * MIB, |tuning| {
        tuning.lane_bytes = 0;
        tuning.when_short = WhenShort::GrowThenWait;
    });
    let (work, a) = stream(device, &pool);
    let block = pool.try_allocate(&a, 4 * MIB).unwrap();
    let held = pool.try_allocate(&a, 4 * MIB).unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    (pool, a, held)
}

/// A stream waits only for blocks that it gets. While one of several is not available, it waits for none.
#[test]
fn stream_does_not_wait_for_several_blocks_that_are_unavailable() {
    let device = manual();
    let (pool, _a, held) = half_pending(&device);
    let (_, b) = stream(&device, &pool);
    let both = [4 * MIB, 2 * MIB];
    assert!(pool.allocate_many(&b, both).try_now().is_err());
    let mut waiting = pool.allocate_many(&b, both);
    assert!(poll(&mut waiting).is_pending() && poll(&mut waiting).is_pending());
    assert_eq!(device.counters().device_waits, 0);
    assert_eq!(pool.inspect().statistics().device_waits, 0);
    drop(held);
    let blocks = now(waiting).unwrap();
    assert_eq!(device.counters().device_waits, 1);
    assert!(
        blocks
            .iter()
            .any(|block| block.source() == Source::DeviceWait)
    );
    drop(blocks);
    device.advance(us(100));
    pool.maintain().reap().unwrap();
}

/// The stream waits once for all fences of several blocks, before any of them is used, also on further streams.
#[test]
fn several_wait_once_before_any_is_used() {
    for follows in [true, false] {
        let device = manual();
        let reuse = Reuse {
            follow_event_dependencies: follows,
            ..Reuse::ALL
        };
        let pool = builder(&device, 8 * MIB).tuning(|tuning| {
            tuning.lane_bytes = 0;
            tuning.reuse = reuse;
        });
        let pool = pool
            .tuning(|tuning| tuning.when_short = WhenShort::GrowThenWait)
            .made();
        let [(work_a, a), (work_b, b), (work_c, c)] = streams(&device, &pool);
        let held = [(); 4].map(|()| pool.try_allocate(&a, 2 * MIB).unwrap());
        for block in held {
            use_block(&work_a, &block, us(100));
            drop(block);
        }
        let blocks = pool.allocate_many(&b, [2 * MIB; 3]).try_now().unwrap();
        assert_eq!(device.counters().device_waits, 1);
        assert_eq!(pool.inspect().statistics().device_waits, 1);
        // The checker reports any missing order.
        use_block(&work_b, &blocks[0], us(10));
        for block in &blocks[1..] {
            c.record_use(Unordered::UntilFreed(block)).unwrap();
            use_block(&work_c, block, us(10));
        }
        drop(blocks);
        drop((a, b, c));
        device.advance(us(1000));
        pool.maintain().reap().unwrap();
    }
}

/// If the device takes no wait for a block, the search continues without that block. If the wait fails, no block is
/// granted, and no memory is lost.
#[test]
fn several_whose_wait_fails_lose_nothing() {
    let device = manual();
    let (pool, _a, held) = half_pending(&device);
    let (_, b) = stream(&device, &pool);
    drop(held);
    let both = [4 * MIB, 2 * MIB];
    device
        .faults()
        .fail_next(Call::Wait, DeviceErrorKind::Other);
    match pool.allocate_many(&b, both).try_now() {
        Err(AllocError::Device(error)) => assert_eq!(error.kind(), DeviceErrorKind::Other),
        other => panic!("{other:?}"),
    }
    assert_eq!((used(&pool), figures(&pool).pending.current), (0, 8 * MIB));
    device
        .faults()
        .fail_next(Call::Wait, DeviceErrorKind::Unsupported);
    let blocks = pool.allocate_many(&b, both).try_now().unwrap();
    assert_eq!(
        blocks[0].source(),
        Source::DeviceWait,
        "it takes the next one"
    );
    assert_eq!(pool.inspect().statistics().device_waits, 1);
    drop(blocks);
    device.advance(us(100));
    pool.maintain().reap().unwrap();
}

#[test]
fn waiter_for_several_unpooled_blocks_does_not_wake_itself() {
    let (_, pool, [(_, stream)]) = set_up_with(|device| {
        Pool::builder(device.clone())
            .capacity(8 * MIB)
            .upstream(Upstream::Unpooled)
    });
    let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let (woken, waker) = Count::new();
    let mut both = pool.allocate_many(&stream, [2 * MIB, 4 * MIB]);
    let mut polls = 0;
    loop {
        let before = woken.get();
        assert!(poll_with(&mut both, &waker).is_pending());
        polls += 1;
        assert!(polls < 20, "it wakes itself");
        if woken.get() == before {
            break;
        }
    }
    drop(held);
    let blocks = now(both).unwrap();
    assert_eq!(blocks.len(), 2);
}
