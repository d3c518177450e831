//! The table.

use crate::suite::peers;
use crate::suite::report::{Shown, table};
use crate::suite::row::{Allocator, Row, Spread, Unit};

fn row(unit: Unit, figures: &[(Allocator, f64)]) -> Row {
    let figures = figures.iter();
    let figures = figures.map(|(who, figure)| (*who, Spread::exactly(*figure)));
    Row::new("hot", unit, figures.collect()).beside("scale 2")
}

fn cells(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.starts_with("|-"));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    cells.collect()
}

#[test]
fn ratios_are_to_the_floor_and_to_the_best_other() {
    let own = [
        (Allocator::Weirpool, 6.0),
        (Allocator::Floor, 4.0),
        (Allocator::Driver, 24.0),
    ];
    let table = table(&[row(Unit::cost("ns"), &own)], Shown::default());
    let heads = ["workload", "weirpool", "floor", "driver's pool"];
    let [first, second] = &cells(&table)[..] else {
        panic!("{table}");
    };
    assert_eq!(first[..4], heads);
    assert_eq!(second[..], ["hot (ns)", "6", "4", "24", "1.50", "0.25"]);
}

#[test]
fn peers_have_columns_where_they_have_figures() {
    let own = [(Allocator::Weirpool, 12.0), (Allocator::Floor, 16.0)];
    let log = "rmm pool  scale  2 threads, own stream  0.750 M pairs/s\n\
               torch     scale  2 threads, own stream  3.000 M pairs/s\n\
               other     scale  4 threads, own stream  9.000 M pairs/s\n";
    let peers = peers::parse(log);
    let shown = Shown {
        peers: &peers,
        spread: true,
    };
    let table = table(&[row(Unit::rate("M pairs/s"), &own)], shown);
    let [first, second] = &cells(&table)[..] else {
        panic!("{table}");
    };
    assert_eq!(first[3..5], ["rmm pool", "torch"]);
    assert_eq!(second[1..], ["12", "16", "0.75", "3", "0.75", "4.00"]);
}

#[test]
fn missing_figure_is_a_dash() {
    let table = table(
        &[row(Unit::cost("ns"), &[(Allocator::Floor, 4.25)])],
        Shown::default(),
    );
    assert_eq!(cells(&table)[1], ["hot (ns)", "–", "4.25", "–"]);
}
