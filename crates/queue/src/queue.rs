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
use crate::fair_queue::{Cost, Flow, Position, SortKey, Walk};
use crate::listing::Listing;
use crate::queued::Queued;
use crate::quota_queue::QuotaQueues;
use crate::scan::{Pieces, Scan, promising};
use crate::shares::Applicant;
use crate::terms::Rules;
use crate::{Entry, FullQueue, QueueLimit, Tag};
use std::collections::{BTreeMap, BTreeSet};
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

/// A request that may join, by [`Queue::join`].
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

/// How a request left.
#[derive(Clone, Copy, Debug)]
#[must_use = "requests behind it may move up"]
pub struct Left {
    /// Whether it waited for the limit of its tag. Then the limit may allow the requests behind it.
    pub was_throttled: bool,
    /// What moved.
    pub moved: Moved,
}

/// The waiting requests of a pool, by the positions that they were given, and the decisions about them.
#[derive(Debug)]
pub struct Queue {
    queued: Queued,
    /// Requests that were set aside: their waiters were woken and not polled.
    aside: BTreeSet<Position>,
    quotas: QuotaQueues,
    /// All requests with a tag, by size.
    by_size: BTreeSet<(Tag, u64, Position)>,
    /// The weights of the tags that have one.
    weights: BTreeMap<Tag, NonZeroU32>,
    /// The position of the next newcomer.
    next: Position,
    /// How many requests at the front are searched for when the head cannot be served.
    looked_at: usize,
    sheds: bool,
}

impl Queue {
    /// Creates an empty queue.
    pub fn new(rules: &Rules) -> Self {
        Self {
            queued: Queued::new(rules.queue_limit),
            aside: BTreeSet::new(),
            quotas: QuotaQueues::new(rules.queue_limit),
            by_size: BTreeSet::new(),
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
        if let Some((tag, waiting, limit)) = self.limit_for(entry.tag, over)
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
                (self.is_gate_open(), displaced.ok_or_else(refused)?)
            }
        };
        // The first request waits in any case: it keeps the estimate current.
        if let Some(limit) = newcomer.limit.filter(|_| self.sheds && !is_empty)
            && let Some(expected) = expected().filter(|expected| *expected > limit)
        {
            return Err(Refused::Shed { expected, limit });
        }
        let displaced = displaced.into_iter();
        let displaced = displaced.map(|entry| (entry, self.full_for(&entry, now)));
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
    fn limit_for(&self, tag: Option<Tag>, over: Option<Tag>) -> Option<(Tag, Amount, QueueLimit)> {
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

    /// Adds a request that was admitted: to the fair queue, or to the quota queue of the tag `over` whose limit does not
    /// allow it. There it may be the first, and small enough for the limit. Returns whether it is a candidate.
    pub fn join(&mut self, entry: Entry, over: Option<Tag>, now: Duration) -> bool {
        self.by_size.extend(sized(&entry));
        match over {
            Some(tag) => {
                self.quotas.of(tag).join(entry, now);
                false
            }
            None => self.enter(entry, now),
        }
    }

    fn enter(&mut self, entry: Entry, now: Duration) -> bool {
        let weight = self.weight_of(entry.tag);
        self.queued.join(entry, weight, now) || self.is_looked_at(&entry)
    }

    /// Returns the throttled request of a tag that enters the fair queue next.
    pub fn first_throttled(&self, tag: Tag) -> Option<&Entry> {
        self.quotas.get(tag)?.first()
    }

    /// Moves the first throttled request of a tag into the fair queue: the limit allows it now.
    pub fn enter_first(&mut self, tag: Tag, now: Duration) -> Moved {
        let Some(entry) = self.first_throttled(tag).copied() else {
            return Moved::default();
        };
        self.quotas.of(tag).leave(&entry, Some(now));
        Moved {
            has_candidate: self.enter(entry, now),
            has_new_first: true,
        }
    }

    // ---- leaving ---------------------------------------------------------------------------

    /// Removes a request, served or not. Returns `None` if it left before.
    pub fn leave(&mut self, entry: &Entry, is_served: bool, now: Duration) -> Option<Left> {
        let served = is_served.then(|| Cost {
            bytes: entry.bytes,
            weight: self.weight_of(entry.flow),
        });
        // The server goes on with the next request by itself.
        let has_candidate = !is_served && self.is_looked_at(entry);
        let served_at = is_served.then_some(now);
        let mut left = Left {
            was_throttled: false,
            moved: Moved::default(),
        };
        if self.queued.leave(entry, served, served_at) {
            left.moved.has_candidate = has_candidate;
        } else if !self.aside.remove(&entry.sort_key.position) {
            let quota_queue = self.quotas.get_mut(entry.tag?)?;
            left.moved.has_new_first = quota_queue.first() == Some(entry);
            left.was_throttled = quota_queue.leave(entry, None);
            if !left.was_throttled {
                return None;
            }
        }
        if let Some(sized) = sized(entry) {
            self.by_size.remove(&sized);
        }
        Some(left)
    }

    /// Returns whether a request is in the fair queue.
    pub fn has(&self, entry: &Entry) -> bool {
        self.queued.arrivals.contains_key(&entry.sort_key.position)
    }

    /// Sets a request aside. Returns whether it was in the fair queue.
    pub fn set_aside(&mut self, entry: &Entry) -> bool {
        let was_queued = self.queued.leave(entry, None, None);
        if was_queued {
            self.aside.insert(entry.sort_key.position);
        }
        was_queued
    }

    /// Puts a request back to its position that was set aside. Returns whether it was.
    pub fn bring_back(&mut self, entry: &Entry, now: Duration) -> bool {
        let was_aside = self.aside.remove(&entry.sort_key.position);
        if was_aside {
            let weight = self.weight_of(entry.tag);
            let _ = self.queued.join(*entry, weight, now);
        }
        was_aside
    }

    // ---- the order -------------------------------------------------------------------------

    /// Returns whether no request waits in the fair queue: the gate is open.
    #[inline]
    pub fn is_gate_open(&self) -> bool {
        self.queued.order.is_empty()
    }

    /// Returns how many requests wait in the fair queue.
    pub fn queued(&self) -> usize {
        self.queued.order.len()
    }

    /// Returns the request that is served next.
    pub fn head(&self) -> Option<Position> {
        self.queued.order.head().map(|key| key.position)
    }

    /// Returns the first `most` requests of the fair queue in the order in which they are served if no request comes.
    pub fn in_order(&self, most: usize) -> impl Iterator<Item = Position> {
        let weight = |flow| self.weight_of(flow);
        let first = self.queued.order.first(most, weight);
        first.map(|key| key.position)
    }

    /// Returns the head and the requests that may overtake it, in the order in which they are served if no further
    /// request arrives.
    pub fn looked_at(&self) -> impl Iterator<Item = Position> {
        self.in_order(self.looked_at)
    }

    /// Returns whether memory is searched for a request: it is the head, or one of those that may overtake the head.
    fn is_looked_at(&self, entry: &Entry) -> bool {
        match self.looked_at {
            1 => self.queued.order.head() == Some(entry.sort_key),
            _ => self.looked_at().any(|it| it == entry.sort_key.position),
        }
    }

    /// Returns whether a request is the head, or the first that waits for the limit of its tag.
    pub fn is_first(&self, entry: &Entry) -> bool {
        let at_limit = entry.tag.and_then(|tag| self.first_throttled(tag));
        at_limit == Some(entry) || self.queued.order.head() == Some(entry.sort_key)
    }

    /// Returns whether a request in the fair queue is for the stream.
    pub fn waits_for(&self, stream: StreamId) -> bool {
        self.queued.by_stream.contains_key(&stream)
    }

    /// Returns the waiting requests of a tag for more than that many bytes. Takes time in proportion to their number.
    pub fn larger_than(&self, tag: Tag, bytes: u64) -> impl Iterator<Item = Position> {
        let above = Bound::Excluded((tag, bytes, Position::MAX));
        let last = Bound::Included((tag, u64::MAX, Position::MAX));
        self.by_size.range((above, last)).map(|(.., it)| *it)
    }

    /// Returns the requests to search for in a deadlock, apart from the head: all of them once in a generation, and after
    /// that the newcomers.
    pub fn to_scan(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        needs: impl Fn(Position) -> Pieces,
    ) -> Vec<Position> {
        let last = self.queued.scan.replace(Scan::new(generation));
        match last.filter(|last| last.is_of(generation)) {
            Some(last) => last.untried.into_iter().collect(),
            None => promising(self.in_order(usize::MAX).skip(1), usual_alignment, needs),
        }
    }

    /// Forgets the last search for every request: something moved.
    pub fn forget_scan(&mut self) {
        self.queued.scan = None;
    }

    // ---- figures ---------------------------------------------------------------------------

    /// Returns when the oldest request in the fair queue arrived. Requests that wait for the limit of their tag do not
    /// count.
    pub fn oldest(&self) -> Option<Duration> {
        self.queued.arrivals.values().next().copied()
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
            let ahead = self.queued.order.bytes_before(flow, key, weight);
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
            stage: Stage::Queued(self.queued.order.walk(most)),
        }
    }

