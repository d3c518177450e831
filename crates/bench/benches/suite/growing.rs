//! Allocations that make a pool grow: the time of each, by each way to request memory, on an idle device and while another
//! thread submits work to it.

use super::backend::{Backend, Line};
use super::effort::Effort;
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::{Chunk, Device};
use weirpool::{AllocError, Block, Pool, Stream};

/// The size of a chunk by default. A block has as many chunks as a row names, and each allocation takes them from the
/// device.
const CHUNK: u64 = 8 << 20;

const TIME: Unit = Unit::cost("us");

/// The median of a turn's allocations, and the time that 99 of 100 do not exceed, in microseconds.
struct Times {
    median: f64,
    p99: f64,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_nanos() as f64 / 1000.0;
        Self {
            median: at(50),
            p99: at(99),
        }
    }
}

type Allocate<G> = fn(&G, &Pool, &Stream, u64) -> Result<Block, AllocError>;

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let in_poll: Allocate<G> =
        |backend, pool, stream, bytes| backend.run(pool.allocate(stream, bytes).into_future());
    // A poll maps no more than four chunks.
    let ways: [(&str, u64, Allocate<G>); 5] = [
        ("`try_allocate`", 1, |_, pool, stream, bytes| {
            pool.try_allocate(stream, bytes)
        }),
        ("`allocate().await`", 1, in_poll),
        ("`allocate().await`", 3, in_poll),
        ("`allocate().await`", 8, in_poll),
        ("`allocate().blocking()`", 1, |_, pool, stream, bytes| {
            pool.allocate(stream, bytes).blocking()
        }),
    ];
    let mut rows = Vec::new();
    for (beside, is_busy) in [("", false), (", another thread submits work", true)] {
        for (name, chunks, allocate) in ways {
            let (blocks, bytes) = (effort.of(256 / chunks as usize), chunks * CHUNK);
            let mut race = Race::new();
            race.enter(Allocator::Weirpool, || {
                beside_work(backend, is_busy, || {
                    pool_grows(backend, blocks, bytes, allocate)
                })
            });
            race.enter(Allocator::Floor, || {
                beside_work(backend, is_busy, || {
                    chunks_are_mapped(backend, blocks, chunks)
                })
            });
            let results = race.run(effort.rounds);
            let mib = bytes >> 20;
            let label = |figure: &str| format!("growth by {mib} MiB{beside}: {name}, {figure}");
            let medians = results.figures(|times: &Times| times.median);
            rows.push(Row::new(label("median"), TIME, medians));
            rows.push(Row::new(
                label("p99"),
                TIME,
                results.figures(|times| times.p99),
            ));
        }
    }
    rows
}

fn pool_grows<G: Backend>(backend: &G, blocks: usize, bytes: u64, allocate: Allocate<G>) -> Times {
    let pool = Pooled::new(backend).pool;
    let Line { stream, .. } = &backend.line(&pool);
    let mut held = Vec::with_capacity(blocks);
    let times = (0..blocks).map(|_| {
        let start = Instant::now();
        held.push(allocate(backend, &pool, stream, bytes).expect("memory"));
        start.elapsed()
    });
    let times = Times::of(times.collect());
    drop(held);
    // Here, and not by a thread of the pool during the turn of another contender.
    while pool.trim_to(0).expect("a device that works").reserved > 0 {}
    times
}

/// The floor: creates and maps the chunks of each block, and does nothing else.
fn chunks_are_mapped(backend: &impl Backend, blocks: usize, of_each: u64) -> Times {
    let device = backend.device();
    let bytes = CHUNK * of_each * blocks as u64;
    let base = device.reserve(bytes).expect("addresses");
    let mut chunks = Vec::with_capacity(blocks);
    let times = (0..blocks as u64).map(|block| {
        let start = Instant::now();
        for at in block * of_each..(block + 1) * of_each {
            let chunk = device.create(CHUNK).expect("a chunk");
            let address = base + at * CHUNK;
            // SAFETY: the chunk is mapped once, in a range that was reserved for it.
            unsafe { device.map(address, chunk, CHUNK) }.expect("a chunk to be mapped");
            chunks.push((address, chunk));
        }
        start.elapsed()
    });
    let times = Times::of(times.collect());
    give_back(&device, chunks, (base, bytes));
    times
}

fn give_back(device: &Arc<dyn Device>, chunks: Vec<(u64, Chunk)>, (base, bytes): (u64, u64)) {
    for (address, chunk) in chunks {
        // SAFETY: no work ever used the chunk, which is not named again.
        let done = unsafe {
            let unmapped = device.unmap(address, CHUNK);
            unmapped.and_then(|()| device.destroy(chunk))
        };
        done.expect("a chunk that was mapped");
    }
    // SAFETY: nothing is mapped there any more.
    unsafe { device.unreserve(base, bytes) }.expect("a range that was reserved");
}

/// Runs `measured`, if wished while another thread submits short work all the time.
fn beside_work<G: Backend, R>(backend: &G, is_busy: bool, measured: impl FnOnce() -> R) -> R {
    const WORK: Duration = Duration::from_micros(20);
    const TOGETHER: usize = 32;
    if !is_busy {
        return measured();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            backend.enter();
            let pool = Pooled::new(backend).pool;
            let line = backend.line(&pool);
            while !is_over.load(Ordering::Acquire) {
                (0..TOGETHER).for_each(|_| backend.spend(&line.work, WORK));
                backend.finish([&line]);
            }
        });
        let result = measured();
        is_over.store(true, Ordering::Release);
        result
    })
}
