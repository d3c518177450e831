//! An inference service with memory for 6 requests and 64 in flight: a small form of `examples/inference`.
//!
//! The requests are those of the example: each has a number of steps, an activation, and a cache that grows by pages. A
//! stream runs its steps one after the other, and streams are scarcer than memory. A request takes all the memory that
//! it will need at the start. It waits in the pool's queue; or, on the driver's pool, which has no queue, it tries 32
//! times with exponential back-off. The floor is the same service with memory for all requests in flight.
//!
//! In virtual time the host takes no time. A second run adds a delay to every reaction of the host, as an operating
//! system that has to schedule a thread does. With many requests on each stream the delay does not matter; with one or
//! two, the stream idles for as long.

#[allow(unused_imports, reason = "of its tests, which are the example's")]
#[path = "../../../../examples/inference/backoff.rs"]
mod backoff;
#[allow(unused_imports, reason = "of its tests, which are the example's")]
#[path = "../../../../examples/inference/model.rs"]
mod model;
#[allow(unused_imports, reason = "of its tests, which are the example's")]
#[path = "../../../../examples/inference/timer.rs"]
mod timer;

use super::backend::{Backend, Line};
use super::contender::Contender;
use super::effort::{Amount, Effort};
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Unit};
use backoff::Backoff;
use fastrand::Rng;
use futures::StreamExt;
use futures::future::{Either, select};
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;
use timer::Timer;
use weirpool::Block;

const STREAMS: usize = 4;

/// The number of average requests for which there is memory.
const ROOM: u64 = 6;

const IN_FLIGHT: usize = 64;

const TRIES: u32 = 32;

/// The average duration of a step.
const STEP: Duration = Duration::from_millis(1);

/// The delay of a late host.
const LATE: Duration = Duration::from_micros(60);

const THROUGHPUT: Unit = Unit::rate("requests/s");
const FAILURES: Unit = Unit::cost("requests");

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let mut rows = compared(backend, effort, None);
    if backend.is_virtual() {
        rows.extend(compared(backend, effort, Some(LATE)));
    }
    rows
}

fn compared<G: Backend>(backend: &G, effort: Effort, late: Option<Duration>) -> Vec<Row> {
    let count = match effort.amount {
        Amount::Smoke => 12,
        Amount::Modest => 240,
        Amount::Full => 480,
    };
    let requests = requests(count);
    let mut race = Race::new();
    let limited = ROOM * model::average();
    race.enter(Allocator::Weirpool, || {
        waiting(backend, &requests, limited, late)
    });
    let unlimited = IN_FLIGHT as u64 * model::largest();
    race.enter(Allocator::Floor, || {
        waiting(backend, &requests, unlimited, late)
    });
    if let Some(driver) = backend.driver(Some(model::WEIGHTS + limited)) {
        let requests = &requests;
        race.enter(Allocator::Driver, move || {
            retrying(backend, &driver, requests)
        });
    }
    // In virtual time all rounds give the same result.
    let rounds = if backend.is_virtual() {
        1
    } else {
        effort.few_rounds()
    };
    let results = race.run_cold(rounds);
    let throughput = results.figures(|turn| turn.throughput);
    let failures = results.figures(|turn| turn.failures as f64);
    let clock = match late {
        Some(late) => format!(", in virtual time, {late:?} late"),
        None if backend.is_virtual() => ", in virtual time".to_owned(),
        None => String::new(),
    };
    let label = format!("inference, memory for 6 of 64{clock}");
    vec![
        Row::new(format!("{label}: throughput"), THROUGHPUT, throughput),
        Row::new(format!("{label}: failures, of {count}"), FAILURES, failures),
    ]
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Served requests per second.
    throughput: f64,
    failures: usize,
}

impl Turn {
    fn of(served: &[bool], took: Duration) -> Self {
        let count = served.iter().filter(|is_served| **is_served).count();
        Self {
            throughput: count as f64 / took.as_secs_f64(),
            failures: served.len() - count,
        }
    }
}

/// The duration of each step. The first step is longer, because it reads the prompt.
struct Request(Vec<Duration>);

fn requests(count: usize) -> Vec<Request> {
    let mut random = Rng::with_seed(1);
    let mut request = || {
        let steps = 0..random.usize(model::STEPS);
        let mut steps: Vec<_> = steps.map(|_| STEP.mul_f64(0.5 + random.f64())).collect();
        steps[0] = STEP * 2;
        Request(steps)
    };
    (0..count).map(|_| request()).collect()
}

/// The streams, and the number of requests on each.
struct Seats<'a, G: Backend> {
    backend: &'a G,
    lines: Vec<Line<G::Work>>,
    taken: Mutex<[usize; STREAMS]>,
}

impl<'a, G: Backend> Seats<'a, G> {
    fn new(backend: &'a G, contender: &impl Contender<Stream = Line<G::Work>>) -> Self {
        contender.enter();
        Self {
            backend,
            lines: (0..STREAMS).map(|_| contender.stream()).collect(),
            taken: Mutex::default(),
        }
    }

    /// Returns the stream with the fewest requests.
    fn sit(&self) -> usize {
        let mut taken = self.taken.lock().expect("not poisoned");
        let fewest = (0..STREAMS).min_by_key(|index| taken[*index]);
        let fewest = fewest.expect("there are some");
        taken[fewest] += 1;
        fewest
    }

