//! What a viewer of the dashboard costs a service: `cargo bench --bench viewer`.
//!
//! One thread allocates and frees blocks of random sizes among live ones, by turns without and with a viewer: a second
//! each, or as long as the dashboard waits between frames, if that is longer. The ratio is the median over neighbouring
//! turns. Times are of this machine, on the simulated device.
//!
//! `-- --test` takes short turns, once; `-- --turns 60` takes more.

use clap::Parser;
use futures::future::poll_fn;
use http::{Request, Response, header};
use http_body::Body as _;
use std::pin::pin;
use std::time::{Duration, Instant};
use tower_service::Service;
use weirpool::device::sim::{Backing, Checker, SimDevice};
use weirpool::{Block, Pool, Stream};
use weirpool_dashboard::{Body, Dashboard, Frame};
use weirpool_observe::Record as _;

#[derive(Parser)]
struct Options {
    /// The number of turns with a viewer, and of turns without.
    #[arg(long, default_value_t = 20)]
    turns: usize,
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
    random: fastrand::Rng,
}

impl Work {
    fn new(blocks: usize) -> Self {
        let device = SimDevice::builder()
            .memory(1 << 40)
            .backing(Backing::AddressesOnly)
            .checker(Checker::Off)
            .build();
        let builder = Pool::builder(device).history(1000);
        let pool = builder.build().expect("a pool");
        let stream = pool.create_stream().expect("a stream");
        let mut random = fastrand::Rng::with_seed(1);
        let live = (0..blocks)
            .map(|_| {
                let bytes = random.u64(512..1 << 20);
                pool.try_allocate(&stream, bytes).expect("memory")
            })
            .collect();
        Self {
            pool,
            stream,
            live,
            random,
        }
    }

    /// Replaces live blocks for as long as that, and returns how many per second.
    fn turn(&mut self, time: Duration) -> f64 {
        let begin = Instant::now();
        let mut pairs = 0_u32;
        while begin.elapsed() < time {
            for _ in 0..100 {
                let at = self.random.usize(..self.live.len());
                drop(self.live.swap_remove(at));
                let bytes = self.random.u64(512..1 << 20);
                let block = self.pool.try_allocate(&self.stream, bytes);
                self.live.push(block.expect("memory"));
            }
            pairs += 100;
        }
        f64::from(pairs) / begin.elapsed().as_secs_f64()
    }
}

/// Reads events until `end`. Returns how many there were.
async fn watch(dashboard: &mut Dashboard, end: tokio::sync::oneshot::Receiver<()>) -> u32 {
    let request = Request::get("/").header(header::ACCEPT, "text/event-stream");
    let request = request.body(()).expect("a request");
    let answer: Response<Body> = dashboard.call(request).await.expect("an answer");
    let mut body = pin!(answer.into_body());
    let mut end = pin!(end);
    let mut events = 0;
    loop {
        let event = poll_fn(|cx| body.as_mut().poll_frame(cx));
        tokio::select! {
            _ = &mut end => return events,
            event = event => events += u32::from(event.is_some()),
        }
    }
}

fn watched(work: &mut Work, time: Duration) -> (f64, u32) {
    let mut dashboard = Dashboard::new(&work.pool);
    let (end, ended) = tokio::sync::oneshot::channel();
    std::thread::scope(|scope| {
        let viewer = scope.spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().build().expect("a runtime");
            runtime.block_on(watch(&mut dashboard, ended))
        });
        let rate = work.turn(time);
        let _ = end.send(());
        (rate, viewer.join().expect("the viewer ends"))
    })
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
    let sizes: &[usize] = if options.test {
        &[100]
    } else {
        &[100, 10_000, 100_000]
    };
    println!(
        "live blocks    pairs/s alone   with a viewer      ratio   one frame   snapshot   frames/s"
    );
    for &blocks in sizes {
        let mut work = Work::new(blocks);
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
            let (rate, events) = watched(&mut work, time);
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
