//! The kinds of memory that pools take from their device.

use super::*;
use crate::common::Made;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use weirpool::Upstream;
use weirpool::device::sim::{Call, Clock, Operation};
use weirpool::device::{Device, DeviceErrorKind, MemoryKind, MemoryKinds};

#[test]
fn each_upstream_takes_its_kind_of_memory() {
    let device = SimDevice::builder()
        .memory(64 * MIB)
        .host_memory(32 * MIB)
        .clock(Clock::Manual)
        .build();
    for (upstream, call) in [
        (Upstream::Virtual, Call::Create),
        (Upstream::Device, Call::Allocate),
        (Upstream::Pinned, Call::Allocate),
        (Upstream::Managed, Call::Allocate),
        (Upstream::Host, Call::Allocate),
    ] {
        let kind = upstream.kind();
        let pool = Pool::builder(device.clone()).upstream(upstream).made();
        assert_eq!(pool.inspect().describe().memory_kind, kind);
        let of_host = matches!(kind, MemoryKind::Pinned | MemoryKind::Host);
        assert_eq!(pool.capacity(), if of_host { 32 * MIB } else { 64 * MIB });
        let calls = device.counters().calls(call);
        let free = device.memory_info(kind).unwrap().free;
        let home = if kind == MemoryKind::Host {
            pool.host_stream().unwrap()
        } else {
            stream(&device, &pool).1
        };
        let block = pool.try_allocate(&home, 4 * MIB).unwrap();
        assert!(device.counters().calls(call) > calls, "{upstream}");
        let taken = free - device.memory_info(kind).unwrap().free;
        assert_eq!(taken, pool.inspect().statistics().reserved.current);
        let host_sees = device.host().write(block.address(), b"weir").is_ok();
        assert_eq!(host_sees, kind != MemoryKind::Device);
        drop((block, home));
        drop(pool);
        eventually(|| device.memory_info(kind).unwrap().free == free);
    }
}

#[test]
fn missing_kind_of_memory_is_refused() {
    for kind in [MemoryKind::Pinned, MemoryKind::Managed, MemoryKind::Host] {
        let device = SimDevice::builder().without(kind).build();
        let refused = device.allocate(kind, 2 * MIB).unwrap_err();
        assert_eq!(refused.kind(), DeviceErrorKind::Unsupported);
        assert!(refused.reason().contains(kind.name()), "{refused}");
        assert!(device.memory_info(kind).is_err());
        let others = MemoryKinds::ALL.without(kind).to_string();
        let line = device.describe();
        assert!(
            line.contains(&format!("waits, {others}, memory pools")),
            "{line}"
        );
    }
}

#[test]
fn memory_of_one_kind_is_not_freed_as_another() {
    let device = SimDevice::new();
    let address = device.allocate(MemoryKind::Managed, 2 * MIB).unwrap();
    let refused = device
        .free(MemoryKind::Pinned, address, 2 * MIB)
        .unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
    device.free(MemoryKind::Managed, address, 2 * MIB).unwrap();
}

#[test]
fn device_work_on_host_memory_breaks_the_device() {
    let device = manual();
    let address = device.allocate(MemoryKind::Host, 2 * MIB).unwrap();
    let work = device.create_stream();
    work.submit(Operation::new(us(1)).run(move |memory| memory.write(address, b"weir")));
    device.advance(us(1));
    let error = device.create_event().unwrap_err();
    assert!(error.is_sticky());
    assert!(error.reason().contains("host memory"), "{error}");
}

/// A waiter for plain memory looks for segments to release at every poll. It must not be woken by its own search.
#[test]
fn waiter_for_plain_memory_does_not_wake_itself() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .virtual_memory(false)
        .build();
    let pool = small(&device).made();
    let (_work, home) = stream(&device, &pool);
    let all = pool.try_allocate(&home, 8 * MIB).unwrap();
    let (woken, waker) = Count::new();
    let mut waiting = pin!(pool.allocate(&home, MIB));
    for _ in 0..3 {
        let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    assert_eq!(woken.get(), 0);
    drop(all);
    assert!(woken.get() > 0);
    let polled = waiting.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
}
