//! Memory above the release threshold is released.

use super::*;
use std::future::Future;
use std::pin::Pin;
use weirpool::device::DeviceErrorKind::Other;
use weirpool::device::sim::Checker;

/// A pool of up to 64 MiB, of which this many bytes stay when they are free.
fn keeping(device: &SimDevice, bytes: u64) -> PoolBuilder {
    builder(device, 64 * MIB).release_threshold(ReleaseThreshold::Bytes(bytes))
}

/// Asserts that no call is made while this many intervals pass.
#[track_caller]
fn assert_nothing_is_due(device: &SimDevice, intervals: u64) {
    let counters = device.counters();
    let_pass(device, intervals);
    assert_eq!(device.counters(), counters, "nothing is due any more");
}

/// CUDA, HIP `ReleaseThreshold`: memory above it is released some time after it was freed.
#[test]
fn memory_above_the_threshold_is_released_by_itself() {
    for device in devices() {
        let pool = keeping(&device, 4 * CHUNK).made();
        let (work, stream) = stream(&device, &pool);
        let blocks = several(&pool, &stream, 16, CHUNK);
        use_all(&work, &blocks, us(100));
        let calls = memory_calls(&device);
        drop(blocks);
        assert_eq!(memory_calls(&device), calls, "not by the free");
        let_pass(&device, 4);
        assert_eq!(reserved(&pool), 4 * CHUNK);
        assert_nothing_is_due(&device, 100);
    }
}

/// Memory in repeated use is not released in between, however much of it is free at times.
#[test]
fn memory_in_repeated_use_is_not_released() {
    let (device, pool, [(work, stream)]) =
        set_up_with(|device| keeping(device, 0).tuning(|tuning| tuning.lane_bytes = 0));
    for _ in 0..50 {
        use_and_free(&pool, (&work, &stream), 16 * MIB, us(10));
        device.advance(us(INTERVAL / 3));
        pool.maintain().reap().unwrap();
    }
    assert_eq!(device.counters().calls(Call::Create), 16 * MIB / CHUNK);
    let_pass(&device, 3);
    assert_eq!(reserved(&pool), 0, "now it is not used");
}

/// Warp: a fraction of the device's memory. It can also be set later.
#[test]
fn threshold_can_be_a_fraction_and_can_be_set_later() {
    let device = manual();
    for fraction in [-0.1, 1.1, f64::NAN] {
        let refused =
            builder(&device, 64 * MIB).release_threshold(ReleaseThreshold::Fraction(fraction));
        assert_matches!(refused.build(), Err(BuildError::InvalidFraction { .. }));
    }
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    assert_eq!(pool.inspect().describe().release_threshold, u64::MAX);
    drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
    let_pass(&device, 5);
    assert_eq!(reserved(&pool), 32 * MIB, "kept by default");
    let threshold = ReleaseThreshold::Fraction(1.0 / 128.0);
    pool.maintain().set_release_threshold(threshold).unwrap();
    assert_eq!(pool.inspect().describe().release_threshold, 8 * MIB);
    let_pass(&device, 3);
    assert_eq!(reserved(&pool), 8 * MIB);
    assert!(
        pool.maintain()
            .set_release_threshold(ReleaseThreshold::Fraction(2.0))
            .is_err()
    );
}

/// While a request waits for memory, none is released.
#[test]
fn memory_is_not_released_while_a_request_waits() {
    let (device, pool, [(_, stream)]) = set_up_with(|device| {
        builder(device, 16 * MIB).release_threshold(ReleaseThreshold::Bytes(0))
    });
    let holder = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let other = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let waiter = not_ready(pool.allocate(&stream, 16 * MIB).into_future());
    drop(other);
    let_pass(&device, 5);
    assert_eq!(reserved(&pool), 16 * MIB);
    drop(holder);
    assert!(now(waiter).is_ok());
    let_pass(&device, 5);
    assert_eq!(reserved(&pool), 0);
}

/// A pool with maintenance due can still end, and its memory is released.
#[test]
fn maintenance_does_not_keep_the_pool_alive() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let pool = keeping(&device, 0)
        .tuning(|tuning| tuning.coalesce = Some(CoalesceHeuristic::blocks_releasable(0)))
        .made();
    let (_, stream) = stream(&device, &pool);
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    drop((stream, pool));
    assert_eq!(device.counters().physical_in_use, 0);
    let_pass(&device, 5);
}

