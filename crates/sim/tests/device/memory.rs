//! Memory: addresses, handles, bytes, and what the calls cost.

use super::*;
use std::time::Duration;
use weirpool_device::MemoryKind;
use weirpool_sim::{Backing, Call};

fn kind<T: std::fmt::Debug>(result: Result<T, weirpool_device::DeviceError>) -> DeviceErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn bytes_travel_with_their_handle() {
    let sim = manual();
    let range = sim.reserve(4 * GRANULE).unwrap();
    let handle = sim.create(GRANULE).unwrap();
    sim.map(range, handle, GRANULE).unwrap();
    sim.write(range + 100, b"weir").unwrap();
    sim.unmap(range, GRANULE).unwrap();
    sim.map(range + GRANULE, handle, GRANULE).unwrap();
    let mut seen = [0; 4];
    sim.read(range + GRANULE + 100, &mut seen).unwrap();
    assert_eq!(&seen, b"weir");
    assert!(sim.is_mapped(range + GRANULE, GRANULE));
    assert!(!sim.is_mapped(range, GRANULE + 1));
}

#[test]
fn accesses_cross_handles() {
    let sim = manual();
    let range = sim.reserve(2 * GRANULE).unwrap();
    for at in [range, range + GRANULE] {
        sim.map(at, sim.create(GRANULE).unwrap(), GRANULE).unwrap();
    }
    let stream = sim.create_stream();
    let edge = range + GRANULE - 2;
    stream.submit(operation(1).run(move |memory| {
        memory.write(edge, &[1, 2, 3, 4]);
        memory.copy(edge, range, 4);
        memory.fill(edge + 3, 1, 9);
    }));
    sim.advance_to_end();
    let mut seen = [0; 4];
    sim.read(edge, &mut seen).unwrap();
    assert_eq!(seen, [1, 2, 3, 9]);
    sim.read(range, &mut seen).unwrap();
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[test]
fn every_argument_is_checked() {
    use DeviceErrorKind::{InvalidArgument, OutOfMemory};
    let sim = SimDevice::builder().memory(4 * GRANULE).build();
    assert_eq!(kind(sim.reserve(0)), InvalidArgument);
    assert_eq!(kind(sim.reserve(GRANULE + 1)), InvalidArgument);
    assert_eq!(kind(sim.reserve(1 << 60)), OutOfMemory);
    assert_eq!(kind(sim.create(5 * GRANULE)), OutOfMemory);
    let range = sim.reserve(2 * GRANULE).unwrap();
    let one = sim.create(GRANULE).unwrap();
    let two = sim.create(2 * GRANULE).unwrap();
    assert_eq!(kind(sim.map(range + 1, one, GRANULE)), InvalidArgument);
    assert_eq!(kind(sim.map(range, one, 2 * GRANULE)), InvalidArgument);
    assert_eq!(
        kind(sim.map(range + GRANULE, two, 2 * GRANULE)),
        InvalidArgument
    );
    assert_eq!(
        kind(sim.map(range - GRANULE, one, GRANULE)),
        InvalidArgument
    );
    sim.map(range, one, GRANULE).unwrap();
    assert_eq!(
        kind(sim.map(range + GRANULE, one, GRANULE)),
        InvalidArgument
    );
    assert_eq!(kind(sim.map(range, two, 2 * GRANULE)), InvalidArgument);
    assert_eq!(kind(sim.destroy(one)), InvalidArgument);
    assert_eq!(kind(sim.unreserve(range, 2 * GRANULE)), InvalidArgument);
    assert_eq!(kind(sim.unmap(range, 2 * GRANULE)), InvalidArgument);
    assert_eq!(kind(sim.unmap(range + GRANULE, GRANULE)), InvalidArgument);
    sim.unmap(range, GRANULE).unwrap();
    assert_eq!(kind(sim.unreserve(range, GRANULE)), InvalidArgument);
    sim.unreserve(range, 2 * GRANULE).unwrap();
    sim.destroy(one).unwrap();
    assert_eq!(kind(sim.destroy(one)), InvalidArgument);
    sim.destroy(two).unwrap();
    let counters = sim.counters();
    assert_eq!(counters.physical_in_use, 0);
    assert_eq!(counters.physical_peak, 3 * GRANULE);
    assert_eq!(counters.calls(Call::Map), 7);
}

#[test]
fn plain_memory_needs_no_address_space() {
    let sim = SimDevice::builder()
        .memory(4 * GRANULE)
        .virtual_memory(false)
        .build();
    assert_eq!(kind(sim.reserve(GRANULE)), DeviceErrorKind::Unsupported);
    let odd = sim.allocate(MemoryKind::Device, MIB + 1).unwrap();
    let even = sim.allocate(MemoryKind::Device, 2 * GRANULE).unwrap();
    assert_eq!((odd % GRANULE, even % GRANULE), (0, 0));
    assert_eq!(
        kind(sim.allocate(MemoryKind::Device, 2 * GRANULE)),
        DeviceErrorKind::OutOfMemory
    );
    assert_eq!(
        kind(sim.free(MemoryKind::Device, even, GRANULE)),
        DeviceErrorKind::InvalidArgument
    );
    sim.fill(even, 2 * GRANULE, 7).unwrap();
    sim.free(MemoryKind::Device, odd, MIB + 1).unwrap();
    sim.free(MemoryKind::Device, even, 2 * GRANULE).unwrap();
    assert_eq!(
        sim.memory_info(MemoryKind::Device).unwrap().free,
        4 * GRANULE
    );
    assert!(!sim.is_mapped(even, 1));
}

#[test]
fn devices_have_addresses_of_their_own_that_are_not_reused_soon() {
    let (sim, other) = (manual(), manual());
    let mine = sim.reserve(GRANULE).unwrap();
    assert_ne!(mine, other.reserve(GRANULE).unwrap());
    sim.unreserve(mine, GRANULE).unwrap();
    assert_ne!(mine, sim.reserve(GRANULE).unwrap());
}

#[test]
fn addresses_alone_cost_no_bytes() {
    let sim = SimDevice::builder()
        .memory(1 << 40)
        .backing(Backing::AddressesOnly)
        .build();
    let address = sim.allocate(MemoryKind::Device, 1 << 39).unwrap();
    sim.fill(address, 1 << 39, 1).unwrap();
    let mut seen = [9];
    sim.read(address, &mut seen).unwrap();
    assert_eq!(seen, [0]);
    assert!(sim.read(address - 1, &mut seen).is_err());
}

#[test]
fn costs_are_the_tables() {
    let sim = manual();
    let handle = sim.create(GRANULE).unwrap();
    sim.destroy(handle).unwrap();
    let counters = sim.counters();
    assert_eq!(counters.device_time, Duration::from_nanos(8_244 + 8_525));
    assert_eq!(counters.memory_time, counters.device_time);
    assert_eq!(counters.device_calls, 2);
    assert_eq!(sim.now(), Duration::ZERO);
}
