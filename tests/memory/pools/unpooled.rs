//! Without pooling: every allocation is the device's own.

use super::*;
use crate::common::{Made, TestPool, assert_matches, set_up_with};
use futures::future::join_all;
use futures::task::LocalSpawnExt;
use weirpool::Unordered;
use weirpool::device::DeviceErrorKind::Other;
use weirpool::device::sim::{Call, Fault};
use weirpool::device::{Device, DeviceErrorKind, Pooling};
use weirpool::{AllocError, Upstream};
use weirpool_compat::{Current, current, pool_of};

fn unpooled(device: &SimDevice) -> TestPool {
    let builder = Pool::builder(device.clone()).capacity(8 * MIB);
    builder.upstream(Upstream::Unpooled).made()
}

/// Maintenance is due 10 ms after memory came back, and again while some is pending.
fn let_maintenance_pass(device: &SimDevice) {
    for _ in 0..3 {
        device.advance(us(10_000));
    }
}

#[test]
fn unpooled_block_is_a_segment_that_goes_back_to_the_device() {
    let device = manual();
    let pool = unpooled(&device);
    assert!(
        pool.inspect().describe().to_string().contains("not pooled"),
        "{}",
        pool.inspect().describe()
    );
    let (work, home) = stream(&device, &pool);
    for round in 1..=5 {
        let block = pool.try_allocate(&home, 4096).unwrap();
        assert_eq!(block.size(), 2 * MIB, "the device's granularity");
        assert_eq!(device.counters().calls(Call::Allocate), round);
        use_block(&work, &block, us(100_000));
        drop(block);
        let_maintenance_pass(&device);
        assert_eq!(device.counters().physical_in_use, 2 * MIB, "its work runs");
        device.advance(us(100_000));
        let_maintenance_pass(&device);
        assert_eq!(device.counters().physical_in_use, 0);
        assert_eq!(device.counters().calls(Call::Free), round);
    }
    assert_eq!(pool.inspect().statistics().reserved.current, 0);
}

#[test]
fn unpooled_memory_goes_back_after_all_streams_that_used_it() {
    let (device, pool, [(one, home), (other, further)]) = set_up_with(unpooled);
    let block = pool.try_allocate(&home, MIB).unwrap();
    use_block(&one, &block, us(10));
    further.wait(&home.event().unwrap()).unwrap();
    further.record_use(Unordered::UntilFreed(&block)).unwrap();
    use_block(&other, &block, us(100_000));
    drop(block);
    let_maintenance_pass(&device);
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    device.advance(us(100_000));
    let_maintenance_pass(&device);
    assert_eq!(device.counters().physical_in_use, 0);
    device.assert_ordered();
}

#[test]
fn waiters_of_an_unpooled_pool_are_served_by_freed_memory() {
    for blocking in [false, true] {
        let device = SimDevice::builder().blocking_memory_calls(blocking).build();
        let pool = unpooled(&device);
        device.run(|spawner| {
            let tasks = (0..6).map(|_| {
                let (pool, device) = (pool.clone(), device.clone());
                let (work, home) = stream(&device, &pool);
                let task = async move {
                    for _ in 0..4 {
                        let block = pool.allocate(&home, 5 * MIB).await.unwrap();
                        use_block(&work, &block, us(7));
                        drop(block);
                    }
                    home.synchronize().await.unwrap();
                };
                spawner.spawn_local_with_handle(task).unwrap()
            });
            join_all(tasks.collect::<Vec<_>>())
        });
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        // A thread may be releasing memory.
        eventually(|| pool.inspect().check_conserved().is_ok());
    }
}

#[test]
fn unpooled_blocks_outlive_their_pool() {
    let (device, pool, [(work, home)]) = set_up_with(unpooled);
    let blocks = [MIB, 4 * MIB].map(|bytes| pool.try_allocate(&home, bytes).unwrap());
    run(&work, us(10));
    let [one, other] = blocks;
    drop(one);
    pool.end_before_its_blocks();
    drop((home, other));
    assert_eq!(device.counters().physical_in_use, 6 * MIB);
    device.advance(us(10));
    assert_eq!(device.counters().physical_in_use, 0);
    drop(work);
    let left = |make, destroy| device.counters().calls(make) - device.counters().calls(destroy);
    eventually(|| left(Call::CreateEvent, Call::DestroyEvent) == 0);
}

#[test]
fn unpooled_memory_that_the_device_did_not_take_back_is_offered_again() {
    let (device, pool, [(_work, home)]) = set_up_with(unpooled);
    let block = pool.try_allocate(&home, MIB).unwrap();
    device.faults().fail_next(Call::Free, Other);
    drop(block);
    device.advance(us(10_000));
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    pool.inspect().check_conserved().unwrap();
    let_maintenance_pass(&device);
    assert_eq!(device.counters().physical_in_use, 0);
}

#[test]
fn broken_device_is_offered_no_unpooled_memory() {
    let (device, pool, [(work, home)]) = set_up_with(unpooled);
    let block = pool.try_allocate(&home, MIB).unwrap();
    run(&work, us(10));
    drop(block);
    device.faults().break_device("gone");
    pool.maintain().reap().unwrap_err();
    let refused = pool.try_allocate(&home, MIB).unwrap_err();
    assert_matches!(refused, AllocError::Device(error) if error.is_sticky());
    let_maintenance_pass(&device);
    assert_eq!(device.counters().physical_in_use, 2 * MIB, "leaked");
}

#[test]
fn unpooled_memory_behind_an_event_that_errs_goes_back_after_a_later_event() {
    let (device, pool, [(_work, home)]) = set_up_with(unpooled);
    let block = pool.try_allocate(&home, MIB).unwrap();
    device
        .faults()
        .script(Call::Record, 1, Fault::Reports(DeviceErrorKind::Other));
    drop(block);
    let_maintenance_pass(&device);
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    drop(pool.try_allocate(&home, MIB).unwrap());
    let_maintenance_pass(&device);
    assert_eq!(device.counters().physical_in_use, 0);
}

#[test]
fn switched_off_for_a_device_and_on_again() {
    let device = manual();
    let work = device.create_stream();
    assert_eq!(Current::pooling(&device), Pooling::Enabled);
    assert!(
        device.describe().ends_with("pooling enabled"),
        "{}",
        device.describe()
    );
    let kept = current(&device).unwrap().try_allocate(&work, MIB).unwrap();
    let found = Current::set_pooling(&device, Pooling::Disabled);
    assert_eq!(found, Pooling::Enabled);
    assert!(
        device.describe().ends_with("pooling disabled"),
        "{}",
        device.describe()
    );
    let direct = current(&device).unwrap().try_allocate(&work, MIB).unwrap();
    let owners = [&kept, &direct].map(|block| {
        pool_of(block.address())
            .unwrap()
            .0
            .inspect()
            .describe()
            .is_pooled
    });
    assert_eq!(owners, [true, false]);
    let found = Current::set_pooling(&device, Pooling::Enabled);
    assert_eq!(found, Pooling::Disabled);
    drop((kept, direct));
    let again = current(&device).unwrap();
    assert!(again.pool().inspect().describe().is_pooled);
    assert!(
        again.pool().inspect().statistics().reserved.current > 0,
        "what was freed is kept"
    );
}
