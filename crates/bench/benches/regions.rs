//! Suspending and resuming a region, and spilling and fetching, beside bare copies: `cargo bench --bench regions`.
//!
//! Half of the memory is kept in pinned memory of the host, half is not kept. Each row is the time of one suspension or
//! resumption, and the bandwidth of its copies. The reference is `cuMemcpyAsync` between one pinned allocation and one of the
//! device, of 1 GiB eight times. The half that is not kept has the calls of the device that take and give as much beside it.
//! Contents and addresses are checked after every round. The first suspension pins the host's memory.
//!
//! Then as much memory as is kept is spilled by requests for all of the pool, and fetched: in 16 blocks, and in blocks of
//! 2 MiB, as those of a cache of keys and values. The time ends when the stream has passed the copies.
//!
//! `-- --gib 16 --rounds 5` is quoted by the README of `weirpool-tiers`. Without a GPU it runs small, on the simulated device
//! in virtual time.

use anyhow::{Context as _, ensure};
use clap::Parser;
use futures::executor::block_on;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::device::sim::SimDevice;
use weirpool::{Block, Pool, Stream, Upstream};
use weirpool_tiers::{HostTier, IntoSpillable, Keep, Region, Regions};

const GIB: u64 = 1 << 30;

#[derive(Parser)]
struct Options {
    /// The GiB that are kept, and as many that are not.
    #[arg(long, default_value_t = 1)]
    gib: u64,
    /// The number of rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Waits up to 60 s at the last resumption: another process may hold the memory by then. Its id is printed when it may.
    #[arg(long)]
    contended: bool,
    /// Accepted from cargo, and ignored.
    #[arg(long)]
    bench: bool,
    /// Accepted from cargo: runs small.
    #[arg(long)]
    test: bool,
}

/// A device, with the bandwidth of bare copies in GiB/s: to the host, and to the device.
struct Bench {
    device: Arc<dyn Device>,
    sim: Option<SimDevice>,
    bare: Option<[f64; 2]>,
}

impl Bench {
    fn run<F: Future>(&self, future: F) -> F::Output {
        match &self.sim {
            Some(device) => device.block_on(future),
            None => block_on(future),
        }
    }

    async fn timed<T>(&self, future: impl Future<Output = T>) -> (T, Duration) {
        let begin = self.device.now();
        let result = future.await;
        (result, self.device.now() - begin)
    }
}

fn open() -> Bench {
    #[cfg(feature = "cuda")]
    match bare::open() {
        Ok(bench) => return bench,
        Err(error) => println!("skipped on CUDA: {error}"),
    }
    let sim = SimDevice::builder()
        .memory(GIB)
        .host_memory(4 * GIB)
        .build();
    Bench {
        device: Arc::new(sim.clone()),
        sim: Some(sim),
        bare: None,
    }
}

fn fill(block: &mut Block, stream: &Stream, value: u8) -> anyhow::Result<()> {
    Ok(block.fill(stream, value)?)
}

