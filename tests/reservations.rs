//! Memory set aside, and several blocks from one place in the queue.

mod common;

use common::*;
use std::task::Poll;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, SimDevice};
use weirpool::*;

/// 32 MiB in handles of 2 MiB, of which nothing is kept by lanes.
fn small(device: &SimDevice) -> Pool {
    builder(device, 32 * MIB).lane_bytes(0).build().unwrap()
}

fn used(pool: &Pool) -> u64 {
    pool.statistics().used.current
}

/// What is set aside is nobody else's, and what is allocated of it neither waits nor fails.
#[test]
fn what_is_reserved_is_there_whatever_others_take() {
    let device = manual();
    let pool = small(&device);
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let reservation = now(pool.reserve(8 * MIB)).unwrap();
    assert_eq!((reservation.size(), reservation.left()), (8 * MIB, 8 * MIB));
    assert_eq!(used(&pool), 8 * MIB);
    let others = pool.try_allocate(&a, 24 * MIB).unwrap();
    use_block(&work, &others, us(1000));
    assert!(pool.try_allocate(&b, MIB).is_err());
    let mut waiting = pool.allocate(&b, MIB);
    assert!(poll(&mut waiting).is_pending(), "the gate is closed");
    let one = reservation.allocate(&a, 4 * MIB).unwrap();
    let two = reservation.allocate(&b, 4 * MIB).unwrap();
    assert_ne!(one.address(), two.address());
    let error = reservation.allocate(&a, 512).unwrap_err();
    let expected = AllocError::NotReserved {
        requested: 512,
        left: 0,
        largest: 0,
    };
    assert_eq!(error, expected);
    pool.check().unwrap();
    drop((one, reservation));
    // It is the pool's again, behind the work of the stream that freed it, and serves who waits.
    assert!(poll(&mut waiting).is_pending());
    device.advance(us(1000));
    drop(now(waiting).unwrap());
    drop((two, others));
    pool.check_conserved().unwrap();
}

/// While others wait, what comes back to a reservation is nothing to them: nobody is woken for it, nor is the device
/// asked or a stream watched. The end of the reservation is.
#[test]
fn what_comes_back_to_a_reservation_wakes_nobody_who_waits() {
    let device = manual();
    let pool = small(&device);
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let reservation = pool.reserve(32 * MIB).try_now().unwrap();
    let mut reclaimer = pool.reclaimer();
    let (driver, driving) = Count::new();
    assert!(poll_with(&mut reclaimer, &driving).is_pending());
    let (woken, waker) = Count::new();
    let mut waiting = pool.allocate(&b, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let watches = device.counters().watches;
    let queries = device.counters().calls(Call::Query);
    let step = || {
        let block = reservation.allocate(&a, 4 * MIB).unwrap();
        use_block(&work, &block, us(10));
        drop(block);
        device.advance(us(10));
    };
    (0..16).for_each(|_| step());
    assert_eq!((driver.get(), woken.get()), (0, 0));
    assert_eq!(device.counters().watches, watches);
    // Now and then one, so that events come back.
    assert!(device.counters().calls(Call::Query) - queries <= 16);
    let last = reservation.allocate(&a, 4 * MIB).unwrap();
    use_block(&work, &last, us(10));
    drop(reservation);
    assert!(driver.get() > 0 && woken.get() > 0, "most of it is free");
    assert!(poll_with(&mut reclaimer, &driving).is_pending());
    let mut rest = pool.allocate(&b, 28 * MIB);
    assert!(poll_with(&mut rest, &waker).is_pending());
    let before = driver.get();
    drop(last);
    assert!(driver.get() > before, "it is over: this is anybody's");
    assert!(poll_with(&mut reclaimer, &driving).is_pending());
    let before = driver.get();
    device.advance(us(10));
    assert!(driver.get() > before, "so the stream is watched for it");
    drop((now(waiting).unwrap(), now(rest).unwrap()));
    pool.check_conserved().unwrap();
}

/// What is freed is the reservation's again: at once on its stream, on another behind its work.
#[test]
fn what_is_freed_is_reserved_again() {
    let device = manual();
    let pool = small(&device);
    let (work_a, a) = stream(&device, &pool);
    let (work_b, b) = stream(&device, &pool);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let block = reservation.allocate(&a, 4 * MIB).unwrap();
    let address = block.address();
    use_block(&work_a, &block, us(100));
    drop(block);
    let again = reservation.allocate(&a, 4 * MIB).unwrap();
    assert_eq!((again.address(), again.rung()), (address, Rung::SameStream));
    use_block(&work_a, &again, us(100));
    drop(again);
    let elsewhere = reservation.allocate(&b, 4 * MIB).unwrap();
    assert_eq!(elsewhere.rung(), Rung::DeviceWait);
    use_block(&work_b, &elsewhere, us(10)); // the checker would find it out of order
    device.advance(us(210));
    assert_eq!(work_b.backlog(), 0);
    drop(elsewhere);
    assert!(
        pool.try_allocate(&a, 32 * MIB).is_err(),
        "it is reserved still"
    );
    drop(reservation);
    device.advance(us(100));
    drop(pool.try_allocate(&a, 32 * MIB).unwrap());
    pool.check_conserved().unwrap();
}

/// A small block of a reservation is not kept by the stream's lane, from where others would have it.
#[test]
fn lanes_keep_nothing_of_a_reservation() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    let (_, stream) = stream(&device, &pool);
    let reservation = pool.reserve(4096).try_now().unwrap();
    for awaited in [false, true] {
        let block = reservation.allocate(&stream, 4096).unwrap();
        if awaited {
            drop(block.deallocate());
        } else {
            drop(block);
        }
        assert_eq!(pool.statistics().kept_by_lanes, 0);
        assert_eq!(reservation.left(), 4096);
    }
    drop(reservation);
    pool.check_conserved().unwrap();
}

