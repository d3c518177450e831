//! What a pool takes from a pool of the driver, and when.

use crate::common::{MIB, stream};
use weirpool::device::Access;
use weirpool::device::DeviceErrorKind::OutOfMemory;
use weirpool::device::sim::{Call, Clock, SimDevice};
use weirpool::{AllocError, BuildError, Pool};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// The driver takes memory in whole steps, so that it can give no more than the steps in its maximum: a request for more
/// would wait for ever.
#[test]
fn capacity_over_a_driver_pool_is_in_whole_steps_of_its_maximum() {
    let device = SimDevice::new();
    let build = |most, how| {
        let driver_pool = DriverPool::builder(&device).max_size(most).build().unwrap();
        Pool::builder(device.clone())
            .segment_source(driver_pool.segments(how))
            .build()
    };
    for how in [DriverPoolUse::PassedThrough, DriverPoolUse::SubAllocated] {
        let pool = build(3 * MIB, how).unwrap();
        assert_eq!(pool.capacity(), 2 * MIB);
        let stream = pool.create_stream().unwrap();
        drop(pool.try_allocate(&stream, 2 * MIB).unwrap());
        let _ = pool.resize(8 * MIB).unwrap();
        let refused = pool.try_allocate(&stream, 3 * MIB).unwrap_err();
        assert!(matches!(refused, AllocError::TooLarge { .. }), "{refused}");
        let refused = build(MIB, how).unwrap_err();
        let is_too_small = matches!(refused, BuildError::CapacityTooSmall { .. });
        assert!(is_too_small, "{refused}");
    }
}

/// rmm#1245, pytorch#188110: the driver refuses while its pool keeps free memory, below its threshold.
#[test]
fn driver_pool_that_refuses_is_trimmed_and_asked_again() {
    for how in [DriverPoolUse::PassedThrough, DriverPoolUse::SubAllocated] {
        let device = SimDevice::builder().memory(64 * MIB).clock(Clock::Manual);
        let device = device.build();
        let driver_pool = DriverPool::builder(&device).build().unwrap();
        let all = weirpool::ReleaseThreshold::Keep;
        driver_pool.set_release_threshold(all).unwrap();
        let pool = Pool::builder(device.clone()).segment_source(driver_pool.segments(how));
        let pool = pool.build().unwrap();
        let (_, stream) = stream(&device, &pool);
        let calls =
            || [Call::AllocateFrom, Call::TrimPool].map(|call| device.counters().calls(call));
        let fail = || device.faults().fail_next(Call::AllocateFrom, OutOfMemory);
        let ask = |bytes| {
            let before = calls();
            let block = pool.try_allocate(&stream, bytes);
            let after = calls();
            (block, [0, 1].map(|call| after[call] - before[call]))
        };
        // It keeps nothing: it is not trimmed.
        fail();
        let (refused, [_, trims]) = ask(16 * MIB);
        assert_eq!(trims, 0, "{how:?}: {refused:?}");
        drop(refused);
        let other = Pool::builder(device.clone());
        let other = other.segment_source(driver_pool.segments(DriverPoolUse::PassedThrough));
        let other = other.build().unwrap();
        let (_, beside) = crate::common::stream(&device, &other);
        drop(other.try_allocate(&beside, 16 * MIB).unwrap());
        let free = || {
            let (reserved, used) = (driver_pool.reserved(), driver_pool.used());
            reserved.unwrap().current - used.unwrap().current
        };
        assert!(free() >= 16 * MIB);
        fail();
        let (granted, [asked, trims]) = ask(20 * MIB);
        assert!(granted.is_ok());
        assert_eq!((asked, trims), (2, 1), "{how:?}");
    }
}

#[test]
fn sizes_of_a_driver_pool_are_printed_in_binary_units() {
    let device = SimDevice::new();
    let text = format!("{:?}", DriverPool::builder(&device).max_size(MIB));
    assert!(text.contains("max_size: Some(1.0 MiB)"), "{text}");
}

/// The driver has one access of a device to all memory of a pool, which each pool over it counts on, and code beside them.
#[test]
fn access_to_a_driver_pool_stays_until_its_last_user_takes_it_back() {
    for how in [DriverPoolUse::PassedThrough, DriverPoolUse::SubAllocated] {
        let [device, other] = SimDevice::builder().build_host();
        let access = |pool: &DriverPool| pool.access_from(&other).unwrap();
        let over = |driver_pool: &DriverPool| {
            let pool = Pool::builder(device.clone()).capacity(64 * MIB);
            let pool = pool.segment_source(driver_pool.segments(how)).build();
            let pool = pool.unwrap();
            assert!(pool.peers().enable(&other).unwrap());
            pool
        };
        // Two handles of one pool of the driver.
        let default = [(); 2].map(|()| DriverPool::default_of(&device).unwrap());
        let pools = default.each_ref().map(over);
        assert!(pools[0].peers().disable(&other).unwrap());
        assert_eq!(access(&default[1]), Access::ReadWrite, "{how:?}");
        assert!(pools[1].peers().disable(&other).unwrap());
        assert_eq!(access(&default[1]), Access::None, "{how:?}");
        let own = DriverPool::builder(&device).build().unwrap();
        drop((over(&own), over(&own)));
        assert_eq!(access(&own), Access::None, "{how:?}");
        own.allow_access_from(&other).unwrap();
        drop(over(&own));
        assert_eq!(access(&own), Access::ReadWrite, "{how:?}");
    }
}
