//! On what terms somebody waits, and by what rules the pool has them wait.

use super::QueueLimit;
use crate::driver::Fill;
use crate::measure::{Tag, debug_in_units};
use std::time::Duration;

/// No clock gets there: whoever waits that long waits for ever, and no alarm is set for it.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// So many are looked at, from the head on, where some may overtake.
const LOOKED_AT: usize = 64;

/// On what terms a request waits, and to which account it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// The account that it is charged to.
    pub(crate) tag: Option<Tag>,
    /// The longest time that it waits.
    pub(crate) timeout: Option<Duration>,
    /// The longest time that it waits, at the end of which it is due.
    pub(crate) deadline: Option<Duration>,
    /// How many priority steps earlier it is due.
    pub(crate) priority: i32,
    /// The fill of what it is granted, instead of the pool's.
    pub(crate) fill: Option<Fill>,
}

impl Terms {
    /// How long it waits at most.
    pub(super) fn limit(&self) -> Option<Duration> {
        let limits = [self.timeout, self.deadline].into_iter().flatten();
        limits.min().filter(|limit| *limit < NEVER)
    }

    /// When it is due, in nanoseconds of the device's clock: in no way before the clock began, if its
    /// priority says so.
    pub(super) fn due(&self, now: Duration, rules: &Rules) -> i128 {
        let nanoseconds = |duration: Duration| duration.as_nanos() as i128;
        let after = self.deadline.unwrap_or(rules.due_after);
        let earlier = nanoseconds(rules.priority_step) * i128::from(self.priority);
        nanoseconds(now) + nanoseconds(after) - earlier
    }
}

/// How often those who wait may be passed by others that come after them in the queue, and for whom there
/// is memory.
///
/// While the head of the queue cannot be served, what is free is kept for it, and whoever comes after it
/// waits, too. A bound above zero lets requests pass that can be served meanwhile, as long as each of those
/// that they pass was passed no more than so often, and by no more than so many bytes: that is what its wait
/// can be prolonged by. They are looked for among the 64 that come next if nobody else comes, in which
/// [tags with weights](crate::TagAccount::set_weight) take turns.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Overtaking {
    /// How many requests may pass one that waits.
    pub times: u32,
    /// How many bytes they may have in all.
    pub bytes: u64,
}

debug_in_units!(struct Overtaking { times, bytes as bytes });

impl Overtaking {
    /// Nobody passes anybody: the default.
    pub const NONE: Self = Self { times: 0, bytes: 0 };

    /// How many at the front of the queue are looked at when somebody is served: flows take turns in that, as when
    /// they are served.
    pub(super) fn looked_at(self) -> usize {
        if self.times == 0 { 1 } else { LOOKED_AT }
    }

    /// Whether one of so many bytes may pass another that was passed so often, by so many bytes, already.
    pub(super) fn allows(self, passed: (u64, u64), bytes: u64) -> bool {
        passed.0 < u64::from(self.times) && passed.1.saturating_add(bytes) <= self.bytes
    }
}

/// By what rules a pool has requests wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// When a request without a deadline is due, after it came.
    pub(crate) due_after: Duration,
    /// How much earlier a step of priority makes a request due.
    pub(crate) priority_step: Duration,
    pub(crate) overtaking: Overtaking,
    /// How long nothing may move before a queue that cannot be served counts as knotted.
    pub(crate) deadlock_grace: Duration,
    /// How long a deadlock lasts before the head of the queue fails; for ever, if none.
    pub(crate) deadlock_limit: Option<Duration>,
    /// How many may wait, at first.
    pub(crate) queue_limit: QueueLimit,
    /// Whether those fail at once that would probably wait too long.
    pub(crate) sheds: bool,
}

impl Rules {
    /// When a deadlock that began at `since` fails a request, if it does.
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
    fn who_has_a_deadline_is_due_then() {
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
    fn the_shorter_limit_counts() {
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
    fn passing_is_bounded_twice() {
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
