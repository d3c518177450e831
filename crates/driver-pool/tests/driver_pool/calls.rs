//! The device calls that passing through takes. A pair is one call to allocate and one to free: no event, no wait, and no
//! question about attributes or free memory.

use crate::common::{MIB, manual, streams};
use std::collections::BTreeMap;
use weirpool::device::sim::{Call, SimDevice};
use weirpool::{Block, Pool, ReleaseThreshold, Stream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

const PAIRS: u64 = 100;

fn passed_through(device: &SimDevice) -> Pool {
    let driver_pool = DriverPool::builder(device).build().unwrap();
    let keep = ReleaseThreshold::Keep;
    driver_pool.set_release_threshold(keep).unwrap();
    let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
    let builder = Pool::builder(device.clone()).segment_source(segments);
    builder.build().unwrap()
}

/// Returns how often each call is made for this many pairs, after some that are not counted.
fn calls_of(device: &SimDevice, mut pair: impl FnMut()) -> BTreeMap<&'static str, u64> {
    (0..PAIRS).for_each(|_| pair());
    let before = device.counters();
    (0..PAIRS).for_each(|_| pair());
    let after = device.counters();
    let made = |call: &Call| after.calls(*call) - before.calls(*call);
    let calls: BTreeMap<_, _> = Call::ALL
        .iter()
        .map(|call| (call.name(), made(call)))
        .filter(|(_, made)| *made > 0)
        .collect();
    assert_eq!(
        calls.values().sum::<u64>(),
        after.device_calls - before.device_calls
    );
    calls
}

fn allocate(pool: &Pool, stream: &Stream, bytes: u64) -> Block {
    pool.try_allocate(stream, bytes).unwrap()
}

#[test]
fn passed_pair_is_two_device_calls() {
    let device = manual();
    let pool = passed_through(&device);
    let [(_, stream), (_, other)] = streams(&device, &pool);
    let two_calls = BTreeMap::from([("allocate_from", PAIRS), ("free_to", PAIRS)]);
    for bytes in [256, MIB, 24 * MIB] {
        let calls = calls_of(&device, || drop(allocate(&pool, &stream, bytes)));
        assert_eq!(calls, two_calls, "{bytes}");
    }
    // Beside live blocks, on either stream, and out of order.
    let _live = [256, MIB].map(|bytes| {
        [
            allocate(&pool, &stream, bytes),
            allocate(&pool, &other, bytes),
        ]
    });
    let mut earlier = Some(allocate(&pool, &other, 256));
    let calls = calls_of(&device, || earlier = Some(allocate(&pool, &stream, 256)));
    assert_eq!(calls, two_calls);
    let calls = calls_of(&device, || {
        let request = pool.allocate(&stream, 256);
        drop(device.block_on(request).unwrap());
    });
    assert_eq!(calls, two_calls, "awaited");
}
