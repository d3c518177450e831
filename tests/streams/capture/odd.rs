//! Captures beside handles, streams and requests that are older than they are, or that outlive them.

use super::*;
use crate::common::{Made, assert_matches, not_ready, now, poll, until_freed};
use futures::FutureExt;
use weirpool::device::sim::{Call, Clock, SimStream};
use weirpool::device::{Device, DeviceErrorKind};
use weirpool::{AllocError, Capture, ReleaseThreshold, StreamError, Tag, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

fn assert_kind<T: std::fmt::Debug>(answer: Result<T, StreamError>, kind: DeviceErrorKind) {
    match answer {
        Err(StreamError::Device(error)) => assert_eq!(error.kind(), kind, "{error}"),
        answer => panic!("{answer:?}"),
    }
}

/// A future in a reservation's scope holds the reservation, and outlives its handle.
#[test]
fn scope_of_a_given_reservation_draws_nothing_from_the_memory_of_graphs() {
    for nests in [false, true] {
        let site = Site::new(6 * MIB);
        let (work, other) = site.other();
        let memory = site.pool.graph_memory();
        let tag = Tag::new("given");
        let reservation = now(site.pool.reserve(2 * MIB).tag(tag)).unwrap();
        let drawn = reservation.allocate(&other, MIB).unwrap();
        let scoped = reservation.scope(async {
            match nests {
                true => {
                    let nested = site.pool.reserve(MIB).await?;
                    nested.allocate(&other, MIB)
                }
                false => site.pool.allocate(&other, MIB).await,
            }
        });
        memory.give(reservation).unwrap();
        let capture = memory.capture(&site.stream).unwrap();
        let block = site.take(MIB);
        let captured = block.address();
        site.work.submit(write(&block, 1));
        drop(block);
        let graph = capture.end().unwrap();
        graph.launch(&site.stream).unwrap();
        let block = now(scoped).unwrap();
        assert_ne!(block.address(), captured, "a launch writes there");
        assert_eq!(memory.left(), MIB);
        work.submit(write(&block, 2));
        graph.launch(&site.stream).unwrap();
        drop((block, drawn, graph, memory));
        site.device.advance_to_end();
        site.pool.inspect().check_conserved().unwrap();
        assert_eq!(site.pool.tag(tag).statistics().used.current, 0);
    }
}

/// No call of the device's graphs names the host.
#[test]
fn host_is_no_stream_for_graphs() {
    let site = Site::with(64 * MIB, |builder| builder.upstream(Upstream::Managed));
    let host = site.pool.host_stream().unwrap();
    let memory = site.pool.graph_memory();
    let calls = || {
        let calls = [Call::BeginCapture, Call::Keep, Call::Launch];
        calls.map(|call| site.device.counters().calls(call))
    };
    assert_kind(site.pool.capture(&host), DeviceErrorKind::Unsupported);
    // SAFETY: the host has access to no block of the graph while it is launched.
    assert_kind(unsafe { memory.join(&host) }, DeviceErrorKind::Unsupported);
    assert_eq!(calls(), [0; 3]);
    let mut capture = memory.capture(&site.stream).unwrap();
    assert_kind(capture.add(&host), DeviceErrorKind::Unsupported);
    drop(site.pool.try_allocate(&host, MIB).unwrap());
    let graph = capture.end().unwrap();
    assert_kind(graph.launch(&host), DeviceErrorKind::Unsupported);
    assert_eq!(calls(), [1, 1, 0]);
}

#[test]
fn graph_is_launched_on_the_device_it_was_captured_on() {
    let [device, guest] = SimDevice::builder().clock(Clock::Manual).build_host();
    let pool = crate::common::pool(&device, 16 * MIB);
    let access = pool.peers().grant(&guest).unwrap();
    let near = pool.create_stream().unwrap();
    let far = pool.register(&guest.create_stream()).unwrap();
    for (own, other) in [(&near, &far), (&far, &near)] {
        let capture = pool.capture(own).unwrap();
        let mut block = pool.try_allocate(own, MIB).unwrap();
        let submitted = own.submit(&mut block, |work: &SimStream, block| {
            work.submit(Operation::new(us(10)).writes(block.address(), block.size()));
        });
        drop(submitted.unwrap());
        drop(block);
        let graph = capture.end().unwrap();
        let calls = || [&device, &guest].map(|device| device.counters().calls(Call::Launch));
        let before = calls();
        assert_kind(graph.launch(other), DeviceErrorKind::InvalidArgument);
        assert_eq!(calls(), before, "the device's graphs take no other stream");
        graph.launch(own).unwrap();
    }
    drop((near, far));
    device.advance_to_end();
    device.assert_ordered();
    pool.maintain().reap().unwrap();
    pool.inspect().check_conserved().unwrap();
    access.end().unwrap();
}

/// Neither a task nor a function of the host was named to the device when the capture began.
#[test]
fn work_from_before_a_capture_is_awaited_during_it() {
    let site = Site::new(16 * MIB);
    let (_, other) = site.other();
    let long = |work: &SimStream, ()| work.submit(Operation::new(us(10)));
    let task = site.stream.submit((), long).unwrap();
    let called = site.stream.run(|| 7).unwrap();
    let host = site.stream.spawn(async { 8 }).unwrap();
    let before = site.stream.submit((), |_: &SimStream, ()| ()).unwrap();
    let capture = site.pool.capture(&site.stream).unwrap();
    other.after(&before).unwrap();
    assert!(!task.is_complete().unwrap());
    site.device.advance(us(10));
    assert_eq!((now(called), now(host)), (Ok(7), Ok(8)));
    assert_eq!(now(task), Ok(()));
    assert_eq!(now(before), Ok(()));
    drop(capture.end().unwrap());
}

/// Blocks from before a capture come back after it, and the driver hears nothing of a captured stream.
#[test]
fn passed_through_pool_makes_no_call_on_a_captured_stream() {
    let device = manual();
    let driver_pool = DriverPool::builder(&device).build().unwrap();
    let keep = ReleaseThreshold::Keep;
    driver_pool.set_release_threshold(keep).unwrap();
    let builder = Pool::builder(device.clone()).capacity(4 * MIB);
    let pool = builder.segment_source(driver_pool.segments(DriverPoolUse::PassedThrough));
    let pool = pool.made();
    let (work, stream) = crate::common::stream(&device, &pool);
    let used = || driver_pool.used().unwrap().current;

    // Dropped in the capture: a request from before it takes complete memory, and not in the stream's order.
    let block = pool.try_allocate(&stream, 4 * MIB).unwrap();
    work.submit(write(&block, 1));
    let mut waiting = not_ready(Box::pin(pool.allocate(&stream, 4 * MIB)));
    let calls = || device.counters().calls(Call::FreeTo);
    let capture = pool.capture(&stream).unwrap();
    let before = calls();
    drop(block);
    assert_eq!((calls(), used()), (before, 4 * MIB));
    assert!(poll(&mut waiting).is_pending());
    let refused = pool.try_allocate(&stream, MIB).unwrap_err();
    assert_eq!(refused, AllocError::NotReservable);
    // This pool was not built with `Upstream::Unpooled`.
    let text = refused.to_string();
    assert!(text.contains("`DriverPoolUse::SubAllocated`"), "{text}");
    drop(capture.end().unwrap());
    device.advance(us(10_000));
    let block = device.block_on(&mut waiting).unwrap();

    // Granted before the capture, and dropped in it without a poll.
    let waiting = not_ready(Box::pin(pool.allocate(&stream, 4 * MIB)));
    work.submit(write(&block, 2));
    drop(block);
    let capture = pool.capture(&stream).unwrap();
    drop(waiting);
    drop(capture);
    device.advance(us(10_000));
    device.block_on(pool.drain()).unwrap();
    assert_eq!(used(), 0);
    device.assert_ordered();
}

/// How a capture ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Graph,
    Abort,
    OtherThread,
    OtherCode,
    Invalidated,
    Panic,
    Refused,
}

