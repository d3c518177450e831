//! Allocation while a stream is captured into a graph.

use crate::bench::Bench;
use crate::common::{MIB, assert_matches, until_freed};
use crate::site::{Site, Worker, eventually};
use futures::executor::block_on;
use weirpool::device::DeviceErrorKind;
use weirpool::{AllocError, Block, Stream, StreamError};

/// Waits until no graph has memory. A device reports the end of a graph on a thread of its own.
pub(crate) fn await_release<B: Bench>(site: &Site<B>, workers: &[&Worker<B>]) {
    eventually(|| {
        workers.iter().for_each(|worker| worker.settle());
        site.pool.inspect().statistics().in_graphs == 0
    });
    site.assert_conserved();
}

/// [PyTorch's graph pools] The memory of a capture goes to no other request, whether or not its block was dropped.
pub(crate) fn addresses_stay_valid_over_launches<B: Bench>() {
    let site = Site::<B>::new(32 * MIB);
    let [captured, other] = site.workers();
    let before = captured.take(MIB);
    captured.fill(&before, 7);
    drop(before);
    let capture = site.pool.capture(&captured.stream).unwrap();
    let temporary = captured.take(MIB);
    let address = temporary.address();
    captured.fill(&temporary, 1);
    drop(temporary);
    let again = captured.take(MIB);
    assert_eq!(again.address(), address, "the capture reuses its memory");
    captured.fill(&again, 3);
    let result = captured.take(4 * MIB);
    captured.fill(&result, 2);
    drop(again);
    let graph = capture.end().unwrap();
    for _ in 0..20 {
        let mut blocks = Vec::new();
        while let Ok(block) = other.try_take(4 * MIB) {
            other.use_up(&block, 9);
            blocks.push(block);
        }
        assert!(!blocks.is_empty());
        graph.launch(&captured.stream).unwrap();
        captured.expect(&result, 2);
        captured.use_up(&result, 5);
        for block in &blocks {
            other.expect(block, 9);
        }
        drop(blocks);
    }
    captured.settle();
    drop((result, graph));
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}

/// [PyTorch's trees of graphs] A branch that is captured behind a restored checkpoint leaves the result of the root
/// alone, and a branch that was captured before may use the same memory.
pub(crate) fn restored_checkpoint_is_not_overwritten_by_another_branch<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let [captured, other] = site.workers();
    let memory = site.pool.graph_memory();
    let input = memory.allocate(&captured.stream, MIB).unwrap();
    captured.fill(&input, 1);
    let capture = memory.capture(&captured.stream).unwrap();
    let result = captured.take(2 * MIB);
    captured.fill(&result, 2);
    let root = capture.end().unwrap();
    let (checkpoint, address) = (memory.checkpoint(), result.address());
    assert_eq!(checkpoint.ranges().len(), 2);

    captured.free_and_settle(result);
    let capture = memory.capture(&captured.stream).unwrap();
    let reused = captured.take(2 * MIB);
    assert_eq!(reused.address(), address);
    captured.fill(&reused, 3);
    let first = capture.end().unwrap();
    drop((reused, input));
    captured.settle();

    let restored = memory.restore(&checkpoint, &captured.stream).unwrap();
    let is_there = |address, bytes| {
        let is_it = |block: &&Block| block.address() == address && block.size() == bytes;
        restored.iter().find(is_it).unwrap()
    };
    let result = is_there(address, 2 * MIB);
    let capture = memory.capture(&captured.stream).unwrap();
    let branch = captured.take(2 * MIB);
    captured.fill(&branch, 4);
    let second = capture.end().unwrap();
    for _ in 0..10 {
        let elsewhere = other.take(4 * MIB);
        other.use_up(&elsewhere, 9);
        root.launch(&captured.stream).unwrap();
        second.launch(&captured.stream).unwrap();
        captured.expect(result, 2);
        captured.expect(&branch, 4);
        root.launch(&captured.stream).unwrap();
        first.launch(&captured.stream).unwrap();
        captured.expect(result, 3);
        captured.settle();
    }
    drop((restored, branch, root, first, second, memory));
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}

