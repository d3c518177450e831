//! Draws both tables: time per operation and bytes of an item by the number of items, all axes logarithmic.

use super::Line;
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (1600, 1400);
/// The part of the height that times have.
const UPPER: i32 = 800;
/// The room for the legend, at the right.
const LEGEND: u32 = 540;
const FONT: (&str, i32) = ("sans-serif", 22);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

pub(crate) fn picture(times: &[Line], bytes: &[Line]) -> Drawn<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        canvas.fill(&WHITE)?;
        let (upper, lower) = canvas.split_vertically(UPPER);
        chart(&upper, "time per operation, ns", times)?;
        chart(&lower, "host memory of an item, bytes", bytes)?;
        canvas.present()?;
    }
    Ok(svg)
}

fn chart(canvas: &Canvas<'_>, title: &str, lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|(count, _)| *count).max().unwrap_or(1).max(10);
    let figures = || points().map(|(_, figure)| figure.max(1.0));
    let least = figures().fold(f64::INFINITY, f64::min).min(1e9);
    let top = figures().fold(least, f64::max);
    let mut chart = ChartBuilder::on(canvas)
        .caption(title, ("sans-serif", 30))
        .margin(16)
        .margin_right(LEGEND)
        .x_label_area_size(60)
        .y_label_area_size(110)
        .build_cartesian_2d(
            (1.0..most as f64).log_scale(),
            (least / 1.5..top * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(FONT)
        .x_desc("items")
        .x_label_formatter(&|count| format!("{count:.0}"))
        .y_label_formatter(&|figure| format!("{figure:.0}"))
        .draw()?;
    let (width, _) = canvas.dim_in_pixel();
    let left = (width - LEGEND) as i32;
    for (index, line) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let at = |(count, figure): &(usize, f64)| (*count as f64, figure.max(1.0));
        let points: Vec<_> = line.points.iter().map(at).collect();
        let dots = points.iter().map(|at| Circle::new(*at, 5, color.filled()));
        chart.draw_series(dots)?;
        chart.draw_series(LineSeries::new(points, color.stroke_width(3)))?;
        let row = 70 + 36 * index as i32;
        let key = [(left + 8, row - 3), (left + 36, row + 3)];
        canvas.draw(&Rectangle::new(key, color.filled()))?;
        canvas.draw(&Text::new(line.label.clone(), (left + 46, row - 12), FONT))?;
    }
    Ok(())
}
