//! Cost as work grows: `cargo bench --bench growth`.
//!
//! Each row has one kind of item in growing numbers: streams, streams that are gone while their work runs, waiting
//! requests, live and free blocks, stretches of unused addresses, chunks, tags, pools. A cell is the time of one operation while that many items exist, or the time
//! of an operation on all of them divided by their number. A cost that does not grow with the number stays the same
//! along its row. A second table has the host memory of an item, with the records of the simulated device. Times are of
//! this machine, on the simulated device; only their ratio along a row means anything.
//!
//! The last column is the exponent of the last two decades of a row: 0 is a constant cost, 1 a linear one. A logarithm
//! has about 0.1 there, and items that no longer fit into the caches of the processor up to 0.4.
//!
//! `-- --only waiters` measures those rows; `-- --plot growth.svg` draws both; `-- --test` runs each row once with few items; `-- --most 1000` bounds the numbers.

#[path = "growth/draw.rs"]
mod draw;
#[path = "suite/heap.rs"]
mod heap;

use clap::Parser;
use fastrand::Rng;
use futures::future::FutureExt;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weirpool::device::sim::{Backing, Checker, Clock, Operation, SimDevice};
use weirpool::{AllocateOwned, Block, Pool, Stream, Tag};

const MIB: u64 = 1 << 20;

#[derive(Parser)]
struct Options {
    /// The largest number of items.
    #[arg(long, default_value_t = 1_000_000)]
    most: usize,
    /// Measures only rows with this text in their label.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Draws both tables.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Runs each row once, with few items.
    #[arg(long)]
    test: bool,
    /// Accepted from cargo, and ignored.
    #[arg(long)]
    bench: bool,
}

/// The cost of one operation among some number of items.
struct Cost {
    time: Duration,
    /// The growth of the host's heap for the items, in bytes for each.
    bytes: f64,
}

/// One row: the items, the operation, up to which number of items, and the measurement.
struct Row {
    items: &'static str,
    operation: &'static str,
    most: usize,
    measure: fn(usize) -> Cost,
}

const fn row(
    items: &'static str,
    operation: &'static str,
    most: usize,
    measure: fn(usize) -> Cost,
) -> Row {
    Row {
        items,
        operation,
        most,
        measure,
    }
}

const ROWS: [Row; 24] = [
    row(
        "streams",
        "allocate and free on one",
        10_000,
        pair_among_streams,
    ),
    row(
        "streams",
        "register and drop one more",
        10_000,
        register_a_stream,
    ),
    row(
        "retired streams",
        "register and drop one more",
        10_000,
        register_beside_retired_streams,
    ),
    row(
        "streams",
        "allocate what another stream freed",
        10_000,
        take_from_another_stream,
    ),
    row("waiters", "join the queue, each", 100_000, join),
    row(
        "waiters",
        "join and leave, one more",
        100_000,
        join_and_leave,
    ),
    row("waiters", "be granted, each", 100_000, grant_all),
    row("waiters", "list all, each", 100_000, list_all),
    row("waiters", "print one", 100_000, print_one),
    row("waiters", "set the limit of a tag", 100_000, set_limit),
    row("waiters", "set the weight of a tag", 100_000, set_weight),
    row("live blocks", "allocate all, each", 1_000_000, allocate_all),
    row(
        "live blocks",
        "free one and allocate another",
        1_000_000,
        exchange_a_block,
    ),
    row(
        "live blocks",
        "grow for one more, 16 MiB",
        1_000_000,
        grow_among_blocks,
    ),
    row(
        "evictable blocks",
        "evict a chunk of 128 of them",
        1_000_000,
        evict_a_chunk,
    ),
    row(
        "free blocks",
        "grow for one more, 16 MiB",
        1_000_000,
        grow_among_free_blocks,
    ),
    row(
        "stretches",
        "map memory into one, 6 MiB",
        100_000,
        map_into_a_stretch,
    ),
    row("chunks", "release all, each", 100_000, trim_all),
    row(
        "chunks",
        "allocate and free one block, no lane",
        100_000,
        pair_among_chunks,
    ),
    row(
        "tags",
        "allocate and free for the first one",
        100_000,
        pair_among_tags,
    ),
    row(
        "tags",
        "statistics of the first one",
        100_000,
        statistics_among_tags,
    ),
    row(
        "pools",
        "allocate and free in the first one",
        1_000,
        pair_among_pools,
    ),
    row(
        "blocks of a capture",
        "allocate one more, 2 MiB",
        100_000,
        grow_a_capture,
    ),
    row(
        "blocks of a checkpoint",
        "restore all, each",
        100_000,
        restore_all,
    ),
];

