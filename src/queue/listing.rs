//! The list of the requests that wait, each with its expected wait. It takes time in proportion to their number, and
//! needs no lock: the queue hands them over in parts, in the order in which they are served.

use super::admission::QueuePace;
use super::fair_queue::{Cost, Flow, SortKey, Turn};
use super::waiter::Waiter;
use super::waiting_request::WaitingRequest;
use crate::measure::Tag;
use std::collections::BTreeMap;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Listing {
    pace: QueuePace,
    now: Duration,
    list: Vec<WaitingRequest>,
    /// Each turn in the fair queue, with the bytes up to its end.
    turns: Vec<(Turn, u64)>,
    /// The requests of each flow, each with the beginning and the end of its turn.
    flows: BTreeMap<Flow, Vec<(SortKey, u128, u128)>>,
    /// The bytes of the throttled requests of a tag that were listed.
    at_limit: Option<(Tag, u64)>,
}

impl Listing {
    pub(super) fn new(pace: QueuePace, now: Duration) -> Self {
        Self {
            pace,
            now,
            list: Vec::new(),
            turns: Vec::new(),
            flows: BTreeMap::new(),
            at_limit: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn finish(self) -> Vec<WaitingRequest> {
        self.list
    }

    /// Adds the request whose turn is next.
    pub(super) fn add(&mut self, turn: Turn, waiter: &Waiter, cost: Cost) {
        let ahead = self.turns.last().map_or(0, |(_, bytes)| *bytes);
        let with = ahead.saturating_add(cost.bytes);
        self.turns.push((turn, with));
        let (start, key, flow) = turn;
        let of_flow = self.flows.entry(flow).or_default();
        of_flow.push((key, start, start + cost.steps()));
        let expected = self.pace.time_for(with, self.now);
        self.list
            .push(WaitingRequest::of(waiter, self.now, expected));
    }

    /// Adds the next request of a tag that waits for its limit. The limit lets requests in at that pace, and the turn of
    /// its flow would begin at `start` if the flow had no requests.
    pub(super) fn add_throttled(
        &mut self,
        tag: Tag,
        pace: QueuePace,
        start: u128,
        waiter: &Waiter,
    ) {
        let bytes = waiter.demand.request.bytes;
        let before = self.at_limit.filter(|(of, _)| *of == tag);
        let with = before.map_or(bytes, |(_, before)| before.saturating_add(bytes));
        self.at_limit = Some((tag, with));
        let expected = pace.time_for(with, self.now).map(|at_limit| {
            let ahead = self.ahead_of(waiter.flow, waiter.sort_key, start);
            let in_queue = self.pace.time_for(ahead.saturating_add(bytes), self.now);
            at_limit.saturating_add(in_queue.unwrap_or_default())
        });
        self.list
            .push(WaitingRequest::of(waiter, self.now, expected));
    }

    /// Adds a request that has no turn before its waiter is polled.
    pub(super) fn add_aside(&mut self, waiter: &Waiter) {
        self.list.push(WaitingRequest::of(waiter, self.now, None));
    }

    /// Returns the bytes that are served before a request that enters the fair queue.
    fn ahead_of(&self, flow: Flow, key: SortKey, start: u128) -> u64 {
        let of_flow = self.flows.get(&flow).map_or(&[][..], |of_flow| of_flow);
        let before = of_flow.partition_point(|(other, ..)| *other < key);
        let start = match (of_flow.get(before), before.checked_sub(1)) {
            (Some((_, start, _)), _) => *start,
            (None, Some(last)) => of_flow[last].2,
            (None, None) => start,
        };
        let turn = (start, key, flow);
        let before = self.turns.partition_point(|(other, _)| *other < turn);
        let last = before.checked_sub(1);
        last.map_or(0, |last| self.turns[last].1)
    }
}
