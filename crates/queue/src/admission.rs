//! Admission: whether a request may join a queue at all, and how fast the queue moves.

use crate::amount::Amount;
use crate::{FullQueue, QueueLimit, Tag};
use std::time::Duration;

/// Figures of the requests in one queue: whether another one may join, and how fast the queue moves.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) limit: QueueLimit,
    pub(crate) waiting: Amount,
    pub(crate) pace: QueuePace,
}

impl Admission {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        Self {
            limit,
            waiting: Amount::default(),
            pace: QueuePace::default(),
        }
    }

    /// Estimates how long a request would wait, given the bytes of the requests before it.
    pub(crate) fn expected_wait(&self, bytes: u64, ahead: u64, now: Duration) -> Option<Duration> {
        self.pace.time_for(ahead.saturating_add(bytes), now)
    }

    #[inline]
    pub(crate) fn join(&mut self, bytes: u64, now: Duration) {
        if self.waiting.requests == 0 {
            self.pace.start(now);
        }
        self.waiting.add(bytes);
    }

    /// Notes that a request leaves, served at that time or not at all.
    #[inline]
    pub(crate) fn leave(&mut self, bytes: u64, served_at: Option<Duration>) {
        self.waiting.subtract(bytes);
        if let Some(now) = served_at {
            self.pace.record(bytes, now);
        }
        if self.waiting.requests == 0 {
            self.pace.stop();
        }
    }
}

/// Returns the expected wait of a request that waits for the limit of its tag, and then in the fair queue.
#[inline]
pub(crate) fn joined_wait(at_limit: Duration, in_queue: Option<Duration>) -> Duration {
    at_limit.saturating_add(in_queue.unwrap_or_default())
}

/// Describes the queue to a request for which it is full: the pool's, or a tag's.
pub(crate) fn full(
    tag: Option<Tag>,
    requested: u64,
    waiting: Amount,
    limit: QueueLimit,
    expected_wait: Option<Duration>,
) -> FullQueue {
    FullQueue {
        tag,
        requested,
        waiting: waiting.requests,
        limit: limit.requests,
        waiting_bytes: waiting.bytes,
        limit_bytes: limit.bytes,
        expected_wait,
    }
}

/// How fast a queue moves: the bytes granted to waiting requests, over the time in which any request waited. Both are
/// sums in which the grant `n` grants ago counts for `KEPT^n`, so about the last 64 grants count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueuePace {
    bytes: f64,
    seconds: f64,
    grants: u32,
    /// The time of the last grant, or of the first waiter's arrival if that is later; `None` if no request waits.
    since: Option<Duration>,
}

const KEPT: f64 = 63.0 / 64.0;

/// The fewest grants from which a wait is estimated.
const ENOUGH: u32 = 8;

impl QueuePace {
    #[inline]
    fn start(&mut self, now: Duration) {
        self.since = Some(now);
    }

    #[inline]
    fn stop(&mut self) {
        self.since = None;
    }

    #[inline]
    fn record(&mut self, bytes: u64, now: Duration) {
        let passed = self.running(now);
        self.bytes = self.bytes * KEPT + bytes as f64;
        self.seconds = self.seconds * KEPT + passed;
        self.grants = self.grants.saturating_add(1);
        self.since = Some(now);
    }

    /// Returns the time since the last grant, while any request waits.
    #[inline]
    fn running(&self, now: Duration) -> f64 {
        let since = self.since.unwrap_or(now);
        now.saturating_sub(since).as_secs_f64()
    }

    /// Estimates how long it takes to grant this many bytes, if the queue keeps moving as it did. A standstill counts
    /// from its beginning. Returns `None` before enough requests were granted to tell.
    pub(crate) fn time_for(&self, bytes: u64, now: Duration) -> Option<Duration> {
        if self.grants < ENOUGH || self.bytes <= 0.0 {
            return None;
        }
        let seconds = (self.seconds + self.running(now)) * bytes as f64 / self.bytes;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn about(time: Duration, expected: Duration) -> bool {
        time.abs_diff(expected) < expected / 100
    }

    #[test]
    fn limit_bounds_requests_and_bytes() {
        let limit = QueueLimit {
            requests: 2,
            bytes: 100,
        };
        let mut admission = Admission::new(limit);
        let is_full = |admission: &Admission, bytes| admission.waiting.is_full(limit, bytes);
        assert!(!is_full(&admission, 100) && is_full(&admission, 101));
        admission.join(60, MS);
        assert!(!is_full(&admission, 40) && is_full(&admission, 41));
        admission.join(0, MS);
        assert!(is_full(&admission, 0));
        admission.leave(60, None);
        assert!(!is_full(&admission, 100));
    }

    #[test]
    fn pace_is_granted_bytes_over_the_time_in_which_requests_waited() {
        let mut admission = Admission::new(QueueLimit::NONE);
        for round in 0..20 {
            // A grant of 512 bytes takes 2 ms. Then no request waits for 98 ms.
            let came = MS * 100 * round;
            admission.join(512, came);
            assert_eq!(admission.pace.time_for(512, came).is_some(), round >= 8);
            admission.leave(512, Some(came + MS * 2));
        }
        let later = MS * 90_000;
        let time = admission.pace.time_for(4096, later).unwrap();
        assert!(about(time, MS * 16), "{time:?}");
    }

    #[test]
    fn standstill_counts_from_its_beginning() {
        let mut admission = Admission::new(QueueLimit::NONE);
        for _ in 0..64 {
            admission.join(512, Duration::ZERO);
        }
        for n in 1..=63 {
            admission.leave(512, Some(MS * n));
        }
        let moving = admission.pace.time_for(512, MS * 63).unwrap();
        let standing = admission.pace.time_for(512, MS * 630).unwrap();
        assert!(about(moving, MS) && standing > moving * 5, "{standing:?}");
    }
}
