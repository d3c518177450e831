//! Prefix hits of a cache whose entries the pool takes back: `cargo run --release -p weirpool-bench --bin prefix_cache -- TRACE...`.
//!
//! A trace is a file of Mooncake's JSON lines, plain or gzip: each line has the `hash_ids` of a request's blocks of 512 tokens.
//! A block of the trace is a small block of the pool, 16 of which share a chunk. A block is a hit if the cache has it, and all before it in its
//! request. A request holds its blocks while it runs. A row is a capacity in blocks:
//!
//! | column | hits of |
//! |---|---|
//! | LRU | a list of as many blocks in the order of their last use |
//! | evictable | blocks of a pool that are [evictable](weirpool::Evictable) |
//! | LRU of 4 | a list of four times as many |
//! | spillable | blocks that are [spillable](weirpool_tiers::Spillable), with a host tier of three times the device's capacity |
//!
//! Then one of 64 requests takes working memory of a fortieth of the cache, in pieces of a chunk, and gives it back. The blocks are those of many requests by then,
//! scattered over the chunks. The figures are blocks that were evicted for each chunk: by the pool's choice, and by age alone until as many chunks were free.
//!
//! At last come the strides of kvcached's table: how much of a cache that was used in this order is free in whole chunks after the oldest
//! seven eighths were evicted, and how much the pool spills for requests of as many bytes.
//!
//! Without a trace it runs a small stream that it makes up. It fails where the pool hits less than the list. Everything runs on the simulated device, without contents.

mod caches;
mod evictables;
mod lru;
mod spillables;
mod strides;
mod trace;

use anyhow::ensure;
use caches::{BLOCK, CHUNK, hits_of};
use clap::Parser;
use evictables::{Choice, Evictables};
use lru::Lru;
use spillables::Spillables;
use std::path::PathBuf;
use trace::Trace;

/// How many requests there are for one that takes working memory.
const EVERY: usize = 64;

#[derive(Parser)]
struct Options {
    /// The files of Mooncake's JSON lines, plain or gzip.
    traces: Vec<PathBuf>,
    /// The capacities, in blocks: multiples of 16, which fill a chunk.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 30_000])]
    blocks: Vec<usize>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let is_whole = |blocks: &usize| *blocks > 0 && (*blocks as u64 * BLOCK).is_multiple_of(CHUNK);
    ensure!(
        options.blocks.iter().all(is_whole),
        "{:?}: expected multiples of {} blocks",
        options.blocks,
        CHUNK / BLOCK
    );
    if options.traces.is_empty() {
        run(&Trace::made_up(), &[256])?;
    }
    for path in &options.traces {
        run(&Trace::read(path)?, &options.blocks)?;
    }
    strides::run()
}

fn run(trace: &Trace, capacities: &[usize]) -> anyhow::Result<()> {
    let blocks = trace.blocks();
    let share = |hits: usize| hits as f64 / blocks as f64;
    let bound = hits_of(&mut Lru::new(usize::MAX), trace)?;
    println!(
        "{}: {} requests, {blocks} blocks, {} of them different; an infinite cache hits {:.4}",
        trace.name,
        trace.requests.len(),
        trace.different(),
        share(bound)
    );
    println!("\n| blocks | LRU | evictable | LRU of 4 | spillable (spilled) |\n|-|-|-|-|-|");
    for capacity in capacities.iter().copied() {
        let list = |times| hits_of(&mut Lru::new(times * capacity), trace);
        let (plain, of_four) = (list(1)?, list(4)?);
        let evictable = hits_of(&mut Evictables::new(capacity)?, trace)?;
        let mut tiered = Spillables::new(capacity)?;
        let spillable = hits_of(&mut tiered, trace)?;
        println!(
            "| {capacity} | {:.4} | {:.4} | {:.4} | {:.4} ({}) |",
            share(plain),
            share(evictable),
            share(of_four),
            share(spillable),
            tiered.spills()
        );
        ensure!(
            (plain..=bound).contains(&evictable),
            "{evictable} hits of evictable blocks, {plain} of a list"
        );
        ensure!(
            (of_four..=bound).contains(&spillable),
            "{spillable} hits of spillable blocks, {of_four} of a list of four times the capacity"
        );
    }
    if trace.requests.len() < EVERY {
        println!("\nNo working memory is taken: that needs {EVERY} requests.");
        return Ok(());
    }
    println!("\n| blocks | evicted for a chunk (hits) | by age (hits) |\n|-|-|-|");
    for capacity in capacities.iter().copied() {
        let work = (capacity as u64 * BLOCK / 40).next_multiple_of(CHUNK);
        let measured = |choice| {
            let mut cache = Evictables::new(capacity)?.working(work, EVERY, choice);
            let hits = hits_of(&mut cache, trace)?;
            anyhow::Ok((cache.evicted_for_a_chunk(), share(hits)))
        };
        let ((chosen, hits), (aged, hits_by_age)) =
            (measured(Choice::Pool)?, measured(Choice::Age)?);
        println!("| {capacity} | {chosen:.0} ({hits:.4}) | {aged:.0} ({hits_by_age:.4}) |");
    }
    Ok(())
}
