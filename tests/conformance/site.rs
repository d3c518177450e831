//! A pool under test on its bench, and workers: streams that use memory of it.

pub(crate) use crate::common::eventually;

use crate::bench::{Bench, Gate, Span, Witness};
use crate::common::CHUNK;
use crate::probe::Probe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::testing::Invariants;
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

    /// One over another device.
    pub(crate) fn elsewhere(&self, capacity: u64) -> Self {
        let bench = self.bench.another();
        Self::over(bench.clone(), bench.device(), capacity, |builder| builder)
    }

    /// One in which a stream is never made to wait on the device for another's memory: what is not
    /// complete cannot be had.
    pub(crate) fn without_device_waits(capacity: u64) -> Self {
        Self::with(capacity, |builder| builder.reuse(ONLY_COMPLETE))
    }

    pub(crate) fn with(capacity: u64, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let bench = B::new();
        Self::over(bench.clone(), bench.device(), capacity, set)
    }

    /// One whose device calls are counted, and can be made to fail.
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

    pub(crate) fn worker(&self) -> Worker<B> {
        self.worker_on(self.bench.stream())
    }

    /// One on a stream that is there.
    pub(crate) fn worker_on(&self, work: B::Work) -> Worker<B> {
        let stream = self.pool.register(&work);
        self.worker_as(work, stream.expect("a stream of the device"))
    }

    /// One on a stream that is registered.
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

    /// Whether free memory is mapped elsewhere, and given back without waiting.
    pub(crate) fn is_virtual(&self) -> bool {
        let has_it = self.bench.device().capabilities().virtual_memory;
        B::UPSTREAM == Upstream::Virtual && has_it
    }

    /// The end of a test: the bytes were right, the invariants hold, and everything came back.
    pub(crate) fn assert_sound(&self) {
        self.witness.assert_content();
        self.assert_conserved();
    }

    /// A thread of the pool's own may still be at work for who gave up, and have claimed memory for it.
    pub(crate) fn assert_conserved(&self) {
        self.pool.check().unwrap();
        let start = Instant::now();
        while let Err(missing) = self.pool.check_conserved() {
            assert!(start.elapsed() < Duration::from_secs(20), "{missing}");
            std::thread::yield_now();
        }
        assert_eq!(self.pool.statistics().used.current, 0);
    }
}

/// Other streams' memory is had only once it is complete.
pub(crate) const ONLY_COMPLETE: Reuse = Reuse {
    follow_event_dependencies: true,
    opportunistic: true,
    internal_dependencies: false,
};

pub(crate) fn builder<B: Bench>(device: Arc<dyn Device>, capacity: u64) -> PoolBuilder {
    Pool::builder_shared(device)
        .upstream(B::UPSTREAM)
        .capacity(capacity)
        .chunk_bytes(CHUNK)
}

/// A stream, and what is done with memory on it.
#[derive(Clone)]
pub(crate) struct Worker<B: Bench> {
    pub(crate) work: B::Work,
    pub(crate) stream: Stream,
    pub(crate) bench: B,
    pub(crate) pool: Pool,
    witness: Witness,
}

impl<B: Bench> Worker<B> {
    /// A block, at once.
    pub(crate) fn take(&self, bytes: u64) -> Block {
        self.try_take(bytes).expect("memory")
    }

    /// A block, at once, and where it came from.
    pub(crate) fn take_from(&self, source: Source, bytes: u64) -> Block {
        let block = self.take(bytes);
        assert_eq!(block.source(), source);
        block
    }

    pub(crate) fn try_take(&self, bytes: u64) -> Result<Block, AllocError> {
        self.pool.try_allocate(&self.stream, bytes)
    }

    /// Nothing at once: memory is short.
    pub(crate) fn take_nothing(&self, bytes: u64) {
        match self.try_take(bytes) {
            Err(AllocError::Exhausted(_)) => {}
            other => panic!("{other:?} instead of nothing"),
        }
    }

    pub(crate) async fn allocate(&self, bytes: u64) -> Block {
        let block = self.pool.allocate(&self.stream, bytes).await;
        block.expect("memory, after a while")
    }

    pub(crate) fn fill(&self, span: impl Into<Span>, value: u8) {
        self.bench.fill(&self.work, span.into(), value);
    }

    /// The memory must be full of the value when the stream comes here.
    pub(crate) fn expect(&self, span: impl Into<Span>, value: u8) {
        let answer = self.witness.ask();
        self.bench.compare(&self.work, span.into(), value, answer);
    }

    /// Writes, takes a while, and looks whether what it wrote is there still.
    pub(crate) fn use_up(&self, span: impl Into<Span>, value: u8) {
        let span = span.into();
        self.fill(span, value);
        self.bench.spend(&self.work);
        self.expect(span, value);
    }

    /// Writes, and looks at it again only once the gate was opened.
    pub(crate) fn use_until_opened(&self, block: &Block, value: u8) -> Gate {
        self.fill(block, value);
        let gate = self.bench.hold(&self.work);
        self.expect(block, value);
        gate
    }

    /// Later work of this worker comes after what the other did so far.
    pub(crate) fn come_after(&self, other: &Self) {
        let event = other.stream.event().expect("an event");
        self.stream.wait(&event).expect("a wait");
    }

    /// Frees in the order of this worker's stream, with an event of its own, and everything before it
    /// done.
    pub(crate) fn free_and_settle(&self, block: Block) {
        drop(block);
        self.stream.seal().expect("an event");
        self.settle();
    }

    pub(crate) fn settle(&self) {
        self.bench.settle(&self.work);
    }
}

/// Ends the work of all of them.
pub(crate) fn settle_all<B: Bench>(workers: &[&Worker<B>]) {
    workers.iter().for_each(|worker| worker.settle());
}
