//! The queue: all requests that wait, in the fair queue, in the quota queues of tags, or set aside.
//!
//! Requests over the limit of their tag wait in that tag's [quota queue](crate::quota_queue). They keep no other request
//! from being served. All others wait in the [fair queue](crate::fair_queue), and the *gate* is closed while there are
//! any. A request whose waiter does not answer is *set aside* until it is polled.
//!
//! Each method decides and returns what should happen; its caller does it. A change of the queue may move a request to
//! where memory is searched for it. It is a *candidate* then, and a search must follow. Every method that can make one
//! returns whether it did.

use crate::admission::{full, joined_wait};
use crate::amount::Amount;
use crate::fair_queue::{Cost, Flow, Place, Position, SortKey, WaiterWalk};
use crate::listing::Listing;
use crate::queued::Queued;
use crate::quota_queue::QuotaQueues;
use crate::scan::{Pieces, ToTry};
use crate::shares::Applicant;
use crate::terms::Rules;
use crate::{Entry, FullQueue, QueueLimit, Tag};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::time::Duration;
use weirpool_heap::id::StreamId;

/// A request that asks to join.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// The tag that is charged, if any.
    pub tag: Option<Tag>,
    /// The rounded size.
    pub bytes: u64,
    /// The stream that the memory is for.
    pub stream: StreamId,
    /// When it is due; see [`due`](crate::due).
    pub due: i128,
    /// How long it waits at most.
    pub limit: Option<Duration>,
    /// Whether the limit of its tag does not allow it now: then it joins the tag's quota queue.
    pub is_throttled: bool,
}

/// A request that may join, by [`Queue::join`] or [`Queue::join_throttled`].
#[derive(Debug)]
#[must_use = "the request joins after those that it displaces have left"]
pub struct Admitted {
    /// The request as it joins.
    pub entry: Entry,
    /// The requests that lose their places to it, each with the reason that it is told.
    pub displaced: Vec<(Entry, FullQueue)>,
}

/// The reason why a request may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The queue is full.
    Full(FullQueue),
    /// It would be expected to wait for longer than its limit.
    Shed {
        /// The expected wait.
        expected: Duration,
        /// The longest wait of the request.
        limit: Duration,
    },
}

/// How the queue changed when a request joined or left it, or a limit was raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "memory must be searched for a candidate"]
pub struct Moved {
    /// Another request may be served now that could not be before.
    pub has_candidate: bool,
    /// Another throttled request is the first of its tag now.
    pub has_new_first: bool,
}

impl Moved {
    /// Adds another change.
    #[inline]
    pub fn and(&mut self, other: Self) {
        self.has_candidate |= other.has_candidate;
        self.has_new_first |= other.has_new_first;
    }
}

/// A request that left.
#[derive(Debug)]
#[must_use = "requests behind it may move up"]
pub struct Left<T> {
    /// The request.
    pub waiter: T,
    /// Whether it waited for the limit of its tag. Then the limit may allow the requests behind it.
    pub was_throttled: bool,
    /// What moved.
    pub moved: Moved,
    /// Requests that the queue remembered for a search that does not follow any more.
    pub left_over: Vec<T>,
}

/// The waiting requests of a pool, and the decisions about them.
#[derive(Debug)]
pub struct Queue<T> {
    queued: Queued<T>,
    /// Requests that were set aside: their waiters were woken and not polled.
    aside: BTreeMap<Position, (Entry, T)>,
    quotas: QuotaQueues<T>,
    /// The weights of the tags that have one.
    weights: BTreeMap<Tag, NonZeroU32>,
    /// The position of the next newcomer.
    next: Position,
    /// How many requests at the front are searched for when the head cannot be served.
    looked_at: usize,
    sheds: bool,
}

/// Returns the weight of a tag or flow: 1 if it has none.
#[inline]
fn weight_in(weights: &BTreeMap<Tag, NonZeroU32>, of: Option<Tag>) -> u32 {
    let weight = of.and_then(|tag| weights.get(&tag));
    weight.map_or(1, |weight| weight.get())
}

impl<T> Queue<T> {
    /// Creates an empty queue.
    pub fn new(rules: &Rules) -> Self {
        Self {
            queued: Queued::new(rules.queue_limit),
            aside: BTreeMap::new(),
            quotas: QuotaQueues::new(rules.queue_limit),
            weights: BTreeMap::new(),
            next: 0,
            looked_at: rules.looked_at(),
            sheds: rules.sheds,
        }
    }

