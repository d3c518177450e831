//! What an allocation and a free do, without waiting. Numbers in brackets are the rows of the list of
//! behaviours that peers test.

mod common;

use common::*;
use weirpool::device::sim::{Backing, SimDevice};
use weirpool::*;

#[test]
fn zero_bytes_are_a_block_of_their_own() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_work, stream) = stream(&device, &pool);
    let a = pool.try_allocate(&stream, 0).unwrap();
    let b = pool.try_allocate(&stream, 0).unwrap();
    assert_ne!(a.address(), b.address());
    assert_eq!(a.requested(), 0);
    drop((a, b));
    pool.check_conserved().unwrap();
}

#[test]
fn a_request_that_can_never_fit_fails_at_once() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_work, stream) = stream(&device, &pool);
    for bytes in [1 << 50, u64::MAX, 8 * MIB + 1] {
        let error = now(pool.allocate(&stream, bytes)).unwrap_err();
        assert_eq!(error, pool.try_allocate(&stream, bytes).unwrap_err());
        assert_eq!(
            error,
            AllocError::TooLarge {
                requested: bytes,
                capacity: 8 * MIB
            }
        );
    }
    assert!(pool.try_allocate(&stream, 8 * MIB).is_ok(), "usable after");
}

#[test]
fn alignment_is_honoured_and_nonsense_refused() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    let (_work, stream) = stream(&device, &pool);
    let mut live = Vec::new();
    for power in 0..=21 {
        let alignment = 1 << power;
        let block = now(pool.allocate(&stream, 700).alignment(alignment)).unwrap();
        assert_eq!(block.address() % alignment, 0);
        live.push(block);
    }
    for alignment in [0, 3, 4 * MIB] {
        let error = pool
            .try_allocate_aligned(&stream, 1, alignment)
            .unwrap_err();
        assert!(
            matches!(error, AllocError::InvalidAlignment { .. }),
            "{error}"
        );
    }
    live.sort_by_key(Block::address);
    for pair in live.windows(2) {
        assert!(pair[0].address() + pair[0].size() <= pair[1].address());
    }
    drop(live);
    pool.check_conserved().unwrap();
}

#[test]
fn capacity_is_a_bound_and_its_end_is_clean() {
    let device = manual();
    assert!(matches!(
        builder(&device, 8 * MIB).initial_size(9 * MIB).build(),
        Err(BuildError::InitialOverCapacity { .. })
    ));
    assert!(matches!(
        Pool::builder(device.clone()).capacity(1).build(),
        Err(BuildError::CapacityTooSmall { .. })
    ));
    assert!(matches!(
        Pool::builder(device.clone()).handle_bytes(3).build(),
        Err(BuildError::InvalidHandle { .. })
    ));
    let pool = builder(&device, 8 * MIB)
        .initial_size(8 * MIB)
        .build()
        .unwrap();
    assert_eq!(pool.statistics().reserved.current, 8 * MIB);
    let (_work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 6 * MIB).unwrap();
    let error = pool.try_allocate(&stream, 4 * MIB).unwrap_err();
    let AllocError::Exhausted(shortfall) = error else {
        panic!("{error}");
    };
    assert_eq!(
        (shortfall.requested, shortfall.reserved),
        (4 * MIB, 8 * MIB)
    );
    assert_eq!((shortfall.free, shortfall.largest_free), (2 * MIB, 2 * MIB));
    drop(block);
    assert!(pool.try_allocate(&stream, 8 * MIB).is_ok());
}

/// [7] Same stream: freed and reallocated at once, the same address and no device call.
#[test]
fn a_stream_gets_back_what_it_freed_with_no_device_call() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    let (work, stream) = stream(&device, &pool);
    for bytes in [1, 4096, MIB] {
        let first = pool.try_allocate(&stream, bytes).unwrap();
        use_block(&work, &first, us(100));
        let address = first.address();
        drop(first);
        let before = device.counters().device_calls;
        let again = pool.try_allocate(&stream, bytes).unwrap();
        assert_eq!((again.address(), again.rung()), (address, Rung::Lane));
        drop(again);
        assert_eq!(device.counters().device_calls, before);
    }
}

