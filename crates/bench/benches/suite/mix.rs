//! Blocks of all sizes with overlapping lifetimes, like the load of a stream of requests.
//!
//! Sizes are log-uniform from 512 B to 64 MiB. Before an allocation that would exceed the bounds (256 blocks, 2 GiB), a
//! random live block is freed. With several threads, each has its own stream, 1/16 of the bounds, and the full number
//! of operations. So 16 threads together hold as much as the single thread of the first rows, and the work of a thread
//! does not depend on the number of threads.

use super::backend::Backend;
use super::contender::Contender;
use super::effort::Effort;
use super::floor::Lanes;
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Spread, Unit, quotient};
use super::scale::{THREADS, counted};
use super::threads::together;
use fastrand::Rng;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;
use weirpool::{PoolBuilder, Remapping, Sealing};

const OPERATIONS: usize = 20_000;

/// The most that is live at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: u64,
    pub(crate) blocks: usize,
}

pub(crate) const WHOLE: Bounds = Bounds {
    bytes: 2 << 30,
    blocks: 256,
};

/// The bounds of each of several threads.
const SHARE: Bounds = Bounds {
    bytes: WHOLE.bytes / 16,
    blocks: WHOLE.blocks / 16,
};

const OPERATION: Unit = Unit::cost("ns/operation");
const RATE: Unit = Unit::rate("M operations/s");
const MEMORY: Unit = Unit::cost("times");
const FAILURES: Unit = Unit::cost("allocations");

/// Settings of a pool, with their name in the table.
type Setting = (&'static str, fn(PoolBuilder) -> PoolBuilder);

/// The figure of each allocator.
type Figures = Vec<(Allocator, Spread)>;

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let mut rows = alone(backend, effort);
    let together: Vec<_> = THREADS.map(|threads| rate(backend, effort, threads)).into();
    let label = "mix, 16 threads over one";
    let gain = Unit::rate("times");
    let gain = quotient(label, gain, &together[THREADS.len() - 1], &together[0]);
    rows.extend(together);
    rows.extend([gain, memory_of_many(backend, effort)]);
    rows
}

/// Measures time, memory and failures of one thread with one stream.
fn alone<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let mut players = (Player::new(&pooled), driver.as_ref().map(Player::new));
    let mut floor = Player::new(&Lanes);
    let operations = effort.of(OPERATIONS);
    let mut race = Race::new();
    race.enter(Allocator::Weirpool, || players.0.turn(operations));
    race.enter(Allocator::Floor, || floor.turn(operations));
    if let Some(player) = &mut players.1 {
        race.enter(Allocator::Driver, || player.turn(operations));
    }
    let took = race.run(effort.rounds).figures(|took| *took);
    let (mut memory, mut failed) = (Vec::new(), Vec::new());
    let mut note = |who, results: (Option<f64>, u64)| {
        memory.extend(results.0.map(|ratio| (who, Spread::exactly(ratio))));
        failed.push((who, Spread::exactly(results.1 as f64)));
    };
    note(Allocator::Weirpool, players.0.results());
    if let Some(player) = &players.1 {
        note(Allocator::Driver, player.results());
    }
    let mix = "mix, 512 B to 64 MiB, 256 live";
    let settings: [Setting; 4] = [
        ("by itself", |builder| builder),
        ("sealed on demand", |builder| {
            builder.sealing(Sealing::OnDemand)
        }),
        ("chunks of 16 MiB", |builder| builder.chunk_bytes(16 << 20)),
        ("remapping always", |builder| {
            builder.tuning(|tuning| tuning.remapping = Remapping::Always)
        }),
    ];
    let mut rows = vec![Row::new(mix, OPERATION, took).beside("mix time")];
    let of_memory = format!("{mix}: reserved over live");
    let mut memories = vec![Row::new(&of_memory, MEMORY, memory).beside("mix memory")];
    for (label, set) in settings {
        let (took, memory) = by_itself(&Pooled::with(backend, set), effort);
        // The programs of the peers run alone, too.
        rows.push(Row::new(format!("{mix}, {label}"), OPERATION, took).beside("mix time"));
        let label = format!("{of_memory}, {label}");
        memories.push(Row::new(label, MEMORY, memory).beside("mix memory"));
    }
    let failures = Row::new(format!("{mix}: failures"), FAILURES, failed);
    rows.extend(memories);
    rows.push(failures);
    rows
}

/// Measures time and memory of the pool with some settings, run alone. Beside other contenders, the budget for
/// remapping would grow during their turns.
fn by_itself<G: Backend>(pooled: &Pooled<'_, G>, effort: Effort) -> (Figures, Figures) {
    let mut player = Player::new(pooled);
    let operations = effort.of(OPERATIONS);
    let mut race = Race::new();
    race.enter(Allocator::Weirpool, || player.turn(operations));
    let took = race.run(effort.rounds).figures(|took| *took);
    let memory = player.results().0.into_iter();
    let memory = memory.map(|ratio| (Allocator::Weirpool, Spread::exactly(ratio)));
    (took, memory.collect())
}

/// Runs steps on one stream of a contender, and adds up the results.
pub(crate) struct Player<'a, C: Contender> {
    contender: &'a C,
    stream: C::Stream,
    turns: u64,
    peak: u64,
    failures: u64,
}

impl<'a, C: Contender> Player<'a, C> {
    pub(crate) fn new(contender: &'a C) -> Self {
        contender.enter();
        Self {
            contender,
            stream: contender.stream(),
            turns: 0,
            peak: 0,
            failures: 0,
        }
    }

