//! Evictable memory on a device that is full: together with memory of the device, of other pools and of other programs.

use crate::common::*;
use crate::evictable::{cached, present};
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Clock, Fault, Operation, SimDevice};
use weirpool::{Pool, ReleaseThreshold, WhenShort};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// Evictable memory is not enough by itself, nor is the memory that the device has left, or that another pool does not
/// use. Together they are.
#[test]
fn evicted_memory_serves_a_request_together_with_memory_that_others_release() {
    for is_virtual in [true, false] {
        for another_pool in [true, false] {
            let device = SimDevice::builder()
                .memory(16 * MIB)
                .virtual_memory(is_virtual)
                .build();
            let [one, other] = [(); 2].map(|()| pool(&device, 16 * MIB));
            let (_, a) = stream(&device, &one);
            let blocks: [_; 4] = cached(&one, &a);
            let others = device.faults().occupy(4 * MIB);
            let (_, b) = stream(&device, &other);
            if another_pool {
                drop(other.try_allocate(&b, 4 * MIB).unwrap());
            }
            assert!(one.try_allocate(&a, 14 * MIB).is_err(), "4 + 8 MiB");
            assert_eq!(present(&blocks), [true; 4], "nothing was evicted in vain");
            let block = one.try_allocate(&a, 12 * MIB).unwrap();
            assert_eq!(present(&blocks), [false; 4]);
            assert_eq!(other.inspect().statistics().reserved.current, 0);
            drop((block, others));
            one.inspect().check_conserved().unwrap();
            other.inspect().check_conserved().unwrap();
        }
    }
}

/// Requests of two pools wait, and each would need evictable memory of the other pool. The older one gets it.
#[test]
fn evictable_memory_of_another_pool_serves_a_request_that_waits() {
    let cases = [(20, 20), (20, 30), (30, 20), (30, 30)];
    for (is_virtual, (x, y)) in [true, false]
        .into_iter()
        .flat_map(|is| cases.map(|case| (is, case)))
    {
        let device = SimDevice::builder()
            .memory(32 * MIB)
            .virtual_memory(is_virtual)
            .clock(Clock::Manual)
            .build();
        let pools = [(); 2].map(|()| {
            let builder = builder(&device, 32 * MIB);
            builder.made()
        });
        let lines = pools.each_ref().map(|pool| stream(&device, pool));
        let mut evictable = Vec::new();
        for (pool, (_, stream)) in pools.iter().zip(&lines) {
            drop(pool.try_allocate(stream, 16 * MIB).unwrap());
            evictable.push(pool.try_allocate(stream, 4 * MIB).unwrap().into_evictable());
        }
        let requests = pools.iter().zip(&lines).zip([x, y]);
        let mut tasks: Vec<_> = requests
            .map(|((pool, (_, stream)), size)| Woken::new(pool.allocate_owned(stream, size * MIB)))
            .collect();
        for _ in 0..100 {
            device.advance(us(10_000));
            settle(&mut tasks);
            tasks.iter_mut().for_each(|task| drop(task.output.take()));
        }
        let waiting = tasks.iter().filter(|task| task.is_waiting()).count();
        assert_eq!(waiting, 0, "{is_virtual} {x} {y}");
    }
}

/// A request that does not wait evicts nothing of other pools.
#[test]
fn memory_of_other_pools_is_evicted_for_requests_that_wait_only() {
    let device = manual_builder().memory(16 * MIB).build();
    let [one, other] = [(); 2].map(|()| {
        let builder = builder(&device, 16 * MIB);
        builder.made()
    });
    let ((_, a), (_, b)) = (stream(&device, &one), stream(&device, &other));
    let blocks: [_; 4] = cached(&other, &b);
    let refused = one.try_allocate(&a, 12 * MIB);
    assert!(refused.is_err());
    assert_eq!(present(&blocks), [true; 4]);
    let others = device.faults().occupy(2 * MIB);
    let too_much = not_ready(one.allocate(&a, 16 * MIB));
    (0..3).for_each(|_| device.advance(us(10_000)));
    drop(too_much);
    assert_eq!(present(&blocks), [true; 4], "not enough, even so");
    drop(now(one.allocate(&a, 12 * MIB)).unwrap());
    assert_eq!(
        present(&blocks),
        [false, false, false, true],
        "no more than it lacked"
    );
    drop((others, blocks));
    one.inspect().check_conserved().unwrap();
    other.inspect().check_conserved().unwrap();
}

