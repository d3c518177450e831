//! What regions do.

use crate::common::*;
use futures::future::{Either, join, select};
use std::future::IntoFuture;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;
use weirpool::device::sim::{Call, Operation, SimDevice, SimStream, ViolationKind};
use weirpool::device::{Device, DeviceErrorKind, MemoryKind};
use weirpool::{AllocError, Block, CopyError, Pool, StreamError, Tag, TaskError, Upstream};
use weirpool_tiers::{Keep, Region, RegionError, Regions, resume_all, suspend_all};

fn assert_absent<T>(result: Result<T, StreamError>) {
    match result {
        Err(StreamError::Absent { memory }) => assert_eq!(&*memory, "weights"),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("suspended memory was used"),
    }
}

#[test]
fn contents_come_back_at_the_same_addresses() {
    for keep in [Keep::OnHost, Keep::OnHostPageable] {
        let (device, pool, stream) = start(64 * MIB);
        let weights = region(&pool, "weights", keep);
        let mut blocks = Vec::new();
        for (n, bytes) in [1, 512, 3 * MIB + 5, 40 * MIB].into_iter().enumerate() {
            let mut block = device.block_on(weights.allocate(&stream, bytes)).unwrap();
            assert_eq!(block.requested(), bytes);
            write(&device, &mut block, &stream, n as u8);
            blocks.push(block);
        }
        let addresses: Vec<_> = blocks.iter().map(Block::address).collect();
        for _ in 0..3 {
            let resident = weights.figures().resident;
            assert_eq!(pool.inspect().statistics().charged, resident);
            assert_eq!(device.block_on(weights.suspend()).unwrap(), resident);
            let statistics = pool.inspect().statistics();
            assert_eq!((statistics.charged, statistics.suspended), (0, resident));
            let free = device.memory_info(MemoryKind::Device).unwrap().free;
            assert_eq!(free + statistics.reserved.current, 64 * MIB);
            // All of it is the pool's meanwhile, which overwrites it.
            let mut other = pool.try_allocate(&stream, 64 * MIB).unwrap();
            other.fill(&stream, 0xff).unwrap();
            drop(other);
            device.block_on(weights.resume().into_future()).unwrap();
            assert_eq!(pool.inspect().statistics().suspended, 0);
            for (n, block) in blocks.iter().enumerate() {
                assert_eq!(block.address(), addresses[n]);
                assert_is(&device, block, &stream, n as u8);
            }
        }
        drop(blocks);
        device.block_on(pool.drain()).unwrap();
        device.assert_ordered();
    }
}

#[test]
fn memory_that_is_not_kept_comes_back_with_any_contents() {
    let (device, pool, stream) = start(64 * MIB);
    let cache = region(&pool, "weights", Keep::Nothing);
    let mut block = device.block_on(cache.allocate(&stream, 8 * MIB)).unwrap();
    write(&device, &mut block, &stream, 7);
    device.block_on(cache.suspend()).unwrap();
    assert_eq!(cache.figures().on_host, 0);
    device.block_on(cache.resume().into_future()).unwrap();
    write(&device, &mut block, &stream, 8);
    assert_is(&device, &block, &stream, 8);
    device.assert_ordered();
}

