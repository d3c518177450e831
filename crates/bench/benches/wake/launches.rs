//! The time of a launch while another thread waits for other work.

use super::wait::Way;
use super::{Bench, quantile};
use futures::executor::block_on;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::Pool;

/// Returns the medians without and with a waiting thread. The two alternate, because the machine's speed changes.
pub(crate) fn compared<B: Bench>(
    bench: &B,
    pool: &Pool,
    way: &dyn Way,
    threads: usize,
) -> [Duration; 2] {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..3 {
        times[0].extend(launches(bench, pool, threads, None));
        times[1].extend(launches(bench, pool, threads, Some(way)));
    }
    times.each_mut().map(|times| quantile(times, 0.5))
}

/// Measures launches on each of several threads, with or without a waiting thread.
fn launches<B: Bench>(
    bench: &B,
    pool: &Pool,
    threads: usize,
    way: Option<&dyn Way>,
) -> Vec<Duration> {
    const ROUNDS: usize = 2000;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = way.map(|way| {
            scope.spawn(|| {
                let (queue, stream) = bench.stream(pool);
                while !is_over.load(Ordering::Relaxed) {
                    bench.spend(&queue, Duration::from_millis(1));
                    way.begin(&stream)();
                }
            })
        });
        let launching: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let (queue, stream) = bench.stream(pool);
                    let mut took = Vec::new();
                    for round in 0..ROUNDS {
                        let start = Instant::now();
                        bench.spend(&queue, Duration::ZERO);
                        took.push(start.elapsed());
                        if round % 200 == 199 {
                            block_on(stream.synchronize()).expect("work");
                        }
                    }
                    took
                })
            })
            .collect();
        let took = launching
            .into_iter()
            .flat_map(|thread| thread.join().expect("a thread"));
        let took = took.collect();
        is_over.store(true, Ordering::Relaxed);
        drop(waiter);
        took
    })
}
