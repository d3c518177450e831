//! The pool's own policies, on a manual clock. Behaviours that hold on every device are in `conformance`.

use crate::common::*;
use weirpool::device::DeviceErrorKind::Sticky;
use weirpool::device::sim::{Backing, Call, SimDevice};
use weirpool::*;

/// Source `Ordered`: memory freed before an event that the stream waited for.
#[test]
fn policy_decides_whether_an_awaited_event_makes_memory_reusable() {
    for follow in [true, false] {
        let device = manual();
        let reuse = Reuse {
            follow_event_dependencies: follow,
            internal_dependencies: false,
            ..Reuse::ALL
        };
        let pool = tuned(&device, 8 * MIB, |tuning| tuning.reuse = reuse);
        let [(work, a), (work_b, b)] = streams(&device, &pool);
        use_and_free(&pool, (&work, &a), 8 * MIB, us(100));
        assert!(pool.try_allocate(&b, 8 * MIB).is_err());
        let event = a.event().unwrap();
        b.wait(&event).unwrap();
        let block = pool.try_allocate(&b, 8 * MIB);
        assert_eq!(block.is_ok(), follow, "{block:?}");
        if let Ok(block) = block {
            assert_eq!(block.source(), Source::Ordered);
            use_block(&work_b, &block, us(10));
        }
    }
}

/// The opportunistic policy polls for completed events. Without it, only a synchronization finds them.
#[test]
fn only_a_synchronization_frees_without_the_opportunistic_policy() {
    let device = manual();
    let reuse = Reuse {
        opportunistic: false,
        internal_dependencies: false,
        ..Reuse::ALL
    };
    let pool = tuned(&device, 16 * MIB, |tuning| tuning.reuse = reuse);
    let [(work, a), (_, b)] = streams(&device, &pool);
    use_and_free(&pool, (&work, &a), 8 * MIB, us(100));
    device.advance(us(100));
    let other = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert_eq!(other.source(), Source::Grown, "events were not polled");
    now(a.synchronize()).unwrap();
    assert_eq!(source(&pool, &b, 8 * MIB), Source::Free);
}

/// A large block is not split while complete memory of another stream has not been polled for. The next request for the
/// large block would have it assembled chunk by chunk.
#[test]
fn complete_memory_is_polled_for_before_a_large_block_is_split() {
    for opportunistic in [true, false] {
        let device = manual();
        let reuse = Reuse {
            opportunistic,
            internal_dependencies: false,
            ..Reuse::ALL
        };
        let builder = builder(&device, 1024 * MIB).tuning(|tuning| tuning.reuse = reuse);
        let pool = builder.sealing(Sealing::EveryFree).made();
        let [(work, a), (_, b)] = streams(&device, &pool);
        let large = pool.try_allocate(&b, 256 * MIB).unwrap();
        let between = pool.try_allocate(&b, MIB).unwrap();
        let freed = pool.try_allocate(&a, 64 * MIB).unwrap();
        drop(large);
        now(b.synchronize()).unwrap();
        use_block(&work, &freed, us(100));
        let address = freed.address();
        drop(freed);
        device.advance(us(100));

        let again = pool.try_allocate(&b, 64 * MIB).unwrap();
        assert_eq!(again.address() == address, opportunistic);
        let whole = pool.try_allocate(&b, 256 * MIB).unwrap();
        let source = if opportunistic {
            Source::Free
        } else {
            Source::Grown
        };
        assert_eq!(whole.source(), source);
        drop((again, between));
    }
}

/// Internal dependencies make pending memory of another stream available, behind a wait that the pool inserts. Without
/// them it is available only once it is complete.
#[test]
fn no_stream_is_made_to_wait_without_internal_dependencies() {
    for internal in [true, false] {
        let device = manual();
        let reuse = Reuse {
            internal_dependencies: internal,
            ..Reuse::ALL
        };
        let pool = tuned(&device, 8 * MIB, |tuning| tuning.reuse = reuse);
        let [(work, a), (work_b, b)] = streams(&device, &pool);
        use_and_free(&pool, (&work, &a), 8 * MIB, us(100));
        let block = pool.try_allocate(&b, 8 * MIB);
        assert_eq!(block.is_ok(), internal, "{block:?}");
        assert_eq!(figures(&pool).device_waits, u64::from(internal));
        if let Ok(block) = block {
            assert_eq!(block.source(), Source::DeviceWait);
            use_block(&work_b, &block, us(10));
        } else {
            device.advance(us(100));
            assert_eq!(source(&pool, &b, 8 * MIB), Source::Free);
        }
        device.advance_to_end();
        device.assert_ordered();
    }
}

