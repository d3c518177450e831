//! Buffers in calls of cudarc: its copies, and cuBLAS. None of these calls names a registered stream. The pool learns
//! from cudarc on which stream a call works, and orders it.
//!
//! A copy from or to ordinary host memory blocks its thread while its stream is held. So tests that hold a stream use
//! copies within the device, and fills.

use crate::bench::{Bench, Gate, raw};
use crate::common::MIB;
use crate::cuda::{Cuda, Mapped};
use crate::gpu::{another_context, text_of};
use crate::site::{Site, Worker, settle_all};
use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchConfig, PushKernelArg,
};
use futures::executor::block_on;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weirpool::device::Argument;
use weirpool::{Buffer, Source, Unordered};

type Here = Cuda<Mapped>;

const COUNT: usize = 1 << 20;

fn buffer(worker: &Worker<Here>) -> Buffer<u32> {
    worker.pool.buffer(&worker.stream, COUNT).try_now().unwrap()
}

fn numbers(from: u32) -> Vec<u32> {
    (from..).take(COUNT).collect()
}

/// Adds to each element, with a kernel whose argument was created for its stream.
fn add(worker: &Worker<Here>, argument: Argument<'_>, amount: u64) {
    let words = argument.size() / 4;
    let mut launch = worker.work.launch_builder(worker.bench.gpu.kernel("add"));
    launch.arg(&argument).arg(&words).arg(&amount);
    // SAFETY: the kernel accesses this many words from the argument on, which the block contains.
    unsafe { launch.launch(LaunchConfig::for_num_elems(words as u32)) }.unwrap();
}

/// Seals the streams and waits for them, so that the next query sees their freed memory complete.
fn seal_and_settle(workers: &[&Worker<Here>]) {
    let seal = |worker: &&Worker<Here>| worker.stream.seal().unwrap();
    workers.iter().for_each(seal);
    settle_all(workers);
}

/// Copies from the host, within the device and back, on several streams, without any explicit order.
pub(crate) fn copies_of_cudarc_accept_buffers() {
    let site = Site::<Here>::new(64 * MIB);
    let [home, second, third] = site.workers();
    let own = site.pool.create_stream().unwrap();
    let pools = site.bench.device.stream(own.raw()).unwrap();
    let works = [&home.work, &second.work, &third.work, &pools];
    let (mut from, mut to) = (buffer(&home), buffer(&second));
    for round in 0..12 {
        let work = |n: usize| works[(round + n) % works.len()];
        let expected = numbers(round as u32);
        work(0).memcpy_htod(&expected, &mut from).unwrap();
        work(1).memset_zeros(&mut to).unwrap();
        work(2).memcpy_dtod(&from, &mut to).unwrap();
        let mut back = vec![0; COUNT];
        work(3).memcpy_dtoh(&to, &mut back).unwrap();
        assert!(back == expected, "in round {round}");
        assert!(block_on(from.read(&second.stream)).unwrap() == expected);
    }
    assert_eq!(DeviceSlice::stream(&from).as_ref(), home.work.as_ref());
    let made = site.pool.buffer::<u32>(&own, 1).try_now().unwrap();
    assert_eq!(raw(DeviceSlice::stream(&made)), own.raw());

    // Parts of buffers, and bytes.
    let expected = numbers(11);
    let part = from.slice_mut(10..30).unwrap();
    let back = third.work.clone_dtoh(&part).unwrap();
    assert_eq!(back, expected[10..30]);
    let bytes = from.into_block();
    let back = pools.clone_dtoh(&bytes).unwrap();
    assert_eq!(back, bytes_of(&expected));
    let mut block = home.take(1000);
    second.work.memcpy_htod(&[7u8; 1000], &mut block).unwrap();
    assert_eq!(DeviceSlice::len(&block), 1000, "the requested size");
    assert_eq!(third.work.clone_dtoh(&block).unwrap(), [7u8; 1000]);
    drop((bytes, block, to, made));
    settle_all(&[&home, &second, &third]);
    site.assert_conserved();
}

