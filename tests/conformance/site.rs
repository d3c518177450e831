//! A pool under test on its bench, and workers: streams that use its memory.

pub(crate) use crate::common::eventually;

use crate::bench::{Bench, Gate, Span, Witness};
use crate::common::CHUNK;
use crate::probe::Probe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::{AllocError, Block, Pool, PoolBuilder, Reuse, Source, Stream, Upstream};

/// A pool under test.
pub(crate) struct Site<B: Bench> {
    pub(crate) bench: B,
    pub(crate) pool: Pool,
    pub(crate) witness: Witness,
}

impl<B: Bench> Site<B> {
    pub(crate) fn new(capacity: u64) -> Self {
        Self::with(capacity, |builder| builder)
    }

    /// Creates a site over another device.
    pub(crate) fn elsewhere(&self, capacity: u64) -> Self {
        let bench = self.bench.another();
        Self::over(bench.clone(), bench.device(), capacity, |builder| builder)
    }

    /// Creates a site whose streams are never made to wait on the device, so that incomplete memory is not available.
    pub(crate) fn without_device_waits(capacity: u64) -> Self {
        Self::with(capacity, |builder| {
            builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
        })
    }

    pub(crate) fn with(capacity: u64, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let bench = B::new();
        Self::over(bench.clone(), bench.device(), capacity, set)
    }

    /// Creates a site whose device calls are counted, and can be made to fail.
    pub(crate) fn probed(
        capacity: u64,
        set: impl FnOnce(PoolBuilder) -> PoolBuilder,
    ) -> (Self, Probe) {
        let bench = B::new();
        let probe = Probe::new(bench.device());
        let site = Self::over(bench, probe.device(), capacity, set);
        (site, probe)
    }

    fn over(
        bench: B,
        device: Arc<dyn Device>,
        capacity: u64,
        set: impl FnOnce(PoolBuilder) -> PoolBuilder,
    ) -> Self {
        let builder = builder::<B>(device, capacity);
        Self {
            bench,
            pool: set(builder).build().expect("valid settings"),
            witness: Witness::default(),
        }
    }

    /// Creates a site of a pool that was built over the bench's device.
    pub(crate) fn of(bench: B, pool: Pool) -> Self {
        Self {
            bench,
            pool,
            witness: Witness::default(),
        }
    }

    pub(crate) fn worker(&self) -> Worker<B> {
        self.worker_on(self.bench.stream())
    }

    /// Creates a worker on an existing stream.
    pub(crate) fn worker_on(&self, work: B::Work) -> Worker<B> {
        let stream = self.pool.register(&work);
        self.worker_as(work, stream.expect("a stream of the device"))
    }

    /// Creates a worker on a registered stream.
    pub(crate) fn worker_as(&self, work: B::Work, stream: Stream) -> Worker<B> {
        Worker {
            stream,
            work,
            bench: self.bench.clone(),
            pool: self.pool.clone(),
            witness: self.witness.clone(),
        }
    }

    pub(crate) fn workers<const N: usize>(&self) -> [Worker<B>; N] {
        std::array::from_fn(|_| self.worker())
    }

    /// Returns whether free memory can be mapped elsewhere, and released without waiting.
    pub(crate) fn is_virtual(&self) -> bool {
        let has_it = self.bench.device().capabilities().virtual_memory;
        B::UPSTREAM == Upstream::Virtual && has_it
    }

    /// Asserts at the end of a test that contents were right, invariants hold, and all memory was freed.
    pub(crate) fn assert_sound(&self) {
        self.witness.assert_content();
        self.assert_conserved();
    }

    /// A thread of the pool may still serve a dropped request, with memory claimed for it, so this retries for a while.
    pub(crate) fn assert_conserved(&self) {
        self.pool.inspect().check().unwrap();
        let start = Instant::now();
        while let Err(missing) = self.pool.inspect().check_conserved() {
            assert!(start.elapsed() < Duration::from_secs(20), "{missing}");
            std::thread::yield_now();
        }
        assert_eq!(self.pool.inspect().statistics().used.current, 0);
    }
}