/// A stream that takes no wait has what is complete, and nothing else.
#[test]
fn without_waits_on_the_device_pending_memory_is_left_alone() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(weirpool::device::sim::Clock::Manual)
        .device_side_waits(false)
        .build();
    let pool = small(&device);
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let block = reservation.allocate(&a, 4 * MIB).unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    let error = reservation.allocate(&b, 4 * MIB).unwrap_err();
    assert!(matches!(error, AllocError::NotReserved { left, .. } if left == 4 * MIB));
    a.seal().unwrap();
    device.advance(us(100));
    pool.harvest().unwrap();
    drop(reservation.allocate(&b, 4 * MIB).unwrap());
}

/// Each layout has a place of its own, whatever is allocated and freed in between.
#[test]
fn each_layout_has_its_place() {
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let sizes = [MIB, 5000, 3 * MIB + 700, 64 << 10, 5000];
    let layouts = sizes.map(|bytes| Layout::new(bytes).alignment(4096));
    let reservation = pool.reserve_many(layouts).try_now().unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut blocks: [Option<Block>; 5] = std::array::from_fn(|_| None);
    for _ in 0..2000 {
        let at = random.usize(..5);
        match &mut blocks[at] {
            Some(_) => blocks[at] = None,
            empty => {
                let block = reservation.allocate(&stream, layouts[at]).unwrap();
                assert!(block.address().is_aligned_to(4096));
                *empty = Some(block);
            }
        }
        pool.check().unwrap();
    }
    drop(blocks);
    drop(reservation);
    pool.check_conserved().unwrap();
}

/// Pieces that were freed one by one are one again for who needs all of it.
#[test]
fn pieces_are_joined_when_they_are_needed() {
    let device = manual();
    let pool = small(&device);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    for _ in 0..3 {
        let pieces: Vec<_> = (0..8)
            .map(|at| {
                let stream = if at % 2 == 0 { &a } else { &b };
                reservation.allocate(stream, MIB).unwrap()
            })
            .collect();
        drop(pieces);
        drop(reservation.allocate(&a, 8 * MIB).unwrap());
    }
    pool.check().unwrap();
}

