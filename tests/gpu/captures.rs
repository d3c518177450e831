//! Streams that are captured into a graph. In the global mode, a call that CUDA considers unsafe, such as the query of
//! an event, breaks every capture in progress, on any thread. A pool queries events while requests wait. So it makes
//! its calls in the relaxed mode.

use crate::bench::Bench;
use crate::common::MIB;
use crate::cuda::{Cuda, Mapped};
use crate::site::{Site, Worker, eventually};
use cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
    cuThreadExchangeStreamCaptureMode,
};
use cudarc::driver::{CudaGraph, CudaStream, DriverError, result};
use futures::FutureExt;
use futures::executor::block_on;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{DeviceAddress, DeviceError, DeviceErrorKind};
use weirpool::{Fill, FillAt, Pool, Source, TaskError, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

type Here = Cuda<Mapped>;

fn begin(worker: &Worker<Here>) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    worker.work.begin_capture(mode).unwrap();
}

fn end(worker: &Worker<Here>) -> Result<CudaGraph, DriverError> {
    let graph = worker.work.end_capture(CUgraphInstantiate_flags(0))?;
    Ok(graph.expect("a graph of what was captured"))
}

fn is_capturing(worker: &Worker<Here>) -> bool {
    let status = worker.work.capture_status().unwrap();
    status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
}

/// Runs the test's own calls in the relaxed mode, so that only the pool's calls run in the thread's initial mode.
fn relaxed<R>(call: impl FnOnce() -> R) -> R {
    let exchange = |mode: &mut CUstreamCaptureMode| {
        // SAFETY: exchanges the thread's mode with `mode`.
        unsafe { cuThreadExchangeStreamCaptureMode(mode) }
            .result()
            .unwrap();
    };
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange(&mut mode);
    let answer = call();
    exchange(&mut mode);
    answer
}

/// The premise of the other tests: another thread can break a capture, and this is detected.
pub(crate) fn query_in_the_default_mode_breaks_a_capture() {
    let site = Site::<Here>::new(8 * MIB);
    let [captured, other] = site.workers();
    let context = site.bench.gpu.context();
    let event = context.new_event(None).unwrap();
    event.record(&other.work).unwrap();
    other.settle();
    begin(&captured);
    site.bench.spend(&captured.work);
    let answer = thread::scope(|scope| {
        let query = scope.spawn(|| {
            context.bind_to_thread().unwrap();
            // SAFETY: the event is alive.
            unsafe { result::event::query(event.cu_event()) }
        });
        query.join().unwrap()
    });
    let refused = answer.unwrap_err().0;
    assert_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let broken = end(&captured).err().expect("a capture that is broken").0;
    assert_eq!(broken, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    site.assert_conserved();
}

/// Threads allocate, wait, free and trim, and a reclaimer runs, while a stream is captured. The graph is complete, and
/// does the captured work at each launch.
pub(crate) fn capture_is_not_broken_by_calls_of_the_pool() {
    const LAUNCHES: u32 = 20;
    let site = Site::<Here>::new(64 * MIB);
    let captured = site.worker();
    let gpu = &site.bench.gpu;
    let numbers = captured.take(MIB);
    captured.fill(&numbers, 0);
    captured.settle();
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    let served = || site.pool.inspect().statistics().waits.served;
    let reclaimer = site.pool.maintain().reclaimer();
    let Site { pool, .. } = &site;
    let mut graphs = Vec::new();
    thread::scope(|scope| {
        // The threads end, even if this one panics.
        let _end = OnDrop(|| is_over.store(true, Ordering::SeqCst));
        for worker in site.workers::<4>() {
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    wait_and_use(&worker);
                }
            });
        }
        scope.spawn(move || block_on(until(reclaimer, is_over)));
        scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let _ = pool.trim_to(32 * MIB).unwrap();
                pool.maintain().reap().unwrap();
                drop(pool.create_stream().unwrap());
                thread::sleep(Duration::from_micros(500));
            }
        });
        for _ in 0..5 {
            let before = served();
            begin(&captured);
            for _ in 0..LAUNCHES {
                gpu.add(&captured.work, numbers.address(), MIB, 1);
                thread::yield_now();
            }
            // Other threads wait and are served during each capture.
            eventually(|| served() >= before + 20 || !is_capturing(&captured));
            graphs.push(end(&captured).expect("a capture that is whole"));
        }
    });
    for graph in &graphs {
        graph.launch().unwrap();
        graph.launch().unwrap();
    }
    let sum = 2 * graphs.len() as u32 * LAUNCHES;
    let download = numbers.download(&captured.stream, 0..MIB).unwrap();
    let expected = sum.to_ne_bytes().repeat(MIB as usize / 4);
    assert!(
        block_on(download).unwrap() == expected,
        "the graphs add {sum} in all"
    );
    drop(numbers);
    captured.settle();
    site.assert_sound();
}

