//! Without pooling: every allocation is the device's own.

use super::*;
use futures::future::join_all;
use futures::task::LocalSpawnExt;
use weirpool::compat::pool_of;
use weirpool::device::sim::{Call, Fault};
use weirpool::device::{Device, DeviceErrorKind, Pooling};
use weirpool::testing::Invariants;
use weirpool::{AllocError, Current, current};

fn unpooled(device: &SimDevice) -> Pool {
    let builder = Pool::builder(device.clone()).capacity(8 * MIB);
    builder.unpooled().build().unwrap()
}

#[test]
fn every_allocation_is_the_devices_own() {
    let device = manual();
    let pool = unpooled(&device);
    assert!(
        pool.describe().contains("not pooled"),
        "{}",
        pool.describe()
    );
    let (work, home) = stream(&device, &pool);
    for round in 1..=5 {
        let block = pool.try_allocate(&home, 4096).unwrap();
        assert_eq!(block.size(), 2 * MIB, "what the device gives at the least");
        assert_eq!(device.counters().calls(Call::Allocate), round);
        use_block(&work, &block, us(10));
        drop(block);
        assert_eq!(device.counters().physical_in_use, 2 * MIB, "its work runs");
        device.advance(us(10));
        // The device was told to say when, and nobody had to ask.
        assert_eq!(device.counters().physical_in_use, 0);
        assert_eq!(device.counters().calls(Call::Free), round);
    }
    assert_eq!(pool.statistics().reserved.current, 0);
    pool.check_conserved().unwrap();
}

#[test]
fn what_is_used_on_several_streams_goes_back_after_all_of_them() {
    let device = manual();
    let pool = unpooled(&device);
    let ((one, home), (other, further)) = (stream(&device, &pool), stream(&device, &pool));
    let block = pool.try_allocate(&home, MIB).unwrap();
    use_block(&one, &block, us(10));
    further.wait(&home.event().unwrap()).unwrap();
    block.used_on(&further).unwrap();
    use_block(&other, &block, us(20));
    drop(block);
    device.advance(us(29));
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    device.advance(us(1));
    assert_eq!(device.counters().physical_in_use, 0);
    device.assert_ordered();
}

#[test]
fn who_waits_for_unpooled_memory_is_served_when_it_came_back() {
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
        assert_eq!(device.counters().calls(Call::Allocate), 24);
        eventually(|| device.counters().physical_in_use == 0);
        assert_eq!(pool.statistics().waits.waiting, 0);
        pool.check_conserved().unwrap();
    }
}

#[test]
fn unpooled_blocks_outlive_their_pool() {
    let device = manual();
    let pool = unpooled(&device);
    let (work, home) = stream(&device, &pool);
    let blocks = [MIB, 4 * MIB].map(|bytes| pool.try_allocate(&home, bytes).unwrap());
    run(&work, us(10));
    let [one, other] = blocks;
    drop(one);
    drop((pool, home));
    drop(other);
    assert_eq!(device.counters().physical_in_use, 6 * MIB);
    device.advance(us(10));
    assert_eq!(device.counters().physical_in_use, 0);
    drop(work);
    let left = |make, destroy| device.counters().calls(make) - device.counters().calls(destroy);
    eventually(|| left(Call::CreateEvent, Call::DestroyEvent) == 0);
}

#[test]
fn memory_that_the_device_did_not_take_back_is_offered_again() {
    let device = manual();
    let pool = unpooled(&device);
    let (_work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, MIB).unwrap();
    device.fail_next(Call::Free, DeviceErrorKind::Other);
    drop(block);
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    pool.check_conserved().unwrap();
    // And it is not granted again.
    let block = pool.try_allocate(&home, MIB).unwrap();
    assert_eq!(device.counters().calls(Call::Allocate), 2);
    drop(block);
    assert_eq!(device.counters().physical_in_use, 0);
}

#[test]
fn a_device_that_breaks_ends_the_returning() {
    let device = manual();
    let pool = unpooled(&device);
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, MIB).unwrap();
    run(&work, us(10));
    drop(block);
    device.break_device("gone");
    assert!(matches!(
        pool.try_allocate(&home, MIB),
        Err(AllocError::Device(error)) if error.is_sticky()
    ));
    assert_eq!(
        device.counters().physical_in_use,
        2 * MIB,
        "leaked: nobody can tell"
    );
}

#[test]
fn an_event_that_says_nothing_keeps_memory_until_a_later_one_does() {
    let device = manual();
    let pool = unpooled(&device);
    let (_work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, MIB).unwrap();
    device.script(Call::Record, 1, Fault::Reports(DeviceErrorKind::Other));
    drop(block);
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    drop(pool.try_allocate(&home, MIB).unwrap());
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
    assert_eq!(
        Current::set_pooling(&device, Pooling::Disabled),
        Pooling::Enabled
    );
    assert!(
        device.describe().ends_with("pooling disabled"),
        "{}",
        device.describe()
    );
    let direct = current(&device).unwrap().try_allocate(&work, MIB).unwrap();
    let owners = [&kept, &direct].map(|block| pool_of(block.address()).unwrap().0.is_pooled());
    assert_eq!(owners, [true, false]);
    assert_eq!(
        Current::set_pooling(&device, Pooling::Enabled),
        Pooling::Disabled
    );
    drop((kept, direct));
    let again = current(&device).unwrap();
    assert!(again.pool().is_pooled());
    assert!(
        again.pool().statistics().reserved.current > 0,
        "what was freed is kept"
    );
}
