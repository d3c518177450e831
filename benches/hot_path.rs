//! What the hot path costs, beside its floor in the same run: `cargo bench --bench hot_path`.
//!
//! - `hot/try/<bytes>`, `hot/await/<bytes>`: allocate and free the same size on one stream.
//! - `hot/tagged/<bytes>`: the same for a tag.
//! - `hot-cuda/...`: the same on a GPU, with `--features cuda` and where there is one.
//! - `floor/lane`: a mutex, a list pop and push, and a count, twice: what a per-stream design cannot do
//!   without.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use weirpool::device::sim::{Backing, Checker, Clock, SimDevice};
use weirpool::{Pool, Stream, Tag};

const SIZES: [u64; 4] = [256, 1 << 16, 1 << 20, 64 << 20];

fn pool() -> (Pool, Stream) {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .backing(Backing::AddressesOnly)
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let pool = Pool::builder(device.clone()).build().expect("a pool");
    let stream = pool.register(&device.create_stream()).expect("a stream");
    (pool, stream)
}

/// The same on a GPU, where there is one.
#[cfg(feature = "cuda")]
fn cuda_pool() -> Option<(Pool, Stream)> {
    use weirpool::device::cuda::CudaDevice;
    let device = CudaDevice::new(0)
        .inspect_err(|error| println!("skipped on CUDA: {error}"))
        .ok()?;
    let pool = Pool::builder(device.clone())
        .capacity(1 << 30)
        .build()
        .expect("a pool");
    let stream = pool.register(&device.create_stream().expect("a stream"));
    Some((pool, stream.expect("a stream of the device")))
}

#[cfg(not(feature = "cuda"))]
fn cuda_pool() -> Option<(Pool, Stream)> {
    None
}

fn hot(criterion: &mut Criterion) {
    hot_on(criterion, "hot", &pool());
    if let Some(cuda) = cuda_pool() {
        hot_on(criterion, "hot-cuda", &cuda);
    }
}

fn hot_on(criterion: &mut Criterion, name: &str, (pool, stream): &(Pool, Stream)) {
    let mut group = criterion.benchmark_group(name);
    for bytes in SIZES {
        group.bench_function(BenchmarkId::new("try", bytes), |bencher| {
            bencher.iter(|| drop(black_box(pool.try_allocate(stream, bytes).expect("memory"))));
        });
        group.bench_function(BenchmarkId::new("await", bytes), |bencher| {
            let mut context = Context::from_waker(Waker::noop());
            bencher.iter(
                || match pin!(pool.allocate(stream, bytes)).poll(&mut context) {
                    Poll::Ready(block) => drop(black_box(block.expect("memory"))),
                    Poll::Pending => panic!("nothing to wait for"),
                },
            );
        });
    }
    let tag = Tag::new("hot");
    group.bench_function(BenchmarkId::new("tagged", 1 << 16), |bencher| {
        bencher.iter(|| {
            let allocation = pool.allocate(stream, 1 << 16).tag(tag);
            drop(black_box(allocation.try_now().expect("memory")));
        });
    });
    group.finish();
}

/// A lane and nothing else.
struct Floor {
    stack: Mutex<Vec<u64>>,
}

fn floor(criterion: &mut Criterion) {
    let lane = Arc::new(Floor {
        stack: Mutex::new(vec![1 << 40]),
    });
    criterion.bench_function("floor/lane", |bencher| {
        bencher.iter(|| {
            let address = lane.stack.lock().expect("not poisoned").pop().expect("one");
            let block = (lane.clone(), black_box(address));
            block.0.stack.lock().expect("not poisoned").push(block.1);
        });
    });
}

criterion_group!(benches, floor, hot);
criterion_main!(benches);
