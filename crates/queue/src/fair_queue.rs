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

/// Where a request is in the fair queue.
pub(crate) type Place = (Flow, SortKey);

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
struct Backlog<T> {
    /// Each with its bytes.
    waiters: BTreeMap<SortKey, (u64, T)>,
    /// The bytes of all waiters.
    bytes: u64,
    /// The virtual time at which the turn of its first waiter begins.
    start: u128,
}

/// The turn of a waiter: when it begins in virtual time, and what decides among equals. The earliest is next.
pub(crate) type Turn = (u128, SortKey, Flow);

impl<T> Backlog<T> {
    const EMPTY: Self = Self {
        waiters: BTreeMap::new(),
        bytes: 0,
        start: 0,
    };

    /// Returns the first waiter's turn.
    fn first(&self, flow: Flow) -> Option<Turn> {
        let (sort_key, _) = self.waiters.first_key_value()?;
        Some((self.start, *sort_key, flow))
    }

    /// Adds up the bytes of the waiters that are due before the key.
    fn due_before(&self, key: SortKey) -> u64 {
        let bytes_of = |(_, (bytes, _)): (_, &(u64, T))| *bytes;
        let before = self.waiters.range(..key).map(bytes_of);
        let after = self.waiters.range(key..).rev().map(bytes_of);
        bytes_before(before, after, self.bytes)
    }

