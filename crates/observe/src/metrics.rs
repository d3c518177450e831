//! The figures for a recorder of the `metrics` crate.
//!
//! They are published when the caller asks, and not by the pool on its own account: the exporter knows how often
//! figures are collected, and a pool that is never asked pays nothing. [`POOL`] and [`TAG`] are the only lists of the
//! published figures: names, units, help and values.

use ::metrics::{
    Label, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use weirpool::{
    Histogram, Pool, Source, Statistics, Tag, TagStatistics, WaitOutcome, WaitStatistics,
};

/// A metric family, whose values come from figures `F`.
pub(crate) struct Family<F: 'static> {
    pub(crate) name: &'static str,
    unit: Unit,
    pub(crate) help: &'static str,
    pub(crate) value: Value<F>,
}

pub(crate) enum Value<F: 'static> {
    /// Nothing is published for `None`.
    Gauge(fn(&F) -> Option<f64>),
    Counter(fn(&F) -> u64),
    /// A counter for each value of a label.
    CounterBy(&'static str, fn(&F) -> Vec<(&'static str, u64)>),
    /// The times recorded since the last publication.
    Histogram(fn(&F) -> &Histogram),
}

/// What the pool's families are read from.
pub(crate) struct Figures {
    statistics: Statistics,
    expected_wait: Option<Duration>,
    is_serving: bool,
}

impl Figures {
    pub(crate) fn of(pool: &Pool) -> Self {
        let health = pool.inspect().health();
        Self {
            statistics: pool.inspect().statistics(),
            expected_wait: pool.inspect().expected_wait(0),
            is_serving: health.fault.is_none() && !health.is_closed,
        }
    }
}

/// The most tags with figures of their own.
const TAGS: usize = 100;
/// The most bytes of a label.
const LABEL: usize = 100;

/// Returns the figures of the tags that were made first: the others are in those of the pool.
pub(crate) fn first_tags(pool: &Pool) -> Vec<TagStatistics> {
    let mut tags = pool.inspect().statistics_by_tag();
    tags.truncate(TAGS);
    tags
}

/// Returns the beginning of a name.
pub(crate) fn label(name: &str) -> &str {
    let is_boundary = |at: &usize| name.is_char_boundary(*at);
    let end = (0..=name.len().min(LABEL)).rev().find(is_boundary);
    &name[..end.unwrap_or(0)]
}

/// Builds a table of families: `kind(label) name unit help value`.
macro_rules! families {
    ($($kind:ident $(($label:literal))? $name:literal $unit:ident $help:literal $value:expr;)*) => {
        &[$(Family {
            name: concat!("weirpool_", $name),
            unit: Unit::$unit,
            help: $help,
            value: Value::$kind($($label,)? $value),
        }),*]
    };
}

