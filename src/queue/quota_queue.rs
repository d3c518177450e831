//! The quota queue of a tag: the requests that wait because their tag has reached its limit.
//!
//! They are outside the [fair queue](super::fair_queue), and keep no other request from being served. Once the limit
//! allows it they enter the fair queue, in the order in which they are due, at the position that each has by its
//! coming. How many may wait here, and for how long, is a matter of the tag alone: a tenant's flood neither refuses
//! nor delays the requests of other tenants.

use super::admission::{Admission, QueueLimit};
use super::fair_queue::{SortKey, bytes_before};
use super::waiter::Waiter;
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct QuotaQueue {
    waiters: BTreeMap<SortKey, Arc<Waiter>>,
    pub(super) admission: Admission,
    /// The tag's own limit, if it was set; the pool's otherwise.
    own_limit: Option<QueueLimit>,
}

impl QuotaQueue {
    pub(super) fn new(limit: QueueLimit) -> Self {
        Self {
            waiters: BTreeMap::new(),
            admission: Admission::new(limit),
            own_limit: None,
        }
    }

    /// Sets the tag's own limit, or with `None` returns to the pool's.
    pub(super) fn set_limit(&mut self, own: Option<QueueLimit>, pools: QueueLimit) {
        self.own_limit = own;
        self.admission.limit = own.unwrap_or(pools);
    }

    /// The pool's limit is another one.
    pub(super) fn set_pools_limit(&mut self, limit: QueueLimit) {
        self.set_limit(self.own_limit, limit);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The request that enters the fair queue next.
    pub(super) fn first(&self) -> Option<&Arc<Waiter>> {
        self.waiters.values().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.waiters.values()
    }

    pub(super) fn join(&mut self, waiter: Arc<Waiter>, now: Duration) {
        self.admission.join(waiter.demand.request.bytes, now);
        self.waiters.insert(waiter.sort_key, waiter);
    }

    /// Takes a request out. `entered` is the time at which it entered the fair queue, if it did.
    pub(super) fn leave(
        &mut self,
        sort_key: SortKey,
        entered: Option<Duration>,
    ) -> Option<Arc<Waiter>> {
        let waiter = self.waiters.remove(&sort_key)?;
        self.admission.leave(waiter.demand.request.bytes, entered);
        Some(waiter)
    }

    /// How long a request would wait for the limit, as far as can be told.
    pub(super) fn expected_wait(
        &self,
        bytes: u64,
        key: SortKey,
        now: Duration,
    ) -> Option<Duration> {
        let bytes_of = |waiter: &Arc<Waiter>| waiter.demand.request.bytes;
        let (before, after) = (self.waiters.range(..key), self.waiters.range(key..));
        let ahead = bytes_before(
            before.map(|(_, waiter)| bytes_of(waiter)),
            after.map(|(_, waiter)| bytes_of(waiter)),
            self.admission.bytes(),
        );
        let bytes = ahead.saturating_add(bytes);
        self.admission.pace.time_for(bytes, now)
    }
}
