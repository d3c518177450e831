//! Ways in which regions could fail: each test looks for one of them.

use crate::common::*;
use std::any::Any;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::{Either, join, select};
use std::time::{Duration, Instant};
use weirpool::device::sim::{Backing, Call, Fault, Operation, SimDevice, SimStream};
use weirpool::device::{
    Device, DeviceError, DeviceErrorKind, DeviceId, DeviceStream, MemoryKind, RawStream,
    StreamProperties,
};
use weirpool::{AllocError, Block, Pool, Stream, StreamError, Tag, Upstream};
use weirpool_tiers::{Entered, Keep, Region, RegionError, Regions, resume_all, suspend_all};

fn allocate(device: &SimDevice, region: &Region, stream: &Stream, bytes: u64) -> Block {
    device.block_on(region.allocate(stream, bytes)).unwrap()
}

fn resume(device: &SimDevice, region: &Region) -> Result<(), RegionError> {
    device.block_on(region.resume().into_future())
}

fn long_work(block: &Block) -> Operation {
    Operation::new(Duration::from_millis(20)).writes(block.address(), block.size())
}

fn is_absent<T>(result: &Result<T, StreamError>) -> bool {
    matches!(result, Err(StreamError::Absent { .. }))
}

/// A stream that may be gone at any time.
struct External(DeviceId, RawStream);

// SAFETY: the simulated device refuses the names of streams that are gone.
#[allow(unsafe_code, reason = "implements the seam")]
unsafe impl DeviceStream for External {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        let mut properties = StreamProperties::new(self.0, self.1);
        properties.external_id = Some(1);
        Ok(properties)
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }
}

/// Failure: a stream that the block is opened to, or freed after, runs on while the memory is unmapped.
#[test]
fn suspending_waits_for_streams_that_a_block_is_opened_to_or_freed_after() {
    for how in 0..4 {
        let (device, pool, stream) = start(64 * MIB);
        let weights = region(&pool, "weights", Keep::Nothing);
        let work = device.create_stream();
        let other = pool.register(&work).unwrap();
        let block = allocate(&device, &weights, &stream, 2 * MIB);
        let keeper = allocate(&device, &weights, &stream, 4 * MIB);
        let operation = long_work(&block);
        let submit = || work.submit(operation);
        let mut left = None;
        match how {
            0 => {
                block.open_to(&other).unwrap();
                submit();
                left = Some(block);
            }
            1 => {
                block.freed_after(&other).unwrap();
                submit();
                drop(block);
            }
            2 => {
                submit();
                drop(block.deallocate_on(&other).unwrap());
            }
            _ => {
                block.open_to(&other).unwrap();
                submit();
                drop(block);
            }
        }
        device.block_on(weights.suspend()).unwrap();
        assert!(
            device.now() >= Duration::from_millis(20),
            "{how}: {:?}",
            device.now()
        );
        device.advance_to_end();
        device.assert_ordered();
        drop((left, keeper));
    }
}

/// Failure: work of external streams cannot be waited for, and is not.
#[test]
fn blocks_are_neither_allocated_on_nor_moved_to_external_streams() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let work = device.create_stream();
    let external = External(work.device_id(), work.raw());
    let external = pool.register(&external).unwrap();
    let allocated = device.block_on(weights.allocate(&external, 2 * MIB));
    assert!(allocated.is_err(), "allocated on an external stream");
    let mut block = allocate(&device, &weights, &stream, 2 * MIB);
    assert!(block.open_to(&external).is_err());
    assert!(block.freed_after(&external).is_err());
    assert!(block.move_to(&external).is_err());
    let refused = block.deallocate_on(&external).unwrap_err();
    drop(refused);
    settle(&device, || weights.figures().addresses == 0);
    drop(pool.try_allocate(&external, MIB).unwrap());
}

