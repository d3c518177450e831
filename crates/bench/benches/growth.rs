//! Cost as work grows: `cargo bench --bench growth`.
//!
//! Each row has one kind of item in growing numbers: streams, waiting requests, chunks, tags, pools. A cell is the time
//! of one operation while that many items exist, or the time of an operation on all of them divided by their number. A
//! cost that does not grow with the number stays the same along its row. Times are of this machine, on the simulated
//! device; only their ratio along a row means anything.
//!
//! `-- --test` runs each row once with few items; `-- --most 1000` bounds the numbers.

use clap::Parser;
use futures::future::FutureExt;
use std::hint::black_box;
use std::time::{Duration, Instant};
use weirpool::device::sim::{Backing, Checker, Clock, SimDevice};
use weirpool::{AllocateOwned, Pool, Stream, Tag};

const MIB: u64 = 1 << 20;

#[derive(Parser)]
struct Options {
    /// The largest number of items.
    #[arg(long, default_value_t = 100_000)]
    most: usize,
    /// Runs each row once, with few items.
    #[arg(long)]
    test: bool,
    /// Accepted from cargo, and ignored.
    #[arg(long)]
    bench: bool,
}

/// One row: what is measured, up to which number of items, and the measurement.
struct Row {
    label: &'static str,
    most: usize,
    measure: fn(usize) -> Duration,
}

const ROWS: [Row; 10] = [
    Row {
        label: "streams: register and drop one more",
        most: 10_000,
        measure: register_a_stream,
    },
    Row {
        label: "streams: allocate what another stream freed",
        most: 10_000,
        measure: take_from_another_stream,
    },
    Row {
        label: "waiters: join the queue, each",
        most: 100_000,
        measure: join,
    },
    Row {
        label: "waiters: join and leave, one more",
        most: 100_000,
        measure: join_and_leave,
    },
    Row {
        label: "waiters: be granted, each",
        most: 100_000,
        measure: grant_all,
    },
    Row {
        label: "chunks: release all, each",
        most: 100_000,
        measure: trim_all,
    },
    Row {
        label: "chunks: allocate and free one block, no lane",
        most: 100_000,
        measure: pair_among_chunks,
    },
    Row {
        label: "tags: allocate and free for the first one",
        most: 1_000_000,
        measure: pair_among_tags,
    },
    Row {
        label: "tags: statistics of the first one",
        most: 1_000_000,
        measure: statistics_among_tags,
    },
    Row {
        label: "pools: allocate and free in the first one",
        most: 1_000,
        measure: pair_among_pools,
    },
];

fn main() {
    let options = Options::parse();
    let most = if options.test { 20 } else { options.most };
    let counts: Vec<usize> = [10, 100, 1_000, 10_000, 100_000, 1_000_000]
        .into_iter()
        .filter(|count| *count <= most)
        .collect();
    let header: Vec<_> = counts.iter().map(usize::to_string).collect();
    println!("| time per operation, ns | {} |", header.join(" | "));
    println!("|---|{}", "---|".repeat(counts.len()));
    for row in ROWS {
        let cell = |count: &usize| {
            if *count > row.most {
                return String::new();
            }
            format!("{:.0}", (row.measure)(*count).as_secs_f64() * 1e9)
        };
        let cells: Vec<_> = counts.iter().map(cell).collect();
        println!("| {} | {} |", row.label, cells.join(" | "));
    }
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

fn register_a_stream(count: usize) -> Duration {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let _streams = streams(&pool, count);
    median(|| drop(pool.create_stream().expect("a stream")))
}

/// Each stream frees its blocks to its lane; the next stream finds nothing in its own.
fn take_from_another_stream(count: usize) -> Duration {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let streams = streams(&pool, count);
    let mut next = streams.iter().cycle();
    median(|| {
        let stream = next.next().expect("a stream");
        drop(pool.try_allocate(stream, MIB).expect("memory"));
    })
}

/// A full pool of one stream, and requests that wait for a part of it.
struct FullPool {
    pool: Pool,
    stream: Stream,
    held: Option<weirpool::Block>,
    waiting: Vec<AllocateOwned>,
}

impl FullPool {
    fn new(count: usize) -> (Self, Duration) {
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
        for _ in 0..count {
            let request = full.join();
            full.waiting.push(request);
        }
        (full, start.elapsed())
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

fn join(count: usize) -> Duration {
    share(FullPool::new(count).1, count)
}

fn join_and_leave(count: usize) -> Duration {
    let (full, _) = FullPool::new(count);
    median(|| drop(full.join()))
}

/// Each block is freed as soon as it is granted, which serves the next requests.
fn grant_all(count: usize) -> Duration {
    let (mut full, _) = FullPool::new(count);
    let mut waiting = std::mem::take(&mut full.waiting);
    let start = Instant::now();
    drop(full.held.take());
    for request in &mut waiting {
        let granted = request.now_or_never().expect("served in order");
        drop(granted.expect("memory"));
    }
    share(start.elapsed(), count)
}

fn with_chunks(count: usize, lane_bytes: u64) -> (Pool, Stream) {
    let device = device();
    let bytes = count as u64 * 2 * MIB;
    let pool = Pool::builder(device)
        .capacity(bytes + 64 * MIB)
        .chunk_bytes(2 * MIB)
        .lane_bytes(lane_bytes)
        .build()
        .expect("a pool");
    let stream = pool.create_stream().expect("a stream");
    drop(pool.try_allocate(&stream, bytes).expect("memory"));
    (pool, stream)
}

fn trim_all(count: usize) -> Duration {
    let (pool, stream) = with_chunks(count, 0);
    stream.seal().expect("an event");
    pool.reap().expect("a working device");
    let start = Instant::now();
    let trimmed = black_box(pool.trim_to(0).expect("a working device"));
    assert_eq!(trimmed.reserved, 0, "all of it is free");
    share(start.elapsed(), count)
}

fn pair_among_chunks(count: usize) -> Duration {
    let (pool, stream) = with_chunks(count, 0);
    median(|| drop(pool.try_allocate(&stream, MIB).expect("memory")))
}

fn tagged(count: usize) -> (Pool, Stream, Tag) {
    let device = device();
    let pool = pool(&device, 64 * MIB);
    let stream = pool.create_stream().expect("a stream");
    let tags: Vec<_> = (0..count).map(|n| Tag::new(&format!("tag {n}"))).collect();
    for tag in &tags {
        pool.tag(*tag).set_limit(Some(8 * MIB));
        let block = pool.allocate(&stream, 4096).tag(*tag).try_now();
        drop(block.expect("memory"));
    }
    (pool, stream, tags[0])
}

fn pair_among_tags(count: usize) -> Duration {
    let (pool, stream, tag) = tagged(count);
    median(|| {
        let block = pool.allocate(&stream, 4096).tag(tag).try_now();
        drop(block.expect("memory"));
    })
}

fn statistics_among_tags(count: usize) -> Duration {
    let (pool, _stream, tag) = tagged(count);
    median(|| drop(black_box(pool.tag(tag).statistics())))
}

fn pair_among_pools(count: usize) -> Duration {
    let device = device();
    let pools: Vec<_> = (0..count).map(|_| pool(&device, 64 * MIB)).collect();
    let stream = pools[0].create_stream().expect("a stream");
    median(|| drop(pools[0].try_allocate(&stream, MIB).expect("memory")))
}
