//! The cost of the hot path, beside its floor in the same run: `cargo bench --bench hot_path`.
//!
//! - `hot/try/<bytes>`, `hot/await/<bytes>`: allocate and free the same size on one stream.
//! - `hot/tagged/<bytes>`: the same for a tag; `hot/reserved/<bytes>`: the same from a reservation.
//! - `hot/reserve/<bytes>`: a reservation of one block, with its allocation.
//! - `hot-cuda/...`: the same on a GPU, with `--features cuda` and if there is one; also `hot-cuda/driver/<bytes>`, for
//!   the driver's own pool.
//! - `floor/lane`: a mutex, a list pop and push, and a count, twice: the steps that a per-stream design cannot avoid.
//! - `floor/atomic`: an atomic that no other thread writes, twice.

#[allow(dead_code, reason = "the workloads are those of other benchmarks")]
mod suite;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use suite::backend::{Backend, Line};
use suite::contender::Contender;
use suite::cuda;
use suite::floor::{Atomics, Lanes};
use suite::hot::SIZES;
use suite::pooled::{By, Pooled, polled};
use suite::simulated::Simulated;
use weirpool::Tag;
use weirpool::device::sim::Clock;

fn hot(criterion: &mut Criterion) {
    // Must be opened before any thread is started.
    let gpu = cuda::open();
    hot_on(criterion, "hot", &Simulated::new(Clock::Manual));
    match gpu {
        Ok(gpu) => hot_on(criterion, "hot-cuda", &gpu),
        Err(error) => println!("skipped on CUDA: {error:#}"),
    }
}

fn hot_on<G: Backend>(criterion: &mut Criterion, name: &str, backend: &G) {
    let mut group = criterion.benchmark_group(name);
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let stream = pooled.stream();
    for bytes in SIZES {
        pairs(&mut group, "try", &pooled, &stream, bytes);
        let polled = By::new(&pooled, |stream, bytes| polled(&pooled.pool, stream, bytes));
        pairs(&mut group, "await", &polled, &stream, bytes);
        if let Some(driver) = &driver {
            pairs(&mut group, "driver", driver, &driver.stream(), bytes);
        }
    }
    let (Line { stream, .. }, tag) = (stream, Tag::new("hot"));
    group.bench_function(BenchmarkId::new("tagged", 1 << 16), |bencher| {
        bencher.iter(|| {
            let allocation = pooled.pool.allocate(&stream, 1 << 16).tag(tag);
            drop(black_box(allocation.try_now().expect("memory")));
        });
    });
    let reservation = pooled.pool.reserve(1 << 24).try_now().expect("memory");
    group.bench_function(BenchmarkId::new("reserved", 1 << 16), |bencher| {
        bencher.iter(|| {
            let block = reservation.allocate(&stream, 1 << 16);
            drop(black_box(block.expect("reserved")));
        });
    });
    group.bench_function(BenchmarkId::new("reserve", 1 << 20), |bencher| {
        bencher.iter(|| {
            let reservation = pooled.pool.reserve(1 << 20).try_now().expect("memory");
            let block = reservation.allocate(&stream, 1 << 20);
            drop(black_box(block.expect("reserved")));
        });
    });
    group.finish();
}

fn pairs<C: Contender>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    contender: &C,
    stream: &C::Stream,
    bytes: u64,
) {
    contender.enter();
    group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
        bencher.iter(|| {
            let block = contender.allocate(stream, bytes).expect("memory");
            contender.free(black_box(block), stream);
        });
    });
}

fn floor(criterion: &mut Criterion) {
    floor_of(criterion, "floor/lane", &Lanes);
    floor_of(criterion, "floor/atomic", &Atomics);
}

fn floor_of(criterion: &mut Criterion, name: &str, contender: &impl Contender) {
    let stream = contender.stream();
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            let block = contender.allocate(&stream, black_box(1)).expect("always");
            contender.free(black_box(block), &stream);
        });
    });
}

criterion_group!(benches, floor, hot);
criterion_main!(benches);