/// Events are rarer while frees come close together, until another stream wants the memory.
#[test]
fn events_are_further_apart_where_frees_come_close() {
    const BYTES: u64 = MIB;
    let device = manual();
    let sealing = Sealing::Spaced(4 * BYTES);
    let pool = builder(&device, 256 * MIB)
        .sealing(sealing)
        .tuning(|tuning| tuning.lane_bytes = 0);
    let pool = pool.made();
    let [(_, stream), (_, other)] = streams(&device, &pool);
    // Returns the number of frees until the next event, with this much time between frees.
    let frees = |between| {
        let before = device.counters().calls(Call::Record);
        let mut frees = 0;
        while device.counters().calls(Call::Record) == before {
            drop(pool.try_allocate(&stream, BYTES).unwrap());
            device.advance(between);
            frees += 1;
        }
        frees
    };
    let (close, apart) = (us(0), us(20));
    assert_eq!([(); 3].map(|()| frees(apart)), [5, 5, 5]);
    assert_eq!([(); 6].map(|()| frees(close)), [5, 5, 9, 17, 33, 33]);
    // The first late free still has the earlier bound.
    assert_eq!([(); 3].map(|()| frees(apart)), [33, 5, 5]);
    assert_eq!([(); 3].map(|()| frees(close)), [5, 5, 9]);
    // Some memory is not sealed when another stream requests all of it.
    drop(pool.try_allocate(&stream, BYTES).unwrap());
    let all = pool.try_allocate(&other, 256 * MIB).unwrap();
    drop(all);
    assert_eq!([(); 3].map(|()| frees(close)), [5, 9, 17]);
    // Some memory is to be released to the device.
    pool.maintain()
        .set_release_threshold(ReleaseThreshold::Bytes(192 * MIB))
        .unwrap();
    assert_eq!([(); 4].map(|()| frees(close)), [33, 5, 5, 5]);
}

/// While frees come close together, each one that seals also polls the stream. Behind a long kernel, polls become
/// rarer.
#[test]
fn vain_queries_become_rarer() {
    const EVENTS: u64 = 256;
    let device = manual();
    let pool = builder(&device, 256 * MIB).sealing(Sealing::Spaced(MIB));
    let pool = pool.tuning(|tuning| tuning.lane_bytes = 0).made();
    let (work, stream) = stream(&device, &pool);
    // Returns the number of queries for this many events.
    let queries = |events| {
        let count = || [Call::Record, Call::Query].map(|call| device.counters().calls(call));
        let [records, queries] = count();
        while count()[0] < records + events {
            drop(pool.try_allocate(&stream, MIB).unwrap());
        }
        count()[1] - queries
    };
    // A new stream is not polled before it has some events.
    assert_eq!(queries(8), 0);
    queries(16);
    assert_eq!(queries(EVENTS), EVENTS);
    run(&work, us(1000));
    // The oldest and the newest event are queried whenever their number has doubled.
    let most = 2 * (u64::from(EVENTS.ilog2()) + 1);
    let in_vain = queries(EVENTS);
    assert!(in_vain <= most, "{in_vain} queries");
    device.advance_to_end();
    queries(EVENTS);
    assert_eq!(queries(EVENTS), EVENTS);
}

/// The stream that allocates in [`source_beside_pending`].
#[derive(Clone, Copy, PartialEq)]
enum Own {
    Idle,
    Busy,
}

/// Returns the source of an allocation of this size, while 16 MiB are about to complete on other streams and the pool
/// could grow.
fn source_beside_pending(when_short: WhenShort, own: Own, bytes: u64) -> Source {
    let device = manual();
    let pool = tuned(&device, 64 * MIB, |tuning| tuning.when_short = when_short);
    let streams: [_; 3] = streams(&device, &pool);
    for _ in 0..20 {
        // The pool learns how long the work of each stream takes.
        for (work, stream) in &streams {
            run(work, us(100));
            stream.event().unwrap();
        }
        device.advance(us(100));
        pool.maintain().reap().unwrap();
    }
    let [first, second, (work, stream)] = &streams;
    let others = [first, second];
    if own == Own::Busy {
        run(work, us(200));
        stream.event().unwrap();
    }
    let used = others.map(|(work, other)| {
        let block = pool.try_allocate(other, 8 * MIB).unwrap();
        use_block(work, &block, us(100));
        block
    });
    drop(used);
    let block = pool.try_allocate(stream, bytes).unwrap();
    use_block(work, &block, us(10));
    device.advance_to_end();
    device.assert_ordered();
    block.source()
}

