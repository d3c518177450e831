//! The host as a stream, of memory that it shares with the device.

use super::*;
use weirpool::Upstream;
use weirpool::device::RawStream;
use weirpool::device::sim::{Checker, Clock, ViolationKind};
use weirpool::testing::Invariants;

/// Collects what the ordering checker finds in memory that is shared.
fn shared_and_collected() -> (SimDevice, Pool) {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Collect)
        .build();
    let pool = small(&device).upstream(Upstream::Managed).build().unwrap();
    (device, pool)
}

#[test]
fn the_checker_holds_the_host_to_its_order() {
    let (device, pool) = shared_and_collected();
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, 4096).unwrap();
    let address = block.address();
    use_block(&work, &block, us(10));
    device.host_read(address, &mut [0; 8]).unwrap();
    let [race] = &device.violations()[..] else {
        panic!("a read of the host beside a write of the device");
    };
    assert_eq!(race.kind, ViolationKind::Race);
    let later = race.later.as_ref().unwrap();
    assert_eq!(later.stream.raw(), RawStream::HOST);
    assert!(race.to_string().contains("reads on the host"), "{race}");
    use_block(&work, &block, us(10));
    device.advance(us(20));
    // That time went by is no order; that the event is complete is.
    device.host_write(address, &[1; 8]).unwrap();
    assert_eq!(device.violations().len(), 1);
    use_block(&work, &block, us(10));
    device.advance(us(10));
    assert!(home.event().unwrap().is_complete().unwrap());
    device.host_write(address, &[2; 8]).unwrap();
    // What the device is given now comes after what the host did.
    use_block(&work, &block, us(10));
    assert!(device.violations().is_empty());
}

#[test]
fn the_checker_sees_a_use_by_the_host_after_the_free() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let block = pool.try_allocate(&host, 4096).unwrap();
    let address = block.address();
    device.host_fill(address, 4096, 7).unwrap();
    drop(block);
    device.host_read(address, &mut [0; 8]).unwrap();
    let [found] = &device.violations()[..] else {
        panic!("a use of what was freed");
    };
    assert_eq!(found.kind, ViolationKind::UseAfterFree);
}

#[test]
fn the_checker_sees_a_free_by_the_host_of_what_the_device_uses() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let (work, _home) = stream(&device, &pool);
    let block = pool.try_allocate(&host, 4096).unwrap();
    use_block(&work, &block, us(10));
    drop(block);
    let [found] = &device.violations()[..] else {
        panic!("nobody said that the device uses it");
    };
    assert_eq!(found.kind, ViolationKind::FreedWhileUsed);
    assert!(
        found.to_string().contains("in the order of the host"),
        "{found}"
    );
}

#[test]
fn the_hosts_streams_come_and_go() {
    let (device, pool) = shared_and_collected();
    for _ in 0..50 {
        let host = pool.host_stream().unwrap();
        let block = pool.try_allocate(&host, 4096).unwrap();
        drop(host);
        device.host_fill(block.address(), 4096, 1).unwrap();
    }
    // Each was seen off by the next, with what it kept.
    let statistics = pool.statistics();
    assert_eq!(
        (statistics.cached_in_lanes, statistics.used.current),
        (0, 0)
    );
    let all = pool.host_stream().unwrap();
    drop(pool.try_allocate(&all, 8 * MIB).unwrap());
    assert!(device.violations().is_empty());
    pool.check_conserved().unwrap();
}

#[test]
fn the_host_waits_in_the_queue_as_any_stream() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let (work, home) = stream(&device, &pool);
    let all = pool.try_allocate(&home, 8 * MIB).unwrap();
    run(&work, us(10));
    let (_, waker) = Count::new();
    let mut waiting = pool.allocate(&host, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    drop(all);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    device.advance(us(10));
    assert!(poll_with(&mut waiting, &waker).is_ready());
}
