//! Where captured streams allocate, and for how long the memory stays with the graph.

use super::*;
use crate::common::{assert_matches, figures};
use weirpool::device::Device;
use weirpool::{AllocError, ErrorClass, StreamError};

#[test]
fn dropped_block_is_reused_in_its_capture_and_nowhere_else() {
    let site = Site::new(4 * MIB);
    let (_, other) = site.other();
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    let address = block.address();
    drop(block);
    let again = site.take(MIB);
    assert_eq!(again.address(), address);
    drop(again);
    // The other half of the capacity is all that is left for others.
    let _rest = site.pool.try_allocate(&other, 2 * MIB).unwrap();
    assert_matches!(
        site.pool.try_allocate(&other, 512),
        Err(AllocError::Exhausted(_))
    );
    drop(capture.end().unwrap());
}

#[test]
fn captured_stream_gets_no_memory_that_it_freed_before() {
    let site = Site::new(64 * MIB);
    for bytes in [4096, MIB, 9 * MIB] {
        let block = site.take(bytes);
        site.work.submit(write(&block, 1));
        let address = block.address();
        drop(block);
        let capture = site.pool.capture(&site.stream).unwrap();
        let block = site.take(bytes);
        assert_ne!(
            block.address(),
            address,
            "its stream's work is not complete"
        );
        site.work.submit(write(&block, 2));
        drop(block);
        let graph = capture.end().unwrap();
        let (other, stream) = site.other();
        graph.launch(&stream).unwrap();
        site.device.advance_to_end();
        drop((graph, other));
    }
}

#[test]
fn addresses_stay_valid_over_launches_with_other_work_in_between() {
    let site = Site::new(16 * MIB);
    let (work, other) = site.other();
    let capture = site.pool.capture(&site.stream).unwrap();
    let temporary = site.take(MIB);
    site.work.submit(write(&temporary, 1));
    let result = site.take(MIB);
    let (from, to) = (temporary.address(), result.address());
    let add = Operation::new(us(5)).reads(from, MIB).writes(to, MIB);
    site.work.submit(add.run_each(move |memory| {
        let mut bytes = vec![0; MIB as usize];
        memory.read(from, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte += 1);
        memory.write(to, &bytes);
    }));
    drop(temporary);
    let graph = capture.end().unwrap();
    for _ in 0..100 {
        let mut blocks = Vec::new();
        while let Ok(block) = site.pool.try_allocate(&other, MIB) {
            work.submit(write(&block, 0xee));
            blocks.push(block);
        }
        assert!(blocks.len() >= 8);
        graph.launch(&site.stream).unwrap();
        drop(blocks);
        site.device.advance_to_end();
        assert_eq!(site.read(&result, MIB as usize), vec![2; MIB as usize]);
    }
}

#[test]
fn memory_returns_once_the_owner_is_dropped_and_the_last_launch_is_complete() {
    let site = Site::new(2 * MIB);
    let (_, other) = site.other();
    let is_available = || site.pool.try_allocate(&other, 2 * MIB).is_ok();
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    site.work.submit(write(&block, 1));
    drop(block);
    let graph = capture.end().unwrap();
    assert_eq!(site.pool.inspect().statistics().in_graphs, 2 * MIB);
    graph.launch(&site.stream).unwrap();
    site.device.advance_to_end();
    assert!(!is_available(), "it can be launched again");
    graph.launch(&other).unwrap();
    graph.launch(&site.stream).unwrap();
    drop(graph);
    assert!(!is_available(), "two launches run");
    site.device.advance(us(10));
    assert!(!is_available(), "one launch runs");
    site.device.advance(us(10));
    assert!(is_available());
}

#[test]
fn block_that_outlives_its_graph_becomes_an_ordinary_block() {
    let site = Site::new(2 * MIB);
    let (_, other) = site.other();
    let capture = site.pool.capture(&site.stream).unwrap();
    let (temporary, result) = (site.take(MIB), site.take(MIB));
    site.work.submit(write(&result, 7));
    drop(temporary);
    let graph = capture.end().unwrap();
    graph.launch(&site.stream).unwrap();
    drop(graph);
    site.device.advance_to_end();
    assert_eq!(site.read(&result, 4), [7; 4]);
    // The rest of the memory is available, and the block is not.
    let _rest = site.pool.try_allocate(&other, MIB).unwrap();
    assert!(site.pool.try_allocate(&other, MIB).is_err());
    site.work.submit(read(&result));
    drop(result);
    site.device.advance_to_end();
    assert!(site.pool.try_allocate(&other, MIB).is_ok());
}