/// A block of before the capture, which a captured call names, is dropped. Launches write it, and no other block.
pub(crate) fn block_that_captured_work_names_stays_with_the_graph<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [captured, other] = site.workers();
    let mut before = captured.take(MIB);
    captured.fill(&before, 7);
    captured.settle();
    let capture = site.pool.capture(&captured.stream).unwrap();
    before.fill(&captured.stream, 1).unwrap();
    let graph = capture.end().unwrap();
    drop(before);
    captured.settle();
    let _ = site.pool.trim_to(0).unwrap();
    for _ in 0..10 {
        let mut blocks = Vec::new();
        while let Ok(block) = other.try_take(MIB) {
            other.use_up(&block, 9);
            blocks.push(block);
        }
        graph.launch(&captured.stream).unwrap();
        captured.settle();
        for block in &blocks {
            other.expect(block, 9);
        }
        drop(blocks);
    }
    drop(graph);
    eventually(|| {
        captured.settle();
        other.settle();
        site.pool.inspect().statistics().used.current == 0
    });
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}

/// A launch is a use of the blocks that captured work names: uses on other streams, and an awaited free, come after it.
pub(crate) fn uses_of_a_block_come_after_launches<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [captured, launching, other] = site.workers();
    let mut block = captured.take(MIB);
    captured.fill(&block, 7);
    captured.settle();
    let capture = site.pool.capture(&captured.stream).unwrap();
    block.fill(&captured.stream, 1).unwrap();
    let graph = capture.end().unwrap();
    let gate = site.bench.hold(&launching.work);
    graph.launch(&launching.stream).unwrap();
    let download = block.download(&other.stream, 0..MIB).unwrap();
    gate.open();
    assert!(block_on(download).unwrap().iter().all(|byte| *byte == 1));
    other.expect(&block, 1);
    other.settle();
    graph.launch(&launching.stream).unwrap();
    block_on(block.deallocate()).unwrap();
    drop(graph);
    eventually(|| {
        captured.settle();
        other.settle();
        site.pool.inspect().statistics().used.current == 0
    });
    await_release(&site, &[&captured, &launching, &other]);
    site.assert_sound();
}

/// [CUDA user objects] The graph is dropped while a launch is held. Its memory is available after the launch.
pub(crate) fn running_launch_keeps_the_memory<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [captured, other] = site.workers();
    let capture = site.pool.capture(&captured.stream).unwrap();
    let block = captured.take(8 * MIB);
    captured.fill(&block, 1);
    drop(block);
    let graph = capture.end().unwrap();
    let gate = site.bench.hold(&captured.work);
    graph.launch(&captured.stream).unwrap();
    drop(graph);
    site.bench.let_run();
    assert_eq!(site.pool.inspect().statistics().in_graphs, 8 * MIB);
    other.take_nothing(MIB);
    gate.open();
    await_release(&site, &[&captured]);
    let block = other.take(8 * MIB);
    other.use_up(&block, 2);
    other.free_and_settle(block);
    site.assert_sound();
}

/// [CUDA] A launch in a capture is refused. It invalidates neither that capture nor the graph.
pub(crate) fn launch_in_a_capture_is_refused<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [captured, other] = site.workers();
    let capture = site.pool.capture(&captured.stream).unwrap();
    let first = captured.take(MIB);
    captured.fill(&first, 1);
    let inner = capture.end().unwrap();
    let capture = site.pool.capture(&other.stream).unwrap();
    let second = other.take(MIB);
    other.fill(&second, 2);
    let refused = inner.launch(&other.stream).unwrap_err();
    let StreamError::Device(error) = refused else {
        panic!("{refused}");
    };
    assert_eq!(error.kind(), DeviceErrorKind::Unsupported, "{error}");
    let outer = capture.end().unwrap();
    inner.launch(&captured.stream).unwrap();
    outer.launch(&other.stream).unwrap();
    captured.expect(&first, 1);
    other.expect(&second, 2);
    captured.settle();
    other.settle();
    drop((first, second, inner, outer));
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}

