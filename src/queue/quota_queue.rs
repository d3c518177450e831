//! The quota queue: where those wait whose tag has reached its limit.
//!
//! They are outside the [line](super::fair_queue). Once the limit allows it they come in, the first who is due first,
//! to the place that each had by its coming.

use super::fair_queue::SortKey;
use super::waiters::{Queue, Standing, Waiter};
use crate::measure::{Account, ByStream, Streams, Tag};
use crate::sync::{Arc, Ordering, SharedState, assert_unlocked, plain};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::task::{Wake, Waker};

/// How many of those at a quota queue are woken to look after it: any of them may not be polled again.
const WOKEN: usize = 4;

/// Those of one tag who wait at the quota queue, in the order in which they are due.
#[derive(Debug, Default)]
pub(super) struct QuotaQueue {
    waiters: BTreeMap<SortKey, Arc<Waiter>>,
    /// For which streams.
    streams: ByStream,
    /// How often their tag had been granted anything for a stream when the last of them came for that.
    begun: ByStream,
    /// Somebody will look after it by itself.
    is_watched: bool,
}

impl QuotaQueue {
    pub(super) fn join(&mut self, waiter: Arc<Waiter>, account: &Account) {
        let stream = waiter.lane.id;
        self.streams.add(stream);
        self.begun.set(stream, account.begun_on(stream));
        self.waiters.insert(waiter.sort_key, waiter);
    }

    pub(super) fn leave(&mut self, sort_key: SortKey) -> Option<Arc<Waiter>> {
        let waiter = self.waiters.remove(&sort_key)?;
        self.streams.subtract(waiter.lane.id);
        Some(waiter)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.waiters.values()
    }

    fn first(&self) -> Option<&Arc<Waiter>> {
        self.waiters.values().next()
    }

    /// The streams for which somebody waits who came after the last grant for that stream: who was granted that may
    /// be the one who waits.
    fn streams(&self, account: &Account) -> Streams {
        let unchanged = account.unchanged_since(&self.begun);
        self.streams.streams().among(unchanged)
    }
}

/// Those at a quota queue, as who looks after it sees them.
#[derive(Debug)]
pub(super) struct Throttled {
    pub(super) first: Arc<Waiter>,
    /// For which streams they wait, as far as who holds on these may be among them.
    pub(super) streams: Streams,
    /// Whom to wake to look again.
    watchers: Watchers,
}

impl Throttled {
    /// Wakes some of them.
    pub(super) fn waker(&self) -> Waker {
        Waker::from(plain::Arc::new(self.watchers.clone()))
    }

    /// How many it wakes.
    pub(super) fn wakes(&self) -> usize {
        self.watchers.0.len()
    }
}

/// They are woken as they wait then, whoever polls them.
#[derive(Clone, Debug)]
struct Watchers(SmallVec<[Arc<Waiter>; WOKEN]>);

impl Wake for Watchers {
    fn wake(self: plain::Arc<Self>) {
        let wakers = self.0.iter().filter_map(|waiter| waiter.waker());
        wakers.for_each(Waker::wake);
    }
}

/// Those who were let in from the quota queue: woken when this is dropped, which is done with no lock held.
#[derive(Debug, Default)]
#[must_use = "who was let in is to be woken with no lock held"]
pub(super) struct Admitted(SmallVec<[Waker; 2]>);

impl Admitted {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            assert_unlocked("wake");
            self.0.drain(..).for_each(Waker::wake);
        }
    }
}

impl Queue {
    /// Bytes of a tag are not claimed any more: lets those in whom its limit allows now. If that is nobody, the
    /// first looks after the quota queue, unless somebody does by itself: who freed may have been the last who could.
    pub(super) fn admit(&self, tag: Tag, gate: &SharedState) -> Admitted {
        let mut standing = self.standing.lock();
        let mut admitted = self.admit_from(&mut standing, tag, gate);
        let unwatched = standing
            .quota_queues
            .get(&tag)
            .filter(|quota_queue| !quota_queue.is_watched);
        if let Some(first) = unwatched.and_then(QuotaQueue::first) {
            admitted.0.extend(first.waker());
        }
        admitted
    }

