//! Changing the capacity at run time.

use crate::common::*;
use weirpool::device::sim::SimDevice;
use weirpool::device::{Device, DeviceErrorKind};
use weirpool::*;
use weirpool_compat::Attribute;

/// More capacity serves waiters at once.
#[test]
fn higher_capacity_serves_waiters() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let waiter = not_ready(pool.allocate(&stream, 4 * MIB).into_future());
    assert_eq!(pool.resize(12 * MIB + 1).unwrap().target, 12 * MIB);
    assert!(now(waiter).is_ok());
    drop(held);
    // This is far more than the addresses were reserved for.
    assert_eq!(pool.resize(640 * MIB).unwrap().target, 640 * MIB);
    drop(pool.try_allocate(&stream, 640 * MIB).unwrap());
}

/// Less capacity releases free memory now, and used memory once it is freed. Meanwhile the pool does not grow.
#[test]
fn lower_capacity_releases_memory_now_and_later() {
    for virtual_memory in [true, false] {
        let device = manual_builder().virtual_memory(virtual_memory).build();
        let pool = builder(&device, 32 * MIB).made();
        let (work, stream) = stream(&device, &pool);
        let blocks = [0; 4].map(|_| pool.try_allocate(&stream, 8 * MIB).unwrap());
        use_all(&work, &blocks, us(100));
        let [first, second, third, fourth] = blocks;
        drop((first, second));
        device.advance(us(500));
        assert_eq!(pool.resize(8 * MIB).unwrap().target, 8 * MIB);
        assert_eq!(pool.inspect().statistics().reserved.current, 16 * MIB);
        pool.inspect().check().unwrap();
        assert!(
            pool.try_allocate(&stream, 4 * MIB).is_err(),
            "above the capacity"
        );
        drop((third, fourth));
        for _ in 0..3 {
            device.advance(us(10_000));
        }
        assert_eq!(pool.inspect().statistics().reserved.current, 8 * MIB);
        drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    }
}

/// A request waits that the lower capacity allows, for longer than an interval of maintenance.
/// What others are charged for counts against the capacity beside the pool's memory.
#[test]
fn lower_capacity_counts_charges() {
    let (_, pool, [(_, stream)]) = set_up(64 * MIB);
    drop(pool.try_allocate(&stream, 24 * MIB).unwrap());
    let charge = pool.charge(16 * MIB).unwrap();
    assert!(pool.resize(32 * MIB).unwrap().is_reached());
    assert_eq!(reserved(&pool), 16 * MIB);
    assert!(pool.try_allocate(&stream, 24 * MIB).is_err());
    drop(charge);
}

/// The capacity counts what others hold.
#[test]
fn memory_above_the_capacity_is_released_although_a_request_waits() {
    let ways = [(0, true), (2 * MIB, true), (2 * MIB, false)];
    for (device, (charged, waits)) in ways
        .into_iter()
        .flat_map(|way| devices().map(|it| (it, way)))
    {
        let pool = pool(&device, 8 * MIB + charged);
        let (_, stream) = stream(&device, &pool);
        let charge = (charged > 0).then(|| pool.charge(charged).unwrap());
        let kept = [(); 2].map(|()| pool.try_allocate(&stream, 2 * MIB).unwrap());
        let freed = [(); 2].map(|()| pool.try_allocate(&stream, 2 * MIB).unwrap());
        let _ = pool.resize(6 * MIB + charged).unwrap();
        let mut waiting = waits.then(|| not_ready(pool.allocate(&stream, 5 * MIB)));
        drop(freed);
        assert!(waiting.iter_mut().all(|waiting| poll(waiting).is_pending()));
        for _ in 0..3 {
            device.advance(us(100_000));
        }
        assert!(reserved(&pool) <= 6 * MIB);
        assert!(waiting.iter_mut().all(|waiting| poll(waiting).is_pending()));
        drop((kept, charge));
        assert!(waiting.iter_mut().all(|waiting| poll(waiting).is_ready()));
    }
}

