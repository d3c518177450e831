//! Knots at the quota queue: those of a tag who wait for its limit hold what it has.
//!
//! A pool does not know tasks: it knows on which streams a tag holds something, and for which streams its requests
//! wait. A tag counts as knotted when
//!
//! - requests of it wait at the quota queue, and none in the queue, where it would be served some day;
//! - for each stream on which it holds anything, a request of it waits at the quota queue that came after the last grant for
//!   that stream. A reservation is taken to be of the stream that drew from it last; as long as none did it is of no
//!   stream, and so are the requests for reservations;
//! - and for the grace nothing of it was granted or freed, nor drawn from its reservations, and those streams had
//!   nothing to do, neither at the beginning nor at the end of that.
//!
//! Then no work of the device gives anything back, and whoever could seems to wait itself. A tenant whose requests
//! are merely at work for long is none: nothing waits for the streams on which they hold, or nothing that came since,
//! or they keep these busy. What cannot be told apart is who waits for a stream from who holds on it; so a task that
//! is busy on the host alone for longer than the grace, while another of its tag came to wait for the same stream, is
//! taken for one that waits. And a deadlock of those who hold on one stream, and wait for another, is not seen.
//!
//! Whoever asks for so little that the limit allows it comes in then, wherever it stands. If nobody does, that is
//! told, and after a time, if the pool has one, the first fails. The quota queue is looked at by those who wait there: when
//! they come, when somebody frees who lets nobody in, when an alarm rings, and when a stream gets further.

use super::Service;
use super::fair_queue::Position;
use super::idle::Point;
use super::quota_queue::Throttled;
use crate::device::{Alarm, DeviceError, Watch};
use crate::error::AllocError;
use crate::lane::Marker;
use crate::measure::{Streams, Tag};
use crate::sync::{Guards, Mutex};
use crate::trace;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct QuotaDeadlocks(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// The doors to be looked at.
    wanted: BTreeSet<Tag>,
    /// By one at a time.
    is_looking: bool,
    tied: BTreeMap<Tag, Tied>,
}

/// A quota queue at which nothing seems to move.
#[derive(Debug)]
struct Tied {
    seen: Seen,
    since: Duration,
    is_told: bool,
    next: Next,
}

/// When to look again.
#[derive(Debug)]
enum Next {
    /// When this rings, which wakes so many.
    At {
        at: Duration,
        _alarm: Alarm,
        wakes: usize,
    },
    /// Once a stream gets there, which wakes so many.
    Passed {
        point: Point,
        _watch: Watch<Marker>,
        wakes: usize,
    },
    /// When somebody comes.
    Never,
}

/// By what it is seen that something moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    first: Position,
    moves: u64,
}

impl QuotaDeadlocks {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Queue, Book::default()))
    }

    /// Says whether the caller is to look: one at a time does.
    fn want(&self, tag: Tag) -> bool {
        let mut book = self.0.lock();
        book.wanted.insert(tag);
        !std::mem::replace(&mut book.is_looking, true)
    }

    /// The next quota queue to be looked at; none, once nobody looks any more.
    fn next(&self) -> Option<(Tag, Option<Tied>)> {
        let mut book = self.0.lock();
        let tag = book.wanted.pop_first();
        book.is_looking = tag.is_some();
        tag.map(|tag| (tag, book.tied.remove(&tag)))
    }

    fn keep(&self, tag: Tag, tied: Tied, is_held: impl Fn() -> bool) {
        let left_over = {
            let mut book = self.0.lock();
            // Asked under the lock: whoever empties the quota queue forgets after that.
            if is_held() {
                book.tied.insert(tag, tied)
            } else {
                Some(tied)
            }
        };
        // The device is called: outside the lock.
        drop(left_over);
    }

    fn forget(&self, tag: Tag, is_held: impl Fn() -> bool) {
        let forgotten = {
            let mut book = self.0.lock();
            if is_held() {
                None
            } else {
                book.tied.remove(&tag)
            }
        };
        drop(forgotten);
    }
}

/// If looking panics (a waker of a user's may), others look again.
struct ResetOnPanic<'a>(&'a QuotaDeadlocks);

impl Drop for ResetOnPanic<'_> {
    fn drop(&mut self) {
        self.0.0.lock().is_looking = false;
    }
}

impl Service {
    /// Looks whether a tag is knotted at its quota queue, unless somebody looks already, who looks again then.
    pub(super) fn check_quota(&self, tag: Tag) {
        if !self.quota_deadlocks.want(tag) {
            return;
        }
        let reset = ResetOnPanic(&self.quota_deadlocks);
        while let Some((tag, tied)) = self.quota_deadlocks.next() {
            if let Some(tied) = self.look_for_quota_deadlock(tag, tied) {
                let account = self.queue.accounts.of(tag);
                self.quota_deadlocks
                    .keep(tag, tied, || account.is_holding());
            }
        }
        std::mem::forget(reset);
    }

    /// Somebody left the queue or the quota queue: nothing is kept of one at which nobody waits.
    pub(super) fn forget_throttled(&self, tag: Tag) {
        let account = self.queue.accounts.of(tag);
        self.quota_deadlocks.forget(tag, || account.is_holding());
    }

