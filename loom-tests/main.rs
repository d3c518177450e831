//! Models of the crate's own types under loom. Each is named for the race it provokes, and ends with a check of
//! *conservation*. The calls of the simulated device are single steps.
//!
//! `RUSTC_WORKSPACE_WRAPPER=.ci/with/loom LOOM_MAX_PREEMPTIONS=2 cargo test --release -p weirpool-models --test loom`
#![cfg(all(weirpool_loom, not(weirpool_shuttle)))]

mod absences;
mod captures;
mod charges;
mod external;
mod figures;
mod foreign;
mod grants;
mod guide;
mod handles;
mod leases;
mod limits;
mod peers;
mod releases;
mod reservations;
mod services;
mod shards;
mod spills;
mod stops;
mod tasks;
mod waits;
mod wakes;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use weirpool::device::sim::{Backing, Checker, Clock, Operation, SimBuilder, SimDevice, SimStream};
use weirpool::{Allocate, Block, Pool, PoolBuilder, Reuse, Stream};

const MIB: u64 = 1 << 20;

/// Runs a model, and prints the number of executions.
fn model(name: &str, body: impl Fn() + Send + Sync + 'static) {
    let executions = std::sync::Arc::new(AtomicU64::new(0));
    let counted = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    println!("{name}: {} executions", executions.load(Ordering::Relaxed));
}

fn device_builder() -> SimBuilder {
    SimDevice::builder()
        .memory(64 * MIB)
        .backing(Backing::AddressesOnly)
        .clock(Clock::Manual)
}

fn device() -> SimDevice {
    device_builder().build()
}

/// Creates a device without the ordering checker, on which a stream gets its freed memory back without a shared step.
fn unwatched() -> SimDevice {
    device_builder().checker(Checker::Off).build()
}

/// The settings of a pool of one chunk, without waits on the device: requests that lack memory wait on the host.
fn builder(device: &SimDevice) -> PoolBuilder {
    let reuse = Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    };
    Pool::builder(device.clone())
        .capacity(2 * MIB)
        .chunk_bytes(2 * MIB)
        .tuning(|tuning| {
            tuning.lane_bytes = 4096;
            tuning.reuse = reuse;
        })
}

fn pool(device: &SimDevice) -> Pool {
    builder(device).build().unwrap()
}

/// Creates a device, such a pool, and streams of it.
fn start<const N: usize>() -> (SimDevice, Pool, [(SimStream, Stream); N]) {
    let device = device();
    let pool = pool(&device);
    let streams = streams(&device, &pool);
    (device, pool, streams)
}

fn stream(device: &SimDevice, pool: &Pool) -> (SimStream, Stream) {
    let work = device.create_stream();
    let stream = pool.register(&work).unwrap();
    (work, stream)
}

fn streams<const N: usize>(device: &SimDevice, pool: &Pool) -> [(SimStream, Stream); N] {
    std::array::from_fn(|_| stream(device, pool))
}

fn run(work: &SimStream, us: u64) {
    work.submit(Operation::new(Duration::from_micros(us)));
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll_once()
}

fn poll_with(
    allocate: &mut Allocate<'_>,
    waker: &Waker,
) -> Poll<Result<Block, weirpool::AllocError>> {
    Pin::new(allocate).poll(&mut Context::from_waker(waker))
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (count.clone(), Waker::from(count))
    }

    /// Returns how often it was woken since the last call.
    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

trait PollOnce {
    type Output;
    fn poll_once(self) -> Poll<Self::Output>;
}

impl<F: Future> PollOnce for Pin<&mut F> {
    type Output = F::Output;

    fn poll_once(self) -> Poll<F::Output> {
        self.poll(&mut Context::from_waker(Waker::noop()))
    }
}