    fn leave(&self, seat: usize) {
        self.taken.lock().expect("not poisoned")[seat] -= 1;
    }
}

/// Serves all requests, this many at a time: from the first to the last.
fn served<G: Backend, F: Future<Output = bool>>(
    backend: &G,
    requests: &[Request],
    aside: impl Future,
    serve: impl Fn(usize) -> F,
) -> Turn {
    let device = backend.device();
    let start = device.now();
    let requests = futures::stream::iter(0..requests.len()).map(serve);
    let all = requests.buffer_unordered(IN_FLIGHT).collect::<Vec<_>>();
    let served = match backend.run(select(pin!(all), pin!(aside))) {
        Either::Left((served, _)) => served,
        Either::Right(_) => unreachable!("it goes on until it is dropped"),
    };
    Turn::of(&served, device.now() - start)
}

/// Requests that wait for memory in the pool's queue.
fn waiting<G: Backend>(
    backend: &G,
    requests: &[Request],
    memory: u64,
    late: Option<Duration>,
) -> Turn {
    let capacity = model::WEIGHTS + memory;
    let pooled = Pooled::with(backend, |builder| {
        builder
            .capacity(capacity)
            .tuning(|tuning| tuning.initial_size = capacity)
            .chunk_bytes(model::CHUNK)
            // A request keeps its memory for many steps. That is no deadlock.
            .fail_deadlocks_after(Duration::from_secs(600))
    });
    let seats = Seats::new(backend, &pooled);
    let weights = pooled.allocate(&seats.lines[0], model::WEIGHTS);
    let timer = Timer::new(backend.device());
    let lateness = async || {
        if let Some(late) = late {
            timer.sleep(late).await;
        }
    };
    let turn = served(
        backend,
        requests,
        pooled.pool.maintain().reclaimer(),
        async |index| serve_waiting(&seats, &pooled, &requests[index], lateness).await,
    );
    drop(weights.expect("memory for the weights"));
    turn
}

async fn serve_waiting<G: Backend>(
    seats: &Seats<'_, G>,
    pooled: &Pooled<'_, G>,
    request: &Request,
    lateness: impl AsyncFn(),
) -> bool {
    let Request(steps) = request;
    let memory = pooled.pool.reserve_many(model::blocks(steps.len())).await;
    let memory = memory.expect("it waits rather than fail");
    lateness().await;
    let seat = seats.sit();
    let Line { work, stream } = &seats.lines[seat];
    let block = |bytes| -> Block { memory.allocate(stream, bytes).expect("reserved") };
    let mut pages = Vec::new();
    for (step, time) in steps.iter().enumerate() {
        if model::begins_page(step) {
            pages.push(block(model::PAGE));
        }
        let activation = block(model::ACTIVATION);
        seats.backend.spend(work, *time);
        drop(activation);
        stream.synchronize().await.expect("work that does not fail");
        lateness().await;
    }
    seats.leave(seat);
    true
}

/// Requests that try again several times, and then give up.
fn retrying<G: Backend, C: Contender<Stream = Line<G::Work>>>(
    backend: &G,
    contender: &C,
    requests: &[Request],
) -> Turn {
    let seats = Seats::new(backend, contender);
    let weights = contender.allocate(&seats.lines[0], model::WEIGHTS);
    let timer = Timer::new(backend.device());
    let nothing = std::future::pending::<()>();
    let turn = served(backend, requests, nothing, async |index| {
        serve_retrying(&seats, contender, &requests[index], &timer, index).await
    });
    let weights = weights.expect("memory for the weights");
    contender.free(weights, &seats.lines[0]);
    backend.finish(&seats.lines);
    turn
}

async fn serve_retrying<G: Backend, C: Contender<Stream = Line<G::Work>>>(
    seats: &Seats<'_, G>,
    contender: &C,
    request: &Request,
    timer: &Timer,
    index: usize,
) -> bool {
    let Request(steps) = request;
    let mut pauses = Backoff::new(TRIES, index as u64);
    let (seat, blocks) = loop {
        let seat = seats.sit();
        if let Some(blocks) = all_or_none(contender, &seats.lines[seat], steps.len()) {
            break (seat, blocks);
        }
        seats.leave(seat);
        match pauses.next() {
            Some(pause) => timer.sleep(pause).await,
            None => return false,
        }
    };
    let line = &seats.lines[seat];
    for time in steps {
        seats.backend.spend(&line.work, *time);
        let ran = line.stream.synchronize().await;
        ran.expect("work that does not fail");
    }
    for block in blocks {
        contender.free(block, line);
    }
    seats.leave(seat);
    true
}

/// Returns what a request with this number of steps needs.
fn all_or_none<C: Contender>(
    contender: &C,
    stream: &C::Stream,
    steps: usize,
) -> Option<Vec<C::Block>> {
    let mut blocks = Vec::new();
    for bytes in model::blocks(steps) {
        match contender.allocate(stream, bytes) {
            Some(block) => blocks.push(block),
            None => {
                for block in blocks {
                    contender.free(block, stream);
                }
                return None;
            }
        }
    }
    Some(blocks)
}
