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

/// The size of a block, which is that of a chunk by default: each allocation takes one chunk from the device.
const BLOCK: u64 = 8 << 20;

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

type Allocate<G> = fn(&G, &Pool, &Stream) -> Result<Block, AllocError>;

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let ways: [(&str, Allocate<G>); 3] = [
        ("`try_allocate`", |_, pool, stream| {
            pool.try_allocate(stream, BLOCK)
        }),
        ("`allocate().await`", |backend, pool, stream| {
            backend.run(pool.allocate(stream, BLOCK).into_future())
        }),
        ("`allocate().blocking()`", |_, pool, stream| {
            pool.allocate(stream, BLOCK).blocking()
        }),
    ];
    let blocks = effort.of(256);
    let mut rows = Vec::new();
    for (beside, is_busy) in [("", false), (", another thread submits work", true)] {
        for (name, allocate) in ways {
            let mut race = Race::new();
            race.enter(Allocator::Weirpool, || {
                beside_work(backend, is_busy, || pool_grows(backend, blocks, allocate))
            });
            race.enter(Allocator::Floor, || {
                beside_work(backend, is_busy, || chunks_are_mapped(backend, blocks))
            });
            let results = race.run(effort.rounds);
            let label = |figure: &str| format!("growth by 8 MiB{beside}: {name}, {figure}");
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

fn pool_grows<G: Backend>(backend: &G, blocks: usize, allocate: Allocate<G>) -> Times {
    let pool = Pooled::new(backend).pool;
    let Line { stream, .. } = &backend.line(&pool);
    let mut held = Vec::with_capacity(blocks);
    let times = (0..blocks).map(|_| {
        let start = Instant::now();
        held.push(allocate(backend, &pool, stream).expect("memory"));
        start.elapsed()
    });
    Times::of(times.collect())
}

/// The floor: creates and maps a chunk for each block, and does nothing else.
fn chunks_are_mapped(backend: &impl Backend, blocks: usize) -> Times {
    let device = backend.device();
    let bytes = BLOCK * blocks as u64;
    let base = device.reserve(bytes).expect("addresses");
    let mut chunks = Vec::with_capacity(blocks);
    let times = (0..blocks as u64).map(|at| {
        let start = Instant::now();
        let chunk = device.create(BLOCK).expect("a chunk");
        let address = base + at * BLOCK;
        // SAFETY: the chunk is mapped once, in a range that was reserved for it.
        unsafe { device.map(address, chunk, BLOCK) }.expect("a chunk to be mapped");
        chunks.push((address, chunk));
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
            let unmapped = device.unmap(address, BLOCK);
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