/// Memory of other streams is available only once it is complete.
pub(crate) const ONLY_COMPLETE: Reuse = Reuse {
    follow_event_dependencies: true,
    opportunistic: true,
    internal_dependencies: false,
};

pub(crate) fn builder<B: Bench>(device: Arc<dyn Device>, capacity: u64) -> PoolBuilder {
    B::memory(plain_builder(device.clone(), capacity), &device)
}

/// A pool over the device's own memory.
pub(crate) fn plain_builder(device: Arc<dyn Device>, capacity: u64) -> PoolBuilder {
    Pool::builder(device).capacity(capacity).chunk_bytes(CHUNK)
}

/// A stream, with functions that use memory on it.
#[derive(Clone)]
pub(crate) struct Worker<B: Bench> {
    pub(crate) work: B::Work,
    pub(crate) stream: Stream,
    pub(crate) bench: B,
    pub(crate) pool: Pool,
    witness: Witness,
}

impl<B: Bench> Worker<B> {
    /// Allocates a block immediately.
    pub(crate) fn take(&self, bytes: u64) -> Block {
        self.try_take(bytes).expect("memory")
    }

    /// Allocates a block immediately, and asserts its source.
    pub(crate) fn take_from(&self, source: Source, bytes: u64) -> Block {
        let block = self.take(bytes);
        assert_eq!(block.source(), source);
        block
    }

    pub(crate) fn try_take(&self, bytes: u64) -> Result<Block, AllocError> {
        self.pool.try_allocate(&self.stream, bytes)
    }

    /// Asserts that an immediate allocation fails because memory is exhausted.
    pub(crate) fn take_nothing(&self, bytes: u64) {
        match self.try_take(bytes) {
            Err(AllocError::Exhausted(_)) => {}
            other => panic!("{other:?} instead of `Exhausted`"),
        }
    }

    pub(crate) async fn allocate(&self, bytes: u64) -> Block {
        let block = self.pool.allocate(&self.stream, bytes).await;
        block.expect("memory, after a while")
    }

    pub(crate) fn fill(&self, span: impl Into<Span>, value: u8) {
        self.bench.fill(&self.work, span.into(), value);
    }

    /// Asserts that memory is full of the value at this point of the stream.
    pub(crate) fn expect(&self, span: impl Into<Span>, value: u8) {
        let answer = self.witness.ask();
        self.bench.compare(&self.work, span.into(), value, answer);
    }

    /// Writes memory, spends time, and asserts that the contents are still there.
    pub(crate) fn use_up(&self, span: impl Into<Span>, value: u8) {
        let span = span.into();
        self.fill(span, value);
        self.bench.spend(&self.work);
        self.expect(span, value);
    }

    /// Writes memory, and asserts that the contents are still there after the gate opens.
    pub(crate) fn use_until_opened(&self, block: &Block, value: u8) -> Gate {
        self.fill(block, value);
        let gate = self.bench.hold(&self.work);
        self.expect(block, value);
        gate
    }

    /// Orders later work of this worker after the other's work so far.
    pub(crate) fn come_after(&self, other: &Self) {
        let event = other.stream.event().expect("an event");
        self.stream.wait(&event).expect("a wait");
    }

    /// Frees a block in the order of this worker's stream, records an event for it, and waits until the stream's work
    /// is complete.
    pub(crate) fn free_and_settle(&self, block: Block) {
        drop(block);
        self.stream.seal().expect("an event");
        self.settle();
    }

    pub(crate) fn settle(&self) {
        self.bench.settle(&self.work);
    }
}

/// Waits until the work of all workers is complete.
pub(crate) fn settle_all<B: Bench>(workers: &[&Worker<B>]) {
    workers.iter().for_each(|worker| worker.settle());
}