#[test]
fn suspended_memory_cannot_be_used() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let mut block = device.block_on(weights.allocate(&stream, 2 * MIB)).unwrap();
    let mut other = pool.try_allocate(&stream, 2 * MIB).unwrap();
    let further = pool.create_stream().unwrap();
    device.block_on(weights.suspend()).unwrap();
    assert_eq!(device.block_on(weights.suspend()).unwrap(), 0);
    assert!(weights.is_suspended());
    assert_absent(stream.record_use(&block));
    assert_absent(further.record_use(&mut block));
    assert_absent(stream.record_use(weirpool::Unordered::ByCaller(&block)));
    let submitted = stream.submit(&block, |_: &SimStream, _| panic!("the closure was called"));
    match submitted {
        Err(TaskError::Stream(error)) => assert_absent::<()>(Err(error)),
        other => panic!("{:?}", other.map(drop)),
    }
    let copies = [
        block.upload(&stream, 0, &[1]).map(drop),
        block.download(&stream, 0..1).map(drop),
        block.zero(&stream),
        block.copy_to(0..1, &mut other, 0, &stream).map(drop),
        other.copy_to(0..1, &mut block, 0, &stream).map(drop),
        block.slice_mut(0..4).unwrap().fill(&stream, 1),
    ];
    for copy in copies {
        match copy {
            Err(CopyError::Stream(error)) => assert_absent::<()>(Err(error)),
            other => panic!("{other:?}"),
        }
    }
    let allocated = device.block_on(weights.allocate(&stream, 1));
    assert!(matches!(allocated, Err(RegionError::Suspended { .. })));
    block.move_to(&further).unwrap();
    drop(block);
    settle(&device, || weights.figures().addresses == 0);
    device.block_on(weights.resume().into_future()).unwrap();
    device.assert_ordered();
}

#[test]
fn launches_fail_while_a_block_of_the_graph_is_suspended() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let mut block = device.block_on(weights.allocate(&stream, 2 * MIB)).unwrap();
    write(&device, &mut block, &stream, 3);
    let capture = pool.capture(&stream).unwrap();
    block.fill(&stream, 9).unwrap();
    let graph = capture.end().unwrap();
    let other = pool.create_stream().unwrap();
    for _ in 0..3 {
        graph.launch(&other).unwrap();
        device.block_on(weights.suspend()).unwrap();
        assert_absent(graph.launch(&other));
        device.block_on(weights.resume().into_future()).unwrap();
        assert_is(&device, &block, &stream, 9);
        write(&device, &mut block, &stream, 3);
    }
    drop((graph, block));
    device.block_on(pool.drain()).unwrap();
    device.assert_ordered();
}

/// The blocks of a capture are the graph's, whether they are dropped in it or not: a later request of the region gets other
/// addresses, and each launch finds its own again.
#[test]
fn graph_memory_of_a_region_comes_back_for_its_launches() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let mut input = device.block_on(weights.allocate(&stream, MIB)).unwrap();
    let capture = pool.capture(&stream).unwrap();
    let allocate = || device.block_on(weights.allocate(&stream, MIB)).unwrap();
    let (mut temporary, mut answer) = (allocate(), allocate());
    drop(input.copy_to(0..MIB, &mut temporary, 0, &stream).unwrap());
    drop(temporary.copy_to(0..MIB, &mut answer, 0, &stream).unwrap());
    let (held, at) = (temporary.address(), answer.address());
    drop(temporary);
    let graph = capture.end().unwrap();
    let later = device.block_on(weights.allocate(&stream, MIB)).unwrap();
    assert!(![held, at].contains(&later.address()));
    let other = pool.create_stream().unwrap();
    // The contents of a graph's memory are undefined before the first launch, and the device reports who reads them.
    write(&device, &mut input, &stream, 0);
    graph.launch(&other).unwrap();
    for value in 1..4 {
        write(&device, &mut input, &stream, value);
        assert_eq!(device.block_on(weights.suspend()).unwrap(), 4 * MIB);
        assert_absent(graph.launch(&other));
        let all = device.block_on(pool.reserve(64 * MIB)).unwrap();
        let late = weights.resume().timeout(Duration::from_millis(1));
        assert!(device.block_on(late.into_future()).is_err());
        assert_absent(graph.launch(&other));
        drop(all);
        device.block_on(weights.resume().into_future()).unwrap();
        graph.launch(&other).unwrap();
        device.block_on(other.synchronize()).unwrap();
        assert_eq!(answer.address(), at);
        assert_is(&device, &answer, &stream, value);
    }
    drop((graph, input, answer, later));
    settle(&device, || weights.figures().addresses == 0);
    device.block_on(pool.drain()).unwrap();
    device.assert_ordered();
}

