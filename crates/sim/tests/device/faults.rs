//! Faults of work, of calls, and of bodies.

use super::*;
use crate::manual_builder;
use weirpool_device::MemoryKind;
use weirpool_sim::{Call, Checker};

#[test]
fn illegal_address_breaks_the_device() {
    let sim = manual();
    let stream = sim.create_stream();
    stream.submit(operation(1).run(|memory| memory.write(42, &[1])));
    let event = recorded(&sim, &stream);
    let (count, waker) = Count::new();
    sim.watch(event, &waker);
    sim.advance_to_end();
    assert_eq!(count.get(), 1, "a watcher learns of the failure");
    let error = sim.query(event).unwrap_err();
    assert!(error.is_sticky());
    assert!(error.reason().contains("0x2a"), "{error}");
    assert!(sim.create(GRANULE).unwrap_err().is_sticky());
    stream.submit(operation(1));
    assert_eq!(stream.backlog(), 0);
}

/// As on a GPU: the work itself faults, and not only a body that touches bytes.
#[test]
fn work_on_memory_that_is_not_mapped_breaks_the_device() {
    for is_launch in [false, true] {
        let sim = manual_builder().checker(Checker::Off).build();
        let stream = sim.create_stream();
        let address = sim.reserve(GRANULE).unwrap();
        let chunk = sim.create(GRANULE).unwrap();
        sim.map(address, chunk, GRANULE).unwrap();
        let write = || operation(1).writes(address, GRANULE);
        if is_launch {
            stream.begin_capture().unwrap();
        }
        stream.submit(write());
        let graph = is_launch.then(|| stream.end_capture().unwrap());
        let again = || match &graph {
            Some(graph) => graph.launch(&stream).unwrap(),
            None => stream.submit(write()),
        };
        again();
        sim.advance_to_end();
        sim.unmap(address, GRANULE).unwrap();
        again();
        let event = recorded(&sim, &stream);
        sim.advance_to_end();
        let error = sim.query(event).unwrap_err();
        assert!(error.is_sticky());
        assert!(
            error.reason().contains("where nothing is mapped"),
            "{error}"
        );
    }
}

#[test]
fn broken_device_runs_no_work() {
    let sim = manual();
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(operation(10));
    sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
    b.submit(operation(10).run(|_| panic!("never runs")));
    sim.faults().break_device("gone");
    sim.faults().break_device("later");
    assert_eq!(
        sim.memory_info(MemoryKind::Device).unwrap_err().reason(),
        "gone"
    );
    sim.advance_to_end();
    assert_eq!(sim.counters().operations, 0);
}

#[test]
fn scripted_call_fails() {
    let sim = manual();
    sim.faults()
        .fail_next(Call::Create, DeviceErrorKind::OutOfMemory);
    assert_eq!(
        sim.create(GRANULE).unwrap_err().kind(),
        DeviceErrorKind::OutOfMemory
    );
    sim.create(GRANULE).unwrap();
    sim.faults()
        .fail_next(Call::Record, DeviceErrorKind::Sticky);
    let (stream, event) = (sim.create_stream(), sim.create_event().unwrap());
    assert!(sim.record(event, stream.raw()).unwrap_err().is_sticky());
    assert!(sim.query(event).unwrap_err().is_sticky());
}

#[test]
#[should_panic(expected = "wrong bytes")]
fn panic_of_a_body_reaches_the_thread_that_moves_time() {
    let sim = manual();
    let stream = sim.create_stream();
    stream.submit(operation(1).run(|_| panic!("wrong bytes")));
    sim.advance_to_end();
}

#[test]
#[should_panic(expected = "must not move the device's time")]
fn body_cannot_move_time() {
    let sim = manual();
    let inside = sim.clone();
    let body = operation(1).run(move |_| inside.advance(us(1)));
    sim.create_stream().submit(body);
    sim.advance_to_end();
}

#[test]
fn values_owned_by_a_body_may_call_the_device_when_dropped() {
    let sim = manual();
    let (stream, owned) = (sim.create_stream(), sim.create_stream());
    stream.submit(operation(1).run(move |_| drop(owned)));
    sim.advance_to_end();
    assert_eq!(sim.counters().calls(Call::DestroyStream), 1);
}

#[test]
fn waits_can_be_unsupported() {
    let sim = SimDevice::builder().device_side_waits(false).build();
    let stream = sim.create_stream();
    let error = sim.wait(stream.raw(), recorded(&sim, &stream)).unwrap_err();
    assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
    assert!(!sim.capabilities().device_side_waits);
}
