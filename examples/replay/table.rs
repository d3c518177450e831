//! Reports as a table for people: a line a figure, a column a trace.

use crate::report::Report;
use crate::units::{binary_bytes, bytes, count, duration};
use std::fmt::Write;
use std::time::Duration;

/// Traces side by side; more go below.
const COLUMNS: usize = 4;

/// A line of the table: what it says, of a report.
type Line = (&'static str, fn(&Report) -> String);

/// A gap between groups of lines.
const GAP: Line = ("", |_| String::new());

const LINES: [Line; 27] = [
    ("", |report| report.trace.clone()),
    ("operations", |report| count(report.ops as u64)),
    ("streams", |report| report.streams.to_string()),
    ("trace time", |report| time(report.trace_ns)),
    GAP,
    ("peak requested", |report| bytes(report.requested_peak)),
    ("peak reserved", |report| bytes(report.reserved_peak)),
    ("reserved / requested", |report| {
        format!("{:.3}", report.reserved_over_requested)
    }),
    GAP,
    ("CPU time per operation, p50", |report| time(report.ns_p50)),
    ("p99", |report| time(report.ns_p99)),
    GAP,
    ("waits", |report| count(report.waits)),
    ("longest wait", |report| time(report.wait_max_ns)),
    ("failures", |report| count(report.failures)),
    GAP,
    ("device-side waits", |report| count(report.device_waits)),
    ("waits of hand-overs", |report| count(report.handover_waits)),
    ("stall of both", |report| time(report.stall_ns)),
    ("makespan / unlimited", |report| {
        format!("{:.4}", report.makespan_over_unlimited)
    }),
    GAP,
    ("handle size", |report| binary_bytes(report.handle_bytes)),
    ("device calls", |report| count(report.device_calls)),
    ("device time", |report| time(report.device_ns)),
    ("of the trace time", |report| {
        format!(
            "{:.2} %",
            100.0 * report.device_ns as f64 / report.trace_ns as f64
        )
    }),
    ("remaps", |report| count(report.remaps)),
    GAP,
];

fn time(nanoseconds: u64) -> String {
    duration(Duration::from_nanos(nanoseconds))
}

/// All reports, under the conditions that they share.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    if let Some(first) = reports.first() {
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
        let mut line = format!("{label:label_width$}");
        for report in reports {
            let width = report.trace.chars().count().max(10) + 3;
            let _ = write!(line, "{:>width$}", value(report));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

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