async fn is_filled(block: &Block, stream: &Stream, value: u8) -> anyhow::Result<bool> {
    let size = block.size();
    for range in [0..4096, size / 2..size / 2 + 4096, size - 4096..size] {
        let bytes = block.download(stream, range)?.await?;
        if bytes.iter().any(|byte| *byte != value) {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn blocks_of(region: &Region, stream: &Stream, piece: u64) -> anyhow::Result<Vec<Block>> {
    let mut blocks = Vec::new();
    for value in 0..16 {
        let mut block = region.allocate(stream, piece).await?;
        fill(&mut block, stream, value)?;
        blocks.push(block);
    }
    Ok(blocks)
}

/// Takes and maps memory, and gives it back, by the calls of the device alone. Returns the time of each.
#[allow(unsafe_code, reason = "calls of the device")]
fn mapped_and_unmapped(device: &dyn Device, piece: u64) -> anyhow::Result<[Duration; 2]> {
    let addresses: Vec<u64> = (0..16)
        .map(|_| device.reserve(piece))
        .collect::<Result<_, _>>()?;
    let begin = Instant::now();
    let mut chunks = Vec::new();
    for address in &addresses {
        let chunk = device.create(piece)?;
        // SAFETY: the addresses are reserved, and the chunk is of this size.
        unsafe { device.map(*address, chunk, piece) }?;
        chunks.push(chunk);
    }
    let mapped = begin.elapsed();
    let begin = Instant::now();
    for (address, chunk) in addresses.iter().zip(chunks) {
        // SAFETY: no work uses the memory.
        unsafe {
            device.unmap(*address, piece)?;
            device.destroy(chunk)?;
        }
    }
    let unmapped = begin.elapsed();
    for address in addresses {
        // SAFETY: nothing is mapped there.
        unsafe { device.unreserve(address, piece) }?;
    }
    Ok([mapped, unmapped])
}

fn row(name: &str, time: Duration, bytes: u64, bare: Option<f64>) {
    let seconds = time.as_secs_f64();
    let speed = bytes as f64 / GIB as f64 / seconds;
    let ratio = bare.map(|bare| format!("{:.2} of a bare copy", speed / bare));
    match bytes {
        0 => println!("  {name:<24} {:>9.3} ms", seconds * 1e3),
        _ => println!(
            "  {name:<24} {:>9.3} ms {speed:>8.1} GiB/s  {}",
            seconds * 1e3,
            ratio.unwrap_or_default()
        ),
    }
}

/// Spills and fetches this many blocks.
async fn spills(bench: &Bench, rounds: usize, piece: u64, count: u64) -> anyhow::Result<()> {
    let bytes = piece * count;
    let pool = Pool::builder(bench.device.clone())
        .capacity(bytes)
        .build()?;
    let host = Pool::builder(bench.device.clone())
        .upstream(Upstream::Pinned)
        .capacity(bytes)
        .build()?;
    let (stream, tier) = (pool.create_stream()?, HostTier::new(&host)?);
    let mut memory = Vec::new();
    for value in 0..count {
        let mut block = pool.allocate(&stream, piece).await?;
        fill(&mut block, &stream, value as u8)?;
        memory.push(block.into_spillable(&tier));
    }
    stream.synchronize().await?;
    let [out, back] = bench.bare.map_or([None; 2], |bare| bare.map(Some));
    println!("{count} blocks of {} MiB", piece >> 20);
    for round in 0..rounds {
        let taking = async {
            let mut taken = Vec::new();
            for _ in 0..count {
                taken.push(pool.allocate(&stream, piece).await?);
            }
            stream.synchronize().await?;
            anyhow::Ok(taken)
        };
        let (taken, time) = bench.timed(taking).await;
        row(
            if round == 0 {
                "spill, and pin"
            } else {
                "spill"
            },
            time,
            bytes,
            out,
        );
        drop(taken?);
        let fetching = async {
            let mut fetched = Vec::new();
            for memory in &memory {
                fetched.push(memory.fetch(&stream).await?);
            }
            stream.synchronize().await?;
            anyhow::Ok(fetched)
        };
        let (fetched, time) = bench.timed(fetching).await;
        row("fetch", time, bytes, back);
        for (value, block) in fetched?.iter().enumerate() {
            ensure!(
                is_filled(block, &stream, value as u8).await?,
                "contents of block {value}"
            );
        }
    }
    let copies = (tier.figures().spills, tier.figures().fetches);
    ensure!(
        copies == (count * rounds as u64, count * rounds as u64),
        "{copies:?} copies"
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let bench = open();
    let piece = match bench.sim.is_some() || options.test {
        true => GIB / 256,
        false => options.gib * GIB / 16,
    };
    println!("{}", bench.device.describe());
    if let Some([out, back]) = bench.bare {
        println!("  bare copies: {out:.1} GiB/s to the host, {back:.1} GiB/s to the device");
    }
    let pool = Pool::builder(bench.device.clone()).build()?;
    let stream = pool.create_stream()?;
    let weights = pool.region("weights").keep(Keep::OnHost).build()?;
    let cache = pool.region("cache").keep(Keep::Nothing).build()?;
    bench
        .run(async {
            let blocks = blocks_of(&weights, &stream, piece).await?;
            let entries = blocks_of(&cache, &stream, piece).await?;
            stream.synchronize().await?;
            let addresses: Vec<_> = blocks.iter().chain(&entries).map(Block::address).collect();
            let bytes = 16 * piece;
            let [out, back] = bench.bare.map_or([None; 2], |bare| bare.map(Some));
            for round in 0..options.rounds {
                println!("round {round}");
                let (ended, time) = bench.timed(cache.suspend()).await;
                ensure!(ended? >= bytes, "less was given back");
                row("suspend what is not kept", time, 0, None);
                let (ended, time) = bench.timed(weights.suspend()).await;
                ensure!(ended? >= bytes, "less was given back");
                row(
                    if round == 0 {
                        "suspend, and pin"
                    } else {
                        "suspend"
                    },
                    time,
                    bytes,
                    out,
                );
                if options.contended && round + 1 == options.rounds {
                    println!(
                        "free: the process {} may be crowded out",
                        std::process::id()
                    );
                    std::thread::sleep(Duration::from_secs(15));
                }
                let (ended, time) = bench.timed(weights.resume().into_future()).await;
                ended?;
                row("resume", time, bytes, back);
                let (ended, time) = bench.timed(cache.resume().into_future()).await;
                ended?;
                row("resume what is not kept", time, 0, None);
                if bench.sim.is_none() {
                    let [mapped, unmapped] = mapped_and_unmapped(&*bench.device, piece)?;
                    row("the same calls: to take", mapped, 0, None);
                    row("the same calls: to give", unmapped, 0, None);
                }
                for (value, block) in blocks.iter().enumerate() {
                    ensure!(
                        is_filled(block, &stream, value as u8).await?,
                        "contents of block {value}"
                    );
                }
                let now = blocks.iter().chain(&entries).map(Block::address);
                ensure!(now.eq(addresses.iter().copied()), "addresses");
            }
            println!("contents and addresses are right");
            anyhow::Ok(())
        })
        .context("a region")?;
    drop((weights, cache, stream, pool));
    bench
        .run(async {
            spills(&bench, options.rounds, piece, 16).await?;
            spills(&bench, options.rounds, 2 << 20, (8 * piece) >> 20).await
        })
        .context("spills")
}

#[cfg(feature = "cuda")]
mod bare {
    //! Copies without a pool.
    #![allow(unsafe_code, reason = "calls of the driver")]

    use super::{Bench, GIB};
    use cudarc::driver::{result, sys};
    use std::sync::Arc;
    use std::time::Instant;
    use weirpool::device::cuda::CudaDevice;

    const COPIES: usize = 8;

    pub(super) fn open() -> anyhow::Result<Bench> {
        let device = CudaDevice::new(0)?;
        device.context().bind_to_thread()?;
        let stream = device.context().new_stream()?;
        let raw = stream.cu_stream();
        // SAFETY: both allocations are of 1 GiB, and live until the copies are complete.
        let bare = unsafe {
            let host = result::malloc_host(GIB as usize, 0)?;
            let memory = result::malloc_sync(GIB as usize)?;
            let mut measured = [0.0; 2];
            for (to_device, speed) in measured.iter_mut().enumerate() {
                let copies = |count| -> anyhow::Result<f64> {
                    let begin = Instant::now();
                    for _ in 0..count {
                        let (host, bytes) = (host.cast(), GIB as usize);
                        match to_device {
                            0 => sys::cuMemcpyDtoHAsync_v2(host, memory, bytes, raw).result()?,
                            _ => sys::cuMemcpyHtoDAsync_v2(memory, host, bytes, raw).result()?,
                        }
                    }
                    stream.synchronize()?;
                    Ok(count as f64 / begin.elapsed().as_secs_f64())
                };
                copies(1)?;
                *speed = copies(COPIES)?;
            }
            result::free_host(host)?;
            result::free_sync(memory)?;
            measured
        };
        Ok(Bench {
            device: Arc::new(device),
            sim: None,
            bare: Some(bare),
        })
    }
}