/// [7] The same for a block that is too large for the lane: no memory call, no waiting.
#[test]
fn a_large_block_comes_back_to_its_stream_while_its_work_runs() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    let (work, stream) = stream(&device, &pool);
    let first = pool.try_allocate(&stream, 32 * MIB).unwrap();
    let address = first.address();
    use_block(&work, &first, us(100));
    drop(first);
    let again = pool.try_allocate(&stream, 32 * MIB).unwrap();
    assert_eq!((again.address(), again.rung()), (address, Rung::SameStream));
}

/// [8] Other stream, work still running: another address while there is room.
#[test]
fn another_stream_does_not_get_pending_memory_while_there_is_other() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let address = block.address();
    use_block(&work, &block, us(100));
    drop(block);
    assert_eq!(pool.statistics().pending.current, 8 * MIB);
    let other = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert_ne!(other.address(), address);
}

/// [8] With no room left: the same memory, behind a wait on the device.
#[test]
fn with_no_room_left_another_stream_waits_on_the_device() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (work_a, a) = stream(&device, &pool);
    let (work_b, b) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let address = block.address();
    use_block(&work_a, &block, us(100));
    drop(block);
    let block = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert_eq!((block.address(), block.rung()), (address, Rung::DeviceWait));
    assert_eq!(pool.statistics().device_waits, 1);
    use_block(&work_b, &block, us(10));
    device.advance(us(105));
    assert_eq!(
        work_b.backlog(),
        1,
        "its work started after the other's had ended"
    );
    device.advance(us(5));
    assert_eq!(work_b.backlog(), 0);
}

/// [9] Other stream, work complete: the same address, without a wait.
#[test]
fn complete_memory_is_everybodys() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (work, a) = stream(&device, &pool);
    let (work_b, b) = stream(&device, &pool);
    for bytes in [8 * MIB, MIB] {
        let block = pool.try_allocate(&a, bytes).unwrap();
        use_block(&work, &block, us(100));
        drop(block);
        device.advance(us(100));
        let block = pool.try_allocate(&b, 8 * MIB).unwrap();
        use_block(&work_b, &block, us(0));
        assert_eq!(block.rung(), Rung::Free, "freed in {bytes}");
        drop(block);
        now(b.synchronize()).unwrap();
    }
    assert_eq!(pool.statistics().device_waits, 0);
}

/// Rung 3: memory freed before an event that the stream waited for.
#[test]
fn an_event_waited_for_makes_memory_reusable_at_once() {
    for follow in [true, false] {
        let device = manual();
        let reuse = Reuse {
            follow_event_dependencies: follow,
            internal_dependencies: false,
            ..Reuse::ALL
        };
        let pool = builder(&device, 8 * MIB).reuse(reuse).build().unwrap();
        let (work, a) = stream(&device, &pool);
        let (work_b, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 8 * MIB).unwrap();
        use_block(&work, &block, us(100));
        drop(block);
        assert!(pool.try_allocate(&b, 8 * MIB).is_err());
        let event = a.event().unwrap();
        b.wait(&event).unwrap();
        let block = pool.try_allocate(&b, 8 * MIB);
        assert_eq!(block.is_ok(), follow, "{block:?}");
        if let Ok(block) = block {
            assert_eq!(block.rung(), Rung::Ordered);
            use_block(&work_b, &block, us(10));
        }
    }
}

/// An event proves what was freed before it, and nothing freed after.
#[test]
fn an_event_from_before_the_free_proves_nothing() {
    let device = manual();
    let reuse = Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    };
    let pool = builder(&device, 8 * MIB).reuse(reuse).build().unwrap();
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let early = a.event().unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    b.wait(&early).unwrap();
    assert!(pool.try_allocate(&b, 8 * MIB).is_err());
    device.advance(us(100));
    assert!(pool.try_allocate(&b, 8 * MIB).is_ok());
}

/// The opportunistic policy asks what has completed; without it only a synchronization tells.
#[test]
fn without_the_opportunistic_policy_only_a_synchronization_frees() {
    let device = manual();
    let reuse = Reuse {
        opportunistic: false,
        internal_dependencies: false,
        ..Reuse::ALL
    };
    let pool = builder(&device, 16 * MIB).reuse(reuse).build().unwrap();
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    device.advance(us(100));
    let other = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert_eq!(other.rung(), Rung::Grown, "nobody asked");
    now(a.synchronize()).unwrap();
    assert_eq!(pool.try_allocate(&b, 8 * MIB).unwrap().rung(), Rung::Free);
}

