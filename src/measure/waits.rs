//! How requests waited.

use super::histogram::{Histogram, Recorder};
use crate::sync::{Count, plain::OnceLock};
use std::time::Duration;

/// How requests waited, on the device's clock: of a pool, a stream or a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WaitStatistics {
    /// Number of requests that are waiting.
    pub waiting: usize,
    /// Number of requests that waited and were served.
    pub served: u64,
    /// Number of requests that waited and were not served: cancelled, timed out, or failed.
    pub abandoned: u64,
    /// Number of those that failed by a [deadlock](crate::PoolBuilder::fail_deadlocks_after), in the queue or at the limit of
    /// their tag.
    pub deadlocked: u64,
    /// Number of requests rejected before they waited, because the queue was
    /// [full](crate::PoolBuilder::queue_limit).
    pub refused: u64,
    /// Number of requests rejected before they waited, because their expected wait exceeded their
    /// [timeout](crate::PoolBuilder::load_shedding).
    pub shed: u64,
    /// How long the served requests waited.
    pub times: Histogram,
}

impl WaitStatistics {
    /// Returns these figures with the counters since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            waiting: self.waiting,
            served: self.served.saturating_sub(earlier.served),
            abandoned: self.abandoned.saturating_sub(earlier.abandoned),
            deadlocked: self.deadlocked.saturating_sub(earlier.deadlocked),
            refused: self.refused.saturating_sub(earlier.refused),
            shed: self.shed.saturating_sub(earlier.shed),
            times: self.times.since(&earlier.times),
        }
    }
}

/// Where waits are counted, for a pool, a stream or a tag.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    waiting: Count,
    served: Count,
    abandoned: Count,
    deadlocked: Count,
    refused: Count,
    shed: Count,
    /// Made with the first wait that is recorded: most streams and tags never wait.
    times: OnceLock<Box<Recorder>>,
}

impl Waits {
    pub(crate) fn begin(&self) {
        self.waiting.add(1);
    }

    /// Ends a wait that has begun: with a grant after `waited`, or without one.
    pub(crate) fn end(&self, waited: Option<Duration>) {
        match waited {
            Some(waited) => {
                self.times.get_or_init(Box::default).record(waited);
                self.served.add(1);
            }
            None => self.abandoned.add(1),
        }
        self.waiting.subtract(1);
    }

    /// A wait that has begun is about to fail by a deadlock.
    pub(crate) fn note_deadlocked(&self) {
        self.deadlocked.add(1);
    }

    /// A wait does not begin, because the queue is full.
    pub(crate) fn note_refused(&self) {
        self.refused.add(1);
    }

    /// A wait does not begin, because it would take too long.
    pub(crate) fn note_shed(&self) {
        self.shed.add(1);
    }

    /// Returns the number of requests that are waiting.
    pub(crate) fn waiting(&self) -> usize {
        usize::try_from(self.waiting.get()).unwrap_or(usize::MAX)
    }

    /// Returns what was counted so far. A request that leaves during the read may be counted as waiting and as served.
    pub(crate) fn statistics(&self) -> WaitStatistics {
        let times = self.times.get().map(|times| times.histogram());
        WaitStatistics {
            waiting: self.waiting(),
            served: self.served.get(),
            abandoned: self.abandoned.get(),
            deadlocked: self.deadlocked.get(),
            refused: self.refused.get(),
            shed: self.shed.get(),
            times: times.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_counted_once_under_its_outcome() {
        let waits = Waits::default();
        (0..3).for_each(|_| waits.begin());
        waits.end(Some(Duration::from_micros(5)));
        waits.end(None);
        waits.note_deadlocked();
        waits.note_refused();
        waits.note_shed();
        let figures = waits.statistics();
        assert_eq!(
            (figures.waiting, figures.served, figures.abandoned),
            (1, 1, 1)
        );
        assert_eq!(
            (figures.deadlocked, figures.refused, figures.shed),
            (1, 1, 1)
        );
        assert_eq!(figures.times.longest(), Duration::from_micros(5));
        let since = figures.since(&figures);
        assert_eq!(
            (since.waiting, since.served, since.times.count()),
            (1, 0, 0)
        );
    }
}