#[test]
fn suspending_waits_for_uses_on_all_streams_and_refuses_new_ones() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let block = device.block_on(weights.allocate(&stream, 2 * MIB)).unwrap();
    let others: Vec<_> = (0..20).map(|_| pool.create_stream().unwrap()).collect();
    for (n, other) in others.iter().enumerate() {
        let work = Operation::new(Duration::from_millis(1 + n as u64));
        let submitted = other.submit(&block, |stream: &SimStream, block| {
            stream.submit(work.reads(block.address(), block.size()));
        });
        drop(submitted.unwrap());
    }
    // Their work is to be waited for, whether anybody has them or not.
    drop(others);
    let mut suspending = pin!(weights.suspend());
    assert!(poll(suspending.as_mut()).is_pending());
    assert_absent(stream.record_use(&block));
    assert!(device.is_mapped(block.address(), block.size()));
    device.block_on(suspending).unwrap();
    assert!(device.now() >= Duration::from_millis(20));
    assert!(!device.is_mapped(block.address(), block.size()));
    device.assert_ordered();
}

/// As for any block, work on the stream of a block needs no note, be it its first stream or one that it was moved to.
#[test]
fn suspending_waits_for_the_streams_of_blocks() {
    for is_moved in [false, true] {
        let (device, pool, _) = start(64 * MIB);
        let works = [device.create_stream(), device.create_stream()];
        let [first, second] = works.each_ref().map(|work| pool.register(work).unwrap());
        let weights = region(&pool, "weights", Keep::OnHost);
        let mut block = device.block_on(weights.allocate(&first, 2 * MIB)).unwrap();
        if is_moved {
            block.move_to(&second).unwrap();
        }
        for round in 1..3 {
            let work = Operation::new(Duration::from_millis(20));
            works[usize::from(is_moved)].submit(work.writes(block.address(), 512));
            device.block_on(weights.suspend()).unwrap();
            assert!(device.now() >= Duration::from_millis(20 * round));
            device.block_on(weights.resume().into_future()).unwrap();
        }
        device.assert_ordered();
    }
}

/// Streams come and go, and the region does not remember them all.
#[test]
fn streams_that_are_gone_are_forgotten() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let block = device.block_on(weights.allocate(&stream, 2 * MIB)).unwrap();
    for _ in 0..200 {
        let other = pool.create_stream().unwrap();
        let block = device.block_on(weights.allocate(&other, 512)).unwrap();
        drop((block, other));
        device.advance_to_end();
    }
    let _ = pool.maintain().reap().unwrap();
    let streams = pool.inspect().statistics_by_stream().len();
    assert!(streams < 40, "{streams} streams");
    drop(block);
}

#[test]
fn suspending_waits_for_an_entered_region() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let block = device.block_on(weights.allocate(&stream, 2 * MIB)).unwrap();
    let entered = device.block_on(weights.enter()).unwrap();
    let mut suspending = Box::pin(weights.suspend());
    assert!(poll(suspending.as_mut()).is_pending());
    device.advance(Duration::from_secs(1));
    assert!(poll(suspending.as_mut()).is_pending());
    // It is given up, and all goes on.
    drop(suspending);
    stream.record_use(&block).unwrap();
    let leaving = async {
        pause(&device, Duration::from_millis(1)).await;
        drop(entered);
    };
    let (suspended, ()) = device.block_on(join(weights.suspend(), leaving));
    suspended.unwrap();
    let entered = device.block_on(weights.enter()).unwrap();
    assert!(!weights.is_suspended());
    drop(entered);
}