/// Blocks and graphs of a closed pool keep their memory, but no work of graphs is begun.
pub(crate) fn closed_pool_captures_and_launches_nothing<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let captured = site.worker();
    let memory = site.pool.graph_memory();
    let capture = memory.capture(&captured.stream).unwrap();
    let block = captured.take(MIB);
    captured.fill(&block, 1);
    let graph = capture.end().unwrap();
    graph.launch(&captured.stream).unwrap();
    site.pool.close();
    let closed = StreamError::Closed;
    assert_eq!(graph.launch(&captured.stream).unwrap_err(), closed);
    assert_eq!(memory.capture(&captured.stream).unwrap_err(), closed);
    // SAFETY: the host has access to no block of the graph while it is launched.
    let joined = unsafe { memory.join(&captured.stream) };
    assert_eq!(joined.unwrap_err(), closed);
    assert_eq!(site.pool.capture(&captured.stream).unwrap_err(), closed);
    captured.expect(&block, 1);
    captured.settle();
    drop((block, graph, memory));
    await_release(&site, &[&captured]);
    site.assert_sound();
}

pub(crate) fn zero_fill_is_made_at_each_launch<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let captured = site.worker();
    let capture = site.pool.capture(&captured.stream).unwrap();
    let block = site.pool.allocate(&captured.stream, MIB).zeroed();
    let block = block.try_now().unwrap();
    let graph = capture.end().unwrap();
    for _ in 0..3 {
        captured.fill(&block, 6);
        graph.launch(&captured.stream).unwrap();
        captured.expect(&block, 0);
    }
    captured.settle();
    drop((block, graph));
    await_release(&site, &[&captured]);
    site.assert_sound();
}

pub(crate) fn request_does_not_wait_inside_a_capture<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [captured, other] = site.workers();
    let held = other.take(12 * MIB);
    let capture = site.pool.capture(&captured.stream).unwrap();
    let refused = futures::executor::block_on(site.pool.allocate(&captured.stream, 8 * MIB));
    assert_matches!(refused, Err(AllocError::NotReservedForCapture { .. }));
    drop(capture);
    drop(held);
    other.stream.seal().unwrap();
    other.settle();
    let memory = site.pool.graph_memory();
    memory
        .give(site.pool.reserve(8 * MIB).try_now().unwrap())
        .unwrap();
    let rest = other.take(4 * MIB);
    let capture = memory.capture(&captured.stream).unwrap();
    let block = captured.take(8 * MIB);
    captured.fill(&block, 1);
    let graph = capture.end().unwrap();
    graph.launch(&captured.stream).unwrap();
    captured.expect(&block, 1);
    captured.settle();
    drop((block, graph, memory, rest));
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}

/// Whatever the state of a capture, its end leaves the stream usable.
pub(crate) fn aborted_capture_leaves_nothing<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let captured = site.worker();
    let earlier = captured.take(MIB);
    captured.fill(&earlier, 1);
    let mut kept: Vec<Block> = Vec::new();
    for round in 0..4 {
        let capture = site.pool.capture(&captured.stream).unwrap();
        let block = captured.take(MIB);
        captured.fill(&block, 2);
        match round {
            0 => drop((block, capture)),
            1 => {
                drop(capture);
                kept.push(block);
            }
            2 => drop(std::thread::spawn(move || drop((capture, block))).join()),
            _ => {
                let second = site.pool.capture(&captured.stream);
                assert!(second.is_err(), "one at a time");
                drop((capture, block));
            }
        }
        captured.expect(&earlier, 1);
        captured.use_up(&captured.take(MIB), 3);
    }
    for block in kept {
        captured.use_up(&block, 4);
    }
    captured.settle();
    drop(earlier);
    await_release(&site, &[&captured]);
    site.assert_sound();
}

