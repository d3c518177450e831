use super::*;
use crate::device::simulated::Simulator;
use crate::options::Replay;
use crate::read::{Request, read};
use crate::trace::generate::cross_stream;
use crate::trace::{Builder, Op, Row};
use clap::{CommandFactory, Parser};

mod real_time;

const MIB: u64 = 1 << 20;

fn replayed(trace: &Trace, arguments: &[&str]) -> Report {
    replayed_on(&Simulator, trace, arguments)
}

fn replayed_on(site: &impl Site, trace: &Trace, arguments: &[&str]) -> Report {
    let options = Replay::parse_from([&["replay"], arguments].concat());
    let progress = Progress::new(&trace.name, trace.events.len(), true);
    let (target, policy) = (&options.target, &options.policy);
    let replayed = replay(site, trace, target, policy, &progress);
    replayed.unwrap().0
}

/// Returns a trace of (microseconds, op, id, MiB, stream).
fn trace(rows: &[(u64, Op, u64, u64, u64)]) -> Trace {
    let mut builder = Builder::default();
    for (line, &(time_us, op, id, mib, stream)) in rows.iter().enumerate() {
        let bytes = mib * MIB;
        let line = line as u64;
        builder
            .push(Row {
                line,
                time_us,
                op,
                id,
                bytes,
                stream,
            })
            .unwrap();
    }
    builder.finish("test").unwrap()
}

#[test]
fn run_with_enough_memory_has_no_waits_and_takes_the_traces_time() {
    let trace = cross_stream(2000, 1).unwrap();
    let report = replayed(&trace, &[]);
    assert_eq!(
        (report.waits, report.device_waits, report.failures),
        (0, 0, 0)
    );
    assert_eq!(report.makespan_over_unlimited, Some(1.0));
    assert_eq!(report.makespan_ns, report.trace_ns);
    assert!(report.reserved_peak >= report.requested_peak);
    assert!(report.handover_waits > 0);
}

/// The bound is one that no pool can pass, in any kind of memory and whatever streams wait for.
#[test]
fn no_run_reserves_less_than_its_lower_bound() {
    let trace = cross_stream(2000, 1).unwrap();
    for arguments in [
        &[][..],
        &["--remapping=always", "--chunk-bytes=2MiB"],
        &["--lag=1ms", "--capacity=450MB"],
        &[
            "--lag=1ms",
            "--when-short=wait-briefly",
            "--chunk-bytes=64MiB",
        ],
        &["--upstream=device"],
    ] {
        let report = replayed(&trace, arguments);
        assert_eq!(report.lower_bound % report.chunk_bytes, 0);
        assert!(report.lower_bound >= report.requested_high);
        assert!(report.lower_bound < report.requested_high + report.chunk_bytes);
        assert!(
            report.reserved_over_bound >= 1.0,
            "{arguments:?}: {report:?}"
        );
    }
}

#[test]
fn run_repeats_except_for_its_cpu_times() {
    let trace = cross_stream(2000, 1).unwrap();
    let figures = || {
        let mut report = replayed(&trace, &["--lag=1ms", "--capacity=450MB"]);
        (report.ns_p50, report.ns_p99, report.ns_mean) = (0, 0, 0);
        serde_json::to_string(&report).unwrap()
    };
    assert_eq!(figures(), figures());
}

/// With hardly more memory than is requested, streams wait on the host and on the device, and no request fails.
fn squeezed(trace: &Trace) {
    let capacity = format!("--capacity={}", trace.requested_peak * 102 / 100);
    let report = replayed(trace, &["--lag=1ms", &capacity]);
    assert_eq!(report.failures, 0);
    assert!(report.waits > 0 && report.device_waits > 0);
    assert!(report.wait_max_ns > 0);
    assert!(report.makespan_over_unlimited >= Some(1.0));
}

#[test]
fn producers_and_consumers_wait_with_little_memory() {
    squeezed(&cross_stream(4000, 1).unwrap());
}

#[test]
fn recorded_streams_wait_with_little_memory() {
    squeezed(&recorded("resnet_serve"));
}

fn recorded(name: &str) -> Trace {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let file = folder.join(format!("{name}.csv.gz"));
    read(&file, Request::default()).unwrap().trace
}