/// Failure: the capture of another pool names a block by a copy, and the region does not know the graph.
#[test]
fn graph_of_another_pool_is_not_launched_while_its_memory_is_suspended() {
    let (device, pool, stream) = start(64 * MIB);
    let other = Pool::builder(device.clone()).build().unwrap();
    let there = other.create_stream().unwrap();
    let weights = region(&pool, "weights", Keep::Nothing);
    let mut block = allocate(&device, &weights, &stream, 2 * MIB);
    write(&device, &mut block, &stream, 3);
    let mut target = other.try_allocate(&there, 2 * MIB).unwrap();
    let capture = other.capture(&there).unwrap();
    drop(block.copy_to(0..2 * MIB, &mut target, 0, &there).unwrap());
    let graph = capture.end().unwrap();
    graph.launch(&there).unwrap();
    device.block_on(weights.suspend()).unwrap();
    let launched = graph.launch(&there);
    assert!(is_absent(&launched), "{launched:?}");
    device.advance_to_end();
    device.assert_ordered();
}

/// Failure: a service is inside of the region when somebody suspends it, and its uses fail.
#[test]
fn uses_go_on_while_a_task_is_inside() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let block = allocate(&device, &weights, &stream, 2 * MIB);
    let entered = device.block_on(weights.enter()).unwrap();
    let mut suspending = Box::pin(weights.suspend());
    assert!(poll(suspending.as_mut()).is_pending());
    stream.record_use(&block).unwrap();
    let further = allocate(&device, &weights, &stream, 2 * MIB);
    drop((entered, further));
    assert!(is_absent(&stream.record_use(&block)));
    device.block_on(suspending).unwrap();
    device.assert_ordered();
}

/// Failure: the region is suspended again as soon as it was resumed, before anybody can enter it.
#[test]
fn region_that_was_resumed_is_not_idle_at_once() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let block = allocate(&device, &weights, &stream, 2 * MIB);
    device.advance(Duration::from_secs(10));
    device.block_on(weights.suspend()).unwrap();
    device.advance(Duration::from_secs(10));
    resume(&device, &weights).unwrap();
    let mut idle = pin!(weights.suspend_when_idle(Duration::from_secs(1)));
    assert!(poll(idle.as_mut()).is_pending());
    stream.record_use(&block).unwrap();
    device.advance(Duration::from_millis(1100));
    for _ in 0..3 {
        assert!(poll(idle.as_mut()).is_pending());
    }
    assert!(weights.is_suspended());
}

/// Failure: bytes of blocks that ended meanwhile count as suspended.
#[test]
fn suspended_bytes_end_with_their_blocks() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let blocks = [2, 4, 6].map(|n| allocate(&device, &weights, &stream, n * MIB));
    device.block_on(weights.suspend()).unwrap();
    assert_eq!(pool.inspect().statistics().suspended, 12 * MIB);
    let [first, rest @ ..] = blocks;
    drop(first);
    settle(&device, || weights.figures().addresses == 10 * MIB);
    assert_eq!(pool.inspect().statistics().suspended, 10 * MIB);
    drop(rest);
    settle(&device, || weights.figures().addresses == 0);
    assert_eq!(pool.inspect().statistics().suspended, 0);
    resume(&device, &weights).unwrap();
    assert_eq!(pool.inspect().statistics().suspended, 0);
    pool.inspect().check_conserved().unwrap();
}

/// Failure: a limit of time is not kept behind another operation on the region.
#[test]
fn limit_of_time_holds_behind_a_resumption_without_one() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let block = allocate(&device, &weights, &stream, 40 * MIB);
    device.block_on(weights.suspend()).unwrap();
    let taken = pool.try_allocate(&stream, 48 * MIB).unwrap();
    let mut first = weights.resume().into_future();
    assert!(poll(first.as_mut()).is_pending());
    let mut second = weights
        .resume()
        .timeout(Duration::from_secs(1))
        .into_future();
    assert!(poll(second.as_mut()).is_pending());
    device.advance(Duration::from_secs(2));
    let late = poll(second.as_mut());
    assert!(matches!(late, Poll::Ready(Err(RegionError::Busy { .. }))));
    drop(taken);
    device.block_on(first).unwrap();
    drop(block);
}

