//! Throttled requests: those that wait for the limit of their tag, seen from their futures.
//!
//! The tasks that hold memory of a tag may wait for more of it, and then nothing moves. The pool does not know
//! tasks, so it cannot tell that from a tag whose work merely takes long. Where deadlocks are to fail, the first
//! throttled request of a tag fails after the same time, if nothing of the tag was freed in it.

use super::Service;
use super::deadlock::tell_deadlock;
use super::waiter::Waiter;
use crate::error::AllocError;
use crate::measure::Tag;
use crate::timer::Deadline;
use std::task::Waker;
use std::time::Duration;

/// How long nothing of the tag was freed.
#[derive(Debug)]
pub(super) struct TagStandstill {
    /// How often bytes of the tag were freed.
    releases: u64,
    since: Duration,
    _look: Deadline,
}

/// Looks after a throttled request when it is polled. Returns the error with which it fails, if it does.
pub(super) fn look(
    service: &Service,
    waiter: &Waiter,
    tag: Tag,
    standstill: &mut Option<TagStandstill>,
    waker: &Waker,
) -> Option<AllocError> {
    let now = service.now();
    let releases = service.queue.accounts.of(tag).releases();
    let known = standstill.take().filter(|known| known.releases == releases);
    let mut since = known.map_or(now, |known| known.since);
    if now >= service.rules.deadlock_fails_at(since)? {
        // The first request fails, even if no executor polls it. What its task holds may let this one in.
        match service.queue.first_throttled(tag) {
            Some(first) if first.sort_key != waiter.sort_key => {
                let error = deadlocked(service, &first, tag);
                service.fail(&first, error);
            }
            _ => return Some(deadlocked(service, waiter, tag)),
        }
        since = now;
    }
    let fails_at = service.rules.deadlock_fails_at(since)?;
    let look = service.timer.deadline(true);
    look.set(Some((fails_at, waker.clone())));
    *standstill = Some(TagStandstill {
        releases: service.queue.accounts.of(tag).releases(),
        since,
        _look: look,
    });
    None
}

fn deadlocked(service: &Service, waiter: &Waiter, tag: Tag) -> AllocError {
    let account = service.queue.accounts.of(tag);
    tell_deadlock(service, &waiter.demand, Some(tag));
    account.count_failed();
    AllocError::DeadlockedAtLimit {
        tag,
        requested: waiter.demand.request.bytes,
        used: account.charged(),
        limit: account.limit().unwrap_or(u64::MAX),
    }
}