#[test]
fn resuming_waits_its_turn() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let mut block = device
        .block_on(weights.allocate(&stream, 40 * MIB))
        .unwrap();
    write(&device, &mut block, &stream, 5);
    device.block_on(weights.suspend()).unwrap();
    let taken = pool.try_allocate(&stream, 48 * MIB).unwrap();
    let error = device.block_on(
        weights
            .resume()
            .timeout(Duration::from_secs(1))
            .into_future(),
    );
    assert!(
        matches!(error, Err(RegionError::Alloc(AllocError::TimedOut { .. }))),
        "{error:?}"
    );
    let mut resuming = weights.resume().into_future();
    assert!(poll(resuming.as_mut()).is_pending());
    // A later request does not overtake it.
    let mut later = pin!(pool.allocate(&stream, 40 * MIB));
    assert!(poll(later.as_mut()).is_pending());
    drop(taken);
    device.block_on(resuming).unwrap();
    assert_is(&device, &block, &stream, 5);
    assert!(poll(later.as_mut()).is_pending());
    drop(block);
    drop(weights);
    drop(device.block_on(later).unwrap());
}

#[test]
fn resuming_waits_for_memory_that_others_hold() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let mut block = device
        .block_on(weights.allocate(&stream, 40 * MIB))
        .unwrap();
    write(&device, &mut block, &stream, 5);
    device.block_on(weights.suspend()).unwrap();
    // Free memory of the pool is no obstacle.
    drop(pool.try_allocate(&stream, 60 * MIB).unwrap());
    let _ = pool.trim_to(0).unwrap();
    let occupied = device.faults().occupy(32 * MIB);
    let late = weights
        .resume()
        .timeout(Duration::from_secs(2))
        .into_future();
    match device.block_on(late) {
        Err(RegionError::DeviceFull { bytes, waited }) => {
            assert_eq!(bytes, 40 * MIB);
            assert!(waited >= Duration::from_secs(2));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.inspect().statistics().charged, 0);
    let mut resuming = weights.resume().into_future();
    assert!(poll(resuming.as_mut()).is_pending());
    device.advance(Duration::from_secs(5));
    assert!(poll(resuming.as_mut()).is_pending());
    drop(occupied);
    device.block_on(resuming).unwrap();
    assert_is(&device, &block, &stream, 5);
}

#[test]
fn host_without_memory_is_met_before_anything_is_lost() {
    let (device, pool, stream) = start(64 * MIB);
    let tier = Pool::builder(device.clone())
        .upstream(Upstream::Pinned)
        .capacity(16 * MIB);
    let tier = tier.build().unwrap();
    let weights = pool
        .region("weights")
        .host(&tier)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap();
    let allocate = || {
        device
            .block_on(weights.allocate(&stream, 12 * MIB))
            .unwrap()
    };
    let mut blocks = [allocate(), allocate()];
    for (n, block) in blocks.iter_mut().enumerate() {
        write(&device, block, &stream, n as u8);
    }
    match device.block_on(weights.suspend()) {
        Err(RegionError::HostFull { bytes, .. }) => assert_eq!(bytes, 24 * MIB),
        other => panic!("{other:?}"),
    }
    assert!(!weights.is_suspended());
    for (n, block) in blocks.iter().enumerate() {
        assert_is(&device, block, &stream, n as u8);
    }
    assert_eq!(tier.inspect().statistics().used.current, 0);
    let [first, second] = blocks;
    drop(first);
    device.block_on(second.stream().synchronize()).unwrap();
    device.block_on(weights.suspend()).unwrap();
    assert_eq!(tier.inspect().statistics().used.current, 12 * MIB);
    device.block_on(weights.resume().into_future()).unwrap();
    assert_is(&device, &second, &stream, 1);
}

