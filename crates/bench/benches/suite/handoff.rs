//! Memory that passes from stream to stream: allocate, run a kernel, free, and continue on the next of 8 streams.

use super::backend::{Backend, Line};
use super::contender::Contender;
use super::effort::Effort;
use super::floor::Lanes;
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Spread, Unit};
use super::scarce::{self, BYTES, KERNELS, STREAMS, TIME};
use std::time::{Duration, Instant};

const ITERATIONS: usize = 2000;

const MEMORY: Unit = Unit::cost("MiB");

/// With as much memory as requested; then with memory for 4 blocks.
pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let plenty = KERNELS
        .iter()
        .flat_map(|kernel| plenty(backend, effort, *kernel));
    plenty.chain(scarce::rows(backend, effort)).collect()
}

fn plenty<G: Backend>(backend: &G, effort: Effort, kernel: Duration) -> Vec<Row> {
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let iterations = effort.of(ITERATIONS);
    let own = Lines::of(backend, &pooled);
    let others = driver.as_ref().map(|driver| Lines::of(backend, driver));
    // The kernels of the floor are real, but it has no memory.
    let bare = Pooled::new(backend);
    let (bare, lanes) = (
        Lines::of(backend, &bare),
        [(); STREAMS].map(|()| Lanes.stream()),
    );
    let mut race = Race::new();
    race.enter(Allocator::Weirpool, || {
        own.turn(&pooled, &own.lines, kernel, iterations)
    });
    race.enter(Allocator::Floor, || {
        bare.turn(&Lanes, &lanes, kernel, iterations)
    });
    if let (Some(driver), Some(others)) = (&driver, &others) {
        race.enter(Allocator::Driver, || {
            others.turn(driver, &others.lines, kernel, iterations)
        });
    }
    let results = race.run(effort.rounds);
    let reserved = |who, contender: Option<u64>| {
        let mib = contender.map(|bytes| (bytes >> 20) as f64);
        mib.map(|mib| (who, Spread::exactly(mib)))
    };
    let memory = [
        reserved(Allocator::Weirpool, pooled.reserved()),
        reserved(
            Allocator::Driver,
            driver.as_ref().and_then(Contender::reserved),
        ),
    ];
    let memory = memory.into_iter().flatten().collect();
    let (micros, ideal) = (kernel.as_micros(), kernel.as_nanos() as usize / STREAMS);
    let (host, wall) = (
        results.figures(|turn| turn.host),
        results.figures(|turn| turn.wall),
    );
    let named = |figure: &str| format!("handoff, 8 streams, {micros} us kernels: {figure}");
    let row = |label: String, unit, figures, figure: &str| {
        Row::new(named(&label), unit, figures).beside(format!("handoff {micros} {figure}"))
    };
    vec![
        row("host".to_owned(), TIME, host, "host"),
        row(format!("wall ({ideal} ideal)"), TIME, wall, "wall"),
        row("reserved".to_owned(), MEMORY, memory, "reserved"),
    ]
}

/// Measures nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Turn {
    host: f64,
    wall: f64,
}

/// The streams to which kernels are submitted.
struct Lines<'a, G: Backend> {
    backend: &'a G,
    lines: Vec<Line<G::Work>>,
}

impl<'a, G: Backend> Lines<'a, G> {
    fn of(backend: &'a G, contender: &impl Contender<Stream = Line<G::Work>>) -> Self {
        contender.enter();
        let lines = (0..STREAMS).map(|_| contender.stream()).collect();
        Self { backend, lines }
    }

    /// Allocates memory on the contender's streams, for kernels on these.
    fn turn<C: Contender>(
        &self,
        contender: &C,
        streams: &[C::Stream],
        kernel: Duration,
        iterations: usize,
    ) -> Turn {
        let (start, mut host) = (Instant::now(), Duration::ZERO);
        for (line, stream) in self.lines.iter().zip(streams).cycle().take(iterations) {
            let before = Instant::now();
            let block = contender.allocate(stream, BYTES).expect("memory");
            host += before.elapsed();
            self.backend.spend(&line.work, kernel);
            let before = Instant::now();
            contender.free(block, stream);
            host += before.elapsed();
        }
        self.backend.finish(&self.lines);
        let each = |time: Duration| time.as_nanos() as f64 / iterations as f64;
        Turn {
            host: each(host),
            wall: each(start.elapsed()),
        }
    }
}