/// A block from before the capture is dropped in it. No event is recorded on the stream, and the block is free
/// afterwards.
pub(crate) fn earlier_block_is_freed_after_the_capture<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [captured, other] = site.workers();
    let block = captured.take(8 * MIB);
    captured.use_up(&block, 1);
    captured.settle();
    let capture = site.pool.capture(&captured.stream).unwrap();
    drop(block);
    assert!(captured.stream.event().unwrap().is_complete().is_err());
    other.take_nothing(8 * MIB);
    let graph = capture.end().unwrap();
    captured.settle();
    let block = other.take(8 * MIB);
    other.use_up(&block, 2);
    other.free_and_settle(block);
    drop(graph);
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}

/// Streams fork and join by events of the capture, and each reuses what the other one freed before.
pub(crate) fn streams_of_a_capture_reuse_what_they_come_after<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let [captured, other] = site.workers();
    let capture = site.pool.capture(&captured.stream).unwrap();
    let follow = |earlier: &Stream, later: &Stream| later.wait(&earlier.event().unwrap()).unwrap();
    for turn in 1..6 {
        let block = captured.take(8 * MIB);
        captured.fill(&block, turn);
        follow(&captured.stream, &other.stream);
        until_freed(&other.stream, &block);
        other.fill(&block, turn + 10);
        drop(block);
        let own = other.take(8 * MIB);
        other.fill(&own, turn + 20);
        follow(&other.stream, &captured.stream);
        drop(own);
    }
    assert!(capture.memory().size() <= 24 * MIB);
    let graph = capture.end().unwrap();
    for worker in [&captured, &other] {
        graph.launch(&worker.stream).unwrap();
        worker.settle();
    }
    drop(graph);
    await_release(&site, &[&captured, &other]);
    let block = other.take(MIB);
    other.use_up(&block, 2);
    other.free_and_settle(block);
    site.assert_sound();
}

/// What graphs hold is extended where memory is virtual, and stays valid.
pub(crate) fn graphs_of_growing_sizes_share_memory<B: Bench>() {
    let site = Site::<B>::new(128 * MIB);
    let [captured, other] = site.workers();
    let memory = site.pool.graph_memory();
    let mut graphs = Vec::new();
    for size in (1..=8).map(|step| step * 8 * MIB) {
        let capture = memory.capture(&captured.stream).unwrap();
        // Plain memory is not extended, and may not suffice for all.
        if let Ok(block) = site.pool.try_allocate(&captured.stream, size) {
            captured.fill(&block, 1);
        }
        graphs.push(capture.end().unwrap());
        for graph in &graphs {
            graph.launch(&captured.stream).unwrap();
        }
    }
    captured.settle();
    drop((memory, graphs));
    await_release(&site, &[&captured, &other]);
    let block = other.take(MIB);
    other.use_up(&block, 2);
    other.free_and_settle(block);
    site.assert_sound();
}

pub(crate) fn captures_share_memory<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [captured, other] = site.workers();
    let memory = site.pool.graph_memory();
    let mut graphs = Vec::new();
    let mut addresses = Vec::new();
    for worker in [&captured, &other, &captured] {
        let capture = memory.capture(&worker.stream).unwrap();
        let block = worker.take(MIB);
        worker.fill(&block, 1);
        addresses.push(block.address());
        drop(block);
        graphs.push(capture.end().unwrap());
    }
    assert!(addresses.iter().all(|address| *address == addresses[0]));
    for graph in &graphs {
        graph.launch(&other.stream).unwrap();
    }
    other.settle();
    let block = captured.take(MIB);
    captured.use_up(&block, 2);
    captured.settle();
    drop((block, memory, graphs));
    await_release(&site, &[&captured, &other]);
    site.assert_sound();
}
