//! `docs/grafana.json` shows every exported family, and nothing else.

use crate::documented;
use serde_json::{Value, from_str};
use std::collections::{BTreeMap, BTreeSet};

const DASHBOARD: &str = include_str!("../../docs/grafana.json");

/// The labels that Prometheus itself adds to each series.
const TARGET_LABELS: [&str; 1] = ["instance"];
/// The variables that Grafana itself defines.
const BUILT_IN: [&str; 1] = ["__rate_interval"];

/// The kind and the labels of a family.
struct Family {
    kind: &'static str,
    labels: BTreeSet<String>,
}

fn families() -> BTreeMap<String, Family> {
    let labels_of = |labels: Vec<String>| {
        let added = TARGET_LABELS.map(str::to_owned);
        labels.into_iter().chain(added).collect()
    };
    documented()
        .into_iter()
        .map(|(name, (description, labels))| {
            let (kind, labels) = (description.kind, labels_of(labels));
            (name, Family { kind, labels })
        })
        .collect()
}

/// Returns the text between the first `open` and the next `close` behind it, and the text behind that.
fn between<'a>(text: &'a str, open: &str, close: char) -> Option<(&'a str, &'a str)> {
    text.split_once(open)?.1.split_once(close)
}

/// Returns the identifiers that follow each `mark`.
fn behind<'a>(text: &'a str, mark: &str) -> impl Iterator<Item = &'a str> {
    text.split(mark).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// The faults of a dashboard, and the families that its panels show.
#[derive(Default)]
struct Review {
    faults: Vec<String>,
    shown: BTreeSet<String>,
}

