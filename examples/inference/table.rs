//! Reports as a table: a line for each figure, a column for each service.

use crate::report::{Check, Report};
use crate::theory::Theory;
use crate::units::{binary_bytes, bytes, count, duration};
use std::fmt::Write;
use std::time::Duration;

/// A line of the table: its label, and its text for a report.
type Line = (&'static str, fn(&Report) -> String);

const LINES: [Line; 13] = [
    ("", |report| report.service.to_owned()),
    ("memory", |report| binary_bytes(report.capacity)),
    ("served", |report| count(report.served)),
    ("failures", |report| count(report.failures)),
    ("throughput", |report| {
        format!("{:.2} /s", report.throughput)
    }),
    ("device busy (served)", |report| {
        format!("{:.1} %", 100.0 * report.busy)
    }),
    ("latency, p50", |report| time(report.latency_p50_ns)),
    ("p99", |report| time(report.latency_p99_ns)),
    ("p99.9", |report| time(report.latency_p999_ns)),
    ("wait for memory, mean", |report| time(report.wait_mean_ns)),
    ("p99", |report| time(report.wait_p99_ns)),
    ("longest", |report| time(report.wait_max_ns)),
    ("peak reserved", |report| bytes(report.reserved_peak)),
];

fn time(nanoseconds: u64) -> String {
    duration(Duration::from_nanos(nanoseconds))
}

/// Returns the figures of all services, side by side.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    for (label, value) in LINES {
        let _ = write!(text, "{label:24}");
        for report in reports {
            let _ = write!(text, "{:>14}", value(report));
        }
        text.push('\n');
    }
    text
}

/// Returns the expected throughput, with the measured one.
pub(crate) fn theory(theory: &Theory, reports: &[Report]) -> String {
    let [waiting, _, unlimited] = reports else {
        return String::new();
    };
    format!(
        "in theory: {:.2} /s by the device's places, {:.2} /s by memory; expected: {:.2} /s, given {:.2} /s with \
         unlimited memory; measured: {:.2} /s\n",
        theory.device,
        theory.memory,
        theory.limited(unlimited.throughput),
        unlimited.throughput,
        waiting.throughput,
    )
}

pub(crate) fn checks(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let mark = if check.is_met { '✓' } else { '✗' };
        let _ = writeln!(text, "{mark} {}", check.text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn columns_are_right_aligned() {
        let text = table(&[report("waiting"), report("retrying"), report("unlimited")]);
        let mut lines = text.lines();
        assert_eq!(text.lines().count(), LINES.len());
        let width = lines.next().unwrap().chars().count();
        assert!(lines.all(|line| line.chars().count() == width), "{text}");
        assert!(text.contains("100.0 %"), "{text}");
    }

    #[test]
    fn checks_have_marks() {
        let check = |is_met| Check {
            is_met,
            is_required: false,
            text: "text".to_owned(),
        };
        assert_eq!(checks(&[check(true), check(false)]), "✓ text\n✗ text\n");
    }

    #[test]
    fn expected_throughput_is_the_smaller_of_both() {
        let reports = [report("waiting"), report("retrying"), report("unlimited")];
        let both = Theory {
            device: 60.0,
            memory: 1.5,
        };
        let text = theory(&both, &reports);
        assert!(text.contains("expected: 1.50 /s, given 2.00 /s"), "{text}");
    }
}
