//! Writes a replay as a page for a browser: one file with its style, its script and its data, which loads nothing.

use crate::replay::frames::Recording;
use crate::replay::report::Report;
use crate::units;
use anyhow::Context;
use serde::Serialize;
use std::path::Path;
use weirpool::Histogram;

/// The page, with [`DATA`] in the place of its data.
const TEMPLATE: &str = include_str!("page.html");
const DATA: &str = "<!-- data -->";

/// The number of times up to a time, in the order of times.
#[derive(Serialize)]
struct Bar {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

#[derive(Serialize)]
struct Histograms {
    wait: Vec<Bar>,
    pending_age: Vec<Bar>,
}

/// Writes the page of a replay into `file`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write(file: &Path, report: &Report, recording: &Recording) -> anyhow::Result<()> {
    let unwritable = || format!("{}: cannot be written", units::path(file));
    std::fs::write(file, page(report, recording)?).with_context(unwritable)
}

fn page(report: &Report, recording: &Recording) -> serde_json::Result<String> {
    let histograms = Histograms {
        wait: bars(&recording.waits),
        pending_age: bars(&recording.pending_ages),
    };
    let data = [
        element("report", &(report, report.conditions()))?,
        element("frames", &recording.frames)?,
        element("histograms", &histograms)?,
    ];
    Ok(TEMPLATE.replacen(DATA, &data.join("\n"), 1))
}

/// Returns an element with a value as JSON. In JSON, `<` occurs inside strings only; escaped, it neither ends the
/// element nor opens a comment.
fn element(id: &str, value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?.replace('<', "\\u003c");
    Ok(format!(
        "<script type=\"application/json\" id=\"{id}\">{json}</script>"
    ))
}

fn bars(histogram: &Histogram) -> Vec<Bar> {
    let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos());
    let bar = |bucket: weirpool::Bucket| Bar {
        from_ns: nanoseconds(bucket.from).unwrap_or(u64::MAX),
        to_ns: nanoseconds(bucket.to).unwrap_or(u64::MAX),
        count: bucket.count,
    };
    histogram.buckets().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::report::tests::report;
    use serde_json::Value;

    fn recording() -> Recording {
        Recording {
            frames: Vec::new(),
            waits: Histogram::default(),
            pending_ages: Histogram::default(),
        }
    }

    #[test]
    fn template_has_one_place_for_data_before_its_script() {
        assert_eq!(TEMPLATE.matches(DATA).count(), 1);
        assert!(TEMPLATE.find(DATA) < TEMPLATE.find("<script>"));
    }

    #[test]
    fn hostile_names_stay_inside_their_element() {
        let sound = page(&report("sound"), &recording()).unwrap();
        for name in [
            "</script><script>alert(1)</script>",
            "</SCRIPT >",
            "<!--<script>",
            "]]><!-- data -->",
            "\"}\u{2028}\\",
        ] {
            let page = page(&report(name), &recording()).unwrap();
            for mark in ["<script", "</script", "<!--", "]]><"] {
                let count = |page: &str| page.to_ascii_lowercase().matches(mark).count();
                assert_eq!(count(&page), count(&sound), "{name}: {mark}");
            }
            let (_, rest) = page.split_once("id=\"report\">").unwrap();
            let (json, _) = rest.split_once("</script>").unwrap();
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(value[0]["trace"], name);
        }
    }

    #[test]
    fn page_that_cannot_be_written_is_named() {
        let folder = std::env::temp_dir();
        let error = write(&folder, &report("t"), &recording()).unwrap_err();
        let message = format!("{error:#}");
        let name = units::path(&folder);
        let start = format!("{name}: cannot be written: ");
        assert!(message.starts_with(&start), "{message}");
    }
}
