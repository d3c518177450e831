//! The cost of an operation while there are many live blocks, and the host memory of the pool's own records.
//!
//! An operation frees a random block and allocates one of a random size. It is measured on one stream in a pool whose
//! lanes keep nothing, so that each free goes to the heap and each allocation searches it; and on 64 streams in a pool
//! with default settings, so that blocks move between lanes and heap.

use super::backend::Backend;
use super::contender::Contender;
use super::effort::{Amount, Effort};
use super::floor::Lanes;
use super::heap;
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Spread, Unit, quotient};
use fastrand::Rng;
use std::mem::size_of;
use std::time::{Duration, Instant};
use weirpool::Block;

const PAIR: Unit = Unit::cost("ns/pair");
const BYTES: Unit = Unit::cost("bytes");

/// The settings of the pool, and the number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Heap,
    Lanes,
}

impl Case {
    fn streams(self) -> usize {
        match self {
            Self::Heap => 1,
            Self::Lanes => 64,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Heap => "heap only",
            Self::Lanes => "64 streams",
        }
    }

    fn pooled<G: Backend>(self, backend: &G) -> Pooled<'_, G> {
        match self {
            Self::Heap => Pooled::with(backend, |builder| {
                builder.tuning(|tuning| tuning.lane_bytes = 0)
            }),
            Self::Lanes => Pooled::new(backend),
        }
    }
}

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let counts = match effort.amount {
        Amount::Smoke => [10, 20, 40],
        Amount::Modest | Amount::Full => [1_000, 10_000, 100_000],
    };
    let mut rows = Vec::new();
    for case in [Case::Heap, Case::Lanes] {
        let by_count = counts.map(|count| turned(backend, case, count, effort));
        let (least, most) = (counts[0], counts[2]);
        let label = format!("the same, {most} over {least}");
        let slower = quotient(label, Unit::cost("times"), &by_count[2].0, &by_count[0].0);
        let books = by_count[2].1.clone();
        rows.extend(by_count.map(|(took, _)| took));
        rows.extend([slower, books]);
    }
    let handle = Spread::exactly(size_of::<Block>() as f64);
    let label = "for scale: a `Block`, in its owner's hands";
    rows.push(Row::new(label, BYTES, vec![(Allocator::Weirpool, handle)]));
    rows
}

/// The time, and the host memory that the pool took for its blocks.
fn turned<G: Backend>(backend: &G, case: Case, count: usize, effort: Effort) -> (Row, Row) {
    let (pooled, driver) = (case.pooled(backend), backend.driver(None));
    let mut herd = Herd::new(&pooled, case.streams(), count);
    let mut floor = Herd::new(&Lanes, case.streams(), count);
    let others = driver.as_ref();
    let mut others = others.map(|driver| Herd::new(driver, case.streams(), count));
    let (span, books) = (effort.span(), herd.books as f64 / count as f64);
    let mut race = Race::new();
    race.enter(Allocator::Weirpool, || herd.turn(span));
    race.enter(Allocator::Floor, || floor.turn(span));
    if let Some(others) = &mut others {
        race.enter(Allocator::Driver, || others.turn(span));
    }
    let figures = race.run(effort.rounds).figures(|took| *took);
    let label = format!("{count} live blocks, {}", case.label());
    let took = Row::new(&label, PAIR, figures);
    let books = vec![(Allocator::Weirpool, Spread::exactly(books))];
    let label = format!("{label}: books for each");
    (took, Row::new(label, BYTES, books))
}

/// Live blocks on several streams.
struct Herd<'a, C: Contender> {
    contender: &'a C,
    streams: Vec<C::Stream>,
    live: Vec<(C::Block, u16)>,
    random: Rng,
    /// The growth of the host's heap for the blocks, without the records of the benchmark itself.
    books: i64,
}

impl<'a, C: Contender> Herd<'a, C> {
    fn new(contender: &'a C, streams: usize, count: usize) -> Self {
        contender.enter();
        let mut herd = Self {
            contender,
            streams: (0..streams).map(|_| contender.stream()).collect(),
            live: Vec::with_capacity(count),
            random: Rng::with_seed(5),
            books: 0,
        };
        herd.books = heap::growth(|| (0..count).for_each(|_| herd.add()));
        herd
    }

    /// Returns a size from 512 B to 256 KiB.
    fn add(&mut self) {
        let bytes = (9.0 + 9.0 * self.random.f64()).exp2() as u64;
        let index = self.random.usize(..self.streams.len());
        let stream = &self.streams[index];
        let block = self.contender.allocate(stream, bytes).expect("memory");
        self.live.push((block, index as u16));
    }

    fn remove(&mut self) {
        let index = self.random.usize(..self.live.len());
        let (block, stream) = self.live.swap_remove(index);
        let stream = &self.streams[usize::from(stream)];
        self.contender.free(block, stream);
    }

    /// Returns nanoseconds for a free and an allocation.
    fn turn(&mut self, span: Duration) -> f64 {
        const TOGETHER: u32 = 64;
        let (mut pairs, start) = (0, Instant::now());
        while start.elapsed() < span {
            for _ in 0..TOGETHER {
                self.remove();
                self.add();
            }
            pairs += TOGETHER;
        }
        start.elapsed().as_nanos() as f64 / f64::from(pairs)
    }
}

impl<C: Contender> Drop for Herd<'_, C> {
    fn drop(&mut self) {
        for (block, stream) in self.live.drain(..) {
            self.contender
                .free(block, &self.streams[usize::from(stream)]);
        }
    }
}
