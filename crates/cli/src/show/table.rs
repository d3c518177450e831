//! Reports as a table: a line for each figure, a column for each trace.

use crate::replay::report::Report;
use crate::units::{binary_bytes, bytes, count, duration};
use std::fmt::Write;
use std::time::Duration;

/// The most traces side by side; more go below.
const COLUMNS: usize = 4;

/// A line of the table: its label and its value of a report; `None` where the line makes no sense.
type Line = (&'static str, fn(&Report) -> Option<String>);

/// A gap between groups of lines.
const GAP: Line = ("", |_| Some(String::new()));

const LINES: [Line; 38] = [
    ("", |report| Some(report.trace.clone())),
    ("operations", |report| Some(count(report.ops as u64))),
    ("streams", |report| Some(report.streams.to_string())),
    ("trace time", |report| Some(time(report.trace_ns))),
    ("run time", |report| {
        report.pace.is_some().then(|| time(report.makespan_ns))
    }),
    GAP,
    ("peak requested", |report| {
        Some(bytes(report.requested_peak))
    }),
    ("peak requested in this run", |report| {
        report.pace.is_some().then(|| bytes(report.requested_high))
    }),
    ("peak reserved", |report| Some(bytes(report.reserved_peak))),
    ("reserved / requested", |report| {
        Some(format!("{:.3}", report.reserved_over_requested))
    }),
    ("reserved / requested in this run", |report| {
        let ratio = format!("{:.3}", report.reserved_over_high);
        report.pace.is_some().then_some(ratio)
    }),
    ("lower bound (whole chunks)", |report| {
        Some(bytes(report.lower_bound))
    }),
    ("reserved / lower bound", |report| {
        Some(format!("{:.3}", report.reserved_over_bound))
    }),
    GAP,
    ("CPU time per operation, p50", |report| {
        Some(time(report.ns_p50))
    }),
    ("p99", |report| Some(time(report.ns_p99))),
    ("mean", |report| Some(time(report.ns_mean))),
    ("began late by, p99", |report| {
        report.lateness_p99_ns.map(time)
    }),
    ("at most", |report| report.lateness_max_ns.map(time)),
    GAP,
    ("waits", |report| Some(count(report.waits))),
    ("longest wait", |report| Some(time(report.wait_max_ns))),
    ("failures", |report| Some(count(report.failures))),
    ("corruptions", |report| report.corruptions.map(count)),
    GAP,
    ("device-side waits", |report| {
        Some(count(report.device_waits))
    }),
    ("device-side waits of hand-overs", |report| {
        Some(count(report.handover_waits))
    }),
    ("stall of device-side waits", |report| {
        report.stall_ns.map(time)
    }),
    ("makespan / unlimited", |report| {
        Some(format!("{:.4}", report.makespan_over_unlimited?))
    }),
    GAP,
    ("chunk size", |report| {
        Some(binary_bytes(report.chunk_bytes))
    }),
    ("growths", |report| Some(count(report.growths))),
    ("remaps", |report| Some(count(report.remaps))),
    ("device calls", |report| Some(count(report.device_calls))),
    ("device time", |report| Some(time(report.device_ns))),
    ("of the trace time", |report| {
        let share = report.device_ns as f64 / report.trace_ns as f64;
        Some(format!("{:.2} %", 100.0 * share))
    }),
    ("of memory calls", |report| Some(time(report.memory_ns))),
    GAP,
];

fn time(nanoseconds: u64) -> String {
    duration(Duration::from_nanos(nanoseconds))
}

/// Returns the reports side by side, below their setting.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    if let Some(first) = reports.first() {
        if let Some(description) = &first.description {
            let _ = writeln!(text, "{description}");
        }
        let _ = writeln!(text, "{}\n", first.conditions());
    }
    for some in reports.chunks(COLUMNS) {
        side_by_side(&mut text, some);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn side_by_side(text: &mut String, reports: &[Report]) {
    let label_width = LINES
        .iter()
        .map(|(label, _)| label.len())
        .max()
        .unwrap_or(0);
    for (label, value) in LINES {
        let values: Vec<_> = reports.iter().map(value).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let mut line = format!("{label:label_width$}");
        for (report, value) in reports.iter().zip(values) {
            let width = report.trace.chars().count().max(10) + 3;
            let _ = write!(line, "{:>width$}", value.unwrap_or_default());
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::report::tests::{report, report_of};

    #[test]
    fn device_has_only_lines_that_make_sense_on_it() {
        let sim = table(&[report("t")]);
        let gpu = table(&[report_of("t", &["--device=cuda", "--kernels"])]);
        for line in ["stall of device-side waits", "makespan / unlimited"] {
            assert!(sim.contains(line) && !gpu.contains(line), "{line}");
        }
        for line in ["run time", "began late by", "some GPU"] {
            assert!(!sim.contains(line) && gpu.contains(line), "{line}");
        }
    }

    #[test]
    fn columns_are_aligned_at_their_right() {
        let text = table(&[report("short"), report("one_with_a_long_name")]);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("  ")).collect();
        let width = lines[0].len();
        assert!(lines.iter().all(|line| line.len() == width), "{text}");
        assert!(text.contains("1.056"), "{text}");
        assert!(text.starts_with("lag 1.00 ms"), "{text}");
    }

    #[test]
    fn many_traces_wrap() {
        let reports: Vec<_> = (0..5)
            .map(|index| report(&format!("trace-{index}")))
            .collect();
        let text = table(&reports);
        assert_eq!(text.matches("peak reserved").count(), 2);
        assert!(text.lines().all(|line| line.len() < 100));
    }
}