/// Evicted memory that work still uses is waited for on the device, and not joined with new memory. As much is evicted as
/// suffices alone, whatever the device reports and other pools could release.
#[test]
fn evictable_memory_of_a_busy_stream_serves_on_a_full_device() {
    for order in [WhenShort::GrowFirst, WhenShort::WaitBriefly] {
        for is_virtual in [true, false] {
            for (withheld, spare, capacity) in [(0, 0, 32), (3, 0, 32), (0, 4, 32), (3, 0, 10)] {
                let case = format!("{order:?} {is_virtual} {withheld} {spare} {capacity}");
                let device = SimDevice::builder()
                    .memory((32 + withheld) * MIB)
                    .withheld_memory(withheld * MIB)
                    .virtual_memory(is_virtual)
                    .clock(Clock::Manual)
                    .build();
                let one =
                    builder(&device, capacity * MIB).tuning(|tuning| tuning.when_short = order);
                let one = one.made();
                let other = pool(&device, 32 * MIB);
                let [(work, a), (_, second)] = streams(&device, &one);
                let (_, b) = stream(&device, &other);
                // One segment of plain memory.
                drop(one.try_allocate(&a, 8 * MIB).unwrap());
                let blocks: [_; 4] = cached(&one, &a);
                work.submit(Operation::new(us(100)));
                if spare > 0 {
                    drop(other.try_allocate(&b, spare * MIB).unwrap());
                }
                let others = device.faults().occupy(u64::MAX);
                let block = one.try_allocate(&second, 8 * MIB);
                assert!(block.is_ok(), "{case}: {block:?}");
                drop((block, blocks, others));
            }
        }
    }
}

#[test]
fn memory_is_evicted_although_the_device_does_not_tell_what_it_has() {
    for order in [WhenShort::GrowFirst, WhenShort::WaitBriefly] {
        for is_virtual in [true, false] {
            for failures in [1, 1000] {
                let device = SimDevice::builder()
                    .memory(64 * MIB)
                    .virtual_memory(is_virtual)
                    .clock(Clock::Manual)
                    .build();
                let pool = tuned(&device, 16 * MIB, |tuning| tuning.when_short = order);
                let (_, stream) = stream(&device, &pool);
                let _blocks: [_; 4] = cached(&pool, &stream);
                for nth in 1..=failures {
                    let fault = Fault::Fails(DeviceErrorKind::Unsupported);
                    device.faults().script(Call::MemoryInfo, nth, fault);
                }
                let block = now(pool.allocate(&stream, 12 * MIB)).unwrap();
                drop(block);
                let _: [_; 4] = cached(&pool, &stream);
                drop(pool.try_allocate(&stream, 12 * MIB).unwrap());
            }
        }
    }
}

/// Evicted memory that is pending counts: a request that waits for it evicts no more than it lacks.
#[test]
fn request_evicts_no_more_while_evicted_memory_is_pending() {
    for spare in [2, 4, 8] {
        let device = manual_builder().memory(64 * MIB).build();
        let pool = tuned(&device, 64 * MIB, |tuning| {
            tuning.when_short = WhenShort::GrowThenWait
        });
        let [(work, a), (_, b)] = streams(&device, &pool);
        let blocks: [_; 12] = std::array::from_fn(|_| {
            let block = pool.try_allocate(&a, 2 * MIB).unwrap();
            use_block(&work, &block, us(50));
            block.into_evictable()
        });
        let others = device.faults().occupy((40 - spare) * MIB);
        drop(now(pool.allocate(&b, 12 * MIB)).unwrap());
        let kept = blocks.iter().filter(|block| block.is_present());
        assert!(kept.count() >= 5, "{spare}: {:?}", present(&blocks));
        drop(others);
    }
}