/// It waits in the queue like anybody, for memory that is complete on every stream.
#[test]
fn reserving_waits_for_what_is_complete() {
    let device = manual();
    let pool = small(&device);
    let (work, a) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 32 * MIB).unwrap();
    use_block(&work, &block, us(100));
    let (woken, waker) = Count::new();
    let mut reserving = pool.reserve(16 * MIB);
    assert!(poll_with(&mut reserving, &waker).is_pending());
    let mut behind = pool.allocate(&a, MIB);
    assert!(poll(&mut behind).is_pending());
    drop(block);
    assert!(
        poll_with(&mut reserving, &waker).is_pending(),
        "the work runs"
    );
    let before = woken.get();
    device.advance(us(100));
    assert!(woken.get() > before);
    let Poll::Ready(Ok(reservation)) = poll_with(&mut reserving, &waker) else {
        panic!("it is complete");
    };
    drop(now(behind).unwrap());
    assert_eq!(pool.statistics().waits.served, 2);
    drop(reservation);
    pool.check_conserved().unwrap();
}

/// Dropped at whatever stage, it has taken nothing.
#[test]
fn a_dropped_future_leaves_nothing_reserved() {
    let device = manual();
    let [tag] = ["reservations: dropped"].map(Tag::new);
    let pool = builder(&device, 32 * MIB)
        .tag_limit(tag, 16 * MIB)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    for stage in 0..4 {
        let mut block = Some(pool.try_allocate(&stream, 32 * MIB).unwrap());
        let mut reserving = pool.reserve(8 * MIB).tag(tag);
        if stage > 0 {
            assert!(poll(&mut reserving).is_pending());
        }
        if stage > 1 {
            block = None;
        }
        let mut behind = (stage == 3).then(|| pool.allocate(&stream, 512));
        if let Some(behind) = &mut behind {
            // Serves the queue, and so grants what nobody takes.
            let _ = poll(behind);
        }
        drop(reserving);
        drop((block, behind));
        assert_eq!(pool.statistics_of_tag(tag).used.current, 0);
        pool.check_conserved().unwrap();
    }
    // Its own memory, once the pool was closed, is no exception.
    let reservation = pool.reserve(MIB).try_now().unwrap();
    pool.close();
    assert_eq!(
        reservation.allocate(&stream, 512).unwrap_err(),
        AllocError::Closed
    );
    drop(reservation);
    pool.check_conserved().unwrap();
}

/// What is reserved for a tag counts for it, whole, until it is given back: by the handle, or by the last
/// block that outlives that.
#[test]
fn a_reservation_counts_for_its_tag() {
    let device = manual();
    let tag = Tag::new("reservations: counts");
    let pool = builder(&device, 32 * MIB)
        .tag_limit(tag, 8 * MIB)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let of_tag = || pool.statistics_of_tag(tag).used.current;
    let mut reservation = pool.reserve(6 * MIB).tag(tag).try_now().unwrap();
    let refused = pool.reserve(3 * MIB).tag(tag).try_now().unwrap_err();
    assert!(matches!(refused, AllocError::LimitReached { .. }));
    let block = reservation.allocate(&stream, 2 * MIB).unwrap();
    assert_eq!(block.tag(), Some(tag));
    assert_eq!(of_tag(), 6 * MIB);
    drop(reservation.allocate(&stream, 4 * MIB).unwrap());
    assert_eq!(of_tag(), 6 * MIB);
    now(Box::pin(reservation.grow(2 * MIB))).unwrap();
    assert_eq!((of_tag(), reservation.size()), (8 * MIB, 8 * MIB));
    let part = reservation.split(MIB).unwrap();
    drop(part);
    assert_eq!(of_tag(), 7 * MIB);
    drop(reservation);
    assert_eq!(of_tag(), 2 * MIB);
    drop(block);
    assert_eq!(of_tag(), 0);
    pool.check_conserved().unwrap();
}

