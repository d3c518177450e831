//! The order in which operations run, and the waits of streams.

use super::*;
use std::time::Duration;
use weirpool_sim::Clock;

#[test]
fn stream_runs_in_order_beside_other_streams() {
    let (sim, log) = (manual(), Log::default());
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(log.entry("a1", operation(10)));
    a.submit(log.entry("a2", operation(1)));
    b.submit(log.entry("b1", operation(5)));
    assert_eq!((a.backlog(), a.completed()), (2, 0));
    sim.advance(us(10));
    assert_eq!(log.text(), "b1 a1");
    assert_eq!((a.backlog(), a.completed()), (1, 1));
    sim.advance(us(1));
    assert_eq!(log.text(), "b1 a1 a2");
    assert_eq!(sim.counters().operations, 3);
}

#[test]
fn empty_operation_takes_no_time_on_an_idle_stream() {
    let sim = manual();
    let stream = sim.create_stream();
    stream.submit(operation(0));
    assert!(sim.query(recorded(&sim, &stream)).unwrap());
    assert_eq!(stream.backlog(), 0);
}

#[test]
fn wait_orders_streams_and_counts_as_stall() {
    let (sim, log) = (manual(), Log::default());
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(log.entry("a", operation(100)));
    b.submit(log.entry("b1", operation(30)));
    sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
    b.submit(log.entry("b2", operation(10)));
    sim.advance_to_end();
    assert_eq!(log.text(), "b1 a b2");
    assert_eq!(sim.now(), us(110));
    assert_eq!(sim.counters().stall, us(70));
    assert_eq!(sim.counters().device_waits, 1);
}

#[test]
fn stall_delays_later_work() {
    let sim = manual();
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(operation(100));
    sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
    b.submit(operation(10).behind(us(40)));
    b.submit(operation(10).behind(us(70)));
    let end = recorded(&sim, &b);
    // The operation is 60 us late, so the next one begins at 70 + 60.
    sim.advance(us(139));
    assert!(!sim.query(end).unwrap());
    sim.advance(us(1));
    assert!(sim.query(end).unwrap());
    assert_eq!(sim.counters().stall, us(60));
}

#[test]
fn completed_wait_is_no_stall() {
    let sim = manual();
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(operation(10));
    b.submit(operation(20));
    sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
    b.submit(operation(5));
    sim.advance_to_end();
    assert_eq!(sim.counters().stall, Duration::ZERO);
    assert_eq!(sim.now(), us(25));
}

#[test]
fn concurrency_limit_causes_no_stall() {
    let sim = SimDevice::builder()
        .clock(Clock::Manual)
        .concurrent_operations(2)
        .build();
    let streams: Vec<_> = (0..5).map(|_| sim.create_stream()).collect();
    for stream in &streams {
        stream.submit(operation(10));
    }
    sim.advance(us(10));
    assert_eq!(sim.counters().operations, 2);
    sim.advance_to_end();
    assert_eq!(sim.now(), us(30));
    assert_eq!(sim.counters().stall, Duration::ZERO);
}

fn order_of(seed: u64) -> String {
    let sim = SimDevice::builder()
        .clock(Clock::Manual)
        .concurrent_operations(1)
        .seed(seed)
        .build();
    let log = Log::default();
    let gate = sim.flag();
    let streams: Vec<_> = (0..8).map(|_| sim.create_stream()).collect();
    for (index, stream) in streams.iter().enumerate() {
        stream.wait_until(&gate, 1);
        stream.submit(log.entry(&index.to_string(), operation(1)));
    }
    gate.set(1);
    sim.advance_to_end();
    log.text()
}

#[test]
fn seed_picks_among_equals_reproducibly() {
    assert_eq!(order_of(7), order_of(7));
    let orders: std::collections::HashSet<_> = (0..8).map(order_of).collect();
    assert!(orders.len() > 1, "every seed gives {orders:?}");
}

#[test]
fn work_of_a_destroyed_stream_runs_to_its_end() {
    let (sim, log) = (manual(), Log::default());
    let stream = sim.create_stream();
    let raw = stream.raw();
    stream.submit(log.entry("last", operation(10)));
    let event = recorded(&sim, &stream);
    drop(stream);
    assert!(sim.stream(raw).is_none());
    assert_eq!(
        sim.record(event, raw).unwrap_err().kind(),
        DeviceErrorKind::InvalidArgument
    );
    assert!(!sim.query(event).unwrap());
    sim.advance_to_end();
    assert!(sim.query(event).unwrap());
    assert_eq!(log.text(), "last");
    // Once its work has run, its name is reused, as by drivers. Old records stay complete.
    let next = sim.create_stream();
    assert_eq!(next.raw(), raw);
    next.submit(operation(10));
    assert!(sim.query(event).unwrap());
}

#[test]
fn stream_created_through_the_contract_accepts_work() {
    let sim = manual();
    let device: Arc<dyn Device> = sim.clone().into();
    let raw = device.create_stream().unwrap();
    let stream = sim.stream(raw).unwrap();
    stream.submit(operation(5));
    assert_eq!(stream.backlog(), 1);
    sim.destroy_stream(raw).unwrap();
    sim.advance_to_end();
    // The handle keeps the name from being recycled.
    assert_ne!(device.create_stream().unwrap(), raw);
    drop(stream);
    assert_eq!(device.create_stream().unwrap(), raw);
}

#[test]
fn record_on_an_idle_stream_is_complete_at_once() {
    let sim = manual();
    let (busy, idle) = (sim.create_stream(), sim.create_stream());
    let (device, stream) = (sim.clone(), idle.clone());
    // Nothing else that is due happens while a body runs.
    let seen = Arc::new(std::sync::Mutex::new(None));
    let told = seen.clone();
    busy.submit(operation(5).run(move |_| {
        let complete = device.query(recorded(&device, &stream)).unwrap();
        *told.lock().unwrap() = Some((complete, stream.backlog()));
    }));
    sim.advance(us(5));
    assert_eq!(*seen.lock().unwrap(), Some((true, 0)));
    idle.submit(operation(5));
    let behind_work = [(); 2].map(|()| recorded(&sim, &idle));
    assert_eq!(
        behind_work.map(|event| sim.query(event).unwrap()),
        [false; 2]
    );
    sim.advance(us(5));
    assert_eq!(
        behind_work.map(|event| sim.query(event).unwrap()),
        [true; 2]
    );
}

#[test]
fn stream_of_another_device_is_unknown() {
    let [first, second] = SimDevice::builder().clock(Clock::Manual).build_host();
    let handle = first.create_stream();
    let raw = Device::create_stream(&first).unwrap();
    for name in [handle.raw(), raw] {
        assert_eq!(first.stream(name).unwrap().raw(), name);
        assert!(second.stream(name).is_none());
    }
}

#[test]
fn contract_does_not_destroy_a_stream_that_belongs_to_its_handles() {
    let sim = manual();
    let stream = sim.create_stream();
    let refused = sim.destroy_stream(stream.raw()).unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
    stream.submit(operation(1));
}

/// A pool that holds the second handle records events after the first one is dropped.
#[test]
fn handle_that_was_looked_up_keeps_the_stream() {
    let sim = manual();
    let made = sim.create_stream_named("decode");
    let found = sim.stream(made.raw()).unwrap();
    let event = sim.create_event().unwrap();
    drop(made);
    found.submit(operation(5));
    sim.record(event, found.raw()).unwrap();
    assert_eq!(found.name().as_deref(), Some("decode"));
    let raw = found.raw();
    drop(found);
    assert!(sim.stream(raw).is_none());
    sim.advance_to_end();
    assert!(sim.query(event).unwrap());
}
