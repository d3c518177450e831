//! How requests waited.

use super::histogram::nanoseconds;
use crate::sync::Count;
use std::time::Duration;

/// How requests waited, on the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WaitStatistics {
    /// Requests that are waiting now.
    pub waiting: usize,
    /// Requests that waited, and were served.
    pub served: u64,
    /// Requests that waited, and were not served: cancelled, timed out, or failed.
    pub abandoned: u64,
    /// Those of them that failed by a [deadlock](crate::PoolBuilder::fail_deadlocks_after), in the queue or at the limit of
    /// their tag.
    pub deadlocked: u64,
    /// Requests that were turned away before they waited, since as many did as
    /// [may](crate::PoolBuilder::queue_limit).
    pub refused: u64,
    /// Requests that were turned away before they waited, since they would probably have waited
    /// [too long](crate::PoolBuilder::load_shedding).
    pub shed: u64,
    /// The longest wait of a served request.
    pub longest: Duration,
    /// All waits of served requests together.
    pub total: Duration,
}

/// Where waits are counted: for a pool, a stream, a tag.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    waiting: Count,
    served: Count,
    abandoned: Count,
    deadlocked: Count,
    refused: Count,
    shed: Count,
    longest: Count,
    total: Count,
}

impl Waits {
    pub(crate) fn begin(&self) {
        self.waiting.add(1);
    }

    /// Ends one that has begun: served after `waited`, or not at all.
    pub(crate) fn end(&self, waited: Option<Duration>) {
        match waited.map(nanoseconds) {
            Some(waited) => {
                self.served.add(1);
                self.total.add(waited);
                self.longest.raise(waited);
            }
            None => self.abandoned.add(1),
        }
        self.waiting.subtract(1);
    }

    /// One that has begun is about to fail by a deadlock.
    pub(crate) fn note_deadlocked(&self) {
        self.deadlocked.add(1);
    }

    /// One does not begin: the queue is full.
    pub(crate) fn note_refused(&self) {
        self.refused.add(1);
    }

    /// One does not begin: it would take too long.
    pub(crate) fn note_shed(&self) {
        self.shed.add(1);
    }

    pub(crate) fn statistics(&self) -> WaitStatistics {
        WaitStatistics {
            waiting: usize::try_from(self.waiting.get()).unwrap_or(usize::MAX),
            served: self.served.get(),
            abandoned: self.abandoned.get(),
            deadlocked: self.deadlocked.get(),
            refused: self.refused.get(),
            shed: self.shed.get(),
            longest: Duration::from_nanos(self.longest.get()),
            total: Duration::from_nanos(self.total.get()),
        }
    }
}
