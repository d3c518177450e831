//! Allocations from a reservation, and frees to it.

use super::*;
use weirpool::device::sim::Call;

/// Other requests cannot take reserved memory, and allocations from a reservation neither wait nor fail.
#[test]
fn reserved_memory_is_not_taken_by_others() {
    let (device, pool, [(work, a), (_, b)]) = set_up_with(small);
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
    pool.inspect().check().unwrap();
    drop((one, reservation));
    // The memory is the pool's again, behind the work of the freeing stream, and serves the waiter.
    assert!(poll(&mut waiting).is_pending());
    device.advance(us(1000));
    drop(now(waiting).unwrap());
}

/// While other requests wait, a free to a reservation does not help them: it wakes no waiter, queries no event and
/// watches no stream. The end of the reservation does.
#[test]
fn free_to_a_reservation_wakes_no_waiters() {
    let (device, pool, [(work, a), (_, b)]) = set_up_with(small);
    let reservation = pool.reserve(32 * MIB).try_now().unwrap();
    let mut reclaimer = pool.maintain().reclaimer();
    let (driver, driving) = Count::new();
    assert!(poll_with(&mut reclaimer, &driving).is_pending());
    let (waiting, woken, waker) = not_ready_counted(pool.allocate(&b, MIB));
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
    // A query from time to time lets events be reused.
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
    assert!(
        driver.get() > before,
        "the reservation is gone: the free is for all"
    );
    assert!(poll_with(&mut reclaimer, &driving).is_pending());
    let before = driver.get();
    device.advance(us(10));
    assert!(driver.get() > before, "so the stream is watched for it");
    drop((now(waiting).unwrap(), now(rest).unwrap()));
}

/// Freed memory returns to the reservation: at once for its stream, and behind its work for another one.
#[test]
fn freed_memory_returns_to_the_reservation() {
    let (device, pool, [(work_a, a), (work_b, b)]) = set_up_with(small);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let block = reservation.allocate(&a, 4 * MIB).unwrap();
    let address = block.address();
    use_block(&work_a, &block, us(100));
    drop(block);
    let again = reservation.allocate(&a, 4 * MIB).unwrap();
    let found = (again.address(), again.source());
    assert_eq!(found, (address, Source::SameStream));
    use_block(&work_a, &again, us(100));
    drop(again);
    let elsewhere = reservation.allocate(&b, 4 * MIB).unwrap();
    assert_eq!(elsewhere.source(), Source::DeviceWait);
    use_block(&work_b, &elsewhere, us(10)); // the checker would report a missing order
    device.advance(us(210));
    assert_eq!(work_b.backlog(), 0);
    drop(elsewhere);
    assert!(
        pool.try_allocate(&a, 32 * MIB).is_err(),
        "it is still reserved"
    );
    drop(reservation);
    device.advance(us(100));
    drop(pool.try_allocate(&a, 32 * MIB).unwrap());
}

/// The stream's lane does not cache a small block of a reservation, because others would get it from there.
#[test]
fn lanes_cache_no_reserved_blocks() {
    let (_, pool, [(_, stream)]) = set_up(32 * MIB);
    let reservation = pool.reserve(4096).try_now().unwrap();
    for awaited in [false, true] {
        let block = reservation.allocate(&stream, 4096).unwrap();
        if awaited {
            drop(block.deallocate());
        } else {
            drop(block);
        }
        assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
        assert_eq!(reservation.left(), 4096);
    }
}

/// A stream that takes no waits gets only complete memory, whichever call polled for it.
#[test]
fn memory_is_drawn_once_it_is_complete_without_device_waits() {
    // The smaller block is too little to be sealed at once, so no event covers its free yet.
    for (bytes, is_polled) in [(4 * MIB, true), (MIB, false)] {
        let device = manual_builder().device_side_waits(false).build();
        let pool = small(&device);
        let [(work, a), (_, b)] = streams(&device, &pool);
        let reservation = pool.reserve(bytes).try_now().unwrap();
        let block = reservation.allocate(&a, bytes).unwrap();
        use_block(&work, &block, us(100));
        drop(block);
        let error = reservation.allocate(&b, bytes).unwrap_err();
        assert_matches!(error, AllocError::NotReserved { left, .. } if *left == bytes);
        if is_polled {
            a.seal().unwrap();
        }
        device.advance(us(100));
        if is_polled {
            pool.maintain().reap().unwrap();
        }
        drop(reservation.allocate(&b, bytes).unwrap());
    }
}