fn bytes_of(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

/// A long kernel writes on one stream. A copy on another stream sees its writes, and a kernel on a third one sees those
/// of the copy.
pub(crate) fn copy_sees_writes_of_a_kernel_on_another_stream() {
    let site = Site::<Here>::new(64 * MIB);
    let [home, kernels, copies] = site.workers();
    for is_exclusive in [false, true] {
        let (mut from, mut to) = (buffer(&home), buffer(&home));
        home.work.memcpy_htod(&numbers(5), &mut from).unwrap();
        let gate = {
            let argument = if is_exclusive {
                kernels.stream.record_use(&mut from).unwrap()
            } else {
                kernels.come_after(&home);
                kernels
                    .stream
                    .record_use(Unordered::Once(from.as_block()))
                    .unwrap()
            };
            let gate = site.bench.hold(&kernels.work);
            add(&kernels, argument, 3);
            gate
        };
        copies.work.memcpy_dtod(&from, &mut to).unwrap();
        add(&home, home.stream.record_use(&mut to).unwrap(), 1);
        site.bench.let_run();
        gate.open();
        let back = home.work.clone_dtoh(&to).unwrap();
        assert!(back == numbers(9), "the copy came too early");
    }
    settle_all(&[&home, &kernels, &copies]);
    site.assert_conserved();
}

/// A copy is on a stream that only cudarc named. The memory is not reused before the copy is complete.
pub(crate) fn memory_is_not_reused_before_a_copy_has_ended() {
    let site = Site::<Here>::without_device_waits(16 * MIB);
    let [home, copies, other] = site.workers();
    for is_read in [true, false] {
        let mut kept = site
            .pool
            .buffer::<u8>(&home.stream, 8 << 20)
            .try_now()
            .unwrap();
        let mut freed = site
            .pool
            .buffer::<u8>(&home.stream, 8 << 20)
            .try_now()
            .unwrap();
        home.work.memset_zeros(&mut kept).unwrap();
        home.fill(
            home.stream
                .record_use(Unordered::Once(freed.as_block()))
                .unwrap(),
            1,
        );
        home.settle();
        let gate = site.bench.hold(&copies.work);
        if is_read {
            copies.work.memcpy_dtod(&freed, &mut kept).unwrap();
        } else {
            copies.work.memcpy_dtod(&kept, &mut freed).unwrap();
        }
        drop(freed);
        home.settle();
        other.take_nothing(8 * MIB);
        site.bench.let_run();
        other.take_nothing(8 * MIB);
        gate.open();
        copies.settle();
        let block = other.take_from(Source::Free, 8 * MIB);
        other.use_up(&block, 2);
        other.settle();
        let value = u8::from(is_read);
        let back = copies.work.clone_dtoh(&kept).unwrap();
        assert!(back.iter().all(|byte| *byte == value));
        drop((kept, block));
        seal_and_settle(&[&home, &copies, &other]);
    }
    site.assert_sound();
}

/// Two streams read at once without waiting for each other. A third one writes after both.
pub(crate) fn fill_comes_after_all_copies() {
    let site = Site::<Here>::new(64 * MIB);
    let [home, first, second, writer] = site.workers();
    let (mut from, mut one, mut other) = (buffer(&home), buffer(&first), buffer(&second));
    home.work.memcpy_htod(&numbers(1), &mut from).unwrap();
    let gate = site.bench.hold(&first.work);
    first.work.memcpy_dtod(&from, &mut one).unwrap();
    second.work.memcpy_dtod(&from, &mut other).unwrap();
    second.settle();
    writer.work.memset_zeros(&mut from).unwrap();
    site.bench.let_run();
    gate.open();
    for copy in [&one, &other] {
        assert!(home.work.clone_dtoh(copy).unwrap() == numbers(1));
    }
    let zeros = home.work.clone_dtoh(&from).unwrap();
    assert!(zeros.iter().all(|number| *number == 0));
    drop((from, one, other));
    settle_all(&[&home, &first, &second, &writer]);
    site.assert_conserved();
}

/// Runs a call on a separate thread, and asserts that it returns only after the gate is open.
fn assert_waits<R: Send>(bench: &Here, gate: Gate, call: impl FnOnce() -> R + Send) -> R {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let result = call();
            is_over.store(true, Ordering::SeqCst);
            result
        });
        bench.let_run();
        assert!(!is_over.load(Ordering::SeqCst), "it did not wait");
        gate.open();
        waiting.join().unwrap()
    })
}

/// An unregistered stream is ordered like the others. Since the pool cannot keep it, the call returns only when its
/// work is complete.
pub(crate) fn unregistered_stream_is_waited_for_by_the_host() {
    let site = Site::<Here>::without_device_waits(64 * MIB);
    let [home, other] = site.workers();
    let stranger = site.bench.stream();
    let (mut from, mut to) = (buffer(&home), buffer(&home));
    home.work.memcpy_htod(&numbers(1), &mut from).unwrap();
    let gate = site.bench.hold(&home.work);
    add(&home, home.stream.record_use(&mut from).unwrap(), 1);
    assert_waits(&site.bench, gate, || stranger.memcpy_dtod(&from, &mut to)).unwrap();
    // No state of the stream is left, so it may be destroyed.
    drop(stranger);
    assert!(other.work.clone_dtoh(&to).unwrap() == numbers(2));
    drop((from, to));
    seal_and_settle(&[&home, &other]);
    let all = other.take(64 * MIB);
    other.use_up(&all, 1);
    other.free_and_settle(all);
    site.assert_sound();
}