/// `GrowFirst` grows the pool. `WaitBriefly` makes a stream wait that is busy for that long anyway.
#[test]
fn order_decides_between_growing_and_waiting() {
    for bytes in [3 * MIB, 8 * MIB] {
        let source = |when_short| source_beside_pending(when_short, Own::Busy, bytes);
        assert_eq!(source(WhenShort::GrowFirst), Source::Grown);
        assert_eq!(source(WhenShort::WaitBriefly), Source::DeviceWait);
    }
}

/// A stream frees memory, and its later work waits for the other stream. That stream is not made to wait for that work
/// while the pool can grow, whenever the memory is sealed: the two would wait for each other.
#[test]
fn growing_pool_does_not_make_streams_wait_that_hand_shake() {
    for sealing in [Sealing::default(), Sealing::EveryFree, Sealing::OnDemand] {
        for (bytes, seals) in [(MIB, false), (8 * MIB, false), (MIB, true)] {
            let device = manual();
            let pool = builder(&device, 64 * MIB).sealing(sealing);
            let pool = pool.made();
            let [(work, a), (work_b, b), (_, c)] = streams(&device, &pool);
            for _ in 0..20 {
                for (work, stream) in [(&work, &a), (&work_b, &b)] {
                    run(work, us(100));
                    stream.event().unwrap();
                }
                device.advance(us(100));
                pool.maintain().reap().unwrap();
            }
            run(&work_b, us(200));
            b.event().unwrap();
            let blocks: Vec<_> = std::iter::repeat_with(|| pool.try_allocate(&a, bytes).unwrap())
                .take((16 * MIB / bytes) as usize)
                .collect();
            use_all(&work, &blocks, us(1));
            drop(blocks);
            let flag = device.flag();
            work.wait_until(&flag, 1);
            if seals {
                // Another search seals the freed memory.
                drop(pool.try_allocate(&c, MIB).unwrap());
            }
            let block = pool.try_allocate(&b, bytes).unwrap();
            use_block(&work_b, &block, us(10));
            work_b.signal(&flag, 1);
            device.advance_to_end();
            let left = [&work, &work_b].map(|work| work.backlog());
            assert_eq!(left, [0, 0], "{sealing:?}, {bytes} bytes, {seals}");
            device.assert_ordered();
        }
    }
}

/// A block with room is aligned to chunks anyway, and an alignment that no block can have is refused as for others.
#[test]
fn alignment_of_a_block_with_room_is_checked() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    for alignment in [0, 3, 64 * MIB] {
        let request = pool.allocate(&stream, CHUNK).alignment(alignment);
        let refused = request.room(CHUNK).try_now().map(drop).unwrap_err();
        let expected = pool.allocate(&stream, CHUNK).alignment(alignment).try_now();
        assert_eq!(refused, expected.map(drop).unwrap_err());
    }
}

/// A stream waits within its own work, or without a limit.
#[test]
fn idle_stream_waits_only_without_a_limit() {
    let source = |when_short| source_beside_pending(when_short, Own::Idle, 8 * MIB);
    assert_eq!(source(WhenShort::WaitBriefly), Source::Grown);
    assert_eq!(source(WhenShort::WaitFirst), Source::DeviceWait);
}

/// A stream's id is never reused, even if the device reuses its handle.
#[test]
fn stream_ids_are_never_used_again() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let ids: Vec<_> = (0..100).map(|_| stream(&device, &pool).1.id()).collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

/// Trimming releases free memory, and keeps used and pending memory.
#[test]
fn trimming_keeps_used_memory() {
    let (device, pool, [(work, stream)]) = set_up(64 * MIB);
    let _used = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let pending = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let free = pool.try_allocate(&stream, 16 * MIB).unwrap();
    drop(free);
    now(stream.synchronize()).unwrap();
    use_block(&work, &pending, us(100));
    drop(pending);
    assert_eq!(pool.trim_to(20 * MIB).unwrap().released, 8 * MIB);
    assert_eq!(pool.trim_to(0).unwrap().released, 8 * MIB);
    assert_eq!(pool.inspect().statistics().reserved.current, 12 * MIB);
    device.advance(us(100));
    assert_eq!(pool.trim_to(0).unwrap().released, 8 * MIB);
    assert_eq!(device.counters().physical_in_use, 4 * MIB);
}

