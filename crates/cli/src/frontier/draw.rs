//! Draws the frontier: a colour for each trace, a line for each way.
//!
//! Both axes are logarithmic; that of memory shows the reserved bytes beyond the requested ones.

use super::labels::{Labels, Pixel};
use super::{Frontier, MIB, Point, Way};
use crate::show::chart::{self, Canvas, Drawn, FONT, GRID, INK, PAPER};
use crate::units;
use anyhow::{Context, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::combinators::{BindKeyPoints, LogCoord, WithKeyPoints};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

type Axis = WithKeyPoints<LogCoord<f64>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

const SIZE: (u32, u32) = (1600, 1000);
const ROOM_ABOVE: u32 = 190;
const LEGEND: [i32; 2] = [122, 160];
const COLORS: [RGBColor; 4] = [chart::BLUE, chart::ORANGE, chart::RED, chart::NAVY];

/// The targets of a pool: peak reserved over peak requested, and device time in per cent of the trace's time.
const RATIO: f64 = 1.05;
const SHARE: f64 = 2.0;

/// The smallest value on a logarithmic axis.
const LEAST: f64 = 1e-3;

/// Radii of marks.
const DOT: i32 = 5;
const RING: i32 = 8;
const DEFAULT: i32 = 13;

/// Draws all points into `file`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(super) fn draw(file: &Path, frontier: &Frontier) -> anyhow::Result<()> {
    let picture = picture(frontier).map_err(|error| anyhow!("{error}"))?;
    let unwritable = || format!("{}: cannot be written", units::path(file));
    std::fs::write(file, picture).with_context(unwritable)
}

pub(super) fn picture(frontier: &Frontier) -> Drawn<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        canvas.fill(&PAPER)?;
        let title = "Memory against device time, by chunk size in MiB".to_owned();
        chart::titles(&canvas, title, frontier.conditions.clone())?;
        legend(&canvas, frontier)?;
        let (shares, wastes) = ranges(&frontier.points);
        let mut chart = axes(&canvas, shares.clone(), wastes.clone())?;
        guides(&mut chart, shares, wastes)?;
        lines(&mut chart, frontier)?;
        marks(&mut chart, frontier)?;
        labels(&canvas, &chart, frontier)?;
        canvas.present()?;
    }
    // In a page, the picture is no wider than the page.
    let flexible = "<svg style=\"max-width: 100%; height: auto\" ";
    Ok(svg.replacen("<svg ", flexible, 1))
}

/// Returns the ranges of both axes: all points and guides, with room around.
fn ranges(points: &[Point]) -> (Range<f64>, Range<f64>) {
    let places = points.iter().map(coordinates);
    let shares = places.clone().map(|(share, _)| share);
    let wastes = places.map(|(_, waste)| waste);
    (around(shares, SHARE), around(wastes, waste(RATIO)))
}

fn around(values: impl Iterator<Item = f64> + Clone, guide: f64) -> Range<f64> {
    let least = values.clone().fold(guide, f64::min);
    let most = values.fold(guide, f64::max);
    least / 1.4..most * 1.4
}

/// Returns round values of an axis: 1, 2 and 5 of each decade.
fn round_values(axis: &Range<f64>) -> Vec<f64> {
    let decades = -4..=4;
    let values = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)));
    values.filter(|value| axis.contains(value)).collect()
}

fn axes<'a, 'b>(
    canvas: &'a Canvas<'b>,
    shares: Range<f64>,
    wastes: Range<f64>,
) -> Drawn<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(canvas)
        .margin_top(ROOM_ABOVE)
        .margin_right(40)
        .margin_bottom(16)
        .x_label_area_size(72)
        .y_label_area_size(110)
        .build_cartesian_2d(axis(shares), axis(wastes))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style((FONT, 24).into_font().color(&INK))
        .axis_desc_style((FONT, 24).into_font().color(&INK))
        .x_desc("device time / trace time")
        .y_desc("peak reserved / peak requested")
        .x_label_formatter(&|share| format!("{} %", rounded(*share)))
        .y_label_formatter(&|waste| rounded(1.0 + waste).to_string())
        .draw()?;
    Ok(chart)
}

fn axis(range: Range<f64>) -> Axis {
    let values = round_values(&range);
    range.log_scale().with_key_points(values)
}

/// Rounds away the noise of binary fractions.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn guides(chart: &mut Chart<'_, '_>, shares: Range<f64>, wastes: Range<f64>) -> Drawn {
    let across = [(shares.start, waste(RATIO)), (shares.end, waste(RATIO))];
    let up = [(SHARE, wastes.start), (SHARE, wastes.end)];
    for guide in [across, up] {
        chart.draw_series(DashedLineSeries::new(guide, 10, 8, INK.mix(0.6).into()))?;
    }
    let text = |at, shift, text: String| {
        let font = (FONT, 22).into_font().color(&INK.mix(0.8));
        EmptyElement::at(at) + Text::new(text, shift, font)
    };
    chart.draw_series([
        text(across[0], (8, -26), format!("{RATIO}")),
        text(up[1], (8, 4), format!("{SHARE} %")),
    ])?;
    Ok(())
}

