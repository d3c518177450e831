//! The latency from the completion of device work to the task that awaits it: `cargo bench --bench wake`.
//!
//! Beside each wait, an observer spins on the same event in a thread of its own. The report says how much later than
//! the observer the waker was called and the task ran again, and by how much launches of other threads are slowed while
//! a task waits.
//!
//! It runs on the simulated device with the wall clock, and with `--features cuda` on a GPU as well, beside other ways
//! of learning of completion from the driver. The time that the operating system takes to run a parked thread is
//! measured separately: it is a part of the latency of every task.

#[cfg(feature = "cuda")]
mod cuda;
mod launches;
mod sim;
mod wait;
#[cfg(feature = "cuda")]
mod ways;

use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use wait::{Pooled, Way};
use weirpool::device::Device;
use weirpool::{Pool, Stream};

/// A device with work of any given duration.
trait Bench: Sync {
    type Work: Send + Sync;

    fn device(&self) -> Arc<dyn Device>;

    fn name(&self) -> String;

    /// Creates a stream and registers it with the pool.
    fn stream(&self, pool: &Pool) -> (Self::Work, Stream);

    /// Submits work that keeps the stream busy.
    fn spend(&self, work: &Self::Work, time: Duration);

    /// Returns other ways to learn that work is complete.
    fn ways(&self) -> Vec<Box<dyn Way>> {
        Vec::new()
    }
}

/// The durations of the awaited work, in microseconds.
const LENGTHS: [u64; 5] = [20, 100, 300, 1000, 5000];

pub(crate) fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

/// Measures how much later than the observer the waker was called, and the task ran again, for work of this duration.
fn lateness<B: Bench>(bench: &B, pool: &Pool, way: &dyn Way, work: Duration) -> [Vec<Duration>; 2] {
    const ROUNDS: usize = 300;
    let (queue, stream) = bench.stream(pool);
    let device = bench.device();
    let start = Barrier::new(2);
    let mut late = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let (raw, event) = (stream.raw(), device.create_event().expect("an event"));
        bench.spend(&queue, work);
        let waiting = way.begin(&stream);
        // SAFETY: the event was just made, and `stream` keeps the stream.
        unsafe { device.record(event, raw) }.expect("a record");
        let (seen, heard) = thread::scope(|scope| {
            let observer = scope.spawn(|| {
                start.wait();
                // SAFETY: the event is destroyed below.
                while !unsafe { device.query(event) }.expect("an answer") {
                    std::hint::spin_loop();
                }
                Instant::now()
            });
            start.wait();
            let heard = waiting();
            (observer.join().expect("an observer"), heard)
        });
        // SAFETY: the event was made above, and is not used any more.
        unsafe { device.destroy_event(event) }.expect("an event");
        for (late, heard) in late.iter_mut().zip([heard.woken, heard.ran]) {
            late.push(heard.saturating_duration_since(seen));
        }
    }
    late
}

fn run<B: Bench>(bench: &B) {
    println!("{}", bench.name());
    let pool = Pool::builder(bench.device())
        .capacity(1 << 30)
        .build()
        .expect("a pool");
    let mut ways: Vec<Box<dyn Way>> = vec![Box::new(Pooled)];
    ways.extend(bench.ways());
    println!(
        "\n{:<34} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "later than the observer", "work", "woken p50", "p99", "ran p50", "p99"
    );
    for way in &ways {
        for micros in LENGTHS {
            let work = Duration::from_micros(micros);
            let mut late = lateness(bench, &pool, &**way, work);
            let [woken, ran] = late
                .each_mut()
                .map(|late| [0.5, 0.99].map(|share| quantile(late, share)));
            println!(
                "{:<34} {:>8} {:>10.1?} {:>10.1?} {:>10.1?} {:>10.1?}",
                way.name(),
                format!("{work:?}"),
                woken[0],
                woken[1],
                ran[0],
                ran[1]
            );
        }
    }
    println!(
        "\n{:<34} {:>8} {:>12} {:>12} {:>8}",
        "a launch, p50", "threads", "no waiter", "one waiter", "ratio"
    );
    for way in &ways {
        for threads in [1, 4, 8] {
            let [without, with] = launches::compared(bench, &pool, &**way, threads);
            let ratio = with.as_secs_f64() / without.as_secs_f64();
            println!(
                "{:<34} {threads:>8} {without:>12.1?} {with:>12.1?} {ratio:>8.2}",
                way.name()
            );
        }
    }
    println!();
}

/// Measures the time from an unpark of a parked thread to its running again.
fn parked() {
    let mut late: Vec<_> = (0..400)
        .map(|_| {
            let (sender, receiver) = std::sync::mpsc::sync_channel::<Instant>(1);
            let parked = thread::spawn(move || {
                let called = receiver.recv().expect("a call");
                called.elapsed()
            });
            thread::sleep(Duration::from_micros(300));
            sender.send(Instant::now()).expect("a thread");
            parked.join().expect("a thread")
        })
        .collect();
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&mut late, share));
    println!(
        "the operating system runs a parked thread again after {p50:.1?} (p50), {p99:.1?} (p99)\n"
    );
}

fn main() {
    parked();
    run(&sim::Sim::new());
    #[cfg(feature = "cuda")]
    if let Some(cuda) = cuda::Cuda::new() {
        run(&cuda);
    }
}
