//! When nothing moves any more: in the fair queue, or among the requests that wait for the limit of a tag.
//!
//! When the head of the queue cannot be served, nothing is pending, and no block is freed for a while (the *grace*), no
//! work of the device will bring memory back. Then every request is searched for. If none can be served, the queue is
//! deadlocked: that is reported once, and after a time, if the rules have one, the head fails.

use crate::fair_queue::Position;
use crate::terms::Rules;
use std::time::Duration;

/// The queue, while nothing moves in it.
#[derive(Debug, Default)]
pub struct Standstill(Option<Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    head: Position,
    /// Blocks given back so far. A free changes it, to a reservation as well.
    returns: u64,
    since: Duration,
    is_reported: bool,
}

/// What to do about a queue in which no request can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Report the deadlock, which is reported once.
    pub is_new: bool,
    /// Fail the head now.
    pub fails: bool,
    /// Otherwise, when to look again: the head fails then.
    pub fails_at: Option<Duration>,
}

impl Standstill {
    /// Notes that something moved. Returns whether that was not known.
    #[inline]
    pub fn end(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Looks at a head that cannot be served while nothing is pending. Returns when the grace ends, if it has not: since
    /// now, if something moved after the last look.
    ///
    /// Looking at a long queue takes time: each 1,024 requests make the grace 1 ms longer, so that the looks stay rare.
    pub fn look(
        &mut self,
        head: Position,
        returns: u64,
        queued: usize,
        rules: &Rules,
        now: Duration,
    ) -> Option<Duration> {
        let same = |known: &&Known| known.head == head && known.returns == returns;
        let since = match self.0.as_ref().filter(same) {
            Some(known) => known.since,
            None => {
                self.0 = Some(Known {
                    head,
                    returns,
                    since: now,
                    is_reported: false,
                });
                now
            }
        };
        let queued = u32::try_from(queued).unwrap_or(u32::MAX);
        let longer = Duration::from_millis(1) * (queued / 1024);
        let grace_ends = since.saturating_add(rules.deadlock_grace.saturating_add(longer));
        (now < grace_ends).then_some(grace_ends)
    }

    /// Judges the queue after a search for every request was in vain.
    pub fn judge(&mut self, rules: &Rules, now: Duration) -> Verdict {
        let known = self.0.as_mut();
        let (since, was_reported) = known.map_or((now, true), |known| {
            (known.since, std::mem::replace(&mut known.is_reported, true))
        });
        let fails_at = rules.deadlock_fails_at(since);
        Verdict {
            is_new: !was_reported,
            fails: fails_at.is_some_and(|at| now >= at),
            fails_at,
        }
    }
}

/// How long nothing of a tag was freed, seen from one of its throttled requests.
///
/// The tasks that hold memory of a tag may wait for more of it, and then nothing moves. The pool does not know tasks, so
/// it cannot tell that from a tag whose work merely takes long. Where deadlocks are to fail, the first throttled request
/// of a tag fails after the same time, if nothing of the tag was freed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagStandstill {
    /// How often bytes of the tag were freed.
    releases: u64,
    since: Duration,
}

impl TagStandstill {
    /// Begins now.
    pub fn new(releases: u64, now: Duration) -> Self {
        Self {
            releases,
            since: now,
        }
    }

    /// Goes on, or begins anew if bytes were freed meanwhile.
    pub fn go_on(known: Option<Self>, releases: u64, now: Duration) -> Self {
        let known = known.filter(|known| known.releases == releases);
        known.unwrap_or(Self::new(releases, now))
    }

    /// Returns when the first throttled request of the tag fails, if it does.
    pub fn fails_at(self, rules: &Rules) -> Option<Duration> {
        rules.deadlock_fails_at(self.since)
    }
}