/// Blocks are passed through to a pool of the driver, which grows, on the thread that captures and on one that has no
/// context. Both are in the default mode.
pub(crate) fn capture_is_not_broken_by_blocks_that_are_passed_through() {
    let site = Site::<Here>::new(8 * MIB);
    let captured = site.worker();
    let device = site.bench.device();
    let driver_pool = DriverPool::builder(&device).build().unwrap();
    let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
    let pool = Pool::builder(device).segment_source(segments);
    let pool = pool.build().unwrap();
    let stream = pool.create_stream().unwrap();
    let use_pool = || {
        for bytes in [256, 4 * MIB, 64 * MIB] {
            let blocks = [0; 2].map(|_| pool.try_allocate(&stream, bytes).unwrap());
            drop(blocks);
            drop(pool.try_allocate(&stream, bytes).unwrap());
        }
    };
    begin(&captured);
    site.bench.spend(&captured.work);
    use_pool();
    thread::scope(|scope| scope.spawn(use_pool).join()).unwrap();
    assert!(is_capturing(&captured));
    let graph = end(&captured).expect("a capture that is whole");
    graph.launch().unwrap();
    captured.settle();
    // On the captured stream itself a free is refused, and an allocation finds other memory or none.
    let stream = pool.register(&captured.work).unwrap();
    let blocks = [256, 4 * MIB].map(|bytes| pool.try_allocate(&stream, bytes).unwrap());
    captured.settle();
    begin(&captured);
    site.bench.spend(&captured.work);
    drop(blocks);
    drop(pool.try_allocate(&stream, 256));
    assert!(is_capturing(&captured));
    let graph = end(&captured).expect("a capture that is whole");
    graph.launch().unwrap();
    captured.settle();
    pool.inspect().check_conserved().unwrap();
    drop(pool);
    eventually(|| driver_pool.used().unwrap().current == 0);
    site.assert_conserved();
}

/// Work of the device is captured. What needs an event, or the host, is refused without breaking the capture.
pub(crate) fn captured_stream_takes_device_work_alone() {
    let site = Site::<Here>::new(8 * MIB);
    let [captured, other] = site.workers();
    let mut numbers = captured.take(MIB);
    let refused = |answer: Result<(), TaskError>| match answer {
        Err(TaskError::Device(error)) => {
            assert_eq!(error.kind(), DeviceErrorKind::Unsupported, "{error}");
        }
        answer => panic!("{answer:?}"),
    };
    begin(&captured);
    let task = captured
        .stream
        .submit(&mut numbers, |work: &CudaStream, memory| {
            site.bench
                .gpu
                .fill(work, memory.address(), memory.size(), 7);
        });
    let task = task.unwrap();
    refused(task.is_complete().map(drop).map_err(TaskError::from));
    refused(other.stream.after(&task));
    refused(captured.stream.run(|| ()).map(drop));
    refused(captured.stream.spawn(async {}).map(drop));
    end(&captured)
        .expect("a capture that is whole")
        .launch()
        .unwrap();
    block_on(task).unwrap();
    let download = numbers.download(&captured.stream, 0..MIB).unwrap();
    let expected = 7u32.to_ne_bytes().repeat(MIB as usize / 4);
    assert!(block_on(download).unwrap() == expected, "the graph fills");
    drop(numbers);
    captured.settle();
    site.assert_conserved();
}

