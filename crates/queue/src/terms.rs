//! The terms of a request that waits, and the rules of the pool.

use crate::{QueueLimit, Tag};
use std::time::Duration;
use weirpool_heap::debug_in_units;

/// No clock gets this far: a longer wait has no limit, and no alarm is set for it.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// How long after it came a request without a deadline is due: a typical response time of a service. Only the order of due
/// times matters.
pub const DUE_AFTER: Duration = Duration::from_secs(1);

/// How much earlier a step of priority makes a request due: as long as a plain request is given, so that a step outweighs
/// any wait that is usual.
pub const PRIORITY_STEP: Duration = Duration::from_secs(1);

/// How many requests are looked at, from the head on, if overtaking is allowed.
const LOOKED_AT: usize = 64;

/// The terms on which a [`Request`] waits, as one value for [`Request::terms`]: for layers that make requests for others.
///
/// ```
/// use std::time::Duration;
/// use weirpool::{Tag, Terms};
///
/// let terms = Terms { tag: Some(Tag::new("chat")), deadline: Some(Duration::from_secs(2)), ..Terms::default() };
/// # assert_eq!(terms.priority, 0);
/// ```
///
/// [`Request`]: https://docs.rs/weirpool/latest/weirpool/struct.Request.html
/// [`Request::terms`]: https://docs.rs/weirpool/latest/weirpool/struct.Request.html#method.terms
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The tag that is charged; see [`Request::tag`](https://docs.rs/weirpool/latest/weirpool/struct.Request.html#method.tag).
    pub tag: Option<Tag>,
    /// The longest wait; see [`Request::timeout`](https://docs.rs/weirpool/latest/weirpool/struct.Request.html#method.timeout).
    pub timeout: Option<Duration>,
    /// The longest wait, at the end of which the request is due; see [`Request::deadline`](https://docs.rs/weirpool/latest/weirpool/struct.Request.html#method.deadline).
    pub deadline: Option<Duration>,
    /// The number of priority steps by which the request is due earlier; see
    /// [`Request::priority`](https://docs.rs/weirpool/latest/weirpool/struct.Request.html#method.priority).
    pub priority: i32,
}

/// Returns the longest wait under these terms.
#[inline]
pub fn longest_wait(terms: &Terms) -> Option<Duration> {
    let limits = [terms.timeout, terms.deadline].into_iter().flatten();
    limits.min().filter(|limit| *limit < NEVER)
}

/// Returns when a request is due, in nanoseconds of the device's clock. A high priority can put that before the
/// clock's beginning.
#[inline]
pub fn due(terms: &Terms, now: Duration) -> i128 {
    let nanoseconds = |duration: Duration| duration.as_nanos() as i128;
    let after = terms.deadline.unwrap_or(DUE_AFTER);
    let earlier = nanoseconds(PRIORITY_STEP) * i128::from(terms.priority);
    nanoseconds(now) + nanoseconds(after) - earlier
}

/// How often a waiting request may be passed by requests behind it.
///
/// While the head of the queue cannot be served, free memory is kept for it, and all requests behind it wait. With a
/// bound above zero, a request that can be served may pass others, as long as each of those was passed by at most
/// `times` requests with at most `bytes` bytes together. The bound limits how much longer a wait becomes. Only the
/// first 64 requests of the queue are looked at. [Tags with weights](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_weight) take turns among
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
}

/// The rules by which requests of a pool wait.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How often a request may be passed.
    pub overtaking: Overtaking,
    /// How long nothing may change before a queue that cannot be served counts as deadlocked.
    pub deadlock_grace: Duration,
    /// How long a deadlock lasts before the head of the queue fails; `None` if it never does.
    pub deadlock_limit: Option<Duration>,
    /// How many requests may wait, at first.
    pub queue_limit: QueueLimit,
    /// Whether a request fails at once if its expected wait exceeds its limit.
    pub sheds: bool,
}

impl Rules {
    /// Returns how many requests at the front of the queue are looked at. Flows take turns among them.
    pub(crate) fn looked_at(&self) -> usize {
        match self.overtaking.times {
            0 => 1,
            _ => LOOKED_AT,
        }
    }

    /// Returns whether a request for `bytes` may pass one that was passed this often, by this many bytes, before.
    #[inline]
    pub fn may_overtake(&self, passed: (u64, u64), bytes: u64) -> bool {
        let bound = self.overtaking;
        passed.0 < u64::from(bound.times) && passed.1.saturating_add(bytes) <= bound.bytes
    }

    /// Returns when a deadlock that began at `since` fails a request, if it does.
    pub(crate) fn deadlock_fails_at(&self, since: Duration) -> Option<Duration> {
        let limit = self.deadlock_limit?.max(self.deadlock_grace);
        Some(since.saturating_add(limit))
    }
}
