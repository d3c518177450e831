//! What viewers of the dashboard cost a service: `cargo bench --bench viewer`.
//!
//! One thread allocates and frees blocks of random sizes among live ones, by turns without and with viewers: a second
//! each, or as long as the dashboard waits between frames, if that is longer. The ratio is the median over neighbouring
//! turns. Times are of this machine, on the simulated device.
//!
//! `-- --test` takes short turns, once; `-- --turns 60` takes more. `-- --viewers 10 --tags 10000` has ten viewers, and gives
//! each block one of 10,000 tags. With `--viewers 0` the dashboard keeps its ten minutes, and nobody looks.
//!
//! `-- --count` counts instructions instead, by valgrind: what the dashboard takes in a second without viewers, with 1 and
//! with 10, for 24 and for 10,000 tags. In a second are a row and four frames, whatever the machine: time is virtual.

use clap::Parser;
use futures::future::poll_fn;
use http::{Request, Response, header};
use http_body::Body as _;
use std::convert::Infallible;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};
use tower_service::Service;
use weirpool::device::sim::{Backing, Checker, SimDevice};
use weirpool::{Block, Pool, Stream, Tag};
use weirpool_dashboard::{Body, Dashboard, Frame};
use weirpool_observe::Record as _;

#[derive(Parser)]
struct Options {
    /// The number of turns with a viewer, and of turns without.
    #[arg(long, default_value_t = 20)]
    turns: usize,
    /// The number of viewers.
    #[arg(long, default_value_t = 1)]
    viewers: usize,
    /// The number of tags.
    #[arg(long, default_value_t = 0)]
    tags: usize,
    /// Counts instructions by valgrind.
    #[arg(long)]
    count: bool,
    /// Runs that many seconds of virtual time in this process.
    #[arg(long, hide = true)]
    seconds: Option<u64>,
    /// Takes two short turns.
    #[arg(long)]
    test: bool,
    /// Accepted from cargo, and ignored.
    #[arg(long)]
    bench: bool,
}

struct Work {
    pool: Pool,
    stream: Stream,
    live: Vec<Block>,
    tags: Vec<Tag>,
    random: fastrand::Rng,
}

impl Work {
    fn new(blocks: usize, tags: usize) -> Self {
        let device = SimDevice::builder()
            .memory(1 << 40)
            .backing(Backing::AddressesOnly)
            .checker(Checker::Off)
            .build();
        let builder = Pool::builder(device).history(1000);
        let pool = builder.build().expect("a pool");
        let stream = pool.create_stream().expect("a stream");
        let tags = (0..tags).map(|number| Tag::new(&format!("tag {number}")));
        let mut work = Self {
            pool,
            stream,
            live: Vec::new(),
            tags: tags.collect(),
            random: fastrand::Rng::with_seed(1),
        };
        work.live = (0..blocks).map(|_| work.block()).collect();
        work
    }

    fn block(&mut self) -> Block {
        let bytes = self.random.u64(512..1 << 20);
        let block = if self.tags.is_empty() {
            self.pool.try_allocate(&self.stream, bytes)
        } else {
            let tag = self.tags[self.random.usize(..self.tags.len())];
            self.pool.allocate(&self.stream, bytes).tag(tag).try_now()
        };
        block.expect("memory")
    }

    /// Replaces live blocks for as long as that, and returns how many per second.
    fn turn(&mut self, time: Duration) -> f64 {
        let begin = Instant::now();
        let mut pairs = 0_u32;
        while begin.elapsed() < time {
            for _ in 0..100 {
                let at = self.random.usize(..self.live.len());
                drop(self.live.swap_remove(at));
                let block = self.block();
                self.live.push(block);
            }
            pairs += 100;
        }
        f64::from(pairs) / begin.elapsed().as_secs_f64()
    }
}

/// Reads events. Returns how many there are.
async fn watch(mut dashboard: Dashboard) -> Result<u32, Infallible> {
    let request = Request::get("/").header(header::ACCEPT, "text/event-stream");
    let request = request.body(()).expect("a request");
    let answer: Response<Body> = dashboard.call(request).await?;
    drop(dashboard);
    let mut body = pin!(answer.into_body());
    let mut events = 0;
    while poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_some() {
        events += 1;
    }
    Ok(events)
}

