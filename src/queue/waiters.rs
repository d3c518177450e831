//! All waiting requests of a pool: those in the fair queue, and those in the quota queues of tags.
//!
//! Requests over the limit of their tag wait in that tag's [quota queue](super::quota_queue). They keep no other
//! request from being served, and the gate does not close for them. All others wait in the
//! [fair queue](super::fair_queue), and the gate is closed while there are any.
//!
//! A change of the queue may move a request to where memory is searched for it. It is a *candidate* then, and a search
//! must follow. Every method that can make one returns whether it did.

use super::admission::QueueLimit;
use super::charge::Charge;
use super::fair_queue::{Cost, Position, SortKey};
use super::queued::Queued;
use super::quota_queue::QuotaQueues;
use super::scopes::Scopes;
use super::waiter::{Origin, Waiter};
use super::waiting::WaitingRequest;
use super::{Demand, Rules, Wants};
use crate::driver::{Expected, gate};
use crate::error::AllocError;
use crate::fault::injected;
use crate::id::{ReservationId, StreamId};
use crate::lane::Lane;
use crate::measure::{Account, Accounts, Tag, WaitOutcome, Waits};
use crate::sync::plain;
use crate::sync::{Arc, Foreign, Guards, Mutex, Ordering, SharedState, Trash};
use smallvec::SmallVec;
use std::num::NonZeroU32;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

/// How many requests are looked at, from the head on, for one that was not notified yet.
const NOTIFIED: usize = 4;

/// A request that joins.
pub(super) struct Newcomer<'a> {
    pub(super) lane: &'a Arc<Lane>,
    pub(super) demand: Demand,
    pub(super) wants: Wants,
    /// When it is due.
    pub(super) due: i128,
    pub(super) since: Duration,
    pub(super) patience: Expected,
    pub(super) waker: &'a Waker,
    /// The reservation in whose scope it was made.
    pub(super) scope: Option<ReservationId>,
    /// Where it was made.
    pub(super) location: &'static Location<'static>,
    /// How long it waits at most.
    pub(super) limit: Option<Duration>,
    /// `None` if it has no tag, or its tag's limit does not allow it now.
    pub(super) charge: Option<Charge<'a>>,
}

/// A request that joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) waiter: Arc<Waiter>,
    /// A request that is throttled may be the first to see that the limit allows others.
    pub(super) moved: Moved,
}

/// A request that may not join.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: AllocError,
    /// Bytes that were charged to its tag meanwhile: the caller uncharges them.
    pub(super) charged: Option<(Tag, u64)>,
}

/// How the queue changed when a request joined or left it, or a limit was raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "memory must be searched for a candidate"]
pub(super) struct Moved {
    /// Another request may be served now that could not be before.
    pub(super) has_candidate: bool,
    /// Another throttled request is the first of its tag now.
    pub(super) has_new_first: bool,
}

#[derive(Debug)]
struct Standing {
    queued: Queued,
    quotas: QuotaQueues,
    next: Position,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queue {
    standing: Mutex<Standing>,
    /// The requests made in scopes of reservations, throttled ones included.
    pub(super) scopes: Scopes,
    /// How the pool's requests waited.
    waits: plain::Arc<Waits>,
    /// The accounts of the tags: their bytes, and how their requests waited.
    pub(crate) accounts: Accounts,
    /// How many requests at the front are searched for when the head cannot be served.
    looked_at: usize,
}

impl Standing {
    /// Estimates how long a request would wait. With a tag, the request is over that tag's limit.
    fn expected_wait(
        &self,
        over: Option<Tag>,
        bytes: u64,
        key: SortKey,
        now: Duration,
    ) -> Option<Duration> {
        let in_queue = self.queued.expected_wait(bytes, key, now);
        let Some(tag) = over else {
            return in_queue;
        };
        let at_limit = self.quotas.get(tag)?.expected_wait(bytes, key, now)?;
        Some(at_limit.saturating_add(in_queue.unwrap_or_default()))
    }