/// Two parts go their own ways.
#[test]
fn a_reservation_can_be_split() {
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let mut whole = pool.reserve(8 * MIB).try_now().unwrap();
    let held = whole.allocate(&stream, 2 * MIB).unwrap();
    let error = whole.split(7 * MIB).unwrap_err();
    assert!(matches!(error, AllocError::NotReserved { left, .. } if left == 6 * MIB));
    let part = whole.split(6 * MIB).unwrap();
    assert_eq!((whole.left(), part.left()), (0, 6 * MIB));
    drop(held);
    assert_eq!((whole.left(), part.left()), (2 * MIB, 6 * MIB));
    let other = part.allocate(&stream, 6 * MIB).unwrap();
    drop((whole, part, other));
    pool.check_conserved().unwrap();
}

/// Blocks that outlive their reservation are anybody's when they are freed.
#[test]
fn blocks_outlive_their_reservation() {
    let device = manual();
    let pool = small(&device);
    let (work, stream) = stream(&device, &pool);
    let reservation = pool.reserve(16 * MIB).try_now().unwrap();
    let block = reservation.allocate(&stream, 4 * MIB).unwrap();
    use_block(&work, &block, us(50));
    drop(reservation);
    assert_eq!(used(&pool), 4 * MIB);
    drop(pool.try_allocate(&stream, 28 * MIB).unwrap());
    drop(block);
    device.advance(us(50));
    drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
    pool.check_conserved().unwrap();
}

/// In its scope the pool's allocations draw from it: of that task, and of that pool.
#[test]
fn a_scope_draws_from_the_reservation() {
    let device = manual();
    let pool = small(&device);
    let elsewhere = small(&device);
    let (_, stream_here) = stream(&device, &pool);
    let (_, stream_there) = stream(&device, &elsewhere);
    let tag = Tag::new("reservations: scope");
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let inner = pool.reserve(2 * MIB).try_now().unwrap();
    let left = || (reservation.left(), inner.left());
    let blocks = now(Box::pin(reservation.scope(async {
        let awaited = pool.allocate(&stream_here, 4 * MIB).await.unwrap();
        let tried = pool.try_allocate(&stream_here, MIB).unwrap();
        assert_eq!(left(), (3 * MIB, 2 * MIB));
        let nested = inner.scope(async { pool.try_allocate(&stream_here, MIB).unwrap() });
        let nested = nested.await;
        assert_eq!(left(), (3 * MIB, MIB));
        let other_pool = elsewhere.try_allocate(&stream_there, MIB).unwrap();
        let other_tag = pool.allocate(&stream_here, MIB).tag(tag).try_now().unwrap();
        let too_large = pool.try_allocate(&stream_here, 4 * MIB).unwrap();
        assert_eq!(left(), (3 * MIB, MIB));
        (awaited, tried, nested, other_pool, other_tag, too_large)
    })));
    let outside = pool.try_allocate(&stream_here, MIB).unwrap();
    assert_eq!(left(), (3 * MIB, MIB));
    drop((blocks, outside));
    assert_eq!(left(), (8 * MIB, 2 * MIB));
    drop((reservation, inner));
    pool.check_conserved().unwrap();
}

/// All or none, in the order of the layouts, and from one place in the queue.
#[test]
fn several_blocks_are_granted_together() {
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let layouts = [MIB, 16 * MIB, 2 * MIB, 9 * MIB];
    let refused = pool.allocate_many(&stream, layouts).try_now().unwrap_err();
    assert!(matches!(refused, AllocError::Exhausted(s) if s.requested == 28 * MIB));
    assert_eq!(used(&pool), 8 * MIB, "none of them");
    let never = pool.allocate_many(&stream, [16 * MIB, 17 * MIB]).try_now();
    assert!(matches!(never, Err(AllocError::TooLarge { requested, .. }) if requested == 33 * MIB));
    let mut waiting = pool.allocate_many(&stream, layouts);
    assert!(poll(&mut waiting).is_pending());
    let mut behind = pool.allocate(&stream, 512);
    assert!(poll(&mut behind).is_pending());
    assert_eq!(used(&pool), 8 * MIB, "nothing is held while it waits");
    drop(held);
    let blocks = now(waiting).unwrap();
    assert_eq!(blocks.iter().map(Block::size).collect::<Vec<_>>(), layouts);
    drop(now(behind).unwrap());
    drop(blocks);
    assert_eq!(
        now(pool.allocate_many(&stream, [0u64; 0])).unwrap().len(),
        0
    );
    pool.check_conserved().unwrap();
}

