//! Many tasks, as an inference server has them: requests of all sizes on a few streams, more of them than there is
//! memory for, for some seconds. Every word of every block is the owner's own. Some requests are cancelled, some blocks
//! are freed on another stream, and some servers capture graphs and launch them.

use crate::bench::{Span, Witness};
use crate::common::MIB;
use crate::cuda::{Cuda, Setting};
use crate::graphs::await_release;
use crate::site::{Site, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weirpool::device::MemoryKind;
use weirpool::{Block, Source, Unordered};

const CAPACITY: u64 = 256 * MIB;
const STREAMS: usize = 8;
const THREADS: usize = 8;
const TASKS: usize = 32;
/// Sizes up to 64 MiB: together the tasks ask for several times what there is.
const LARGEST_BITS: u32 = 26;

/// Graphs that were captured in this process.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// Seconds, of each kind of memory; other than the default if so.
const SECONDS: &str = "WEIRPOOL_SOAK_SECONDS";

/// How long the soak runs on each kind of the device's memory; on what the host sees, a third of that.
pub(crate) fn duration() -> Duration {
    let seconds = std::env::var(SECONDS).map_or(6, |text| text.parse().expect("seconds"));
    Duration::from_secs(seconds)
}

/// A server of requests, on a stream of its own that it shares with a few others.
struct Server<S: Setting> {
    home: Worker<Cuda<S>>,
    /// Another stream, which some of the work goes on to.
    further: Worker<Cuda<S>>,
    /// A stream that no other server uses, so that it can be captured. Not every server has one.
    captured: Option<Worker<Cuda<S>>>,
    witness: Witness,
    /// Words that no task wrote yet.
    words: Arc<AtomicU32>,
    random: fastrand::Rng,
}

impl<S: Setting> Server<S> {
    async fn serve(mut self, end: Instant) -> u64 {
        let mut served = 0;
        while Instant::now() < end {
            self.request().await;
            if self.is_one_in(8) {
                self.capture().await;
            }
            served += 1;
        }
        self.home.stream.synchronize().await.unwrap();
        self.further.stream.synchronize().await.unwrap();
        served
    }

    /// Waits only while it holds nothing: else all might hold something, and wait for ever.
    async fn request(&mut self) {
        let bytes = self.size(LARGEST_BITS);
        if self.is_one_in(16) {
            self.lose_patience(bytes).await;
        }
        let mut block = self.home.allocate(bytes).await;
        let word = self.write(&block);
        let size = self.size(20);
        let scratch = self.home.try_take(size).ok();
        let scratch = scratch.map(|block| (self.write(&block), block));
        if let Some((word, block)) = &scratch {
            self.expect(&self.home, block, *word);
        }
        if self.is_one_in(3) {
            self.further.come_after(&self.home);
            self.further
                .stream
                .record_use(Unordered::UntilFreed(&block))
                .unwrap();
            self.expect(&self.further, &block, word);
        }
        if self.is_one_in(8) {
            self.look(&block, word).await;
        }
        self.expect(&self.home, &block, word);
        if self.is_one_in(4) {
            drop(scratch);
            block.deallocate().await.unwrap();
        } else if self.is_one_in(4) {
            self.further.come_after(&self.home);
            drop(block.deallocate_on(&self.further.stream).unwrap());
        } else if self.is_one_in(4) {
            block.move_to(&self.further.stream).unwrap();
            self.expect(&self.further, &block, word);
        }
    }

    /// Captures the write of a block, and launches the graph a few times. Between the launches the block has another
    /// word.
    async fn capture(&mut self) {
        let Some(captured) = self.captured.clone() else {
            return;
        };
        let bytes = self.size(22);
        let pool = &captured.pool;
        let reserved = pool.reserve(bytes).await.unwrap();
        let memory = pool.graph_memory();
        memory.give(reserved).unwrap();
        let capture = memory.capture(&captured.stream).unwrap();
        let block = captured.take(bytes);
        let word = self.write_on(&captured, &block);
        let graph = capture.end().unwrap();
        for _ in 0..self.random.u32(1..5) {
            self.write_on(&captured, &block);
            graph.launch(&captured.stream).unwrap();
            self.expect(&captured, &block, word);
        }
        GRAPHS.fetch_add(1, Ordering::Relaxed);
        if self.is_one_in(2) {
            drop(graph); // while it runs
            captured.stream.synchronize().await.unwrap();
        }
    }

    fn size(&mut self, most_bits: u32) -> u64 {
        let bits = self.random.u32(9..=most_bits);
        self.random.u64(1..=1 << bits)
    }

    fn is_one_in(&mut self, count: u32) -> bool {
        self.random.u32(..count) == 0
    }

    /// Gives a wait up, soon or at once.
    async fn lose_patience(&mut self, bytes: u64) {
        let patience = Duration::from_micros(self.random.u64(0..2000));
        let waiting = self.home.pool.allocate(&self.home.stream, bytes);
        drop(tokio::time::timeout(patience, waiting).await);
    }

    /// Fills a block with a word that no other has, and takes a while.
    fn write(&mut self, block: &Block) -> u32 {
        let home = self.home.clone();
        self.write_on(&home, block)
    }

    fn write_on(&mut self, worker: &Worker<Cuda<S>>, block: &Block) -> u32 {
        let word = self.words.fetch_add(1, Ordering::Relaxed);
        let Span { address, bytes } = block.into();
        let Worker { bench, work, .. } = worker;
        bench.gpu.fill(work, address, bytes, word);
        bench.spend_time(work, Duration::from_micros(self.random.u64(5..60)));
        word
    }

    fn expect(&self, worker: &Worker<Cuda<S>>, block: &Block, word: u32) {
        let Span { address, bytes } = block.into();
        let Worker { bench, work, .. } = worker;
        let answer = self.witness.ask();
        bench.gpu.compare(work, address, bytes, word, answer);
    }

    /// Has a part of the block on the host.
    async fn look(&mut self, block: &Block, word: u32) {
        let count = block.size().min(4096);
        let start = self.random.u64(0..=(block.size() - count) / 4) * 4;
        let download = block.download(&self.home.stream, start..start + count);
        let bytes = download.unwrap().await.unwrap();
        let is_right = bytes.chunks(4).all(|bytes| bytes == word.to_ne_bytes());
        self.witness.ask()(is_right);
    }
}

pub(crate) fn tasks_over_streams_keep_every_word<S: Setting>() {
    let site = Site::<Cuda<S>>::with(CAPACITY, |builder| builder.chunk_bytes(4 * MIB));
    let workers = site.workers::<STREAMS>();
    let words = Arc::new(AtomicU32::new(1));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_time()
        .build()
        .unwrap();
    let is_of_device = S::UPSTREAM.kind() == MemoryKind::Device;
    let end = Instant::now() + duration() / if is_of_device { 1 } else { 3 };
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| {
            let server = Server {
                home: workers[number % STREAMS].clone(),
                further: workers[(number * 5 + 1) % STREAMS].clone(),
                captured: (number < STREAMS).then(|| site.worker()),
                witness: site.witness.clone(),
                words: words.clone(),
                random: fastrand::Rng::with_seed(number as u64),
            };
            runtime.spawn(server.serve(end))
        })
        .collect();
    let served = runtime.block_on(futures::future::join_all(tasks));
    let served: u64 = served.into_iter().map(Result::unwrap).sum();
    report(&site, served);
    let workers: Vec<_> = workers.iter().collect();
    await_release(&site, &workers);
    site.assert_sound();
    let waits = site.pool.inspect().statistics().waits;
    assert_eq!(waits.waiting, 0);
    assert!(waits.served > 0, "there was memory for all of them at once");
    assert!(GRAPHS.load(Ordering::Relaxed) > 0, "no graph was captured");
}

fn report<S: Setting>(site: &Site<Cuda<S>>, served: u64) {
    let statistics = site.pool.inspect().statistics();
    let by_source = Source::ALL.map(|source| format!("{source:?} {}", statistics.hits.of(source)));
    eprintln!(
        "soak: {served} requests served, {} of them after a wait; {} graphs; grants: {}; {} corruptions",
        statistics.waits.served,
        GRAPHS.load(Ordering::Relaxed),
        by_source.join(", "),
        site.witness.corruptions(),
    );
}
