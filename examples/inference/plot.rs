//! Draws a run: memory over time, and the states of the requests below it.

use crate::chart::{self, AREA, BLUE, Canvas, Drawn, LINE, NAVY, ORANGE, PAPER, Point, RED};
use crate::gauge::Sample;
use crate::report::Report;
use crate::units;
use anyhow::{Context, anyhow};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1600, 1120);
/// The height of the upper chart, with the titles.
const UPPER: i32 = 640;

/// Draws the samples of a service into `file`.
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
        let title = format!(
            "{} requests with {} of memory, weights included",
            units::count(report.served + report.failures),
            units::binary_bytes(report.capacity),
        );
        let below = format!(
            "{}: {:.1} requests/s served, {} failed",
            report.service, report.throughput, report.failures
        );
        chart::titles(&canvas, title, below)?;
        let (upper, lower) = canvas.split_vertically(UPPER);
        memory(&upper, samples)?;
        queue(&lower, samples)?;
        canvas.present()?;
    }
    Ok(svg)
}

/// Draws used and pending memory, stacked. The white area below the line of reserved memory is free.
fn memory(canvas: &Canvas<'_>, samples: &[Sample]) -> Drawn {
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let top = samples.iter().map(|sample| sample.reserved).max();
    let mut chart = chart::axes(canvas, 142, end(samples), gigabytes(top.unwrap_or(0)))?;
    let of = |level: fn(&Sample) -> u64| steps(samples, |sample| gigabytes(level(sample)));
    let given = of(|sample| sample.used + sample.pending);
    chart::area(&mut chart, given, ORANGE)?;
    chart::area(&mut chart, of(|sample| sample.used), BLUE)?;
    chart::line(&mut chart, of(|sample| sample.reserved), RED)?;
    let entries = [
        ("reserved", RED, LINE),
        ("used", BLUE, AREA),
        ("pending", ORANGE, AREA),
    ];
    chart::legend(canvas, 118, "GB", &entries)
}

fn queue(canvas: &Canvas<'_>, samples: &[Sample]) -> Drawn {
    let counts = |sample: &Sample| {
        let now = sample.counts;
        (now.waiting, now.in_flight, sample.not_admitted)
    };
    let top = samples
        .iter()
        .map(counts)
        .map(|(_, in_flight, not_admitted)| in_flight.max(not_admitted));
    let mut chart = chart::axes(canvas, 54, end(samples), top.max().unwrap_or(0) as f64)?;
    let of =
        |place: fn((u64, u64, u64)) -> u64| steps(samples, |sample| place(counts(sample)) as f64);
    chart::area(&mut chart, of(|(waiting, ..)| waiting), ORANGE)?;
    chart::line(&mut chart, of(|(_, in_flight, _)| in_flight), NAVY)?;
    chart::line(&mut chart, of(|(.., not_admitted)| not_admitted), RED)?;
    let entries = [
        ("waiting", ORANGE, AREA),
        ("in flight", NAVY, LINE),
        ("not admitted", RED, LINE),
    ];
    chart::legend(canvas, 30, "requests", &entries)
}

fn steps(samples: &[Sample], level: impl Fn(&Sample) -> f64) -> Vec<Point> {
    chart::steps(
        samples
            .iter()
            .map(|sample| (sample.at.as_secs_f64(), level(sample))),
    )
}

fn end(samples: &[Sample]) -> f64 {
    samples.last().map_or(1.0, |sample| sample.at.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauge::Counts;
    use crate::report::tests::report;
    use std::time::Duration;

    fn sample(tick: u64) -> Sample {
        Sample {
            at: Duration::from_millis(10 * tick),
            reserved: 2_000_000_000,
            used: tick * 100_000_000,
            pending: 100_000_000,
            not_admitted: tick,
            counts: Counts {
                in_flight: 3,
                waiting: 2,
                ..Counts::default()
            },
        }
    }

    #[test]
    fn picture_has_both_charts_and_their_legends() {
        let samples: Vec<_> = (0..9).map(sample).collect();
        let svg = picture(&report("waiting"), &samples).unwrap();
        for text in ["GB", "pending", "requests", "not admitted", "waiting: "] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("seconds").count(), 2);
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn run_of_no_length_is_drawn() {
        assert!(picture(&report("waiting"), &[]).is_ok());
        assert!(picture(&report("waiting"), &[sample(0)]).is_ok());
    }
}
