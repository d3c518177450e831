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

use crate::measure::Tag;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The number of a request in the order in which requests joined.
pub(crate) type Position = u64;

/// When a request is due, in nanoseconds of the device's clock; among equals, the earlier position is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortKey {
    pub(crate) due: i128,
    pub(crate) position: Position,
}

/// A party that takes turns: a tag with a weight, or all other requests together.
pub(super) type Flow = Option<Tag>;

/// The virtual time of a byte at weight 1 is 2 to the power of this.
const STEPS: u32 = 32;

/// The cost of a turn to its flow: the bytes served in it, at the flow's weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) bytes: u64,
    pub(super) weight: u32,
}

impl Cost {
    /// In virtual time.
    fn steps(self) -> u128 {
        (u128::from(self.bytes) << STEPS) / u128::from(self.weight.max(1))
    }
}

#[derive(Debug)]
struct Backlog<T> {
    waiters: BTreeMap<SortKey, T>,
    /// The virtual time at which the turn of its first waiter begins.
    start: u128,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// Flows without waiters stay until the whole queue is empty: they remember the cost that they have paid.
    flows: BTreeMap<Flow, Backlog<T>>,
    /// The first waiter of each flow that has any, by the beginning of its turn.
    firsts: BTreeSet<(u128, SortKey, Flow)>,
    /// The virtual time at which the latest turn began.
    now: u128,
    waiting: usize,
}

impl<T> FairQueue<T> {
    pub(super) fn new() -> Self {
        Self {
            flows: BTreeMap::new(),
            firsts: BTreeSet::new(),
            now: 0,
            waiting: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Adds a waiter. No other one has its key.
    pub(super) fn join(&mut self, flow: Flow, sort_key: SortKey, waiter: T) {
        let now = self.now;
        self.change(flow, |backlog| {
            if backlog.waiters.is_empty() {
                backlog.start = backlog.start.max(now);
            }
            let before = backlog.waiters.insert(sort_key, waiter);
            debug_assert!(before.is_none(), "a key is for one waiter");
        });
        self.waiting += 1;
    }

    /// Changes a flow, and keeps the set of first waiters up to date.
    fn change<R>(&mut self, flow: Flow, change: impl FnOnce(&mut Backlog<T>) -> R) -> R {
        let first = |backlog: &Backlog<T>| {
            let (sort_key, _) = backlog.waiters.first_key_value()?;
            Some((backlog.start, *sort_key, flow))
        };
        let backlog = self.flows.entry(flow).or_insert(Backlog {
            waiters: BTreeMap::new(),
            start: 0,
        });
        let before = first(backlog);
        let result = change(backlog);
        let after = first(backlog);
        if before != after {
            before.map(|before| self.firsts.remove(&before));
            self.firsts.extend(after);
        }
        result
    }

    /// Takes all waiters out, in no order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> {
        let flows = std::mem::replace(self, Self::new()).flows.into_values();
        flows.flat_map(|flow| flow.waiters.into_values())
    }

    /// Returns the waiter that is served next.
    pub(super) fn head(&self) -> Option<&T> {
        let (_, sort_key, flow) = self.firsts.first()?;
        self.flows[flow].waiters.get(sort_key)
    }

    /// Returns the first `most` waiters in the order in which they are served if no request comes, each at its cost.
    pub(super) fn first<'a>(
        &'a self,
        most: usize,
        cost: impl Fn(&T) -> Cost + 'a,
    ) -> impl Iterator<Item = &'a T> {
        // Flows further behind have none of them.
        let starts = self.firsts.iter().take(most);
        let mut next: BinaryHeap<_> = starts.map(|first| Reverse(*first)).collect();
        let first = std::iter::from_fn(move || {
            let Reverse((start, sort_key, flow)) = next.pop()?;
            let mut rest = self.flows[&flow].waiters.range(sort_key..);
            let (_, waiter) = rest.next()?;
            #[cfg(test)]
            note_visit();
            if let Some((following, _)) = rest.next() {
                next.push(Reverse((start + cost(waiter).steps(), *following, flow)));
            }
            Some(waiter)
        });
        first.take(most)
    }

    /// Returns the waiters that are due before the key, in no order.
    pub(super) fn before(&self, key: SortKey) -> impl Iterator<Item = &T> {
        let flows = self.flows.values();
        flows.flat_map(move |flow| flow.waiters.range(..key).map(|(_, waiter)| waiter))
    }

    /// Returns the waiters that are due at the key or after it, in no order.
    pub(super) fn after(&self, key: SortKey) -> impl Iterator<Item = &T> {
        let flows = self.flows.values();
        flows.flat_map(move |flow| flow.waiters.range(key..).map(|(_, waiter)| waiter))
    }

    /// Takes a waiter out that was served at that cost, or not at all. Returns `None` if it was not there.
    pub(super) fn leave(
        &mut self,
        flow: Flow,
        sort_key: SortKey,
        served: Option<Cost>,
    ) -> Option<T> {
        if !self.flows.get(&flow)?.waiters.contains_key(&sort_key) {
            return None;
        }
        let mut now = self.now;
        let waiter = self.change(flow, |backlog| {
            let waiter = backlog.waiters.remove(&sort_key);
            if let Some(cost) = served {
                now = now.max(backlog.start);
                backlog.start += cost.steps();
            }
            waiter
        });
        self.now = now;
        self.waiting -= 1;
        if self.is_empty() {
            // With no request waiting, all flows are even again.
            *self = Self::new();
        }
        waiter
    }
}

