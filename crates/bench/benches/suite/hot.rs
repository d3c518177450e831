//! The hot pair: allocate and free the same size on one stream.

use super::backend::Backend;
use super::contender::Contender;
use super::effort::Effort;
use super::floor::{Atomics, Lanes};
use super::pooled::{By, Pooled, polled, unless_exhausted};
use super::race::Race;
use super::row::{Allocator, Row, Unit, bytes};
use std::hint::black_box;
use std::time::{Duration, Instant};
use weirpool::{ReleaseThreshold, Tag};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

pub(crate) const SIZES: [u64; 4] = [256, 1 << 16, 1 << 20, 64 << 20];

const PAIR: Unit = Unit::cost("ns");

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let span = effort.span();
    let mut rows = Vec::new();
    for size in SIZES {
        let mut race = Race::new();
        race.enter(Allocator::Weirpool, turns(&pooled, size, span));
        race.enter(Allocator::Floor, turns(&Lanes, size, span));
        if let Some(driver) = &driver {
            race.enter(Allocator::Driver, turns(driver, size, span));
        }
        let figures = race.run(effort.rounds).figures(|took| *took);
        let label = format!("hot pair, {}: `try_allocate`", bytes(size));
        rows.push(Row::new(label, PAIR, figures).beside(format!("hot {size}")));
    }
    for size in SIZES {
        let polled = By::new(&pooled, |stream, bytes| polled(&pooled.pool, stream, bytes));
        let mut race = Race::new();
        race.enter(Allocator::Weirpool, turns(&polled, size, span));
        race.enter(Allocator::Floor, turns(&Lanes, size, span));
        let figures = race.run(effort.rounds).figures(|took| *took);
        let label = format!("hot pair, {}: `allocate().await`", bytes(size));
        rows.push(Row::new(label, PAIR, figures));
    }
    rows.extend(with_terms(&pooled, effort));
    // What awaiting, counting and ordering cost beside the driver's own calls.
    if let Some(through) = passed_through(backend) {
        for size in SIZES {
            let mut race = Race::new();
            race.enter(Allocator::Weirpool, turns(&through, size, span));
            if let Some(driver) = &driver {
                race.enter(Allocator::Driver, turns(driver, size, span));
            }
            let figures = race.run(effort.rounds).figures(|took| *took);
            let label = format!("hot pair, {}: passed through to the driver", bytes(size));
            rows.push(Row::new(label, PAIR, figures));
        }
    }
    let mut race = Race::new();
    race.enter(Allocator::Floor, turns(&Atomics, 1, span));
    let figures = race.run(effort.rounds).figures(|took| *took);
    rows.push(Row::new(
        "for scale: an atomic of one's own, twice",
        PAIR,
        figures,
    ));
    rows
}

/// Measures pairs for a tag and from a reservation, and reservations, each beside the floor of a pair.
fn with_terms<G: Backend>(pooled: &Pooled<'_, G>, effort: Effort) -> Vec<Row> {
    const SIZE: u64 = 1 << 16;
    let span = effort.span();
    let (pool, tag) = (&pooled.pool, Tag::new("hot"));
    let tagged = By::new(pooled, |stream, bytes| {
        unless_exhausted(pool.allocate(stream, bytes).tag(tag).try_now())
    });
    pooled.enter();
    let reservation = pool.reserve(16 << 20).try_now().expect("memory");
    let drawn = By::new(pooled, |stream, bytes| {
        unless_exhausted(reservation.allocate(stream, bytes))
    });
    // The reservation ends with the block.
    let reserving = By::new(pooled, |stream, bytes| {
        let reservation = pool.reserve(bytes).try_now().expect("memory");
        unless_exhausted(reservation.allocate(stream, bytes))
    });
    let row = |label: &str, mut turn: Box<dyn FnMut() -> f64 + '_>| {
        let mut race = Race::new();
        race.enter(Allocator::Weirpool, &mut turn);
        race.enter(Allocator::Floor, turns(&Lanes, SIZE, span));
        Row::new(label, PAIR, race.run(effort.rounds).figures(|took| *took))
    };
    vec![
        row(
            "hot pair, 64 KiB: for a tag",
            Box::new(turns(&tagged, SIZE, span)),
        ),
        row(
            "hot pair, 64 KiB: from a reservation",
            Box::new(turns(&drawn, SIZE, span)),
        ),
        row(
            "a reservation of 64 KiB with its pair",
            Box::new(turns(&reserving, SIZE, span)),
        ),
    ]
}

/// Returns a pool that passes its calls on to a pool of the driver, if there is one, which keeps its memory.
fn passed_through<G: Backend>(backend: &G) -> Option<Pooled<'_, G>> {
    let device = backend.device();
    let driver_pool = DriverPool::builder(&device).build().ok()?;
    let keep = driver_pool.set_release_threshold(ReleaseThreshold::Keep);
    keep.expect("a setting of the driver");
    let how = DriverPoolUse::PassedThrough;
    Some(Pooled::with(backend, |builder| {
        builder.segment_source(driver_pool.segments(how))
    }))
}

/// Turns on a separate stream. Measures nanoseconds per pair.
fn turns<C: Contender>(contender: &C, size: u64, span: Duration) -> impl FnMut() -> f64 + '_ {
    const TOGETHER: u32 = 256;
    contender.enter();
    let stream = contender.stream();
    move || {
        let (mut pairs, start) = (0, Instant::now());
        while start.elapsed() < span {
            for _ in 0..TOGETHER {
                let block = contender.allocate(&stream, size).expect("memory");
                contender.free(black_box(block), &stream);
            }
            pairs += TOGETHER;
        }
        start.elapsed().as_nanos() as f64 / f64::from(pairs)
    }
}