pub(crate) const POOL: &[Family<Figures>] = families! {
    Gauge "capacity_bytes" Bytes "the most that may be reserved"
        |f| bytes(f.statistics.capacity);
    Gauge "leased_bytes" Bytes "the most that may be reserved now: the capacity, unless a broker leases less"
        |f| bytes(f.statistics.leased);
    Gauge "reserved_bytes" Bytes "reserved from the device"
        |f| bytes(f.statistics.reserved.current);
    Gauge "reserved_high_bytes" Bytes "high-water mark of the reserved bytes"
        |f| bytes(f.statistics.reserved.high);
    Gauge "used_bytes" Bytes "in live blocks, or set aside for reservations"
        |f| bytes(f.statistics.used.current);
    Gauge "used_high_bytes" Bytes "high-water mark of the used bytes"
        |f| bytes(f.statistics.used.high);
    Gauge "pending_bytes" Bytes "freed, behind device work that is not known to be complete"
        |f| bytes(f.statistics.pending.current);
    Gauge "pending_high_bytes" Bytes "high-water mark of the pending bytes"
        |f| bytes(f.statistics.pending.high);
    Gauge "free_bytes" Bytes "available to any stream immediately"
        |f| bytes(f.statistics.free);
    Gauge "moving_bytes" Bytes "claimed by a thread that maps or releases memory"
        |f| bytes(f.statistics.moving);
    Gauge "largest_free_bytes" Bytes "the largest free block"
        |f| bytes(f.statistics.largest_free);
    Gauge "cached_bytes" Bytes "cached by lanes for their own streams"
        |f| bytes(f.statistics.cached_in_lanes);
    Gauge "lost_to_rounding_bytes" Bytes "granted to live blocks beyond their requests"
        |f| bytes(f.statistics.lost_to_rounding);
    Gauge "releasable_bytes" Bytes "in chunks that are wholly free"
        |f| bytes(f.statistics.releasable_bytes);
    Gauge "set_aside_bytes" Bytes "held by reservations and not allocated"
        |f| bytes(f.statistics.set_aside);
    Gauge "in_graphs_bytes" Bytes "granted to captured graphs, for as long as they live"
        |f| bytes(f.statistics.in_graphs);
    Gauge "charged_bytes" Bytes "held outside of the pool, and charged against its capacity"
        |f| bytes(f.statistics.charged);
    Gauge "foreign_bytes" Bytes "of memory that others own, in adopted blocks"
        |f| bytes(f.statistics.foreign);
    Gauge "evictable_bytes" Bytes "in blocks that can be evicted now"
        |f| bytes(f.statistics.evictable);
    Gauge "reservations" Count "live reservations"
        |f| count(f.statistics.reservations as u64);
    Gauge "live_blocks" Count "blocks that are allocated and not freed"
        |f| count(f.statistics.live_blocks);
    Gauge "fragmentation_ratio" Count "share of the free memory outside the largest free block"
        |f| Some(f.statistics.fragmentation());
    Gauge "waiting_requests" Count "requests that wait for memory"
        |f| count(f.statistics.waits.waiting as u64);
    Gauge "expected_wait_seconds" Seconds "expected wait of a small request that joins the queue now; absent until eight requests were served after a wait"
        |f| f.expected_wait.map(|wait| wait.as_secs_f64());
    Gauge "serving" Count "1 until the device fails or the pool is closed, also while it admits no more requests"
        |f| count(f.is_serving.into());
    Counter "allocations_total" Count "blocks granted"
        |f| f.statistics.allocations;
    Counter "allocated_bytes_total" Bytes "bytes of the blocks granted"
        |f| f.statistics.allocated;
    Counter "frees_total" Count "blocks freed"
        |f| f.statistics.frees;
    Counter "freed_bytes_total" Bytes "bytes of the blocks freed"
        |f| f.statistics.freed;
    CounterBy("source") "grants_total" Count "blocks granted, by the source of their memory"
        |f| grants(&f.statistics);
    CounterBy("outcome") "waits_total" Count "waits that ended, by their outcome"
        |f| outcomes(&f.statistics.waits);
    CounterBy("reason") "rejections_total" Count "requests rejected before they waited, by reason"
        |f| rejections(&f.statistics.waits);
    Counter "growths_total" Count "times that memory was mapped, or allocated from the device"
        |f| f.statistics.growths;
    Counter "chunks_created_total" Count "chunks allocated from the device"
        |f| f.statistics.chunks_created;
    Counter "remapped_chunks_total" Count "chunks mapped to another address"
        |f| f.statistics.remaps;
    Counter "device_waits_total" Count "device-side waits inserted before the reuse of another stream's memory"
        |f| f.statistics.device_waits;
    Counter "released_bytes_total" Bytes "released to the device"
        |f| f.statistics.released;
    Counter "events_created_total" Count "device events created; constant in a steady state"
        |f| f.statistics.events_created;
    Counter "evictions_total" Count "blocks that were evicted"
        |f| f.statistics.evictions;
    Counter "evicted_bytes_total" Bytes "bytes of the blocks that were evicted"
        |f| f.statistics.evicted;
    Histogram "wait_seconds" Seconds "how long requests waited that were served"
        |f| &f.statistics.waits.times;
    Histogram "pending_age_seconds" Seconds "from the recording of a free's event until it was seen complete"
        |f| &f.statistics.pending_ages;
};

pub(crate) const TAG: &[Family<TagStatistics>] = families! {
    Gauge "tag_used_bytes" Bytes "in live blocks and reservations of the tag"
        |f| bytes(f.used.current);
    Gauge "tag_used_high_bytes" Bytes "high-water mark of the tag's used bytes"
        |f| bytes(f.used.high);
    Gauge "tag_limit_bytes" Bytes "the most that the tag may use; absent if it has no limit"
        |f| f.limit.and_then(bytes);
    Gauge "tag_waiting_requests" Count "requests of the tag that wait, in the queue or at its limit"
        |f| count(f.waits.waiting as u64);
    Counter "tag_allocations_total" Count "blocks and reservations granted to the tag"
        |f| f.allocations;
    Counter "tag_frees_total" Count "blocks and reservations of the tag that ended"
        |f| f.frees;
    CounterBy("outcome") "tag_waits_total" Count "waits of the tag that ended, by their outcome"
        |f| outcomes(&f.waits);
    CounterBy("reason") "tag_rejections_total" Count "requests of the tag rejected before they waited, by reason"
        |f| rejections(&f.waits);
    Histogram "tag_wait_seconds" Seconds "how long requests of the tag waited that were served"
        |f| &f.waits.times;
};

