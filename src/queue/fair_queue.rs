//! The line: in which order those are served who wait. It knows neither locks nor memory.
//!
//! **Who is due first is served first.** A request with a deadline is due then; one without is due a fixed
//! time after it came, the same for all, so that these are served first come, first served. Priority makes a
//! request due earlier by so many steps. So each request is overtaken only by those that are due earlier:
//! a bounded number, since from some moment on every newcomer is due later, whatever its priority.
//!
//! **Tags with a weight take turns.** Each is a *flow* beside that of all others, whose weight is 1. Flows are
//! served by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a turn costs a flow the bytes
//! that it got over its weight, and the flow that has paid least is next. A flow that had nothing to ask for
//! saves nothing up. So while two flows both have requests waiting, what they get over their weights differs
//! by no more than one largest request of each over its weight; within a flow the order is that of being due.
//!
//! The order of those behind the head is what it would be if nobody came: it can be told ahead.

use crate::measure::Tag;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Which one has come: lower is earlier.
pub(crate) type Position = u64;

/// When somebody is due, in nanoseconds of the device's clock; among equals, who came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortKey {
    pub(crate) due: i128,
    pub(crate) position: Position,
}

/// Who takes turns: a tag with a weight, or all the others together.
pub(super) type Flow = Option<Tag>;

/// Virtual time has so many steps to a byte of weight 1.
const STEPS: u32 = 32;

/// What a turn costs its flow: what is served in it, at the flow's weight.
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
    /// The virtual time at which its first waiter's turn begins.
    start: u128,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// Those without waiters stay until nobody waits at all: they remember what they have paid.
    flows: BTreeMap<Flow, Backlog<T>>,
    /// Virtual time: when the latest turn began.
    now: u128,
    waiting: usize,
}

impl<T> FairQueue<T> {
    pub(super) fn new() -> Self {
        Self {
            flows: BTreeMap::new(),
            now: 0,
            waiting: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn join(&mut self, flow: Flow, sort_key: SortKey, waiter: T) {
        let backlog = self.flows.entry(flow).or_insert(Backlog {
            waiters: BTreeMap::new(),
            start: 0,
        });
        if backlog.waiters.is_empty() {
            backlog.start = backlog.start.max(self.now);
        }
        let before = backlog.waiters.insert(sort_key, waiter);
        debug_assert!(before.is_none(), "a place is for one");
        self.waiting += 1;
    }

    /// Who is served next.
    pub(super) fn head(&self) -> Option<&T> {
        let firsts = self.flows.values().filter_map(|backlog| {
            let (sort_key, waiter) = backlog.waiters.first_key_value()?;
            Some(((backlog.start, *sort_key), waiter))
        });
        let (_, head) = firsts.min_by_key(|(sort_key, _)| *sort_key)?;
        Some(head)
    }

    /// The first so many, in the order in which they are served if nobody comes, each at its price.
    pub(super) fn first(&self, most: usize, cost: impl Fn(&T) -> Cost) -> Vec<&T> {
        let backlogs = self.flows.values();
        let (mut flows, starts): (Vec<_>, Vec<_>) = backlogs
            .map(|backlog| (backlog.waiters.iter().peekable(), backlog.start))
            .unzip();
        let firsts = flows.iter_mut().zip(starts).enumerate();
        let mut next: BinaryHeap<_> = firsts
            .filter_map(|(at, (flow, start))| Some(Reverse((start, *flow.peek()?.0, at))))
            .collect();
        let mut first = Vec::new();
        while first.len() < most {
            let Some(Reverse((start, _, at))) = next.pop() else {
                break;
            };
            let flow = &mut flows[at];
            let Some((_, waiter)) = flow.next() else {
                continue;
            };
            first.push(waiter);
            if let Some((sort_key, _)) = flow.peek() {
                next.push(Reverse((start + cost(waiter).steps(), **sort_key, at)));
            }
        }
        first
    }

    /// All that are due before that turn, in no order.
    pub(super) fn before(&self, sort_key: SortKey) -> impl Iterator<Item = &T> {
        let flows = self.flows.values();
        flows.flat_map(move |flow| flow.waiters.range(..sort_key).map(|(_, waiter)| waiter))
    }

    /// Takes somebody out, who was served at that price, or not at all. None, if it was not there.
    pub(super) fn leave(
        &mut self,
        flow: Flow,
        sort_key: SortKey,
        served: Option<Cost>,
    ) -> Option<T> {
        let backlog = self.flows.get_mut(&flow)?;
        let waiter = backlog.waiters.remove(&sort_key)?;
        if let Some(cost) = served {
            self.now = self.now.max(backlog.start);
            backlog.start += cost.steps();
        }
        self.waiting -= 1;
        if self.is_empty() {
            // With nobody waiting, all are even again.
            *self = Self::new();
        }
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags() -> [Flow; 2] {
        ["line: light", "line: heavy"].map(|name| Some(Tag::new(name)))
    }

    fn sort_key(position: Position) -> SortKey {
        SortKey { due: 0, position }
    }

    /// Serves the line until it is empty: who was served, in order, as it was told before.
    fn serve(
        fair_queue: &mut FairQueue<(Flow, Position, u64)>,
        weight: impl Fn(Flow) -> u32,
    ) -> Vec<Position> {
        let cost = |&(flow, _, bytes): &(Flow, Position, u64)| Cost {
            bytes,
            weight: weight(flow),
        };
        let told = fair_queue.first(usize::MAX, cost);
        let told: Vec<_> = told.into_iter().map(|(_, position, _)| *position).collect();
        let mut order = Vec::new();
        while let Some(&head) = fair_queue.head() {
            assert_eq!(fair_queue.first(1, cost), [&head]);
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
    fn who_is_due_first_is_served_first() {
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
        // Four of the heavy ones, 4 to 11, for each of the light ones, 0 to 3.
        let order = serve(&mut fair_queue(&waiters), weight);
        assert_eq!(order, [0, 4, 5, 6, 7, 1, 8, 9, 10, 11, 2, 3]);
    }

    #[test]
    fn a_flow_that_comes_late_does_not_catch_up() {
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
    fn who_gives_up_pays_nothing() {
        let [light, heavy] = tags();
        let mut fair_queue =
            fair_queue(&[(light, 1 << 40), (light, 512), (heavy, 512), (heavy, 512)]);
        assert!(fair_queue.leave(light, sort_key(0), None).is_some());
        assert!(fair_queue.leave(light, sort_key(0), None).is_none());
        assert_eq!(serve(&mut fair_queue, |_| 1), [1, 2, 3]);
    }

    /// However the flows flood, weigh and pay.
    #[test]
    fn the_order_can_be_told_ahead() {
        let [light, heavy] = tags();
        let flows = [None, light, heavy];
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..50 {
            let weights = [(); 3].map(|()| random.u32(1..9));
            let weight = |flow| weights[flows.iter().position(|known| *known == flow).unwrap()];
            let mut come = || (flows[random.usize(..3)], random.u64(1..4096));
            let waiters: Vec<_> = (0..100).map(|_| come()).collect();
            let mut fair_queue = fair_queue(&waiters);
            // Some have paid by now.
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
    fn a_flood_delays_another_by_one_turn() {
        let [light, heavy] = tags();
        let mut waiters = vec![(light, 1 << 20); 1000];
        waiters.push((heavy, 1 << 20));
        let order = serve(&mut fair_queue(&waiters), |_| 1);
        assert_eq!(order[..3], [0, 1000, 1]);
    }
}
