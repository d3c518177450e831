//! The handoff with memory for 4 blocks, which is awaited; and blocks that a producer's stream hands on to a
//! consumer's, with memory for 4 blocks and with plenty.
//!
//! The time that 4 blocks allow follows from the kernels: each block serves one or two of them at a time. The floor is
//! the same order made by hand, without a pool: each kernel is submitted behind an event of the kernel that had its
//! block before. The pool is measured with default settings, and with permission to make streams wait on the device for
//! any time, as the driver's pool does.

use super::backend::{Backend, Line};
use super::contender::{Awaited, Contender};
use super::effort::Effort;
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Unit};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;
use weirpool::{Event, WhenShort};

pub(crate) const STREAMS: usize = 8;

pub(crate) const BYTES: u64 = 8 << 20;

pub(crate) const KERNELS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(200)];

pub(crate) const TIME: Unit = Unit::cost("ns");

const BLOCKS: usize = 4;

/// A multiple of the number of blocks. So is a hundredth of it, for a trial.
const ITERATIONS: usize = 1200;

const FAILURES: Unit = Unit::cost("iterations");

/// The stream on which a block is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The stream on which it was allocated.
    Alone,
    /// Written on that stream, and read on the next one.
    HandedOn,
}

impl Route {
    /// Returns the streams of an iteration, producer and consumer.
    fn streams(self, iteration: usize) -> (usize, usize) {
        match self {
            Self::Alone => (iteration % STREAMS, iteration % STREAMS),
            Self::HandedOn => {
                let producer = iteration * 2 % STREAMS;
                (producer, producer + 1)
            }
        }
    }

    fn kernels(self) -> u32 {
        match self {
            Self::Alone => 1,
            Self::HandedOn => 2,
        }
    }
}

/// The amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Memory for 4 blocks, and how a pool that cannot grow waits.
    Scarce(WhenShort),
    Plenty,
}

impl Memory {
    fn bytes(self) -> Option<u64> {
        matches!(self, Self::Scarce(_)).then_some(BLOCKS as u64 * BYTES)
    }

    fn pooled<G: Backend>(self, backend: &G) -> Pooled<'_, G> {
        Pooled::with(backend, |builder| match self {
            Self::Scarce(limit) => builder
                .capacity(BLOCKS as u64 * BYTES)
                .tuning(|tuning| tuning.when_short = limit),
            Self::Plenty => builder,
        })
    }
}

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let scarce = [WhenShort::GrowFirst, WhenShort::GrowThenWait].map(Memory::Scarce);
    let [tail, unlimited] = scarce;
    let mut rows = Vec::new();
    for (route, memory) in [
        (Route::Alone, tail),
        (Route::Alone, unlimited),
        (Route::HandedOn, tail),
        (Route::HandedOn, unlimited),
        (Route::HandedOn, Memory::Plenty),
    ] {
        for kernel in KERNELS {
            let case = Case {
                route,
                memory,
                kernel,
            };
            rows.extend(case.compared(backend, effort));
        }
    }
    rows
}

/// A measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    route: Route,
    memory: Memory,
    kernel: Duration,
}

impl Case {
    fn compared<G: Backend>(self, backend: &G, effort: Effort) -> [Row; 2] {
        let (pooled, by_hand) = (
            self.memory.pooled(backend),
            ByHand::new(backend, self.memory),
        );
        let driver = backend.driver(self.memory.bytes());
        let iterations = effort.of(ITERATIONS);
        let mut race = Race::new();
        race.enter(
            Allocator::Weirpool,
            self.turns(backend, &pooled, iterations),
        );
        race.enter(Allocator::Floor, self.turns(backend, &by_hand, iterations));
        if let Some(driver) = &driver {
            race.enter(Allocator::Driver, self.turns(backend, driver, iterations));
        }
        let results = race.run(effort.rounds);
        let mut failures = results.figures(|turn| turn.failures as f64);
        failures.retain(|(who, _)| *who != Allocator::Floor);
        let (label, allowed) = (self.label(backend.is_virtual()), self.allowed().as_nanos());
        let wall = format!("{label}: wall ({allowed} allowed)");
        let refused = format!("{label}: refused of {iterations}");
        let key = |figure| self.key(figure);
        [
            Row::new(wall, TIME, results.figures(|turn| turn.wall)).beside(key("wall")),
            Row::new(refused, FAILURES, failures).beside(key("refused")),
        ]
    }