impl End {
    const ALL: [Self; 7] = [
        Self::Graph,
        Self::Abort,
        Self::OtherThread,
        Self::OtherCode,
        Self::Invalidated,
        Self::Panic,
        Self::Refused,
    ];

    fn end(self, site: &Site, capture: Capture) -> Option<weirpool::CapturedGraph> {
        match self {
            Self::Graph => return Some(capture.end().unwrap()),
            Self::Abort => drop(capture),
            Self::OtherThread => std::thread::spawn(move || drop(capture)).join().unwrap(),
            Self::OtherCode => {
                drop(site.work.end_capture().unwrap());
                assert!(capture.end().is_err());
            }
            Self::Invalidated => {
                site.work.submit(Operation::new(us(1)).run(|_| ()));
                assert!(capture.end().is_err());
            }
            Self::Panic => {
                let thread = std::thread::spawn(move || {
                    let _capture = capture;
                    std::panic::resume_unwind(Box::new("in a capture"));
                });
                assert!(thread.join().is_err());
            }
            Self::Refused => {
                site.device
                    .faults()
                    .fail_next(Call::EndCapture, DeviceErrorKind::Other);
                assert!(capture.end().is_err());
            }
        }
        None
    }
}

/// Whatever was under way when a capture began, and however it ends, memory and order are intact afterwards.
#[test]
fn capture_ends_in_any_way_beside_waiters_launches_and_blocks() {
    for end in End::ALL {
        for shares in [false, true] {
            let site = Site::new(12 * MIB);
            let (work, other) = site.other();
            let memory = site.pool.graph_memory();
            let first = {
                let capture = memory.capture(&site.stream).unwrap();
                let block = site.take(MIB);
                site.work.submit(write(&block, 1));
                drop(block);
                capture.end().unwrap()
            };
            first.launch(&site.stream).unwrap();
            let before = site.take(2 * MIB);
            site.work.submit(write(&before, 2));
            let shared = site.pool.try_allocate(&other, MIB).unwrap();
            until_freed(&site.stream, &shared);
            let mut waiting = not_ready(Box::pin(site.pool.allocate(&site.stream, 12 * MIB)));
            let capture = match shares {
                true => memory.capture(&site.stream),
                false => site.pool.capture(&site.stream),
            };
            let capture = capture.unwrap();
            // A waiter keeps new memory from the capture: it has what its memory has.
            let inside = site.pool.try_allocate(&site.stream, MIB);
            assert_eq!(inside.is_ok(), shares, "{end:?}");
            if let Ok(block) = &inside {
                site.work.submit(write(block, 3));
            }
            drop(before);
            work.submit(write(&shared, 4));
            drop(shared);
            let second = end.end(&site, capture);
            assert!(!site.work.is_capturing());
            if let Some(graph) = &second {
                // Behind the first, which has the same memory.
                graph.launch(&site.stream).unwrap();
            }
            drop((second, first));
            drop(inside);
            drop(memory);
            site.device.advance_to_end();
            assert!(poll(&mut waiting).is_ready(), "{end:?}");
        }
    }
}

