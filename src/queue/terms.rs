//! The terms of a request that waits, and the rules of the pool.

use super::QueueLimit;
use crate::engine::Fill;
use crate::measure::{Tag, debug_in_units};
use std::time::Duration;

/// No clock gets this far: a longer wait has no limit, and no alarm is set for it.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// How many requests are looked at, from the head on, if overtaking is allowed.
const LOOKED_AT: usize = 64;

/// The terms on which a request waits, and its account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// The account that is charged.
    pub(crate) tag: Option<Tag>,
    /// The longest wait.
    pub(crate) timeout: Option<Duration>,
    /// The longest wait, at the end of which the request is due.
    pub(crate) deadline: Option<Duration>,
    /// The number of priority steps by which the request is due earlier.
    pub(crate) priority: i32,
    /// The fill of the granted memory, instead of the pool's.
    pub(crate) fill: Option<Fill>,
}

impl Terms {
    /// Returns the longest wait.
    pub(super) fn limit(&self) -> Option<Duration> {
        let limits = [self.timeout, self.deadline].into_iter().flatten();
        limits.min().filter(|limit| *limit < NEVER)
    }

    /// Returns when the request is due, in nanoseconds of the device's clock. A high priority can put that before the
    /// clock's beginning.
    pub(super) fn due(&self, now: Duration, rules: &Rules) -> i128 {
        let nanoseconds = |duration: Duration| duration.as_nanos() as i128;
        let after = self.deadline.unwrap_or(rules.due_after);
        let earlier = nanoseconds(rules.priority_step) * i128::from(self.priority);
        nanoseconds(now) + nanoseconds(after) - earlier
    }
}

/// How often a waiting request may be passed by requests behind it.
///
/// While the head of the queue cannot be served, free memory is kept for it, and all requests behind it wait. With a
/// bound above zero, a request that can be served may pass others, as long as each of those was passed by at most
/// `times` requests with at most `bytes` bytes together. The bound limits how much longer a wait becomes. Only the
/// first 64 requests of the queue are looked at. [Tags with weights](crate::TagAccount::set_weight) take turns among
/// these.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Overtaking {
    /// How many requests may pass a waiting request.
    pub times: u32,
    /// How many bytes these may be granted together.
    pub bytes: u64,
}

debug_in_units!(struct Overtaking { times, bytes as bytes });

impl Overtaking {
    /// No request passes another: the default.
    pub const NONE: Self = Self { times: 0, bytes: 0 };

    /// Returns how many requests at the front of the queue are looked at. Flows take turns among them.
    pub(super) fn looked_at(self) -> usize {
        if self.times == 0 { 1 } else { LOOKED_AT }
    }

    /// Returns whether a request for `bytes` may pass one that was passed this often, by this many bytes, before.
    pub(super) fn allows(self, passed: (u64, u64), bytes: u64) -> bool {
        passed.0 < u64::from(self.times) && passed.1.saturating_add(bytes) <= self.bytes
    }
}

/// The rules by which requests of a pool wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How long after it came a request without a deadline is due.
    pub(crate) due_after: Duration,
    /// How much earlier a step of priority makes a request due.
    pub(crate) priority_step: Duration,
    pub(crate) overtaking: Overtaking,
    /// How long nothing may change before a queue that cannot be served counts as deadlocked.
    pub(crate) deadlock_grace: Duration,
    /// How long a deadlock lasts before the head of the queue fails; `None` if it never does.
    pub(crate) deadlock_limit: Option<Duration>,
    /// How many requests may wait, at first.
    pub(crate) queue_limit: QueueLimit,
    /// Whether a request fails at once if its expected wait exceeds its limit.
    pub(crate) sheds: bool,
}

impl Rules {
    /// Returns when a deadlock that began at `since` fails a request, if it does.
    pub(super) fn deadlock_fails_at(&self, since: Duration) -> Option<Duration> {
        let limit = self.deadlock_limit?.max(self.deadlock_grace);
        Some(since.saturating_add(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules() -> Rules {
        Rules {
            due_after: SECOND,
            priority_step: SECOND,
            overtaking: Overtaking::NONE,
            deadlock_grace: SECOND,
            deadlock_limit: None,
            queue_limit: QueueLimit::NONE,
            sheds: false,
        }
    }

    #[test]
    fn request_with_a_deadline_is_due_then() {
        let rules = rules();
        let [plain, soon, late] = [None, Some(SECOND / 10), Some(SECOND * 10)].map(|deadline| {
            let terms = Terms {
                deadline,
                ..Terms::default()
            };
            terms.due(SECOND * 5, &rules)
        });
        assert!(soon < plain && plain < late);
        assert_eq!(plain, (SECOND * 6).as_nanos() as i128);
    }

    #[test]
    fn priority_counts_in_steps() {
        let rules = rules();
        let due = |priority, now| {
            let terms = Terms {
                priority,
                ..Terms::default()
            };
            terms.due(now, &rules)
        };
        assert_eq!(due(2, SECOND * 2), due(0, Duration::ZERO));
        assert!(due(i32::MAX, Duration::ZERO) < due(i32::MIN, Duration::ZERO));
    }

    #[test]
    fn shorter_limit_counts() {
        let terms = Terms {
            timeout: Some(SECOND),
            deadline: Some(SECOND * 2),
            ..Terms::default()
        };
        assert_eq!(terms.limit(), Some(SECOND));
        let for_ever = Terms {
            timeout: Some(Duration::MAX),
            ..Terms::default()
        };
        assert_eq!(for_ever.limit(), None);
    }

    #[test]
    fn overtaking_is_bounded_by_requests_and_by_bytes() {
        let bound = Overtaking {
            times: 2,
            bytes: 100,
        };
        assert!(
            bound.allows((1, 60), 40) && !bound.allows((2, 0), 1) && !bound.allows((0, 61), 40)
        );
        assert!(!Overtaking::NONE.allows((0, 0), 1));
    }
}
