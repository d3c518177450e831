//! Suspending and resuming a region, and spilling and fetching, beside bare copies: `cargo bench --bench regions`.
//!
//! Half of the memory is kept in pinned memory of the host, half is not kept. Each row is the time of one suspension or
//! resumption, and the bandwidth of its copies. The reference is `cuMemcpyAsync` between one pinned allocation and one of the
//! device, of 1 GiB eight times. The half that is not kept has the calls of the device that take and give as much beside it.
//! Contents and addresses are checked after every round. The first suspension pins the host's memory.
//!
//! Copies and calls that take memory are slower just after 32 GiB were given back, by some 35 ms, perhaps because the device clears
//! them then. So two seconds pass before memory is taken again, as in a service that sleeps. With `--at-once` none does.
//!
//! Then as much memory as is kept is spilled by requests for all of the pool, and fetched: in 16 blocks, and in blocks of
//! 2 MiB, as those of a cache of keys and values. The time ends when the stream has passed the copies.
//!
//! `-- --gib 16 --rounds 5` is quoted by the README of `weirpool-tiers`. Without a GPU it runs small, on the simulated device
//! in virtual time.

#[allow(dead_code, reason = "the other benchmarks use the rest")]
mod suite;

use anyhow::{Context as _, ensure};
use clap::Parser;
use std::future::IntoFuture;
use std::time::{Duration, Instant};
use suite::backend::Backend;
use suite::cuda;
use suite::simulated::Simulated;
use suite::spills::{Spills, speed, timed};
use weirpool::device::Device;
use weirpool::{Block, Pool, Stream};
use weirpool_tiers::{Keep, Region, Regions};

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
    /// Resumes at once after a suspension.
    #[arg(long)]
    at_once: bool,
    /// Accepted from cargo, and ignored.
    #[arg(long)]
    bench: bool,
    /// Accepted from cargo: runs small.
    #[arg(long)]
    test: bool,
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
        block.fill(stream, value)?;
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
    let milliseconds = time.as_secs_f64() * 1e3;
    let speed = speed(bytes, time);
    let ratio = bare.map(|bare| format!("{:.2} of a bare copy", speed / bare));
    match bytes {
        0 => println!("  {name:<24} {milliseconds:>9.3} ms"),
        _ => println!(
            "  {name:<24} {milliseconds:>9.3} ms {speed:>8.1} GiB/s  {}",
            ratio.unwrap_or_default()
        ),
    }
}

/// Spills and fetches this many blocks.
async fn spills(
    backend: &impl Backend,
    bare: [Option<f64>; 2],
    rounds: usize,
    (piece, count): (u64, usize),
) -> anyhow::Result<()> {
    let device = backend.device();
    let mut spills = Spills::new(backend, piece, count).await?;
    println!("{count} blocks of {} MiB", piece >> 20);
    let [out, back] = bare;
    let bytes = spills.bytes();
    for round in 0..rounds {
        let name = if round == 0 {
            "spill, and pin"
        } else {
            "spill"
        };
        row(name, spills.spill(&*device).await?, bytes, out);
        let (time, fetched) = spills.fetch(&*device).await?;
        row("fetch", time, bytes, back);
        for (value, block) in fetched.iter().enumerate() {
            let is_right = is_filled(block, &block.stream(), value as u8).await?;
            ensure!(is_right, "contents of block {value}");
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match cuda::open() {
        Ok(gpu) => run(&gpu, &options),
        Err(error) => {
            println!("skipped on CUDA: {error:#}");
            run(&Simulated::with_contents(), &options)
        }
    }
}

fn run(backend: &impl Backend, options: &Options) -> anyhow::Result<()> {
    let device = backend.device();
    let piece = match backend.is_virtual() || options.test {
        true => GIB / 256,
        false => options.gib * GIB / 16,
    };
    let pause = || {
        if !backend.is_virtual() && !options.at_once {
            std::thread::sleep(Duration::from_secs(2));
        }
    };
    println!("{}", backend.name());
    let bare = backend.bare_copies();
    if let Some([out, back]) = bare {
        println!("  bare copies: {out:.1} GiB/s to the host, {back:.1} GiB/s to the device");
    }
    let bare = bare.map_or([None; 2], |bare| bare.map(Some));
    let [out, back] = bare;
    let pool = Pool::builder(device.clone()).build()?;
    let stream = pool.create_stream()?;
    let weights = pool.region("weights").keep(Keep::OnHost).build()?;
    let cache = pool.region("cache").keep(Keep::Nothing).build()?;
    backend
        .run(async {
            let blocks = blocks_of(&weights, &stream, piece).await?;
            let entries = blocks_of(&cache, &stream, piece).await?;
            stream.synchronize().await?;
            let addresses: Vec<_> = blocks.iter().chain(&entries).map(Block::address).collect();
            let bytes = 16 * piece;
            for round in 0..options.rounds {
                println!("round {round}");
                let (ended, time) = timed(&*device, cache.suspend()).await;
                ensure!(ended? >= bytes, "less was given back");
                row("suspend what is not kept", time, 0, None);
                let (ended, time) = timed(&*device, weights.suspend()).await;
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
                pause();
                let (ended, time) = timed(&*device, weights.resume().into_future()).await;
                ended?;
                row("resume", time, bytes, back);
                pause();
                let (ended, time) = timed(&*device, cache.resume().into_future()).await;
                ended?;
                row("resume what is not kept", time, 0, None);
                if !backend.is_virtual() {
                    pause();
                    let [mapped, unmapped] = mapped_and_unmapped(&*device, piece)?;
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
    backend
        .run(async {
            spills(backend, bare, options.rounds, (piece, 16)).await?;
            let small = (8 * piece) >> 20;
            spills(backend, bare, options.rounds, (2 << 20, small as usize)).await
        })
        .context("spills")
}
