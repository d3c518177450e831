//! The number of requests in flight, waiting for memory, served and failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of requests, shared by all tasks.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    in_flight: AtomicU64,
    waiting: AtomicU64,
    served: AtomicU64,
    failed: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) served: u64,
    pub(crate) failed: u64,
}

/// The state of a service at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    pub(crate) pending: u64,
    /// The number of requests that have arrived and are not admitted yet.
    pub(crate) not_admitted: u64,
    pub(crate) counts: Counts,
}

/// A request in the state of a count, until this is dropped.
#[derive(Debug)]
#[must_use = "the request leaves the state when this is dropped"]
pub(crate) struct Presence {
    gauge: Arc<Gauge>,
    count_of: fn(&Gauge) -> &AtomicU64,
}

impl Gauge {
    pub(crate) fn in_flight(self: &Arc<Self>) -> Presence {
        self.enter(|gauge| &gauge.in_flight)
    }

    pub(crate) fn waiting(self: &Arc<Self>) -> Presence {
        self.enter(|gauge| &gauge.waiting)
    }

    pub(crate) fn serve(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fail(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(self: &Arc<Self>, count_of: fn(&Gauge) -> &AtomicU64) -> Presence {
        count_of(self).fetch_add(1, Ordering::Relaxed);
        Presence {
            gauge: self.clone(),
            count_of,
        }
    }

    pub(crate) fn read(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            in_flight: read(&self.in_flight),
            waiting: read(&self.waiting),
            served: read(&self.served),
            failed: read(&self.failed),
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        (self.count_of)(&self.gauge).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_presence_is_not_counted() {
        let gauge = Arc::new(Gauge::default());
        let (flight, wait) = (gauge.in_flight(), gauge.waiting());
        gauge.serve();
        let expected = Counts {
            in_flight: 1,
            waiting: 1,
            served: 1,
            ..Counts::default()
        };
        assert_eq!(gauge.read(), expected);
        drop((flight, wait));
        assert_eq!((gauge.read().in_flight, gauge.read().waiting), (0, 0));
    }
}
