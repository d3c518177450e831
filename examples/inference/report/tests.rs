use super::*;
use crate::bound::{Shared, Stay};
use crate::service::Record;

const SECOND: Duration = Duration::from_secs(1);

fn record(id: u32, stay: Option<(u32, u32)>) -> Record {
    let came = SECOND * id;
    let stay = stay.map(|(granted, returned)| Stay {
        bytes: 1,
        came,
        granted: SECOND * granted,
        returned: SECOND * returned,
    });
    Record {
        arrived: came,
        work: SECOND / 2,
        stay,
        ended: stay.map_or(came + SECOND, |stay| stay.returned),
        waited: stay.map_or(SECOND, |stay| stay.wait()),
    }
}

fn outcome(kind: Kind, records: Vec<Record>) -> Outcome {
    Outcome {
        kind,
        records,
        samples: Vec::new(),
        shared: Shared { bytes: 1, step: 1 },
        places: 1,
        reserved_peak: 3,
    }
}

/// Returns a report of two requests served in a second, with one place busy with both.
pub(crate) fn report(service: &'static str) -> Report {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == service);
    let records = vec![record(0, Some((0, 1))), record(0, Some((0, 1)))];
    Report::of(&outcome(kind.unwrap(), records), 1 << 20)
}

#[test]
fn figures_count_the_requests_they_are_named_for() {
    let records = vec![
        record(0, Some((0, 2))),
        record(1, Some((2, 4))),
        record(2, None),
    ];
    let report = Report::of(&outcome(Kind::Retrying, records), 8);
    assert_eq!((report.served, report.failures), (2, 1));
    assert_eq!(report.makespan_ns, 4_000_000_000);
    assert!((report.throughput - 0.5).abs() < 1e-9);
    assert!((report.busy - 0.25).abs() < 1e-9);
    let is_about =
        |nanoseconds: u64, seconds: f64| (nanoseconds as f64 / 1e9 - seconds).abs() < 0.01;
    assert!(is_about(report.latency_p50_ns, 2.0) && is_about(report.latency_p999_ns, 3.0));
    assert!(is_about(report.wait_mean_ns, 2.0 / 3.0) && is_about(report.wait_max_ns, 1.0));
    assert_eq!(
        (report.over_bound, report.wait_max_bound_ns),
        (0, Some(1_000_000_000))
    );
}

#[test]
fn checks_fail_for_a_service_that_misses_them() {
    let is_met = |reports: &[Report]| {
        let checks = checks(reports, false);
        assert_eq!(checks.len(), 3);
        [0, 1, 2].map(|index: usize| checks[index].is_met)
    };
    let good = report("waiting");
    let unlimited = report("unlimited");
    assert_eq!(is_met(&[good.clone(), unlimited.clone()]), [true; 3]);
    let failed = Report {
        failures: 1,
        ..good.clone()
    };
    assert_eq!(is_met(&[failed, unlimited.clone()]), [false, true, true]);
    let idle = vec![record(0, Some((0, 1))), record(0, Some((3, 4)))];
    let idle = Report::of(&outcome(Kind::Waiting, idle), 8);
    assert_eq!(is_met(&[idle, unlimited]), [true, false, false]);
}

#[test]
fn throughput_is_required_only_on_request() {
    let reports = [report("waiting"), report("unlimited")];
    let required = |requires: bool| {
        let checks = checks(&reports, requires);
        checks.iter().filter(|check| check.is_required).count()
    };
    assert_eq!((required(false), required(true)), (2, 3));
}
