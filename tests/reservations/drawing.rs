//! What is allocated of a reservation, and freed to it.

use super::*;
use weirpool::device::sim::Call;
use weirpool::testing::Invariants;

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
    assert_eq!(
        (again.address(), again.source()),
        (address, Source::SameStream)
    );
    use_block(&work_a, &again, us(100));
    drop(again);
    let elsewhere = reservation.allocate(&b, 4 * MIB).unwrap();
    assert_eq!(elsewhere.source(), Source::DeviceWait);
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
        assert_eq!(pool.statistics().cached_in_lanes, 0);
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
    pool.reap().unwrap();
    drop(reservation.allocate(&b, 4 * MIB).unwrap());
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
