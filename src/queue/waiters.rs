//! All waiting requests of a pool: those in the fair queue, and those in the quota queues of tags.
//!
//! Requests over the limit of their tag wait in that tag's [quota queue](super::quota_queue). They keep no other
//! request from being served, and the gate does not close for them. All others wait in the
//! [fair queue](super::fair_queue), and the gate is closed while there are any. A request whose waiter does not answer is
//! [set aside](super::pass) until it is polled.
//!
//! A change of the queue may move a request to where memory is searched for it. It is a *candidate* then, and a search
//! must follow. Every method that can make one returns whether it did.

use super::admission::{QueueLimit, full};
use super::charge::TagCharge;
use super::fair_queue::{Cost, Flow, Position, SortKey};
use super::listing::Listing;
use super::queued::Queued;
use super::quota_queue::QuotaQueues;
use super::scopes::Scopes;
use super::shares::{Amount, Applicant};
use super::waiter::{Waiter, WaiterOrigin};
use super::waiting_request::WaitingRequest;
use super::{Demand, Rules};
use crate::engine::{Expected, Parts, gate};
use crate::error::AllocError;
use crate::fault::injected;
use crate::id::{ReservationId, StreamId};
use crate::lane::Lane;
use crate::measure::{Accounts, Tag, WaitOutcome, Waits};
use crate::sync::plain;
use crate::sync::{Arc, Foreign, Guards, Mutex, Ordering, SharedState, Trash};
use smallvec::SmallVec;
use std::collections::BTreeMap;
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
    pub(super) parts: Parts,
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
    pub(super) charge: Option<TagCharge<'a>>,
}

/// A request that joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) waiter: Arc<Waiter>,
    /// A request that is throttled may be the first to see that the limit allows others.
    pub(super) moved: Moved,
    /// The requests in whose place it waits. The caller ends their waits, with the lock released.
    pub(super) displaced: Vec<Displaced>,
}

/// A request that lost its place to one of a tag below its share.
#[derive(Debug)]
pub(super) struct Displaced {
    pub(super) waiter: Arc<Waiter>,
    /// `None` if it was granted in the same moment, or is gone: it leaves the queue with that outcome. Otherwise the
    /// waker to call, if there is one.
    pub(super) waker: Option<Option<Waker>>,
}

/// A request that may not join.
#[derive(Debug)]
pub(super) struct JoinRefused {
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

impl Moved {
    fn and(&mut self, other: Self) {
        self.has_candidate |= other.has_candidate;
        self.has_new_first |= other.has_new_first;
    }
}

/// How a request leaves the queue.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// Served after that long.
    Served(Duration),
    Unserved,
    /// It lost its place to a request of another tag.
    Displaced,
}