#[test]
fn buffer_has_elements() {
    let device = SimDevice::builder().backing(Backing::AddressesOnly).build();
    let pool = crate::common::pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    let buffer = pool.buffer::<u64>(&stream, 1000).try_now().unwrap();
    assert_eq!((buffer.len(), buffer.as_block().requested()), (1000, 8000));
    assert!(buffer.address().is_aligned_to(8));
    assert!(pool.buffer::<u64>(&stream, usize::MAX).try_now().is_err());
    assert_eq!(buffer.into_block().requested(), 8000);
}

/// A block of any origin becomes a buffer if the elements fit. Otherwise the error returns it.
#[test]
fn block_becomes_a_buffer_if_the_elements_fit() {
    #[derive(Clone, Copy)]
    #[repr(C, align(65536))]
    struct Page([u8; 65536]);
    // SAFETY: any bytes are a valid array of bytes, and there is no padding.
    unsafe impl bytemuck::Zeroable for Page {}
    // SAFETY: as above.
    unsafe impl bytemuck::AnyBitPattern for Page {}

    let device = SimDevice::new();
    let pool = crate::common::pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    let reservation = pool.reserve(MIB).try_now().unwrap();
    let block = reservation.allocate(&stream, 4096).unwrap();
    let address = block.address();

    let buffer = Buffer::<u64>::from_block(block, 512).unwrap();
    let found = (buffer.len(), buffer.as_block().size(), buffer.address());
    assert_eq!(found, (512, 4096, address));
    assert_eq!(reservation.left(), MIB - 4096);
    // The length is that of the elements, whatever was requested.
    for (requested, len) in [(4096, 10), (100, 512)] {
        let block = pool.try_allocate(&stream, requested).unwrap();
        let buffer = Buffer::<u8>::from_block(block, len).unwrap();
        assert_eq!(buffer.len(), len);
    }

    for len in [513, usize::MAX] {
        let block = pool.try_allocate(&stream, 4096).unwrap();
        let error = Buffer::<u64>::from_block(block, len).unwrap_err();
        assert_eq!(error.block.size(), 4096);
        assert_eq!(error.needed.alignment, 8);
        assert!(error.needed.bytes >= 8 * 513);
    }

    // A fill ends with the elements, of which there may be none.
    let mut block = pool.try_allocate(&stream, 4096).unwrap();
    block.fill(&stream, 7).unwrap();
    let mut filled = Buffer::<u8>::from_block(block, 10).unwrap();
    filled.as_slice_mut().zero(&stream).unwrap();
    let mut filled = Buffer::<u8>::from_block(filled.into_block(), 4).unwrap();
    filled.as_slice_mut().fill(&stream, 1).unwrap();
    let mut filled = Buffer::<u8>::from_block(filled.into_block(), 0).unwrap();
    filled.as_slice_mut().zero(&stream).unwrap();
    let block = filled.into_block();
    let bytes = block.download(&stream, 0..12).unwrap();
    let bytes = device.block_on(bytes).unwrap();
    assert_eq!(bytes, [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 7, 7]);
    drop(block);

    // Behind a small block, blocks that follow each other are not aligned to their size.
    let _shifted = pool.try_allocate(&stream, 4096).unwrap();
    let pages = [0; 2].map(|_| pool.try_allocate(&stream, 65536).unwrap());
    let [one, other] = pages.map(|block| {
        let is_aligned = block.address().is_aligned_to(65536);
        let made = Buffer::<Page>::from_block(block, 1);
        assert_eq!(made.is_ok(), is_aligned);
        is_aligned
    });
    assert!(!one || !other, "the case of a block that is not aligned");
}

