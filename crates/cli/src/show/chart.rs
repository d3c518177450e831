//! The parts of pictures of runs: titles, axes, levels over seconds as steps, legends. The inference example shares
//! this file.

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

pub(crate) const FONT: &str = "sans-serif";
pub(crate) const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
pub(crate) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub(crate) const BLUE: RGBColor = RGBColor(0x5b, 0x9b, 0xd5);
pub(crate) const ORANGE: RGBColor = RGBColor(0xf4, 0xa2, 0x3a);
pub(crate) const RED: RGBColor = RGBColor(0xb0, 0x22, 0x3c);
pub(crate) const NAVY: RGBColor = RGBColor(0x12, 0x3f, 0x6d);
pub(crate) const GRID: RGBColor = RGBColor(0xe4, 0xe7, 0xeb);

pub(crate) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
pub(crate) type Point = (f64, f64);
pub(crate) type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Half the thickness of the key of a line, and of an area.
pub(crate) const LINE: i32 = 3;
pub(crate) const AREA: i32 = 10;

/// Draws a large title and a small one below it.
pub(crate) fn titles(canvas: &Canvas<'_>, title: String, below: String) -> Drawn {
    let large = (FONT, 34).into_font().color(&INK);
    canvas.draw(&Text::new(title, (100, 22), large))?;
    let small = (FONT, 24).into_font().color(&INK.mix(0.7));
    canvas.draw(&Text::new(below, (100, 66), small))?;
    Ok(())
}

/// Draws axes from zero to `end` seconds and to `top`, with room for titles and a legend above them.
pub(crate) fn axes<'a, 'b>(
    canvas: &'a Canvas<'b>,
    room_above: u32,
    end: f64,
    top: f64,
) -> Drawn<Chart<'a, 'b>> {
    let (end, top) = (end.max(1e-9), top.max(1e-9));
    let mut chart = ChartBuilder::on(canvas)
        .margin_top(room_above)
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

/// Formats a value with the decimals that an axis of this length needs.
fn short(value: f64, length: f64) -> String {
    let decimals = match length {
        ..0.1 => 3,
        ..1.0 => 2,
        ..10.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

pub(crate) fn area(chart: &mut Chart<'_, '_>, corners: Vec<Point>, color: RGBColor) -> Drawn {
    chart.draw_series(AreaSeries::new(corners, 0.0, color))?;
    Ok(())
}

pub(crate) fn line(chart: &mut Chart<'_, '_>, corners: Vec<Point>, color: RGBColor) -> Drawn {
    chart.draw_series(LineSeries::new(corners, color.stroke_width(2)))?;
    Ok(())
}

/// Returns the corners of levels that each hold until the next sample, without corners on a straight line.
pub(crate) fn steps(samples: impl IntoIterator<Item = Point>) -> Vec<Point> {
    let mut corners = Vec::new();
    let mut last: Option<Point> = None;
    let mut end = None;
    for (x, y) in samples {
        end = Some(x);
        if last.is_some_and(|(_, level)| level == y) {
            continue;
        }
        corners.extend(last.map(|(_, level)| (x, level)));
        corners.push((x, y));
        last = Some((x, y));
    }
    corners.extend(end.zip(last).map(|(x, (_, level))| (x, level)));
    corners
}

/// Draws a legend in a row of its own above the chart, at the right.
pub(crate) fn legend(
    canvas: &Canvas<'_>,
    row: i32,
    unit: &str,
    entries: &[(&str, RGBColor, i32)],
) -> Drawn {
    const WIDTH: i32 = 160;
    let font = || (FONT, 24).into_font().color(&INK);
    canvas.draw(&Text::new(unit.to_owned(), (58, row - 12), font()))?;
    let (width, _) = canvas.dim_in_pixel();
    let from = width as i32 - 10 - WIDTH * entries.len() as i32;
    for (column, (name, color, half_height)) in (0..).zip(entries) {
        let left = from + column * WIDTH;
        let key = [(left, row - half_height), (left + 28, row + half_height)];
        canvas.draw(&Rectangle::new(key, color.filled()))?;
        canvas.draw(&Text::new(
            (*name).to_owned(),
            (left + 38, row - 12),
            font(),
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_steps_without_corners_on_straight_lines() {
        let corners = steps([(0.0, 1.0), (0.01, 1.0), (0.02, 1.0), (0.03, 2.0)]);
        assert_eq!(corners, [(0.0, 1.0), (0.03, 1.0), (0.03, 2.0), (0.03, 2.0)]);
        assert_eq!(steps([]), []);
    }

    #[test]
    fn axis_has_the_decimals_that_it_needs() {
        let labels = [(0.05, 0.08), (0.5, 0.9), (5.0, 9.0), (50.0, 90.0)];
        let labels = labels.map(|(value, length)| short(value, length));
        assert_eq!(labels, ["0.050", "0.50", "5.0", "50"]);
    }
}