    // ---- joining ---------------------------------------------------------------------------

    /// Decides whether a request may join.
    ///
    /// # Errors
    /// Returns the reason if it may not.
    pub fn admit(&mut self, newcomer: &Newcomer, now: Duration) -> Result<Admitted, Refused> {
        let entry = Entry {
            sort_key: self.next_key(newcomer.due),
            flow: self.flow_of(newcomer.tag),
            tag: newcomer.tag,
            bytes: newcomer.bytes,
            stream: newcomer.stream,
            since: now,
        };
        let over = newcomer.tag.filter(|_| newcomer.is_throttled);
        let bytes = entry.bytes;
        let expected = || self.expected_wait_of(over, &entry, now);
        if let Some((tag, waiting, limit)) = self.limit_of_tag(entry.tag, over)
            && waiting.is_full(limit, bytes)
        {
            let full = full(Some(tag), bytes, waiting, limit, expected());
            return Err(Refused::Full(full));
        }
        let (is_empty, displaced) = match over {
            Some(tag) => (self.quotas.is_empty(tag), Vec::new()),
            None => {
                let candidate = Applicant {
                    party: entry.tag,
                    weight: self.weight_of(entry.tag),
                    bytes,
                };
                let (queued, limit) = (&self.queued, self.queued.admission.limit);
                let displaced = queued.shares.displaced_by(candidate, limit);
                let refused = || {
                    let total = queued.shares.total();
                    Refused::Full(full(None, bytes, total, limit, expected()))
                };
                (queued.is_empty(), displaced.ok_or_else(refused)?)
            }
        };
        // The first request waits in any case: it keeps the estimate current.
        if let Some(limit) = newcomer.limit.filter(|_| self.sheds && !is_empty)
            && let Some(expected) = expected().filter(|expected| *expected > limit)
        {
            return Err(Refused::Shed { expected, limit });
        }
        let displaced = displaced.into_iter();
        let displaced = displaced.map(|entry| (*entry, self.full_for(entry, now)));
        let displaced = displaced.collect();
        self.next += 1;
        Ok(Admitted { entry, displaced })
    }

    /// Describes the queue to a request that loses its place in it.
    fn full_for(&self, entry: &Entry, now: Duration) -> FullQueue {
        let (waiting, limit) = (self.queued.shares.total(), self.queued.admission.limit);
        let expected = self.expected_wait_of(None, entry, now);
        full(None, entry.bytes, waiting, limit, expected)
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

    /// Adds a request to the fair queue. Returns whether it is a candidate.
    pub fn join(&mut self, entry: Entry, waiter: T, now: Duration) -> bool
    where
        T: Clone,
    {
        let weight = self.weight_of(entry.tag);
        self.queued.join(entry, waiter, weight, now) || self.is_looked_at(&entry)
    }

    /// Adds a request to the quota queue of its tag. It may be the first there, and small enough for the limit.
    pub fn join_throttled(&mut self, tag: Tag, entry: Entry, waiter: T, now: Duration) {
        self.quotas.of(tag).join(entry, waiter, now);
    }

    /// Returns the throttled request of a tag that enters the fair queue next.
    pub fn first_throttled(&self, tag: Tag) -> Option<&(Entry, T)> {
        self.quotas.get(tag)?.first()
    }

    /// Moves the first throttled request of a tag into the fair queue: the limit allows it now.
    pub fn enter_first(&mut self, tag: Tag, now: Duration) -> Moved
    where
        T: Clone,
    {
        let left = self
            .quotas
            .get_mut(tag)
            .and_then(|queue| queue.leave_first(now));
        let Some((entry, waiter)) = left else {
            return Moved::default();
        };
        Moved {
            has_candidate: self.join(entry, waiter, now),
            has_new_first: true,
        }
    }

    /// Returns whether no request of a tag is throttled.
    pub fn has_no_throttled(&self, tag: Tag) -> bool {
        self.quotas.is_empty(tag)
    }

    // ---- leaving ---------------------------------------------------------------------------

    /// Removes a request, served or not. Returns `None` if it left before.
    pub fn leave(&mut self, entry: &Entry, is_served: bool, now: Duration) -> Option<Left<T>> {
        let served = is_served.then(|| self.cost_of(entry.flow, entry.bytes));
        // The server goes on with the next request by itself.
        let has_candidate = !is_served && self.is_looked_at(entry);
        let queued = self.queued.leave(entry, served, is_served.then_some(now));
        let moved = Moved {
            has_candidate,
            has_new_first: false,
        };
        if let Some(waiter) = queued {
            return Some(Left {
                waiter,
                was_throttled: false,
                moved,
                left_over: self.end_scan(),
            });
        }
        if let Some((_, waiter)) = self.aside.remove(&entry.sort_key.position) {
            return Some(Left {
                waiter,
                was_throttled: false,
                moved,
                left_over: Vec::new(),
            });
        }
        let quota_queue = self.quotas.get_mut(entry.tag?)?;
        let first = quota_queue.first().map(|(first, _)| first.sort_key);
        let (_, waiter) = quota_queue.leave(entry.sort_key, None)?;
        Some(Left {
            waiter,
            was_throttled: true,
            moved: Moved {
                has_candidate: false,
                has_new_first: first == Some(entry.sort_key),
            },
            left_over: Vec::new(),
        })
    }

    /// Forgets the last search once no request waits.
    fn end_scan(&mut self) -> Vec<T> {
        match self.queued.is_empty() {
            true => self.queued.forget_scan(),
            false => Vec::new(),
        }
    }

    /// Takes all requests out: the pool ends.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> {
        let aside = std::mem::take(&mut self.aside).into_values();
        let aside = aside.map(|(_, waiter)| waiter);
        let all = self.queued.take_all().chain(self.quotas.take_all());
        all.chain(aside)
    }