/// Tasks that take two blocks each, one after the other, knot; together, they do not. In random order, on
/// many streams, with memory for two of them.
#[test]
fn together_there_is_no_knot() {
    let device = SimDevice::new();
    let pool = builder(&device, 16 * MIB).build().unwrap();
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
    pool.harvest().unwrap();
    pool.check_conserved().unwrap();
}

/// Where nothing is pooled there is nothing to set aside; several blocks can be had together all the same.
#[test]
fn without_pooling_nothing_is_set_aside() {
    let device = manual();
    let pool = Pool::builder(device.clone()).unpooled().build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let refused = pool.reserve(MIB).try_now().unwrap_err();
    assert_eq!(refused, AllocError::NotReservable);
    let blocks = pool.allocate_many(&stream, [MIB, MIB]).try_now().unwrap();
    assert_eq!(blocks.len(), 2);
}

/// The statistics, the snapshot and the look-up by address know it.
#[test]
fn it_is_seen_for_what_it_is() {
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let block = reservation.allocate(&stream, 2 * MIB).unwrap();
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.bytes_in(BlockState::Reserved), 6 * MIB);
    assert_eq!(snapshot.bytes_in(BlockState::Used), 2 * MIB);
    assert_eq!(pool.statistics().live_blocks, 1);
    assert_eq!(pool.statistics().used.current, 8 * MIB);
    drop(block);
    assert_eq!(pool.snapshot().bytes_in(BlockState::Reserved), 8 * MIB);
    assert_eq!(pool.trim_to(0).unwrap(), 0, "it is not free");
}

/// Memory that is complete is there for a stream that takes no wait, whoever asked how far the others are.
#[test]
fn what_is_complete_is_there_for_who_takes_no_wait() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(weirpool::device::sim::Clock::Manual)
        .device_side_waits(false)
        .build();
    let pool = small(&device);
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let reservation = pool.reserve(MIB).try_now().unwrap();
    // Less than what is sealed at once: no event covers the free yet.
    let block = reservation.allocate(&a, MIB).unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    let error = reservation.allocate(&b, MIB).unwrap_err();
    assert!(matches!(error, AllocError::NotReserved { left: MIB, .. }));
    device.advance(us(100));
    drop(reservation.allocate(&b, MIB).unwrap());
    drop(reservation);
    pool.check_conserved().unwrap();
}

/// What is set aside for a tag is an allocation of it, and ends as one.
#[test]
fn a_tag_counts_its_reservations() {
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("counts its reservations");
    let mut reservation = pool.reserve(4 * MIB).tag(tag).try_now().unwrap();
    let figures = pool.statistics_of_tag(tag);
    assert_eq!((figures.allocations, figures.frees), (1, 0));
    let part = reservation.split(MIB).unwrap();
    let block = reservation.allocate(&stream, MIB).unwrap();
    drop(reservation);
    drop((block, part));
    let figures = pool.statistics_of_tag(tag);
    assert_eq!(figures.used.current, 0);
    assert_eq!(figures.used.high, 4 * MIB, "as long as it was set aside");
    assert_eq!(figures.allocations, figures.frees);
}

/// A future in a scope may end with its thread, whatever of the thread is gone by then.
#[test]
fn a_scope_may_end_with_its_thread() {
    type Held = std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>;
    thread_local! {
        static HELD: std::cell::RefCell<Option<Held>> = const { std::cell::RefCell::new(None) };
    }
    let device = manual();
    let pool = small(&device);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let scope = |pool: Pool, device: SimDevice| {
        let (_, stream) = stream(&device, &pool);
        reservation.scope(async move {
            let _block = pool.allocate(&stream, MIB).await.unwrap();
            std::future::pending::<()>().await;
        })
    };
    let scoped = scope(pool.clone(), device.clone());
    let ended = std::thread::spawn(move || {
        // Before the thread is in a scope: what was made first is dropped last.
        HELD.set(None);
        let mut scoped: Held = Box::pin(scoped);
        assert!(poll(&mut scoped).is_pending());
        HELD.set(Some(scoped));
    });
    ended.join().unwrap();
    assert_eq!(reservation.left(), 4 * MIB, "its block was freed");
}