/// A stream that takes no waits gets complete memory, whichever call polled for it.
/// Each layout can be allocated again after its free, whatever is allocated and freed in between.
#[test]
fn each_layout_of_a_reservation_stays_available() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
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
        pool.inspect().check().unwrap();
    }
}

/// Whatever looks at the memory of a reservation finds what its streams freed. See also the loom models of kept blocks.
#[test]
fn kept_memory_is_found_by_everything_but_the_streams_own_draw() {
    let (device, pool, [(work_a, a), (work_b, b)]) = set_up_with(small);
    let mut reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let work = |block: Block| {
        use_block(&work_a, &block, us(10));
        drop(block);
    };
    let again = |reservation: &Reservation| work(reservation.allocate(&a, MIB).unwrap());
    let free_all = |reservation: &Reservation| {
        let blocks = [(); 8].map(|()| reservation.allocate(&a, MIB).unwrap());
        blocks.into_iter().for_each(work);
    };
    // Statistics, and a walk.
    again(&reservation);
    assert_eq!(pool.inspect().statistics().set_aside, 8 * MIB);
    again(&reservation);
    let blocks = pool.inspect().snapshot().segments.into_iter();
    let mut states = blocks
        .flat_map(|segment| segment.blocks)
        .map(|block| block.state);
    assert!(!states.any(|state| state == BlockState::Used));
    // The remaining bytes, and an allocation of another size.
    again(&reservation);
    assert_eq!(reservation.left(), 8 * MIB);
    again(&reservation);
    work(reservation.allocate(&a, 8 * MIB).unwrap());
    // Another stream, behind the work of the first.
    free_all(&reservation);
    let all = reservation.allocate(&b, 8 * MIB).unwrap();
    use_block(&work_b, &all, us(10));
    drop(all);
    // A split, in several pieces.
    free_all(&reservation);
    let part = reservation.split(7 * MIB).unwrap();
    assert_eq!((reservation.left(), part.left()), (MIB, 7 * MIB));
    again(&part);
    again(&reservation);
    pool.inspect().check().unwrap();
    device.advance(us(1000));
    // The end: the pool has everything.
    drop((part, reservation));
    drop(pool.try_allocate(&b, 32 * MIB).unwrap());
}

/// A kept block is drawn again only where it fits exactly, also in alignment.
#[test]
fn kept_block_serves_its_own_size_and_alignment_only() {
    let (_, pool, [(_, a), (_, b)]) = set_up_with(small);
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    // The first block that is freed is not kept.
    drop(reservation.allocate(&a, 512).unwrap());
    let first = reservation.allocate(&a, 512).unwrap();
    let second = reservation.allocate(&a, 512).unwrap();
    let address = second.address();
    drop(second);
    let aligned = Layout::new(512).alignment(4096);
    let other = reservation.allocate(&a, aligned).unwrap();
    assert_ne!(other.address(), address);
    assert!(other.address().is_aligned_to(4096));
    drop(first);
    let larger = reservation.allocate(&a, 1024).unwrap();
    let elsewhere = reservation.allocate(&b, 512).unwrap();
    assert_eq!((larger.size(), elsewhere.size()), (1024, 512));
}

/// A stream that a block is kept for stays known to the heap until the reservation gives the block back.
#[test]
fn stream_may_end_while_its_reservation_keeps_a_block_for_it() {
    let (device, pool, [(_, b)]) = set_up_with(small);
    let reservation = pool.reserve(MIB).try_now().unwrap();
    for _ in 0..20 {
        let (work, a) = stream(&device, &pool);
        let block = reservation.allocate(&a, MIB).unwrap();
        use_block(&work, &block, us(10));
        drop((block, a, work));
        device.advance(us(20));
        pool.maintain().reap().unwrap();
    }
    let _block = reservation.allocate(&b, MIB).unwrap();
}
