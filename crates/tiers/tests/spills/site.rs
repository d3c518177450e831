//! A device with a pool, a host tier, and what tests ask of them.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::device::{Device, MemoryKind};
use weirpool::{Block, Pool, Stream, Upstream};
use weirpool_tiers::{Fetched, HostTier, IntoSpillable, SpillError, Spillable};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Site {
    pub(crate) device: SimDevice,
    pub(crate) pool: Pool,
    pub(crate) host: Pool,
    pub(crate) tier: HostTier,
    pub(crate) stream: Stream,
}

impl Site {
    pub(crate) fn new(capacity: u64, host: u64) -> Self {
        let device = SimDevice::builder()
            .memory(capacity)
            .host_memory(host)
            .build();
        Self::on(device, capacity, host)
    }

    pub(crate) fn on(device: SimDevice, capacity: u64, host: u64) -> Self {
        let build = |upstream, capacity| {
            Pool::builder(device.clone())
                .upstream(upstream)
                .capacity(capacity)
                .chunk_bytes(2 * MIB)
                .build()
                .unwrap()
        };
        let pool = build(Upstream::Virtual, capacity);
        let host = build(Upstream::Pinned, host);
        Self {
            tier: HostTier::new(&host).unwrap(),
            stream: pool.create_stream().unwrap(),
            device,
            pool,
            host,
        }
    }

    /// Makes spillable memory that has this value everywhere.
    pub(crate) fn spillable(&self, bytes: u64, value: u8) -> Spillable {
        let mut block = self.pool.try_allocate(&self.stream, bytes).unwrap();
        block.fill(&self.stream, value).unwrap();
        block.into_spillable(&self.tier)
    }

    /// Waits for all of the pool's memory.
    pub(crate) fn take_all(&self) -> Block {
        let all = self.pool.allocate(&self.stream, self.pool.capacity());
        self.device.block_on(all).unwrap()
    }

    /// Has all memory spilled that can be.
    pub(crate) fn spill_all(&self) {
        self.pool.maintain().evict(u64::MAX);
    }

    pub(crate) fn fetch(&self, memory: &Spillable) -> Result<Fetched, SpillError> {
        let fetch = memory.fetch(&self.stream).timeout(Duration::from_secs(1));
        self.device.block_on(fetch)
    }

    pub(crate) fn assert_is(&self, block: &Block, value: u8) {
        let download = block.download(&self.stream, 0..block.requested()).unwrap();
        let bytes = self.device.block_on(download).unwrap();
        assert!(bytes.iter().all(|byte| *byte == value), "not {value}");
    }

    /// Expects that all memory is with the pools again, that none of them lost any, and that all work was ordered.
    pub(crate) fn end(self) {
        let Self {
            device,
            pool,
            host,
            tier,
            stream,
        } = self;
        device.block_on(pool.drain()).unwrap();
        device.block_on(host.drain()).unwrap();
        for pool in [&pool, &host] {
            pool.inspect().check_conserved().unwrap();
            assert_eq!(pool.inspect().statistics().used.current, 0);
        }
        drop((tier, stream, pool, host));
        device.advance_to_end();
        device.assert_ordered();
        for kind in [MemoryKind::Device, MemoryKind::Pinned] {
            let memory = device.memory_info(kind).unwrap();
            assert_eq!(memory.free, memory.total, "{kind:?}");
        }
    }
}

/// Polls once, with a waker that does nothing.
pub(crate) fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Submits work to a stream that reads a block.
pub(crate) fn work(stream: &Stream, block: &Block, time: Duration) {
    let reads = Operation::new(time).reads(block.address(), block.size());
    let submitted = stream.submit(block, |work: &SimStream, _| {
        work.submit(reads);
    });
    drop(submitted.unwrap());
}