/// A waiter for more than the new capacity fails. A waiter for less goes on.
#[test]
fn lower_capacity_fails_larger_requests() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let held = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut large = pool.allocate(&stream, 12 * MIB).into_future();
    let mut small = pool.allocate(&stream, 4 * MIB).into_future();
    assert!(poll(&mut large).is_pending() && poll(&mut small).is_pending());
    let _ = pool.resize(8 * MIB).unwrap();
    match now(large) {
        Err(AllocError::TooLarge {
            requested,
            capacity,
        }) => {
            assert_eq!((requested, capacity), (12 * MIB, 8 * MIB));
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    assert!(now(small).is_ok());
}

/// Requests for several blocks, and for reservations, fail as well, at any queue position.
#[test]
fn lower_capacity_fails_larger_requests_for_several_blocks() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let held = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut small = pool.allocate_many(&stream, [2 * MIB, 2 * MIB]);
    let mut many = pool.allocate_many(&stream, [6 * MIB, 6 * MIB]);
    let mut reserve = pool.reserve(12 * MIB);
    assert!(poll(&mut small).is_pending());
    assert!(poll(&mut many).is_pending() && poll(&mut reserve).is_pending());
    let _ = pool.resize(8 * MIB).unwrap();
    let too_large = AllocError::TooLarge {
        requested: 12 * MIB,
        capacity: 8 * MIB,
    };
    assert_eq!(now(many).unwrap_err(), too_large);
    assert_eq!(now(reserve).unwrap_err(), too_large);
    drop(held);
    assert_eq!(now(small).unwrap().len(), 2);
    assert_eq!(pool.inspect().statistics().waits.waiting, 0);
}

/// A wide address range is a convenience: a device with few addresses gets a narrower one.
#[test]
fn capacity_near_the_end_of_the_addresses_is_held() {
    let device = SimDevice::builder().memory(64 << 40).build();
    let pool = Pool::builder(device.clone()).made();
    assert_eq!(pool.capacity(), 64 << 40);
    let (_, stream) = stream(&device, &pool);
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    pool.inspect().check().unwrap();
}

#[test]
fn capacity_beyond_the_addresses_is_an_error_with_its_figure() {
    for capacity in [1 << 47, 15 << 60, u64::MAX] {
        let device = SimDevice::builder().memory(capacity).build();
        let error = Pool::builder(device).build().unwrap_err();
        let BuildError::Device(error) = error else {
            panic!("{capacity}: {error}");
        };
        assert_eq!(error.kind(), DeviceErrorKind::OutOfMemory);
        assert!(error.to_string().contains("address"), "{error}");
    }
}

/// An invalid capacity is refused without effect.
#[test]
fn invalid_capacity_is_refused() {
    let device = manual();
    let pool = pool(&device, 16 * MIB);
    let refused = pool.resize(CHUNK - 1);
    assert_matches!(refused, Err(BuildError::CapacityTooSmall { .. }));
    assert_eq!(pool.capacity(), 16 * MIB);
    assert_eq!(
        pool.resize(u64::MAX).unwrap().target,
        1 << 30,
        "what the device has"
    );
}

/// A grant counts, even if the capacity is less than its size by the time that the request looks.
#[test]
fn request_granted_before_a_resize_keeps_its_grant() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let held = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut several = pool.allocate_many(&stream, [4 * MIB, 4 * MIB]);
    let mut one = pool.allocate(&stream, 8 * MIB);
    assert!(poll(&mut several).is_pending() && poll(&mut one).is_pending());
    drop(held);
    pool.maintain().reap().unwrap();
    assert_eq!(
        figures(&pool).waits.waiting,
        0,
        "the queue granted both requests"
    );
    assert_eq!(pool.resize(4 * MIB).unwrap().target, 4 * MIB);
    let (several, one) = (now(several).unwrap(), now(one).unwrap());
    assert_eq!((several.len(), one.size()), (2, 8 * MIB));
}

/// A request behind the head that exceeds the new capacity fails when it is polled, not only as the head.
#[test]
fn request_behind_the_head_fails_after_a_resize() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let _held = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut head = pool.allocate(&stream, MIB);
    let mut behind = pool.allocate(&stream, 12 * MIB);
    assert!(poll(&mut head).is_pending() && poll(&mut behind).is_pending());
    assert_eq!(pool.resize(8 * MIB).unwrap().target, 8 * MIB);
    assert!(poll(&mut head).is_pending());
    assert_matches!(now(behind), Err(AllocError::TooLarge { .. }));
}