    /// Returns whether a request is in the fair queue.
    pub fn has(&self, entry: &Entry) -> bool {
        self.queued.has(entry)
    }

    /// Sets a request in the fair queue aside. Returns the requests that the queue remembered for a search that does not
    /// follow any more.
    pub fn set_aside(&mut self, entry: &Entry) -> Vec<T> {
        let Some(waiter) = self.queued.leave(entry, None, None) else {
            return Vec::new();
        };
        self.aside.insert(entry.sort_key.position, (*entry, waiter));
        self.end_scan()
    }

    /// Puts a request back to its position that was set aside. Returns whether it was.
    pub fn bring_back(&mut self, entry: &Entry, now: Duration) -> bool
    where
        T: Clone,
    {
        let Some((entry, waiter)) = self.aside.remove(&entry.sort_key.position) else {
            return false;
        };
        let weight = self.weight_of(entry.tag);
        let _ = self.queued.join(entry, waiter, weight, now);
        true
    }

    // ---- the order -------------------------------------------------------------------------

    /// Returns whether no request waits in the fair queue: the gate is open.
    #[inline]
    pub fn is_gate_open(&self) -> bool {
        self.queued.is_empty()
    }

    /// Returns how many requests wait in the fair queue.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Returns the request that is served next.
    pub fn head(&self) -> Option<&T> {
        self.queued.head()
    }

    /// Returns the first `most` requests of the fair queue in the order in which they are served if no request comes.
    pub fn in_order(&self, most: usize) -> impl Iterator<Item = &T> {
        let weight = |flow| self.weight_of(flow);
        self.queued.first(most, weight).map(|(_, waiter)| waiter)
    }

    /// Returns the head and the requests that may overtake it, in the order in which they are served if no further
    /// request arrives.
    pub fn looked_at(&self) -> impl Iterator<Item = &T> {
        self.in_order(self.looked_at)
    }

    /// Returns whether memory is searched for a request: it is the head, or one of those that may overtake the head.
    fn is_looked_at(&self, entry: &Entry) -> bool {
        if self.looked_at == 1 {
            return self.queued.head_place() == Some(place_of(entry));
        }
        let weight = |flow| self.weight_of(flow);
        let mut first = self.queued.first(self.looked_at, weight);
        first.any(|(place, _)| place == place_of(entry))
    }

    /// Returns the first `most` waiting requests, those in quota queues and those set aside last.
    pub fn first(&self, most: usize) -> impl Iterator<Item = &T> {
        let aside = self.aside.values().map(|(_, waiter)| waiter);
        let others = self.throttled().chain(aside);
        self.in_order(most).chain(others).take(most)
    }

    /// Returns the throttled requests of all tags.
    pub fn throttled(&self) -> impl Iterator<Item = &T> {
        self.quotas.waiters().map(|(_, waiter)| waiter)
    }

