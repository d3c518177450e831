//! The quota queue of a tag: the requests that wait because their tag has reached its limit.
//!
//! They are outside the [fair queue](crate::fair_queue), and keep no other request from being served. Once the limit
//! allows it they enter the fair queue, in the order in which they are due, at the position that each has by its
//! coming. How many may wait here, and for how long, is a matter of the tag alone: a tenant's flood neither refuses
//! nor delays the requests of other tenants.

use crate::admission::{Admission, QueuePace};
use crate::amount::Amount;
use crate::fair_queue::{SortKey, bytes_before};
use crate::{Entry, QueueLimit, Tag};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The quota queues of all tags.
#[derive(Debug)]
pub(crate) struct QuotaQueues {
    by_tag: BTreeMap<Tag, QuotaQueue>,
    /// The pool's limit, which holds for tags that have none of their own.
    limit: QueueLimit,
}

impl QuotaQueues {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        Self {
            by_tag: BTreeMap::new(),
            limit,
        }
    }

    pub(crate) fn get(&self, tag: Tag) -> Option<&QuotaQueue> {
        self.by_tag.get(&tag)
    }

    pub(crate) fn get_mut(&mut self, tag: Tag) -> Option<&mut QuotaQueue> {
        self.by_tag.get_mut(&tag)
    }

    /// Returns the quota queue of a tag, and makes it if there is none yet.
    pub(crate) fn of(&mut self, tag: Tag) -> &mut QuotaQueue {
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

    /// Returns the requests that come after a tag's request with that key, in the order of tags and keys; or all.
    pub(crate) fn waiters_after(
        &self,
        last: Option<(Tag, SortKey)>,
    ) -> impl Iterator<Item = (Tag, &Entry)> {
        let after = last.map_or(Bound::Unbounded, |(_, key)| Bound::Excluded(key));
        let of_tag = last.map_or(Bound::Unbounded, |(tag, _)| Bound::Excluded(tag));
        let first = last.and_then(|(tag, _)| Some((tag, self.get(tag)?)));
        let first = first.into_iter().flat_map(move |(tag, queue)| {
            let rest = queue.waiters.range((after, Bound::Unbounded));
            rest.map(move |(_, entry)| (tag, entry))
        });
        let others = self.by_tag.range((of_tag, Bound::Unbounded));
        let others = others.flat_map(|(tag, queue)| {
            let entries = queue.waiters.values();
            entries.map(|entry| (*tag, entry))
        });
        first.chain(others)
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
pub(crate) struct QuotaQueue {
    waiters: BTreeMap<SortKey, Entry>,
    admission: Admission,
    /// The tag's own limit, if it was set; the pool's otherwise.
    own_limit: Option<QueueLimit>,
}

impl QuotaQueue {
    fn new(limit: QueueLimit) -> Self {
        Self {
            waiters: BTreeMap::new(),
            admission: Admission::new(limit),
            own_limit: None,
        }
    }

    fn set_limit(&mut self, own: Option<QueueLimit>, pools: QueueLimit) {
        self.own_limit = own;
        self.admission.limit = own.unwrap_or(pools);
    }

    /// Returns the request that enters the fair queue next.
    pub(crate) fn first(&self) -> Option<&Entry> {
        self.waiters.values().next()
    }

    pub(crate) fn join(&mut self, entry: Entry, now: Duration) {
        self.admission.join(entry.bytes, now);
        self.waiters.insert(entry.sort_key, entry);
    }

    /// Takes a request out, which entered the fair queue at that time or gave up. Returns whether it was here.
    pub(crate) fn leave(&mut self, entry: &Entry, entered: Option<Duration>) -> bool {
        let is_here = self.waiters.remove(&entry.sort_key).is_some();
        if is_here {
            self.admission.leave(entry.bytes, entered);
        }
        is_here
    }

    /// Returns how long a request would wait for the limit, as far as can be told.
    pub(crate) fn expected_wait(
        &self,
        bytes: u64,
        key: SortKey,
        now: Duration,
    ) -> Option<Duration> {
        let total = self.admission.waiting.bytes;
        let ahead = bytes_before(&self.waiters, key, total, |entry| entry.bytes);
        self.admission.expected_wait(bytes, ahead, now)
    }
}