#[test]
fn several_regions_are_suspended_together_or_not_at_all() {
    let (device, pool, stream) = start(64 * MIB);
    let tier = Pool::builder(device.clone())
        .upstream(Upstream::Pinned)
        .capacity(8 * MIB);
    let tier = tier.build().unwrap();
    let weights = region(&pool, "weights", Keep::OnHost);
    let cache = pool
        .region("cache")
        .host(&tier)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap();
    let mut block = device
        .block_on(weights.allocate(&stream, 12 * MIB))
        .unwrap();
    write(&device, &mut block, &stream, 1);
    let entries: Vec<_> = (0..2)
        .map(|_| device.block_on(cache.allocate(&stream, 6 * MIB)).unwrap())
        .collect();
    let refused = device.block_on(suspend_all(&[&weights, &cache, &weights]));
    assert!(
        matches!(refused, Err(RegionError::HostFull { .. })),
        "{refused:?}"
    );
    assert!(!weights.is_suspended() && !cache.is_suspended());
    assert_is(&device, &block, &stream, 1);
    drop(entries);
    let entry = device.block_on(cache.allocate(&stream, 6 * MIB)).unwrap();
    device.block_on(suspend_all(&[&cache, &weights])).unwrap();
    assert_eq!(pool.inspect().statistics().charged, 0);
    device
        .block_on(resume_all(&[&weights, &cache]).into_future())
        .unwrap();
    assert_is(&device, &block, &stream, 1);
    drop(entry);
    let (_, elsewhere, _) = start(8 * MIB);
    let other = region(&elsewhere, "other", Keep::Nothing);
    let mixed = device.block_on(suspend_all(&[&weights, &other]));
    assert!(matches!(mixed, Err(RegionError::OtherPool { .. })));
}

/// A resumption waits for memory that a suspension of the same region and another one is to give back.
#[test]
fn suspending_several_does_not_wait_for_a_resumption_of_one() {
    for is_first in [false, true] {
        let (device, pool, stream) = start(64 * MIB);
        let both = [(); 2].map(|()| region(&pool, "weights", Keep::OnHost));
        // Regions have one order for all operations, whichever is suspended.
        let [away, here] = match is_first {
            true => [&both[0], &both[1]],
            false => [&both[1], &both[0]],
        };
        let allocate = |region: &Region| {
            let allocated = region.allocate(&stream, 40 * MIB);
            device.block_on(allocated).unwrap()
        };
        let mut kept = allocate(away);
        write(&device, &mut kept, &stream, 7);
        device.block_on(away.suspend()).unwrap();
        let _other = allocate(here);
        let resumed = away.resume().into_future();
        let suspended = pin!(async { suspend_all(&[away, here]).await });
        let (resumed, suspended) = device.block_on(join(resumed, suspended));
        resumed.unwrap();
        assert_eq!(suspended.unwrap(), 40 * MIB);
        assert!(!away.is_suspended() && here.is_suspended());
        assert_is(&device, &kept, &stream, 7);
        device.assert_ordered();
    }
}

/// Each region is charged to its own tag, and never to that of another one.
#[test]
fn regions_of_different_tags_are_resumed_one_after_the_other() {
    let (device, pool, stream) = start(64 * MIB);
    let names = ["regions: one", "regions: other"];
    let tags = names.map(Tag::new);
    let regions = tags.map(|tag| {
        pool.tag(tag).set_limit(Some(8 * MIB));
        pool.region("weights")
            .chunk_bytes(8 * MIB)
            .tag(tag)
            .build()
            .unwrap()
    });
    let [one, other] = &regions;
    let allocate = |region: &Region| device.block_on(region.allocate(&stream, 8 * MIB)).unwrap();
    let _blocks = [allocate(one), allocate(other)];
    device.block_on(suspend_all(&[one, other])).unwrap();
    let refused = device.block_on(resume_all(&[one, other]).into_future());
    assert!(
        matches!(refused, Err(RegionError::OtherTag { .. })),
        "{refused:?}"
    );
    for region in [one, other] {
        device.block_on(region.resume().into_future()).unwrap();
    }
    let used = tags.map(|tag| pool.tag(tag).statistics().used.current);
    assert_eq!(used, [8 * MIB; 2]);
}