/// The legacy default stream takes no device-side wait, so the host waits instead. Its uses count like those of others.
pub(crate) fn legacy_default_stream_is_adopted() {
    let site = Site::<Here>::without_device_waits(16 * MIB);
    let [home, other] = site.workers();
    let legacy: Arc<CudaStream> = site.bench.gpu.context().default_stream();
    let (mut from, mut to) = (buffer(&home), buffer(&home));
    home.work.memcpy_htod(&numbers(1), &mut from).unwrap();
    home.work.memset_zeros(&mut to).unwrap();
    let gate = site.bench.hold(&home.work);
    add(&home, home.stream.record_use(&mut from).unwrap(), 1);
    assert_waits(&site.bench, gate, || legacy.memcpy_dtod(&from, &mut to)).unwrap();
    assert!(other.work.clone_dtoh(&to).unwrap() == numbers(2));
    drop((from, to));
    let legacy_is_free = site.pool.register(&legacy).unwrap();
    block_on(legacy_is_free.synchronize()).unwrap();
    settle_all(&[&home, &other]);
    drop(legacy_is_free);
    site.assert_conserved();
}

/// Returns the message of a refused use, which panics because cudarc's interface has no errors there.
fn refusal(use_it: impl FnOnce()) -> String {
    let refused = catch_unwind(AssertUnwindSafe(use_it));
    text_of(&*refused.expect_err("a refused use"))
}

pub(crate) fn streams_that_cannot_be_ordered_are_refused() {
    let site = Site::<Here>::new(16 * MIB);
    let home = site.worker();
    let mut buffer = buffer(&home);
    let elsewhere = another_context(site.bench.gpu.context());
    let foreign = elsewhere.new_stream().unwrap();
    let text = refusal(|| drop(buffer.device_ptr(&foreign)));
    assert!(text.contains("another device"), "{text}");
    site.bench.gpu.context().bind_to_thread().unwrap();
    let per_thread = site.bench.gpu.context().per_thread_stream();
    let text = refusal(|| drop(buffer.device_ptr_mut(&per_thread)));
    assert!(text.contains("per-thread"), "{text}");
    home.work.memset_zeros(&mut buffer).unwrap();
    drop(buffer);
    home.settle();
    site.assert_conserved();
}

/// Multiplies a square matrix of ones by one of twos, column-major. All elements of the product are `2 n`.
fn multiply(blas: &CudaBlas, [a, b]: [&Buffer<f32>; 2], product: &mut Buffer<f32>, n: usize) {
    let n = n as i32;
    let config = GemmConfig {
        transa: CUBLAS_OP_N,
        transb: CUBLAS_OP_N,
        m: n,
        n,
        k: n,
        alpha: 1.0f32,
        lda: n,
        ldb: n,
        beta: 0.0,
        ldc: n,
    };
    // SAFETY: the buffers have as many elements as the configuration says.
    unsafe { blas.gemm(config, a, b, product) }.unwrap();
}

/// Three matrices, written on two streams, multiplied on a third, and read on a fourth.
pub(crate) fn cublas_multiplies_buffers() {
    const N: usize = 256;
    let site = Site::<Here>::new(64 * MIB);
    let [home, second, multiplier, reader] = site.workers();
    // cudarc panics if cuBLAS is missing.
    let blas = catch_unwind(|| CudaBlas::new(multiplier.work.clone()));
    let Ok(Ok(blas)) = blas else {
        eprintln!("gpu: skipped: cuBLAS is not available");
        return;
    };
    let matrix = || {
        site.pool
            .buffer::<f32>(&home.stream, N * N)
            .try_now()
            .unwrap()
    };
    let (mut a, mut b, mut product) = (matrix(), matrix(), matrix());
    let (ones, twos) = (vec![1.0; N * N], vec![2.0; N * N]);
    // The first multiplication runs before any stream is held, since it allocates memory and loads kernels.
    home.work.memset_zeros(&mut a).unwrap();
    home.work.memset_zeros(&mut b).unwrap();
    multiply(&blas, [&a, &b], &mut product, N);
    multiplier.settle();
    let (mut late_a, mut late_b) = (matrix(), matrix());
    home.work.memcpy_htod(&ones, &mut late_a).unwrap();
    home.work.memcpy_htod(&twos, &mut late_b).unwrap();
    settle_all(&[&home]);
    for _ in 0..3 {
        home.work.memset_zeros(&mut a).unwrap();
        second.work.memset_zeros(&mut b).unwrap();
        let gates = [&home, &second].map(|worker| site.bench.hold(&worker.work));
        home.work.memcpy_dtod(&late_a, &mut a).unwrap();
        second.work.memcpy_dtod(&late_b, &mut b).unwrap();
        multiply(&blas, [&a, &b], &mut product, N);
        site.bench.let_run();
        gates.into_iter().for_each(Gate::open);
        let back = reader.work.clone_dtoh(&product).unwrap();
        let expected = 2.0 * N as f32;
        assert!(back.iter().all(|element| *element == expected));
    }
    drop((a, b, product, late_a, late_b, blas));
    settle_all(&[&home, &second, &multiplier, &reader]);
    site.assert_conserved();
}