/// Failure: memory that the pool frees while a region waits for the device stays with the pool.
#[test]
fn memory_that_the_pool_frees_meanwhile_goes_to_a_region_that_waits_for_the_device() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let block = allocate(&device, &weights, &stream, 32 * MIB);
    device.block_on(weights.suspend()).unwrap();
    let taken = pool.try_allocate(&stream, 24 * MIB).unwrap();
    let occupied = device.faults().occupy(24 * MIB);
    let mut resuming = weights.resume().into_future();
    for _ in 0..5 {
        assert!(poll(resuming.as_mut()).is_pending());
        device.advance(Duration::from_millis(11));
    }
    drop(taken);
    for _ in 0..5 {
        if poll(resuming.as_mut()).is_ready() {
            assert!(!weights.is_suspended());
            drop((block, occupied));
            return;
        }
        device.advance(Duration::from_millis(11));
    }
    panic!("the pool keeps {} bytes", pool.inspect().statistics().free);
}

/// Failure: sizes overflow.
#[test]
fn sizes_beyond_all_bounds_are_refused() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    for bytes in [
        u64::MAX,
        u64::MAX - 511,
        u64::MAX / 2 + 1,
        u64::MAX / 2,
        1 << 62,
        65 * MIB,
    ] {
        let allocated = device.block_on(weights.allocate(&stream, bytes));
        assert!(
            matches!(
                allocated,
                Err(RegionError::Alloc(AllocError::TooLarge { .. }))
            ),
            "{bytes}: {allocated:?}"
        );
    }
    for chunk in [0, 1, u64::MAX, u64::MAX / 2, 1 << 62] {
        let region = pool
            .region("chunks")
            .keep(Keep::Nothing)
            .chunk_bytes(chunk)
            .build()
            .unwrap();
        let allocated = device.block_on(region.allocate(&stream, 0));
        assert_eq!(allocated.is_ok(), chunk <= 1, "{chunk}: {allocated:?}");
    }
    settle(&device, || pool.inspect().statistics().charged == 0);
    pool.inspect().check_conserved().unwrap();
}

/// Failure: two errors in a row, one of a copy and one of the wait for it, lose the contents for ever.
#[test]
fn two_errors_in_a_row_lose_no_contents() {
    for keep in [Keep::OnHost, Keep::OnHostPageable] {
        for second in [Call::Record, Call::Query, Call::CreateEvent] {
            for nth in 1..4 {
                let (device, pool, stream) = start(64 * MIB);
                let weights = region(&pool, "weights", keep);
                let mut block = allocate(&device, &weights, &stream, 2 * MIB);
                write(&device, &mut block, &stream, 8);
                device.block_on(weights.suspend()).unwrap();
                let fault = Fault::Fails(DeviceErrorKind::Other);
                device.faults().script(Call::Copy, 1, fault);
                device.faults().script(Call::Upload, 1, fault);
                device.faults().script(second, nth, fault);
                let first = resume(&device, &weights);
                let mut last = Ok(());
                for _ in 0..6 {
                    last = resume(&device, &weights);
                    if last.is_ok() {
                        break;
                    }
                }
                assert!(
                    last.is_ok(),
                    "{keep:?} {second:?} {nth}: {first:?} {last:?}"
                );
                let bytes = loop {
                    let Ok(download) = block.download(&stream, 0..block.size()) else {
                        continue;
                    };
                    if let Ok(bytes) = device.block_on(download) {
                        break bytes;
                    }
                };
                assert!(bytes.iter().all(|byte| *byte == 8));
            }
        }
    }
}