#[test]
fn small_blocks_share_memory_and_return_it() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let allocate = |bytes| device.block_on(weights.allocate(&stream, bytes)).unwrap();
    let mut blocks: Vec<_> = (0..64).map(|_| allocate(64 << 10)).collect();
    assert_eq!(weights.figures().resident, 4 * MIB);
    for (n, block) in blocks.iter_mut().enumerate() {
        write(&device, block, &stream, n as u8);
    }
    // Each second one ends, some of them while the region is suspended.
    let mut n = 0;
    blocks.retain(|_| {
        n += 1;
        n > 32 || n % 2 == 0
    });
    device.block_on(weights.suspend()).unwrap();
    assert!(weights.figures().on_host < 4 * MIB);
    let last = blocks.split_off(16);
    drop(blocks);
    device.block_on(weights.resume().into_future()).unwrap();
    for (n, block) in last.iter().enumerate() {
        assert_is(&device, block, &stream, 32 + n as u8);
    }
    let figures = weights.figures();
    assert_eq!(figures.used, 32 * (64 << 10));
    assert_eq!(pool.inspect().statistics().charged, figures.resident);
    drop(last);
    settle(&device, || {
        weights.figures() == weirpool_tiers::RegionFigures::default()
    });
    settle(&device, || pool.inspect().statistics().charged == 0);
}

#[test]
fn checker_reports_a_use_of_suspended_memory_by_its_address() {
    let (device, pool, _) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let work = device.create_stream();
    let stream = pool.register(&work).unwrap();
    let (allocating, line) = (weights.allocate(&stream, 2 * MIB), line!());
    let block = device.block_on(allocating).unwrap();
    device.block_on(weights.suspend()).unwrap();
    let read = Operation::new(Duration::from_micros(1)).reads(block.address(), 512);
    let raised = catch_unwind(AssertUnwindSafe(|| work.submit(read)));
    assert!(raised.is_err());
    let [violation] = &device.take_violations()[..] else {
        panic!("one violation");
    };
    assert_eq!(violation.kind, ViolationKind::Suspended);
    let memory = violation.memory.as_ref().expect("the block");
    assert_eq!(memory.allocated.line(), line, "{violation}");
}

#[test]
fn idle_region_is_suspended_and_entering_resumes_it() {
    let (device, pool, stream) = start(64 * MIB);
    let weights = region(&pool, "weights", Keep::OnHost);
    let mut block = device.block_on(weights.allocate(&stream, 8 * MIB)).unwrap();
    write(&device, &mut block, &stream, 4);
    let idle = weights.suspend_when_idle(Duration::from_secs(1));
    let requests = async {
        for _ in 0..3 {
            let entered = weights.enter().await.unwrap();
            pause(&device, Duration::from_secs(3)).await;
            assert!(!weights.is_suspended(), "while somebody is inside");
            assert_eq!(block.download(&stream, 0..1).unwrap().await.unwrap(), [4]);
            drop(entered);
            pause(&device, Duration::from_millis(900)).await;
            assert!(!weights.is_suspended(), "before its time");
            pause(&device, Duration::from_millis(1200)).await;
            assert!(weights.is_suspended());
        }
    };
    match device.block_on(select(pin!(idle), pin!(requests))) {
        Either::Left((error, _)) => panic!("{error}"),
        Either::Right(((), _)) => {}
    }
}

#[test]
fn plain_memory_is_refused_with_the_reason() {
    let device = SimDevice::new();
    let pool = Pool::builder(device.clone())
        .upstream(Upstream::Pinned)
        .build()
        .unwrap();
    let error = pool.region("weights").build().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("addresses of plain memory are lost"),
        "{error}"
    );
    let plain = SimDevice::builder().virtual_memory(false).build();
    let pool = Pool::builder(plain).build().unwrap();
    assert!(matches!(
        pool.region("weights").build(),
        Err(RegionError::Unsupported { .. })
    ));
}