/// Uses a block of 24 MiB, of which four do not fit at once.
fn wait_and_use(worker: &Worker<Here>) {
    let block = block_on(worker.allocate(24 * MIB));
    relaxed(|| worker.use_up(&block, 9));
    block_on(block.deallocate()).unwrap();
}

/// Runs a future until it is complete or the flag is set.
async fn until(future: impl Future<Output = ()>, is_over: &AtomicBool) {
    let mut future = Box::pin(future);
    std::future::poll_fn(|context| {
        // Polls without pause, unlike a real executor, to query the device as often as possible.
        context.waker().wake_by_ref();
        thread::yield_now();
        if is_over.load(Ordering::SeqCst) {
            return std::task::Poll::Ready(());
        }
        future.as_mut().poll(context)
    })
    .await;
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, DeviceError>) {
    let error = answer.expect_err("nothing is recorded in a capture");
    assert_eq!(error.kind(), DeviceErrorKind::Unsupported, "{error}");
    assert!(error.reason().contains("captured"), "{error}");
}

/// The driver's id of a stream cannot be asked for during a capture: the question would invalidate it.
pub(crate) fn captured_stream_of_another_library_is_wrapped() {
    let site = Site::<Here>::new(8 * MIB);
    let [captured, _] = site.workers();
    let device = CudaDevice::builder().context(site.bench.gpu.context().clone());
    let device = device.build().unwrap();
    // SAFETY: the worker keeps the stream.
    let wrap = || unsafe { device.external_stream(captured.work.cu_stream()) }.unwrap();
    let before = wrap();
    begin(&captured);
    let during = wrap();
    assert!(is_capturing(&captured));
    assert_eq!(during, wrap());
    assert_ne!(during, before);
    end(&captured).unwrap();
    assert_eq!(wrap(), before);
}

/// A captured stream does not run, so memory freed on it cannot be seen complete: it stays pending, an awaited free
/// fails, and the capture continues. After the capture, the next event completes all of it.
pub(crate) fn captured_stream_keeps_its_freed_memory() {
    let site = Site::<Here>::without_device_waits(16 * MIB);
    let [captured, other] = site.workers();
    let large = captured.take(8 * MIB);
    let small = captured.take(MIB);
    let awaited = captured.take(MIB);
    let kept = captured.take(MIB);
    captured.fill(&kept, 1);
    let earlier = captured.stream.event().unwrap();
    captured.settle();

    begin(&captured);
    site.bench
        .gpu
        .fill(&captured.work, kept.address(), kept.size(), 2);
    drop(large);
    drop(small);
    assert_refused(block_on(awaited.deallocate()));
    assert_refused(captured.stream.seal());
    assert_refused(captured.stream.event());
    assert_refused(block_on(captured.stream.synchronize()));
    assert!(earlier.is_complete().unwrap(), "it precedes the capture");
    assert_eq!(site.pool.inspect().statistics().pending.current, 10 * MIB);
    other.take_nothing(8 * MIB);
    // Other streams are not affected.
    let elsewhere = other.take(2 * MIB);
    relaxed(|| {
        other.use_up(&elsewhere, 3);
        other.settle();
    });
    assert!(is_capturing(&captured));
    let graph = end(&captured).expect("a capture that is whole");

    captured.stream.seal().unwrap();
    captured.settle();
    let block = other.take_from(Source::Free, 8 * MIB);
    other.use_up(&block, 4);
    other.settle();
    graph.launch().unwrap();
    captured.settle();
    let bytes = site.bench.gpu.read_now(kept.address(), kept.size());
    assert!(bytes.chunks(4).all(|word| word == 2u32.to_ne_bytes()));
    drop((kept, elsewhere, block));
    site.assert_sound();
}

