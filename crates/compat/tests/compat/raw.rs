//! Addresses and handles instead of blocks and streams, on the simulated device. Behaviours that hold on every device
//! are in `tests/conformance`.

#[path = "../../../../tests/conformance/probe.rs"]
#[allow(dead_code, reason = "the suite uses the rest")]
mod probe;

use crate::common::{CHUNK, External, MIB, builder, manual, run, us};
use probe::Probe;
use std::collections::BTreeSet;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::{AllocError, Fill, FillAt, Pool, Source, StreamId};
use weirpool_compat::{Current, RawPool, current};

fn raw_pool(device: &SimDevice, capacity: u64) -> RawPool {
    RawPool::new(&builder(device, capacity).build().unwrap())
}

/// Uses memory on an external stream. Returns the stream's id in the pool.
fn visit(raw: &RawPool, work: &SimStream) -> StreamId {
    let stream = External::of(work);
    let address = raw.try_allocate(&stream, 4096).unwrap();
    work.submit(Operation::new(us(1)).writes(address, 4096));
    raw.free(address, &stream).unwrap();
    raw.stream(&stream).unwrap().id()
}

/// No call says when an external stream is destroyed. The table of streams stays short nevertheless.
#[test]
fn destroyed_streams_are_dropped() {
    let device = SimDevice::new();
    let raw = raw_pool(&device, 8 * MIB);
    let mut ids = BTreeSet::new();
    for _ in 0..1000 {
        let work = device.create_stream();
        assert!(ids.insert(visit(&raw, &work)), "an id is never reused");
        while work.backlog() > 0 {
            device.advance_to_next();
        }
    }
    let known = raw.pool().inspect().statistics_by_stream().len();
    assert!(known < 128, "{known} of 1000");
    let events = raw.pool().inspect().statistics().events_created;
    assert!(events < 256, "{events} events for 1000 frees");
    raw.pool().inspect().check_conserved().unwrap();
}

/// A stream that is used from time to time, or has a live block, stays registered, however many others come and go.
#[test]
fn streams_in_use_stay_registered() {
    let device = SimDevice::new();
    let raw = raw_pool(&device, 8 * MIB);
    let [regular, holder] = [(); 2].map(|()| device.create_stream());
    let held = raw.try_allocate(&External::of(&holder), 4096).unwrap();
    let ids = [&regular, &holder].map(|work| raw.stream(&External::of(work)).unwrap().id());
    for turn in 0..1000 {
        visit(&raw, &device.create_stream());
        if turn % 10 == 0 {
            assert_eq!(visit(&raw, &regular), ids[0]);
        }
    }
    raw.free(held, &External::of(&holder)).unwrap();
    assert_eq!(visit(&raw, &holder), ids[1]);
    device.advance_to_end();
    raw.pool().inspect().check_conserved().unwrap();
}

/// The current pool finds external streams by the same rule: two that alternate are not registered again.
#[test]
fn current_pool_finds_external_streams_again() {
    let device = SimDevice::new();
    Current::set(&builder(&device, 8 * MIB).build().unwrap());
    let works = [(); 2].map(|()| device.create_stream());
    let id = |work| {
        let current = current(&device).unwrap();
        current.stream(&External::of(work)).unwrap().id()
    };
    let ids = works.each_ref().map(id);
    assert_ne!(ids[0], ids[1]);
    for _ in 0..10 {
        assert_eq!(works.each_ref().map(id), ids);
    }
    Current::reset(&device);
}