#[derive(Debug)]
struct Standing {
    queued: Queued,
    /// Requests that were set aside: their waiters were woken and not polled.
    aside: BTreeMap<Position, Foreign<Arc<Waiter>>>,
    quotas: QuotaQueues,
    next: Position,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Waiters {
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
    /// Estimates how long a request of a flow would wait. With a tag, the request is over that tag's limit.
    fn expected_wait(
        &self,
        over: Option<Tag>,
        flow: Flow,
        bytes: u64,
        key: SortKey,
        now: Duration,
        weight: impl Fn(Flow) -> u32,
    ) -> Option<Duration> {
        let ahead = || self.queued.bytes_before(flow, key, weight);
        let admission = &self.queued.admission;
        let is_known = admission.pace.time_for(0, now).is_some();
        let in_queue = is_known
            .then(|| admission.expected_wait(bytes, ahead(), now))
            .flatten();
        let Some(tag) = over else {
            return in_queue;
        };
        let at_limit = self.quotas.get(tag)?.expected_wait(bytes, key, now)?;
        Some(at_limit.saturating_add(in_queue.unwrap_or_default()))
    }

    /// Checks whether a request may join the fair queue, or the quota queue of the tag. Returns the requests that lose
    /// their places to it.
    ///
    /// # Errors
    /// Returns an error if it may not.
    fn check(
        &self,
        newcomer: &Newcomer<'_>,
        flow: Flow,
        over: Option<Tag>,
        rules: &Rules,
        weight: impl Fn(Flow) -> u32,
    ) -> Result<Vec<Arc<Waiter>>, AllocError> {
        let (demand, now) = (newcomer.demand, newcomer.since);
        let (bytes, key) = (demand.request.bytes, self.next_key(newcomer.due));
        let expected = || self.expected_wait(over, flow, bytes, key, now, &weight);
        if let Some((tag, waiting, limit)) = self.limit_of_tag(demand.tag, over)
            && waiting.is_full(limit, bytes)
        {
            return Err(full(Some(tag), bytes, waiting, limit, expected()));
        }
        let (is_empty, displaced) = match over {
            Some(tag) => (self.quotas.is_empty(tag), Vec::new()),
            None => {
                let candidate = Applicant {
                    party: demand.tag,
                    weight: weight(demand.tag),
                    bytes,
                };
                let (queued, limit) = (&self.queued, self.queued.admission.limit);
                let displaced = queued.shares.displaced_by(candidate, limit);
                let refused = || full(None, bytes, queued.shares.total(), limit, expected());
                (queued.is_empty(), displaced.ok_or_else(refused)?)
            }
        };
        // The first request waits in any case: it keeps the estimate current.
        if let Some(limit) = newcomer.limit.filter(|_| rules.sheds && !is_empty)
            && let Some(expected) = expected().filter(|expected| *expected > limit)
        {
            return Err(AllocError::Shed { expected, limit });
        }
        let displaced = displaced.into_iter();
        let displaced = displaced.filter_map(|place| self.queued.at(*place));
        Ok(displaced.cloned().collect())
    }

    /// Returns the queue limit that holds for the requests of a tag alone, if any, with those that wait: its own limit
    /// for all of them, or else the pool's for those over the tag's limit.
    fn limit_of_tag(
        &self,
        tag: Option<Tag>,
        over: Option<Tag>,
    ) -> Option<(Tag, Amount, QueueLimit)> {
        let tag = tag?;
        let mut waiting = self.quotas.waiting(tag);
        match self.quotas.own_limit(tag) {
            Some(limit) => {
                let in_queue = self.queued.shares.of(Some(tag));
                waiting.requests += in_queue.requests;
                waiting.bytes = waiting.bytes.saturating_add(in_queue.bytes);
                Some((tag, waiting, limit))
            }
            None => over.map(|tag| (tag, waiting, self.quotas.limit(tag))),
        }
    }

    fn next_key(&self, due: i128) -> SortKey {
        let position = self.next;
        SortKey { due, position }
    }
}

impl Waiters {
    pub(super) fn new(rules: &Rules, waits: plain::Arc<Waits>) -> Self {
        let standing = Standing {
            queued: Queued::new(rules.queue_limit),
            aside: BTreeMap::new(),
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
    ) -> Result<Joined, JoinRefused> {
        // With no lock held: that calls foreign code.
        let waker = newcomer.waker.clone();
        let mut standing = self.standing.lock_with_trash();
        let (standing, trash) = standing.parts();
        let (demand, now) = (newcomer.demand, newcomer.since);
        let bytes = demand.request.bytes;
        let account = demand.tag.map(|tag| (tag, self.accounts.of(tag)));
        // Under the lock: a free of the tag that comes later sees that a request is throttled.
        let over = account.filter(|(_, account)| {
            newcomer.charge.is_none() && account.charge_or_throttle(bytes).is_err()
        });
        let over = over.map(|(tag, _)| tag);
        let flow = self.flow_of(demand.tag);
        let weight = |tag| self.weight_of(tag);
        let checked = standing.check(&newcomer, flow, over, rules, weight);
        let displaced = checked.map_err(|error| {
            self.count_refusal(&newcomer, &error);
            if let Some(tag) = over {
                self.end_throttling(standing, tag);
            }
            // Uncharged by the caller, with the lock released: that may let others in.
            let charged = demand
                .tag
                .filter(|_| over.is_none())
                .map(|tag| (tag, bytes));
            (error, charged)
        });
        if let Some(charge) = newcomer.charge {
            charge.keep();
        }
        let displaced = displaced.map_err(|(error, charged)| JoinRefused { error, charged })?;
        let (displaced, moved_up) = self.displace(standing, displaced, now, gate, trash);
        let origin = WaiterOrigin {
            sort_key: standing.next_key(newcomer.due),
            flow,
            lane: newcomer.lane.clone(),
            demand,
            parts: newcomer.parts,
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
        let mut moved = match over {
            Some(tag) => {
                let throttled = Foreign::new(waiter.clone());
                standing.quotas.of(tag).join(throttled, now);
                // It may be first, and small enough for the limit.
                self.admit_from(standing, tag, now, gate)
            }
            None => Moved {
                has_candidate: self.enqueue(standing, Foreign::new(waiter.clone()), now, gate),
                has_new_first: false,
            },
        };
        moved.and(moved_up);
        Ok(Joined {
            waiter,
            moved,
            displaced,
        })
    }

    /// Fails requests that lose their places, and takes them out.
    fn displace(
        &self,
        standing: &mut Standing,
        waiters: Vec<Arc<Waiter>>,
        now: Duration,
        gate: &SharedState,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> (Vec<Displaced>, Moved) {
        let mut moved = Moved::default();
        let (waiting, limit) = (
            standing.queued.shares.total(),
            standing.queued.admission.limit,
        );
        let displaced = waiters.into_iter().map(|waiter| {
            let (bytes, key) = (waiter.demand.request.bytes, waiter.sort_key);
            let weight = |flow| self.weight_of(flow);
            let expected = standing.expected_wait(None, waiter.flow, bytes, key, now, weight);
            // A request that was granted in this moment keeps its grant. It leaves by itself, and makes room.
            let waker = waiter.fail(full(None, bytes, waiting, limit, expected));
            if waker.is_some() {
                moved.and(self.leave_from(standing, &waiter, Left::Displaced, now, gate, trash));
            }
            Displaced { waiter, waker }
        });
        (displaced.collect(), moved)
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
        self.place(standing, waiter, now, gate)
    }

    fn place(
        &self,
        standing: &mut Standing,
        waiter: Foreign<Arc<Waiter>>,
        now: Duration,
        gate: &SharedState,
    ) -> bool {
        if standing.queued.is_empty() {
            gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
        let weight = self.weight_of(waiter.demand.tag);
        let sort_key = waiter.sort_key;
        standing.queued.join(waiter, weight, now) || self.is_looked_at(standing, sort_key)
    }

    /// Removes a request, served after `waited` or not at all. The second call for a request does nothing.
    pub(super) fn leave(
        &self,
        waiter: &Waiter,
        waited: Option<Duration>,
        now: Duration,
        gate: &SharedState,
    ) -> Moved {
        let left = waited.map_or(Left::Unserved, Left::Served);
        let mut standing = self.standing.lock_with_trash();
        let (standing, trash) = standing.parts();
        self.leave_from(standing, waiter, left, now, gate, trash)
    }

    fn leave_from(
        &self,
        standing: &mut Standing,
        waiter: &Waiter,
        left: Left,
        now: Duration,
        gate: &SharedState,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> Moved {
        let bytes = waiter.demand.request.bytes;
        let is_served = matches!(left, Left::Served(_));
        let served = is_served.then(|| self.cost_of(waiter));
        // The server goes on with the next request by itself.
        let has_candidate = !is_served && self.is_looked_at(standing, waiter.sort_key);
        let served_at = is_served.then_some(now);
        let is_in_queue = standing.queued.leave(waiter, served, served_at, trash);
        let aside = match is_in_queue {
            true => None,
            false => standing.aside.remove(&waiter.sort_key.position),
        };
        let was_aside = aside.is_some();
        trash.add(aside);
        let moved = if is_in_queue || was_aside {
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
        self.counted_for(waiter).for_each(|waits| match left {
            Left::Served(waited) => waits.end(WaitOutcome::Served, waited),
            Left::Unserved => waits.end(waiter.unserved(), Duration::ZERO),
            Left::Displaced => waits.end_refused(),
        });
        moved
    }

    /// Sets a request aside whose waiter was woken and not polled, and opens the gate if no other one waits. Returns whether
    /// it did.
    pub(super) fn set_aside(&self, waiter: &Arc<Waiter>, gate: &SharedState) -> bool {
        let mut standing = self.standing.lock_with_trash();
        let (standing, trash) = standing.parts();
        if !standing.queued.has(waiter) || !waiter.set_aside() {
            return false;
        }
        standing.queued.leave(waiter, None, None, trash);
        let position = waiter.sort_key.position;
        let aside = Foreign::new(waiter.clone());
        trash.add(standing.aside.insert(position, aside));
        if standing.queued.is_empty() {
            gate.fetch_and(!gate::WAITING, Ordering::SeqCst);
        }
        true
    }

    /// Puts a request back to its position that was set aside, since its waiter is polled. Returns whether it did.
    pub(super) fn bring_back(&self, waiter: &Waiter, now: Duration, gate: &SharedState) -> bool {
        let mut standing = self.standing.lock();
        let Some(waiter) = standing.aside.remove(&waiter.sort_key.position) else {
            return false;
        };
        waiter.is_aside.store(false, Ordering::Release);
        let _ = self.place(&mut standing, waiter, now, gate);
        true
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
        standing.queued.first(most, |flow| self.weight_of(flow))
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

    /// Returns the waiting requests of a tag that are larger than its limit. Takes constant time if there are none.
    pub(super) fn over_limit(&self, tag: Tag) -> Vec<Arc<Waiter>> {
        let Some(limit) = self.accounts.of(tag).limit() else {
            return Vec::new();
        };
        let standing = self.standing.lock();
        let queued = standing.queued.shares.larger_than(Some(tag), limit);
        let queued = queued.filter_map(|place| standing.queued.at(*place));
        let throttled = standing.quotas.larger_than(tag, limit);
        let is_meant = |waiter: &&Arc<Waiter>| {
            waiter.demand.tag == Some(tag) && waiter.demand.request.bytes > limit
        };
        let aside = standing.aside.values().map(|aside| &**aside);
        let aside = aside.filter(is_meant);
        queued.chain(throttled).chain(aside).cloned().collect()
    }

    /// Sets the weight of a tag.
    pub(crate) fn set_weight(&self, tag: Tag, weight: u32) {
        let mut standing = self.standing.lock();
        // Under the lock: a request that joins later finds the new weight.
        self.accounts.of(tag).set_weight(weight);
        let weight = self.weight_of(Some(tag));
        standing.queued.shares.set_weight(Some(tag), weight);
    }

    /// Returns the first throttled request of a tag.
    pub(super) fn first_throttled(&self, tag: Tag) -> Option<Arc<Waiter>> {
        let standing = self.standing.lock();
        standing.quotas.get(tag)?.first().cloned()
    }

    /// Returns the wakers of all throttled requests.
    pub(super) fn wakers_of_throttled(&self) -> Vec<Waker> {
        let standing = self.standing.lock();
        let throttled = standing.quotas.waiters();
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
        let weight = |flow| self.weight_of(flow);
        standing
            .queued
            .begin_scan(generation, usual_alignment, weight, trash)
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
        let throttled = standing.quotas.waiters();
        let others = throttled.chain(standing.aside.values().map(|aside| &**aside));
        let since = others.map(|waiter| waiter.since).chain(queued);
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

    /// Sets how many requests of a tag may wait. With `None`, the pool's queue limit applies to those over its limit.
    pub(crate) fn set_tag_queue_limit(&self, tag: Tag, limit: Option<QueueLimit>) {
        self.standing.lock().quotas.set_limit(tag, limit);
    }

    /// Returns how many requests of a tag may wait.
    pub(crate) fn tag_queue_limit(&self, tag: Tag) -> QueueLimit {
        self.standing.lock().quotas.limit(tag)
    }

    /// Estimates the wait of a request of a tag that arrives now and is due at `due`. With `over`, the request is over that
    /// tag's limit.
    pub(super) fn expected_wait(
        &self,
        over: Option<Tag>,
        tag: Option<Tag>,
        bytes: u64,
        due: i128,
        now: Duration,
    ) -> Option<Duration> {
        let standing = self.standing.lock();
        let (key, flow) = (standing.next_key(due), self.flow_of(tag));
        let weight = |flow| self.weight_of(flow);
        standing.expected_wait(over, flow, bytes, key, now, weight)
    }

    fn count_refusal(&self, newcomer: &Newcomer<'_>, refusal: &AllocError) {
        let all = self.waits_of(newcomer.lane, &newcomer.demand);
        match refusal {
            AllocError::Shed { .. } => all.for_each(Waits::count_shed),
            _ => all.for_each(Waits::count_refused),
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

    /// Returns the first `most` waiting requests, those in quota queues and those set aside last.
    pub(super) fn first(&self, most: usize) -> Vec<Arc<Waiter>> {
        let standing = self.standing.lock();
        let in_order = self.first_of(&standing, most);
        let others = standing.aside.values().map(|aside| &**aside);
        let others = standing.quotas.waiters().chain(others);
        in_order.chain(others).take(most).cloned().collect()
    }

    /// Describes the first `most` waiting requests, those over the limit of their tag last. The lock is held for a part of
    /// them at a time. A request that joins or leaves meanwhile may be missing or listed, and one that its limit lets in
    /// may be missing.
    pub(crate) fn waiting_requests(&self, most: usize, now: Duration) -> Vec<WaitingRequest> {
        /// Requests in a part.
        const PART: usize = 256;
        let (pace, mut walk) = {
            let standing = self.standing.lock();
            (standing.queued.admission.pace, standing.queued.walk(most))
        };
        let mut listing = Listing::new(pace, now);
        let parts = |listing: &Listing| (most - listing.len()).min(PART);
        loop {
            let mut part = Vec::with_capacity(parts(&listing));
            {
                let standing = self.standing.lock();
                let weight = |flow| self.weight_of(flow);
                let mut next = || standing.queued.next_of(&mut walk, weight);
                while part.len() < parts(&listing)
                    && let Some((turn, waiter)) = next()
                {
                    part.push((turn, waiter.clone()));
                }
            }
            if part.is_empty() {
                break;
            }
            for (turn, waiter) in &part {
                listing.add(*turn, waiter, self.cost_of(waiter));
            }
        }
        let mut last = None;
        while parts(&listing) > 0 {
            let part: Vec<_> = {
                let standing = self.standing.lock();
                let throttled = standing.quotas.waiters_after(last).take(parts(&listing));
                let throttled = throttled.map(|(tag, waiter)| {
                    let pace = standing.quotas.pace(tag);
                    (
                        pace,
                        standing.queued.start_of(waiter.flow),
                        tag,
                        waiter.clone(),
                    )
                });
                throttled.collect()
            };
            let Some((_, _, tag, waiter)) = part.last() else {
                break;
            };
            last = Some((*tag, waiter.sort_key));
            for (pace, start, tag, waiter) in &part {
                listing.add_throttled(*tag, *pace, *start, waiter);
            }
        }
        let aside: Vec<_> = {
            let standing = self.standing.lock();
            let aside = standing.aside.values().take(most - listing.len());
            aside.map(|aside| (**aside).clone()).collect()
        };
        aside.iter().for_each(|waiter| listing.add_aside(waiter));
        listing.finish()
    }

    /// Has the owner of a request told when the request stalls. Returns whether this is the first time: then the queue
    /// is to be served.
    pub(super) fn watch(&self, waiter: &Waiter) -> bool {
        if waiter.stall.is_watched() {
            return false;
        }
        // Under the lock, under which a server reads the first requests: it sees this, or it has begun before this, and
        // is told to look again.
        let _standing = self.standing.lock();
        waiter.stall.watch()
    }

    /// Returns whether nothing can serve the request, which is the first, and its owner was not told. It is told now.
    pub(super) fn tell_of_stall(&self, waiter: &Waiter) -> bool {
        if !waiter.stall.has_begun() {
            return false;
        }
        let standing = self.standing.lock();
        // Before it is known whether the request is still the first: a stall that begins later wakes its owner.
        if !waiter.stall.take() {
            return false;
        }
        let first = match waiter.demand.tag.filter(|_| waiter.is_throttled()) {
            Some(tag) => standing.quotas.get(tag).and_then(|quota| quota.first()),
            None => standing.queued.head(),
        };
        let is_first = first.is_some_and(|first| first.sort_key == waiter.sort_key);
        if is_first {
            // Under the lock, where a request enters the fair queue, and is told again.
            waiter.stall.mark_told();
        }
        is_first
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
        Cost {
            bytes: waiter.demand.request.bytes,
            weight: self.weight_of(waiter.flow),
        }
    }

    /// Returns the weight of a tag or flow: 1 if it has none.
    fn weight_of(&self, tag: Option<Tag>) -> u32 {
        let weight = tag.and_then(|tag| self.accounts.of(tag).weight());
        weight.map_or(1, NonZeroU32::get)
    }

    /// Returns the flow of a tag's requests.
    fn flow_of(&self, tag: Option<Tag>) -> Flow {
        tag.filter(|tag| self.accounts.of(*tag).weight().is_some())
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

impl Drop for Waiters {
    /// Only forgotten requests are left.
    fn drop(&mut self) {
        let mut trash = Trash::new();
        let standing = self.standing.get_mut();
        standing.queued.take_all(&mut trash);
        trash.add(standing.quotas.take_all());
        trash.add(std::mem::take(&mut standing.aside).into_values());
    }
}