/// When a block of a capture is dropped.
#[derive(Clone, Copy, Debug)]
enum Drop {
    Inside,
    InsideElsewhere,
    AfterTheEnd,
    InLaterCaptureOfTheMemory,
    InLaterCaptureOfOtherMemory,
    OnACapturedStream,
    WhileALaunchRuns,
    AfterTheOwner,
}

impl Drop {
    const ALL: [Self; 8] = [
        Self::Inside,
        Self::InsideElsewhere,
        Self::AfterTheEnd,
        Self::InLaterCaptureOfTheMemory,
        Self::InLaterCaptureOfOtherMemory,
        Self::OnACapturedStream,
        Self::WhileALaunchRuns,
        Self::AfterTheOwner,
    ];
}

#[test]
fn block_of_a_capture_is_dropped_at_any_time_and_place() {
    for drops in Drop::ALL {
        let site = Site::new(16 * MIB);
        let (work, other) = site.other();
        let memory = site.pool.graph_memory();
        let capture = memory.capture(&site.stream).unwrap();
        let block = site.take(MIB);
        site.work.submit(write(&block, 1));
        let address = block.address();
        let mut block = Some(block);
        let move_away = |block: Option<Block>| std::thread::spawn(move || drop(block)).join();
        match drops {
            Drop::Inside => drop(block.take()),
            Drop::InsideElsewhere => move_away(block.take()).unwrap(),
            _ => {}
        }
        let graph = capture.end().unwrap();
        graph.launch(&other).unwrap();
        match drops {
            Drop::AfterTheEnd => move_away(block.take()).unwrap(),
            Drop::InLaterCaptureOfTheMemory => {
                let later = memory.capture(&site.stream).unwrap();
                drop(block.take());
                // Pending: the block was not allocated in this capture.
                assert_ne!(site.take(MIB).address(), address);
                drop(later.end().unwrap());
            }
            Drop::InLaterCaptureOfOtherMemory => {
                let later = site.pool.capture(&site.stream).unwrap();
                drop(block.take());
                assert_ne!(site.take(MIB).address(), address);
                drop(later);
            }
            Drop::OnACapturedStream => {
                let later = site.pool.capture(&other).unwrap();
                let ended = block.take().unwrap().deallocate_on(&other);
                block = ended.err().map(|refused| refused.block);
                work.submit(Operation::new(us(1)));
                drop(later.end().unwrap());
            }
            Drop::WhileALaunchRuns => {
                site.device.advance(us(5));
                drop(block.take());
            }
            _ => {}
        }
        // No other block gets the memory while the graph can be launched.
        let mut rest = Vec::new();
        while let Ok(taken) = site.pool.try_allocate(&other, MIB) {
            assert_ne!(taken.address(), address, "{drops:?}");
            work.submit(write(&taken, 9));
            rest.push(taken);
        }
        assert!(rest.len() > 4, "{drops:?}");
        graph.launch(&other).unwrap();
        drop((graph, memory));
        site.device.advance_to_end();
        drop(block);
    }
}