    /// Checks whether a request may join the fair queue, or the quota queue of the tag.
    ///
    /// # Errors
    /// Returns an error if it may not.
    fn check(
        &self,
        newcomer: &Newcomer<'_>,
        over: Option<Tag>,
        rules: &Rules,
    ) -> Result<(), AllocError> {
        let (bytes, now) = (newcomer.demand.request.bytes, newcomer.since);
        let is_empty = match over {
            Some(tag) => {
                self.quotas.check(tag, bytes, now)?;
                self.quotas.is_empty(tag)
            }
            None => {
                self.queued.admission.check(None, bytes, now)?;
                self.queued.is_empty()
            }
        };
        // The first request waits in any case: it keeps the estimate current.
        let Some(limit) = newcomer.limit.filter(|_| rules.sheds && !is_empty) else {
            return Ok(());
        };
        let key = self.next_key(newcomer.due);
        let expected = self.expected_wait(over, bytes, key, now);
        match expected {
            Some(expected) if expected > limit => Err(AllocError::Shed { expected, limit }),
            _ => Ok(()),
        }
    }

    fn next_key(&self, due: i128) -> SortKey {
        let position = self.next;
        SortKey { due, position }
    }
}

impl Queue {
    pub(super) fn new(rules: &Rules, waits: plain::Arc<Waits>) -> Self {
        let standing = Standing {
            queued: Queued::new(rules.queue_limit),
            quotas: QuotaQueues::new(rules.queue_limit),
            next: 0,
        };
        Self {
            standing: Mutex::new(Guards::Queue, standing),
            scopes: Scopes::new(),
            waits,
            accounts: Accounts::new(),
            looked_at: rules.overtaking.looked_at(),
        }
    }

    /// Adds a request: to the quota queue of its tag if that has reached its limit, and otherwise to the fair queue.
    ///
    /// # Errors
    /// Returns an error if it may not wait.
    pub(super) fn join(
        &self,
        newcomer: Newcomer<'_>,
        rules: &Rules,
        gate: &SharedState,
    ) -> Result<Joined, Refused> {
        // With no lock held: that calls foreign code.
        let waker = newcomer.waker.clone();
        let mut standing = self.standing.lock();
        let (demand, now) = (newcomer.demand, newcomer.since);
        let bytes = demand.request.bytes;
        let account = demand.tag.map(|tag| (tag, self.accounts.of(tag)));
        // Under the lock: a free of the tag that comes later sees that a request is throttled.
        let over = account.filter(|(_, account)| {
            newcomer.charge.is_none() && account.charge_or_throttle(bytes).is_err()
        });
        let over = over.map(|(tag, _)| tag);
        if let Err(error) = standing.check(&newcomer, over, rules) {
            self.note_refusal(&newcomer, &error);
            if let Some(tag) = over {
                self.end_throttling(&standing, tag);
            }
            // Uncharged by the caller, with the lock released: that may let others in.
            let charged = demand
                .tag
                .filter(|_| over.is_none())
                .map(|tag| (tag, bytes));
            Charge::keep(newcomer.charge);
            return Err(Refused { error, charged });
        }
        Charge::keep(newcomer.charge);
        let origin = Origin {
            sort_key: standing.next_key(newcomer.due),
            flow: demand.tag.filter(|_| account.is_some_and(has_weight)),
            lane: newcomer.lane.clone(),
            demand,
            wants: newcomer.wants,
            since: now,
            patience: newcomer.patience,
            scope: newcomer.scope,
            location: newcomer.location,
            is_throttled: over.is_some(),
        };
        standing.next += 1;
        let waiter = Arc::new(Waiter::new(origin, waker));
        self.counted_for(&waiter).for_each(Waits::begin);
        self.scopes.enter(&waiter, gate);
        let moved = match over {
            Some(tag) => {
                standing
                    .quotas
                    .of(tag)
                    .join(Foreign::new(waiter.clone()), now);
                // It may be first, and small enough for the limit.
                self.admit_from(&mut standing, tag, now, gate)
            }
            None => Moved {
                has_candidate: self.enqueue(&mut standing, Foreign::new(waiter.clone()), now, gate),
                has_new_first: false,
            },
        };
        Ok(Joined { waiter, moved })
    }