/// Several that do not fit together leave what they were tried with as it was: for others it is there as
/// soon as it would have been.
#[test]
fn what_was_tried_for_several_is_no_later_for_others() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .lane_bytes(0)
        .wait_limit(WaitLimit::Unlimited)
        .build()
        .unwrap();
    let (short, a) = stream(&device, &pool);
    let (long, b) = stream(&device, &pool);
    let (_, c) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 4 * MIB).unwrap();
    let held = pool.try_allocate(&a, 4 * MIB).unwrap();
    use_block(&short, &block, us(100));
    run(&long, us(100_000));
    drop(block);
    // The second stream may be made to wait for the first; its own work takes longer.
    let mut both = pool.allocate_many(&b, [3 * MIB, 3 * MIB]);
    assert!(poll(&mut both).is_pending());
    drop(both);
    device.advance(us(100));
    let block = pool.try_allocate(&c, 4 * MIB).expect("its work is over");
    assert_eq!(block.rung(), Rung::Free);
    drop((block, held));
    device.advance(us(100_000));
    pool.harvest().unwrap();
    pool.check_conserved().unwrap();
}

/// A pool of 8 MiB that waits on the device before anything else, half of it pending on one stream.
fn half_pending(device: &SimDevice) -> (Pool, Stream, Block) {
    let pool = builder(device, 8 * MIB)
        .lane_bytes(0)
        .wait_limit(WaitLimit::Unlimited)
        .build()
        .unwrap();
    let (work, a) = stream(device, &pool);
    let block = pool.try_allocate(&a, 4 * MIB).unwrap();
    let held = pool.try_allocate(&a, 4 * MIB).unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    (pool, a, held)
}

/// A stream is made to wait only for what it gets: while one of several cannot be had, for nothing.
#[test]
fn a_stream_does_not_wait_for_several_that_cannot_be_had() {
    let device = manual();
    let (pool, _a, held) = half_pending(&device);
    let (_, b) = stream(&device, &pool);
    let both = [4 * MIB, 2 * MIB];
    assert!(pool.allocate_many(&b, both).try_now().is_err());
    let mut waiting = pool.allocate_many(&b, both);
    assert!(poll(&mut waiting).is_pending() && poll(&mut waiting).is_pending());
    assert_eq!(device.counters().device_waits, 0);
    assert_eq!(pool.statistics().device_waits, 0);
    drop(held);
    let blocks = now(waiting).unwrap();
    assert_eq!(device.counters().device_waits, 1);
    assert!(blocks.iter().any(|block| block.rung() == Rung::DeviceWait));
    drop(blocks);
    device.advance(us(100));
    pool.harvest().unwrap();
    pool.check_conserved().unwrap();
}

/// All that several come after is waited for once, before any of them is used; on further streams too.
#[test]
fn several_wait_once_before_any_is_used() {
    for follows in [true, false] {
        let device = manual();
        let reuse = Reuse {
            follow_event_dependencies: follows,
            ..Reuse::ALL
        };
        let pool = builder(&device, 8 * MIB).lane_bytes(0).reuse(reuse);
        let pool = pool.wait_limit(WaitLimit::Unlimited).build().unwrap();
        let (work_a, a) = stream(&device, &pool);
        let (work_b, b) = stream(&device, &pool);
        let (work_c, c) = stream(&device, &pool);
        let held = [(); 4].map(|()| pool.try_allocate(&a, 2 * MIB).unwrap());
        for block in held {
            use_block(&work_a, &block, us(100));
            drop(block);
        }
        let blocks = pool.allocate_many(&b, [2 * MIB; 3]).try_now().unwrap();
        assert_eq!(device.counters().device_waits, 1);
        assert_eq!(pool.statistics().device_waits, 1);
        // The checker watches.
        use_block(&work_b, &blocks[0], us(10));
        for block in &blocks[1..] {
            block.used_on(&c).unwrap();
            use_block(&work_c, block, us(10));
        }
        drop(blocks);
        drop((a, b, c));
        device.advance(us(1000));
        pool.harvest().unwrap();
        pool.check_conserved().unwrap();
    }
}

