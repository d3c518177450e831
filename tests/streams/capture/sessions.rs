//! The beginning and the end of captures, in every state.

use super::*;
use crate::common::{External, Made, assert_matches, figures};
use weirpool::device::DeviceErrorKind::{self, Other, Sticky};
use weirpool::device::sim::Call;
use weirpool::{AllocError, StreamError, TaskError, Upstream};
use weirpool_compat::RawPool;

#[test]
fn dropped_capture_leaves_nothing() {
    let site = Site::new(64 * MIB);
    for ends in [0, 1, 2] {
        let capture = site.pool.capture(&site.stream).unwrap();
        let block = site.take(MIB);
        site.work.submit(write(&block, 1));
        match ends {
            0 => drop(capture),
            1 => drop((block, capture)),
            _ => std::thread::spawn(move || drop(capture)).join().unwrap(),
        }
        assert!(!site.work.is_capturing());
        site.stream.event().unwrap();
    }
    site.device.advance_to_end();
    assert_eq!(site.device.counters().operations, 0);
}

#[test]
fn invalidated_capture_ends_with_an_error() {
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    site.work.submit(Operation::new(us(1)).run(|_| ()));
    drop(site.take(MIB));
    assert!(capture.end().is_err());
    drop(block);
    drop(site.take(MIB));
}

#[test]
fn capture_that_other_code_ended_is_over() {
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    site.work.submit(write(&block, 3));
    drop(block);
    let graph = site.work.end_capture().unwrap();
    assert!(capture.end().is_err());
    assert_eq!(figures(&site.pool).in_graphs, 2 * MIB, "the graph has it");
    graph.launch(&site.work).unwrap();
}

#[test]
fn refused_capture_changes_nothing() {
    let site = Site::new(64 * MIB);
    let other = Site::new(64 * MIB);
    let foreign = site.pool.capture(&other.stream).unwrap_err();
    assert_matches!(foreign, StreamError::ForeignPool(_));
    for call in [Call::BeginCapture, Call::Keep] {
        drop(site.take(4096));
        site.device.faults().fail_next(call, Other);
        assert!(site.pool.capture(&site.stream).is_err());
        assert!(!site.work.is_capturing());
        drop(site.take(4096));
    }
    let first = site.pool.capture(&site.stream).unwrap();
    let refused = site.pool.capture(&site.stream).unwrap_err();
    assert!(
        refused.to_string().contains("captured already"),
        "{refused}"
    );
    drop(site.take(4096));
    drop(first);
    site.device.faults().fail_next(Call::EndCapture, Other);
    let capture = site.pool.capture(&site.stream).unwrap();
    drop(site.take(4096));
    assert!(capture.end().is_err());
    assert!(!site.work.is_capturing());
}

#[test]
fn capture_ends_on_a_broken_device() {
    for call in [
        Call::BeginCapture,
        Call::Keep,
        Call::EndCapture,
        Call::Launch,
    ] {
        let site = Site::new(64 * MIB);
        site.device.faults().fail_next(call, Sticky);
        let Ok(capture) = site.pool.capture(&site.stream) else {
            assert_matches!(call, Call::BeginCapture | Call::Keep);
            continue;
        };
        let block = site.take(MIB);
        let Ok(graph) = capture.end() else {
            assert_eq!(call, Call::EndCapture);
            continue;
        };
        assert!(graph.launch(&site.stream).is_err());
        assert!(site.pool.try_allocate(&site.stream, MIB).is_err());
        drop((block, graph));
    }
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    site.device.faults().break_device("test");
    let more = site.pool.try_allocate(&site.stream, 8 * MIB);
    assert_matches!(more, Err(AllocError::Device(_)));
    drop(block);
    assert!(capture.end().is_err());
}

#[test]
fn capture_ends_in_a_closed_pool_but_its_graph_is_not_launched() {
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    site.work.submit(write(&block, 1));
    site.pool.close();
    assert_eq!(
        site.pool.try_allocate(&site.stream, 4096).unwrap_err(),
        AllocError::Closed
    );
    let graph = capture.end().unwrap();
    let launched = graph.launch(&site.stream).unwrap_err();
    assert_eq!(launched, StreamError::Closed);
}

#[test]
fn graph_keeps_its_pool_after_the_last_handle() {
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    site.work.submit(write(&block, 1));
    drop(block);
    let graph = capture.end().unwrap();
    graph.launch(&site.stream).unwrap();
    let Site {
        device,
        pool,
        work,
        stream,
    } = site;
    pool.end_before_its_blocks();
    drop((stream, graph));
    assert!(device.counters().physical_in_use > 0, "the launch runs");
    device.advance_to_end();
    device.assert_ordered();
    assert_eq!(device.counters().physical_in_use, 0);
    drop(work);
}