#[test]
fn block_from_before_that_is_dropped_in_a_capture_is_freed_after_it() {
    let site = Site::new(2 * MIB);
    let (_, other) = site.other();
    let is_available = || site.pool.try_allocate(&other, 2 * MIB).is_ok();
    for bytes in [MIB, 2 * MIB] {
        let block = site.take(bytes);
        site.work.submit(write(&block, 1));
        site.device.advance_to_end();
        let capture = site.pool.capture(&site.stream).unwrap();
        let calls = site
            .device
            .counters()
            .calls(weirpool::device::sim::Call::Record);
        drop(block);
        assert!(!is_available());
        assert_matches!(
            site.pool.try_allocate(&site.stream, 2 * MIB),
            Err(AllocError::NotReservedForCapture { .. }),
            "not to the capture either"
        );
        let records = site
            .device
            .counters()
            .calls(weirpool::device::sim::Call::Record);
        assert_eq!(records, calls, "no event is recorded on a captured stream");
        drop(capture);
        assert!(is_available());
    }
}

#[test]
fn request_that_would_have_to_wait_says_to_reserve_beforehand() {
    let site = Site::new(8 * MIB);
    let (_, other) = site.other();
    let held = site.pool.try_allocate(&other, 6 * MIB).unwrap();
    let capture = site.pool.capture(&site.stream).unwrap();
    let first = site.take(MIB);
    let mut waiting = Box::pin(site.pool.allocate(&site.stream, 4 * MIB));
    let error = crate::common::now(&mut waiting).unwrap_err();
    assert_eq!(
        error,
        AllocError::NotReservedForCapture {
            requested: 4 * MIB,
            size: 2 * MIB,
            left: MIB,
            largest: MIB,
        }
    );
    assert!(error.to_string().contains("reserve beforehand"), "{error}");
    assert_eq!(error.class(), ErrorClass::Busy { retry_after: None });
    drop((waiting, first, capture, held));

    let reservation = site.pool.reserve(6 * MIB).try_now().unwrap();
    let rest = site.pool.try_allocate(&other, 2 * MIB).unwrap();
    let memory = site.pool.graph_memory();
    memory.give(reservation).unwrap();
    let capture = memory.capture(&site.stream).unwrap();
    let blocks = [site.take(4 * MIB), site.take(2 * MIB)];
    assert_eq!((memory.size(), memory.left()), (6 * MIB, 0));
    drop((blocks, capture.end().unwrap(), memory, rest));
}

#[test]
fn reservation_of_another_pool_is_refused() {
    let (site, other) = (Site::new(8 * MIB), Site::new(8 * MIB));
    let memory = site.pool.graph_memory();
    let foreign = other.pool.reserve(MIB).try_now().unwrap();
    assert_eq!(memory.give(foreign), Err(StreamError::ForeignReservation));
    assert_eq!(memory.size(), 0);
}

#[test]
fn reservation_is_not_drawn_from_by_a_captured_stream() {
    let site = Site::new(8 * MIB);
    let reservation = site.pool.reserve(2 * MIB).try_now().unwrap();
    let capture = site.pool.capture(&site.stream).unwrap();
    let refused = reservation.allocate(&site.stream, 4096);
    assert_eq!(refused.unwrap_err(), AllocError::StreamCaptured);
    drop(capture);
    drop(reservation.allocate(&site.stream, 4096).unwrap());
}

#[test]
fn captures_share_memory_one_after_the_other() {
    let site = Site::new(64 * MIB);
    let (work, other) = site.other();
    let memory = site.pool.graph_memory();
    let mut graphs = Vec::new();
    let mut addresses = Vec::new();
    for (work, stream) in [
        (&site.work, &site.stream),
        (&work, &other),
        (&site.work, &site.stream),
    ] {
        let capture = memory.capture(stream).unwrap();
        let block = site.pool.try_allocate(stream, MIB).unwrap();
        work.submit(write(&block, 1));
        addresses.push(block.address());
        drop(block);
        graphs.push(capture.end().unwrap());
    }
    assert!(addresses.iter().all(|address| *address == addresses[0]));
    assert_eq!(memory.size(), 2 * MIB);
    for graph in &graphs {
        graph.launch(&site.stream).unwrap();
    }
    drop(memory);
    drop(graphs.remove(0));
    site.device.advance_to_end();
    assert_eq!(
        figures(&site.pool).in_graphs,
        2 * MIB,
        "two graphs are left"
    );
}