/// A wait that the device does not take is one more thing that several are looked for without; one that fails lends
/// nothing, and loses nothing.
#[test]
fn several_whose_wait_fails_lose_nothing() {
    let device = manual();
    let (pool, _a, held) = half_pending(&device);
    let (_, b) = stream(&device, &pool);
    drop(held);
    let both = [4 * MIB, 2 * MIB];
    device.fail_next(Call::Wait, DeviceErrorKind::Other);
    match pool.allocate_many(&b, both).try_now() {
        Err(AllocError::Device(error)) => assert_eq!(error.kind(), DeviceErrorKind::Other),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (used(&pool), pool.statistics().pending.current),
        (0, 8 * MIB)
    );
    device.fail_next(Call::Wait, DeviceErrorKind::Unsupported);
    let blocks = pool.allocate_many(&b, both).try_now().unwrap();
    assert_eq!(blocks[0].rung(), Rung::DeviceWait, "it takes the next one");
    assert_eq!(pool.statistics().device_waits, 1);
    drop(blocks);
    device.advance(us(100));
    pool.harvest().unwrap();
    pool.check_conserved().unwrap();
}

/// Where nothing is pooled, several that do not fit together take nothing, and do not wake themselves.
#[test]
fn without_pooling_who_waits_for_several_sleeps() {
    let device = manual();
    let pool = Pool::builder(device.clone())
        .capacity(8 * MIB)
        .unpooled()
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
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
    assert_eq!(pool.statistics().reserved.current, 4 * MIB);
    drop(held);
    let blocks = now(both).unwrap();
    assert_eq!(blocks.len(), 2);
}

/// What is left in pieces is as good as one, as long as it is made of whole handles: they are mapped elsewhere,
/// though the pool has nothing.
#[test]
fn whole_handles_never_fail_though_the_pool_is_full() {
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let pebble = pool.try_allocate(&stream, 512).unwrap(); // nothing is aligned by chance
    let reservation = pool.reserve(24 * MIB).try_now().unwrap();
    let mut others = Vec::new();
    while let Ok(block) = pool.try_allocate(&stream, 512 << 10) {
        others.push(block);
    }
    let mut random = fastrand::Rng::with_seed(5);
    let mut blocks: Vec<Block> = Vec::new();
    let (mut lent, mut remapped) = (0, 0);
    for _ in 0..3000 {
        if random.bool() && !blocks.is_empty() {
            lent -= blocks.swap_remove(random.usize(..blocks.len())).size();
        } else if lent < 24 * MIB {
            let most = (24 * MIB - lent) / (2 * MIB);
            let bytes = random.u64(1..=most) * 2 * MIB;
            let before = pool.statistics().remaps;
            blocks.push(reservation.allocate(&stream, bytes).unwrap());
            remapped += pool.statistics().remaps - before;
            lent += bytes;
        }
        assert_eq!(reservation.left(), 24 * MIB - lent);
        assert_eq!(reservation.size(), 24 * MIB);
        pool.check().unwrap();
    }
    assert!(remapped > 0, "it never was in pieces");
    drop((blocks, others, pebble, reservation));
    pool.check_conserved().unwrap();
}

