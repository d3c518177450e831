//! Graphs that cudarc captures, instantiates and launches, on memory of a pool.

use crate::common::MIB;
use crate::cuda::{Cuda, Mapped};
use crate::site::{Site, eventually};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use futures::executor::block_on;
use weirpool::CopyError;
use weirpool::device::DeviceErrorKind;

type Here = Cuda<Mapped>;

/// cudarc's graph keeps the memory, although no call of the pool names its launches.
pub(crate) fn graph_of_cudarc_keeps_its_memory() {
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        let site = Site::<Here>::new(16 * MIB);
        let [captured, other] = site.workers();
        let memory = site.pool.graph_memory();
        // SAFETY: the host has access to no block of the graph while it is launched.
        let joined = unsafe { memory.join(&captured.stream) };
        assert!(joined.is_err(), "it is not captured");
        captured.work.begin_capture(mode).unwrap();
        // SAFETY: the host has access to no block of the graph while it is launched.
        let joined = unsafe { memory.join(&captured.stream) }.unwrap();
        let temporary = captured.take(MIB);
        captured.fill(&temporary, 1);
        let address = temporary.address();
        drop(temporary);
        let result = captured.take(2 * MIB);
        captured.fill(&result, 2);
        let graph = captured
            .work
            .end_capture(CUgraphInstantiate_flags(0))
            .unwrap();
        let graph = graph.expect("a graph of what was captured");
        drop((joined, memory));
        for _ in 0..20 {
            let mut blocks = Vec::new();
            while let Ok(block) = other.try_take(2 * MIB) {
                assert_ne!(block.address(), address);
                other.use_up(&block, 9);
                blocks.push(block);
            }
            graph.launch().unwrap();
            captured.expect(&result, 2);
            captured.use_up(&result, 5);
        }
        captured.settle();
        other.settle();
        drop(result);
        assert!(site.pool.inspect().statistics().in_graphs > 0);
        // The last launch runs while the graph is dropped.
        let gate = crate::bench::Bench::hold(&site.bench, &captured.work);
        graph.launch().unwrap();
        drop(graph);
        assert!(
            site.pool.inspect().statistics().in_graphs > 0,
            "the launch is held"
        );
        gate.open();
        eventually(|| {
            captured.settle();
            site.pool.inspect().statistics().in_graphs == 0
        });
        site.assert_sound();
    }
}

/// A captured upload copies the bytes that it was given at each launch.
pub(crate) fn upload_is_captured_with_its_bytes() {
    let site = Site::<Here>::new(16 * MIB);
    let captured = site.worker();
    let bytes: Vec<u8> = (0..MIB).map(|at| at as u8).collect();
    let capture = site.pool.capture(&captured.stream).unwrap();
    let mut block = captured.take(MIB);
    block_on(block.upload(&captured.stream, 0, &bytes).unwrap()).unwrap();
    let refused = block.download(&captured.stream, 0..4).err();
    assert!(matches!(
        refused,
        Some(CopyError::Device(error)) if error.kind() == DeviceErrorKind::Unsupported
    ));
    let graph = capture.end().unwrap();
    for _ in 0..3 {
        captured.fill(&block, 0);
        graph.launch(&captured.stream).unwrap();
        let download = block.download(&captured.stream, 0..MIB).unwrap();
        assert!(block_on(download).unwrap() == bytes);
    }
    drop((block, graph));
    eventually(|| {
        captured.settle();
        site.pool.inspect().statistics().in_graphs == 0
    });
    site.assert_conserved();
}

/// Other code ends the capture, or a call that CUDA does not allow in a capture invalidates it.
pub(crate) fn capture_ends_in_every_state() {
    let site = Site::<Here>::new(16 * MIB);
    let captured = site.worker();
    let capture = site.pool.capture(&captured.stream).unwrap();
    let block = captured.take(MIB);
    captured.fill(&block, 1);
    let graph = captured
        .work
        .end_capture(CUgraphInstantiate_flags(0))
        .unwrap();
    assert!(capture.end().is_err());
    captured.use_up(&captured.take(MIB), 2);
    graph.expect("a graph").launch().unwrap();
    captured.expect(&block, 1);
    captured.settle();
    drop(block);

    let capture = site.pool.capture(&captured.stream).unwrap();
    let block = captured.take(MIB);
    captured.fill(&block, 1);
    assert!(captured.work.synchronize().is_err(), "it is captured");
    assert!(capture.end().is_err(), "it was invalidated");
    captured.use_up(&block, 3);
    captured.settle();
    drop(block);
    eventually(|| {
        captured.settle();
        site.pool.inspect().statistics().in_graphs == 0
    });
    site.assert_sound();
}
