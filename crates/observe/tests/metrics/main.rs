//! The families and values that a recorder of the `metrics` crate is given.

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod grafana;

use common::*;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use weirpool::Tag;
use weirpool_observe::{Metrics, prometheus_text};

type Values = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

/// What a family was described as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Description {
    pub(crate) kind: &'static str,
    unit: &'static str,
    help: String,
}

/// A recorder that keeps the last value of each gauge and counter, and all values of each histogram, by name and
/// labels.
#[derive(Default)]
struct Book {
    values: Values,
    families: Mutex<BTreeMap<String, Description>>,
    /// The names of the labels of each family that was published.
    labels: Mutex<BTreeMap<String, Vec<String>>>,
}

struct Entry(Values, String);

impl Entry {
    fn set(&self, value: f64) {
        self.0.lock().unwrap().insert(self.1.clone(), vec![value]);
    }
}

impl GaugeFn for Entry {
    fn increment(&self, _: f64) {
        panic!("a pool sets its gauges, and moves none");
    }
    fn decrement(&self, _: f64) {
        panic!("a pool sets its gauges, and moves none");
    }
    fn set(&self, value: f64) {
        Entry::set(self, value);
    }
}

impl CounterFn for Entry {
    fn increment(&self, _: u64) {
        panic!("a pool counts for itself, and publishes sums");
    }
    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl HistogramFn for Entry {
    fn record(&self, value: f64) {
        let mut values = self.0.lock().unwrap();
        values.entry(self.1.clone()).or_default().push(value);
    }
}

impl Book {
    fn entry(&self, key: &Key) -> Arc<Entry> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let names = key.labels().map(|label| label.key().to_owned()).collect();
        let mut all = self.labels.lock().unwrap();
        all.insert(key.name().to_owned(), names);
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::new(Entry(self.values.clone(), name))
    }

    fn describe(&self, kind: &'static str, name: &KeyName, unit: Option<Unit>, help: &str) {
        let unit = unit.expect("every family has a unit").as_str();
        let description = Description {
            kind,
            unit,
            help: help.to_owned(),
        };
        let name = name.as_str().to_owned();
        let known = self.families.lock().unwrap().insert(name, description);
        assert!(known.is_none(), "{known:?} is described twice");
    }

    fn of(&self, name: &str, labels: &str) -> Vec<f64> {
        let name = format!("weirpool_{name}{{{labels}}}");
        let values = self.values.lock().unwrap();
        values.get(&name).cloned().unwrap_or_default()
    }
}

impl Recorder for Book {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe("counter", &key, unit, &help);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe("gauge", &key, unit, &help);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe("histogram", &key, unit, &help);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.entry(key))
    }
}

#[test]
fn figures_are_published_when_asked_for() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("published");
    let _reservation = now(pool.reserve(2 * MIB)).unwrap();
    let _held = pool.allocate(&stream, 4 * MIB).tag(tag).try_now().unwrap();
    drop(pool.try_allocate(&stream, 1000).unwrap());
    drop(pool.try_allocate(&stream, 1000).unwrap());
    let book = Book::default();
    with_local_recorder(&book, || {
        let mut metrics = Metrics::new(&pool, "serving");
        assert!(book.values.lock().unwrap().is_empty(), "not before");
        metrics.publish();
    });
    let figures = pool.inspect().statistics();
    let values = [
        ("capacity_bytes", 64 * MIB),
        ("reserved_bytes", figures.reserved.current),
        ("reserved_high_bytes", figures.reserved.high),
        ("used_bytes", 6 * MIB),
        ("used_high_bytes", figures.used.high),
        ("pending_bytes", figures.pending.current),
        ("pending_high_bytes", figures.pending.high),
        ("free_bytes", figures.free),
        ("moving_bytes", 0),
        ("largest_free_bytes", figures.largest_free),
        ("cached_bytes", 1024),
        ("lost_to_rounding_bytes", 0),
        ("releasable_bytes", figures.releasable_bytes),
        ("set_aside_bytes", 2 * MIB),
        ("in_graphs_bytes", 0),
        ("evictable_bytes", 0),
        ("reservations", 1),
        ("live_blocks", 1),
        ("waiting_requests", 0),
        ("serving", 1),
        ("allocations_total", 3),
        ("allocated_bytes_total", 4 * MIB + 2048),
        ("frees_total", 2),
        ("freed_bytes_total", 2048),
        ("growths_total", figures.growths),
        ("chunks_created_total", figures.chunks_created),
        ("remapped_chunks_total", 0),
        ("device_waits_total", 0),
        ("released_bytes_total", 0),
        ("events_created_total", figures.events_created),
        ("evictions_total", 0),
        ("evicted_bytes_total", 0),
    ];
    for (name, value) in values {
        assert_eq!(book.of(name, "pool=serving"), [value as f64], "{name}");
    }
    assert_eq!(
        book.of("fragmentation_ratio", "pool=serving"),
        [figures.fragmentation()]
    );
    assert_eq!(book.of("grants_total", "pool=serving,source=lane"), [1.0]);
    let of_tag = "pool=serving,tag=published";
    assert_eq!(book.of("tag_used_bytes", of_tag), [4.0 * MIB as f64]);
    assert_eq!(book.of("tag_allocations_total", of_tag), [1.0]);
}

