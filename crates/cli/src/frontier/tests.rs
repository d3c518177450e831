use super::*;
use crate::replay::report::tests::report_of;

fn point(trace: &str, way: Way, mebibytes: u64) -> Point {
    Point {
        trace: trace.to_owned(),
        way,
        chunk_bytes: mebibytes * MIB,
        share: 8.0 / mebibytes as f64,
        bound: 1.004,
        ratio: 1.0 + mebibytes as f64 / 100.0,
    }
}

fn frontier() -> Frontier {
    let points = ["bert", "resnet"].into_iter().flat_map(|trace| {
        Way::ALL
            .into_iter()
            .flat_map(move |way| [2, 16, 48].map(|size| point(trace, way, size)))
    });
    Frontier {
        points: points.collect(),
        conditions: "lag 1.00 ms · reuse all".to_owned(),
        default_chunk: 16 * MIB,
    }
}

#[test]
fn picture_has_titles_axes_guides_legend_and_sizes() {
    let svg = draw::picture(&frontier()).unwrap();
    for text in [
        "lag 1.00 ms",
        "device time / trace time",
        "peak reserved / peak requested",
        "1.05",
        "2 %",
        "bert",
        "resnet",
        "grow-first",
        "wait-briefly",
        "remapping always",
        "remapping never",
        "plain memory",
        "default: 16 MiB",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    for size in ["2", "16", "48"] {
        assert!(svg.contains(&format!("\n{size}\n</text>")), "{size}");
    }
    assert!(svg.ends_with("</svg>\n"));
}

#[test]
fn no_points_and_points_without_cost_are_drawn() {
    let mut frontier = frontier();
    frontier.points[0].share = 0.0;
    assert!(draw::picture(&frontier).is_ok());
    frontier.points.clear();
    assert!(draw::picture(&frontier).is_ok());
}

#[test]
fn table_has_every_point_in_aligned_columns() {
    let text = table::table(&frontier());
    assert_eq!(text.matches("1.160 [1.004] (0.50 %)").count(), 10, "{text}");
    let lines: Vec<_> = text.lines().filter(|line| line.contains("MiB")).collect();
    assert_eq!(lines.len(), 15, "{text}");
    assert!(
        lines.iter().all(|line| line.len() == lines[0].len()),
        "{text}"
    );
}

#[test]
fn point_has_the_figures_of_its_report() {
    let report = report_of("bert", &["--lag=1ms"]);
    let point = Point::new(&report, Way::WaitBriefly);
    assert_eq!((point.trace.as_str(), point.chunk_bytes), ("bert", 2 * MIB));
    assert_eq!(point.ratio, 1.056);
    assert_eq!(point.bound, f64::from(2 << 20) / 1_000.0);
    assert!((point.share - 100.0 * 9.0 / 299.0).abs() < 1e-9);
}
