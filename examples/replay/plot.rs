//! Draws a replay: the pool's bytes over time, as SVG.
//!
//! Used and pending are stacked, so that what is white below the line of reserved is free. Pending is
//! what the pool takes for pending: it asks the device only when it needs memory, so much of it may
//! have been complete for a while.

use crate::report::Report;
use crate::samples::Sample;
use crate::units;
use anyhow::{Context, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (1600, 760);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const GRID: RGBColor = RGBColor(0xe4, 0xe7, 0xeb);
const USED: RGBColor = RGBColor(0x5b, 0x9b, 0xd5);
const PENDING: RGBColor = RGBColor(0xf4, 0xa2, 0x3a);
const RESERVED: RGBColor = RGBColor(0xb0, 0x22, 0x3c);
const REQUESTED: RGBColor = RGBColor(0x12, 0x3f, 0x6d);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Point = (f64, f64);

/// The file for a trace's picture: with several traces, each is named after its own.
pub(crate) fn file_for(plot: &Path, trace: &str, several: bool) -> PathBuf {
    if !several {
        return plot.to_owned();
    }
    let extension = plot.extension().unwrap_or("svg".as_ref()).to_string_lossy();
    plot.with_extension(format!("{trace}.{extension}"))
}

/// Draws the samples of a run into `file`.
pub(crate) fn draw(file: &Path, report: &Report, samples: &[Sample]) -> anyhow::Result<()> {
    let picture = picture(report, samples).map_err(|error| anyhow!("{error}"))?;
    let unwritable = || format!("{}: cannot be written", file.display());
    std::fs::write(file, picture).with_context(unwritable)
}

type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

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
        "{}: {} reserved at most for {} requested",
        report.trace,
        units::bytes(report.reserved_peak),
        units::bytes(report.requested_peak),
    );
    canvas.draw(&Text::new(
        title,
        (100, 22),
        (FONT, 34).into_font().color(&INK),
    ))?;
    let conditions = (FONT, 24).into_font().color(&INK.mix(0.7));
    canvas.draw(&Text::new(report.conditions(), (100, 66), conditions))?;
    Ok(())
}

fn axes<'a, 'b>(canvas: &'a Canvas<'b>, samples: &[Sample]) -> Drawn<Chart<'a, 'b>> {
    let end = samples.last().map_or(1.0, seconds).max(1e-9);
    let top = samples.iter().map(|sample| sample.reserved).max();
    let top = gigabytes(top.unwrap_or(0)).max(1e-9);
    let mut chart = ChartBuilder::on(canvas)
        .margin_top(142)
        .margin_right(40)
        .margin_bottom(16)
        .x_label_area_size(64)
        .y_label_area_size(100)
        .build_cartesian_2d(0.0..end, 0.0..top * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .y_labels(8)
        .axis_style(INK)
        .label_style((FONT, 24).into_font().color(&INK))
        .axis_desc_style((FONT, 24).into_font().color(&INK))
        .x_desc("seconds")
        .x_label_formatter(&|value| short(*value, end))
        .y_label_formatter(&|value| short(*value, top))
        .draw()?;
    Ok(chart)
}

/// As many decimals as an axis of this length needs.
fn short(value: f64, length: f64) -> String {
    let decimals = match length {
        ..0.1 => 3,
        ..1.0 => 2,
        ..10.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

fn levels(chart: &mut Chart<'_, '_>, samples: &[Sample]) -> Drawn {
    // Pending is drawn first and up to the sum of both; used covers its lower part.
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
    let series = AreaSeries::new(steps(samples, level), 0.0, color);
    chart.draw_series(series)?;
    Ok(())
}

fn line(
    chart: &mut Chart<'_, '_>,
    samples: &[Sample],
    color: RGBColor,
    level: fn(&Sample) -> u64,
) -> Drawn {
    let style = color.stroke_width(2);
    let series = LineSeries::new(steps(samples, level), style);
    chart.draw_series(series)?;
    Ok(())
}

/// A level holds until the next sample: the corners of its steps, without those on a straight line.
fn steps(samples: &[Sample], level: fn(&Sample) -> u64) -> Vec<Point> {
    let mut corners = Vec::new();
    let mut last = None;
    for sample in samples {
        let (x, y) = (seconds(sample), level(sample));
        if last == Some(y) {
            continue;
        }
        corners.extend(last.map(|last| (x, gigabytes(last))));
        corners.push((x, gigabytes(y)));
        last = Some(y);
    }
    let end = samples.last().map(seconds);
    corners.extend(end.zip(last).map(|(x, y)| (x, gigabytes(y))));
    corners
}

/// In a row of its own above the chart, where it covers nothing.
fn legend(canvas: &Canvas<'_>) -> Drawn {
    const ROW: i32 = 118;
    let font = || (FONT, 24).into_font().color(&INK);
    canvas.draw(&Text::new("GB", (58, ROW - 12), font()))?;
    let entries = [
        ("reserved", RESERVED, 3),
        ("requested", REQUESTED, 3),
        ("used", USED, 10),
        ("pending", PENDING, 10),
    ];
    for (place, (name, color, half_height)) in (0..).zip(entries) {
        let left = 950 + place * 160;
        let key = [(left, ROW - half_height), (left + 28, ROW + half_height)];
        canvas.draw(&Rectangle::new(key, color.filled()))?;
        canvas.draw(&Text::new(name, (left + 38, ROW - 12), font()))?;
    }
    Ok(())
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
    use crate::report::tests::report;
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
    fn several_traces_get_a_file_each() {
        let plot = Path::new("some/out.svg");
        assert_eq!(file_for(plot, "bert", false), plot);
        assert_eq!(file_for(plot, "bert", true), Path::new("some/out.bert.svg"));
    }

    #[test]
    fn a_picture_has_titles_axes_and_a_legend() {
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
    fn a_run_of_no_length_is_drawn_too() {
        assert!(picture(&report("t"), &[]).is_ok());
        assert!(picture(&report("t"), &samples(&[0])).is_ok());
    }

    #[test]
    fn levels_are_steps_and_straight_lines_have_no_corners() {
        let corners = steps(&samples(&[1, 1, 1, 2]), |sample| sample.used);
        let expected = [(0.0, 1e-9), (0.03, 1e-9), (0.03, 2e-9), (0.03, 2e-9)];
        assert_eq!(corners, expected);
    }
}
