//! What a recorder of the `metrics` crate is given.
#![cfg(feature = "metrics")]

mod common;

use common::*;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use weirpool::*;

type Values = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

/// Keeps what it is given by name and labels: the last value of gauges and counters, all of histograms.
#[derive(Default)]
struct Book {
    values: Values,
    units: Mutex<BTreeMap<String, Option<Unit>>>,
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
        panic!("a pool counts for itself, and tells sums");
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
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::new(Entry(self.values.clone(), name))
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>) {
        let known = self
            .units
            .lock()
            .unwrap()
            .insert(name.as_str().to_owned(), unit);
        assert!(known.is_none(), "{name:?} is described twice");
    }

    fn of(&self, name: &str, labels: &str) -> Vec<f64> {
        let name = format!("weirpool_{name}{{{labels}}}");
        let values = self.values.lock().unwrap();
        values.get(&name).cloned().unwrap_or_default()
    }
}

impl Recorder for Book {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
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
    let _held = pool.allocate(&stream, 4 * MIB).tag(tag).try_now().unwrap();
    drop(pool.try_allocate(&stream, 1000).unwrap());
    drop(pool.try_allocate(&stream, 1000).unwrap());
    let book = Book::default();
    with_local_recorder(&book, || {
        let mut metrics = pool.metrics("serving");
        assert!(book.values.lock().unwrap().is_empty(), "not before");
        metrics.publish();
    });
    let figures = pool.statistics();
    let gauges = [
        ("capacity_bytes", 64 * MIB),
        ("reserved_bytes", figures.reserved.current),
        ("reserved_high_bytes", figures.reserved.high),
        ("used_bytes", 4 * MIB),
        ("used_high_bytes", 4 * MIB + 1024),
        ("pending_bytes", figures.pending.current),
        ("pending_high_bytes", figures.pending.high),
        ("free_bytes", figures.free),
        ("largest_free_bytes", figures.largest_free),
        ("cached_in_lanes_bytes", 1024),
        ("lost_to_rounding_bytes", 0),
        ("releasable_bytes", figures.releasable_bytes),
        ("live_blocks", 1),
        ("waiting", 0),
        ("allocations", 3),
        ("frees", 2),
        ("growths", figures.growths),
        ("chunks_created", figures.chunks_created),
        ("remaps", 0),
        ("device_waits", 0),
        ("released_bytes", 0),
        ("events_created", figures.events_created),
        ("waits_served", 0),
        ("waits_abandoned", 0),
        ("waits_deadlocked", 0),
        ("waits_refused", 0),
        ("waits_shed", 0),
    ];
    for (name, value) in gauges {
        assert_eq!(book.of(name, "pool=serving"), [value as f64], "{name}");
    }
    assert_eq!(
        book.of("fragmentation", "pool=serving"),
        [figures.fragmentation()]
    );
    assert_eq!(book.of("grants", "pool=serving,rung=lane"), [1.0]);
    assert_eq!(book.of("grants", "pool=serving,rung=grown"), [2.0]);
    let of_tag = "pool=serving,tag=published";
    assert_eq!(book.of("tag_used_bytes", of_tag), [4.0 * MIB as f64]);
    assert_eq!(book.of("tag_allocations", of_tag), [1.0]);
    let units = book.units.lock().unwrap();
    assert_eq!(units["weirpool_used_bytes"], Some(Unit::Bytes));
    assert_eq!(units["weirpool_wait_seconds"], Some(Unit::Seconds));
}

/// Who was turned away, and who a deadlock failed, of all and by tag.
#[test]
fn who_was_not_served_is_published() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .queue_limit(1)
        .fail_deadlocks_after(us(1))
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("published: turned away");
    let _held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let mut waiting = pool.allocate(&stream, MIB).tag(tag);
    assert!(poll(&mut waiting).is_pending());
    for _ in 0..2 {
        assert!(now(pool.allocate(&stream, MIB).tag(tag)).is_err());
    }
    assert!(now(pool.allocate(&stream, MIB)).is_err());
    device.advance(us(10_000));
    assert!(poll(&mut waiting).is_ready());
    let book = Book::default();
    with_local_recorder(&book, || pool.metrics("serving").publish());
    for (name, value, of_tag) in [
        ("waits_refused", 3.0, 2.0),
        ("waits_deadlocked", 1.0, 1.0),
        ("waits_abandoned", 1.0, 1.0),
        ("waits_shed", 0.0, 0.0),
    ] {
        assert_eq!(book.of(name, "pool=serving"), [value], "{name}");
        let labels = "pool=serving,tag=published: turned away";
        assert_eq!(book.of(&format!("tag_{name}"), labels), [of_tag], "{name}");
    }
}

/// Each publication records what came since the last; nothing is recorded twice.
#[test]
fn times_are_published_once() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let wait = |micros| {
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let mut waiting = pool.allocate(&stream, 8 * MIB);
        assert!(poll(&mut waiting).is_pending());
        device.advance(us(micros));
        drop(full);
        drop(now(waiting).unwrap());
    };
    let book = Book::default();
    let mut metrics = pool.metrics("serving");
    let mut published = || {
        with_local_recorder(&book, || metrics.publish());
        book.of("wait_seconds", "pool=serving")
    };
    wait(100);
    wait(100);
    let near = |told: &[f64], micros: f64| {
        let ratio = told.iter().map(|told| told / (micros / 1e6));
        ratio.into_iter().all(|ratio| (1.0..1.07).contains(&ratio))
    };
    let first = published();
    assert!(first.len() == 2 && near(&first, 100.0), "{first:?}");
    assert_eq!(published().len(), 2);
    wait(40);
    let last = published();
    assert!(last.len() == 3 && near(&last[2..], 40.0), "{last:?}");
}