/// A failing device loses no memory: the next maintenance releases the rest.
#[test]
fn failed_release_is_repeated_by_the_next_maintenance() {
    let (device, pool, [(_, stream)]) = set_up_with(|device| keeping(device, 0));
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    device.faults().fail_next(Call::Unmap, Other);
    let_pass(&device, 1);
    pool.inspect().check().unwrap();
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    let_pass(&device, 3);
    assert_eq!(reserved(&pool), 0);
}

/// At most the threshold stays, so a chunk that it would split is released, and then nothing is due any more.
#[test]
fn threshold_between_chunks_is_kept_and_then_nothing_is_due() {
    for device in devices() {
        let pool = keeping(&device, 4 * CHUNK + CHUNK / 2)
            .tuning(|tuning| tuning.lane_bytes = 0)
            .made();
        let (_, stream) = stream(&device, &pool);
        drop(
            (0..16)
                .map(|_| pool.try_allocate(&stream, CHUNK).unwrap())
                .collect::<Vec<_>>(),
        );
        let_pass(&device, 5);
        assert_eq!(reserved(&pool), 4 * CHUNK);
        assert_nothing_is_due(&device, 20);
    }
}

/// A segment of plain memory that is larger than the excess goes back as a whole, once it was free for a while.
#[test]
fn segment_larger_than_the_excess_is_released_below_the_threshold() {
    for device in devices() {
        let pool = keeping(&device, 16 * MIB)
            .tuning(|tuning| tuning.lane_bytes = 0)
            .made();
        let (_, stream) = stream(&device, &pool);
        let _live = pool.try_allocate(&stream, 8 * MIB).unwrap();
        drop(pool.try_allocate(&stream, 48 * MIB).unwrap());
        let_pass(&device, 5);
        let reserved = reserved(&pool);
        assert!(reserved <= 16 * MIB, "{reserved}");
    }
}

/// A closed pool releases its memory like any other, and then has no maintenance due.
#[test]
fn closed_pool_is_maintained() {
    let (device, pool, [(_, stream)]) =
        set_up_with(|device| keeping(device, 0).tuning(|tuning| tuning.lane_bytes = 0));
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    pool.close();
    drop(block);
    let_pass(&device, 5);
    assert_eq!(reserved(&pool), 0);
    assert_nothing_is_due(&device, 20);
}

/// On a broken device no maintenance is due.
#[test]
fn broken_device_has_no_maintenance_due() {
    let (device, pool, [(_, stream)]) =
        set_up_with(|device| keeping(device, 0).tuning(|tuning| tuning.lane_bytes = 0));
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    device.faults().break_device("for the test");
    let _ = stream.event();
    let_pass(&device, 5);
    assert_nothing_is_due(&device, 20);
}

/// A grant is never taken: its memory comes back and is released.
#[test]
fn memory_of_an_abandoned_grant_is_released() {
    let (device, pool, [(_, stream)]) = set_up_with(|device| {
        builder(device, 16 * MIB)
            .release_threshold(ReleaseThreshold::Bytes(0))
            .tuning(|tuning| tuning.lane_bytes = 0)
    });
    let holder = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let waiter = not_ready(pool.allocate(&stream, 16 * MIB));
    drop(holder);
    let mut other = pool.allocate(&stream, 512);
    assert!(poll(&mut other).is_pending(), "the other is granted now");
    drop(other);
    let_pass(&device, 5);
    assert_eq!(reserved(&pool), 16 * MIB);
    drop(waiter);
    let_pass(&device, 5);
    assert_eq!(reserved(&pool), 0);
}

/// Memory was taken for several blocks, one of which could not be allocated. It counts as any memory above the
/// threshold.
#[test]
fn memory_of_a_failed_request_for_several_blocks_is_released() {
    for device in devices() {
        let pool = keeping(&device, 0).made();
        let (_, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 16 * MIB).unwrap();
        let several = pool.allocate_many(&stream, [32 * MIB, 24 * MIB]);
        assert!(several.try_now().is_err());
        assert_eq!(reserved(&pool), 48 * MIB);
        let_pass(&device, 3);
        assert_eq!(reserved(&pool), 16 * MIB);
        drop(held);
        let_pass(&device, 3);
        assert_eq!(reserved(&pool), 0);
    }
}

