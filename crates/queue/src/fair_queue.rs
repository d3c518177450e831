//! The fair queue: the order in which waiting requests are served. It knows neither locks nor memory.
//!
//! **The request that is due first is served first.** A request with a deadline is due then. One without is due a
//! fixed time after it came, the same for all, so these are served first come, first served. Each step of priority
//! makes a request due earlier by a fixed time. So a request is overtaken only by requests that are due earlier: a
//! bounded number, because from some moment on every newcomer is due later, whatever its priority.
//!
//! **Tags with a weight take turns.** Each of them is a *flow*. All other requests together are one flow of weight 1.
//! Flows are served by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a turn costs its flow the bytes
//! served over the flow's weight, and the flow that has paid least is next. A flow without requests saves nothing
//! up. So while two flows both have requests waiting, the bytes they are given over their weights differ by at most
//! one largest request of each over its weight. Within a flow, the request that is due first is first.
//!
//! The order behind the head is the one that results if no request comes: it can be told ahead.

use crate::Tag;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The number of a request in the order in which requests joined.
pub type Position = u64;

/// When a request is due, in nanoseconds of the device's clock; among equals, the earlier position is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortKey {
    /// The time.
    pub due: i128,
    /// The position of the request.
    pub position: Position,
}

/// A party that takes turns: a tag with a weight, or all other requests together.
pub type Flow = Option<Tag>;

/// The virtual time of a byte at weight 1 is 2 to the power of this.
const STEPS: u32 = 32;

/// The cost of a turn to its flow: the bytes served in it, at the flow's weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) weight: u32,
}

impl Cost {
    /// In virtual time.
    #[inline]
    pub(crate) fn steps(self) -> u128 {
        (u128::from(self.bytes) << STEPS) / u128::from(self.weight.max(1))
    }
}

#[derive(Debug)]
struct Backlog {
    /// The bytes of each.
    waiters: BTreeMap<SortKey, u64>,
    /// The bytes of all of them.
    bytes: u64,
    /// The virtual time at which the turn of its first request begins.
    start: u128,
}

/// The turn of a request: when it begins in virtual time, and what decides among equals. The earliest is next.
pub(crate) type Turn = (u128, SortKey, Flow);

impl Backlog {
    const EMPTY: Self = Self {
        waiters: BTreeMap::new(),
        bytes: 0,
        start: 0,
    };

    /// Returns the first request's turn.
    fn first(&self, flow: Flow) -> Option<Turn> {
        let (sort_key, _) = self.waiters.first_key_value()?;
        Some((self.start, *sort_key, flow))
    }

