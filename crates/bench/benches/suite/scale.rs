//! Pairs of allocation and free on several threads: with a stream per thread, and with one stream for all.

use super::backend::Backend;
use super::contender::Contender;
use super::effort::Effort;
use super::floor::Lanes;
use super::pooled::Pooled;
use super::race::Race;
use super::row::{Allocator, Row, Unit, quotient};
use super::threads::together;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// Sizes from 1 KiB to 2 MiB.
const SIZES: usize = 12;

const PAIRS: Unit = Unit::rate("M pairs/s");

pub(crate) fn rows<G: Backend>(backend: &G, effort: Effort) -> Vec<Row> {
    let (pooled, driver) = (Pooled::new(backend), backend.driver(None));
    let race_of = |threads: usize, streams: usize| {
        let of = (threads, streams, effort.span());
        let mut race = Race::new();
        race.enter(Allocator::Weirpool, turns(&pooled, of));
        race.enter(Allocator::Floor, turns(&Lanes, of));
        if let Some(driver) = &driver {
            race.enter(Allocator::Driver, turns(driver, of));
        }
        race.run(effort.rounds).figures(|rate| *rate)
    };
    let mut rows: Vec<_> = THREADS
        .iter()
        .map(|&threads| {
            let label = format!("{}, a stream each", counted(threads));
            let row = Row::new(label, PAIRS, race_of(threads, threads));
            row.beside(format!("scale {threads}"))
        })
        .collect();
    let label = "a stream each, 16 threads over one";
    let gain = Unit::rate("times");
    rows.push(quotient(label, gain, &rows[THREADS.len() - 1], &rows[0]));
    for threads in THREADS {
        let label = format!("{}, all on one stream", counted(threads));
        rows.push(Row::new(label, PAIRS, race_of(threads, 1)));
    }
    rows
}

pub(crate) fn counted(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        _ => format!("{threads} threads"),
    }
}

/// Turns of this many threads on this many streams, for this long. Measures million pairs per second.
fn turns<C: Contender>(
    contender: &C,
    (threads, streams, span): (usize, usize, Duration),
) -> impl FnMut() -> f64 + '_ {
    contender.enter();
    let streams: Vec<_> = (0..streams).map(|_| contender.stream()).collect();
    move || {
        let is_over = AtomicBool::new(false);
        let end = || {
            thread::sleep(span);
            is_over.store(true, Ordering::Relaxed);
        };
        let (took, pairs) = together(
            threads,
            || contender.enter(),
            end,
            |thread| {
                let stream = &streams[thread % streams.len()];
                let mut pairs = 0;
                // At least once, however late the thread is.
                loop {
                    for step in 0..4 * SIZES {
                        let size = 1 << (10 + (step * 7 + thread) % SIZES);
                        let block = contender.allocate(stream, size).expect("memory");
                        contender.free(black_box(block), stream);
                    }
                    pairs += 4 * SIZES;
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                pairs
            },
        );
        pairs.iter().sum::<usize>() as f64 / took.as_secs_f64() / 1e6
    }
}