/// Failure: parts of a segment are found wrongly when it holds many blocks, each second one ended.
#[test]
fn thousands_of_blocks_keep_their_contents() {
    for keep in [Keep::OnHost, Keep::OnHostPageable] {
        let (device, pool, stream) = start(64 * MIB);
        let weights = region(&pool, "weights", keep);
        let mut blocks: Vec<_> = (0..4000)
            .map(|_| allocate(&device, &weights, &stream, 4096))
            .collect();
        for (n, block) in blocks.iter_mut().enumerate() {
            block.fill(&stream, n as u8).unwrap();
        }
        let mut n = 0;
        blocks.retain(|_| {
            n += 1;
            n % 2 == 0
        });
        settle(&device, || weights.figures().used == 2000 * 4096);
        device.block_on(weights.suspend()).unwrap();
        assert_eq!(weights.figures().on_host, 2000 * 4096);
        pool.try_allocate(&stream, 64 * MIB)
            .unwrap()
            .fill(&stream, 0xee)
            .unwrap();
        resume(&device, &weights).unwrap();
        for (n, block) in blocks.iter().enumerate() {
            assert_is(&device, block, &stream, (2 * n + 1) as u8);
        }
        drop(blocks);
        settle(&device, || weights.figures().addresses == 0);
        pool.inspect().check_conserved().unwrap();
    }
}

/// Failure: the tag's account loses bytes, or its limit hinders for ever.
#[test]
fn tags_are_charged_exactly() {
    let (device, pool, stream) = start(64 * MIB);
    let tag = Tag::new("llama");
    let weights = pool
        .region("weights")
        .tag(tag)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap();
    pool.tag(tag).set_limit(Some(8 * MIB));
    let blocks = [2, 2, 4].map(|n| allocate(&device, &weights, &stream, n * MIB));
    for _ in 0..3 {
        device.block_on(weights.suspend()).unwrap();
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
        resume(&device, &weights).unwrap();
        assert_eq!(pool.tag(tag).statistics().used.current, 8 * MIB);
    }
    drop(blocks);
    settle(&device, || pool.tag(tag).statistics().used.current == 0);
    let statistics = pool.tag(tag).statistics();
    assert_eq!(statistics.allocations, statistics.frees);
    pool.inspect().check_conserved().unwrap();
}

/// Failure: closing, stopping or dropping the pool in the middle loses memory or hangs.
#[test]
fn pool_ends_at_any_time() {
    for how in 0..3 {
        for suspended in [false, true] {
            let (device, pool, stream) = start(64 * MIB);
            let weights = region(&pool, "weights", Keep::OnHost);
            let mut block = allocate(&device, &weights, &stream, 8 * MIB);
            write(&device, &mut block, &stream, 4);
            if suspended {
                device.block_on(weights.suspend()).unwrap();
            }
            match how {
                0 => pool.close(),
                1 => pool.stop_admitting(),
                _ => {}
            }
            if suspended {
                // Its memory is a request like any other.
                assert_eq!(resume(&device, &weights).is_ok(), how == 2, "{how}");
            } else {
                device.block_on(weights.suspend()).unwrap();
            }
            drop((pool, weights, stream));
            drop(block);
            settle(&device, || {
                device.memory_info(MemoryKind::Device).unwrap().free == 64 * MIB
            });
            device.assert_ordered();
        }
    }
}

/// Failure: memory runs under a launch that outlives its graph, or a capture is disturbed.
#[test]
fn launches_outlive_their_graph_and_captures_go_on() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let block = allocate(&device, &weights, &stream, 2 * MIB);
    let other = pool.create_stream().unwrap();
    let capture = pool.capture(&stream).unwrap();
    let operation = long_work(&block);
    drop(
        stream
            .submit(&block, |work: &SimStream, _| work.submit(operation))
            .unwrap(),
    );
    let refused = device.block_on(weights.suspend());
    assert!(refused.is_err() && !weights.is_suspended());
    let graph = capture.end().unwrap();
    graph.launch(&other).unwrap();
    drop((graph, other));
    device.block_on(weights.suspend()).unwrap();
    assert!(device.now() >= Duration::from_millis(20));
    resume(&device, &weights).unwrap();
    // A block that is allocated in a capture, and dropped before the launch.
    let capture = pool.capture(&stream).unwrap();
    let mut captured = allocate(&device, &weights, &stream, 2 * MIB);
    captured.fill(&stream, 1).unwrap();
    drop(captured);
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    device.block_on(weights.suspend()).unwrap();
    assert!(is_absent(&graph.launch(&stream)));
    device.advance_to_end();
    device.assert_ordered();
    drop(block);
}

