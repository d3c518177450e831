//! The quota queue of a tag: the requests that wait because their tag has reached its limit.
//!
//! They are outside the [fair queue](crate::fair_queue), and keep no other request from being served. Once the limit
//! allows it they enter the fair queue, in the order in which they are due, at the position that each has by its
//! coming. How many may wait here, and for how long, is a matter of the tag alone: a tenant's flood neither refuses
//! nor delays the requests of other tenants.

use crate::admission::{Admission, QueuePace};
use crate::amount::{Amount, Sizes};
use crate::fair_queue::{SortKey, bytes_before};
use crate::{Entry, QueueLimit, Tag};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The quota queues of all tags.
#[derive(Debug)]
pub(crate) struct QuotaQueues<T> {
    by_tag: BTreeMap<Tag, QuotaQueue<T>>,
    /// The pool's limit, which holds for tags that have none of their own.
    limit: QueueLimit,
}

impl<T> QuotaQueues<T> {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        Self {
            by_tag: BTreeMap::new(),
            limit,
        }
    }

    pub(crate) fn get(&self, tag: Tag) -> Option<&QuotaQueue<T>> {
        self.by_tag.get(&tag)
    }

    pub(crate) fn get_mut(&mut self, tag: Tag) -> Option<&mut QuotaQueue<T>> {
        self.by_tag.get_mut(&tag)
    }

    /// Returns the quota queue of a tag, and makes it if there is none yet.
    pub(crate) fn of(&mut self, tag: Tag) -> &mut QuotaQueue<T> {
        let limit = self.limit;
        let new = || QuotaQueue::new(limit);
        self.by_tag.entry(tag).or_insert_with(new)
    }

    /// Returns whether no request of the tag waits.
    pub(crate) fn is_empty(&self, tag: Tag) -> bool {
        self.get(tag).is_none_or(|queue| queue.waiters.is_empty())
    }

    /// Returns the requests of the tag that wait.
    pub(crate) fn waiting(&self, tag: Tag) -> Amount {
        let queue = self.get(tag);
        queue.map(|it| it.admission.waiting).unwrap_or_default()
    }

    /// Returns how fast the tag's limit lets requests in.
    pub(crate) fn pace(&self, tag: Tag) -> QueuePace {
        self.get(tag)
            .map(|queue| queue.admission.pace)
            .unwrap_or_default()
    }

    /// Returns the tag's own limit, if it was set.
    pub(crate) fn own_limit(&self, tag: Tag) -> Option<QueueLimit> {
        self.get(tag)?.own_limit
    }

    /// Returns the requests of all tags.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &(Entry, T)> {
        let queues = self.by_tag.values();
        queues.flat_map(|queue| queue.waiters.values())
    }

    /// Takes all requests out: the pool ends.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> {
        let queues = std::mem::take(&mut self.by_tag).into_values();
        queues.flat_map(|queue| queue.waiters.into_values().map(|(_, waiter)| waiter))
    }

    /// Returns the requests that come after a tag's request with that key, in the order of tags and keys; or all.
    pub(crate) fn waiters_after(
        &self,
        last: Option<(Tag, SortKey)>,
    ) -> impl Iterator<Item = (Tag, &(Entry, T))> {
        let after = last.map_or(Bound::Unbounded, |(_, key)| Bound::Excluded(key));
        let of_tag = last.map_or(Bound::Unbounded, |(tag, _)| Bound::Excluded(tag));
        let first = last.and_then(|(tag, _)| Some((tag, self.get(tag)?)));
        let first = first.into_iter().flat_map(move |(tag, queue)| {
            let rest = queue.waiters.range((after, Bound::Unbounded));
            rest.map(move |(_, waiter)| (tag, waiter))
        });
        let others = self.by_tag.range((of_tag, Bound::Unbounded));
        let others = others.flat_map(|(tag, queue)| {
            let waiters = queue.waiters.values();
            waiters.map(|waiter| (*tag, waiter))
        });
        first.chain(others)
    }

    /// Returns the requests of a tag for more than that many bytes. Takes constant time if there are none.
    pub(crate) fn larger_than(&self, tag: Tag, bytes: u64) -> impl Iterator<Item = &T> {
        let queue = self.get(tag);
        let queue = queue.filter(|queue| queue.sizes.largest() > bytes);
        let waiters = queue.into_iter().flat_map(|queue| queue.waiters.values());
        waiters.filter_map(move |(entry, waiter)| (entry.bytes > bytes).then_some(waiter))
    }

    /// Sets the limit of a tag; `None` returns it to the pool's.
    pub(crate) fn set_limit(&mut self, tag: Tag, own: Option<QueueLimit>) {
        let limit = self.limit;
        self.of(tag).set_limit(own, limit);
    }

    /// Returns how many requests of a tag may wait.
    pub(crate) fn limit(&self, tag: Tag) -> QueueLimit {
        self.get(tag)
            .map_or(self.limit, |queue| queue.admission.limit)
    }

    /// Sets the pool's limit.
    pub(crate) fn set_pools_limit(&mut self, limit: QueueLimit) {
        self.limit = limit;
        for queue in self.by_tag.values_mut() {
            queue.set_limit(queue.own_limit, limit);
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct QuotaQueue<T> {
    waiters: BTreeMap<SortKey, (Entry, T)>,
    sizes: Sizes,
    admission: Admission,
    /// The tag's own limit, if it was set; the pool's otherwise.
    own_limit: Option<QueueLimit>,
}

impl<T> QuotaQueue<T> {
    fn new(limit: QueueLimit) -> Self {
        Self {
            waiters: BTreeMap::new(),
            sizes: Sizes::default(),
            admission: Admission::new(limit),
            own_limit: None,
        }
    }

    fn set_limit(&mut self, own: Option<QueueLimit>, pools: QueueLimit) {
        self.own_limit = own;
        self.admission.limit = own.unwrap_or(pools);
    }

    /// Returns the request that enters the fair queue next.
    pub(crate) fn first(&self) -> Option<&(Entry, T)> {
        self.waiters.values().next()
    }

    pub(crate) fn join(&mut self, entry: Entry, waiter: T, now: Duration) {
        self.admission.join(entry.bytes, now);
        self.sizes.add(entry.bytes);
        self.waiters.insert(entry.sort_key, (entry, waiter));
    }

    /// Takes the first request out, which enters the fair queue.
    pub(crate) fn leave_first(&mut self, now: Duration) -> Option<(Entry, T)> {
        let first = *self.waiters.first_key_value()?.0;
        self.leave(first, Some(now))
    }

    /// Takes a request out. `entered` is the time at which it entered the fair queue, if it did.
    pub(crate) fn leave(
        &mut self,
        sort_key: SortKey,
        entered: Option<Duration>,
    ) -> Option<(Entry, T)> {
        let (entry, waiter) = self.waiters.remove(&sort_key)?;
        self.admission.leave(entry.bytes, entered);
        self.sizes.remove(entry.bytes);
        Some((entry, waiter))
    }

    /// Returns how long a request would wait for the limit, as far as can be told.
    pub(crate) fn expected_wait(
        &self,
        bytes: u64,
        key: SortKey,
        now: Duration,
    ) -> Option<Duration> {
        let bytes_of = |(_, (entry, _)): (_, &(Entry, T))| entry.bytes;
        let before = self.waiters.range(..key).map(bytes_of);
        let after = self.waiters.range(key..).map(bytes_of);
        let ahead = bytes_before(before, after, self.admission.waiting.bytes);
        self.admission.expected_wait(bytes, ahead, now)
    }
}
