//! The ordering checker with as many streams as a server has connections.

use std::time::Duration;
use weirpool_device::Device;
use weirpool_device::MemoryKind;
use weirpool_sim::{Backing, Clock, Operation, SimDevice, SimStream};

const STREAMS: usize = 65_536;

fn device() -> SimDevice {
    SimDevice::builder()
        .backing(Backing::AddressesOnly)
        .clock(Clock::Manual)
        .build()
}

fn write(stream: &SimStream, address: u64) {
    stream.submit(Operation::new(Duration::from_micros(1)).writes(address, 512));
}

/// Each stream waits for the stream before it, whose end the host has seen.
#[test]
fn chain_of_streams_is_checked() {
    let device = device();
    let address = device.allocate(MemoryKind::Device, 2 << 20).unwrap();
    let streams: Vec<_> = (0..STREAMS).map(|_| device.create_stream()).collect();
    let event = device.create_event().unwrap();
    for stream in &streams {
        device.wait(stream.raw(), event).unwrap();
        write(stream, address);
        device.record(event, stream.raw()).unwrap();
        device.advance(Duration::from_micros(1));
        assert!(device.query(event).unwrap());
    }
    device.assert_ordered();
}

/// One stream collects the results of all others, none of which the host has seen complete.
#[test]
fn stream_that_waits_for_all_others_is_checked() {
    let device = device();
    let memory = 512 * STREAMS as u64;
    let address = device.allocate(MemoryKind::Device, memory).unwrap();
    let streams: Vec<_> = (0..STREAMS).map(|_| device.create_stream()).collect();
    let last = device.create_stream_named("collect");
    let event = device.create_event().unwrap();
    for (stream, at) in streams.iter().zip(0u64..) {
        write(stream, address + 512 * at);
        device.record(event, stream.raw()).unwrap();
        device.wait(last.raw(), event).unwrap();
    }
    last.submit(Operation::new(Duration::ZERO).reads(address, memory));
    device.assert_ordered();
}