#[test]
fn resize_reports_the_memory_above_its_target() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB).made();
        let (work, stream) = stream(&device, &pool);
        let blocks = [12, 16, 8].map(|mib| pool.try_allocate(&stream, mib * MIB).unwrap());
        let [used, pending, free] = blocks;
        drop(free);
        device.advance(us(500));
        pool.maintain().reap().unwrap();
        use_block(&work, &pending, us(10_000));
        drop(pending);
        let resized = pool.resize(4 * MIB).unwrap();
        assert_eq!((resized.target, resized.released), (4 * MIB, 8 * MIB));
        assert_eq!((resized.reserved, resized.excess()), (28 * MIB, 24 * MIB));
        let found = (resized.used, resized.pending, resized.free);
        assert_eq!(found, (12 * MIB, 16 * MIB, 0));
        assert!(!resized.is_reached());
        let text = "released 8.0 MiB; 28.0 MiB stay reserved, 24.0 MiB above the target of 4.0 MiB: \
                    12.0 MiB used, 16.0 MiB pending, 0 B free";
        assert_eq!(resized.to_string(), text);

        drop(used);
        for _ in 0..9 {
            device.advance(us(10_000));
        }
        // Memory freed since then was released by maintenance, as far as it consists of releasable pieces.
        let resized = pool.resize(4 * MIB).unwrap();
        assert!(resized.is_reached(), "{resized}");
        assert!(pool.resize(64 * MIB).unwrap().is_reached());
    }
}

#[test]
fn trim_reports_the_memory_above_its_target() {
    for device in devices() {
        let is_virtual = Device::capabilities(&device).virtual_memory;
        let pool = builder(&device, 64 * MIB).made();
        let (_, stream) = stream(&device, &pool);
        drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
        device.advance(us(500));
        // A plain segment is released as a whole.
        let trimmed = pool.trim_to(2 * MIB).unwrap();
        let kept = if is_virtual { 2 * MIB } else { 0 };
        assert_eq!((trimmed.reserved, trimmed.free), (kept, kept));
        assert!(trimmed.is_reached());
        let block = pool.try_allocate(&stream, MIB).unwrap();
        let reservation = pool.reserve(MIB).try_now().unwrap();
        let trimmed = pool.trim_to(0).unwrap();
        assert_eq!((trimmed.used, trimmed.excess()), (2 * MIB, 2 * MIB));
        assert_eq!(trimmed.used + trimmed.free, trimmed.reserved);
        drop((block, reservation));
        assert!(pool.trim_to(0).unwrap().is_reached());
    }
}
/// A request behind the head exceeds the lowered capacity. It fails, and its task is woken.
#[test]
fn request_behind_the_head_hears_of_a_lower_capacity() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let _held = pool.try_allocate(&stream, 12 * MIB).unwrap();
    let _head = not_ready(pool.allocate(&stream, 6 * MIB));
    let mut tasks = [Woken::new(pool.allocate(&stream, 14 * MIB))];
    let _ = pool.resize(12 * MIB).unwrap();
    settle(&mut tasks);
    let answer = tasks[0].output.take();
    assert_matches!(answer, Some(Err(AllocError::TooLarge { .. })));
}

/// One free piece of 100 MiB: each way to have less releases it, on plain memory as on virtual memory.
#[test]
fn each_way_to_have_less_memory_releases_one_large_piece() {
    let ways: [fn(&Pool); 5] = [
        |pool| drop(pool.trim_to(MIB).unwrap()),
        |pool| Attribute::ReservedMemCurrent.set(pool, 4 * MIB).unwrap(),
        |pool| {
            pool.maintain()
                .set_release_threshold(ReleaseThreshold::Bytes(MIB))
                .unwrap()
        },
        |pool| Attribute::ReservedMemHigh.set(pool, MIB).unwrap(),
        |pool| drop(pool.resize(4 * MIB).unwrap()),
    ];
    for device in devices() {
        for (number, less) in ways.iter().enumerate() {
            let pool = builder(&device, 128 * MIB).made();
            let (_, stream) = stream(&device, &pool);
            drop(pool.try_allocate(&stream, 100 * MIB).unwrap());
            now(stream.synchronize()).unwrap();
            less(&pool);
            (0..10).for_each(|_| device.advance(us(100_000)));
            let reserved = pool.inspect().statistics().reserved.current;
            assert!(reserved <= 4 * MIB, "way {number}: {reserved}");
            if number == 1 {
                assert_eq!(reserved, 4 * MIB);
            }
        }
    }
}