    /// Adds a request to the fair queue. The gate is closed under the queue's lock, as it is opened, so that it is
    /// closed whenever a request waits there. Returns whether the request is a candidate.
    fn enqueue(
        &self,
        standing: &mut Standing,
        waiter: Foreign<Arc<Waiter>>,
        now: Duration,
        gate: &SharedState,
    ) -> bool {
        let bytes = waiter.demand.request.bytes;
        if let Some(tag) = waiter.demand.tag {
            self.accounts.of(tag).promise(bytes);
        }
        if standing.queued.is_empty() {
            gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
        let sort_key = waiter.sort_key;
        standing.queued.join(waiter, now) || self.is_looked_at(standing, sort_key)
    }

    /// Removes a request, served after `waited` or not at all. The second call for a request does nothing.
    pub(super) fn leave(
        &self,
        waiter: &Waiter,
        waited: Option<Duration>,
        now: Duration,
        gate: &SharedState,
    ) -> Moved {
        let bytes = waiter.demand.request.bytes;
        let mut standing = self.standing.lock_with_trash();
        let (standing, trash) = standing.parts();
        let served = waited.map(|_| self.cost_of(waiter));
        // The server goes on with the next request by itself.
        let has_candidate = served.is_none() && self.is_looked_at(standing, waiter.sort_key);
        let served_at = waited.map(|_| now);
        let moved = if standing.queued.leave(waiter, served, served_at, trash) {
            if let Some(tag) = waiter.demand.tag {
                self.accounts.of(tag).end_promise(bytes);
            }
            if standing.queued.is_empty() {
                gate.fetch_and(!gate::WAITING, Ordering::SeqCst);
            }
            Moved {
                has_candidate,
                has_new_first: false,
            }
        } else {
            let tag = waiter.demand.tag;
            let Some((tag, quota_queue)) =
                tag.and_then(|tag| Some((tag, standing.quotas.get_mut(tag)?)))
            else {
                return Moved::default();
            };
            let was_first = quota_queue
                .first()
                .is_some_and(|first| first.sort_key == waiter.sort_key);
            let left = quota_queue.leave(waiter.sort_key, None);
            if left.is_none() {
                return Moved::default();
            }
            trash.add(left);
            let mut moved = self.admit_from(standing, tag, now, gate);
            moved.has_new_first |= was_first;
            moved
        };
        self.scopes.leave(waiter, gate, trash);
        // Before the lock is released: a thread that hears that the request was served finds it counted.
        let outcome = waited.map_or_else(|| waiter.unserved(), |_| WaitOutcome::Served);
        let waited = waited.unwrap_or_default();
        self.counted_for(waiter)
            .for_each(|waits| waits.end(outcome, waited));
        moved
    }

    /// Returns whether memory is searched for a request: it is the head, or one of those that may overtake the head.
    fn is_looked_at(&self, standing: &Standing, sort_key: SortKey) -> bool {
        let is_it = |other: &Arc<Waiter>| other.sort_key == sort_key;
        if self.looked_at == 1 {
            return standing.queued.head().is_some_and(is_it);
        }
        self.first_of(standing, self.looked_at).any(is_it)
    }

    /// Returns the first requests in the order in which they are served if no request comes.
    fn first_of<'a>(
        &'a self,
        standing: &'a Standing,
        most: usize,
    ) -> impl Iterator<Item = &'a Arc<Waiter>> {
        standing.queued.first(most, |waiter| self.cost_of(waiter))
    }

    /// Lets requests of a tag into the fair queue, as far as its limit allows now.
    pub(super) fn admit(&self, tag: Tag, now: Duration, gate: &SharedState) -> Moved {
        self.admit_from(&mut self.standing.lock(), tag, now, gate)
    }

    fn admit_from(
        &self,
        standing: &mut Standing,
        tag: Tag,
        now: Duration,
        gate: &SharedState,
    ) -> Moved {
        let account = self.accounts.of(tag);
        let mut moved = Moved::default();
        while let Some(quota_queue) = standing.quotas.get_mut(tag) {
            let Some(first) = quota_queue.first() else {
                break;
            };
            if account
                .charge_throttled(first.demand.request.bytes)
                .is_err()
            {
                break;
            }
            let sort_key = first.sort_key;
            let Some(waiter) = quota_queue.leave(sort_key, Some(now)) else {
                break;
            };
            waiter.end_throttling();
            moved.has_candidate |= self.enqueue(standing, waiter, now, gate);
            moved.has_new_first = true;
        }
        self.end_throttling(standing, tag);
        moved
    }

    /// Notes that no request of a tag is throttled any more, if so.
    fn end_throttling(&self, standing: &Standing, tag: Tag) {
        if standing.quotas.is_empty(tag) {
            self.accounts.of(tag).end_throttling();
        }
    }

