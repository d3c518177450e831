//! Several threads at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `work` on this many threads. Each calls `enter` first, and none begins before all have. `meanwhile` runs on
/// this thread. Returns the time from the start until the last thread ends, and the results of the threads.
pub(crate) fn together<R: Send>(
    threads: usize,
    enter: impl Fn() + Sync,
    meanwhile: impl FnOnce(),
    work: impl Fn(usize) -> R + Sync,
) -> (Duration, Vec<R>) {
    let (ready, has_begun) = (AtomicUsize::new(0), AtomicBool::new(false));
    let run = |index| {
        enter();
        ready.fetch_add(1, Ordering::AcqRel);
        while !has_begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        work(index)
    };
    let run = &run;
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|index| scope.spawn(move || run(index)))
            .collect();
        while ready.load(Ordering::Acquire) < threads {
            thread::yield_now();
        }
        let start = Instant::now();
        has_begun.store(true, Ordering::Release);
        meanwhile();
        let results = handles.into_iter().map(|thread| thread.join());
        let results = results.map(|result| result.expect("a thread that does not panic"));
        let results = results.collect();
        (start.elapsed(), results)
    })
}
