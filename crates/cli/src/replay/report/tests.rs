use super::*;
use crate::options::Replay;
use clap::Parser;

pub(crate) fn outcome() -> Outcome {
    let mut operation_ns = Histogram::new(3).unwrap();
    (1..=1000).for_each(|ns| operation_ns.record(ns).unwrap());
    Outcome {
        requested_high: 990,
        reserved_peak: 1_056,
        lateness_ns: operation_ns.clone(),
        operation_ns,
        waits: 3,
        longest_wait: Duration::from_micros(1500),
        device_waits: 5,
        handover_waits: 1,
        stall: Some(Duration::from_micros(20)),
        makespan: Duration::from_micros(303),
        chunk_bytes: 2 << 20,
        device_calls: 12,
        device_time: Duration::from_micros(9),
        memory_time: Duration::from_micros(7),
        growths: 2,
        remaps: 4,
        failures: 1,
        corruptions: None,
        samples: Vec::new(),
        frames: None,
    }
}

pub(crate) fn report(name: &str) -> Report {
    report_of(name, &["--lag=1ms", "--capacity=2GB"])
}

/// Returns a report under these options, with the same outcome on every device.
pub(crate) fn report_of(name: &str, arguments: &[&str]) -> Report {
    let trace = Trace {
        name: name.to_owned(),
        events: Vec::new(),
        streams: 2,
        allocations: 0,
        duration: Duration::from_micros(299),
        requested_peak: 1_000,
    };
    let options = Replay::parse_from([&["replay"], arguments].concat());
    let is_cuda = options.target.is_cuda();
    let outcome = Outcome {
        stall: outcome().stall.filter(|_| !is_cuda),
        ..outcome()
    };
    let setting = Setting {
        target: &options.target,
        policy: &options.policy,
        description: is_cuda.then(|| "some GPU".to_owned()),
    };
    let unlimited = (!is_cuda).then_some(Duration::from_micros(300));
    Report::new(&trace, setting, &outcome, unlimited)
}

fn keys(report: &Report) -> serde_json::Value {
    serde_json::to_value(report).unwrap()
}

#[test]
fn device_has_only_keys_that_make_sense_on_it() {
    let sim = keys(&report("t"));
    let full = keys(&report_of("t", &["--device=cuda"]));
    let paced = keys(&report_of("t", &["--device=cuda", "--kernels"]));
    assert_eq!(
        (&sim["device"], &full["device"]),
        (&"sim".into(), &"cuda".into())
    );
    for key in ["stall_ns", "makespan_over_unlimited"] {
        assert!(sim.get(key).is_some() && full.get(key).is_none(), "{key}");
    }
    for key in ["description", "pace", "kernels"] {
        assert!(sim.get(key).is_none() && full.get(key).is_some(), "{key}");
    }
    for key in ["lateness_p99_ns", "lateness_max_ns"] {
        assert!(full.get(key).is_none() && paced.get(key).is_some(), "{key}");
    }
    assert_eq!(
        (&full["pace"], &paced["pace"]),
        (&"full".into(), &"trace".into())
    );
}

#[test]
fn json_has_the_promised_keys_on_one_line() {
    let line = serde_json::to_string(&report("t")).unwrap();
    assert!(!line.contains('\n'));
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    for key in "trace, ops, streams, trace_ns, requested_peak, reserved_peak, \
        reserved_over_requested, ns_p50, ns_p99, waits, wait_max_ns, device_waits, stall_ns, \
        makespan_over_unlimited, handle_bytes, device_calls, device_ns, remaps, failures, \
        corruptions, device, ns_mean, memory_ns, growths, requested_high, reserved_over_high, lower_bound, \
        reserved_over_bound"
        .split(", ")
    {
        assert!(object.get(key).is_some(), "{key}");
    }
    assert!(object["corruptions"].is_null());
}

#[test]
fn ratios_and_times_are_those_of_the_run() {
    let report = report("t");
    assert_eq!(report.reserved_over_requested, 1.056);
    assert_eq!(report.reserved_over_high, 1_056.0 / 990.0);
    assert_eq!(report.lower_bound, 2 << 20, "one chunk");
    assert_eq!(report.reserved_over_bound, 1_056.0 / f64::from(2 << 20));
    assert_eq!(report.makespan_over_unlimited, Some(1.01));
    assert_eq!((report.ns_p50, report.ns_p99), (500, 990));
    assert!((499..=502).contains(&report.ns_mean), "{report:?}");
    assert_eq!(report.wait_max_ns, 1_500_000);
    assert_eq!(report.trace_ns, 299_000);
}

#[test]
fn conditions_are_described_in_one_line() {
    let conditions = report("t").conditions();
    assert_eq!(
        conditions,
        "lag 1.00 ms · grow-first · reuse all · capacity 2.00 GB"
    );
    let on_a_gpu = report_of("t", &["--device=cuda", "--kernels"]).conditions();
    assert_eq!(
        on_a_gpu,
        "cuda, the trace's pace, kernels · lag 0 ns · grow-first · reuse all"
    );
    let without_work = report_of("t", &["--device=cuda"]).conditions();
    assert!(without_work.starts_with("cuda, full speed, no work · "));
}

#[test]
fn only_a_run_without_waits_and_failures_was_unhindered() {
    let unhindered = Outcome {
        waits: 0,
        failures: 0,
        device_waits: 0,
        ..outcome()
    };
    assert!(unhindered.was_unhindered());
    assert!(
        !Outcome {
            waits: 1,
            ..unhindered.clone()
        }
        .was_unhindered()
    );
    assert!(
        !Outcome {
            failures: 1,
            ..unhindered.clone()
        }
        .was_unhindered()
    );
    assert!(
        !Outcome {
            device_waits: 1,
            ..unhindered
        }
        .was_unhindered()
    );
}