    /// Adds up the bytes of the requests whose turn comes before another flow's turn. Looks from both ends, as
    /// [`bytes_before`] does.
    fn served_before(&self, turn: Turn, flow: Flow, weight: u32) -> u64 {
        let steps = |bytes| Cost { bytes, weight }.steps();
        let (mut begin, mut sum_before) = (self.start, 0u64);
        let (mut end, mut sum_after) = (self.start + steps(self.bytes), 0u64);
        let from_both_ends = self.waiters.iter().zip(self.waiters.iter().rev());
        for ((key, bytes), (last_key, last_bytes)) in from_both_ends {
            #[cfg(debug_assertions)]
            crate::visits::count();
            if (begin, *key, flow) >= turn {
                return sum_before;
            }
            begin += steps(*bytes);
            sum_before = sum_before.saturating_add(*bytes);
            end = end.saturating_sub(steps(*last_bytes));
            if (end, *last_key, flow) < turn {
                return self.bytes.saturating_sub(sum_after);
            }
            sum_after = sum_after.saturating_add(*last_bytes);
        }
        sum_before
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct FairQueue {
    /// Flows without requests stay until the whole queue is empty: they remember the cost that they have paid.
    flows: BTreeMap<Flow, Backlog>,
    /// The first request of each flow that has any, by the beginning of its turn.
    firsts: BTreeSet<Turn>,
    /// The virtual time at which the latest turn began.
    now: u128,
    waiting: usize,
}

impl FairQueue {
    pub(crate) fn new() -> Self {
        Self {
            flows: BTreeMap::new(),
            firsts: BTreeSet::new(),
            now: 0,
            waiting: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Adds a request. No other one has its key.
    pub(crate) fn join(&mut self, flow: Flow, sort_key: SortKey, bytes: u64) {
        let now = self.now;
        self.change(flow, |backlog| {
            if backlog.waiters.is_empty() {
                backlog.start = backlog.start.max(now);
            }
            backlog.bytes = backlog.bytes.saturating_add(bytes);
            let before = backlog.waiters.insert(sort_key, bytes);
            debug_assert!(before.is_none(), "a key is for one request");
        });
        self.waiting += 1;
    }

    /// Changes a flow, and keeps the set of first requests up to date.
    fn change<R>(&mut self, flow: Flow, change: impl FnOnce(&mut Backlog) -> R) -> R {
        let backlog = self.flows.entry(flow).or_insert(Backlog::EMPTY);
        let before = backlog.first(flow);
        let result = change(backlog);
        let after = backlog.first(flow);
        if before != after {
            before.map(|before| self.firsts.remove(&before));
            self.firsts.extend(after);
        }
        result
    }

    /// Returns the key of the request that is served next.
    pub(crate) fn head(&self) -> Option<SortKey> {
        self.firsts.first().map(|(_, sort_key, _)| *sort_key)
    }

    /// Returns the first `most` requests in the order in which they are served if no request comes, given the weight of
    /// each flow.
    pub(crate) fn first(
        &self,
        most: usize,
        weight: impl Fn(Flow) -> u32,
    ) -> impl Iterator<Item = SortKey> {
        let mut ahead = self.walk(most);
        let next = move || self.next_of(&mut ahead, &weight);
        let turns = std::iter::from_fn(next).take(most);
        turns.map(|((_, sort_key, _), _)| sort_key)
    }

    /// Begins a walk over the first `most` requests.
    pub(crate) fn walk(&self, most: usize) -> Walk {
        // Flows further behind have none of them.
        let starts = self.firsts.iter().take(most);
        Walk(starts.map(|first| Reverse(*first)).collect())
    }

    /// Returns the next turn of a walk, with its cost. The queue may change between two calls: requests that left are
    /// passed over, and flows that had no requests when the walk began are left out.
    pub(crate) fn next_of(
        &self,
        walk: &mut Walk,
        weight: impl Fn(Flow) -> u32,
    ) -> Option<(Turn, Cost)> {
        loop {
            let Reverse((start, sort_key, flow)) = walk.0.pop()?;
            let Some(backlog) = self.flows.get(&flow) else {
                continue;
            };
            let mut rest = backlog.waiters.range(sort_key..);
            let Some((found, bytes)) = rest.next() else {
                continue;
            };
            #[cfg(debug_assertions)]
            crate::visits::count();
            if *found != sort_key {
                walk.0.push(Reverse((start, *found, flow)));
                continue;
            }
            let cost = Cost {
                bytes: *bytes,
                weight: weight(flow),
            };
            if let Some((following, _)) = rest.next() {
                let following = (start + cost.steps(), *following, flow);
                walk.0.push(Reverse(following));
            }
            return Some(((start, sort_key, flow), cost));
        }
    }

    /// Returns when the turn of the first request of a flow begins, or would begin.
    pub(crate) fn start_of(&self, flow: Flow) -> u128 {
        match self.flows.get(&flow) {
            Some(own) if own.waiters.is_empty() => own.start.max(self.now),
            Some(own) => own.start,
            None => self.now,
        }
    }

    /// Adds up the bytes of the requests that are served before one that joins the flow at the key, if no other comes.
    /// Takes time in proportion to the flows whose turn comes before, and within each to the smaller side.
    pub(crate) fn bytes_before(
        &self,
        flow: Flow,
        key: SortKey,
        weight: impl Fn(Flow) -> u32,
    ) -> u64 {
        let own = self.flows.get(&flow);
        let due_before = own.map_or(0, |own| {
            bytes_before(&own.waiters, key, own.bytes, |bytes| *bytes)
        });
        let cost = Cost {
            bytes: due_before,
            weight: weight(flow),
        };
        let turn = (self.start_of(flow) + cost.steps(), key, flow);
        let before = self.firsts.range(..turn);
        let others = before.filter(|(_, _, other)| *other != flow);
        let served = others
            .map(|(_, _, other)| self.flows[other].served_before(turn, *other, weight(*other)));
        served.fold(due_before, u64::saturating_add)
    }

    /// Takes a request out that was served at that cost, or not at all. Returns whether it was there.
    pub(crate) fn leave(&mut self, flow: Flow, sort_key: SortKey, served: Option<Cost>) -> bool {
        if !(self.flows.get(&flow)).is_some_and(|own| own.waiters.contains_key(&sort_key)) {
            return false;
        }
        let mut now = self.now;
        self.change(flow, |backlog| {
            let bytes = backlog.waiters.remove(&sort_key).unwrap_or_default();
            backlog.bytes = backlog.bytes.saturating_sub(bytes);
            if let Some(cost) = served {
                now = now.max(backlog.start);
                backlog.start += cost.steps();
            }
        });
        self.now = now;
        self.waiting -= 1;
        if self.is_empty() {
            // With no request waiting, all flows are even again.
            *self = Self::new();
        }
        true
    }
}

/// A walk over the requests in the order in which they are served: the next turn of each flow.
#[derive(Debug)]
pub(crate) struct Walk(BinaryHeap<Reverse<Turn>>);

/// Adds up the bytes of the requests before the key in a queue of `total` bytes. Takes time in proportion to the smaller
/// side.
pub(crate) fn bytes_before<W>(
    waiters: &BTreeMap<SortKey, W>,
    key: SortKey,
    total: u64,
    bytes_of: impl Fn(&W) -> u64,
) -> u64 {
    let mut before = waiters.range(..key).map(|(_, waiter)| bytes_of(waiter));
    let mut after = waiters.range(key..).map(|(_, waiter)| bytes_of(waiter));
    let (mut sum_before, mut sum_after) = (0u64, 0u64);
    loop {
        let Some(bytes) = before.next() else {
            return sum_before;
        };
        sum_before = sum_before.saturating_add(bytes);
        let Some(bytes) = after.next() else {
            return total.saturating_sub(sum_after);
        };
        sum_after = sum_after.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_goes_on_although_the_queue_changes() {
        let [light, heavy] = ["fair queue: light", "fair queue: heavy"].map(Tag::new);
        let key = |position| SortKey { due: 0, position };
        let mut queue = FairQueue::new();
        for (flow, position) in [(light, 0), (heavy, 1), (light, 2), (heavy, 3)] {
            queue.join(Some(flow), key(position), 512);
        }
        let mut walk = queue.walk(usize::MAX);
        let mut next = |queue: &FairQueue| {
            let next = queue.next_of(&mut walk, |_| 1);
            next.map(|((_, key, _), _)| key.position)
        };
        assert_eq!(next(&queue), Some(0));
        assert!(queue.leave(Some(heavy), key(1), None));
        assert_eq!(next(&queue), Some(3));
        queue.join(Some(light), key(4), 512);
        assert_eq!(next(&queue), Some(2));
        for position in [2, 4, 0] {
            assert!(queue.leave(Some(light), key(position), None));
        }
        assert!(queue.leave(Some(heavy), key(3), None));
        assert_eq!(next(&queue), None);
    }
}
