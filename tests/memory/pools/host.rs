//! The host as a stream, for memory that it shares with the device.

use super::*;
use crate::common::{Made, TestPool, not_ready_counted, use_and_free};
use weirpool::Upstream;
use weirpool::device::RawStream;
use weirpool::device::sim::{Checker, Clock, ViolationKind};

/// Creates a device that collects violations, and a pool of shared memory.
fn shared_and_collected() -> (SimDevice, TestPool) {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Collect)
        .build();
    let pool = small(&device).upstream(Upstream::Managed).made();
    (device, pool)
}

#[test]
fn checker_enforces_the_order_of_the_host() {
    let (device, pool) = shared_and_collected();
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, 4096).unwrap();
    let address = block.address();
    use_block(&work, &block, us(10));
    device.host().read(address, &mut [0; 8]).unwrap();
    let [race] = &device.take_violations()[..] else {
        panic!("a read of the host beside a write of the device");
    };
    assert_eq!(race.kind, ViolationKind::Race);
    let later = race.later.as_ref().unwrap();
    assert_eq!(later.stream.raw(), RawStream::HOST);
    assert!(race.to_string().contains("reads on the host"), "{race}");
    use_block(&work, &block, us(10));
    device.advance(us(20));
    // Passing time is no order. Seeing the event complete is.
    device.host().write(address, &[1; 8]).unwrap();
    assert_eq!(device.take_violations().len(), 1);
    use_block(&work, &block, us(10));
    device.advance(us(10));
    assert!(home.event().unwrap().is_complete().unwrap());
    device.host().write(address, &[2; 8]).unwrap();
    // Later work of the device comes after the host's earlier uses.
    use_block(&work, &block, us(10));
    assert!(device.take_violations().is_empty());
}

#[test]
fn checker_detects_a_host_use_after_the_free() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let block = pool.try_allocate(&host, 4096).unwrap();
    let address = block.address();
    device.host().fill(address, 4096, 7).unwrap();
    drop(block);
    device.host().read(address, &mut [0; 8]).unwrap();
    let [found] = &device.take_violations()[..] else {
        panic!("a use of what was freed");
    };
    assert_eq!(found.kind, ViolationKind::UseAfterFree);
}

#[test]
fn checker_detects_a_host_free_during_device_use() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let (work, _home) = stream(&device, &pool);
    use_and_free(&pool, (&work, &host), 4096, us(10));
    let [found] = &device.take_violations()[..] else {
        panic!("no use on the device was declared");
    };
    assert_eq!(found.kind, ViolationKind::FreedWhileUsed);
    assert!(
        found.to_string().contains("in the order of the host"),
        "{found}"
    );
}

#[test]
fn host_streams_are_created_and_retired() {
    let (device, pool) = shared_and_collected();
    for _ in 0..50 {
        let host = pool.host_stream().unwrap();
        let block = pool.try_allocate(&host, 4096).unwrap();
        drop(host);
        device.host().fill(block.address(), 4096, 1).unwrap();
    }
    // Each stream was retired by the next one, with its cached memory.
    let statistics = pool.inspect().statistics();
    let seen = (statistics.cached_in_lanes, statistics.used.current);
    assert_eq!(seen, (0, 0));
    let all = pool.host_stream().unwrap();
    drop(pool.try_allocate(&all, 8 * MIB).unwrap());
    assert!(device.take_violations().is_empty());
}

#[test]
fn host_waits_in_the_queue_like_any_stream() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let (work, home) = stream(&device, &pool);
    let all = pool.try_allocate(&home, 8 * MIB).unwrap();
    run(&work, us(10));
    let (mut waiting, _, waker) = not_ready_counted(pool.allocate(&host, MIB));
    drop(all);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    device.advance(us(10));
    assert!(poll_with(&mut waiting, &waker).is_ready());
}