/// The rows of the table of metric names.
pub(crate) fn documented() -> BTreeMap<String, (Description, Vec<String>)> {
    let page = include_str!("../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, kind, labels, unit, help, _] = cells[..] else {
            panic!("a row of five cells: {row}");
        };
        let kinds = ["counter", "gauge", "histogram"];
        let description = Description {
            kind: kinds.into_iter().find(|known| *known == kind).unwrap(),
            unit: ["bytes", "count", "seconds"]
                .into_iter()
                .find(|known| *known == unit)
                .unwrap(),
            help: help.to_owned(),
        };
        let unquoted = |text: &str| text.trim_matches('`').to_owned();
        let labels = labels.split(", ").map(unquoted).collect();
        (unquoted(name), (description, labels))
    });
    rows.collect()
}

/// In a situation in which every family has a value.
#[test]
fn documented_metric_names_are_the_exported_ones() {
    let device = manual();
    let tag = Tag::new("documented");
    let pool = builder(&device, 8 * MIB).build().unwrap();
    pool.tag(tag).set_limit(Some(8 * MIB));
    let (_, stream) = stream(&device, &pool);
    for _ in 0..8 {
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let waiting = not_ready(pool.allocate(&stream, 8 * MIB).tag(tag));
        device.advance(us(10));
        drop(full);
        drop(now(waiting).unwrap());
    }
    let book = Book::default();
    with_local_recorder(&book, || Metrics::new(&pool, "serving").publish());
    let families = book.families.lock().unwrap();
    let labels = book.labels.lock().unwrap();
    let exported: BTreeMap<_, _> = families
        .iter()
        .map(|(name, description)| {
            let labels = labels.get(name).cloned().unwrap_or_default();
            (name.clone(), (description.clone(), labels))
        })
        .collect();
    assert_eq!(exported, documented());
    assert_eq!(
        labels.keys().collect::<Vec<_>>(),
        families.keys().collect::<Vec<_>>(),
        "every family that is published is described"
    );
    for (name, Description { kind, unit, .. }) in families.iter() {
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        let base = name.trim_end_matches("_total");
        for unit_in_name in ["bytes", "seconds"] {
            let has_it = base.ends_with(&format!("_{unit_in_name}"));
            assert_eq!(has_it, *unit == unit_in_name, "{name}");
        }
    }
}

#[test]
fn unserved_requests_are_published_by_outcome_and_reason() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .queue_limit(3)
        .fail_deadlocks_after(us(1))
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("published: unserved");
    let _held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let mut deadlocked = pool.allocate(&stream, MIB).tag(tag);
    let mut cancelled = pool.allocate(&stream, MIB).tag(tag);
    let mut late = pool.allocate(&stream, MIB).tag(tag).timeout(us(5));
    for waiting in [&mut deadlocked, &mut cancelled, &mut late] {
        assert!(poll(waiting).is_pending());
    }
    for _ in 0..3 {
        assert!(now(pool.allocate(&stream, MIB).tag(tag)).is_err());
    }
    drop(cancelled);
    device.advance(us(5));
    assert!(poll(&mut late).is_ready());
    device.advance(us(10_000));
    assert!(poll(&mut deadlocked).is_ready());
    let closed = {
        let mut waiting = not_ready(pool.allocate(&stream, MIB));
        pool.close();
        poll(&mut waiting)
    };
    assert!(closed.is_ready());
    let book = Book::default();
    with_local_recorder(&book, || Metrics::new(&pool, "serving").publish());
    for (name, value, of_tag) in [
        ("waits_total|outcome=served", 0.0, 0.0),
        ("waits_total|outcome=timed_out", 1.0, 1.0),
        ("waits_total|outcome=cancelled", 1.0, 1.0),
        ("waits_total|outcome=deadlocked", 1.0, 1.0),
        ("waits_total|outcome=failed", 1.0, 0.0),
        ("rejections_total|reason=queue_full", 3.0, 3.0),
        ("rejections_total|reason=shed", 0.0, 0.0),
    ] {
        let (name, label) = name.split_once('|').unwrap();
        let labels = format!("pool=serving,{label}");
        assert_eq!(book.of(name, &labels), [value], "{name} {label}");
        let labels = format!("pool=serving,tag=published: unserved,{label}");
        let of_this = book.of(&format!("tag_{name}"), &labels);
        assert_eq!(of_this, [of_tag], "{name} {label}");
    }
}