    /// Runs a turn, and returns nanoseconds per operation. Turns of equal number have the same steps for every player.
    pub(crate) fn turn(&mut self, operations: usize) -> f64 {
        self.turns += 1;
        let steps = steps(operations, self.turns);
        let start = Instant::now();
        let played = play(self.contender, &self.stream, &steps, WHOLE, |_| ());
        let took = start.elapsed();
        self.peak = self.peak.max(played.peak);
        self.failures += played.failures;
        took.as_nanos() as f64 / played.operations as f64
    }

    /// Returns the peak of the memory held divided by the peak of live memory, and the number of failures.
    fn results(&self) -> (Option<f64>, u64) {
        let reserved = self.contender.reserved();
        let ratio = reserved.map(|reserved| reserved as f64 / self.peak as f64);
        (ratio, self.failures)
    }
}

/// Measures the rate of several threads with a stream each.
fn rate<G: Backend>(backend: &G, effort: Effort, threads: usize) -> Row {
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let operations = effort.of(OPERATIONS);
    let mut race = Race::new();
    race.enter(Allocator::Weirpool, turns(&pooled, threads, operations));
    race.enter(Allocator::Floor, turns(&Lanes, threads, operations));
    if let Some(driver) = &driver {
        race.enter(Allocator::Driver, turns(driver, threads, operations));
    }
    let figures = race.run(effort.rounds).figures(|rate| *rate);
    let label = format!("mix, {}", counted(threads));
    Row::new(label, RATE, figures)
}

fn turns<C: Contender>(
    contender: &C,
    threads: usize,
    operations: usize,
) -> impl FnMut() -> f64 + '_ {
    contender.enter();
    let streams: Vec<_> = (0..threads).map(|_| contender.stream()).collect();
    let mut turn = 0;
    move || {
        turn += 1;
        let plans = plans(threads, operations, turn);
        let enter = || contender.enter();
        let (took, done) = together(
            threads,
            enter,
            || (),
            |thread| play(contender, &streams[thread], &plans[thread], SHARE, |_| ()).operations,
        );
        done.iter().sum::<u64>() as f64 / took.as_secs_f64() / 1e6
    }
}

fn plans(threads: usize, operations: usize, turn: u64) -> Vec<Vec<Step>> {
    let seeds = (0..threads as u64).map(|thread| 1000 * (thread + 1) + turn);
    seeds.map(|seed| steps(operations, seed)).collect()
}

/// Measures the memory that 16 threads hold. A separate run, because counting live bytes makes them all write one
/// number.
fn memory_of_many<G: Backend>(backend: &G, effort: Effort) -> Row {
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let operations = effort.of(OPERATIONS);
    let mut figures = vec![(Allocator::Weirpool, held(&pooled, operations))];
    figures.extend(driver.map(|driver| (Allocator::Driver, held(&driver, operations))));
    let label = "mix, 16 threads: reserved over live";
    let figures = figures.into_iter();
    let figures = figures.map(|(who, ratio)| (who, Spread::exactly(ratio)));
    Row::new(label, MEMORY, figures.collect())
}

fn held<C: Contender>(contender: &C, operations: usize) -> f64 {
    const THREADS: usize = 16;
    contender.enter();
    let streams: Vec<_> = (0..THREADS).map(|_| contender.stream()).collect();
    let plans = plans(THREADS, operations, 0);
    let (live, peak) = (AtomicI64::new(0), AtomicI64::new(0));
    let note = |change| {
        let now = live.fetch_add(change, Ordering::Relaxed) + change;
        peak.fetch_max(now, Ordering::Relaxed);
    };
    let enter = || contender.enter();
    together(
        THREADS,
        enter,
        || (),
        |thread| {
            play(contender, &streams[thread], &plans[thread], SHARE, note);
        },
    );
    let reserved = contender.reserved().unwrap_or(0);
    reserved as f64 / peak.into_inner() as f64
}

/// The size of an allocation, and the choice of the live block to free if one must be.
#[derive(Clone, Copy, Debug)]
struct Step {
    bytes: u64,
    pick: usize,
}

fn steps(count: usize, seed: u64) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    let step = |_| Step {
        bytes: (9.0 + 17.0 * random.f64()).exp2() as u64,
        pick: random.usize(..),
    };
    (0..count).map(step).collect()
}

/// The result of some steps.
#[derive(Clone, Copy, Debug, Default)]
struct Played {
    /// Allocations and frees.
    operations: u64,
    failures: u64,
    /// The peak of live bytes.
    peak: u64,
}

/// Runs all steps. `changed` is called with each change of the live bytes.
#[inline]
fn play<C: Contender>(
    contender: &C,
    stream: &C::Stream,
    steps: &[Step],
    bounds: Bounds,
    changed: impl Fn(i64),
) -> Played {
    let mut played = Played::default();
    let mut blocks = Vec::with_capacity(bounds.blocks);
    let mut live = 0;
    for &Step { bytes, pick } in steps {
        while blocks.len() >= bounds.blocks || (live + bytes > bounds.bytes && !blocks.is_empty()) {
            let (block, bytes) = blocks.swap_remove(pick % blocks.len());
            contender.free(block, stream);
            changed(-(bytes as i64));
            live -= bytes;
            played.operations += 1;
        }
        let Some(block) = contender.allocate(stream, bytes) else {
            played.failures += 1;
            continue;
        };
        changed(bytes as i64);
        blocks.push((block, bytes));
        live += bytes;
        played.peak = played.peak.max(live);
        played.operations += 1;
    }
    for (block, bytes) in blocks {
        contender.free(block, stream);
        changed(-(bytes as i64));
        played.operations += 1;
    }
    played
}
