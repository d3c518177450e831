//! The simulated devices of one host, without a pool.

use super::*;
use weirpool::device::MemoryKind;

#[test]
fn devices_of_a_host_are_peers_with_numbers() {
    let [first, second, third] = settings().build_host();
    assert_eq!([&first, &second, &third].map(Device::ordinal), [0, 1, 2]);
    let peers: Vec<_> = second.capabilities().peers.iter().collect();
    assert_eq!(peers, [0, 2]);
    assert!(second.capabilities().to_string().ends_with("peers 0, 2"));
    assert_ne!(Device::id(&first), Device::id(&second));
    assert!(manual().capabilities().peers.is_empty());
    let [alone, _] = settings().peer_access(false).build_host();
    assert!(alone.capabilities().peers.is_empty());
    assert!(alone.is_beside(Device::id(&alone)));
    assert!(!alone.is_beside(Device::id(&first)));
}

#[test]
fn devices_have_one_clock_and_memory_of_their_own() {
    let [first, second] = two();
    first.advance(us(5));
    assert_eq!(second.now(), us(5));
    let address = first.allocate(MemoryKind::Device, 64 * MIB).unwrap();
    let free = |device: &SimDevice, kind| device.memory_info(kind).unwrap().free;
    assert_eq!(free(&first, MemoryKind::Device), 192 * MIB);
    assert_eq!(free(&second, MemoryKind::Device), 256 * MIB);
    let other = second.allocate(MemoryKind::Device, 64 * MIB).unwrap();
    assert_ne!(address, other);
    let pinned = second.allocate(MemoryKind::Pinned, 2 * MIB).unwrap();
    let left = free(&first, MemoryKind::Pinned);
    assert_eq!(left, free(&second, MemoryKind::Pinned));
    second.free(MemoryKind::Pinned, pinned, 2 * MIB).unwrap();
    assert_eq!(free(&first, MemoryKind::Pinned), left + 2 * MIB);
}

/// One place for operations on each device: two run at once on two devices, and one after the other on one.
#[test]
fn devices_have_places_of_their_own() {
    let [first, second] = settings().concurrent_operations(1).build_host();
    let works = [&first, &second, &first].map(SimDevice::create_stream);
    works.iter().for_each(|work| run(work, us(10)));
    first.advance(us(10));
    assert_eq!(works.each_ref().map(SimStream::backlog), [0, 0, 1]);
}

#[test]
fn stream_waits_for_an_event_of_another_device_and_the_checker_knows() {
    let [first, second] = two();
    let works = [first.create_stream(), second.create_stream()];
    let address = first.allocate(MemoryKind::Pinned, 2 * MIB).unwrap(); // both see it
    let operation = || Operation::new(us(10)).writes(address, 64);
    works[0].submit(operation());
    let event = first.create_event().unwrap();
    first.record(event, works[0].raw()).unwrap();
    second.wait(works[1].raw(), event).unwrap();
    works[1].submit(operation());
    first.advance_to_end();
    assert_eq!(first.now(), us(20));
    second.assert_ordered();
    // Without the wait it is a race.
    first.create_stream().submit(operation());
    second.create_stream().submit(operation());
    assert_eq!(second.take_violations()[0].kind, ViolationKind::Race);
}

#[test]
fn calls_refuse_streams_events_and_pools_of_another_device() {
    let [first, second] = two();
    let (work, event) = (first.create_stream(), second.create_event().unwrap());
    let refused = [
        first.record(event, work.raw()),
        second.record(event, work.raw()),
        second.wait(work.raw(), event),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), DeviceErrorKind::InvalidArgument, "{error}");
    }
    let pool = DriverPool::builder(&first).build().unwrap();
    let built = builder(&second, 8 * MIB)
        .segment_source(pool.segments(DriverPoolUse::SubAllocated))
        .build();
    assert_matches!(built, Err(BuildError::ForeignSegments { .. }));
}

#[test]
fn use_without_access_is_named_and_an_illegal_address() {
    let [first, second] = two();
    let pool = pool(&first, 8 * MIB);
    let home = pool.create_stream().unwrap();
    let block = pool.try_allocate(&home, MIB).unwrap();
    let work = second.create_stream_named("guest");
    let read = Operation::new(us(1)).named("peek");
    work.submit(read.reads(block.address(), 64));
    let found = second.take_violations();
    assert_eq!(found.len(), 1, "{found:?}");
    let text = found[0].to_string();
    assert_eq!(found[0].kind, ViolationKind::NoAccess);
    for part in [
        "peek",
        "guest",
        "device 1 uses memory of device 0",
        "peers().enable",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(seen_from(&second, &block), None);
    let error = second.create_event().unwrap_err();
    for part in ["device 0", "device 1", "peers().enable"] {
        assert!(error.reason().contains(part), "{error}");
    }
}