    /// Sets the limit of a tag, and lets requests in that it allows.
    pub(super) fn set_limit(
        &self,
        tag: Tag,
        limit: Option<u64>,
        now: Duration,
        gate: &SharedState,
    ) -> Moved {
        let mut standing = self.standing.lock();
        // Under the lock: a request throttled by the old limit is let in by the new one.
        self.accounts.of(tag).set_limit(limit);
        self.admit_from(&mut standing, tag, now, gate)
    }

    /// Returns the first throttled request of a tag.
    pub(super) fn first_throttled(&self, tag: Tag) -> Option<Arc<Waiter>> {
        let standing = self.standing.lock();
        standing.quotas.get(tag)?.first().cloned()
    }

    /// Returns the first throttled request of each tag that has any.
    pub(super) fn firsts_throttled(&self) -> Vec<Arc<Waiter>> {
        let standing = self.standing.lock();
        standing.quotas.firsts().cloned().collect()
    }

    /// Returns the wakers of all throttled requests: of one tag, or of every tag.
    pub(super) fn wakers_of_throttled(&self, of: Option<Tag>) -> Vec<Waker> {
        let standing = self.standing.lock();
        let throttled = standing.quotas.waiters(of);
        throttled.filter_map(|waiter| waiter.notify()).collect()
    }

    /// Returns the waker of the first waiter in order that was not notified already, if there is one. One that was, and
    /// has not been polled since, is on its way, or does not answer. `None` if no request waits in the fair queue, or
    /// else `claim` returns false, which is called under the lock.
    pub(super) fn next_to_notify(&self, claim: impl FnOnce() -> bool) -> Option<Option<Waker>> {
        let standing = self.standing.lock();
        let is_empty = standing.queued.is_empty() && !injected("notified-with-no-request-waiting");
        if is_empty || !claim() {
            return None;
        }
        let mut first = self.first_of(&standing, NOTIFIED);
        Some(first.find_map(|waiter| waiter.notify()))
    }

    /// Returns whether a request in the fair queue is for the stream.
    pub(super) fn waits_for(&self, stream: StreamId) -> bool {
        self.standing.lock().queued.waits_for(stream)
    }

    /// Returns the requests to search for in a deadlock, apart from the head; see [`scan`](super::scan).
    pub(super) fn to_scan(&self, generation: u64, usual_alignment: u64) -> Vec<Arc<Waiter>> {
        let mut standing = self.standing.lock_with_trash();
        let (standing, trash) = standing.parts();
        let cost = |waiter: &Arc<Waiter>| self.cost_of(waiter);
        standing
            .queued
            .begin_scan(generation, usual_alignment, cost, trash)
    }

    /// Forgets the last search for every request: something moved.
    pub(super) fn forget_scan(&self) {
        let mut standing = self.standing.lock_with_trash();
        let (standing, trash) = standing.parts();
        standing.queued.forget_scan(trash);
    }