/// The figures measured for a row: its label, and a figure for each number of items.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(usize, f64)>,
}

impl Line {
    /// Returns the exponent of the growth over the last two decades.
    fn exponent(&self) -> Option<f64> {
        let last = self.points.len().checked_sub(1)?;
        let ((few, least), (many, most)) = (self.points[last.checked_sub(2)?], self.points[last]);
        Some((most / least).ln() / (many as f64 / few as f64).ln())
    }
}

fn main() {
    let options = Options::parse();
    let most = if options.test { 20 } else { options.most };
    let counts: Vec<usize> = (0..=6)
        .map(|decade| 10_usize.pow(decade))
        .filter(|count| *count <= most)
        .collect();
    let (mut times, mut bytes) = (Vec::new(), Vec::<Line>::new());
    for row in ROWS {
        let label = format!("{}: {}", row.items, row.operation);
        if !label.contains(&options.only) {
            continue;
        }
        let counts = counts.iter().filter(|count| **count <= row.most);
        let costs: Vec<_> = counts
            .map(|count| (*count, (row.measure)(*count)))
            .collect();
        let line = |label: String, figure: fn(&Cost) -> f64| Line {
            label,
            points: costs
                .iter()
                .map(|(count, cost)| (*count, figure(cost)))
                .collect(),
        };
        times.push(line(label, |cost| cost.time.as_secs_f64() * 1e9));
        if bytes.last().is_none_or(|line| line.label != row.items) {
            bytes.push(line(row.items.to_owned(), |cost| cost.bytes));
        }
    }
    table("time per operation, ns", &counts, &times);
    println!();
    table("host memory of an item, bytes", &counts, &bytes);
    if let Some(file) = &options.plot {
        let picture = draw::picture(&times, &bytes).expect("a picture");
        std::fs::write(file, picture).expect("a file that can be written");
    }
}

fn table(title: &str, counts: &[usize], lines: &[Line]) {
    let header: Vec<_> = counts.iter().map(usize::to_string).collect();
    println!("| {title} | {} | exponent |", header.join(" | "));
    println!("|---|{}---|", "---|".repeat(counts.len()));
    for line in lines {
        let cell = |count: &usize| {
            let point = line.points.iter().find(|(of, _)| of == count);
            point.map_or(String::new(), |(_, figure)| format!("{figure:.0}"))
        };
        let cells: Vec<_> = counts.iter().map(cell).collect();
        let exponent = line
            .exponent()
            .map_or(String::new(), |it| format!("{it:.2}"));
        println!("| {} | {} | {exponent} |", line.label, cells.join(" | "));
    }
}

/// Makes `count` items, and returns them with the bytes of the host's heap that each takes.
fn grown<T>(count: usize, make: impl FnOnce() -> T) -> (T, f64) {
    let mut made = None;
    let bytes = heap::growth(|| made = Some(make()));
    (made.expect("made"), bytes as f64 / count as f64)
}

fn device() -> SimDevice {
    SimDevice::builder()
        .memory(1 << 45)
        .backing(Backing::AddressesOnly)
        .checker(Checker::Off)
        .clock(Clock::Manual)
        .build()
}

fn pool(device: &SimDevice, capacity: u64) -> Pool {
    let builder = Pool::builder(device.clone()).capacity(capacity);
    builder.build().expect("a pool")
}

