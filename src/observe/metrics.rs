//! The figures for a recorder of the `metrics` crate.
//!
//! They are published when the user says so, and not by the pool on its own account: who exports knows
//! how often figures are collected, and a pool that nobody asks pays nothing.

use super::TagStatistics;
use crate::driver::{Source, Statistics};
use crate::measure::{Histogram, Level};
use crate::queue::Presence;
use crate::sync::plain::Arc;
use ::metrics::{SharedString, Unit, counter, gauge, histogram};
use std::fmt;

/// Publishes a pool's figures to the recorder of the [`metrics`](https://docs.rs/metrics) crate that is
/// installed: made by [`Pool::metrics`](crate::Pool::metrics). A handle of the pool, which lives as long.
///
/// Each has the label `pool`. What is in bytes ends in `_bytes`, what is in seconds in `_seconds`.
///
/// | kind | names, after `weirpool_` |
/// |---|---|
/// | gauges | `capacity_bytes`, `reserved_bytes`, `reserved_high_bytes`, `used_bytes`, `used_high_bytes`, `pending_bytes`, `pending_high_bytes`, `free_bytes`, `largest_free_bytes`, `cached_in_lanes_bytes`, `lost_to_rounding_bytes`, `releasable_bytes`, `fragmentation`, `live_blocks`, `waiting` |
/// | counters | `allocations`, `frees`, `waits_served`, `waits_abandoned`, `waits_deadlocked`, `waits_refused`, `waits_shed`, `growths`, `chunks_created`, `remaps`, `device_waits`, `released_bytes`, `events_created` |
/// | counters with the label `source` | `grants` |
/// | histograms | `wait_seconds`, `pending_age_seconds`: each publication records what came since the last |
/// | with the label `tag` | gauges `tag_used_bytes`, `tag_used_high_bytes`, `tag_waiting`; counters `tag_allocations`, `tag_frees`, `tag_waits_served`, `tag_waits_abandoned`, `tag_waits_deadlocked`, `tag_waits_refused`, `tag_waits_shed` |
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let pool = Pool::builder(SimDevice::new()).build()?;
/// let mut metrics = pool.metrics("serving");
/// metrics.publish(); // whenever the figures are collected: every ten seconds, say
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Metrics {
    presence: Arc<Presence>,
    pool: SharedString,
    is_described: bool,
    /// What was published of times that were recorded.
    wait_times: Histogram,
    pending_ages: Histogram,
}

impl Metrics {
    pub(crate) fn new(presence: Arc<Presence>, name: String) -> Self {
        Self {
            presence,
            pool: name.into(),
            is_described: false,
            wait_times: Histogram::default(),
            pending_ages: Histogram::default(),
        }
    }

    /// Publishes the figures of now, and the times that were recorded since the last publication.
    ///
    /// Takes some microseconds, and for histograms as long as the recorder does. The recorder is called
    /// while the pool holds no lock.
    pub fn publish(&mut self) {
        if !std::mem::replace(&mut self.is_described, true) {
            describe();
        }
        let service = &self.presence.service;
        let figures = service.driver.statistics();
        self.publish_levels(&figures);
        self.publish_counts(&figures);
        for tag in TagStatistics::of_all(&service.queue.accounts) {
            self.publish_tag(&tag);
        }
        let (wait_times, pending_ages) = (figures.waits.times, figures.pending_ages);
        self.record("weirpool_wait_seconds", &wait_times.since(&self.wait_times));
        self.record(
            "weirpool_pending_age_seconds",
            &pending_ages.since(&self.pending_ages),
        );
        (self.wait_times, self.pending_ages) = (wait_times, pending_ages);
    }

    fn publish_levels(&self, figures: &Statistics) {
        let level = |name: &'static str, high: &'static str, level: Level| {
            self.gauge(name, level.current as f64);
            self.gauge(high, level.high as f64);
        };
        level(
            "weirpool_reserved_bytes",
            "weirpool_reserved_high_bytes",
            figures.reserved,
        );
        level(
            "weirpool_used_bytes",
            "weirpool_used_high_bytes",
            figures.used,
        );
        level(
            "weirpool_pending_bytes",
            "weirpool_pending_high_bytes",
            figures.pending,
        );
        for (name, value) in [
            ("weirpool_capacity_bytes", figures.capacity),
            ("weirpool_free_bytes", figures.free),
            ("weirpool_largest_free_bytes", figures.largest_free),
            ("weirpool_cached_in_lanes_bytes", figures.cached_in_lanes),
            ("weirpool_lost_to_rounding_bytes", figures.lost_to_rounding),
            ("weirpool_releasable_bytes", figures.releasable_bytes),
            ("weirpool_live_blocks", figures.live_blocks),
            ("weirpool_waiting", figures.waits.waiting as u64),
        ] {
            self.gauge(name, value as f64);
        }
        self.gauge("weirpool_fragmentation", figures.fragmentation());
    }