#[test]
fn tag_of_the_region_is_charged_while_it_is_resident() {
    let (device, pool, stream) = start(64 * MIB);
    let tag = Tag::new("llama");
    let weights = pool
        .region("weights")
        .tag(tag)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap();
    let charged = || pool.tag(tag).statistics().used.current;
    let block = device.block_on(weights.allocate(&stream, 8 * MIB)).unwrap();
    assert_eq!(charged(), 8 * MIB);
    device.block_on(weights.suspend()).unwrap();
    assert_eq!(charged(), 0);
    device.block_on(weights.resume().into_future()).unwrap();
    assert_eq!(charged(), 8 * MIB);
    drop(block);
    settle(&device, || charged() == 0);
}

/// A device call that fails in the middle must lose no contents, leave no bytes charged, and leave the region in one of its
/// two states.
#[test]
fn device_error_anywhere_loses_no_contents() {
    let calls = [
        Call::Create,
        Call::Map,
        Call::Unmap,
        Call::Destroy,
        Call::Copy,
        Call::Record,
        Call::Query,
        Call::Wait,
        Call::Allocate,
        Call::CreateEvent,
        Call::Upload,
        Call::Download,
    ];
    for keep in [Keep::OnHost, Keep::OnHostPageable] {
        for call in calls {
            for nth in 1..6 {
                let (device, pool, stream) = start(64 * MIB);
                let weights = region(&pool, "weights", keep);
                let allocate = |bytes| device.block_on(weights.allocate(&stream, bytes)).unwrap();
                let mut blocks = [allocate(2 * MIB), allocate(3 * MIB), allocate(1)];
                for (n, block) in blocks.iter_mut().enumerate() {
                    write(&device, block, &stream, n as u8);
                }
                let fault = weirpool::device::sim::Fault::Fails(DeviceErrorKind::Other);
                device.faults().script(call, nth, fault);
                let suspended = device.block_on(weights.suspend());
                let figures = weights.figures();
                assert_eq!(
                    figures.is_suspended,
                    weights.is_suspended(),
                    "{call:?} {nth} {suspended:?}"
                );
                if figures.is_suspended && suspended.is_ok() {
                    assert_eq!(figures.resident, 0, "{call:?} {nth}");
                }
                // Up to two faulty tries: the fault may be met by the resumption.
                let mut resumed = device.block_on(weights.resume().into_future());
                if resumed.is_err() {
                    assert!(weights.is_suspended(), "{call:?} {nth}: {resumed:?}");
                    resumed = device.block_on(weights.resume().into_future());
                }
                resumed.unwrap_or_else(|error| panic!("{call:?} {nth}: {error}"));
                let figures = weights.figures();
                assert_eq!(
                    (figures.is_suspended, figures.resident),
                    (false, figures.addresses)
                );
                // A fault that is left meets one of the next calls.
                let mut left = 0;
                for (n, block) in blocks.iter().enumerate() {
                    let bytes = loop {
                        let download = block.download(&stream, 0..block.size());
                        let bytes = download.map(|download| device.block_on(download));
                        match bytes {
                            Ok(Ok(bytes)) => break bytes,
                            _ if left < 2 => left += 1,
                            other => panic!("{call:?} {nth}: {other:?}"),
                        }
                    };
                    assert!(
                        bytes.iter().all(|byte| *byte == n as u8),
                        "{call:?} {nth}: contents of {n}"
                    );
                }
                drop(blocks);
                let _ = device.block_on(pool.drain());
                device.assert_ordered();
            }
        }
    }
}