/// Returns the pairs per second with viewers, and the number of events that one of them got.
fn watched(work: &mut Work, viewers: usize, time: Duration) -> (f64, u32) {
    let pool = work.pool.clone();
    let (end, ended) = tokio::sync::oneshot::channel();
    std::thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().build().expect("a runtime");
            runtime.block_on(async {
                let dashboard = Dashboard::new(&pool);
                let watch = |_| tokio::spawn(watch(dashboard.clone()));
                let watching: Vec<_> = (0..viewers).map(watch).collect();
                let _: Result<(), _> = ended.await;
                // Answers end with the dashboard.
                drop(dashboard);
                let mut events = 0;
                for viewer in watching {
                    let Ok(seen) = viewer.await.expect("the viewer ends");
                    events = seen;
                }
                events
            })
        });
        let rate = work.turn(time);
        let _ = end.send(());
        (rate, watching.join().expect("the viewers end"))
    })
}

/// The tags that are counted, with the blocks.
const COUNTED: [(usize, usize); 2] = [(24, 1000), (10_000, 10_000)];

/// Has viewers for some seconds of virtual time.
fn live(options: &Options, seconds: u64) {
    let known = COUNTED.iter().find(|(tags, _)| *tags == options.tags);
    let work = Work::new(known.map_or(1000, |(_, blocks)| *blocks), options.tags);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let dashboard = Dashboard::new(&work.pool);
        let watching = (0..options.viewers).map(|_| tokio::spawn(watch(dashboard.clone())));
        let _watching: Vec<_> = watching.collect();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    });
}

/// Returns the instructions of that many seconds.
fn counted(viewers: usize, tags: usize, seconds: u64) -> u64 {
    let program = std::env::current_exe().expect("a program");
    let mut command = Command::new("valgrind");
    command.args(["--tool=cachegrind", "--cache-sim=no"]);
    command.arg("--cachegrind-out-file=/dev/null").arg(program);
    for (name, value) in [
        ("--viewers", viewers as u64),
        ("--tags", tags as u64),
        ("--seconds", seconds),
    ] {
        command.args([name, &value.to_string()]);
    }
    let output = command.output().expect("valgrind");
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{report}");
    let figure = report.lines().find_map(|line| line.split_once("I   refs:"));
    let (_, figure) = figure.unwrap_or_else(|| panic!("no figure in\n{report}"));
    figure.trim().replace(',', "").parse().expect("a number")
}

fn count() {
    println!("tags     viewers   million instructions/s");
    for (tags, _) in COUNTED {
        for viewers in [0, 1, 10] {
            let [few, more] = [4, 14].map(|seconds| counted(viewers, tags, seconds));
            println!("{tags:<6} {viewers:>9} {:>24.2}", (more - few) as f64 / 1e7);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns a frame as the page gets it, the time that it takes, and the time of its snapshot, which has the heap's lock.
fn frame_of(pool: &Pool) -> (String, Duration, Duration) {
    let begin = Instant::now();
    let frame = serde_json::to_string(&Frame::of(pool)).expect("plain data");
    let took = begin.elapsed();
    drop(pool.inspect().snapshot());
    (frame, took, begin.elapsed() - took)
}

fn main() {
    let options = Options::parse();
    if let Some(seconds) = options.seconds {
        return live(&options, seconds);
    }
    if options.count {
        return count();
    }
    let sizes: &[usize] = if options.test {
        &[100]
    } else {
        &[100, 10_000, 100_000]
    };
    println!(
        "live blocks    pairs/s alone   with viewers       ratio   one frame   snapshot   frames/s"
    );
    for &blocks in sizes {
        let mut work = Work::new(blocks, options.tags);
        work.turn(Duration::from_millis(100));
        let (frame, took, locked) = frame_of(&work.pool);
        let (turns, time) = if options.test {
            (1, Duration::from_millis(20))
        } else {
            (options.turns, (took * 400).max(Duration::from_secs(1)))
        };
        let (mut alone, mut with, mut ratios, mut seen) = (vec![], vec![], vec![], 0);
        for _ in 0..turns {
            let before = work.turn(time);
            let (rate, events) = watched(&mut work, options.viewers, time);
            let after = work.turn(time);
            ratios.push(rate / ((before + after) / 2.0));
            alone.push(before);
            with.push(rate);
            seen += events;
        }
        println!(
            "{blocks:>11} {:>16.0} {:>15.0} {:>10.4} {:>8.2} ms {:>7.2} ms {:>10.1}   ({} KiB of JSON)",
            median(alone),
            median(with),
            median(ratios),
            took.as_secs_f64() * 1e3,
            locked.as_secs_f64() * 1e3,
            f64::from(seen) / (time.as_secs_f64() * turns as f64),
            frame.len() >> 10,
        );
    }
}