/// Each publication records the times since the last one; nothing is recorded twice.
#[test]
fn times_are_published_once() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("published: times");
    let wait = |micros| {
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let waiting = not_ready(pool.allocate(&stream, 8 * MIB).tag(tag));
        device.advance(us(micros));
        drop(full);
        drop(now(waiting).unwrap());
    };
    let book = Book::default();
    let mut metrics = Metrics::new(&pool, "serving");
    let mut published = || {
        with_local_recorder(&book, || metrics.publish());
        let of_pool = book.of("wait_seconds", "pool=serving");
        let of_tag = book.of("tag_wait_seconds", "pool=serving,tag=published: times");
        assert_eq!(of_pool, of_tag, "all waits were of the tag");
        of_pool
    };
    wait(100);
    wait(100);
    let near = |reported: &[f64], micros: f64| {
        let ratio = reported.iter().map(|reported| reported / (micros / 1e6));
        ratio.into_iter().all(|ratio| (1.0..1.07).contains(&ratio))
    };
    let first = published();
    assert!(first.len() == 2 && near(&first, 100.0), "{first:?}");
    assert_eq!(published().len(), 2);
    wait(40);
    let last = published();
    assert!(last.len() == 3 && near(&last[2..], 40.0), "{last:?}");
}

/// Returns the kind of each family of a text, and its samples: names with labels, and values.
fn read_text(text: &str) -> (BTreeMap<String, String>, BTreeMap<String, f64>) {
    let (mut kinds, mut samples) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none());
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(
                samples
                    .insert(name.to_owned(), value.parse().unwrap())
                    .is_none()
            );
        }
    }
    (kinds, samples)
}

#[test]
fn text_for_prometheus_has_the_documented_families() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("a \"text\"\n\\");
    for micros in [50, 2000] {
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let waiting = not_ready(pool.allocate(&stream, 8 * MIB).tag(tag));
        device.advance(us(micros));
        drop(full);
        drop(now(waiting).unwrap());
    }
    let text = prometheus_text(&pool, "serving");
    let (kinds, samples) = read_text(&text);
    let documented = documented().into_iter();
    let documented: BTreeMap<_, _> = documented
        .map(|(name, (description, _))| (name, description.kind.to_owned()))
        .collect();
    assert_eq!(kinds, documented);
    let value = |name: &str| samples[&format!("weirpool_{name}")];
    assert_eq!(value("capacity_bytes{pool=\"serving\"}"), 8.0 * MIB as f64);
    assert_eq!(
        value("waits_total{pool=\"serving\",outcome=\"served\"}"),
        2.0
    );
    let labels = r#"pool="serving",tag="a \"text\"\n\\""#;
    assert_eq!(value(&format!("tag_allocations_total{{{labels}}}")), 2.0);
    // Buckets have all times up to their bounds.
    let bucket = |le: &str| value(&format!("tag_wait_seconds_bucket{{{labels},le=\"{le}\"}}"));
    let buckets = ["0.00003", "0.0001", "0.001", "0.003", "+Inf"].map(bucket);
    assert_eq!(buckets, [0.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(value(&format!("tag_wait_seconds_count{{{labels}}}")), 2.0);
    let sum = value(&format!("tag_wait_seconds_sum{{{labels}}}"));
    assert!((sum - 0.00205).abs() < 1e-6, "{sum}");
}

#[test]
fn text_for_prometheus_is_bounded() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    let held: Vec<_> = (0..2000)
        .map(|number| {
            let tag = Tag::new(&format!("bounded {number} {}", "\u{e9}".repeat(5000)));
            now(pool.allocate(&stream, 512).tag(tag)).unwrap()
        })
        .collect();
    let text = prometheus_text(&pool, "serving");
    assert!(text.len() < 600 << 10, "{} bytes", text.len());
    let (_, samples) = read_text(&text);
    let tags = samples
        .keys()
        .filter(|name| name.starts_with("weirpool_tag_used_bytes"));
    assert_eq!(tags.count(), 100);
    // What a recorder gets is bounded, too.
    let book = Book::default();
    with_local_recorder(&book, || Metrics::new(&pool, "serving").publish());
    let values = book.values.lock().unwrap();
    let tags = values.keys().filter(|name| name.contains("tag_used_bytes"));
    assert_eq!(tags.count(), 100);
    drop(held);
}

/// The rules of `docs/alerts.yml` name exported families, and the page has an alert for each.
#[test]
fn alerts_are_of_exported_families() {
    let rules = include_str!("../../docs/alerts.yml");
    let known = documented();
    let names = rules.split("weirpool_").skip(1);
    let names: Vec<_> = names
        .map(|rest| {
            rest.split(|c: char| !c.is_ascii_lowercase() && c != '_')
                .next()
                .unwrap()
        })
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(known.contains_key(&format!("weirpool_{name}")), "{name}");
    }
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<_> = alerts.collect();
    let expected = [
        "DeviceLost",
        "Deadlock",
        "DeviceStalled",
        "Starving",
        "NearlyFull",
    ];
    assert_eq!(alerts, expected.map(|name| format!("Weirpool{name}")));
}
