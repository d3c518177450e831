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
use weirpool_queue::TagStandstill;

/// Looks after a throttled request when it is polled. Returns the error with which it fails, if it does.
pub(super) fn look(
    service: &Service,
    waiter: &Waiter,
    tag: Tag,
    standstill: &mut Option<(TagStandstill, Deadline)>,
    waker: &Waker,
) -> Option<AllocError> {
    let now = service.now();
    let account = service.queue.accounts.of(tag);
    let known = standstill.take().map(|(known, _)| known);
    let mut current = TagStandstill::go_on(known, account.releases(), now);
    if now >= current.fails_at(&service.rules)? {
        // The first request fails, even if no executor polls it. What its task holds may let this one in.
        match service.queue.first_throttled(tag) {
            // The limit was raised meanwhile, and let this one in.
            _ if !waiter.is_throttled() => return None,
            Some(first) if first.entry.sort_key != waiter.entry.sort_key => {
                let error = deadlocked(service, &first, tag);
                service.fail(&first, error);
            }
            _ => return Some(deadlocked(service, waiter, tag)),
        }
        current = TagStandstill::new(account.releases(), now);
    }
    let fails_at = current.fails_at(&service.rules)?;
    let look = service.timer.deadline(true);
    look.set(Some((fails_at, waker.clone())));
    *standstill = Some((current, look));
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

#[cfg(all(test, feature = "sim", not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::device::sim::{Clock, SimDevice};
    use std::future::{Future, IntoFuture};
    use std::time::Duration;

    /// Its time is over, and another thread raises the limit before it is looked at.
    #[test]
    fn request_that_a_raised_limit_lets_in_does_not_fail_at_the_limit() {
        let device = SimDevice::builder().clock(Clock::Manual).build();
        let grace = Duration::from_millis(1);
        let pool = Pool::builder(device.clone()).fail_deadlocks_after(grace);
        let pool = pool.build().unwrap();
        let stream = pool.create_stream().unwrap();
        let tag = Tag::new("throttled: raised");
        pool.tag(tag).set_limit(Some(4096));
        let held = pool.allocate(&stream, 4096).tag(tag).try_now().unwrap();
        let mut request = pool.allocate(&stream, 4096).tag(tag).into_future();
        let mut poll = || {
            let context = &mut std::task::Context::from_waker(Waker::noop());
            std::pin::Pin::new(&mut request).poll(context)
        };
        assert!(poll().is_pending());
        let waiter = pool.service().queue.first_throttled(tag).unwrap();
        let mut standstill = None;
        let mut look = || look(pool.service(), &waiter, tag, &mut standstill, Waker::noop());
        assert_eq!(look(), None);
        device.advance(2 * grace);
        pool.tag(tag).set_limit(Some(8192));
        assert_eq!(look(), None);
        assert!(poll().is_ready());
        drop(held);
    }
}