/// Requests that a cached block could serve are checked like all others: for the pool, the tag and the reservation.
#[test]
fn requests_served_by_a_lane_are_checked_too() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).made();
    let other = builder(&device, 8 * MIB).made();
    let (_work, stream) = stream(&device, &pool);
    let at_hand = || {
        let block = pool.try_allocate(&stream, 4096).unwrap();
        let address = block.address();
        drop(block);
        address
    };
    let address = at_hand();
    let foreign = other.try_allocate(&stream, 4096);
    assert_eq!(foreign.unwrap_err(), AllocError::ForeignStream);
    let awaited = device.block_on(other.allocate(&stream, 4096));
    assert_eq!(awaited.unwrap_err(), AllocError::ForeignStream);

    let tag = Tag::new("at hand");
    let tagged = pool.allocate(&stream, 4096).tag(tag).try_now().unwrap();
    assert_eq!((tagged.source(), tagged.address()), (Source::Lane, address));
    assert_eq!(pool.tag(tag).statistics().used.current, 4096);
    drop(tagged);
    assert_eq!(pool.tag(tag).statistics().used.current, 0);

    let reservation = pool.reserve(MIB).try_now().unwrap();
    let drawn = reservation.scope(async { pool.try_allocate(&stream, 4096) });
    let drawn = device.block_on(drawn).unwrap();
    assert_ne!(drawn.address(), address, "it is from the reservation");
    assert_eq!(at_hand(), address);
}

/// An owned request borrows nothing: it outlives the handles that it was made with.
#[test]
fn owned_request_outlives_its_handles() {
    let (_, pool, [(work, stream)]) = set_up_with(|device| builder(device, 8 * MIB));
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let mut request: AllocateOwned = pool.allocate_owned(&stream, MIB).priority(1);
    assert!(poll(&mut request).is_pending());
    pool.end_before_its_blocks();
    drop((stream, held));
    let block = now(request).unwrap();
    assert_eq!(block.size(), MIB);
    use_block(&work, &block, us(1));
}

#[test]
fn health_shows_waiters_and_the_end_of_a_pool() {
    let (device, pool, [(_, stream)]) = set_up(8 * MIB);
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert_eq!(pool.inspect().health().oldest_wait, None);
    let first = not_ready(pool.allocate(&stream, MIB));
    device.advance(us(30));
    let urgent = not_ready(pool.allocate(&stream, MIB).priority(9));
    device.advance(us(20));
    let health = pool.inspect().health();
    assert!(health.is_serving());
    assert_eq!((health.waiting, health.oldest_wait), (2, Some(us(50))));
    drop((first, urgent, held));
    pool.close();
    let health = pool.inspect().health();
    assert!(health.is_closed && !health.is_serving());
    assert_eq!((health.waiting, health.oldest_wait), (0, None));
}

#[test]
fn health_shows_a_sticky_error_of_the_device() {
    let (device, pool, [(_, stream)]) = set_up(8 * MIB);
    device.faults().fail_next(Call::Record, Sticky);
    stream.event().unwrap_err();
    let fault = pool.inspect().health().fault.expect("the device is broken");
    assert!(fault.is_sticky() && !pool.inspect().health().is_serving());
    let refused = pool.try_allocate(&stream, 4096).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Unavailable);
}

#[test]
fn debug_output_has_sizes_in_binary_units() {
    let (_, pool, [(_, stream)]) = set_up_with(|device| builder(device, 64 * MIB));
    let mut block = pool.try_allocate(&stream, 3 * MIB).unwrap();
    let refused = pool.try_allocate(&stream, 62 * MIB).unwrap_err();
    let reservation = now(pool.reserve(MIB)).unwrap();
    let printed = [
        (format!("{block:?}"), "size: 3.0 MiB"),
        (
            format!(
                "{:?}",
                stream
                    .record_use(&block.slice_mut(0..512).unwrap())
                    .unwrap()
            ),
            "size: 512 B",
        ),
        (format!("{:?}", reservation), "size: 1.0 MiB, left: 1.0 MiB"),
        (
            format!("{:?}", pool.inspect().statistics()),
            "leased: 64.0 MiB, reserved: 4.0 MiB (high 4.0 MiB)",
        ),
        (
            format!("{:?}", pool.inspect().snapshot().segments[0]),
            "size: ",
        ),
        (
            format!("{refused:?}"),
            "Exhausted(Shortfall { requested: 62.0 MiB, free: 1.0 MiB",
        ),
        (format!("{:?}", Pool::builder(manual())), "lane_bytes: "),
        (format!("{:?}", Capacity::Bytes(MIB)), "Bytes(1.0 MiB)"),
        (
            format!("{:?}", Layout::new(1536)),
            "Layout { bytes: 1.5 KiB, alignment: 1 B }",
        ),
        (format!("{:?}", AllocError::Closed), "Closed"),
    ];
    for (text, part) in printed {
        assert!(text.contains(part), "{text}");
    }
}