/// [12] Used on several streams, freed on one: not reused before all have passed.
#[test]
fn a_block_used_on_several_streams_waits_for_all() {
    let device = manual();
    let reuse = Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    };
    let pool = builder(&device, 8 * MIB).reuse(reuse).build().unwrap();
    let (work_a, a) = stream(&device, &pool);
    let (work_b, b) = stream(&device, &pool);
    let mut block = pool.try_allocate(&a, 8 * MIB).unwrap();
    use_block(&work_a, &block, us(10));
    b.wait(&a.event().unwrap()).unwrap();
    block.used_on(&b).unwrap();
    use_block(&work_b, &block, us(90));
    drop(block);
    device.advance(us(50));
    assert!(pool.try_allocate(&a, 8 * MIB).is_err(), "b is still at it");
    device.advance(us(50));
    assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
}

/// [13] Freed on another stream than the allocating one: the order of both is kept.
#[test]
fn a_block_freed_on_another_stream_keeps_the_order_of_both() {
    let device = manual();
    let reuse = Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    };
    for slow_is_home in [true, false] {
        let pool = builder(&device, 8 * MIB).reuse(reuse).build().unwrap();
        let (work_a, a) = stream(&device, &pool);
        let (work_b, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 8 * MIB).unwrap();
        let slow = if slow_is_home { &work_a } else { &work_b };
        b.wait(&a.event().unwrap()).unwrap();
        use_block(slow, &block, us(100));
        let freed = block.deallocate_on(&b).unwrap();
        let (_, c) = stream(&device, &pool);
        assert!(pool.try_allocate(&c, 8 * MIB).is_err());
        device.advance(us(100));
        now(freed).unwrap();
        assert!(pool.try_allocate(&c, 8 * MIB).is_ok());
    }
}

/// I2: a use on a further stream comes after the grant.
#[test]
fn a_further_stream_comes_after_what_the_memory_was_before() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (work_a, a) = stream(&device, &pool);
    let (work_b, b) = stream(&device, &pool);
    for bytes in [8 * MIB, MIB] {
        let earlier = pool.try_allocate(&a, bytes).unwrap();
        use_block(&work_a, &earlier, us(100));
        drop(earlier);
        // Granted at once, since `a` keeps its own order; `b` does not.
        let mut block = pool.try_allocate(&a, bytes).unwrap();
        block.used_on(&b).unwrap();
        use_block(&work_b, &block, us(10));
        device.advance(us(105));
        assert_eq!(
            work_b.backlog(),
            1,
            "b came after the earlier life ({bytes})"
        );
        device.advance(us(5));
        assert_eq!(work_b.backlog(), 0);
        drop(block);
        now(a.synchronize()).unwrap();
        now(b.synchronize()).unwrap();
    }
}

/// [26] Streams and devices do not mix; nothing is lost when they are mixed up.
#[test]
fn foreign_streams_are_refused_and_nothing_is_lost() {
    let (device, other) = (manual(), manual());
    let pool = pool(&device, 8 * MIB);
    assert!(matches!(
        pool.register(&other.create_stream()),
        Err(StreamError::ForeignDevice)
    ));
    let elsewhere = common::pool(&device, 8 * MIB);
    let (_, stream_here) = stream(&device, &pool);
    let (_, stream_there) = stream(&device, &elsewhere);
    assert_eq!(
        pool.try_allocate(&stream_there, 1).unwrap_err(),
        AllocError::ForeignStream
    );
    assert_eq!(
        now(pool.allocate(&stream_there, 1)).unwrap_err(),
        AllocError::ForeignStream
    );
    let event = stream_there.event().unwrap();
    assert!(matches!(
        stream_here.wait(&event),
        Err(StreamError::ForeignPool)
    ));
    let mut block = pool.try_allocate(&stream_here, MIB).unwrap();
    assert!(matches!(
        block.used_on(&stream_there),
        Err(StreamError::ForeignPool)
    ));
    let refused = block.deallocate_on(&stream_there).unwrap_err();
    drop(refused.block);
    pool.check_conserved().unwrap();
}

