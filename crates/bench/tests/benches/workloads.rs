//! Each workload runs on the simulated device, and the claims about it hold.

use crate::suite::contender::Contender;
use crate::suite::effort::{Amount, Effort};
use crate::suite::mix::{Player, WHOLE};
use crate::suite::row::{Allocator, Row};
use crate::suite::simulated::Simulated;
use crate::suite::{handoff, hot, live_blocks, mix, pressure, scale, scarce, spills};
use std::collections::HashMap;
use std::sync::Mutex;
use weirpool::device::sim::Clock;

fn effort() -> Effort {
    Effort::new(Amount::Smoke, None)
}

/// Checks that every row has a figure, and that every figure is finite and not negative.
fn check(rows: &[Row]) {
    assert!(!rows.is_empty());
    for row in rows {
        let figures = row.figures.iter().map(|(_, spread)| spread.median);
        let is_sound = |figure: f64| figure.is_finite() && figure >= 0.0;
        assert!(!row.figures.is_empty(), "{row:?}");
        assert!(figures.into_iter().all(is_sound), "{row:?}");
    }
}

fn own(row: &Row) -> f64 {
    row.of(Allocator::Weirpool).expect("a figure").median
}

#[test]
fn workload_without_device_time_runs() {
    let backend = Simulated::new(Clock::Manual);
    check(&hot::rows(&backend, effort()));
    check(&scale::rows(&backend, effort()));
    check(&mix::rows(&backend, effort()));
    check(&live_blocks::rows(&backend, effort()));
}

#[test]
fn the_handoff_runs_in_real_time() {
    check(&handoff::rows(&Simulated::new(Clock::Wall), effort()));
}

#[test]
fn awaited_allocation_is_never_refused() {
    let rows = scarce::rows(&Simulated::new(Clock::Virtual), effort());
    check(&rows);
    let refused = rows.iter().filter(|row| row.label.contains("refused"));
    assert!(refused.clone().count() > 0);
    assert!(refused.clone().all(|row| own(row) == 0.0), "{rows:?}");
}

/// In virtual time the host takes no time. The floor takes as long as the memory allows, and no contender is faster.
#[test]
fn order_made_by_hand_takes_what_memory_allows() {
    let rows = scarce::rows(&Simulated::new(Clock::Virtual), effort());
    let is_scarce = |row: &&Row| row.label.starts_with("4 blocks") && row.label.contains("wall");
    let walls: Vec<_> = rows.iter().filter(is_scarce).collect();
    assert_eq!(walls.len(), 8);
    for row in walls {
        let (_, allowed) = row.label.split_once("wall (").expect("what is allowed");
        let (allowed, _) = allowed.split_once(" allowed").expect("what is allowed");
        let allowed: f64 = allowed.parse().expect("a number");
        let floor = row.of(Allocator::Floor).expect("a figure").median;
        assert!((floor / allowed - 1.0).abs() < 0.01, "{row:?}");
        assert!(own(row) >= floor, "{row:?}");
    }
}

#[test]
fn waiting_costs_no_throughput_and_no_request_fails() {
    let rows = pressure::rows(&Simulated::new(Clock::Virtual), effort());
    // A late host changes none of this.
    assert_eq!(rows.len(), 4, "{rows:?}");
    for pair in rows.chunks(2) {
        let (throughput, failures) = (&pair[0], &pair[1]);
        let unlimited = throughput.of(Allocator::Floor).expect("a figure").median;
        assert!(own(throughput) > 0.9 * unlimited, "{throughput:?}");
        assert_eq!(own(failures), 0.0);
    }
}

#[test]
fn spills_and_fetches_have_a_bandwidth() {
    let rows = spills::rows(&Simulated::new(Clock::Virtual), effort());
    check(&rows);
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows.iter().all(|row| own(row) > 0.0), "{rows:?}");
}

/// A contender that checks the calls of the mix.
#[derive(Default)]
struct Strict(Mutex<Record>);

#[derive(Default)]
struct Record {
    live: HashMap<u64, u64>,
    granted: u64,
    most: usize,
}

impl Contender for Strict {
    type Stream = ();
    type Block = u64;

    fn stream(&self) {}

    fn allocate(&self, (): &(), bytes: u64) -> Option<u64> {
        let mut record = self.0.lock().unwrap();
        assert!((512..=64 << 20).contains(&bytes), "{bytes}");
        record.granted += 1;
        let block = record.granted;
        record.live.insert(block, bytes);
        record.most = record.most.max(record.live.len());
        assert!(record.live.len() <= WHOLE.blocks);
        assert!(record.live.values().sum::<u64>() <= WHOLE.bytes);
        Some(block)
    }

    fn free(&self, block: u64, (): &()) {
        let freed = self.0.lock().unwrap().live.remove(&block);
        assert!(freed.is_some(), "freed twice");
    }
}

#[test]
fn mix_stays_within_its_bounds_and_frees_all_blocks() {
    let strict = Strict::default();
    Player::new(&strict).turn(2000);
    let record = strict.0.into_inner().unwrap();
    assert_eq!((record.live.len(), record.granted), (0, 2000));
    // The bound on blocks matters only if there are often many.
    assert!(record.most > WHOLE.blocks / 2, "{}", record.most);
}