/// A future that is dropped in the middle must leave no half.
#[test]
fn cancelled_operation_leaves_either_state() {
    for dropped_after in 0..12 {
        let (device, pool, stream) = start(64 * MIB);
        let weights = region(&pool, "weights", Keep::OnHost);
        let mut block = device.block_on(weights.allocate(&stream, 8 * MIB)).unwrap();
        write(&device, &mut block, &stream, 6);
        let work = Operation::new(Duration::from_millis(3));
        drop(stream.submit(&block, |stream: &SimStream, block| {
            stream.submit(work.reads(block.address(), block.size()));
        }));
        let mut suspending = Box::pin(weights.suspend());
        for _ in 0..dropped_after {
            if poll(suspending.as_mut()).is_ready() {
                break;
            }
            device.advance_to_next();
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(suspending);
        // Whatever runs in the background ends with its turn, for which the next operation waits.
        let holder = pool.try_allocate(&stream, 32 * MIB).unwrap();
        let mut resuming = weights.resume().into_future();
        for _ in 0..dropped_after {
            if poll(resuming.as_mut()).is_ready() {
                break;
            }
            device.advance_to_next();
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(resuming);
        drop(holder);
        device.block_on(weights.resume().into_future()).unwrap();
        assert_is(&device, &block, &stream, 6);
        let figures = weights.figures();
        assert_eq!(figures.resident, figures.addresses);
        assert_eq!(pool.inspect().statistics().charged, figures.resident);
        drop(block);
        device.block_on(pool.drain()).unwrap();
        device.assert_ordered();
    }
}

/// In any order of calls, contents are kept, blocks are disjoint, and bytes are conserved.
#[test]
fn random_calls_keep_contents_and_bytes() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (device, pool, _) = start(32 * MIB);
        let streams: Vec<_> = (0..3).map(|_| pool.create_stream().unwrap()).collect();
        let regions = [
            region(&pool, "weights", Keep::OnHost),
            region(&pool, "cache", Keep::OnHostPageable),
        ];
        let mut blocks: Vec<(usize, Block, u8)> = Vec::new();
        for _ in 0..120 {
            let (n, stream) = (random.usize(0..2), &streams[random.usize(0..3)]);
            let region = &regions[n];
            match random.u8(0..10) {
                0..4 if !region.is_suspended() => {
                    let bytes = random.u64(1..3 * MIB);
                    let allocated = device.block_on(region.allocate_on(
                        stream,
                        bytes,
                        weirpool::Terms {
                            timeout: Some(Duration::ZERO),
                            ..Default::default()
                        },
                    ));
                    if let Ok(mut block) = allocated {
                        let value = random.u8(..);
                        block.fill(stream, value).unwrap();
                        blocks.push((n, block, value));
                    }
                }
                4..6 if !blocks.is_empty() => {
                    let block = blocks.swap_remove(random.usize(0..blocks.len()));
                    drop(block);
                }
                6..8 => {
                    for (_, block, value) in blocks.iter().filter(|block| block.0 == n) {
                        match block.download(stream, 0..block.size()) {
                            Ok(download) => {
                                let bytes = device.block_on(download).unwrap();
                                assert!(bytes.iter().all(|byte| byte == value), "seed {seed}");
                            }
                            Err(_) => assert!(region.is_suspended(), "seed {seed}"),
                        }
                    }
                }
                8 => {
                    device.block_on(region.suspend()).unwrap();
                }
                _ => {
                    let resumed = device.block_on(
                        region
                            .resume()
                            .timeout(Duration::from_secs(1))
                            .into_future(),
                    );
                    assert_eq!(
                        resumed.is_err(),
                        region.is_suspended(),
                        "seed {seed}: {resumed:?}"
                    );
                }
            }
            let figures = regions.each_ref().map(Region::figures);
            let resident: u64 = figures.iter().map(|figures| figures.resident).sum();
            assert!(resident <= 32 * MIB);
        }
        drop(blocks);
        for region in &regions {
            settle(&device, || {
                let figures = region.figures();
                (figures.used, figures.addresses, figures.resident) == (0, 0, 0)
            });
        }
        settle(&device, || pool.inspect().statistics().charged == 0);
        device.assert_ordered();
    }
}