/// [14] The stream goes away with blocks pending: its memory is reused only after its work ended.
#[test]
fn a_stream_that_goes_away_leaves_its_memory_in_order() {
    let device = manual();
    let reuse = Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    };
    let pool = builder(&device, 8 * MIB).reuse(reuse).build().unwrap();
    let (_, b) = stream(&device, &pool);
    for bytes in [8 * MIB, MIB] {
        let (work, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, bytes).unwrap();
        use_block(&work, &block, us(100));
        drop((work, a));
        drop(block);
        assert!(pool.try_allocate(&b, 8 * MIB).is_err());
        device.advance(us(100));
        assert!(pool.try_allocate(&b, 8 * MIB).is_ok());
    }
}

/// [15] A stream's id is never used again, whatever the device does with its handles.
#[test]
fn stream_ids_are_never_used_again() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let ids: Vec<_> = (0..100).map(|_| stream(&device, &pool).1.id()).collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

/// I8: the steady state makes no events.
#[test]
fn the_steady_state_makes_no_events() {
    let device = manual();
    let pool = builder(&device, 64 * MIB)
        .sealing(Sealing::EveryFree)
        .build()
        .unwrap();
    let streams: Vec<_> = (0..4).map(|_| stream(&device, &pool)).collect();
    let round = |count: usize| {
        for _ in 0..count {
            for (work, stream) in &streams {
                let block = pool.try_allocate(stream, 4 * MIB).unwrap();
                use_block(work, &block, us(10));
                drop(block);
            }
            device.advance(us(20));
        }
        pool.statistics().events_created
    };
    let warm = round(20);
    assert_eq!(round(500), warm);
    assert!(warm <= 4 * 16, "{warm} events for four streams");
}

/// [20] Fragmented free memory is put together without taking more: remapping.
#[test]
fn free_memory_in_pieces_is_mapped_together() {
    let device = manual();
    let pool = pool(&device, 16 * MIB);
    let (work, stream) = stream(&device, &pool);
    let mut blocks: Vec<_> = (0..8)
        .map(|_| Some(pool.try_allocate(&stream, HANDLE).unwrap()))
        .collect();
    for block in blocks.iter().flatten() {
        use_block(&work, block, us(0));
    }
    for block in blocks.iter_mut().step_by(2) {
        drop(block.take());
    }
    now(stream.synchronize()).unwrap();
    let large = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert_eq!(large.rung(), Rung::Grown);
    let statistics = pool.statistics();
    assert_eq!(statistics.reserved.current, 16 * MIB);
    assert!(statistics.remaps > 0);
    drop((large, blocks));
    pool.check_conserved().unwrap();
}

/// Where memory is plain, a free segment of the wrong size makes room for one of the right size.
#[test]
fn plain_memory_releases_what_is_in_the_way() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(weirpool::device::sim::Clock::Manual)
        .virtual_memory(false)
        .build();
    let pool = pool(&device, 16 * MIB);
    let (_, stream) = stream(&device, &pool);
    let blocks = [8 * MIB, 8 * MIB].map(|bytes| pool.try_allocate(&stream, bytes).unwrap());
    drop(blocks);
    now(stream.synchronize()).unwrap();
    let large = pool.try_allocate(&stream, 16 * MIB).unwrap();
    assert_eq!(large.size(), 16 * MIB);
    drop(large);
    pool.check_conserved().unwrap();
}

/// [18] Trimming gives free memory back and keeps what is used or pending.
#[test]
fn trimming_keeps_what_is_used() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = stream(&device, &pool);
    let used = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let pending = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let free = pool.try_allocate(&stream, 16 * MIB).unwrap();
    drop(free);
    now(stream.synchronize()).unwrap();
    use_block(&work, &pending, us(100));
    drop(pending);
    assert_eq!(pool.trim_to(20 * MIB).unwrap(), 8 * MIB);
    assert_eq!(pool.trim_to(0).unwrap(), 8 * MIB);
    assert_eq!(pool.statistics().reserved.current, 12 * MIB);
    device.advance(us(100));
    assert_eq!(pool.trim_to(0).unwrap(), 8 * MIB);
    assert_eq!(device.counters().physical_in_use, 4 * MIB);
    drop(used);
    pool.check_conserved().unwrap();
}