/// The driver counts passed-through memory as free that running work still uses.
#[test]
fn passed_through_memory_on_its_way_evicts_no_more_than_it_lacks() {
    let device = manual_builder().memory(16 * MIB).build();
    let default = DriverPool::default_of(&device).unwrap();
    let builder = Pool::builder(device.clone()).capacity(16 * MIB);
    let builder = builder.segment_source(default.segments(DriverPoolUse::PassedThrough));
    let pool = builder.made();
    let [(work, a), (_, b)] = streams(&device, &pool);
    let blocks: [_; 4] = cached(&pool, &a);
    let freed = pool.try_allocate(&a, 8 * MIB).unwrap();
    work.submit(Operation::new(us(100)));
    drop(freed);
    assert!(pool.try_allocate(&b, 12 * MIB).is_err());
    let kept = blocks.iter().filter(|block| block.is_present());
    assert_eq!(kept.count(), 2);
}

/// A part of a chunk that the device has left serves no request.
#[test]
fn nothing_is_evicted_for_a_request_that_lacks_part_of_a_chunk() {
    for (occupied, bytes) in [(7, 9), (5, 11)] {
        let device = manual_builder().memory(16 * MIB).build();
        let pool = pool(&device, 16 * MIB);
        let (_, stream) = stream(&device, &pool);
        let blocks: [_; 4] = cached(&pool, &stream);
        let others = device.faults().occupy(occupied * MIB);
        assert!(pool.try_allocate(&stream, bytes * MIB).is_err());
        assert_eq!(present(&blocks), [true; 4]);
        drop(others);
    }
}

/// All memory of the pool that is in use can be evicted, and another program holds what the request lacks.
#[test]
fn request_beside_evictable_memory_does_not_fail_as_deadlocked() {
    let device = manual_builder().memory(16 * MIB).build();
    let pool = builder(&device, 16 * MIB)
        .fail_deadlocks_after(us(20_000))
        .made();
    let (_, stream) = stream(&device, &pool);
    let blocks: [_; 4] = cached(&pool, &stream);
    let others = device.faults().occupy(4 * MIB);
    let mut waiting = not_ready(pool.allocate(&stream, 14 * MIB));
    for _ in 0..10 {
        device.advance(us(10_000));
        assert!(poll(&mut waiting).is_pending());
    }
    assert_eq!(present(&blocks), [true; 4], "nothing was evicted in vain");
    drop(others);
    device.advance(us(10_000));
    drop(now(waiting).unwrap());
}

/// A pool of the driver keeps memory that is freed to it, so asking for more of it helps no other pool.
#[test]
fn pool_over_a_pool_of_the_driver_is_not_drained_in_vain() {
    let device = manual_builder().memory(64 * MIB).build();
    let driver_pool = DriverPool::builder(&device).build().unwrap();
    driver_pool
        .set_release_threshold(ReleaseThreshold::Keep)
        .unwrap();
    let one = Pool::builder(device.clone())
        .segment_source(driver_pool.segments(DriverPoolUse::SubAllocated))
        .capacity(64 * MIB)
        .build()
        .unwrap();
    let (_, a) = stream(&device, &one);
    drop([0; 16].map(|_| one.try_allocate(&a, 2 * MIB).unwrap()));
    let others = device.faults().occupy(u64::MAX);
    let two = pool(&device, 64 * MIB);
    let (_, b) = stream(&device, &two);
    assert!(two.try_allocate(&b, 4 * MIB).is_err());
    assert!(reserved(&one) >= 20 * MIB, "{} of 32 MiB", reserved(&one));
    drop(others);
}
