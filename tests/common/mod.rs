//! What the tests have in common.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod external;
mod pass_on;
mod woken;

pub(crate) use external::External;
pub(crate) use pass_on::pass_on;
pub(crate) use woken::{Woken, settle};

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::device::sim::{Clock, Operation, SimBuilder, SimDevice, SimStream};
use weirpool::{Block, Pool, PoolBuilder, Reuse, Stream};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const CHUNK: u64 = 2 * MIB;

pub(crate) const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The settings of a device of 1 GiB whose clock moves only when told.
pub(crate) fn manual_builder() -> SimBuilder {
    SimDevice::builder().memory(1 << 30).clock(Clock::Manual)
}

/// A device whose clock moves only when told.
pub(crate) fn manual() -> SimDevice {
    manual_builder().build()
}

/// Two such devices: one with virtual memory, and one without.
pub(crate) fn devices() -> [SimDevice; 2] {
    [true, false].map(|is_virtual| manual_builder().virtual_memory(is_virtual).build())
}

pub(crate) fn builder(device: &(impl Device + Clone), capacity: u64) -> PoolBuilder {
    Pool::builder(device.clone())
        .capacity(capacity)
        .chunk_bytes(CHUNK)
}

pub(crate) fn pool(device: &SimDevice, capacity: u64) -> Pool {
    builder(device, capacity).build().expect("a valid pool")
}

/// A pool in which no stream is made to wait on the device.
pub(crate) fn host_waits_only(device: &SimDevice, capacity: u64) -> Pool {
    let builder = builder(device, capacity).reuse(only_host_waits());
    builder.build().expect("a valid pool")
}

/// Every way of reuse but a wait on the device.
pub(crate) fn only_host_waits() -> Reuse {
    Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    }
}

/// Bytes that the pool has from its device now.
pub(crate) fn reserved(pool: &Pool) -> u64 {
    pool.statistics().reserved.current
}

/// A stream of the device, registered.
pub(crate) fn stream(device: &SimDevice, pool: &Pool) -> (SimStream, Stream) {
    let work = device.create_stream();
    let stream = pool.register(&work).expect("a stream of the device");
    (work, stream)
}

/// Several streams of the device, registered.
pub(crate) fn streams<const N: usize>(device: &SimDevice, pool: &Pool) -> [(SimStream, Stream); N] {
    std::array::from_fn(|_| stream(device, pool))
}

pub(crate) fn run(work: &SimStream, duration: Duration) {
    work.submit(Operation::new(duration));
}

/// Work that writes all of a block, and says so to the ordering checker.
#[track_caller]
pub(crate) fn use_block(work: &SimStream, block: &Block, duration: Duration) {
    let operation = Operation::new(duration).named("use");
    work.submit(operation.writes(block.address(), block.size()));
}

/// A waker that counts.
#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (count.clone(), Waker::from(count))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// How often it was woken since this was called last.
    pub(crate) fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls once with a waker that does nothing.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

pub(crate) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// The output of a future that must be ready now.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}

/// Returns once the condition holds, which other threads bring about. A condition that never holds fails instead of
/// hanging.
#[track_caller]
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "it never came");
        std::thread::sleep(us(20));
    }
}