fn bytes(bytes: u64) -> Option<f64> {
    Some(bytes as f64)
}

fn count(count: u64) -> Option<f64> {
    Some(count as f64)
}

fn grants(statistics: &Statistics) -> Vec<(&'static str, u64)> {
    let sources = Source::ALL.iter();
    sources
        .map(|source| (source.name(), statistics.hits.of(*source)))
        .collect()
}

/// Requests that a full queue refused are among the [rejections].
fn outcomes(waits: &WaitStatistics) -> Vec<(&'static str, u64)> {
    let outcomes = WaitOutcome::ALL.iter();
    outcomes
        .filter(|outcome| **outcome != WaitOutcome::Refused)
        .map(|outcome| (outcome.name(), waits.of(*outcome)))
        .collect()
}

fn rejections(waits: &WaitStatistics) -> Vec<(&'static str, u64)> {
    vec![("queue_full", waits.refused), ("shed", waits.shed)]
}

impl<F> Family<F> {
    fn describe(&self) {
        let Self {
            name, unit, help, ..
        } = *self;
        match self.value {
            Value::Gauge(_) => describe_gauge!(name, unit, help),
            Value::Counter(_) | Value::CounterBy(..) => describe_counter!(name, unit, help),
            Value::Histogram(_) => describe_histogram!(name, unit, help),
        }
    }

    /// Publishes the value; of times, those since the figures `before`.
    fn publish(&self, figures: &F, before: Option<&F>, labels: &[Label]) {
        let name = self.name;
        match self.value {
            Value::Gauge(value) => {
                if let Some(value) = value(figures) {
                    gauge!(name, labels.iter()).set(value);
                }
            }
            Value::Counter(value) => counter!(name, labels.iter()).absolute(value(figures)),
            Value::CounterBy(label, values) => {
                for (value, count) in values(figures) {
                    let mut labels = labels.to_vec();
                    labels.push(Label::from_static_parts(label, value));
                    counter!(name, labels.iter()).absolute(count);
                }
            }
            Value::Histogram(times) => {
                let recorder = histogram!(name, labels.iter());
                let nothing = Histogram::default();
                let since = times(figures).since(before.map_or(&nothing, times));
                for bucket in since.buckets() {
                    let count = usize::try_from(bucket.count).unwrap_or(usize::MAX);
                    recorder.record_many(bucket.to.as_secs_f64(), count);
                }
            }
        }
    }
}

/// Publishes a pool's figures to the installed recorder of the [`metrics`](https://docs.rs/metrics) crate. It is a handle
/// of the pool and keeps it alive.
///
/// Names and units follow Prometheus: base units in the name, and `_total` for counters. Every family has the label
/// `pool`; those of tags also `tag`. Published are the 100 tags that were made first, with up to 100 bytes of their names.
/// Each publication records in the histograms the times since the last one.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_observe::Metrics;
/// # let pool = Pool::builder(SimDevice::new()).build()?;
/// let mut metrics = Metrics::new(&pool, "serving");
/// metrics.publish(); // whenever the figures are collected, for example every ten seconds
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc = include_str!("../docs/metrics.md")]
pub struct Metrics {
    pool: Pool,
    name: SharedString,
    /// The figures of the last publication.
    last: Option<Figures>,
    last_of_tags: BTreeMap<Tag, TagStatistics>,
}

impl Metrics {
    /// Returns a publisher of the pool's figures, with the label `pool = name`. It publishes only when
    /// [`publish`](Self::publish) is called.
    pub fn new(pool: &Pool, name: impl Into<String>) -> Self {
        Self {
            pool: pool.clone(),
            name: name.into().into(),
            last: None,
            last_of_tags: BTreeMap::new(),
        }
    }

    /// Publishes the current figures, and the times that were recorded since the last publication.
    ///
    /// Takes some microseconds, and for histograms as long as the recorder does. The recorder is called while the pool
    /// holds no lock.
    pub fn publish(&mut self) {
        if self.last.is_none() {
            POOL.iter().for_each(Family::describe);
            TAG.iter().for_each(Family::describe);
        }
        let figures = Figures::of(&self.pool);
        let mut labels = vec![Label::new("pool", self.name.clone())];
        for family in POOL {
            family.publish(&figures, self.last.as_ref(), &labels);
        }
        self.last = Some(figures);
        for figures in first_tags(&self.pool) {
            labels.truncate(1);
            labels.push(Label::new("tag", label(figures.tag.name())));
            let last = self.last_of_tags.get(&figures.tag);
            for family in TAG {
                family.publish(&figures, last, &labels);
            }
            self.last_of_tags.insert(figures.tag, figures);
        }
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Metrics>();
};

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("pool", &self.name)
            .finish_non_exhaustive()
    }
}