    /// Returns the name in the programs of peers, which have memory for 4 blocks.
    fn key(self, figure: &str) -> String {
        let route = match (self.memory, self.route) {
            (Memory::Plenty, _) => "with plenty",
            (Memory::Scarce(_), Route::Alone) => "alone",
            (Memory::Scarce(_), Route::HandedOn) => "handed on",
        };
        format!("scarce {route} {} {figure}", self.kernel.as_micros())
    }

    /// Returns how long an iteration takes if all blocks, or all streams, are in use.
    fn allowed(self) -> Duration {
        let at_once = match self.memory {
            Memory::Scarce(_) => BLOCKS,
            Memory::Plenty => STREAMS,
        };
        self.kernel * self.route.kernels() / at_once as u32
    }

    fn label(self, is_virtual: bool) -> String {
        let memory = match self.memory {
            Memory::Scarce(_) => "4 blocks",
            Memory::Plenty => "any number of blocks",
        };
        let route = match self.route {
            Route::Alone => "",
            Route::HandedOn => ", produced and consumed",
        };
        let limit = match self.memory {
            Memory::Scarce(WhenShort::GrowThenWait) => ", unlimited waits on the device",
            _ => "",
        };
        let clock = if is_virtual { ", virtual time" } else { "" };
        let kernel = self.kernel.as_micros();
        format!("{memory}{route}, {kernel} us kernels{limit}{clock}")
    }

    fn turns<'a, G: Backend, C: Awaited<Stream = Line<G::Work>>>(
        self,
        backend: &'a G,
        contender: &'a C,
        iterations: usize,
    ) -> impl FnMut() -> Turn + 'a {
        contender.enter();
        let lines: Vec<_> = (0..STREAMS).map(|_| contender.stream()).collect();
        let device = backend.device();
        move || {
            let start = device.now();
            let all = self.iterations(backend, contender, &lines, iterations);
            let failures = backend.run(all);
            backend.finish(&lines);
            let took = device.now() - start;
            Turn {
                wall: took.as_nanos() as f64 / iterations as f64,
                failures,
            }
        }
    }

    /// Returns how many of the iterations were refused memory, each counted once.
    async fn iterations<G: Backend, C: Awaited<Stream = Line<G::Work>>>(
        self,
        backend: &G,
        contender: &C,
        lines: &[Line<G::Work>],
        iterations: usize,
    ) -> u64 {
        let mut failures = 0;
        for iteration in 0..iterations {
            let (producer, consumer) = self.route.streams(iteration);
            let (own, last) = (&lines[producer], &lines[consumer]);
            let (mut block, refused) = contender.granted(own, BYTES).await;
            failures += u64::from(refused > 0);
            backend.spend(&own.work, self.kernel);
            if self.route == Route::HandedOn {
                contender.hand_on(&mut block, own, last);
                backend.spend(&last.work, self.kernel);
            }
            contender.free(block, last);
        }
        failures
    }
}

struct Turn {
    /// Returns nanoseconds for an iteration, on the device's clock.
    wall: f64,
    failures: u64,
}

/// No memory: only the order that 4 blocks would enforce.
struct ByHand<'a, G> {
    pooled: Pooled<'a, G>,
    memory: Memory,
    /// The ends of the last uses of each block, the oldest first.
    ends: Mutex<VecDeque<Event>>,
}

impl<'a, G: Backend> ByHand<'a, G> {
    fn new(backend: &'a G, memory: Memory) -> Self {
        Self {
            pooled: Pooled::new(backend),
            memory,
            ends: Mutex::default(),
        }
    }
}

impl<G: Backend> Contender for ByHand<'_, G> {
    type Stream = Line<G::Work>;
    type Block = ();

    fn stream(&self) -> Line<G::Work> {
        self.pooled.stream()
    }

    fn enter(&self) {
        self.pooled.enter();
    }

    fn allocate(&self, line: &Line<G::Work>, _bytes: u64) -> Option<()> {
        let mut ends = self.ends.lock().expect("not poisoned");
        if self.memory != Memory::Plenty && ends.len() == BLOCKS {
            let oldest = ends.pop_front().expect("some");
            line.stream.wait(&oldest).expect("an order");
        }
        Some(())
    }

    fn free(&self, (): (), line: &Line<G::Work>) {
        if self.memory != Memory::Plenty {
            let end = line.stream.event().expect("an event");
            self.ends.lock().expect("not poisoned").push_back(end);
        }
    }
}

impl<G: Backend> Awaited for ByHand<'_, G> {
    async fn granted(&self, line: &Line<G::Work>, bytes: u64) -> ((), u64) {
        self.allocate(line, bytes).expect("as many as there are");
        ((), 0)
    }

    fn hand_on(&self, (): &mut (), from: &Line<G::Work>, to: &Line<G::Work>) {
        to.come_after(from);
    }
}