    pub(super) fn admit_from(
        &self,
        standing: &mut Standing,
        tag: Tag,
        gate: &SharedState,
    ) -> Admitted {
        let mut admitted = Admitted::default();
        while let Some(quota_queue) = standing.quota_queues.get(&tag) {
            let Some(first) = quota_queue.first() else {
                standing.quota_queues.remove(&tag);
                self.accounts.of(tag).end_holding();
                break;
            };
            let sort_key = first.sort_key;
            if !self.let_in(standing, tag, sort_key, &mut admitted, gate) {
                break;
            }
        }
        admitted
    }

    /// Lets those in whom the limit allows now, wherever they stand. Says whether there was anybody.
    pub(super) fn admit_anybody(&self, tag: Tag, gate: &SharedState) -> bool {
        let mut standing = self.standing.lock();
        let mut admitted = Admitted::default();
        let quota_queue = standing.quota_queues.get(&tag);
        let turns = quota_queue
            .into_iter()
            .flat_map(|quota_queue| quota_queue.waiters.keys());
        let turns: Vec<_> = turns.copied().collect();
        for sort_key in turns {
            self.let_in(&mut standing, tag, sort_key, &mut admitted, gate);
        }
        let rest = self.admit_from(&mut standing, tag, gate);
        drop(standing);
        !(admitted.is_empty() && rest.is_empty())
    }

    /// Lets one in, if the limit allows it.
    fn let_in(
        &self,
        standing: &mut Standing,
        tag: Tag,
        sort_key: SortKey,
        admitted: &mut Admitted,
        gate: &SharedState,
    ) -> bool {
        let Some(quota_queue) = standing.quota_queues.get_mut(&tag) else {
            return false;
        };
        let charges = |waiter: &Arc<Waiter>| {
            let bytes = waiter.demand.request.bytes;
            self.accounts.of(tag).charge_throttled(bytes).is_ok()
        };
        if !quota_queue.waiters.get(&sort_key).is_some_and(charges) {
            return false;
        }
        let Some(waiter) = quota_queue.leave(sort_key) else {
            return false;
        };
        // Before its waker is looked for: a poll that finds it held is woken.
        waiter.is_held.store(false, Ordering::Release);
        admitted.0.extend(waiter.waker());
        self.enqueue(standing, waiter, gate);
        true
    }

    /// Sets the limit of a tag, and lets in whom it allows.
    pub(crate) fn set_limit(&self, tag: Tag, limit: Option<u64>, gate: &SharedState) {
        let mut standing = self.standing.lock();
        // Under the lock: who is held by the old one is let in by the new one.
        self.accounts.of(tag).set_limit(limit);
        let admitted = self.admit_from(&mut standing, tag, gate);
        drop(standing);
        drop(admitted);
    }

    /// Those at the quota queue of a tag. From now on nobody looks after it by itself, until that is
    /// [said](Self::watch_quota).
    pub(super) fn throttled(&self, tag: Tag) -> Option<Throttled> {
        let mut standing = self.standing.lock();
        let quota_queue = standing.quota_queues.get_mut(&tag)?;
        quota_queue.is_watched = false;
        let watchers = quota_queue.waiters.values().take(WOKEN);
        Some(Throttled {
            first: quota_queue.first()?.clone(),
            streams: quota_queue.streams(self.accounts.of(tag)),
            watchers: Watchers(watchers.cloned().collect()),
        })
    }

    /// Somebody looks after the quota queue of a tag by itself.
    pub(super) fn watch_quota(&self, tag: Tag) {
        if let Some(quota_queue) = self.standing.lock().quota_queues.get_mut(&tag) {
            quota_queue.is_watched = true;
        }
    }
}