    /// Adds up the bytes of the waiters whose turn comes before another flow's turn. Looks from both ends, as
    /// [`bytes_before`] does.
    fn served_before(&self, turn: Turn, flow: Flow, weight: u32) -> u64 {
        let steps = |bytes| Cost { bytes, weight }.steps();
        let (mut begin, mut sum_before) = (self.start, 0u64);
        let (mut end, mut sum_after) = (self.start + steps(self.bytes), 0u64);
        let from_both_ends = self.waiters.iter().zip(self.waiters.iter().rev());
        for ((key, (bytes, _)), (last_key, (last_bytes, _))) in from_both_ends {
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
pub(crate) struct FairQueue<T> {
    /// Flows without waiters stay until the whole queue is empty: they remember the cost that they have paid.
    flows: BTreeMap<Flow, Backlog<T>>,
    /// The first waiter of each flow that has any, by the beginning of its turn.
    firsts: BTreeSet<Turn>,
    /// The virtual time at which the latest turn began.
    now: u128,
    waiting: usize,
}

impl<T> FairQueue<T> {
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

    /// Adds a waiter. No other one has its key.
    pub(crate) fn join(&mut self, flow: Flow, sort_key: SortKey, bytes: u64, waiter: T) {
        let now = self.now;
        self.change(flow, |backlog| {
            if backlog.waiters.is_empty() {
                backlog.start = backlog.start.max(now);
            }
            backlog.bytes = backlog.bytes.saturating_add(bytes);
            let before = backlog.waiters.insert(sort_key, (bytes, waiter));
            debug_assert!(before.is_none(), "a key is for one waiter");
        });
        self.waiting += 1;
    }

    /// Changes a flow, and keeps the set of first waiters up to date.
    fn change<R>(&mut self, flow: Flow, change: impl FnOnce(&mut Backlog<T>) -> R) -> R {
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

    /// Takes all waiters out, in no order.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> {
        let flows = std::mem::replace(self, Self::new()).flows.into_values();
        flows.flat_map(|flow| flow.waiters.into_values().map(|(_, waiter)| waiter))
    }

    /// Returns the flow and the key of the waiter that is served next.
    pub(crate) fn head_place(&self) -> Option<Place> {
        let (_, sort_key, flow) = self.firsts.first()?;
        Some((*flow, *sort_key))
    }

    /// Returns the waiter that is served next.
    pub(crate) fn head(&self) -> Option<&T> {
        let (flow, sort_key) = self.head_place()?;
        self.get(flow, sort_key)
    }

    /// Returns a waiter of a flow.
    pub(crate) fn get(&self, flow: Flow, sort_key: SortKey) -> Option<&T> {
        let waiters = &self.flows.get(&flow)?.waiters;
        waiters.get(&sort_key).map(|(_, waiter)| waiter)
    }

    /// Returns the first `most` waiters in the order in which they are served if no request comes, given the weight of
    /// each flow.
    pub(crate) fn first<'a>(
        &'a self,
        most: usize,
        weight: impl Fn(Flow) -> u32 + 'a,
    ) -> impl Iterator<Item = (Place, &'a T)> {
        let mut ahead = self.walk(most);
        let next = move || {
            let ((_, sort_key, flow), _, waiter) = self.next_of(&mut ahead, &weight)?;
            Some(((flow, sort_key), waiter))
        };
        std::iter::from_fn(next).take(most)
    }

    /// Begins a walk over the first `most` waiters.
    pub(crate) fn walk(&self, most: usize) -> WaiterWalk {
        // Flows further behind have none of them.
        let starts = self.firsts.iter().take(most);
        WaiterWalk(starts.map(|first| Reverse(*first)).collect())
    }

    /// Returns the next waiter of a walk, with its turn and its bytes. The queue may change between two calls: waiters that left are passed over, and
    /// flows that had no waiters when the walk began are left out.
    pub(crate) fn next_of(
        &self,
        walk: &mut WaiterWalk,
        weight: impl Fn(Flow) -> u32,
    ) -> Option<(Turn, u64, &T)> {
        loop {
            let Reverse((start, sort_key, flow)) = walk.0.pop()?;
            let Some(backlog) = self.flows.get(&flow) else {
                continue;
            };
            let mut rest = backlog.waiters.range(sort_key..);
            let Some((found, (bytes, waiter))) = rest.next() else {
                continue;
            };
            #[cfg(debug_assertions)]
            crate::visits::count();
            if *found != sort_key {
                walk.0.push(Reverse((start, *found, flow)));
                continue;
            }
            if let Some((following, _)) = rest.next() {
                let cost = Cost {
                    bytes: *bytes,
                    weight: weight(flow),
                };
                walk.0
                    .push(Reverse((start + cost.steps(), *following, flow)));
            }
            return Some(((start, sort_key, flow), *bytes, waiter));
        }
    }

    /// Returns when the turn of the first waiter of a flow begins, or would begin.
    pub(crate) fn start_of(&self, flow: Flow) -> u128 {
        match self.flows.get(&flow) {
            Some(own) if own.waiters.is_empty() => own.start.max(self.now),
            Some(own) => own.start,
            None => self.now,
        }
    }

    /// Adds up the bytes of the waiters that are served before one that joins the flow at the key, if no other comes.
    /// Takes time in proportion to the flows whose turn comes before, and within each to the smaller side.
    pub(crate) fn bytes_before(
        &self,
        flow: Flow,
        key: SortKey,
        weight: impl Fn(Flow) -> u32,
    ) -> u64 {
        let own = self.flows.get(&flow);
        let due_before = own.map_or(0, |own| own.due_before(key));
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

    /// Takes a waiter out that was served at that cost, or not at all. Returns `None` if it was not there.
    pub(crate) fn leave(
        &mut self,
        flow: Flow,
        sort_key: SortKey,
        served: Option<Cost>,
    ) -> Option<T> {
        if !self.flows.get(&flow)?.waiters.contains_key(&sort_key) {
            return None;
        }
        let mut now = self.now;
        let left = self.change(flow, |backlog| {
            let left = backlog.waiters.remove(&sort_key);
            if let Some((bytes, _)) = &left {
                backlog.bytes = backlog.bytes.saturating_sub(*bytes);
            }
            if let Some(cost) = served {
                now = now.max(backlog.start);
                backlog.start += cost.steps();
            }
            left
        });
        self.now = now;
        self.waiting -= 1;
        if self.is_empty() {
            // With no request waiting, all flows are even again.
            *self = Self::new();
        }
        left.map(|(_, waiter)| waiter)
    }
}

/// A walk over the waiters in the order in which they are served: the next of each flow, with its turn.
#[derive(Debug)]
pub(crate) struct WaiterWalk(BinaryHeap<Reverse<Turn>>);

/// Adds up the bytes before a point of a queue of `total` bytes, given those before and those after the point.
/// Takes time in proportion to the smaller side.
pub(crate) fn bytes_before(
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
        let told = fair_queue.first(usize::MAX, &weight);
        let told: Vec<_> = told.map(|(_, (_, position, _))| *position).collect();
        let mut order = Vec::new();
        while let Some(&head) = fair_queue.head() {
            let first = fair_queue.first(1, &weight).next();
            assert_eq!(first, Some(((head.0, sort_key(head.1)), &head)));
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
            let waiter = (*flow, position, *bytes);
            fair_queue.join(*flow, sort_key(position), *bytes, waiter);
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
            fair_queue.join(None, SortKey { due, position }, 512, (due, position));
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
        fair_queue.join(heavy, sort_key(3), 512, (heavy, 3, 512));
        fair_queue.join(heavy, sort_key(4), 512, (heavy, 4, 512));
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

    /// The bytes told to be ahead of a newcomer are those of the waiters that are served before it, whatever its flow
    /// and its key; with weights that divide the virtual time of a byte, exactly.
    #[test]
    fn bytes_ahead_of_a_newcomer_are_those_that_are_served_before_it() {
        let [light, heavy] = tags();
        let flows = [None, light, heavy];
        for seed in 0..if cfg!(miri) { 3 } else { 2000 } {
            let mut random = fastrand::Rng::with_seed(seed);
            let weights = [(); 3].map(|()| 1 << random.u32(..11));
            let weight = |flow| weights[flows.iter().position(|known| *known == flow).unwrap()];
            let mut fair_queue = FairQueue::new();
            let count = random.u64(..40);
            let of = random.usize(1..=3);
            for position in 0..count {
                let (flow, bytes) = (flows[random.usize(..of)], random.u64(1..5) * 512);
                let due = random.i128(..20);
                let key = SortKey { due, position };
                fair_queue.join(flow, key, bytes, (flow, key, bytes));
            }
            for _ in 0..random.usize(..20) {
                let Some(&(flow, key, bytes)) = fair_queue.head() else {
                    break;
                };
                let weight = weight(flow);
                let served = random.bool().then_some(Cost { bytes, weight });
                fair_queue.leave(flow, key, served);
            }
            let flow = flows[random.usize(..3)];
            let key = SortKey {
                due: random.i128(..20),
                position: count,
            };
            let told = fair_queue.bytes_before(flow, key, weight);
            fair_queue.join(flow, key, 512, (flow, key, 512));
            let order = fair_queue.first(usize::MAX, weight);
            let before = order.take_while(|(_, (_, other, _))| *other != key);
            let before: u64 = before.map(|(_, (_, _, bytes))| bytes).sum();
            assert_eq!(told, before, "seed {seed}");
        }
    }

    #[test]
    fn walk_goes_on_although_the_queue_changes() {
        let [light, heavy] = tags();
        let mut fair_queue = fair_queue(&[(light, 512), (heavy, 512), (light, 512), (heavy, 512)]);
        let mut walk = fair_queue.walk(usize::MAX);
        let mut next = |fair_queue: &FairQueue<(Flow, Position, u64)>| {
            let next = fair_queue.next_of(&mut walk, |_| 1);
            next.map(|(_, _, (_, position, _))| *position)
        };
        assert_eq!(next(&fair_queue), Some(0));
        fair_queue.leave(heavy, sort_key(1), None);
        assert_eq!(next(&fair_queue), Some(3));
        fair_queue.join(light, sort_key(4), 512, (light, 4, 512));
        assert_eq!(next(&fair_queue), Some(2));
        (2..=4).for_each(|position| {
            fair_queue.leave(light, sort_key(position), None);
        });
        fair_queue.leave(light, sort_key(0), None);
        assert_eq!(next(&fair_queue), None);
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
