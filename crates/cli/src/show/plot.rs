//! Draws a replay: the pool's bytes over time, as SVG.
//!
//! Used and pending bytes are stacked, so that the white area below the line of reserved bytes is free. The pool polls
//! the device only when it needs memory: some pending memory may have been complete for a while.

use super::chart::{self, AREA, Canvas, Chart, Drawn, LINE, PAPER, Point};
use crate::replay::report::Report;
use crate::replay::samples::Sample;
use crate::units;
use anyhow::{Context, anyhow};
use plotters::prelude::*;
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (1600, 760);
const USED: RGBColor = chart::BLUE;
const PENDING: RGBColor = chart::ORANGE;
const RESERVED: RGBColor = chart::RED;
const REQUESTED: RGBColor = chart::NAVY;

/// The row of the legend, and the room for it and the titles.
const LEGEND: i32 = 118;
const ROOM_ABOVE: u32 = 142;

/// Returns the file for a trace's picture: with several traces, each is named after its trace.
pub(crate) fn file_for(plot: &Path, trace: &str, several: bool) -> PathBuf {
    if !several {
        return plot.to_owned();
    }
    let extension = plot.extension().unwrap_or("svg".as_ref()).to_string_lossy();
    plot.with_extension(format!("{trace}.{extension}"))
}

/// Draws the samples of a run into `file`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn draw(file: &Path, report: &Report, samples: &[Sample]) -> anyhow::Result<()> {
    let picture = picture(report, samples).map_err(|error| anyhow!("{error}"))?;
    let unwritable = || format!("{}: cannot be written", units::path(file));
    std::fs::write(file, picture).with_context(unwritable)
}

fn picture(report: &Report, samples: &[Sample]) -> Drawn<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        canvas.fill(&PAPER)?;
        titles(&canvas, report)?;
        let mut chart = axes(&canvas, samples)?;
        levels(&mut chart, samples)?;
        legend(&canvas)?;
        canvas.present()?;
    }
    Ok(svg)
}

fn titles(canvas: &Canvas<'_>, report: &Report) -> Drawn {
    let title = format!(
        "{}: {} reserved at the peak for {} requested",
        report.trace,
        units::bytes(report.reserved_peak),
        units::bytes(report.requested_peak),
    );
    chart::titles(canvas, title, report.conditions())
}

fn axes<'a, 'b>(canvas: &'a Canvas<'b>, samples: &[Sample]) -> Drawn<Chart<'a, 'b>> {
    let end = samples.last().map_or(1.0, seconds);
    let top = samples.iter().map(|sample| sample.reserved).max();
    chart::axes(canvas, ROOM_ABOVE, end, gigabytes(top.unwrap_or(0)))
}

fn levels(chart: &mut Chart<'_, '_>, samples: &[Sample]) -> Drawn {
    // Pending is drawn first, up to the sum of both; used covers its lower part.
    area(chart, samples, PENDING, |sample| {
        sample.used + sample.pending
    })?;
    area(chart, samples, USED, |sample| sample.used)?;
    line(chart, samples, REQUESTED, |sample| sample.requested)?;
    line(chart, samples, RESERVED, |sample| sample.reserved)
}

fn area(
    chart: &mut Chart<'_, '_>,
    samples: &[Sample],
    color: RGBColor,
    level: fn(&Sample) -> u64,
) -> Drawn {
    chart::area(chart, steps(samples, level), color)
}

fn line(
    chart: &mut Chart<'_, '_>,
    samples: &[Sample],
    color: RGBColor,
    level: fn(&Sample) -> u64,
) -> Drawn {
    chart::line(chart, steps(samples, level), color)
}

fn steps(samples: &[Sample], level: fn(&Sample) -> u64) -> Vec<Point> {
    let points = samples
        .iter()
        .map(|sample| (seconds(sample), gigabytes(level(sample))));
    chart::steps(points)
}

fn legend(canvas: &Canvas<'_>) -> Drawn {
    let entries = [
        ("reserved", RESERVED, LINE),
        ("requested", REQUESTED, LINE),
        ("used", USED, AREA),
        ("pending", PENDING, AREA),
    ];
    chart::legend(canvas, LEGEND, "GB", &entries)
}

fn seconds(sample: &Sample) -> f64 {
    sample.at.as_secs_f64()
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::report::tests::report;
    use std::time::Duration;

    fn samples(levels: &[u64]) -> Vec<Sample> {
        let sample = |(tick, level): (usize, &u64)| Sample {
            at: Duration::from_millis(10 * tick as u64),
            reserved: level * 2,
            used: *level,
            pending: level / 4,
            requested: level - level / 8,
        };
        levels.iter().enumerate().map(sample).collect()
    }

    #[test]
    fn each_of_several_traces_gets_a_file() {
        let plot = Path::new("some/out.svg");
        assert_eq!(file_for(plot, "bert", false), plot);
        assert_eq!(file_for(plot, "bert", true), Path::new("some/out.bert.svg"));
    }

    #[test]
    fn picture_has_titles_axes_and_legend() {
        let svg = picture(&report("bert"), &samples(&[400_000_000, 900_000_000])).unwrap();
        for text in [
            "bert: ",
            "lag 1.00 ms",
            "GB",
            "seconds",
            "reserved",
            "pending",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn run_of_no_length_is_drawn() {
        assert!(picture(&report("t"), &[]).is_ok());
        assert!(picture(&report("t"), &samples(&[0])).is_ok());
    }
}