/// Adds up the bytes before a point of a queue of `total` bytes, given those before and those after the point.
/// Takes time in proportion to the smaller side.
pub(super) fn bytes_before(
    mut before: impl Iterator<Item = u64>,
    mut after: impl Iterator<Item = u64>,
    total: u64,
) -> u64 {
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
thread_local! {
    /// How many waiters this thread looked at in fair queues.
    pub(super) static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn note_visit() {
    VISITS.set(VISITS.get() + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags() -> [Flow; 2] {
        ["fair queue: light", "fair queue: heavy"].map(|name| Some(Tag::new(name)))
    }

    fn sort_key(position: Position) -> SortKey {
        SortKey { due: 0, position }
    }

    /// Serves the queue until it is empty. Returns the positions in the order in which they were served, which is the
    /// order told ahead.
    fn serve(
        fair_queue: &mut FairQueue<(Flow, Position, u64)>,
        weight: impl Fn(Flow) -> u32,
    ) -> Vec<Position> {
        let cost = |&(flow, _, bytes): &(Flow, Position, u64)| Cost {
            bytes,
            weight: weight(flow),
        };
        let told = fair_queue.first(usize::MAX, cost);
        let told: Vec<_> = told.map(|(_, position, _)| *position).collect();
        let mut order = Vec::new();
        while let Some(&head) = fair_queue.head() {
            assert_eq!(fair_queue.first(1, cost).next(), Some(&head));
            let (flow, position, _) = head;
            fair_queue
                .leave(flow, sort_key(position), Some(cost(&head)))
                .unwrap();
            order.push(position);
        }
        assert_eq!(order, told);
        order
    }

    fn paid(bytes: u64) -> Option<Cost> {
        Some(Cost { bytes, weight: 1 })
    }

    fn fair_queue(waiters: &[(Flow, u64)]) -> FairQueue<(Flow, Position, u64)> {
        let mut fair_queue = FairQueue::new();
        for ((flow, bytes), position) in waiters.iter().zip(0..) {
            fair_queue.join(*flow, sort_key(position), (*flow, position, *bytes));
        }
        fair_queue
    }

    #[test]
    fn one_flow_is_first_come_first_served() {
        let mut fair_queue = fair_queue(&[(None, 8), (None, 1), (None, 4)]);
        assert_eq!(serve(&mut fair_queue, |_| 1), [0, 1, 2]);
        assert!(fair_queue.is_empty());
    }

    #[test]
    fn request_due_first_is_served_first() {
        let mut fair_queue = FairQueue::new();
        for (position, due) in [(0, 7), (1, -3), (2, 7), (3, 5)] {
            fair_queue.join(None, SortKey { due, position }, (due, position));
        }
        let mut order = Vec::new();
        while let Some(&(due, position)) = fair_queue.head() {
            fair_queue.leave(None, SortKey { due, position }, None);
            order.push(position);
        }
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn flows_take_turns_by_weight() {
        let [light, heavy] = tags();
        let waiters: Vec<_> = [light; 4].into_iter().chain([heavy; 8]).collect();
        let waiters: Vec<_> = waiters.into_iter().map(|flow| (flow, 512)).collect();
        let weight = |flow| if flow == heavy { 4 } else { 1 };
        // Four of the heavy flow, 4 to 11, for each of the light flow, 0 to 3.
        let order = serve(&mut fair_queue(&waiters), weight);
        assert_eq!(order, [0, 4, 5, 6, 7, 1, 8, 9, 10, 11, 2, 3]);
    }

    #[test]
    fn late_flow_does_not_catch_up() {
        let [light, heavy] = tags();
        let mut fair_queue = fair_queue(&[(light, 512), (light, 512), (light, 512)]);
        for position in 0..2 {
            fair_queue.leave(light, sort_key(position), paid(512));
        }
        fair_queue.join(heavy, sort_key(3), (heavy, 3, 512));
        fair_queue.join(heavy, sort_key(4), (heavy, 4, 512));
        assert_eq!(serve(&mut fair_queue, |_| 1), [3, 2, 4]);
    }

    #[test]
    fn waiter_that_gives_up_pays_nothing() {
        let [light, heavy] = tags();
        let mut fair_queue =
            fair_queue(&[(light, 1 << 40), (light, 512), (heavy, 512), (heavy, 512)]);
        assert!(fair_queue.leave(light, sort_key(0), None).is_some());
        assert!(fair_queue.leave(light, sort_key(0), None).is_none());
        assert_eq!(serve(&mut fair_queue, |_| 1), [1, 2, 3]);
    }

    #[test]
    fn order_can_be_told_ahead() {
        let [light, heavy] = tags();
        let flows = [None, light, heavy];
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..if cfg!(miri) { 1 } else { 50 } {
            let weights = [(); 3].map(|()| random.u32(1..9));
            let weight = |flow| weights[flows.iter().position(|known| *known == flow).unwrap()];
            let mut come = || (flows[random.usize(..3)], random.u64(1..4096));
            let waiters: Vec<_> = (0..100).map(|_| come()).collect();
            let mut fair_queue = fair_queue(&waiters);
            // Some were served before.
            for position in (0..100).step_by(7) {
                fair_queue.leave(
                    waiters[position].0,
                    sort_key(position as Position),
                    paid(1000),
                );
            }
            assert_eq!(serve(&mut fair_queue, weight).len(), 85);
        }
    }

    #[test]
    fn flood_delays_another_flow_by_one_turn() {
        let [light, heavy] = tags();
        let mut waiters = vec![(light, 1 << 20); 1000];
        waiters.push((heavy, 1 << 20));
        let order = serve(&mut fair_queue(&waiters), |_| 1);
        assert_eq!(order[..3], [0, 1000, 1]);
    }

    #[test]
    fn bytes_before_a_point_are_the_same_from_either_side() {
        let sum = |before: &[u64], after: &[u64]| {
            let total = before.iter().chain(after).sum();
            bytes_before(before.iter().copied(), after.iter().copied(), total)
        };
        assert_eq!(sum(&[1, 2, 3], &[]), 6);
        assert_eq!(sum(&[1, 2, 3], &[10]), 6);
        assert_eq!(sum(&[1], &[10, 20, 30]), 1);
        assert_eq!(sum(&[], &[10]), 0);
        assert_eq!(sum(&[], &[]), 0);
    }
}
