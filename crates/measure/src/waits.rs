//! How requests waited.

use crate::histogram::{Histogram, Recorder};
use std::fmt;
use std::time::Duration;
use weirpool_sync::{Count, plain::OnceLock};

/// How a wait for memory ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// The request was granted.
    Served,
    /// The request's timeout or deadline passed.
    TimedOut,
    /// The request's future was dropped: its caller was cancelled, or its client disconnected.
    Cancelled,
    /// The request failed by a deadlock (`PoolBuilder::fail_deadlocks_after`), in the queue or at the limit of its
    /// tag.
    Deadlocked,
    /// The request failed with another error: the pool was closed, the device failed, or the request can never fit any
    /// more.
    Failed,
    /// The request lost its place in the full queue to one of a tag below its share.
    Refused,
}

impl WaitOutcome {
    /// Every outcome.
    pub const ALL: [Self; 6] = [
        Self::Served,
        Self::TimedOut,
        Self::Cancelled,
        Self::Deadlocked,
        Self::Failed,
        Self::Refused,
    ];

    /// Returns the name of the outcome in metrics and traces, in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Deadlocked => "deadlocked",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// How requests waited, on the device's clock: of a pool, a stream or a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WaitStatistics {
    /// Number of requests that are waiting.
    pub waiting: usize,
    /// Number of requests that waited and were granted.
    pub served: u64,
    /// Number of requests that waited until their timeout or deadline.
    pub timed_out: u64,
    /// Number of requests that waited until their future was dropped.
    pub cancelled: u64,
    /// Number of requests that waited and failed by a deadlock (`PoolBuilder::fail_deadlocks_after`), in the queue
    /// or at the limit of their tag.
    pub deadlocked: u64,
    /// Number of requests that waited and failed with another error.
    pub failed: u64,
    /// Number of requests rejected because the queue was full (`PoolBuilder::queue_limit`): as they arrived, or while
    /// they waited, in favour of a tag below its share.
    pub refused: u64,
    /// Number of requests rejected before they waited, because their expected wait exceeded their timeout
    /// (`PoolBuilder::load_shedding`).
    pub shed: u64,
    /// How long the served requests waited.
    pub times: Histogram,
}

impl WaitStatistics {
    /// Returns the number of waits that ended with `outcome`. Requests that were [refused](Self::refused) as they arrived are
    /// among those that were refused.
    pub fn of(&self, outcome: WaitOutcome) -> u64 {
        match outcome {
            WaitOutcome::Served => self.served,
            WaitOutcome::TimedOut => self.timed_out,
            WaitOutcome::Cancelled => self.cancelled,
            WaitOutcome::Deadlocked => self.deadlocked,
            WaitOutcome::Failed => self.failed,
            WaitOutcome::Refused => self.refused,
        }
    }

    /// Returns the number of requests that waited and were not served, for any reason but a full queue.
    pub fn unserved(&self) -> u64 {
        self.timed_out + self.cancelled + self.deadlocked + self.failed
    }

    /// Returns these figures with the counters since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            waiting: self.waiting,
            served: self.served.saturating_sub(earlier.served),
            timed_out: self.timed_out.saturating_sub(earlier.timed_out),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
            deadlocked: self.deadlocked.saturating_sub(earlier.deadlocked),
            failed: self.failed.saturating_sub(earlier.failed),
            refused: self.refused.saturating_sub(earlier.refused),
            shed: self.shed.saturating_sub(earlier.shed),
            times: self.times.since(&earlier.times),
        }
    }
}

/// `2 waiting, 5 served after a wait`, and `, 1 ended without memory` if there are any.
impl fmt::Display for WaitStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, served) = (self.waiting, self.served);
        write!(f, "{waiting} waiting, {served} served after a wait")?;
        let ended = self.timed_out + self.cancelled + self.deadlocked + self.failed;
        match ended + self.refused + self.shed {
            0 => Ok(()),
            without => write!(f, ", {without} ended without memory"),
        }
    }
}

/// The counts of waits, for a pool, a stream or a tag.
#[derive(Debug, Default)]
pub struct Waits {
    waiting: Count,
    ended: [Count; WaitOutcome::ALL.len()],
    shed: Count,
    /// Created with the first wait that is recorded. Most streams and tags never wait.
    times: OnceLock<Box<Recorder>>,
}

impl Waits {
    /// Begins a wait.
    pub fn begin(&self) {
        self.waiting.add(1);
    }

    /// Ends a wait that has begun, after `waited`.
    pub fn end(&self, outcome: WaitOutcome, waited: Duration) {
        self.count(outcome, waited);
        self.waiting.subtract(1);
    }

    /// Counts a wait that has ended with an outcome as served after `waited`: its request took memory all the same.
    pub fn serve_late(&self, ended: WaitOutcome, waited: Duration) {
        self.ended[ended as usize].subtract(1);
        self.count(WaitOutcome::Served, waited);
    }

    fn count(&self, outcome: WaitOutcome, waited: Duration) {
        if outcome == WaitOutcome::Served {
            self.times.get_or_init(Box::default).record(waited);
        }
        self.ended[outcome as usize].add(1);
    }

    /// Counts a wait that does not begin because the queue is full.
    pub fn count_refused(&self) {
        self.ended[WaitOutcome::Refused as usize].add(1);
    }

    /// Counts a wait that does not begin because it would take too long.
    pub fn count_shed(&self) {
        self.shed.add(1);
    }

    /// Returns the number of requests that are waiting.
    pub fn waiting(&self) -> usize {
        usize::try_from(self.waiting.get()).unwrap_or(usize::MAX)
    }

    /// Returns the figures counted so far. A request that leaves during the read may be counted as waiting and as
    /// ended.
    pub fn statistics(&self) -> WaitStatistics {
        let waiting = self.waiting();
        let ended = |outcome: WaitOutcome| self.ended[outcome as usize].get();
        let times = self.times.get().map(|times| times.histogram());
        WaitStatistics {
            waiting,
            served: ended(WaitOutcome::Served),
            timed_out: ended(WaitOutcome::TimedOut),
            cancelled: ended(WaitOutcome::Cancelled),
            deadlocked: ended(WaitOutcome::Deadlocked),
            failed: ended(WaitOutcome::Failed),
            refused: ended(WaitOutcome::Refused),
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
        let waited = Duration::from_micros(5);
        for outcome in WaitOutcome::ALL {
            waits.begin();
            waits.end(outcome, waited);
            assert_eq!(waits.statistics().of(outcome), 1, "{}", outcome.name());
        }
        waits.begin();
        waits.count_refused();
        waits.count_shed();
        let figures = waits.statistics();
        assert_eq!((figures.waiting, figures.unserved()), (1, 4));
        assert_eq!((figures.refused, figures.shed), (2, 1));
        waits.serve_late(WaitOutcome::Deadlocked, 2 * waited);
        let figures = waits.statistics();
        assert_eq!((figures.deadlocked, figures.served), (0, 2));
        assert_eq!(
            (figures.times.count(), figures.times.longest()),
            (2, 2 * waited)
        );
        let since = figures.since(&figures);
        let nothing = WaitStatistics {
            waiting: 1,
            ..WaitStatistics::default()
        };
        assert_eq!(since, nothing);
    }
}