/// Failure: threads that allocate, use, suspend, resume and drop at the same time.
#[test]
fn threads_at_work_lose_nothing() {
    let device = SimDevice::builder()
        .clock(weirpool::device::sim::Clock::Wall)
        .memory(64 * MIB)
        .host_memory(1 << 30)
        .build();
    let pool = Pool::builder(device.clone())
        .capacity(64 * MIB)
        .build()
        .unwrap();
    let regions = [
        region(&pool, "weights", Keep::OnHost),
        region(&pool, "cache", Keep::OnHostPageable),
    ];
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        for seed in 0..4_u8 {
            let (pool, regions) = (pool.clone(), regions.clone());
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed.into());
                let mut blocks: Vec<(usize, Block, u8)> = Vec::new();
                while Instant::now() < end {
                    let stream = pool.create_stream().unwrap();
                    for _ in 0..20 {
                        let n = random.usize(0..2);
                        let entered =
                            futures::executor::block_on(regions[n].enter_on(weirpool::Terms {
                                timeout: Some(Duration::from_secs(5)),
                                ..Default::default()
                            }));
                        let Ok(entered) = entered else {
                            continue;
                        };
                        if blocks.len() < 8 {
                            match futures::executor::block_on(
                                regions[n].allocate(&stream, random.u64(1..MIB)),
                            ) {
                                Ok(mut block) => {
                                    let value = random.u8(..);
                                    block.fill(&stream, value).unwrap();
                                    blocks.push((n, block, value));
                                }
                                Err(error) => panic!("{error}"),
                            }
                        } else {
                            // A block of the region that is entered: the checker reports an end during copies.
                            let Some(at) = blocks.iter().position(|(of, ..)| *of == n) else {
                                continue;
                            };
                            let (_, mut block, value) = blocks.swap_remove(at);
                            block.move_to(&stream).unwrap();
                            let download = block.download(&stream, 0..block.size()).unwrap();
                            let bytes = futures::executor::block_on(download).unwrap();
                            assert!(bytes.iter().all(|byte| *byte == value));
                        }
                        drop(entered);
                    }
                }
                // The rest ends while nothing is copied.
                for (n, block, _) in blocks {
                    let _entered = futures::executor::block_on(regions[n].enter()).unwrap();
                    drop(block);
                }
            });
        }
        for order in [[0, 1], [1, 0]] {
            let regions = regions.clone();
            scope.spawn(move || {
                let mut random = fastrand::Rng::new();
                while Instant::now() < end {
                    let these = order.map(|n: usize| &regions[n]);
                    if random.bool() {
                        let mut suspending = Box::pin(suspend_all(&these));
                        for _ in 0..random.usize(0..5) {
                            if poll(suspending.as_mut()).is_ready() {
                                break;
                            }
                            std::thread::yield_now();
                        }
                        continue;
                    }
                    futures::executor::block_on(suspend_all(&these)).unwrap();
                    let mut resuming = resume_all(&these).into_future();
                    for _ in 0..random.usize(0..20) {
                        if poll(resuming.as_mut()).is_ready() {
                            break;
                        }
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    for region in &regions {
        settle(&device, || {
            let figures = region.figures();
            (figures.used, figures.addresses, figures.resident) == (0, 0, 0)
        });
    }
    settle(&device, || pool.inspect().statistics().charged == 0);
    pool.inspect().check_conserved().unwrap();
    device.assert_ordered();
}

/// Failure: a tier that two regions share refuses one for ever, or loses bytes.
#[test]
fn regions_that_share_a_tier_return_its_memory() {
    let (device, pool, stream) = start(64 * MIB);
    let tier = Pool::builder(device.clone())
        .upstream(Upstream::Pinned)
        .capacity(16 * MIB)
        .build()
        .unwrap();
    let regions = ["a", "b"].map(|name| {
        pool.region(name)
            .host(&tier)
            .chunk_bytes(2 * MIB)
            .build()
            .unwrap()
    });
    let mut blocks = [0, 1].map(|n: usize| allocate(&device, &regions[n], &stream, 12 * MIB));
    for (n, block) in blocks.iter_mut().enumerate() {
        write(&device, block, &stream, n as u8);
    }
    for round in 0..4 {
        let [one, other] = [&regions[round % 2], &regions[1 - round % 2]];
        device.block_on(one.suspend()).unwrap();
        assert!(matches!(
            device.block_on(other.suspend()),
            Err(RegionError::HostFull { .. })
        ));
        resume(&device, one).unwrap();
        device.block_on(other.suspend()).unwrap();
        resume(&device, other).unwrap();
    }
    for (n, block) in blocks.iter().enumerate() {
        assert_is(&device, block, &stream, n as u8);
    }
    tier.inspect().check_conserved().unwrap();
    assert_eq!(pool.inspect().statistics().foreign, 24 * MIB);
}

/// Failure: an operation of several regions is dropped at any of its polls, or meets an error at any call.
#[test]
fn operations_of_several_regions_that_are_dropped_or_fail_lose_nothing() {
    let calls = [
        None,
        Some(Call::Create),
        Some(Call::Map),
        Some(Call::Unmap),
        Some(Call::Destroy),
        Some(Call::Copy),
        Some(Call::Record),
        Some(Call::Reserve),
        Some(Call::Unreserve),
    ];
    for call in calls {
        for nth in 1..8 {
            let (device, pool, stream) = start(64 * MIB);
            let regions = [
                region(&pool, "a", Keep::OnHost),
                region(&pool, "b", Keep::OnHostPageable),
            ];
            let both = [&regions[0], &regions[1]];
            let mut blocks = [0, 1, 0, 1].map(|n| allocate(&device, both[n], &stream, 3 * MIB));
            for (n, block) in blocks.iter_mut().enumerate() {
                write(&device, block, &stream, n as u8);
            }
            if let Some(call) = call {
                let fault = Fault::Fails(DeviceErrorKind::Other);
                device.faults().script(call, nth, fault);
            }
            for round in 0..3 {
                let mut suspending = Box::pin(suspend_all(&both));
                for _ in 0..nth {
                    if poll(suspending.as_mut()).is_ready() {
                        break;
                    }
                    device.advance_to_next();
                    std::thread::yield_now();
                }
                drop(suspending);
                let mut resuming = resume_all(&both).into_future();
                for _ in 0..nth + round {
                    if poll(resuming.as_mut()).is_ready() {
                        break;
                    }
                    device.advance_to_next();
                    std::thread::yield_now();
                }
                drop(resuming);
            }
            let mut resumed = Ok(());
            for _ in 0..3 {
                resumed = device.block_on(resume_all(&both).into_future());
            }
            assert!(resumed.is_ok(), "{call:?} {nth}: {resumed:?}");
            for (n, block) in blocks.iter().enumerate() {
                assert!(!regions[n % 2].is_suspended());
                let mut left = 2;
                let bytes = loop {
                    let download = block.download(&stream, 0..block.size());
                    match download.map(|download| device.block_on(download)) {
                        Ok(Ok(bytes)) => break bytes,
                        error if left == 0 => panic!("{call:?} {nth}: {error:?}"),
                        _ => left -= 1,
                    }
                };
                assert!(
                    bytes.iter().all(|byte| *byte == n as u8),
                    "{call:?} {nth}: {n}"
                );
            }
            let figures = regions.each_ref().map(Region::figures);
            let resident: u64 = figures.iter().map(|figures| figures.resident).sum();
            let charged = pool.inspect().statistics().charged;
            match call {
                Some(Call::Destroy | Call::Unmap) => assert!(charged >= resident),
                _ => assert_eq!(charged, resident, "{call:?} {nth}"),
            }
            assert_eq!(pool.inspect().statistics().suspended, 0);
            drop(blocks);
            settle(&device, || {
                regions.iter().all(|region| region.figures().used == 0)
            });
            pool.inspect().check_conserved().unwrap();
            device.assert_ordered();
        }
    }
}

/// Failure: a broken device leaves callers waiting, or panics.
#[test]
fn broken_device_is_reported_at_once() {
    for suspended in [false, true] {
        for keep in [Keep::OnHost, Keep::OnHostPageable, Keep::Nothing] {
            let (device, pool, stream) = start(64 * MIB);
            let weights = region(&pool, "weights", keep);
            let block = allocate(&device, &weights, &stream, 4 * MIB);
            if suspended {
                device.block_on(weights.suspend()).unwrap();
            }
            stream.record_use(&block).err();
            device.faults().break_device("hostile");
            let suspending = weights.suspend();
            let first = device.block_on(suspending);
            let second = resume(&device, &weights);
            assert!(first.is_err() || second.is_err());
            assert!(
                device
                    .block_on(weights.allocate(&stream, 40 * MIB))
                    .is_err()
            );
            drop((block, weights, pool, stream));
        }
    }
}

/// Failure: a guard that is dropped inside of a waker, or a waker that calls the region, blocks for ever.
#[test]
fn wakers_may_call_the_region() {
    struct Calls(Region, Mutex<Option<Entered>>);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            let _ = (self.0.figures(), self.0.is_suspended());
            let mut suspending = pin!(self.0.suspend());
            let _ = poll(suspending.as_mut());
            let entered = self.1.lock().unwrap().take();
            drop(entered);
            let mut entering = pin!(self.0.enter());
            let _ = poll(entering.as_mut());
            panic!("a waker panics");
        }
    }

    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let other = region(&pool, "other", Keep::OnHost);
    let mut block = allocate(&device, &weights, &stream, 2 * MIB);
    write(&device, &mut block, &stream, 5);
    for _ in 0..4 {
        let [here, there] = [&weights, &other].map(|it| device.block_on(it.enter()).unwrap());
        let waker = Waker::from(Arc::new(Calls(weights.clone(), Mutex::new(Some(there)))));
        let mut suspending = Box::pin(weights.suspend());
        let mut leaving = Box::pin(other.suspend());
        let mut context = Context::from_waker(&waker);
        assert!(suspending.as_mut().poll(&mut context).is_pending());
        assert!(leaving.as_mut().poll(&mut context).is_pending());
        drop(here);
        let (suspended, left) = device.block_on(join(suspending, leaving));
        assert!(suspended.is_ok() && left.is_ok());
        resume(&device, &weights).unwrap();
    }
    assert_is(&device, &block, &stream, 5);
    device.assert_ordered();
}

/// Failure: many streams come and go by moves while the region is suspended elsewhere.
#[test]
fn moves_to_many_streams_are_waited_for() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let mut block = allocate(&device, &weights, &stream, 2 * MIB);
    for round in 1..4 {
        for n in 0..40 {
            let work = device.create_stream();
            let other = pool.register(&work).unwrap();
            block.move_to(&other).unwrap();
            work.submit(Operation::new(Duration::from_millis(n)).writes(block.address(), 512));
        }
        device.block_on(weights.suspend()).unwrap();
        resume(&device, &weights).unwrap();
        assert!(device.now() >= Duration::from_millis(780 * round));
    }
    device.assert_ordered();
}

/// Failure: the region and the pool end while the region is suspended, or in the middle, and memory is left.
#[test]
fn region_that_is_dropped_in_any_state_leaves_nothing() {
    for polls in 0..10 {
        for of_resume in [false, true] {
            let (device, pool, stream) = start(64 * MIB);
            let weights = region(&pool, "weights", Keep::Nothing);
            let block = allocate(&device, &weights, &stream, 8 * MIB);
            let further = allocate(&device, &weights, &stream, 2 * MIB);
            if of_resume {
                device.block_on(weights.suspend()).unwrap();
                let mut resuming = weights.resume().into_future();
                for _ in 0..polls {
                    if poll(resuming.as_mut()).is_ready() {
                        break;
                    }
                }
            } else {
                let mut suspending = Box::pin(weights.suspend());
                for _ in 0..polls {
                    if poll(suspending.as_mut()).is_ready() {
                        break;
                    }
                }
            }
            let thread = std::thread::spawn(move || drop(block));
            drop((weights, stream, pool));
            thread.join().unwrap();
            drop(further);
            settle(&device, || {
                let [on_device, on_host] = [MemoryKind::Device, MemoryKind::Pinned]
                    .map(|kind| device.memory_info(kind).unwrap());
                on_device.free == on_device.total && on_host.free == on_host.total
            });
            device.assert_ordered();
        }
    }
}

/// Failure: futures that wait are polled all the time.
#[test]
fn waiting_does_not_spin() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::Nothing);
    let block = allocate(&device, &weights, &stream, 40 * MIB);
    device.block_on(weights.suspend()).unwrap();
    let taken = pool.try_allocate(&stream, 48 * MIB).unwrap();
    let mut polls = 0;
    let entering = async {
        let mut entering = pin!(weights.enter());
        std::future::poll_fn(|context| {
            polls += 1;
            entering.as_mut().poll(context)
        })
        .await
    };
    let idle = weights.suspend_when_idle(Duration::from_secs(3600));
    let freed = async {
        pause(&device, Duration::from_secs(1000)).await;
        drop(taken);
    };
    let both = join(entering, freed);
    let entered = match device.block_on(select(pin!(both), pin!(idle))) {
        Either::Left(((entered, ()), _)) => entered.unwrap(),
        Either::Right((error, _)) => panic!("{error}"),
    };
    drop((entered, block));
    assert!(polls < 50, "{polls} polls");
}