impl Review {
    fn of(dashboard: &str, families: &BTreeMap<String, Family>) -> Self {
        let mut review = Self::default();
        let dashboard: Value = from_str(dashboard).expect("JSON");
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let names = variables.iter().map(|variable| &variable["name"]);
        let variables_of = names.map(|name| name.as_str().unwrap()).chain(BUILT_IN);
        let known: BTreeSet<_> = variables_of.collect();
        for variable in variables {
            if let Some(query) = variable["definition"].as_str() {
                review.source(variable);
                review.query_of_variable(query, families);
                review.variables(query, &known);
            }
        }
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            review.must(
                ids.insert(panel["id"].as_u64().unwrap()),
                "ids differ",
                panel,
            );
            if panel["type"] == "row" {
                continue;
            }
            review.panel(panel);
            for target in panel["targets"].as_array().unwrap() {
                let text = |key: &str| target[key].as_str().unwrap();
                let (expression, legend) = (text("expr"), text("legendFormat"));
                review.expression(expression, legend, families);
                review.variables(expression, &known);
            }
        }
        let missing = families.keys().filter(|name| !review.shown.contains(*name));
        let missing: Vec<_> = missing
            .map(|name| format!("no panel shows {name}"))
            .collect();
        review.faults.extend(missing);
        review
    }

    fn must(&mut self, holds: bool, rule: &str, found: impl ToString) {
        if !holds {
            self.faults.push(format!("{rule}: {}", found.to_string()));
        }
    }

    fn panel(&mut self, panel: &Value) {
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
        self.must(
            unit.is_some_and(|unit| !unit.is_empty()),
            "a unit",
            &panel["title"],
        );
        let description = panel["description"].as_str().unwrap_or_default();
        let is_line = description.ends_with('.') && !description.contains('\n');
        self.must(is_line, "a description of one line", &panel["title"]);
        let targets = panel["targets"].as_array().unwrap();
        self.must(!targets.is_empty(), "an expression", &panel["title"]);
        for part in targets.iter().chain([panel]) {
            self.source(part);
        }
    }

    fn source(&mut self, part: &Value) {
        let source = &part["datasource"]["uid"];
        self.must(
            source == "${datasource}",
            "the data source is a variable",
            source,
        );
    }

    fn variables(&mut self, text: &str, known: &BTreeSet<&str>) {
        for name in behind(text, "$") {
            self.must(known.contains(name), "a declared variable", name);
        }
    }

    /// Returns the family of a series, and the labels of its series.
    fn series<'a>(
        &mut self,
        name: &str,
        families: &'a BTreeMap<String, Family>,
    ) -> Option<(&'static str, BTreeSet<&'a str>)> {
        let histogram = name.strip_suffix("_bucket");
        let family = families.get_key_value(histogram.unwrap_or(name));
        let is_sound =
            family.is_some_and(|(_, family)| (family.kind == "histogram") == histogram.is_some());
        self.must(is_sound, "an exported series", name);
        let (name, family) = family.filter(|_| is_sound)?;
        self.shown.insert(name.clone());
        let labels = family.labels.iter().map(String::as_str);
        Some((family.kind, labels.chain(histogram.map(|_| "le")).collect()))
    }

    /// Every expression selects one series: `weirpool_NAME{LABEL=~"$VARIABLE", ...}`.
    fn expression(&mut self, text: &str, legend: &str, families: &BTreeMap<String, Family>) {
        let names: Vec<_> = behind(text, "weirpool_").collect();
        let [name] = names[..] else {
            return self.must(false, "one series", text);
        };
        let Some((kind, labels)) = self.series(&format!("weirpool_{name}"), families) else {
            return;
        };
        let is_rate = text.contains(&format!("rate(weirpool_{name}{{"));
        self.must(
            is_rate == (kind != "gauge"),
            "a rate, except of gauges",
            text,
        );
        let is_quantile = text.starts_with("histogram_quantile(");
        self.must(
            is_quantile == (kind == "histogram"),
            "quantiles of histograms",
            text,
        );
        let balance = |open, close| text.matches(open).count() == text.matches(close).count();
        self.must(
            balance('(', ')') && balance('{', '}'),
            "closed brackets",
            text,
        );

        let (selector, _) = between(text, "{", '}').expect("labels");
        let selected = selector
            .split(", ")
            .map(|label| label.split_once("=~").expect("=~"));
        let selected: Vec<_> = selected.collect();
        for (label, variable) in &selected {
            self.must(labels.contains(label), "a label of the series", label);
            self.must(
                *variable == format!("\"${label}\""),
                "the label's variable",
                variable,
            );
        }
        for label in ["instance", "pool", "tag"] {
            let is_selected = selected.iter().any(|(selected, _)| *selected == label);
            self.must(
                is_selected == labels.contains(label),
                "selected labels",
                text,
            );
        }
        let (kept, _) = between(text, "by (", ')').expect("by");
        let kept: BTreeSet<_> = kept.split(", ").collect();
        self.must(kept.is_subset(&labels), "labels of the series", text);
        self.must(
            kept.contains("le") == (kind == "histogram"),
            "le of histograms",
            text,
        );
        let mut rest = legend;
        while let Some((label, behind)) = between(rest, "{{", '}') {
            self.must(kept.contains(label), "a label that the sum keeps", legend);
            rest = behind;
        }
    }

    /// `label_values(SERIES, LABEL)`, with or without selected labels.
    fn query_of_variable(&mut self, query: &str, families: &BTreeMap<String, Family>) {
        let name = behind(query, "weirpool_").next().expect("a series");
        let (_, label) = query.rsplit_once(", ").expect("a label");
        let label = label.trim_end_matches(')');
        let Some((_, labels)) = self.series(&format!("weirpool_{name}"), families) else {
            return;
        };
        self.must(labels.contains(label), "a label of the series", query);
        if let Some((selector, _)) = between(query, "{", '}') {
            for part in selector.split(", ") {
                let (label, _) = part.split_once("=~").expect("=~");
                self.must(labels.contains(label), "a label of the series", query);
            }
        }
    }
}

#[test]
fn dashboard_shows_the_exported_families() {
    let review = Review::of(DASHBOARD, &families());
    assert_eq!(review.faults, [""; 0]);
}

/// The check above finds each kind of fault.
#[test]
fn faults_of_a_dashboard_are_found() {
    let families = families();
    for (sound, unsound) in [
        ("weirpool_used_bytes{", "weirpool_usd_bytes{"),
        ("weirpool_growths_total{", "weirpool_frees_total{"),
        ("weirpool_wait_seconds_bucket{", "weirpool_wait_seconds{"),
        ("by (pool, outcome)", "by (pool, result)"),
        ("{{outcome}}", "{{result}}"),
        ("sum by (le, pool)", "sum by (pool)"),
        ("tag=~\\\"$tag\\\"", "tag=~\\\"$tenant\\\""),
        (", tag=~\\\"$tag\\\"", ""),
        ("(weirpool_used_bytes{", "(rate(weirpool_used_bytes{"),
        ("\"uid\": \"${datasource}\"", "\"uid\": \"prometheus\""),
        ("\"unit\": \"s\"", "\"unit\": \"\""),
        ("\"id\": 3,", "\"id\": 2,"),
    ] {
        let changed = DASHBOARD.replacen(sound, unsound, 1);
        assert_ne!(changed, DASHBOARD, "{sound}");
        let review = Review::of(&changed, &families);
        assert_ne!(review.faults, [""; 0], "{sound} -> {unsound}");
    }
}