    fn publish_counts(&self, figures: &Statistics) {
        for (name, value) in [
            ("weirpool_allocations", figures.allocations),
            ("weirpool_frees", figures.frees),
            ("weirpool_waits_served", figures.waits.served),
            ("weirpool_waits_abandoned", figures.waits.abandoned),
            ("weirpool_waits_deadlocked", figures.waits.deadlocked),
            ("weirpool_waits_refused", figures.waits.refused),
            ("weirpool_waits_shed", figures.waits.shed),
            ("weirpool_growths", figures.growths),
            ("weirpool_handles_created", figures.chunks_created),
            ("weirpool_remaps", figures.remaps),
            ("weirpool_device_waits", figures.device_waits),
            ("weirpool_released_bytes", figures.released),
            ("weirpool_events_created", figures.events_created),
        ] {
            counter!(name, "pool" => self.pool.clone()).absolute(value);
        }
        for source in Source::ALL {
            let (pool, source_name) = (self.pool.clone(), source.name());
            counter!("weirpool_grants", "pool" => pool, "rung" => source_name)
                .absolute(figures.hits.of(source));
        }
    }

    fn publish_tag(&self, figures: &TagStatistics) {
        let tag = figures.tag.name();
        for (name, value) in [
            ("weirpool_tag_used_bytes", figures.used.current),
            ("weirpool_tag_used_high_bytes", figures.used.high),
            ("weirpool_tag_waiting", figures.waits.waiting as u64),
        ] {
            gauge!(name, "pool" => self.pool.clone(), "tag" => tag).set(value as f64);
        }
        if let Some(limit) = figures.limit {
            gauge!("weirpool_tag_limit_bytes", "pool" => self.pool.clone(), "tag" => tag)
                .set(limit as f64);
        }
        for (name, value) in [
            ("weirpool_tag_allocations", figures.allocations),
            ("weirpool_tag_frees", figures.frees),
            ("weirpool_tag_waits_served", figures.waits.served),
            ("weirpool_tag_waits_abandoned", figures.waits.abandoned),
            ("weirpool_tag_waits_deadlocked", figures.waits.deadlocked),
            ("weirpool_tag_waits_refused", figures.waits.refused),
            ("weirpool_tag_waits_shed", figures.waits.shed),
        ] {
            counter!(name, "pool" => self.pool.clone(), "tag" => tag).absolute(value);
        }
    }

    fn gauge(&self, name: &'static str, value: f64) {
        gauge!(name, "pool" => self.pool.clone()).set(value);
    }

    fn record(&self, name: &'static str, times: &Histogram) {
        let recorded = histogram!(name, "pool" => self.pool.clone());
        for bucket in times.buckets() {
            let count = usize::try_from(bucket.count).unwrap_or(usize::MAX);
            recorded.record_many(bucket.to.as_secs_f64(), count);
        }
    }
}

/// What units cannot be read off the names, and what a figure means where the name does not say it.
fn describe() {
    use ::metrics::{describe_counter, describe_gauge, describe_histogram};
    for (name, meaning) in [
        ("weirpool_capacity_bytes", "what may be held at most"),
        ("weirpool_reserved_bytes", "held from the device"),
        ("weirpool_used_bytes", "in blocks that somebody owns"),
        (
            "weirpool_pending_bytes",
            "given back, behind work that is not known to be complete",
        ),
        ("weirpool_free_bytes", "any stream can have it at once"),
        ("weirpool_largest_free_bytes", "the largest free block"),
        (
            "weirpool_cached_in_lanes_bytes",
            "kept for the stream that freed it",
        ),
        (
            "weirpool_lost_to_rounding_bytes",
            "granted to live blocks and not asked for",
        ),
        (
            "weirpool_releasable_bytes",
            "in handles that are wholly free",
        ),
        ("weirpool_tag_used_bytes", "in live blocks of a tag"),
        (
            "weirpool_tag_limit_bytes",
            "what a tag may have, if that is limited",
        ),
    ] {
        describe_gauge!(name, Unit::Bytes, meaning);
    }
    describe_gauge!(
        "weirpool_fragmentation",
        "the share of free memory outside the largest free block"
    );
    describe_gauge!("weirpool_waiting", Unit::Count, "requests that wait now");
    for (name, meaning) in [
        ("weirpool_grants", "grants by the rung that gave them"),
        (
            "weirpool_waits_abandoned",
            "requests that waited, and were not served",
        ),
        (
            "weirpool_waits_deadlocked",
            "those of them that failed by a knot",
        ),
        (
            "weirpool_waits_refused",
            "requests that were turned away: the queue was full",
        ),
        (
            "weirpool_waits_shed",
            "requests that were turned away: they would have waited too long",
        ),
    ] {
        describe_counter!(name, Unit::Count, meaning);
    }
    describe_histogram!(
        "weirpool_wait_seconds",
        Unit::Seconds,
        "how long requests waited that were served"
    );
    describe_histogram!(
        "weirpool_pending_age_seconds",
        Unit::Seconds,
        "from the event of a free to its being seen complete"
    );
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}
