//! The cost of submitted work beside a bare launch of the same work, in the same run: `cargo bench --bench submit`.
//!
//! - `submit/bare`: the launch of an empty kernel, or on the simulated device of an empty operation.
//! - `submit/own`: the same by `Stream::submit`, with a block of the stream that the work writes. The task is dropped.
//! - `submit/named`: the same with a name.
//! - `submit/turns`: by two streams that write one block in turns, so that each submission orders its stream.
//! - `submit/turns-bare`: the same with an event and a wait of the pool's, by hand.
//! - `await/bare`, `await/task`: a launch, and the wait for its end: by `Stream::synchronize`, and by the task.
//! - `await/run`, `await/spawn`: a function, and a task of the host, from the call to the end.
//!
//! `submit-cuda` and `await-cuda` are the same on a GPU, with `--features cuda` and if there is one.

#[allow(dead_code, reason = "the workloads are those of other benchmarks")]
mod suite;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use suite::backend::{Backend, Line};
use suite::cuda;
use suite::simulated::Simulated;
use weirpool::Pool;
use weirpool::device::sim::Clock;

/// Launches between two waits for the device, outside of the measured time: fewer than its queues hold.
const BATCH: u64 = 200;

const BYTES: u64 = 1 << 16;

fn submit(criterion: &mut Criterion) {
    // Must be opened before any thread is started.
    let gpu = cuda::open();
    submit_on(criterion, "", &Simulated::new(Clock::Manual));
    match gpu {
        Ok(gpu) => submit_on(criterion, "-cuda", &gpu),
        Err(error) => println!("skipped on CUDA: {error:#}"),
    }
}

fn submit_on<G: Backend>(criterion: &mut Criterion, suffix: &str, backend: &G) {
    backend.enter();
    let pool = Pool::builder(backend.device()).build().expect("defaults");
    let launches = criterion.benchmark_group(format!("submit{suffix}"));
    launch(
        launches,
        backend,
        [backend.line(&pool), backend.line(&pool)],
        &pool,
    );
    let waits = criterion.benchmark_group(format!("await{suffix}"));
    wait(waits, backend, &backend.line(&pool));
}

fn launch<G: Backend>(
    mut group: BenchmarkGroup<'_, WallTime>,
    backend: &G,
    lines: [Line<G::Work>; 2],
    pool: &Pool,
) {
    let [line, other] = &lines;
    let mut block = pool.try_allocate(&line.stream, BYTES).expect("memory");
    let empty = |work: &G::Work| backend.spend(work, Duration::ZERO);
    let mut measure = |name: &str, call: &mut dyn FnMut(u64)| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| in_batches(backend, &lines, rounds, call));
        });
    };
    measure("bare", &mut |_| empty(&line.work));
    measure("own", &mut |_| {
        let launched = line.stream.submit(&mut block, |work, _| empty(work));
        drop(launched.expect("a launch"));
    });
    measure("named", &mut |_| {
        let submission = line.stream.task("empty");
        let launched = submission.submit(&mut block, |work, _| empty(work));
        drop(launched.expect("a launch"));
    });
    measure("turns", &mut |round| {
        let stream = if round % 2 == 0 {
            &line.stream
        } else {
            &other.stream
        };
        let launched = stream.submit(&mut block, |work, _| empty(work));
        drop(launched.expect("a launch"));
    });
    measure("turns-bare", &mut |round| {
        let turn = [(line, other), (other, line)][round as usize % 2];
        let event = turn.1.stream.event().expect("an event");
        turn.0.stream.wait(&event).expect("a wait");
        empty(&turn.0.work);
    });
    group.finish();
}

/// Returns the time of the calls, in batches between which the device completes its work.
fn in_batches<G: Backend>(
    backend: &G,
    lines: &[Line<G::Work>],
    rounds: u64,
    call: &mut dyn FnMut(u64),
) -> Duration {
    let mut time = Duration::ZERO;
    for begin in (0..rounds).step_by(BATCH as usize) {
        let start = Instant::now();
        (begin..rounds.min(begin + BATCH)).for_each(&mut *call);
        time += start.elapsed();
        backend.finish(lines);
    }
    time
}

fn wait<G: Backend>(mut group: BenchmarkGroup<'_, WallTime>, backend: &G, line: &Line<G::Work>) {
    let Line { work, stream } = line;
    let empty = |work: &G::Work| backend.spend(work, Duration::ZERO);
    group.bench_function("bare", |bencher| {
        bencher.iter(|| {
            empty(work);
            backend.run(stream.synchronize()).expect("work");
        });
    });
    group.bench_function("task", |bencher| {
        bencher.iter(|| {
            let task = stream.submit((), |work, ()| empty(work));
            backend.run(task.expect("a launch")).expect("work");
        });
    });
    group.bench_function("run", |bencher| {
        bencher.iter(|| {
            let task = stream.run(|| ()).expect("a host function");
            backend.run(task).expect("work");
        });
    });
    group.bench_function("spawn", |bencher| {
        bencher.iter(|| {
            let task = stream.spawn(async {}).expect("a host task");
            backend.run(task).expect("work");
            backend.run(stream.synchronize()).expect("work");
        });
    });
    group.finish();
}

criterion_group!(benches, submit);
criterion_main!(benches);
