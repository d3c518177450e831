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

    pub(crate) fn statistics(&self) -> WaitStatistics {
        WaitStatistics {
            waiting: usize::try_from(self.waiting.get()).unwrap_or(usize::MAX),
            served: self.served.get(),
            abandoned: self.abandoned.get(),
            longest: Duration::from_nanos(self.longest.get()),
            total: Duration::from_nanos(self.total.get()),
        }
    }
}