/// Each free records its own event, however many are incomplete, since the stream may be destroyed before the next.
#[test]
fn each_free_of_a_long_backlog_is_sealed() {
    const FREES: u64 = 1500;
    let device = manual();
    let probe = Probe::new(std::sync::Arc::new(device.clone()));
    let pool = Pool::builder(probe.device()).capacity(8 * MIB);
    let raw = RawPool::new(&pool.chunk_bytes(CHUNK).build().unwrap());
    let work = device.create_stream();
    let stream = External::of(&work);
    let addresses: Vec<_> = (0..FREES)
        .map(|_| raw.try_allocate(&stream, 4096).unwrap())
        .collect();
    run(&work, us(10));
    for (freed, address) in addresses.into_iter().enumerate() {
        raw.free(address, &stream).unwrap();
        assert_eq!(probe.calls("record"), freed as u64 + 1);
    }
    drop(work);
    let heir = device.create_stream();
    let late = raw.try_allocate(&heir, 6 * MIB).unwrap();
    run(&heir, us(1));
    device.advance(us(10));
    raw.free(late, &heir).unwrap();
    device.advance(us(1));
    raw.pool().inspect().check_conserved().unwrap();
}

/// Memory that is freed on another stream, because its own is destroyed, is filled there, after its earlier life.
#[test]
fn memory_freed_on_another_stream_is_filled_there() {
    let device = manual();
    let pool = builder(&device, CHUNK).fill(FillAt::Free, Fill::Poison);
    let raw = RawPool::new(&pool.build().unwrap());
    let [earlier, gone, other] = [(); 3].map(|()| device.create_stream());
    let address = raw.try_allocate(&earlier, CHUNK).unwrap();
    earlier.submit(Operation::new(us(20)).writes(address, CHUNK));
    raw.free(address, &earlier).unwrap();
    let again = raw.try_allocate(&External::of(&gone), CHUNK).unwrap();
    assert_eq!(again, address);
    drop(gone);
    // The checker would report a fill before the earlier work.
    raw.free(address, &other).unwrap();
    device.advance(us(19));
    assert!(other.backlog() > 0, "the fill waits for the earlier life");
    device.advance_to_end();
    let mut bytes = [0; 16];
    device.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [Fill::Poison.byte(); 16]);
    let stream = raw.stream(&other).unwrap();
    let block = raw.pool().try_allocate(&stream, CHUNK).unwrap();
    assert_ne!(block.source(), Source::DeviceWait);
    drop(block);
    device.advance_to_end();
    raw.pool().inspect().check_conserved().unwrap();
}

/// The checker finds a violation of the rule of `cudaFreeAsync`: uses on other streams must come before the free.
#[test]
fn early_free_is_detected() {
    let device = SimDevice::builder()
        .clock(weirpool::device::sim::Clock::Manual)
        .checker(weirpool::device::sim::Checker::Collect)
        .build();
    let raw = raw_pool(&device, CHUNK);
    let [gone, other] = [(); 2].map(|()| device.create_stream());
    for is_ordered in [true, false] {
        let address = raw.try_allocate(&External::of(&gone), CHUNK).unwrap();
        gone.submit(Operation::new(us(5)).writes(address, CHUNK));
        if is_ordered {
            device.advance_to_end();
            assert_eq!(gone.backlog(), 0);
        }
        raw.free(address, &other).unwrap();
        device.advance_to_end();
        let found = device.take_violations();
        assert_eq!(found.is_empty(), is_ordered, "{found:?}");
    }
}

/// Both calls refuse a stream of another device, without effect.
#[test]
fn stream_of_another_device_is_refused() {
    let (device, elsewhere) = (manual(), manual());
    let raw = raw_pool(&device, CHUNK);
    let (work, stranger) = (device.create_stream(), elsewhere.create_stream());
    for stranger in [External::of(&stranger), External::of(&stranger)] {
        let refused = raw.try_allocate(&stranger, 512).unwrap_err();
        assert!(matches!(refused, AllocError::Stream(_)), "{refused}");
    }
    let address = raw.try_allocate(&work, 512).unwrap();
    let refused = raw.free(address, &stranger).unwrap_err();
    assert!(
        matches!(refused, weirpool_compat::RawError::Stream(_)),
        "{refused}"
    );
    assert_eq!(raw.given_out(), 1);
    raw.free(address, &work).unwrap();
    raw.pool().inspect().check_conserved().unwrap();
}