/// A captured fill would run again at each launch, whichever block has the memory by then. So fills are skipped, and
/// the capture continues.
pub(crate) fn graph_has_no_fills() {
    let site = Site::<Here>::with(16 * MIB, |builder| {
        let builder = builder.fill(FillAt::Allocation, Fill::Zero);
        builder.fill(FillAt::Free, Fill::Poison)
    });
    let captured = site.worker();
    let gpu = &site.bench.gpu;
    let written = captured.take(MIB);
    let earlier = captured.take(MIB);
    let address = earlier.address();
    drop(earlier);
    captured.settle();

    begin(&captured);
    gpu.fill(&captured.work, written.address(), written.size(), 2);
    let block = captured.take(MIB);
    assert_eq!(block.address(), address);
    drop(block);
    let graph = end(&captured).expect("a capture that is whole");
    captured.settle();
    let is_full_of = |address: DeviceAddress, word: u32| {
        let bytes = gpu.read_now(address, MIB);
        bytes.chunks(4).all(|chunk| chunk == word.to_ne_bytes())
    };
    assert!(is_full_of(address, u32::MAX), "not filled");

    gpu.write_now(address, MIB, 3);
    graph.launch().unwrap();
    captured.settle();
    assert!(is_full_of(written.address(), 2));
    assert!(is_full_of(address, 3));
    let block = captured.take(MIB);
    assert_eq!(block.address(), address);
    captured.settle();
    assert!(is_full_of(address, 0), "filled after the capture");
    drop((block, written));
    site.assert_conserved();
}

/// Memory that the host sees, in a block of before the capture. No launch begins while the host has access.
pub(crate) fn host_gets_a_block_after_the_launches_that_use_it() {
    let site = Site::<Here>::with(16 * MIB, |builder| builder.upstream(Upstream::Pinned));
    let [captured, launching] = site.workers();
    let mut block = captured.take(MIB);
    let capture = site.pool.capture(&captured.stream).unwrap();
    block.fill(&captured.stream, 1).unwrap();
    let graph = capture.end().unwrap();
    for _ in 0..10 {
        let gate = site.bench.hold(&launching.work);
        graph.launch(&launching.stream).unwrap();
        let mut host = Box::pin(block.host());
        assert!(host.as_mut().now_or_never().is_none());
        gate.open();
        let mut guard = block_on(host).unwrap();
        assert!(guard.iter().all(|byte| *byte == 1));
        assert!(graph.launch(&launching.stream).is_err());
        guard.fill(2);
    }
    drop((block, graph));
    captured.settle();
}

/// Warp's second way out of a captured copy between devices without access.
pub(crate) fn captured_copy_of_plain_memory_needs_no_access() {
    if CudaDevice::all().unwrap().len() < 2 {
        return eprintln!("one GPU");
    }
    let devices = [0, 1].map(|ordinal| CudaDevice::new(ordinal).unwrap());
    let pools = devices.each_ref().map(|device| {
        let builder = Pool::builder(device.clone()).capacity(16 * MIB);
        builder.upstream(Upstream::Device).build().unwrap()
    });
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let [mut from, mut to] = [0, 1].map(|at| pools[at].try_allocate(&streams[at], MIB).unwrap());
    for (pool, stream) in pools.iter().zip(&streams) {
        block_on(stream.synchronize()).unwrap();
        pool.maintain().reap().unwrap();
    }
    let capture = pools[0].capture(&streams[0]).unwrap();
    block_on(from.copy_to(0..MIB, &mut to, 0, &streams[0]).unwrap()).unwrap();
    let graph = capture.end().unwrap();
    for value in [3, 4] {
        from.fill(&streams[0], value).unwrap();
        graph.launch(&streams[0]).unwrap();
        let bytes = block_on(to.download(&streams[1], 0..MIB).unwrap()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == value));
    }
    drop((from, to, graph));
}
