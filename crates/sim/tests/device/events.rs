//! Events: recorded, waited for and watched.

use super::*;

#[test]
fn an_event_never_recorded_is_complete_and_no_wait() {
    let sim = manual();
    let (stream, event) = (sim.create_stream(), sim.create_event().unwrap());
    assert!(sim.query(event).unwrap());
    sim.wait(stream.raw(), event).unwrap();
    assert_eq!(stream.backlog(), 0);
}

#[test]
fn a_wait_keeps_the_record_it_was_submitted_for() {
    let sim = manual();
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(operation(10));
    let event = recorded(&sim, &a);
    sim.wait(b.raw(), event).unwrap();
    a.submit(operation(90));
    sim.record(event, a.raw()).unwrap();
    let passed = recorded(&sim, &b);
    sim.advance(us(10));
    assert!(sim.query(passed).unwrap());
    assert!(!sim.query(event).unwrap());
    sim.advance(us(90));
    assert!(sim.query(event).unwrap());
}

#[test]
fn destroyed_event_still_holds_its_waiters() {
    let sim = manual();
    let (a, b) = (sim.create_stream(), sim.create_stream());
    a.submit(operation(10));
    let event = recorded(&sim, &a);
    sim.wait(b.raw(), event).unwrap();
    sim.destroy_event(event).unwrap();
    assert_eq!(sim.create_event().unwrap(), event, "names are reused");
    assert_eq!(b.backlog(), 1);
    sim.advance_to_end();
    assert_eq!(b.backlog(), 0);
}

#[test]
fn a_watch_fires_once_for_the_record_of_its_time() {
    let sim = manual();
    let stream = sim.create_stream();
    stream.submit(operation(10));
    let event = recorded(&sim, &stream);
    let (first, waker) = Count::new();
    sim.watch(event, &waker);
    stream.submit(operation(10));
    sim.record(event, stream.raw()).unwrap();
    let (second, waker) = Count::new();
    sim.watch(event, &waker);
    sim.advance(us(10));
    assert_eq!((first.get(), second.get()), (1, 0));
    sim.advance(us(10));
    assert_eq!((first.get(), second.get()), (1, 1));
    sim.watch(event, &waker);
    assert_eq!(second.get(), 2, "complete: at once");
    assert_eq!(sim.counters().watches, 3);
}

#[test]
fn a_watch_taken_back_is_silent() {
    let sim = manual();
    let stream = sim.create_stream();
    stream.submit(operation(10));
    let event = recorded(&sim, &stream);
    let (count, waker) = Count::new();
    let watch = sim.watch(event, &waker);
    sim.unwatch(watch);
    sim.unwatch(watch);
    sim.advance_to_end();
    assert_eq!(count.get(), 0);
    assert_eq!(Arc::strong_count(&count), 2, "the waker was let go");
}

#[test]
fn events_and_streams_of_another_device_are_unknown() {
    let (sim, other) = (manual(), manual());
    let (stream, event) = (sim.create_stream(), other.create_event().unwrap());
    let error = sim.record(event, stream.raw()).unwrap_err();
    assert_eq!(error.kind(), DeviceErrorKind::InvalidArgument);
    assert_eq!(error.call(), "record");
    assert!(sim.query(event).is_err());
}