    /// None, if the tag moves: who changes that has the quota queue looked at.
    fn look_for_quota_deadlock(&self, tag: Tag, tied: Option<Tied>) -> Option<Tied> {
        // Before anything is asked after: who frees from now on wakes somebody, unless the quota queue is watched.
        let quota_queue = self.queue.throttled(tag)?;
        let account = self.queue.accounts.of(tag);
        let held = account.held_on();
        let is_all_awaited = !held.is_empty() && held.are_among(quota_queue.streams);
        if !is_all_awaited || account.has_promised() {
            return None;
        }
        let seen = Seen {
            first: quota_queue.first.sort_key.position,
            moves: account.moves(),
        };
        let Some(tied) = tied else {
            return self.tie_quota(tag, &quota_queue, held, seen);
        };
        if self.is_early(&tied).ok()? {
            return Some(self.keep_watching(tag, &quota_queue, tied));
        }
        let was_busy = matches!(tied.next, Next::Passed { .. });
        if was_busy || tied.seen != seen {
            return self.tie_quota(tag, &quota_queue, held, seen);
        }
        match self.busy_point(held).ok()? {
            Some(point) => Some(self.await_point(tag, &quota_queue, seen, point)),
            None => self.untie_quota(tag, &quota_queue, tied),
        }
    }

    /// Whether there is nothing to be seen before that which is waited for.
    fn is_early(&self, tied: &Tied) -> Result<bool, DeviceError> {
        let grace_ends = tied.since.saturating_add(self.rules.deadlock_grace);
        match &tied.next {
            Next::At { .. } => Ok(self.driver.device.now() < grace_ends),
            Next::Passed { point, .. } => Ok(!self.has_passed(point)?),
            Next::Never => Ok(false),
        }
    }

    /// As it was, but that more may have come who can be woken.
    fn keep_watching(&self, tag: Tag, quota_queue: &Throttled, tied: Tied) -> Tied {
        let next = match tied.next {
            Next::At { at, wakes, .. } if wakes < quota_queue.wakes() => {
                self.alarm(quota_queue, at)
            }
            Next::Passed { point, wakes, .. } if wakes < quota_queue.wakes() => {
                self.watch(quota_queue, point)
            }
            next => next,
        };
        self.queue.watch_quota(tag);
        Tied { next, ..tied }
    }

    fn alarm(&self, quota_queue: &Throttled, at: Duration) -> Next {
        Next::At {
            at,
            _alarm: Alarm::new(&self.driver.device, at, &quota_queue.waker()),
            wakes: quota_queue.wakes(),
        }
    }

    fn watch(&self, quota_queue: &Throttled, point: Point) -> Next {
        let _watch = Watch::new(point.marker().clone(), &quota_queue.waker());
        let wakes = quota_queue.wakes();
        Next::Passed {
            point,
            _watch,
            wakes,
        }
    }

    /// Nothing moves, from now on; or once the streams have done what they were given. None, if one of them cannot be
    /// asked.
    fn tie_quota(
        &self,
        tag: Tag,
        quota_queue: &Throttled,
        held: Streams,
        seen: Seen,
    ) -> Option<Tied> {
        if let Some(point) = self.busy_point(held).ok()? {
            return Some(self.await_point(tag, quota_queue, seen, point));
        }
        let since = self.driver.device.now();
        let next = self.alarm(quota_queue, since.saturating_add(self.rules.deadlock_grace));
        self.queue.watch_quota(tag);
        Some(Tied {
            seen,
            since,
            is_told: false,
            next,
        })
    }

    fn await_point(&self, tag: Tag, quota_queue: &Throttled, seen: Seen, point: Point) -> Tied {
        let next = self.watch(quota_queue, point);
        self.queue.watch_quota(tag);
        Tied {
            seen,
            since: self.driver.device.now(),
            is_told: false,
            next,
        }
    }

    /// A deadlock: whoever the limit allows comes in; if it allows nobody, that is told, and in the end the first fails.
    fn untie_quota(&self, tag: Tag, quota_queue: &Throttled, mut tied: Tied) -> Option<Tied> {
        if self.queue.admit_anybody(tag, &self.driver.gate) {
            return None;
        }
        let first = &quota_queue.first;
        if !std::mem::replace(&mut tied.is_told, true) {
            trace::deadlocked_at_limit(&self.shortfall(&first.demand), || self.holders(Some(tag)));
        }
        tied.next = Next::Never;
        let Some(limit) = self.rules.deadlock_limit else {
            return Some(tied);
        };
        let until = tied
            .since
            .saturating_add(limit.max(self.rules.deadlock_grace));
        if self.driver.device.now() < until {
            tied.next = self.alarm(quota_queue, until);
            return Some(tied);
        }
        let requested = first.demand.request.bytes;
        self.fail(first, self.deadlocked_at_limit(tag, requested));
        // The next one is the first, if there is one.
        self.quota_deadlocks.want(tag);
        None
    }

    fn deadlocked_at_limit(&self, tag: Tag, requested: u64) -> AllocError {
        let account = self.queue.accounts.of(tag);
        AllocError::DeadlockedAtLimit {
            tag,
            requested,
            used: account.charged(),
            limit: account.limit().unwrap_or(u64::MAX),
        }
    }
}
