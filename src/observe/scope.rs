//! What happens between two moments.

use super::Hits;
use crate::lane::Counts;
use crate::measure::{Mark, WaitStatistics};
use crate::queue::Presence;
use crate::sync::plain::Arc;
use std::fmt;
use std::time::Duration;

/// Tells what happened in a pool since it was made, on whatever thread: made by
/// [`Pool::statistics_scope`](crate::Pool::statistics_scope), after the statistics adaptor of RMM.
///
/// Scopes are independent of each other: they may be nested, or overlap, and each has its own highest.
/// While none is open nothing is paid for them, and while some are, an allocation pays nothing more. A
/// scope is a handle of the pool, which lives as long.
#[must_use = "a scope is read, or ended with what happened in it"]
pub struct StatisticsScope {
    presence: Arc<Presence>,
    mark: Mark,
    before: Before,
}

/// The figures when a scope began.
#[derive(Clone, Copy, Debug)]
struct Before {
    counts: Counts,
    hits: Hits,
    waits: WaitStatistics,
}

/// What happened in a [`StatisticsScope`]; bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ScopeStatistics {
    /// In blocks that somebody owned when the scope began.
    pub used_before: u64,
    /// In blocks that somebody owned at the end, or when it was read.
    pub used_after: u64,
    /// The highest that `used` was in between, what was used before included. A bound, exact while one
    /// stream is used: see [`Statistics::used`](crate::Statistics::used).
    pub peak: u64,
    /// Blocks granted, in number.
    pub allocations: u64,
    /// Bytes of those.
    pub allocated: u64,
    /// Blocks freed, in number, whenever they were allocated.
    pub frees: u64,
    /// Bytes of those.
    pub freed: u64,
    /// Grants by the source that gave them.
    pub hits: Hits,
    /// Requests that waited, and were served.
    pub waits: u64,
    /// Their waits together.
    pub waited: Duration,
}

impl ScopeStatistics {
    /// What was allocated and not freed, in bytes; zero when more was freed than allocated.
    pub fn retained(&self) -> u64 {
        self.allocated.saturating_sub(self.freed)
    }

    /// How far the peak was above what was used before, in bytes.
    pub fn peak_growth(&self) -> u64 {
        self.peak.saturating_sub(self.used_before)
    }
}

impl StatisticsScope {
    pub(crate) fn new(presence: Arc<Presence>) -> Self {
        let service = &presence.service;
        let (mark, counts) = service.driver.begin();
        let before = Before {
            counts,
            hits: Hits::of_engine(&service.driver, &counts),
            waits: service.queue.statistics(),
        };
        Self {
            presence,
            mark,
            before,
        }
    }

    /// What happened so far.
    pub fn read(&self) -> ScopeStatistics {
        let Before {
            counts: before,
            hits,
            waits,
        } = &self.before;
        let service = &self.presence.service;
        let (after, high) = service.driver.counts_since(self.mark);
        let waits_after = service.queue.statistics();
        ScopeStatistics {
            used_before: before.used(),
            used_after: after.used(),
            peak: high.max(after.used()),
            allocations: after.allocations() - before.allocations(),
            allocated: after.granted.wrapping_sub(before.granted),
            frees: after.frees - before.frees,
            freed: after.freed.wrapping_sub(before.freed),
            hits: Hits::of_engine(&service.driver, &after).since(hits),
            waits: waits_after.served - waits.served,
            waited: waits_after.total.saturating_sub(waits.total),
        }
    }

    /// Ends the scope, as dropping it does, and tells what happened in it.
    pub fn end(self) -> ScopeStatistics {
        self.read()
    }
}

impl Drop for StatisticsScope {
    fn drop(&mut self) {
        self.presence.service.driver.end(self.mark);
    }
}

impl fmt::Debug for StatisticsScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatisticsScope")
            .field(&self.read())
            .finish()
    }
}
