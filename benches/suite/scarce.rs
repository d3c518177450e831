//! The handoff with memory for 4 blocks, which is awaited; and handed on from a producer's stream to a
//! consumer's.
//!
//! What 4 blocks allow follows from the kernels: each block is taken for one of them, or two, at a time. The
//! floor is the same order made by hand, without a pool: each kernel is submitted behind an event of the one
//! that had its block before.

use super::contender::{Awaited, Contender};
use super::effort::Effort;
use super::ground::{Ground, Line};
use super::handoff::{BYTES, ITERATIONS, KERNELS, STREAMS, TIME};
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Row, Unit, Who};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;
use weirpool::Event;

const BLOCKS: usize = 4;

const FAILURES: Unit = Unit::cost("iterations");

/// Where a block is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// On its own stream.
    Alone,
    /// Written there, and read on the next one.
    HandedOn,
}

impl Route {
    /// The streams of an iteration, producer and consumer.
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

    fn label(self) -> &'static str {
        match self {
            Self::Alone => "memory for 4 blocks",
            Self::HandedOn => "memory for 4 blocks, from producer to consumer",
        }
    }
}

pub(crate) fn rows<G: Ground>(ground: &G, effort: Effort) -> Vec<Row> {
    let cases = [Route::Alone, Route::HandedOn]
        .into_iter()
        .flat_map(|route| KERNELS.map(|kernel| (route, kernel)));
    cases
        .flat_map(|(route, kernel)| compared(ground, effort, route, kernel))
        .collect()
}

fn compared<G: Ground>(ground: &G, effort: Effort, route: Route, kernel: Duration) -> [Row; 2] {
    let memory = BLOCKS as u64 * BYTES;
    let pooled = Pooled::with(ground, |builder| builder.capacity(memory));
    let driver = ground.driver(Some(memory));
    let by_hand = ByHand::new(ground);
    let iterations = effort.of(ITERATIONS);
    let mut race = Race::new();
    race.enter(
        Who::Weirpool,
        turns(ground, &pooled, route, kernel, iterations),
    );
    race.enter(
        Who::Floor,
        turns(ground, &by_hand, route, kernel, iterations),
    );
    if let Some(driver) = &driver {
        race.enter(
            Who::Driver,
            turns(ground, driver, route, kernel, iterations),
        );
    }
    let results = race.run(effort.rounds);
    let clock = if ground.is_virtual() {
        "in virtual time, "
    } else {
        ""
    };
    let label = format!("handoff, {clock}{}, {kernel:?} kernels", route.label());
    let allowed = (kernel * route.kernels()).as_nanos() as usize / BLOCKS;
    let wall = format!("{label}: wall, an iteration (allowed {allowed})");
    let mut failures = results.figures(|turn| turn.failures as f64);
    failures.retain(|(who, _)| *who != Who::Floor);
    [
        Row::new(wall, TIME, results.figures(|turn| turn.wall)),
        Row::new(
            format!("{label}: refused, of {iterations}"),
            FAILURES,
            failures,
        ),
    ]
}

struct Turn {
    /// Nanoseconds for an iteration, on the device's clock.
    wall: f64,
    /// Iterations that were refused memory, however often.
    failures: u64,
}

fn turns<'a, G: Ground, C: Awaited<Stream = Line<G::Work>>>(
    ground: &'a G,
    contender: &'a C,
    route: Route,
    kernel: Duration,
    iterations: usize,
) -> impl FnMut() -> Turn + 'a {
    contender.enter();
    let lines: Vec<_> = (0..STREAMS).map(|_| contender.stream()).collect();
    let device = ground.device();
    move || {
        let start = device.now();
        let failures = ground.run(async {
            let mut failures = 0;
            for iteration in 0..iterations {
                let (producer, consumer) = route.streams(iteration);
                let (own, last) = (&lines[producer], &lines[consumer]);
                let (block, refused) = contender.granted(own, BYTES).await;
                failures += u64::from(refused > 0);
                ground.spend(&own.work, kernel);
                if route == Route::HandedOn {
                    let written = own.stream.event().expect("an event");
                    last.stream.wait(&written).expect("an order");
                    contender.used_on(&block, last);
                    ground.spend(&last.work, kernel);
                }
                contender.free(block, last);
            }
            failures
        });
        ground.finish(&lines);
        let took = device.now() - start;
        Turn {
            wall: took.as_nanos() as f64 / iterations as f64,
            failures,
        }
    }
}

/// No memory, and the order in which there would be some.
struct ByHand<'a, G> {
    pooled: Pooled<'a, G>,
    /// The ends of the last uses of each block, the oldest first.
    ends: Mutex<VecDeque<Option<Event>>>,
}

impl<'a, G: Ground> ByHand<'a, G> {
    fn new(ground: &'a G) -> Self {
        Self {
            pooled: Pooled::new(ground),
            ends: Mutex::new([const { None }; BLOCKS].into()),
        }
    }
}

impl<G: Ground> Contender for ByHand<'_, G> {
    type Stream = Line<G::Work>;
    type Block = ();

    fn stream(&self) -> Line<G::Work> {
        self.pooled.stream()
    }

    fn enter(&self) {
        self.pooled.enter();
    }

    fn allocate(&self, line: &Line<G::Work>, _bytes: u64) -> Option<()> {
        let end = self.ends.lock().expect("not poisoned").pop_front()?;
        if let Some(end) = end {
            line.stream.wait(&end).expect("an order");
        }
        Some(())
    }

    fn free(&self, (): (), line: &Line<G::Work>) {
        let end = line.stream.event().expect("an event");
        self.ends.lock().expect("not poisoned").push_back(Some(end));
    }
}

impl<G: Ground> Awaited for ByHand<'_, G> {
    async fn granted(&self, line: &Line<G::Work>, bytes: u64) -> ((), u64) {
        self.allocate(line, bytes).expect("as many as there are");
        ((), 0)
    }

    fn used_on(&self, (): &(), _line: &Line<G::Work>) {}
}