/// Failure: memory that was charged to the tag of its allocation is charged to nobody once it is back.
#[test]
fn tag_of_an_allocation_is_charged_again_after_a_resumption() {
    let (device, pool, stream) = start(64 * MIB);
    let tags = ["regions: first", "regions: second"].map(Tag::new);
    let weights = region(&pool, "weights", Keep::OnHost);
    let allocate = |tag| {
        let terms = weirpool::Terms {
            tag: Some(tag),
            ..weirpool::Terms::default()
        };
        let block = weights.allocate_on(&stream, 4 * MIB, terms);
        device.block_on(block).unwrap()
    };
    let charged = |tag| pool.tag(tag).statistics().used.current;
    let blocks = [allocate(tags[0]), allocate(tags[0])];
    device.block_on(weights.suspend()).unwrap();
    assert_eq!(tags.map(charged), [0, 0]);
    resume(&device, &weights).unwrap();
    assert_eq!(tags.map(charged), [8 * MIB, 0]);
    // The terms of a resumption come first.
    device.block_on(weights.suspend()).unwrap();
    let terms = weirpool::Terms {
        tag: Some(tags[1]),
        ..weirpool::Terms::default()
    };
    let resuming = weights.resume().terms(terms);
    device.block_on(resuming.into_future()).unwrap();
    assert_eq!(tags.map(charged), [0, 8 * MIB]);
    // No tag is charged for memory of another one.
    device.block_on(weights.suspend()).unwrap();
    resume(&device, &weights).unwrap();
    let other = allocate(tags[1]);
    device.block_on(weights.suspend()).unwrap();
    resume(&device, &weights).unwrap();
    assert_eq!(tags.map(charged), [0, 0]);
    drop((blocks, other));
    settle(&device, || pool.inspect().statistics().charged == 0);
}

/// Failure: the host has room for each part, but not for all of them, which is found after some of it was filled.
#[test]
fn pageable_memory_of_the_host_is_asked_for_as_a_whole() {
    const HUGE: u64 = 1 << 45;
    if Vec::<u8>::new().try_reserve_exact(HUGE as usize).is_ok() {
        // This host promises memory that it does not have.
        return;
    }
    let device = SimDevice::builder()
        .memory(HUGE)
        .backing(Backing::AddressesOnly)
        .build();
    let pool = Pool::builder(device.clone()).build().unwrap();
    let stream = pool.create_stream().unwrap();
    let weights = region(&pool, "weights", Keep::OnHostPageable);
    let block = allocate(&device, &weights, &stream, HUGE);
    let begin = Instant::now();
    match device.block_on(weights.suspend()) {
        Err(RegionError::HostFull { bytes, .. }) => assert_eq!(bytes, HUGE),
        other => panic!("{other:?}"),
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(!weights.is_suspended());
    stream.record_use(&block).unwrap();
}