/// Returns the median of the times that an operation takes.
fn median(mut operation: impl FnMut()) -> Duration {
    const TIMES: usize = 101;
    let mut times: Vec<_> = (0..TIMES)
        .map(|_| {
            let start = Instant::now();
            operation();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[TIMES / 2]
}

fn streams(pool: &Pool, count: usize) -> Vec<Stream> {
    let stream = || pool.create_stream().expect("a stream");
    (0..count).map(|_| stream()).collect()
}

fn pair_among_streams(count: usize) -> Cost {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let (streams, bytes) = grown(count, || streams(&pool, count));
    let time = median(|| drop(pool.try_allocate(&streams[0], MIB).expect("memory")));
    Cost { time, bytes }
}

fn register_a_stream(count: usize) -> Cost {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let (_streams, bytes) = grown(count, || streams(&pool, count));
    let time = median(|| drop(pool.create_stream().expect("a stream")));
    Cost { time, bytes }
}

/// The work of each runs on.
fn register_beside_retired_streams(count: usize) -> Cost {
    let device = device();
    let pool = pool(&device, 1 << 40);
    let ((), bytes) = grown(count, || {
        for _ in 0..count {
            let work = device.create_stream();
            let stream = pool.register(&work).expect("a stream");
            work.submit(Operation::new(Duration::from_secs(1)));
            drop(pool.try_allocate(&stream, MIB).expect("memory"));
        }
    });
    let time = median(|| drop(pool.create_stream().expect("a stream")));
    Cost { time, bytes }
}

/// Each stream frees its blocks to its lane; the next stream finds nothing in its own.
fn take_from_another_stream(count: usize) -> Cost {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let (streams, bytes) = grown(count, || streams(&pool, count));
    let mut next = streams.iter().cycle();
    let time = median(|| {
        let stream = next.next().expect("a stream");
        drop(pool.try_allocate(stream, MIB).expect("memory"));
    });
    Cost { time, bytes }
}

/// A full pool of one stream, and requests that wait for a part of it.
struct FullPool {
    pool: Pool,
    stream: Stream,
    held: Option<Block>,
    waiting: Vec<AllocateOwned>,
}

impl FullPool {
    /// Returns also the cost of joining for each.
    fn new(count: usize) -> (Self, Cost) {
        let device = device();
        let pool = pool(&device, 4 * MIB);
        let stream = pool.create_stream().expect("a stream");
        let held = pool.try_allocate(&stream, 4 * MIB).expect("all of it");
        let mut full = Self {
            pool,
            stream,
            held: Some(held),
            waiting: Vec::with_capacity(count),
        };
        let start = Instant::now();
        let ((), bytes) = grown(count, || {
            for _ in 0..count {
                let request = full.join();
                full.waiting.push(request);
            }
        });
        let time = share(start.elapsed(), count);
        (full, Cost { time, bytes })
    }

    fn join(&self) -> AllocateOwned {
        let mut request = self.pool.allocate_owned(&self.stream, MIB);
        assert!((&mut request).now_or_never().is_none(), "the pool is full");
        request
    }
}

fn share(time: Duration, count: usize) -> Duration {
    Duration::from_secs_f64(time.as_secs_f64() / count as f64)
}

fn join(count: usize) -> Cost {
    FullPool::new(count).1
}

fn join_and_leave(count: usize) -> Cost {
    let (full, Cost { bytes, .. }) = FullPool::new(count);
    let time = median(|| drop(full.join()));
    Cost { time, bytes }
}

fn list_all(count: usize) -> Cost {
    let (full, Cost { bytes, .. }) = FullPool::new(count);
    let start = Instant::now();
    black_box(full.pool.inspect().waiting_requests(usize::MAX));
    let time = share(start.elapsed(), count);
    Cost { time, bytes }
}

fn print_one(count: usize) -> Cost {
    let (full, Cost { bytes, .. }) = FullPool::new(count);
    let time = median(|| drop(black_box(format!("{:?}", full.waiting[0]))));
    Cost { time, bytes }
}

fn set_limit(count: usize) -> Cost {
    let (full, Cost { bytes, .. }) = FullPool::new(count);
    let account = full.pool.tag(Tag::new("growth: waiters"));
    let time = median(|| account.set_limit(Some(64 * MIB)));
    Cost { time, bytes }
}

fn set_weight(count: usize) -> Cost {
    let (full, Cost { bytes, .. }) = FullPool::new(count);
    let account = full.pool.tag(Tag::new("growth: waiters"));
    let time = median(|| account.set_weight(2));
    Cost { time, bytes }
}

/// Each block is freed as soon as it is granted, which serves the next requests.
fn grant_all(count: usize) -> Cost {
    let (mut full, Cost { bytes, .. }) = FullPool::new(count);
    let mut waiting = std::mem::take(&mut full.waiting);
    let start = Instant::now();
    drop(full.held.take());
    for request in &mut waiting {
        let granted = request.now_or_never().expect("served in order");
        drop(granted.expect("memory"));
    }
    let time = share(start.elapsed(), count);
    Cost { time, bytes }
}

/// Live blocks of 512 B to 256 KiB on 8 streams.
struct Herd {
    pool: Pool,
    streams: Vec<Stream>,
    random: Rng,
    live: Vec<Block>,
}

impl Herd {
    /// Returns also the cost of allocating each of them.
    fn new(count: usize) -> (Self, Cost) {
        let device = device();
        let pool = pool(&device, 1 << 40);
        let mut herd = Self {
            streams: streams(&pool, 8),
            pool,
            random: Rng::with_seed(5),
            live: Vec::with_capacity(count),
        };
        let start = Instant::now();
        let ((), bytes) = grown(count, || (0..count).for_each(|_| herd.add()));
        let time = share(start.elapsed(), count);
        (herd, Cost { time, bytes })
    }

    fn add(&mut self) {
        let bytes = (9.0 + 9.0 * self.random.f64()).exp2() as u64;
        let stream = self.random.choice(&self.streams).expect("a stream");
        let block = self.pool.try_allocate(stream, bytes);
        self.live.push(block.expect("memory"));
    }
}

fn allocate_all(count: usize) -> Cost {
    Herd::new(count).1
}

fn exchange_a_block(count: usize) -> Cost {
    const TIMES: usize = 300_000;
    let (mut herd, Cost { bytes, .. }) = Herd::new(count);
    let start = Instant::now();
    for _ in 0..TIMES {
        let freed = herd.random.usize(..herd.live.len());
        drop(herd.live.swap_remove(freed));
        herd.add();
    }
    let time = share(start.elapsed(), TIMES);
    Cost { time, bytes }
}

/// No free memory is large enough, so each block takes new chunks.
fn grow_among_blocks(count: usize) -> Cost {
    let (mut herd, Cost { bytes, .. }) = Herd::new(count);
    let Herd {
        pool,
        streams,
        live,
        ..
    } = &mut herd;
    let time = median(|| {
        let block = pool.try_allocate(&streams[0], 16 * MIB);
        live.push(block.expect("memory"));
    });
    Cost { time, bytes }
}

/// Every second block is free, and none is large enough.
fn grow_among_free_blocks(count: usize) -> Cost {
    let (pool, stream) = with_one_stream(1 << 40, 8 * MIB, 0);
    let block = |bytes| pool.try_allocate(&stream, bytes).expect("memory");
    let mut live = Vec::with_capacity(count);
    let ((), bytes) = grown(count, || {
        let blocks = (0..2 * count).map(|_| block(16 << 10)).collect::<Vec<_>>();
        live.extend(blocks.into_iter().step_by(2));
        complete(&pool, &stream);
    });
    let time = median(|| live.push(block(16 * MIB)));
    Cost { time, bytes }
}

/// Each stretch is a gap between live blocks: free memory at its ends, and addresses in between whose memory was
/// released.
fn map_into_a_stretch(count: usize) -> Cost {
    let (pool, stream) = with_one_stream(1 << 42, 2 * MIB, 0);
    let block = |bytes| pool.try_allocate(&stream, bytes).expect("memory");
    let mut live = Vec::with_capacity(count);
    let ((), bytes) = grown(count, || {
        let blocks = (0..count).map(|_| (block(MIB), block(7 * MIB)));
        let (pins, gaps): (Vec<_>, Vec<_>) = blocks.unzip();
        drop(gaps);
        live.extend(pins);
        complete(&pool, &stream);
        let trimmed = pool.trim_to(0).expect("a working device");
        assert_ne!(trimmed.reserved, 0, "live blocks keep theirs");
    });
    let time = median(|| live.push(block(6 * MIB)));
    Cost { time, bytes }
}

/// The blocks were used in rounds, so that the oldest ones lie in different chunks.
fn evict_a_chunk(count: usize) -> Cost {
    const BLOCK: u64 = 16 << 10;
    const ROUNDS: usize = 4;
    // Enough for each measurement, whatever the number of items.
    let all = count.max(128 * 128);
    let needed = (all as u64 * BLOCK).next_multiple_of(2 * MIB);
    let (pool, stream) = with_one_stream(needed, 2 * MIB, 0);
    let block = |bytes| pool.try_allocate(&stream, bytes).expect("memory");
    let mut blocks = Vec::with_capacity(all);
    let ((), bytes) = grown(all, || {
        blocks.extend((0..all).map(|_| block(BLOCK).into_evictable()));
    });
    for round in 0..ROUNDS {
        let used = blocks.iter().skip(round).step_by(ROUNDS);
        used.for_each(|block| drop(block.pin()));
    }
    let mut live = Vec::new();
    let time = median(|| live.push(block(2 * MIB)));
    Cost { time, bytes }
}

fn complete(pool: &Pool, stream: &Stream) {
    stream.seal().expect("an event");
    pool.maintain().reap().expect("a working device");
}

fn with_one_stream(capacity: u64, chunk_bytes: u64, lane_bytes: u64) -> (Pool, Stream) {
    let builder = Pool::builder(device()).capacity(capacity);
    let builder = builder
        .chunk_bytes(chunk_bytes)
        .tuning(|tuning| tuning.lane_bytes = lane_bytes);
    let pool = builder.build().expect("a pool");
    let stream = pool.create_stream().expect("a stream");
    (pool, stream)
}

fn with_chunks(count: usize, lane_bytes: u64) -> (Pool, Stream, f64) {
    let bytes = count as u64 * 2 * MIB;
    let (pool, stream) = with_one_stream(bytes + 64 * MIB, 2 * MIB, lane_bytes);
    let ((), each) = grown(count, || {
        drop(pool.try_allocate(&stream, bytes).expect("memory"));
    });
    (pool, stream, each)
}

fn trim_all(count: usize) -> Cost {
    let (pool, stream, bytes) = with_chunks(count, 0);
    complete(&pool, &stream);
    let start = Instant::now();
    let trimmed = black_box(pool.trim_to(0).expect("a working device"));
    assert_eq!(trimmed.reserved, 0, "all of it is free");
    let time = share(start.elapsed(), count);
    Cost { time, bytes }
}

fn pair_among_chunks(count: usize) -> Cost {
    let (pool, stream, bytes) = with_chunks(count, 0);
    let time = median(|| drop(pool.try_allocate(&stream, MIB).expect("memory")));
    Cost { time, bytes }
}

/// Returns also the bytes of each tag, without its name.
fn tagged(count: usize) -> (Pool, Stream, Tag, f64) {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let stream = pool.create_stream().expect("a stream");
    let tags: Vec<_> = (0..count).map(|n| Tag::new(&format!("tag {n}"))).collect();
    let ((), bytes) = grown(count, || {
        for tag in &tags {
            pool.tag(*tag).set_limit(Some(8 * MIB));
            let block = pool.allocate(&stream, 4096).tag(*tag).try_now();
            drop(block.expect("memory"));
        }
    });
    (pool, stream, tags[0], bytes)
}

fn pair_among_tags(count: usize) -> Cost {
    let (pool, stream, tag, bytes) = tagged(count);
    let time = median(|| {
        let block = pool.allocate(&stream, 4096).tag(tag).try_now();
        drop(block.expect("memory"));
    });
    Cost { time, bytes }
}

fn statistics_among_tags(count: usize) -> Cost {
    let (pool, _stream, tag, bytes) = tagged(count);
    let time = median(|| drop(black_box(pool.tag(tag).statistics())));
    Cost { time, bytes }
}

/// Memory for graphs that grows with each of its blocks, while they are captured.
fn grow_a_capture(count: usize) -> Cost {
    let (pool, stream) = with_one_stream(1 << 42, 2 * MIB, 0);
    let capture = pool.capture(&stream).expect("a capture");
    let block = || pool.try_allocate(&stream, 2 * MIB).expect("memory");
    let (mut live, bytes) = grown(count, || (0..count).map(|_| block()).collect::<Vec<_>>());
    let time = median(|| live.push(block()));
    drop(capture);
    Cost { time, bytes }
}

fn restore_all(count: usize) -> Cost {
    let (pool, stream) = with_one_stream(1 << 42, 2 * MIB, 0);
    let memory = pool.graph_memory();
    let block = || memory.allocate(&stream, 2 * MIB).expect("memory");
    let (live, bytes) = grown(count, || (0..count).map(|_| block()).collect::<Vec<_>>());
    let state = memory.checkpoint();
    drop(live);
    let start = Instant::now();
    let restored = memory.restore(&state, &stream).expect("free ranges");
    let time = share(start.elapsed(), count);
    drop(restored);
    Cost { time, bytes }
}

fn pair_among_pools(count: usize) -> Cost {
    let device = device();
    let make = || (0..count).map(|_| pool(&device, 64 * MIB)).collect();
    let (pools, bytes): (Vec<_>, _) = grown(count, make);
    let stream = pools[0].create_stream().expect("a stream");
    let time = median(|| drop(pools[0].try_allocate(&stream, MIB).expect("memory")));
    Cost { time, bytes }
}