    /// Returns up to `most` further waiting requests of a list, each with its expected wait: those over the limit of
    /// their tag follow the fair queue, and those that were set aside are last. None is left if none is returned. A
    /// request that joins or leaves between two calls may be missing or listed, and one that its limit lets in may be
    /// missing.
    pub fn list(
        &self,
        Listed { listing, stage }: &mut Listed,
        most: usize,
    ) -> Vec<(Position, Option<Duration>)> {
        let mut part = Vec::with_capacity(most.min(self.queued() + 1));
        if let Stage::Queued(walk) = stage {
            let weight = |flow| self.weight_of(flow);
            while part.len() < most
                && let Some((turn, cost)) = self.queued.order.next_of(walk, weight)
            {
                part.push((turn.1.position, listing.add(turn, cost)));
            }
            if !part.is_empty() || most == 0 {
                return part;
            }
            *stage = Stage::Throttled(None);
        }
        if let Stage::Throttled(last) = stage {
            for (tag, entry) in self.quotas.waiters_after(*last).take(most) {
                let pace = self.quotas.pace(tag);
                let start = self.queued.order.start_of(entry.flow);
                let expected = listing.add_throttled(tag, pace, start, entry);
                part.push((entry.sort_key.position, expected));
                *last = Some((tag, entry.sort_key));
            }
            if !part.is_empty() {
                return part;
            }
            *stage = Stage::Aside(None);
        }
        if let Stage::Aside(last) = stage {
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            for position in self.aside.range((after, Bound::Unbounded)).take(most) {
                // It has no turn before its waiter is polled.
                part.push((*position, None));
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
        let weight = of.and_then(|tag| self.weights.get(&tag));
        weight.map_or(1, |weight| weight.get())
    }

    /// Returns the flow of a tag's requests.
    #[inline]
    fn flow_of(&self, tag: Option<Tag>) -> Flow {
        tag.filter(|tag| self.weights.contains_key(tag))
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
    Queued(Walk),
    Throttled(Option<(Tag, SortKey)>),
    Aside(Option<Position>),
}

/// Returns a request's place among those of its tag, by size.
#[inline]
fn sized(entry: &Entry) -> Option<(Tag, u64, Position)> {
    Some((entry.tag?, entry.bytes, entry.sort_key.position))
}