/// The fill of a request from before the capture cannot be made now: the request fails, and nothing is lost.
#[test]
fn zeroed_request_from_before_a_capture_loses_no_memory() {
    let site = Site::new(2 * MIB);
    let (work, other) = site.other();
    let all = site.pool.try_allocate(&other, 2 * MIB).unwrap();
    work.submit(write(&all, 1));
    let request = site.pool.allocate(&site.stream, 2 * MIB).zeroed();
    let mut waiting = not_ready(Box::pin(request));
    let _capture = site.pool.capture(&site.stream).unwrap();
    drop(all);
    site.device.advance_to_end();
    match now(&mut waiting) {
        Err(AllocError::Device(error)) => {
            assert_eq!(error.kind(), DeviceErrorKind::Unsupported, "{error}");
        }
        answer => panic!("{answer:?}"),
    }
}

/// A pool cannot see that a stream is captured in a session of another pool: the device refuses its calls, and the capture
/// goes on.
#[test]
fn registration_with_another_pool_breaks_no_capture() {
    let site = Site::new(64 * MIB);
    let pool = crate::common::pool(&site.device, 64 * MIB);
    let twin = pool.register(&site.work).unwrap();
    let (work, other) = crate::common::stream(&site.device, &pool);
    let mut foreign = pool.try_allocate(&other, MIB).unwrap();
    work.submit(write(&foreign, 1));
    let mut own = pool.try_allocate(&twin, MIB).unwrap();
    let capture = site.pool.capture(&site.stream).unwrap();
    let mut captured = site.take(MIB);
    assert!(twin.event().is_err());
    assert!(twin.record_use(&mut foreign).is_err());
    assert!(foreign.download(&twin, 0..4).is_err());
    assert!(own.upload(&twin, 0, &[1; 4]).is_err());
    assert!(own.zero(&twin).is_err());
    assert!(own.copy_to(0..4, &mut foreign, 0, &twin).is_err());
    assert!(captured.download(&site.stream, 0..4).is_err());
    let host = captured.host().now_or_never();
    assert!(host.is_none_or(|host| host.is_err()));
    assert!(twin.run(|| ()).is_err() && twin.spawn(async {}).is_err());
    assert!(pool.try_allocate(&twin, MIB).map(drop).is_ok());
    assert!(now(pool.allocate(&twin, MIB).zeroed()).is_err());
    assert!(now(pool.try_allocate(&twin, MIB).unwrap().deallocate()).is_err());
    drop((own, foreign));
    twin.seal().unwrap_err();
    let _ = pool.trim_to(0).unwrap();
    captured.zero(&site.stream).unwrap();
    drop(captured);
    let graph = capture.end().unwrap();
    graph.launch(&site.stream).unwrap();
    drop((graph, twin, other));
    site.device.advance_to_end();
    pool.maintain().reap().unwrap();
    pool.inspect().check_conserved().unwrap();
}

