//! A cache of evictable blocks.

use crate::caches::{BLOCK, CHUNK, Cache};
use anyhow::Context;
use std::collections::HashMap;
use weirpool::device::sim::{Backing, SimDevice};
use weirpool::{Block, Evictable, Pinned, Pool, Stream};

/// How memory of whole chunks is made free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// By the pool, for the request.
    Pool,
    /// By evictions of the oldest blocks until as many chunks are free.
    Age,
}

/// Blocks that the pool evicts.
pub(crate) struct Evictables {
    device: SimDevice,
    pool: Pool,
    stream: Stream,
    blocks: HashMap<u64, Evictable>,
    choice: Choice,
    /// The working memory that some requests take, in bytes, and how many requests there are for one of them.
    work: Option<(u64, usize)>,
    requests: usize,
    /// The blocks that were evicted for working memory.
    for_work: u64,
}

/// A block that a request holds.
enum Held {
    Found(#[allow(dead_code, reason = "kept until it is dropped")] Pinned),
    New(u64, Block),
}

impl Evictables {
    /// Makes a cache of as many blocks.
    ///
    /// # Errors
    /// Returns an error of the pool.
    pub(crate) fn new(blocks: usize) -> anyhow::Result<Self> {
        let capacity = blocks as u64 * BLOCK;
        let device = SimDevice::builder()
            .memory(capacity)
            .backing(Backing::AddressesOnly)
            .build();
        let pool = Pool::builder(device.clone())
            .capacity(capacity)
            .chunk_bytes(CHUNK)
            .build()?;
        Ok(Self {
            stream: pool.create_stream()?,
            device,
            pool,
            blocks: HashMap::new(),
            choice: Choice::Pool,
            work: None,
            requests: 0,
            for_work: 0,
        })
    }

    /// Lets one of so many requests take working memory, in pieces of a chunk.
    pub(crate) fn working(mut self, bytes: u64, every: usize, choice: Choice) -> Self {
        self.work = Some((bytes, every));
        self.choice = choice;
        self
    }

    /// Returns how many blocks were evicted for each chunk of working memory.
    pub(crate) fn evicted_for_a_chunk(&self) -> f64 {
        let (bytes, every) = self.work.unwrap_or((0, 1));
        let chunks = (self.requests / every) as u64 * (bytes / CHUNK);
        self.for_work as f64 / chunks as f64
    }

    fn allocate(&self, bytes: u64) -> anyhow::Result<Block> {
        let request = self.pool.allocate(&self.stream, bytes);
        self.device.block_on(request).context("a block")
    }

    /// Evicts the oldest blocks until whole chunks of this many bytes are free.
    fn evict_by_age(&self, bytes: u64) {
        loop {
            let statistics = self.pool.inspect().statistics();
            let room = statistics.capacity - statistics.reserved.current;
            if room + statistics.releasable_bytes >= bytes || statistics.evictable == 0 {
                return;
            }
            self.pool.maintain().evict(BLOCK);
        }
    }

    /// Takes working memory, and gives it back.
    fn work(&mut self, bytes: u64) -> anyhow::Result<()> {
        let evictions = || self.pool.inspect().statistics().evictions;
        let before = evictions();
        if self.choice == Choice::Age {
            self.evict_by_age(bytes);
        }
        let pieces = (0..bytes / CHUNK).map(|_| self.allocate(CHUNK));
        let pieces: Result<Vec<_>, _> = pieces.collect();
        drop(pieces?);
        self.for_work += evictions() - before;
        Ok(())
    }
}

impl Cache for Evictables {
    fn request(&mut self, blocks: &[u64]) -> anyhow::Result<Vec<bool>> {
        let mut held = Vec::new();
        let mut found = Vec::new();
        for block in blocks {
            let pinned = self.blocks.get(block).and_then(Evictable::pin);
            found.push(pinned.is_some());
            held.push(match pinned {
                Some(pinned) => Held::Found(pinned),
                None => Held::New(*block, self.allocate(BLOCK)?),
            });
        }
        // The first blocks are used last: the others are of no use without them.
        while let Some(one) = held.pop() {
            if let Held::New(block, memory) = one {
                self.blocks.insert(block, memory.into_evictable());
            }
        }
        self.requests += 1;
        match self.work {
            Some((bytes, every)) if self.requests.is_multiple_of(every) => self.work(bytes)?,
            _ => {}
        }
        Ok(found)
    }
}