#[test]
fn pool_makes_no_call_on_a_captured_stream() {
    let site = Site::new(64 * MIB);
    let earlier = site.take(MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    assert!(site.stream.event().unwrap().is_complete().is_err());
    assert!(crate::common::now(site.stream.synchronize()).is_err());
    assert!(
        crate::common::now(earlier.deallocate()).is_err(),
        "the free is not awaited"
    );
    site.stream.seal().unwrap(); // nothing to seal before the end
    site.pool.maintain().reap().unwrap();
    let graph = capture.end().unwrap();
    drop(graph);
    crate::common::now(site.stream.synchronize()).unwrap();
}

/// cudarc and PyTorch begin and end captures themselves.
#[test]
fn capture_of_other_code_allocates_from_the_memory_it_joins() {
    let site = Site::new(64 * MIB);
    let memory = site.pool.graph_memory();
    // SAFETY: the host has access to no block of the graph while it is launched.
    let refused = unsafe { memory.join(&site.stream) }.unwrap_err();
    assert!(
        refused.to_string().contains("not being captured"),
        "{refused}"
    );
    site.work.begin_capture().unwrap();
    // SAFETY: the host has access to no block of the graph while it is launched.
    let joined = unsafe { memory.join(&site.stream) }.unwrap();
    let block = site.take(MIB);
    site.work.submit(write(&block, 5));
    let address = block.address();
    drop(block);
    assert_eq!(site.take(MIB).address(), address);
    let graph = site.work.end_capture().unwrap();
    drop((joined, memory));
    let elsewhere = site.take(MIB);
    assert_ne!(elsewhere.address(), address);
    graph.launch(&site.work).unwrap();
    drop(graph);
    assert_eq!(figures(&site.pool).in_graphs, 2 * MIB, "the launch runs");
    site.device.advance_to_end();
    assert_eq!(site.pool.inspect().statistics().in_graphs, 0);
}

/// No event can be recorded at a free in a capture, and after it none is on a stream that may be gone.
#[test]
fn block_freed_on_a_captured_external_stream_is_available_after_the_end() {
    for ends in [true, false] {
        let site = Site::new(64 * MIB);
        let raw = RawPool::new(&site.pool);
        let work = External::of(&site.work);
        let memory = site.pool.graph_memory();
        let address = raw.allocate(&work, MIB, None).unwrap();
        let kept = raw.allocate(&work, MIB, None).unwrap();
        site.work.begin_capture().unwrap();
        // SAFETY: the host has access to no block of the graph while it is launched.
        let joined = unsafe { memory.join(&raw.stream(&work).unwrap()) }.unwrap();
        raw.free(address, &work).unwrap();
        drop(site.work.end_capture().unwrap());
        match ends {
            true => joined.end().unwrap(),
            false => drop(joined),
        }
        site.device.advance_to_end();
        site.pool.maintain().reap().unwrap();
        let pending = if ends { 0 } else { MIB };
        assert_eq!(site.pool.inspect().statistics().pending.current, pending);
        // The next free on the stream covers it.
        raw.free(kept, &work).unwrap();
    }
}

/// Work of the device is captured. A call that needs an event, or the host, is refused without breaking the capture.
#[test]
fn captured_stream_takes_device_work_alone() {
    let site = Site::new(16 * MIB);
    let (_, other) = site.other();
    let capture = site.pool.capture(&site.stream).unwrap();
    let mut block = site.take(4096);
    let (address, bytes) = (block.address(), block.size());
    let submitted = site.stream.submit(&mut block, move |work: &SimStream, _| {
        let fill = Operation::new(us(10)).writes(address, bytes);
        work.submit(fill.run_each(move |memory| memory.fill(address, bytes, 7)));
    });
    let task = submitted.unwrap();
    let refused = |answer: Result<(), TaskError>| match answer {
        Err(TaskError::Device(error)) => {
            assert_eq!(error.kind(), DeviceErrorKind::Unsupported, "{error}");
        }
        answer => panic!("{answer:?}"),
    };
    refused(task.is_complete().map(drop).map_err(TaskError::from));
    // Another stream takes part in the capture by coming after its work.
    other.after(&task).unwrap();
    site.stream.wait(&other.event().unwrap()).unwrap();
    refused(site.stream.run(|| ()).map(drop));
    refused(site.stream.spawn(async {}).map(drop));
    let graph = capture.end().unwrap();
    graph.launch(&site.stream).unwrap();
    site.device.advance_to_end();
    site.device.block_on(task).unwrap();
    assert_eq!(site.read(&block, 2), [7, 7]);
}

/// Memory that is not pooled cannot stay with a graph. [Warp: allocation in a capture is an error while pools are
/// disabled]
#[test]
fn unpooled_memory_is_refused_in_a_capture() {
    let device = manual();
    let pool = Pool::builder(device.clone())
        .upstream(Upstream::Unpooled)
        .made();
    let stream = pool.create_stream().unwrap();
    let capture = pool.capture(&stream).unwrap();
    let refused = pool.try_allocate(&stream, MIB).unwrap_err();
    assert_eq!(refused, AllocError::NotReservable);
    let text = refused.to_string();
    assert!(
        text.contains("build it without `Upstream::Unpooled`"),
        "{text}"
    );
    let memory = capture.memory().clone();
    drop(capture.end().unwrap());
    let outside = memory.allocate(&stream, MIB).unwrap_err();
    assert_eq!(outside, AllocError::NotReservable);
    drop(memory);
    drop(pool.try_allocate(&stream, MIB).unwrap());
    device.advance_to_end();
}