    /// Returns whether a request is the head, or the first that waits for the limit of `at_limit`.
    pub fn is_first(&self, entry: &Entry, at_limit: Option<Tag>) -> bool {
        match at_limit {
            Some(tag) => {
                let first = self.first_throttled(tag);
                first.is_some_and(|(first, _)| first.sort_key == entry.sort_key)
            }
            None => self.queued.head_place() == Some(place_of(entry)),
        }
    }

    /// Returns whether a request in the fair queue is for the stream.
    pub fn waits_for(&self, stream: StreamId) -> bool {
        self.queued.waits_for(stream)
    }

    /// Returns the waiting requests of a tag for more than that many bytes. Takes constant time if there are none.
    pub fn larger_than(&self, tag: Tag, bytes: u64) -> impl Iterator<Item = &T> {
        let queued = self.queued.shares.larger_than(Some(tag), bytes);
        let queued = queued.filter_map(|entry| self.queued.at(place_of(entry)));
        let throttled = self.quotas.larger_than(tag, bytes);
        let is_meant = move |entry: &Entry| entry.tag == Some(tag) && entry.bytes > bytes;
        let aside = self.aside.values();
        let aside = aside.filter_map(move |(entry, waiter)| is_meant(entry).then_some(waiter));
        queued.chain(throttled).chain(aside)
    }

    /// Returns a request of the fair queue.
    pub fn get(&self, entry: &Entry) -> Option<&T> {
        self.queued.at(place_of(entry))
    }

    /// Returns the requests to search for in a deadlock, apart from the head: all of them once in a generation, and after
    /// that the newcomers.
    pub fn to_scan(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        needs: impl Fn(&T) -> Pieces,
    ) -> ToTry<T>
    where
        T: Clone,
    {
        let weights = &self.weights;
        let weight = |flow| weight_in(weights, flow);
        self.queued
            .begin_scan(generation, usual_alignment, weight, needs)
    }

    /// Forgets the last search for every request: something moved. Returns the requests that came since.
    pub fn forget_scan(&mut self) -> Vec<T> {
        self.queued.forget_scan()
    }

    // ---- figures ---------------------------------------------------------------------------

    /// Returns when the oldest waiting request arrived.
    pub fn oldest(&self) -> Option<Duration> {
        let others = self.quotas.waiters().chain(self.aside.values());
        let since = others.map(|(entry, _)| entry.since);
        since.chain(self.oldest_for_memory()).min()
    }

    /// Returns when the oldest request in the fair queue arrived. Requests that wait for the limit of their tag do not
    /// count.
    pub fn oldest_for_memory(&self) -> Option<Duration> {
        self.queued.oldest()
    }

    /// Estimates the wait of a request of a tag that arrives now and is due at `due`. With `over`, the request is over that
    /// tag's limit.
    pub fn expected_wait(
        &self,
        over: Option<Tag>,
        tag: Option<Tag>,
        bytes: u64,
        due: i128,
        now: Duration,
    ) -> Option<Duration> {
        self.expected_wait_at(over, self.flow_of(tag), bytes, self.next_key(due), now)
    }

    fn expected_wait_of(
        &self,
        over: Option<Tag>,
        entry: &Entry,
        now: Duration,
    ) -> Option<Duration> {
        self.expected_wait_at(over, entry.flow, entry.bytes, entry.sort_key, now)
    }

    fn expected_wait_at(
        &self,
        over: Option<Tag>,
        flow: Flow,
        bytes: u64,
        key: SortKey,
        now: Duration,
    ) -> Option<Duration> {
        let admission = &self.queued.admission;
        let is_known = admission.pace.time_for(0, now).is_some();
        let in_queue = is_known.then(|| {
            let weight = |flow| self.weight_of(flow);
            let ahead = self.queued.bytes_before(flow, key, weight);
            admission.expected_wait(bytes, ahead, now)
        });
        let in_queue = in_queue.flatten();
        let Some(tag) = over else {
            return in_queue;
        };
        let at_limit = self.quotas.get(tag)?.expected_wait(bytes, key, now)?;
        Some(joined_wait(at_limit, in_queue))
    }

    /// Begins the list of the first `most` waiting requests.
    pub fn begin_list(&self, most: usize, now: Duration) -> Listed {
        Listed {
            listing: Listing::new(self.queued.admission.pace, now),
            stage: Stage::Queued(self.queued.walk(most)),
        }
    }