fn lines(chart: &mut Chart<'_, '_>, frontier: &Frontier) -> Drawn {
    for (trace, color) in colors(frontier) {
        for way in Way::ALL {
            let points = frontier.line(trace, way).map(coordinates);
            match dashes(way) {
                None => {
                    chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
                }
                Some((size, gap)) => {
                    let style = color.stroke_width(2);
                    chart.draw_series(DashedLineSeries::new(points, size, gap, style))?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the traces, each with a colour.
fn colors(frontier: &Frontier) -> impl Iterator<Item = (&str, RGBColor)> {
    let colors = COLORS.into_iter().cycle();
    frontier.traces().into_iter().zip(colors)
}

/// Returns the size of dashes and of the gaps between them; `None` for a solid line.
fn dashes(way: Way) -> Option<(u32, u32)> {
    match way {
        Way::GrowFirst => None,
        Way::Always => Some((24, 4)),
        Way::Never => Some((6, 6)),
        Way::WaitBriefly => Some((12, 8)),
        Way::Plain => Some((2, 6)),
    }
}

fn marks(chart: &mut Chart<'_, '_>, frontier: &Frontier) -> Drawn {
    for (trace, color) in colors(frontier) {
        for way in Way::ALL {
            for point in frontier.line(trace, way) {
                let at = coordinates(point);
                mark(chart.plotting_area(), at, way, color)?;
                if point.chunk_bytes == frontier.default_chunk {
                    let ring = Circle::new(at, DEFAULT, INK.stroke_width(2));
                    chart.plotting_area().draw(&ring)?;
                }
            }
        }
    }
    Ok(())
}

/// Draws the mark of a way; rings and frames fit around dots, where several points coincide.
fn mark<C>(area: &DrawingArea<SVGBackend<'_>, C>, at: C::From, way: Way, color: RGBColor) -> Drawn
where
    C: plotters::coord::CoordTranslate,
    C::From: Clone + 'static,
{
    match way {
        Way::GrowFirst => area.draw(&Circle::new(at, DOT, color.filled()))?,
        Way::Always => {
            let frame = [(-RING, -RING), (RING, RING)];
            let frame = Rectangle::new(frame, color.stroke_width(2));
            area.draw(&(EmptyElement::at(at) + frame))?;
        }
        Way::Never => area.draw(&Cross::new(at, DOT, color.stroke_width(2)))?,
        Way::WaitBriefly => area.draw(&Circle::new(at, RING, color.stroke_width(2)))?,
        Way::Plain => area.draw(&TriangleMarker::new(at, RING, color.filled()))?,
    }
    Ok(())
}

/// Draws chunk sizes as labels, the default first, where there is room.
fn labels(canvas: &Canvas<'_>, chart: &Chart<'_, '_>, frontier: &Frontier) -> Drawn {
    let mut labels = Labels::default();
    for point in &frontier.points {
        labels.mark(chart.backend_coord(&coordinates(point)), DOT);
    }
    let is_default = |point: &&Point| point.chunk_bytes == frontier.default_chunk;
    let (first, rest): (Vec<_>, Vec<_>) = frontier.points.iter().partition(is_default);
    let mut labelled: Vec<Pixel> = Vec::new();
    for point in [first, rest].concat() {
        let at = chart.backend_coord(&coordinates(point));
        if labelled.contains(&at) {
            continue;
        }
        let text = (point.chunk_bytes / MIB).to_string();
        if let Some(corner) = labels.find(at, text.len()) {
            let font = (FONT, 18).into_font().color(&INK);
            canvas.draw(&Text::new(text, corner, font))?;
            labelled.push(at);
        }
    }
    Ok(())
}

fn coordinates(point: &Point) -> (f64, f64) {
    (point.share.max(LEAST), waste(point.ratio))
}

/// Returns the reserved bytes beyond the requested ones, as a part of the requested ones.
fn waste(ratio: f64) -> f64 {
    (ratio - 1.0).max(LEAST)
}

/// Draws the traces in one row and the ways in the next.
fn legend(canvas: &Canvas<'_>, frontier: &Frontier) -> Drawn {
    const WIDTH: i32 = 250;
    let columns = |row| (0..).map(move |column| (100 + column * WIDTH, row));
    let text = |text: String, (x, y): Pixel| {
        let font = (FONT, 24).into_font().color(&INK);
        canvas.draw(&Text::new(text, (x + 52, y - 12), font))
    };
    for ((trace, color), at) in colors(frontier).zip(columns(LEGEND[0])) {
        let key = [(at.0, at.1 - chart::AREA), (at.0 + 40, at.1 + chart::AREA)];
        canvas.draw(&Rectangle::new(key, color.filled()))?;
        text(trace.to_owned(), at)?;
    }
    for (way, at) in Way::ALL.into_iter().zip(columns(LEGEND[1])) {
        line_key(canvas, at, way)?;
        text(way.to_string(), at)?;
    }
    let at = (100 + Way::ALL.len() as i32 * WIDTH, LEGEND[1]);
    canvas.draw(&Circle::new(
        (at.0 + 20, at.1),
        DEFAULT,
        INK.stroke_width(2),
    ))?;
    let default = frontier.default_chunk / MIB;
    text(format!("default: {default} MiB"), at)?;
    Ok(())
}

fn line_key(canvas: &Canvas<'_>, (x, y): Pixel, way: Way) -> Drawn {
    let ends = vec![(x, y), (x + 40, y)];
    match dashes(way) {
        None => canvas.draw(&PathElement::new(ends, INK.stroke_width(2)))?,
        Some((size, gap)) => {
            let style = INK.stroke_width(2);
            canvas.draw(&DashedPathElement::new(ends, size, gap, style))?;
        }
    }
    mark(canvas, (x + 20, y), way, INK)
}
