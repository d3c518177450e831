//! Rows as a table in Markdown.

use super::peers::Figure;
use super::row::{Allocator, Row, Spread};

/// The optional parts of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown<'a> {
    /// Figures of other programs.
    pub(crate) peers: &'a [Figure],
    /// Whether the minimum and maximum are shown beside the median.
    pub(crate) spread: bool,
}

/// Formats the rows as a table, with a column for each allocator that has a figure in it.
pub(crate) fn table(rows: &[Row], shown: Shown<'_>) -> String {
    let peers = peers(rows, shown.peers);
    let has_driver = rows.iter().any(|row| row.of(Allocator::Driver).is_some());
    let mut heads = vec!["workload", "weirpool", "floor"];
    heads.extend(has_driver.then_some("driver's pool"));
    heads.extend(&peers);
    heads.push("over the floor");
    let has_others = has_driver || !peers.is_empty();
    heads.extend(has_others.then_some("over the best other"));
    let heads = heads.into_iter().map(str::to_owned).collect();
    let mut lines: Vec<Vec<String>> = vec![heads];
    for row in rows {
        let cell = |who| row.of(who).map(|spread| figure(spread, shown.spread));
        let mut line = vec![Some(format!("{} ({})", row.label, row.unit.name))];
        line.extend([cell(Allocator::Weirpool), cell(Allocator::Floor)]);
        line.extend(has_driver.then(|| cell(Allocator::Driver)));
        let others = peers.iter().map(|peer| of_peer(row, shown.peers, peer));
        let others: Vec<_> = others.collect();
        line.extend(others.iter().map(|other| other.map(plain)));
        line.push(over(
            row,
            row.of(Allocator::Floor).map(|floor| floor.median),
        ));
        let driver = row.of(Allocator::Driver).map(|driver| driver.median);
        let others = others.into_iter().flatten().chain(driver);
        line.extend(has_others.then(|| over(row, best(row, others))));
        let dash = || "–".to_owned();
        lines.push(
            line.into_iter()
                .map(|cell| cell.unwrap_or_else(dash))
                .collect(),
        );
    }
    aligned(&lines)
}

/// Returns the other programs that have a figure in one of the rows, in the order of their figures.
fn peers<'a>(rows: &[Row], figures: &'a [Figure]) -> Vec<&'a str> {
    let mut peers = Vec::new();
    for figure in figures {
        let is_shown = rows
            .iter()
            .any(|row| row.peer.as_ref() == Some(&figure.key));
        if is_shown && !peers.contains(&figure.peer.as_str()) {
            peers.push(figure.peer.as_str());
        }
    }
    peers
}

/// Returns the peer's figure for a row: the last one if it was measured several times.
fn of_peer(row: &Row, figures: &[Figure], peer: &str) -> Option<f64> {
    let mut figures = figures.iter().rev();
    let figure = figures.find(|one| one.peer == peer && Some(&one.key) == row.peer.as_ref());
    figure.map(|figure| figure.figure)
}

fn best(row: &Row, others: impl Iterator<Item = f64>) -> Option<f64> {
    match row.unit.is_rate {
        true => others.max_by(f64::total_cmp),
        false => others.min_by(f64::total_cmp),
    }
}

/// Returns weirpool's figure divided by another one, whether less or more of it is better.
fn over(row: &Row, other: Option<f64>) -> Option<String> {
    let own = row.of(Allocator::Weirpool)?.median;
    let ratio = own / other?;
    ratio.is_finite().then(|| format!("{ratio:.2}"))
}

fn figure(spread: Spread, shows_spread: bool) -> String {
    let Spread {
        median,
        least,
        most,
    } = spread;
    if !shows_spread || least == most {
        return plain(median);
    }
    format!("{} ({}-{})", plain(median), plain(least), plain(most))
}

/// Formats a figure with at least three digits.
fn plain(figure: f64) -> String {
    match figure.abs() {
        _ if figure == figure.trunc() => format!("{figure:.0}"),
        100.0.. => format!("{figure:.0}"),
        10.0..100.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
    let mut table = String::new();
    for (index, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            table += &format!("| {cell:width$} ");
        }
        table += "|\n";
        if index == 0 {
            for width in &widths {
                table += &format!("|{}", "-".repeat(width + 2));
            }
            table += "|\n";
        }
    }
    table
}