    /// Returns when the oldest waiting request arrived, on the device's clock.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let standing = self.standing.lock();
        let queued = standing.queued.oldest();
        let throttled = standing.quotas.waiters(None);
        let since = throttled.map(|waiter| waiter.since).chain(queued);
        since.min()
    }

    /// Returns when the oldest request in the fair queue arrived, on the device's clock. Requests that wait for the
    /// limit of their tag do not count.
    pub(crate) fn oldest_for_memory(&self) -> Option<Duration> {
        self.standing.lock().queued.oldest()
    }

    pub(crate) fn set_queue_limit(&self, limit: QueueLimit) {
        let mut standing = self.standing.lock();
        standing.queued.admission.limit = limit;
        standing.quotas.set_pools_limit(limit);
    }

    pub(crate) fn queue_limit(&self) -> QueueLimit {
        self.standing.lock().queued.admission.limit
    }

    /// Sets how many requests of a tag may wait for its limit. With `None`, the pool's queue limit applies to the tag.
    pub(crate) fn set_tag_queue_limit(&self, tag: Tag, limit: Option<QueueLimit>) {
        self.standing.lock().quotas.set_limit(tag, limit);
    }

    /// Returns how many requests of a tag may wait for its limit.
    pub(crate) fn tag_queue_limit(&self, tag: Tag) -> QueueLimit {
        self.standing.lock().quotas.limit(tag)
    }

    /// Estimates the wait of a request that arrives now and is due at `due`. With a tag, the request is over that tag's
    /// limit.
    pub(super) fn expected_wait(
        &self,
        over: Option<Tag>,
        bytes: u64,
        due: i128,
        now: Duration,
    ) -> Option<Duration> {
        let standing = self.standing.lock();
        let key = standing.next_key(due);
        standing.expected_wait(over, bytes, key, now)
    }

    fn note_refusal(&self, newcomer: &Newcomer<'_>, refusal: &AllocError) {
        let all = self.waits_of(newcomer.lane, &newcomer.demand);
        match refusal {
            AllocError::Shed { .. } => all.for_each(Waits::note_shed),
            _ => all.for_each(Waits::note_refused),
        }
    }

    /// Returns the counters in which a waiter's wait is counted.
    fn counted_for<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = &'a Waits> {
        self.waits_of(&waiter.lane, &waiter.demand)
    }

    fn waits_of<'a>(&'a self, lane: &'a Lane, demand: &Demand) -> impl Iterator<Item = &'a Waits> {
        let of_tag = demand.tag.map(|tag| &self.accounts.of(tag).waits);
        [&*self.waits, &lane.waits].into_iter().chain(of_tag)
    }

    /// Returns the first `most` waiting requests, those in quota queues last.
    pub(super) fn first(&self, most: usize) -> Vec<Arc<Waiter>> {
        let standing = self.standing.lock();
        let in_order = self.first_of(&standing, most);
        let throttled = standing.quotas.waiters(None);
        in_order.chain(throttled).take(most).cloned().collect()
    }

    /// Describes the first `most` waiting requests, those over the limit of their tag last.
    pub(crate) fn waiting_requests(&self, most: usize, now: Duration) -> Vec<WaitingRequest> {
        let standing = self.standing.lock();
        let in_order = self.first_of(&standing, most);
        let in_order = in_order.map(|waiter| (waiter, None));
        let throttled = standing.quotas.waiters(None);
        let throttled = throttled.map(|waiter| (waiter, waiter.demand.tag));
        let describe = |(waiter, over): (&Arc<Waiter>, _)| {
            let bytes = waiter.demand.request.bytes;
            let expected = standing.expected_wait(over, bytes, waiter.sort_key, now);
            WaitingRequest::of(waiter, now, expected)
        };
        let first = in_order.chain(throttled).take(most);
        first.map(describe).collect()
    }

    /// Returns the request that is served next.
    pub(super) fn head(&self) -> Option<Arc<Waiter>> {
        self.standing.lock().queued.head().cloned()
    }

    /// Returns the head and the requests that may overtake it, in the order in which they are served if no further
    /// request arrives.
    pub(super) fn looked_at(&self) -> SmallVec<[Arc<Waiter>; 1]> {
        let standing = self.standing.lock();
        let in_order = self.first_of(&standing, self.looked_at);
        in_order.cloned().collect()
    }

    /// Returns the cost of serving a waiter, to its flow.
    fn cost_of(&self, waiter: &Waiter) -> Cost {
        let weight = waiter.flow.and_then(|tag| self.accounts.of(tag).weight());
        Cost {
            bytes: waiter.demand.request.bytes,
            weight: weight.map_or(1, NonZeroU32::get),
        }
    }

    /// Returns how many requests wait in the fair queue.
    pub(super) fn queued(&self) -> usize {
        self.standing.lock().queued.len()
    }

    /// Returns whether no request waits in the fair queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.standing.lock().queued.is_empty()
    }

    /// Returns the number of requests that wait, in the fair queue or in a quota queue.
    pub(crate) fn waiting(&self) -> usize {
        // Under the lock: no request joins or leaves meanwhile.
        let _standing = self.standing.lock();
        self.waits.waiting()
    }
}

impl Drop for Queue {
    /// Only forgotten requests are left.
    fn drop(&mut self) {
        let mut trash = Trash::new();
        let standing = self.standing.get_mut();
        standing.queued.take_all(&mut trash);
        trash.add(standing.quotas.take_all());
    }
}

fn has_weight((_, account): (Tag, &Account)) -> bool {
    account.weight().is_some()
}