/// A stream that a capture refused is as it was.
#[test]
fn stream_is_added_to_a_capture_once_and_after_it_has_joined() {
    let site = Site::new(64 * MIB);
    let (work, other) = site.other();
    let elsewhere = Site::new(64 * MIB);
    let mut capture = site.pool.capture(&site.stream).unwrap();
    drop(site.pool.try_allocate(&other, MIB).unwrap());
    let refused = capture.add(&elsewhere.stream).unwrap_err();
    assert_matches!(refused, StreamError::ForeignPool(_));
    assert_kind(capture.add(&other), DeviceErrorKind::Unsupported);
    assert_kind(capture.add(&site.stream), DeviceErrorKind::Unsupported);
    other.event().unwrap();
    // An added stream that does not come back leaves no graph; both are free again.
    let event = site.device.create_event().unwrap();
    site.device.record(event, site.work.raw()).unwrap();
    site.device.wait(work.raw(), event).unwrap();
    capture.add(&other).unwrap();
    assert_kind(capture.add(&other), DeviceErrorKind::Unsupported);
    let block = site.pool.try_allocate(&other, MIB).unwrap();
    work.submit(write(&block, 1));
    assert!(capture.end().is_err());
    assert!(!work.is_capturing() && !site.work.is_capturing());
    drop(block);
    other.event().unwrap();
    drop(site.pool.try_allocate(&other, MIB).unwrap());
    site.device.destroy_event(event).unwrap();
}

/// The session's capture is over, and the stream's present one is none of its business.
#[test]
fn capture_that_other_code_began_since_goes_on() {
    for is_ended in [true, false] {
        let site = Site::new(64 * MIB);
        let mut capture = site.pool.capture(&site.stream).unwrap();
        let block = site.take(MIB);
        site.work.submit(write(&block, 1));
        let first = site.work.end_capture().unwrap();
        site.work.begin_capture().unwrap();
        site.work.submit(Operation::new(us(1)));
        assert_kind(capture.add(&site.other().1), DeviceErrorKind::Unsupported);
        match is_ended {
            true => drop(capture.end().unwrap_err()),
            false => drop(capture),
        }
        assert!(site.work.is_capturing());
        drop(block);
        let second = site.work.end_capture().unwrap();
        first.launch(&site.work).unwrap();
        second.launch(&site.work).unwrap();
    }
}