/// Pieces of any size are exchanged for a span of the pool, which has as much as before.
#[test]
fn pieces_are_exchanged_for_what_the_pool_has_in_one() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .virtual_memory(virtual_memory)
            .clock(weirpool::device::sim::Clock::Manual)
            .build();
        let pool = builder(&device, 32 * MIB)
            .lane_bytes(0)
            .initial_size(32 * MIB)
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let reservation = pool.reserve(4 * MIB).try_now().unwrap();
        let pieces: Vec<_> = (0..8)
            .map(|_| reservation.allocate(&stream, MIB / 2).unwrap())
            .collect();
        let (kept, freed): (Vec<_>, Vec<_>) = pieces
            .into_iter()
            .enumerate()
            .partition(|(at, _)| at % 2 == 0);
        drop(freed);
        assert_eq!(reservation.left(), 2 * MIB);
        let free = pool.statistics().free;
        let one = reservation.allocate(&stream, 3 * MIB / 2).unwrap();
        assert_eq!(reservation.left(), MIB / 2);
        assert_eq!(pool.statistics().free, free, "an exchange is even");
        pool.check().unwrap();
        // Nothing of it is anybody's before the reservation ends.
        drop((one, kept));
        assert_eq!(reservation.left(), 4 * MIB);
        let others: Vec<_> =
            std::iter::from_fn(|| pool.try_allocate(&stream, MIB / 2).ok()).collect();
        assert_eq!(others.len(), 56);
        drop(others);
        drop(reservation);
        pool.check_conserved().unwrap();
    }
}

/// What the device refuses on the way leaves the reservation what it had.
#[test]
fn an_exchange_that_fails_takes_nothing() {
    use weirpool::device::sim::{Call, Fault};
    let device = manual();
    let pool = small(&device);
    let (_, stream) = stream(&device, &pool);
    let reservation = pool.reserve(16 * MIB).try_now().unwrap();
    let pieces: Vec<_> = (0..8)
        .map(|_| reservation.allocate(&stream, 2 * MIB).unwrap())
        .collect();
    let others = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut kept = Vec::new();
    for (at, piece) in pieces.into_iter().enumerate() {
        if at % 2 == 0 {
            kept.push(piece);
        }
    }
    device.script(
        Call::Unmap,
        2,
        Fault::Fails(weirpool::device::DeviceErrorKind::Other),
    );
    assert!(reservation.allocate(&stream, 8 * MIB).is_err());
    assert_eq!(
        (reservation.left(), reservation.size()),
        (8 * MIB, 16 * MIB)
    );
    pool.check().unwrap();
    drop(reservation.allocate(&stream, 8 * MIB).unwrap());
    drop((kept, others, reservation));
    pool.check_conserved().unwrap();
}

/// Whatever is drawn and freed on whatever stream, beside others who do the same: no byte of a reservation is lost,
/// and none is had by two.
#[test]
fn reservations_keep_their_bytes() {
    for seed in 0..20 {
        let device = manual();
        let pool = small(&device);
        let streams = [0; 3].map(|_| stream(&device, &pool));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut reservations: Vec<_> = (0..3)
            .map(|_| pool.reserve(random.u64(1..=12) << 19).try_now().unwrap())
            .collect();
        let mut blocks: Vec<(Option<usize>, Block)> = Vec::new();
        for _ in 0..600 {
            let (work, on) = &streams[random.usize(..3)];
            let bytes = 1 << random.u64(9..23);
            let from = random.choice([None, Some(0), Some(1), Some(2)]).flatten();
            let block = match from {
                _ if random.bool() => None,
                Some(at) => reservations[at].allocate(on, bytes).ok(),
                None => pool.try_allocate(on, bytes).ok(),
            };
            match block {
                Some(block) => {
                    use_block(work, &block, us(random.u64(1..50)));
                    blocks.push((from, block));
                }
                None if !blocks.is_empty() => {
                    drop(blocks.swap_remove(random.usize(..blocks.len())));
                }
                None => device.advance(us(20)),
            }
            for (at, reservation) in reservations.iter().enumerate() {
                let of_it = blocks.iter().filter(|(from, _)| *from == Some(at));
                let lent: u64 = of_it.map(|(_, block)| block.size()).sum();
                assert_eq!(reservation.left() + lent, reservation.size());
            }
            pool.check().unwrap();
        }
        reservations.truncate(1);
        drop(blocks);
        reservations.clear();
        device.advance(us(100_000));
        pool.harvest().unwrap();
        pool.check_conserved().unwrap();
    }
}