/// [19] Statistics add up, and their highs can be reset. I3 at a quiescent point.
#[test]
fn statistics_add_up() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = stream(&device, &pool);
    let blocks: Vec<_> = (1..20)
        .map(|n| pool.try_allocate(&stream, n * 100_000).unwrap())
        .collect();
    for block in &blocks {
        use_block(&work, block, us(5));
    }
    drop(blocks);
    let check = |used: bool| {
        let s = pool.statistics();
        assert_eq!(
            s.free + s.used.current + s.pending.current,
            s.reserved.current
        );
        assert_eq!(s.used.current > 0, used);
        assert!(s.used.high >= s.used.current && s.reserved.high >= s.reserved.current);
        s
    };
    let before = check(false);
    assert!(before.pending.current > 0 && before.used.high > 0);
    assert_eq!(before.hits.total(), 19);
    device.advance(us(100));
    assert_eq!(pool.statistics(), before, "asking harvests nothing");
    now(stream.synchronize()).unwrap();
    let after = check(false);
    assert_eq!(after.pending.current, 0);
    pool.trim_to(0).unwrap();
    pool.reset_high_water_marks();
    assert_eq!(check(false).reserved.high, 0);
}

/// I11: the last handle goes while work runs. Nothing is released before its end, and all after.
#[test]
fn the_last_handle_releases_nothing_that_runs() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let address = block.address();
    work.submit(
        weirpool::device::sim::Operation::new(us(100))
            .writes(address, 8 * MIB)
            .run(move |memory| memory.fill(address, 8 * MIB, 7)),
    );
    drop((pool, stream));
    drop(block);
    assert_eq!(device.counters().physical_in_use, 8 * MIB);
    device.advance(us(50));
    assert_eq!(device.counters().physical_in_use, 8 * MIB);
    device.advance(us(50));
    assert_eq!(device.counters().physical_in_use, 0);
}

/// [1] An explicit free can be awaited, whoever has the bytes by then (I4).
#[test]
fn a_deallocation_completes_once_its_stream_has_passed() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, MIB).unwrap();
    let address = block.address();
    use_block(&work, &block, us(100));
    let mut freed = block.deallocate();
    assert!(poll(&mut freed).is_pending());
    let again = pool.try_allocate(&stream, MIB).unwrap();
    assert_eq!(
        again.address(),
        address,
        "reused by its own stream meanwhile"
    );
    use_block(&work, &again, us(100));
    device.advance(us(100));
    now(freed).unwrap();
    assert_eq!(work.backlog(), 1, "the next owner's work is not waited for");
}

#[test]
fn a_buffer_has_elements() {
    let device = SimDevice::builder().backing(Backing::AddressesOnly).build();
    let pool = common::pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    let buffer = Buffer::<u64>::try_allocate(&pool, &stream, 1000).unwrap();
    assert_eq!(
        (buffer.len(), buffer.size(), buffer.address() % 8),
        (1000, 8000, 0)
    );
    assert!(Buffer::<u64>::try_allocate(&pool, &stream, usize::MAX).is_err());
    assert_eq!(buffer.into_block().requested(), 8000);
}

/// [5] Allocated on one thread, freed on another, on the same and on different streams.
#[test]
fn threads_allocate_and_free_each_others_blocks() {
    let device = SimDevice::builder().memory(1 << 30).build();
    let pool = common::pool(&device, 256 * MIB);
    let (send, receive) = std::sync::mpsc::sync_channel::<Block>(64);
    let receive = std::sync::Mutex::new(receive);
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let (pool, send) = (pool.clone(), send.clone());
            let (work, stream) = stream(&device, &pool);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..2000 {
                    let bytes = random.u64(1..3 * MIB);
                    if let Ok(block) = pool.try_allocate(&stream, bytes) {
                        use_block(&work, &block, us(1));
                        send.send(block).unwrap();
                    }
                }
            });
        }
        drop(send);
        for _ in 0..2 {
            let (_, other) = stream(&device, &pool);
            let receive = &receive;
            scope.spawn(move || {
                let mut is_foreign = false;
                while let Ok(block) = { receive.lock().unwrap().recv() } {
                    is_foreign = !is_foreign;
                    if is_foreign {
                        drop(block.deallocate_on(&other).unwrap());
                    } else {
                        drop(block);
                    }
                }
            });
        }
    });
    pool.check().unwrap();
    pool.check_conserved().unwrap();
    assert_eq!(pool.statistics().used.current, 0);
}
