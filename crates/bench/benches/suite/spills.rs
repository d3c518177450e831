//! Spilling to the host and fetching back, beside bare copies.
//!
//! Requests for all of a pool spill its blocks, and then each is fetched. The time ends when the stream has passed the copies. The
//! first spill pins the host's memory, and is no turn. The floor is the driver's copy between one pinned allocation and one of the
//! device, several times.

use super::backend::Backend;
use super::effort::{Amount, Effort};
use super::row::{Allocator, Row, Spread, Unit, bytes};
use anyhow::ensure;
use std::future::Future;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::{Block, Pool, Stream, Upstream};
use weirpool_tiers::{HostTier, IntoSpillable, Spillable};

const GIB: u64 = 1 << 30;
const SPEED: Unit = Unit::rate("GiB/s");

/// The blocks' sizes and their number.
const SHAPES: [(u64, usize); 2] = [(64 << 20, 16), (2 << 20, 512)];

/// Spillable blocks that fill a pool.
pub(crate) struct Spills {
    pool: Pool,
    stream: Stream,
    tier: HostTier,
    piece: u64,
    memory: Vec<Spillable>,
    rounds: u64,
}

impl Spills {
    /// Fills a pool with blocks that have their number in each byte.
    ///
    /// # Errors
    /// Returns the errors of the pools.
    pub(crate) async fn new<G: Backend>(
        backend: &G,
        piece: u64,
        count: usize,
    ) -> anyhow::Result<Self> {
        let all = piece * count as u64;
        let built = |upstream| {
            let builder = Pool::builder(backend.device());
            builder.upstream(upstream).capacity(all).build()
        };
        let (pool, host) = (built(Upstream::Virtual)?, built(Upstream::Pinned)?);
        let (stream, tier) = (pool.create_stream()?, HostTier::new(&host)?);
        let mut memory = Vec::new();
        for number in 0..count {
            let mut block = pool.allocate(&stream, piece).await?;
            block.fill(&stream, number as u8)?;
            memory.push(block.into_spillable(&tier));
        }
        stream.synchronize().await?;
        let rounds = 0;
        Ok(Self {
            pool,
            stream,
            tier,
            piece,
            memory,
            rounds,
        })
    }

    /// Returns the bytes of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.piece * self.memory.len() as u64
    }

    /// Spills all blocks. Returns the time.
    ///
    /// # Errors
    /// Returns an error if a request fails.
    pub(crate) async fn spill(&self, device: &dyn Device) -> anyhow::Result<Duration> {
        let taking = async {
            let mut taken = Vec::new();
            for _ in &self.memory {
                taken.push(self.pool.allocate(&self.stream, self.piece).await?);
            }
            self.stream.synchronize().await?;
            anyhow::Ok(taken)
        };
        let (taken, time) = timed(device, taking).await;
        drop(taken?);
        Ok(time)
    }

    /// Fetches all blocks. Returns the time, and the blocks for a look at their contents.
    ///
    /// # Errors
    /// Returns an error if a request fails, or other blocks were copied.
    pub(crate) async fn fetch(
        &mut self,
        device: &dyn Device,
    ) -> anyhow::Result<(Duration, Vec<impl std::ops::Deref<Target = Block>>)> {
        let fetching = async {
            let mut fetched = Vec::new();
            for memory in &self.memory {
                fetched.push(memory.fetch(&self.stream).await?);
            }
            self.stream.synchronize().await?;
            anyhow::Ok(fetched)
        };
        let (fetched, time) = timed(device, fetching).await;
        self.rounds += 1;
        let copies = [self.tier.figures().spills, self.tier.figures().fetches];
        let wanted = self.rounds * self.memory.len() as u64;
        ensure!(copies == [wanted; 2], "{copies:?} copies, not {wanted}");
        Ok((time, fetched?))
    }
}

/// Runs a future. Returns its result, and the time on the device's clock.
pub(crate) async fn timed<T>(
    device: &dyn Device,
    future: impl Future<Output = T>,
) -> (T, Duration) {
    let begin = device.now();
    let result = future.await;
    (result, device.now() - begin)
}

/// Returns GiB/s.
pub(crate) fn speed(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / GIB as f64 / time.as_secs_f64()
}

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let bare = backend.bare_copies();
    let mut rows = Vec::new();
    for (piece, count) in SHAPES {
        let piece = match effort.amount {
            Amount::Smoke => piece >> 8,
            _ => piece,
        };
        let turns = backend.run(turns(backend, piece, count, effort.few_rounds()));
        let turns = turns.expect("memory that the pool has");
        let clock = if backend.is_virtual() {
            ", virtual time"
        } else {
            ""
        };
        for (at, name) in ["spill", "fetch"].into_iter().enumerate() {
            let own = turns.iter().map(|turn| turn[at]).collect();
            let mut figures = vec![(Allocator::Weirpool, Spread::of(own))];
            figures.extend(bare.map(|bare| (Allocator::Floor, Spread::exactly(bare[at]))));
            let label = format!("{name} {count} blocks of {}{clock}", bytes(piece));
            rows.push(Row::new(label, SPEED, figures));
        }
    }
    rows
}

/// Returns the speeds of spilling and of fetching, of each turn.
async fn turns<G: Backend>(
    backend: &G,
    piece: u64,
    count: usize,
    rounds: usize,
) -> anyhow::Result<Vec<[f64; 2]>> {
    let device = backend.device();
    let mut spills = Spills::new(backend, piece, count).await?;
    let mut turns = Vec::new();
    for round in 0..=rounds {
        let out = spills.spill(&*device).await?;
        let (back, _) = spills.fetch(&*device).await?;
        if round > 0 {
            turns.push([out, back].map(|time| speed(spills.bytes(), time)));
        }
    }
    Ok(turns)
}