    /// Returns up to `most` further waiting requests of a list, each with its expected wait: those over the limit of
    /// their tag follow the fair queue, and those that were set aside are last. None is left if none is returned. A
    /// request that joins or leaves between two calls may be missing or listed, and one that its limit lets in may be
    /// missing.
    pub fn list(&self, listed: &mut Listed, most: usize) -> Vec<(T, Option<Duration>)>
    where
        T: Clone,
    {
        let mut part = Vec::with_capacity(most);
        let Listed { listing, stage } = listed;
        if let Stage::Queued(walk) = stage {
            let weight = |flow| self.weight_of(flow);
            while part.len() < most
                && let Some((turn, bytes, waiter)) = self.queued.next_of(walk, weight)
            {
                let cost = self.cost_of(turn.2, bytes);
                part.push((waiter.clone(), listing.add(turn, cost)));
            }
            if !part.is_empty() || most == 0 {
                return part;
            }
            *stage = Stage::Throttled(None);
        }
        if let Stage::Throttled(last) = stage {
            for (tag, (entry, waiter)) in self.quotas.waiters_after(*last).take(most) {
                let (pace, start) = (self.quotas.pace(tag), self.queued.start_of(entry.flow));
                let expected = listing.add_throttled(tag, pace, start, entry);
                part.push((waiter.clone(), expected));
                *last = Some((tag, entry.sort_key));
            }
            if !part.is_empty() {
                return part;
            }
            *stage = Stage::Aside(None);
        }
        if let Stage::Aside(last) = stage {
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            let rest = self.aside.range((after, Bound::Unbounded));
            for (position, (_, waiter)) in rest.take(most) {
                // It has no turn before its waiter is polled.
                part.push((waiter.clone(), None));
                *last = Some(*position);
            }
        }
        part
    }

    // ---- limits and weights ----------------------------------------------------------------

    /// Sets how many requests may wait.
    pub fn set_limit(&mut self, limit: QueueLimit) {
        self.queued.admission.limit = limit;
        self.quotas.set_pools_limit(limit);
    }

    /// Returns how many requests may wait.
    pub fn limit(&self) -> QueueLimit {
        self.queued.admission.limit
    }

    /// Sets how many requests of a tag may wait. With `None`, the pool's queue limit applies to those over its limit.
    pub fn set_limit_of(&mut self, tag: Tag, limit: Option<QueueLimit>) {
        self.quotas.set_limit(tag, limit);
    }

    /// Returns how many requests of a tag may wait.
    pub fn limit_of(&self, tag: Tag) -> QueueLimit {
        self.quotas.limit(tag)
    }

    /// Sets the weight of a tag; 0 for none.
    pub fn set_weight(&mut self, tag: Tag, weight: u32) {
        match NonZeroU32::new(weight) {
            Some(weight) => self.weights.insert(tag, weight),
            None => self.weights.remove(&tag),
        };
        let weight = self.weight_of(Some(tag));
        self.queued.shares.set_weight(Some(tag), weight);
    }

    /// Returns the weight of a tag, if it has one.
    pub fn weight(&self, tag: Tag) -> Option<NonZeroU32> {
        self.weights.get(&tag).copied()
    }

    /// Returns the weight of a tag or flow: 1 if it has none.
    #[inline]
    fn weight_of(&self, of: Option<Tag>) -> u32 {
        weight_in(&self.weights, of)
    }

    /// Returns the flow of a tag's requests.
    #[inline]
    fn flow_of(&self, tag: Option<Tag>) -> Flow {
        tag.filter(|tag| self.weights.contains_key(tag))
    }

    /// Returns the cost of serving that many bytes, to a flow.
    #[inline]
    fn cost_of(&self, flow: Flow, bytes: u64) -> Cost {
        let weight = self.weight_of(flow);
        Cost { bytes, weight }
    }
}

/// A list of the waiting requests that is being made; see [`Queue::list`].
#[derive(Debug)]
pub struct Listed {
    listing: Listing,
    stage: Stage,
}

/// Which requests of a list are next.
#[derive(Debug)]
enum Stage {
    Queued(WaiterWalk),
    Throttled(Option<(Tag, SortKey)>),
    Aside(Option<Position>),
}

/// Returns where a request is, or would be, in the fair queue.
#[inline]
fn place_of(entry: &Entry) -> Place {
    (entry.flow, entry.sort_key)
}