/// Blocks that stay in the caches of idle streams are released as well.
#[test]
fn memory_in_caches_of_idle_streams_is_released() {
    let device = manual();
    let pool = builder(&device, 256 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .made();
    let streams: Vec<_> = (0..64).map(|_| stream(&device, &pool)).collect();
    for (_, stream) in &streams {
        drop([0; 3].map(|_| pool.try_allocate(stream, MIB).unwrap()));
    }
    assert!(figures(&pool).cached_in_lanes > 0, "they stay in caches");
    let_pass(&device, 6);
    assert_eq!(reserved(&pool), 0);
    assert_nothing_is_due(&device, 100);
}

/// The stream took the block from its cache, and frees it long after the last maintenance.
#[test]
fn block_freed_into_an_emptied_cache_is_released() {
    let (device, pool, [(_work, stream)]) = set_up_with(|device| keeping(device, 0));
    drop(pool.try_allocate(&stream, MIB).unwrap());
    let block = pool.try_allocate(&stream, MIB).unwrap();
    assert_eq!(block.source(), Source::Lane);
    let_pass(&device, 100);
    assert!(reserved(&pool) > 0);
    drop(block);
    let_pass(&device, 6);
    assert_eq!(reserved(&pool), 0);
}

/// CUDA, HIP: memory above the threshold is released at a synchronization of a stream or an event. So is it each time
/// that a future of the device's progress is awaited, long before the maintenance is due.
#[test]
fn awaiting_any_point_of_a_stream_is_a_synchronization() {
    type Awaited = Pin<Box<dyn Future<Output = ()>>>;
    type Await = fn(&Stream, Block) -> Awaited;
    let ways: [(&str, Await); 8] = [
        ("a stream", |stream, block| {
            drop(block);
            let synchronized = stream.synchronize();
            Box::pin(async { synchronized.await.unwrap() })
        }),
        ("an event", |stream, block| {
            drop(block);
            let event = stream.event().unwrap();
            Box::pin(async { event.await.unwrap() })
        }),
        ("a deallocation", |_, block| {
            let freed = block.deallocate();
            Box::pin(async { freed.await.unwrap() })
        }),
        ("a task", |stream, mut block| {
            let task = stream.submit(&mut block, |work: &SimStream, block| {
                work.submit(Operation::new(us(10)).writes(block.address(), block.size()));
            });
            drop(block);
            Box::pin(async { task.unwrap().await.unwrap() })
        }),
        ("a function of the host", |stream, block| {
            drop(block);
            let task = stream.run(|| ()).unwrap();
            Box::pin(async { task.await.unwrap() })
        }),
        ("a future of the host", |stream, block| {
            drop(block);
            let task = stream.spawn(async {}).unwrap();
            Box::pin(async { task.await.unwrap() })
        }),
        ("a download", |stream, block| {
            let bytes = block.download(stream, 0..64).unwrap();
            drop(block);
            Box::pin(async { drop(bytes.await.unwrap()) })
        }),
        ("an upload", |stream, mut block| {
            let sent = block.upload(stream, 0, b"weir").unwrap();
            drop(block);
            Box::pin(async { sent.await.unwrap() })
        }),
    ];
    for (name, wait) in ways {
        for device in devices() {
            let pool = keeping(&device, 4 * CHUNK).made();
            let (work, stream) = stream(&device, &pool);
            let blocks = [(); 8].map(|()| pool.try_allocate(&stream, CHUNK).unwrap());
            let last = pool.try_allocate(&stream, CHUNK).unwrap();
            use_all(&work, &blocks, us(10));
            drop(blocks);
            let mut awaited = wait(&stream, last);
            let is_ready = (0..10).any(|_| {
                let is_ready = poll(&mut awaited).is_ready();
                device.advance(us(100));
                is_ready
            });
            assert!(is_ready, "{name}");
            assert_eq!(reserved(&pool), 4 * CHUNK, "{name}");
        }
    }
}