#[test]
fn trace_gives_the_same_figures_in_every_format() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/samples");
    let figures = |file: &str| {
        let trace = read(&folder.join(file), Request::default()).unwrap().trace;
        let capacity = format!("--capacity={}", trace.requested_peak * 102 / 100);
        let mut report = replayed(&trace, &["--lag=1ms", "--chunk-bytes=2MiB", &capacity]);
        assert!(report.waits > 0);
        (report.ns_p50, report.ns_p99, report.ns_mean) = (0, 0, 0);
        report.trace = String::new();
        serde_json::to_string(&report).unwrap()
    };
    let native = figures("serve.csv");
    assert_eq!(figures("serve_rmm.csv"), native);
    assert_eq!(figures("serve_torch.pickle.gz"), native);
}

/// Holds the bounds that the guide states for the recorded traces.
#[test]
fn recorded_traces_keep_their_bounds() {
    for name in ["llama_serve", "bert_train", "resnet_serve"] {
        let trace = recorded(name);
        let report = replayed(&trace, &[]);
        assert!(report.reserved_over_requested <= 1.15, "{report:?}");
        assert!(
            report.device_ns as f64 <= 0.03 * report.trace_ns as f64,
            "{report:?}"
        );
        assert_eq!((report.failures, report.waits), (0, 0), "{report:?}");

        let grows = replayed(&trace, &["--lag=1ms", "--when-short=grow-first"]);
        assert!(grows.reserved_over_requested <= 1.40, "{grows:?}");
        assert_eq!(grows.failures, 0);

        let waits = replayed(&trace, &["--lag=1ms", "--when-short=wait-briefly"]);
        assert!(waits.reserved_over_requested <= 1.20, "{waits:?}");
        assert!(waits.makespan_over_unlimited <= Some(1.02), "{waits:?}");
        assert_eq!(waits.failures, 0);
    }
}

fn with_one_too_large() -> Trace {
    trace(&[
        (0, Op::Allocate, 0, 40, 0),
        (10, Op::Allocate, 1, 200, 0),
        (20, Op::Free, 1, 0, 1),
        (30, Op::Allocate, 2, 40, 1),
        (40, Op::Free, 0, 0, 0),
        (50, Op::Free, 2, 0, 1),
    ])
}

/// Each stream holds what the other needs.
fn deadlocked() -> Trace {
    trace(&[
        (0, Op::Allocate, 0, 60, 0),
        (10, Op::Allocate, 1, 60, 1),
        (20, Op::Allocate, 2, 60, 0),
        (30, Op::Allocate, 3, 60, 1),
        (40, Op::Free, 0, 0, 0),
        (50, Op::Free, 1, 0, 1),
    ])
}

#[test]
fn request_larger_than_the_capacity_fails_and_its_free_is_skipped() {
    let trace = with_one_too_large();
    let report = replayed(&trace, &["--capacity=100MiB"]);
    assert_eq!((report.failures, report.waits), (1, 0));
}

#[test]
fn longest_wait_ends_when_all_tasks_wait() {
    let trace = deadlocked();
    let report = replayed(&trace, &["--capacity=128MiB"]);
    assert_eq!(report.failures, 1);
    // It ends soon after nothing has moved for 10 ms; the first free then serves the other task.
    assert!(
        (10_010_000..20_000_000).contains(&report.wait_max_ns),
        "{}",
        report.wait_max_ns
    );
}

/// Two blocks in the same memory, or memory remapped without its bytes, would show.
#[test]
fn contents_are_kept() {
    let trace = cross_stream(400, 1).unwrap();
    let capacity = format!("--capacity={}", trace.requested_peak * 105 / 100);
    let report = replayed(&trace, &["--lag=1ms", &capacity, "--verify"]);
    assert_eq!((report.failures, report.corruptions), (0, Some(0)));
}

#[test]
fn help_states_the_bounds_of_a_page() {
    let help = Replay::command().render_long_help().to_string();
    let help: Vec<_> = help.split_whitespace().collect();
    assert!(help.join(" ").contains("at most 300 frames"));
    assert_eq!(FRAMES, 300);
}
