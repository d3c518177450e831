//! All points as text: a table for each way, with a line for each chunk size and a column for each trace.

use super::{Frontier, Point, Way};
use crate::units;
use std::fmt::Write;

const CHUNK: usize = 10;
const FEWEST: usize = 25;

pub(super) fn table(frontier: &Frontier) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", frontier.conditions);
    let _ = writeln!(
        text,
        "reserved / requested [lower bound / requested] (device time / trace time)\n"
    );
    let tables = Way::ALL.map(|way| of(frontier, way));
    text.push_str(&tables.join("\n"));
    text
}

fn of(frontier: &Frontier, way: Way) -> String {
    let traces = frontier.traces();
    let mut text = format!("{way}\n{:CHUNK$}", "chunk");
    for trace in &traces {
        let _ = write!(text, "{trace:>width$}", width = width(trace));
    }
    text.push('\n');
    for chunk in chunk_sizes(frontier, way) {
        let size = units::binary_bytes(chunk);
        let _ = write!(text, "{size:CHUNK$}");
        for trace in &traces {
            let mut line = frontier.line(trace, way);
            let point = line.find(|point| point.chunk_bytes == chunk);
            let cell = point.map(cell).unwrap_or_default();
            let _ = write!(text, "{cell:>width$}", width = width(trace));
        }
        text.push('\n');
    }
    text
}

fn chunk_sizes(frontier: &Frontier, way: Way) -> Vec<u64> {
    let points = frontier.points.iter();
    let points = points.filter(|point| point.way == way);
    let mut sizes: Vec<_> = points.map(|point| point.chunk_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn width(trace: &str) -> usize {
    trace.chars().count().max(FEWEST - 3) + 3
}

fn cell(point: &Point) -> String {
    let Point {
        ratio,
        bound,
        share,
        ..
    } = point;
    format!("{ratio:.3} [{bound:.3}] ({share:.2} %)")
}
