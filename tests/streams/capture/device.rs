//! Graphs of the simulated device itself, and what its checker finds in them.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use weirpool::device::{Device, DeviceErrorKind, RawEvent};

/// Operations that append their name to a common list each time they run.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn entry(&self, name: &'static str, count: u64) -> Operation {
        let log = self.0.clone();
        Operation::new(us(count)).run_each(move |_| log.lock().unwrap().push(name))
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn record(device: &SimDevice, stream: &SimStream) -> RawEvent {
    let event = device.create_event().unwrap();
    device.record(event, stream.raw()).unwrap();
    event
}

/// Calls a function whose violations the checker raises.
fn caught<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

fn wait(device: &SimDevice, stream: &SimStream, event: RawEvent) {
    device.wait(stream.raw(), event).unwrap();
}

#[test]
fn graph_runs_its_operations_at_each_launch() {
    let (device, log) = (manual(), Log::default());
    let (work, other) = (device.create_stream(), device.create_stream());
    work.begin_capture().unwrap();
    assert!(work.is_capturing() && !other.is_capturing());
    work.submit(log.entry("a", 10));
    work.submit(log.entry("b", 5));
    let graph = work.end_capture().unwrap();
    device.advance_to_end();
    assert!(log.take().is_empty());
    for stream in [&work, &other] {
        graph.launch(stream).unwrap();
        stream.submit(log.entry("later", 1));
        device.advance_to_end();
        assert_eq!(log.take(), ["a", "b", "later"]);
    }
}

#[test]
fn stream_joins_a_capture_by_waiting_for_its_event() {
    let (device, log) = (manual(), Log::default());
    let (work, side) = (device.create_stream(), device.create_stream());
    work.begin_capture().unwrap();
    work.submit(log.entry("first", 10));
    wait(&device, &side, record(&device, &work));
    assert!(side.is_capturing());
    side.submit(log.entry("side", 30));
    work.submit(log.entry("main", 20));
    wait(&device, &work, record(&device, &side));
    work.submit(log.entry("last", 1));
    let graph = work.end_capture().unwrap();
    assert!(!side.is_capturing());
    for _ in 0..2 {
        let start = device.now();
        graph.launch(&work).unwrap();
        device.advance_to_end();
        assert_eq!(log.take(), ["first", "main", "side", "last"]);
        assert_eq!(
            device.now() - start,
            us(41),
            "the branches run side by side"
        );
    }
}

#[test]
fn stream_that_is_not_joined_again_leaves_no_graph() {
    let (device, log) = (manual(), Log::default());
    let (work, side) = (device.create_stream(), device.create_stream());
    work.begin_capture().unwrap();
    work.submit(log.entry("first", 10));
    wait(&device, &side, record(&device, &work));
    side.submit(log.entry("side", 30));
    let error = work.end_capture().unwrap_err();
    assert!(error.reason().contains("not joined"), "{error}");
    assert!(!work.is_capturing() && !side.is_capturing());
}

#[test]
fn call_from_outside_invalidates_a_capture() {
    let device = manual();
    let (work, other) = (device.create_stream(), device.create_stream());
    let (flag, outside) = (device.flag(), record(&device, &other));
    let breaks: [&dyn Fn(); 4] = [
        &|| work.submit(Operation::new(us(1)).run(|_| ())),
        &|| work.signal(&flag, 1),
        &|| work.wait_until(&flag, 1),
        &|| assert!(device.wait(work.raw(), outside).is_err()),
    ];
    for breaks in breaks {
        work.begin_capture().unwrap();
        assert!(work.begin_capture().is_err());
        breaks();
        assert!(work.end_capture().is_err());
        assert!(!work.is_capturing());
    }
    assert_eq!(
        work.end_capture().unwrap_err().kind(),
        DeviceErrorKind::Unsupported,
        "there is no capture"
    );
}

#[test]
fn event_of_a_capture_cannot_be_queried() {
    let device = manual();
    let work = device.create_stream();
    work.begin_capture().unwrap();
    let event = record(&device, &work);
    assert!(device.query(event).is_err());
    drop(work.end_capture().unwrap());
    assert!(
        device.wait(work.raw(), event).is_err(),
        "its capture is over"
    );
    device.record(event, work.raw()).unwrap();
    assert!(device.query(event).unwrap());
}

#[test]
fn launches_of_one_graph_do_not_overlap() {
    let (device, log) = (manual(), Log::default());
    let (work, other) = (device.create_stream(), device.create_stream());
    work.begin_capture().unwrap();
    work.submit(log.entry("run", 10));
    let graph = work.end_capture().unwrap();
    graph.launch(&work).unwrap();
    graph.launch(&other).unwrap();
    drop(graph); // the launches go on
    device.advance_to_end();
    assert_eq!((log.take().len(), device.now()), (2, us(20)));
}

#[test]
fn checker_finds_unordered_branches_of_a_graph() {
    for is_joined_first in [false, true] {
        let site = Site::new(64 * MIB);
        let block = site.take(MIB);
        let side = site.device.create_stream();
        site.work.begin_capture().unwrap();
        wait(&site.device, &side, record(&site.device, &site.work));
        side.submit(write(&block, 1));
        if is_joined_first {
            wait(&site.device, &site.work, record(&site.device, &side));
        }
        site.work.submit(write(&block, 2));
        wait(&site.device, &site.work, record(&site.device, &side));
        let graph = site.work.end_capture().unwrap();
        assert!(kinds(&site.device).is_empty(), "nothing runs yet");
        let _ = caught(|| graph.launch(&site.work).unwrap());
        let found = kinds(&site.device);
        match is_joined_first {
            true => assert!(found.is_empty(), "{found:?}"),
            false => assert_eq!(found, [ViolationKind::Race]),
        }
    }
}

/// The block is from before the capture: its user has to keep it while the graph is launched.
#[test]
fn checker_finds_memory_freed_while_a_launch_runs() {
    let site = Site::new(64 * MIB);
    let (other, _stream) = site.other();
    let weights = site.take(MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    site.work.submit(read(&weights));
    let graph = capture.end().unwrap();
    let runs = site.pool.register(&other).unwrap();
    graph.launch(&runs).unwrap();
    drop(weights);
    assert_eq!(kinds(&site.device), [ViolationKind::FreedWhileUsed]);
    site.device.advance_to_end();
    graph.launch(&runs).unwrap();
    assert_eq!(kinds(&site.device), [ViolationKind::UseAfterFree]);
}

/// A stream that other code captures allocates ordinary memory. The checker reports that it is granted again while the
/// graph can still be launched.
#[test]
fn checker_finds_memory_of_a_graph_granted_again() {
    let site = Site::new(2 * MIB);
    site.work.begin_capture().unwrap();
    drop(site.take(2 * MIB));
    let graph = site.work.end_capture().unwrap();
    drop(caught(|| site.take(2 * MIB)));
    assert_eq!(kinds(&site.device), [ViolationKind::GrantedTwice]);
    drop(graph);
}
