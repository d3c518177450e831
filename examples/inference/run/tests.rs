//! Whole runs: in real time on each executor, with loose checks, and in virtual time.

use super::*;
use crate::bound;
use crate::executor::ExecutorName;
use crate::report::{self, Report};
use crate::simulated;
use crate::{arrivals, bound::Stay};
use clap::{Parser, ValueEnum};

fn options(arguments: &[&str]) -> Options {
    let options = Options::try_parse_from([&["inference"], arguments].concat());
    options.and_then(Options::checked).unwrap()
}

/// Runs a service. Fails if memory is missing at the end.
fn served(options: &Options, kind: Kind) -> Outcome {
    let requests = arrivals::requests(options);
    let progress = Progress::new(kind.name(), options.requests, true);
    run(
        simulated::machine(options),
        options,
        kind,
        &requests,
        &progress,
    )
    .unwrap()
}

fn stays(outcome: &Outcome) -> Vec<Stay> {
    let stays = outcome.records.iter().filter_map(|record| record.stay);
    stays.collect()
}

#[test]
fn each_executor_serves_all_and_loses_no_memory() {
    for executor in ExecutorName::value_variants() {
        let mut options = options(&["--requests=40", "--step=100us", "--load=4"]);
        options.executor = *executor;
        let outcome = served(&options, Kind::Waiting);
        assert_eq!(stays(&outcome).len(), 40, "{executor:?}");
        let most = Kind::Waiting.capacity(&options);
        assert!(outcome.reserved_peak <= most, "{executor:?}");
        assert!(!outcome.samples.is_empty(), "{executor:?}");
    }
}

#[test]
fn run_in_virtual_time_is_deterministic() {
    let options = options(&["--executor=virtual", "--requests=60"]);
    for kind in Kind::ALL {
        let [one, other] = [(); 2].map(|()| served(&options, kind));
        assert_eq!(one.records, other.records);
        assert_eq!(one.samples, other.samples);
    }
}

#[test]
fn waits_are_in_order_and_within_their_bounds() {
    for (seed, room) in [
        (1, "--room=6"),
        (2, "--room=3"),
        (3, "--room=2"),
        (4, "--room=9"),
    ] {
        let seed = format!("--seed={seed}");
        let options = options(&["--executor=virtual", "--requests=200", &seed, room]);
        let outcome = served(&options, Kind::Waiting);
        let stays = stays(&outcome);
        assert_eq!(stays.len(), 200);
        assert!(stays.iter().any(|stay| stay.granted > stay.came), "{seed}");
        let in_order = |two: &[Stay]| two[0].granted <= two[1].granted;
        assert!(stays.windows(2).all(in_order), "{seed}");
        let verdict = bound::check(&stays, outcome.shared);
        assert!(verdict.is_good(), "{seed}: {verdict:?}");
    }
}

#[test]
fn memory_held_never_exceeds_the_capacity() {
    let options = options(&["--executor=virtual", "--requests=200"]);
    for kind in Kind::ALL {
        let outcome = served(&options, kind);
        let stays = stays(&outcome);
        for at in stays.iter().map(|stay| stay.granted) {
            let holding = stays
                .iter()
                .filter(|stay| stay.granted <= at && at < stay.returned);
            let held: u64 = holding.map(|stay| stay.bytes).sum();
            assert!(held <= outcome.shared.bytes, "{kind:?}");
        }
    }
}

#[test]
fn device_is_the_bottleneck_rather_than_memory() {
    let options = options(&["--executor=virtual"]);
    let reports = Kind::ALL.map(|kind| {
        let outcome = served(&options, kind);
        Report::of(&outcome, kind.capacity(&options))
    });
    let [waiting, retrying, unlimited] = &reports;
    assert_eq!((waiting.failures, unlimited.failures), (0, 0));
    assert_eq!(unlimited.wait_max_ns, 0);
    let checks = report::checks(&reports, true);
    assert!(checks.iter().all(|check| check.is_met), "{checks:?}");
    // Without a position in a queue, a request may fail at every try.
    assert!(retrying.failures > 0, "{retrying:?}");
}

#[test]
fn retrying_service_serves_all_requests_with_enough_tries() {
    let options = options(&["--executor=virtual", "--requests=60", "--tries=1000000"]);
    assert_eq!(stays(&served(&options, Kind::Retrying)).len(), 60);
}
