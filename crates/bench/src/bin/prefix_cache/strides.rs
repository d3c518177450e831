//! kvcached's table: a cache that fills the device, whose oldest blocks lie in different chunks.

use crate::caches::{BLOCK, CHUNK};
use anyhow::ensure;
use weirpool::device::sim::{Backing, SimDevice};
use weirpool::{Pool, Stream, Upstream};
use weirpool_tiers::{HostTier, IntoSpillable, Spillable};

const CACHE: u64 = 1 << 30;
/// Seven eighths.
const WANTED: u64 = CACHE / 8 * 7;
const GB: f64 = 1e9;

struct Cache {
    device: SimDevice,
    pool: Pool,
    stream: Stream,
    tier: HostTier,
    /// In the order of their addresses.
    blocks: Vec<Spillable>,
}

impl Cache {
    /// Fills the device, with sixteen blocks in a chunk. Each of `stride` rounds uses every `stride`th block.
    fn used_in_strides(stride: usize) -> anyhow::Result<Self> {
        let device = SimDevice::builder()
            .memory(CACHE)
            .host_memory(CACHE)
            .backing(Backing::AddressesOnly)
            .build();
        let built = |upstream| {
            let builder = Pool::builder(device.clone()).upstream(upstream);
            builder.capacity(CACHE).chunk_bytes(CHUNK).build()
        };
        let (pool, host) = (built(Upstream::Virtual)?, built(Upstream::Pinned)?);
        let (stream, tier) = (pool.create_stream()?, HostTier::new(&host)?);
        let mut blocks = Vec::new();
        for _ in 0..CACHE / BLOCK {
            let block = pool.try_allocate(&stream, BLOCK)?;
            blocks.push((block.address(), block.into_spillable(&tier)));
        }
        blocks.sort_by_key(|(address, _)| *address);
        let blocks: Vec<_> = blocks.into_iter().map(|(_, block)| block).collect();
        for first in 0..stride {
            for block in blocks.iter().skip(first).step_by(stride) {
                drop(device.block_on(block.fetch(&stream))?);
            }
        }
        Ok(Self {
            device,
            pool,
            stream,
            tier,
            blocks,
        })
    }
}

/// Prints a row for each stride.
///
/// # Errors
/// Returns an error if the pool spills much more than was wanted.
pub(crate) fn run() -> anyhow::Result<()> {
    println!(
        "\na cache of {:.2} GB, {:.2} wanted\n\n| stride | free by age (GB) | spilled for the request (GB) |\n|-|-|-|",
        CACHE as f64 / GB,
        WANTED as f64 / GB
    );
    for stride in [1, 2, 4, 8] {
        let aged = Cache::used_in_strides(stride)?;
        aged.pool.maintain().evict(WANTED);
        aged.device.advance_to_end();
        aged.device.block_on(aged.stream.synchronize())?;
        let by_age = aged.pool.trim_to(0)?.released;
        let cache = Cache::used_in_strides(stride)?;
        let mut granted = Vec::new();
        for _ in 0..WANTED / CHUNK {
            let request = cache.pool.allocate(&cache.stream, CHUNK);
            granted.push(cache.device.block_on(request)?);
        }
        let spilled = cache.tier.figures().spilled;
        println!(
            "| {stride} | {:.2} | {:.2} |",
            by_age as f64 / GB,
            spilled as f64 / GB
        );
        ensure!(
            (WANTED..=WANTED * 10 / 9).contains(&spilled),
            "stride {stride}: {spilled} bytes spilled"
        );
        drop((granted, cache.blocks, aged.blocks));
    }
    Ok(())
}
