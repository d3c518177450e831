//! Writes a replay as a page for a browser.

use crate::replay::report::Report;
use crate::units;
use anyhow::Context;
use std::path::Path;
use std::time::Duration;
use weirpool_dashboard::{Frame, Recording};

/// Writes the page of a replay into `file`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write(file: &Path, report: &Report, frames: Vec<Frame>) -> anyhow::Result<()> {
    let mut page = Recording::new(title(report));
    page.about = report.conditions();
    page.facts = facts(report);
    page.frames = frames;
    let unwritable = || format!("{}: cannot be written", units::path(file));
    std::fs::write(file, page.to_html()).with_context(unwritable)
}

fn title(report: &Report) -> String {
    let [reserved, requested] =
        [report.reserved_peak, report.requested_high].map(units::binary_bytes);
    let trace = &report.trace;
    format!("{trace}: {reserved} reserved at the peak for {requested} requested")
}

fn facts(report: &Report) -> Vec<(String, String)> {
    let time = |nanoseconds| format!("{:.1?}", Duration::from_nanos(nanoseconds));
    let facts = [
        ("operations", report.ops.to_string()),
        ("streams", report.streams.to_string()),
        ("makespan", time(report.makespan_ns)),
        ("waits", report.waits.to_string()),
        ("longest wait", time(report.wait_max_ns)),
        ("device waits", report.device_waits.to_string()),
        ("growths", report.growths.to_string()),
        ("remapped chunks", report.remaps.to_string()),
        ("device time", time(report.device_ns)),
        ("failures", report.failures.to_string()),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value));
    facts.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::report::tests::report;

    #[test]
    fn page_that_cannot_be_written_is_named() {
        let folder = std::env::temp_dir();
        let error = write(&folder, &report("t"), Vec::new()).unwrap_err();
        let message = format!("{error:#}");
        let name = units::path(&folder);
        let start = format!("{name}: cannot be written: ");
        assert!(message.starts_with(&start), "{message}");
    }
}