/// A block that outlives its capture is not reused by another capture with the same memory.
#[test]
fn live_block_is_kept_from_later_captures() {
    let site = Site::new(64 * MIB);
    let memory = site.pool.graph_memory();
    let capture = memory.capture(&site.stream).unwrap();
    let kept = site.take(MIB);
    let _first = capture.end().unwrap();
    let capture = memory.capture(&site.stream).unwrap();
    let block = site.take(MIB);
    assert_ne!(block.address(), kept.address());
    // Dropped in another capture than its own: for that one it is from before.
    let address = kept.address();
    drop((kept, block));
    assert_ne!(site.take(2 * MIB).address(), address);
    let _second = capture.end().unwrap();
}

#[test]
fn further_stream_of_a_capture_gets_other_memory() {
    let site = Site::new(64 * MIB);
    let (side, stream) = site.other();
    let mut capture = site.pool.capture(&site.stream).unwrap();
    assert!(
        capture.add(&stream).is_err(),
        "it is not part of the capture"
    );
    let event = site.device.create_event().unwrap();
    site.device.record(event, site.work.raw()).unwrap();
    site.device.wait(side.raw(), event).unwrap();
    capture.add(&stream).unwrap();
    let block = site.take(MIB);
    site.work.submit(write(&block, 1));
    let address = block.address();
    drop(block);
    let beside = site.pool.try_allocate(&stream, MIB).unwrap();
    assert_ne!(beside.address(), address, "the streams are not ordered");
    side.submit(write(&beside, 2));
    drop(beside);
    site.device.record(event, side.raw()).unwrap();
    site.device.wait(site.work.raw(), event).unwrap();
    let graph = capture.end().unwrap();
    graph.launch(&site.stream).unwrap();
}

#[test]
fn several_blocks_are_captured_all_or_none() {
    let site = Site::new(4 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let blocks = site.pool.allocate_many(&site.stream, [MIB, MIB, 4096]);
    let blocks = blocks.try_now().unwrap();
    assert_eq!(blocks.len(), 3);
    let more = site.pool.allocate_many(&site.stream, [MIB, 8 * MIB]);
    assert!(more.try_now().is_err());
    drop(blocks);
    assert_eq!(capture.memory().left(), capture.memory().size());
    let grown = site.pool.allocate(&site.stream, MIB).room(MIB).try_now();
    assert_matches!(grown, Err(AllocError::NoRoom { room: 0 }));
}

/// The order of a captured stream says nothing of the launches: memory that is granted to a request from before is
/// complete.
#[test]
fn request_from_before_the_capture_gets_complete_memory() {
    let site = Site::new(2 * MIB);
    let (work, other) = site.other();
    let all = site.pool.try_allocate(&other, 2 * MIB).unwrap();
    work.submit(write(&all, 1));
    let mut waiting = Box::pin(site.pool.allocate(&site.stream, 2 * MIB));
    assert!(crate::common::poll(&mut waiting).is_pending());
    let capture = site.pool.capture(&site.stream).unwrap();
    drop(all);
    assert!(
        crate::common::poll(&mut waiting).is_pending(),
        "not behind a wait on the device"
    );
    site.device.advance_to_end();
    let block = crate::common::now(&mut waiting).unwrap();
    site.work.submit(write(&block, 2));
    let graph = capture.end().unwrap();
    graph.launch(&other).unwrap();
    site.device.advance_to_end();
}

/// Memory of a graph stays with the graph, so it is not evicted for other requests while the graph can be launched.
#[test]
fn evictable_block_of_a_capture_is_kept_for_the_graph() {
    let site = Site::new(16 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let cached = site.take(8 * MIB).into_evictable();
    let graph = capture.end().unwrap();
    let _held = site.pool.try_allocate(&site.stream, 8 * MIB).unwrap();
    assert!(site.pool.try_allocate(&site.stream, 8 * MIB).is_err());
    assert!(cached.is_present());
    drop(graph);
    let other = site.pool.try_allocate(&site.stream, 8 * MIB);
    assert!(other.is_ok() && !cached.is_present());
}
