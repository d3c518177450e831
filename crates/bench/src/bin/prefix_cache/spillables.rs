//! A cache of spillable blocks.

use crate::caches::{BLOCK, CHUNK, Cache};
use crate::lru::Lru;
use anyhow::Context;
use std::collections::HashMap;
use weirpool::device::sim::{Backing, SimDevice};
use weirpool::{Block, Pool, Stream, Upstream};
use weirpool_tiers::{Fetched, HostTier, IntoSpillable, Spillable};

/// How many blocks less than there is room for the cache keeps: a full host and a full device cannot exchange two.
const MOVING: usize = 8;

/// Blocks that go to the host and come back. The cache drops the oldest ones once both tiers are full.
pub(crate) struct Spillables {
    device: SimDevice,
    pool: Pool,
    stream: Stream,
    tier: HostTier,
    blocks: HashMap<u64, Spillable>,
    order: Lru,
    capacity: usize,
}

enum Held {
    Found(#[allow(dead_code, reason = "kept until it is dropped")] Fetched),
    New(u64, Block),
}

impl Spillables {
    /// Makes a cache of as many blocks on the device, and three times as many on the host.
    ///
    /// # Errors
    /// Returns an error of a pool.
    pub(crate) fn new(blocks: usize) -> anyhow::Result<Self> {
        let capacity = blocks as u64 * BLOCK;
        let host = 3 * capacity;
        let device = SimDevice::builder()
            .memory(capacity)
            .host_memory(host)
            .backing(Backing::AddressesOnly)
            .build();
        let built = |upstream, capacity| {
            Pool::builder(device.clone())
                .upstream(upstream)
                .capacity(capacity)
                .chunk_bytes(CHUNK)
                .build()
        };
        let pool = built(Upstream::Virtual, capacity)?;
        let host = built(Upstream::Pinned, host)?;
        Ok(Self {
            stream: pool.create_stream()?,
            tier: HostTier::new(&host)?,
            device,
            pool,
            blocks: HashMap::new(),
            order: Lru::new(usize::MAX),
            capacity: 4 * blocks - MOVING,
        })
    }

    /// Returns how many blocks were spilled.
    pub(crate) fn spills(&self) -> u64 {
        self.tier.figures().spills
    }

    fn allocate(&self) -> anyhow::Result<Block> {
        let request = self.pool.allocate(&self.stream, BLOCK);
        self.device.block_on(request).context("a block")
    }
}

impl Cache for Spillables {
    fn request(&mut self, blocks: &[u64]) -> anyhow::Result<Vec<bool>> {
        let mut held = Vec::new();
        let mut found = Vec::new();
        for block in blocks {
            let fetched = match self.blocks.get(block) {
                None => None,
                Some(kept) => Some(self.device.block_on(kept.fetch(&self.stream))?),
            };
            found.push(fetched.is_some());
            held.push(match fetched {
                Some(fetched) => Held::Found(fetched),
                None => {
                    while self.order.len() >= self.capacity {
                        let oldest = self.order.pop().context("a block to drop")?;
                        self.blocks.remove(&oldest);
                    }
                    Held::New(*block, self.allocate()?)
                }
            });
            self.order.touch(*block);
        }
        // The first blocks are used last: the others are of no use without them.
        for block in blocks.iter().rev() {
            self.order.touch(*block);
        }
        while let Some(one) = held.pop() {
            if let Held::New(block, memory) = one {
                self.blocks.insert(block, memory.into_spillable(&self.tier));
            }
        }
        Ok(found)
    }
}
