//! The expected waits of all requests that wait. They take time in proportion to the number of requests, and are told
//! without the queue, which hands the requests over in parts, in the order in which they are served.

use crate::admission::{QueuePace, joined_wait};
use crate::fair_queue::{Cost, Flow, SortKey, Turn};
use crate::{Entry, Tag};
use std::collections::BTreeMap;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Listing {
    pace: QueuePace,
    now: Duration,
    /// Each turn in the fair queue, with the bytes up to its end.
    turns: Vec<(Turn, u64)>,
    /// The requests of each flow, each with the beginning and the end of its turn.
    flows: BTreeMap<Flow, Vec<(SortKey, u128, u128)>>,
    /// The bytes of the throttled requests of a tag that were listed.
    at_limit: Option<(Tag, u64)>,
}

impl Listing {
    pub(crate) fn new(pace: QueuePace, now: Duration) -> Self {
        Self {
            pace,
            now,
            turns: Vec::new(),
            flows: BTreeMap::new(),
            at_limit: None,
        }
    }

    /// Adds the request whose turn is next. Returns its expected wait.
    pub(crate) fn add(&mut self, turn: Turn, cost: Cost) -> Option<Duration> {
        let ahead = self.turns.last().map_or(0, |(_, bytes)| *bytes);
        let with = ahead.saturating_add(cost.bytes);
        self.turns.push((turn, with));
        let (start, key, flow) = turn;
        let of_flow = self.flows.entry(flow).or_default();
        of_flow.push((key, start, start + cost.steps()));
        self.pace.time_for(with, self.now)
    }

    /// Adds the next request of a tag that waits for its limit. The limit lets requests in at that pace, and the turn of
    /// its flow would begin at `start` if the flow had no requests. Returns its expected wait.
    pub(crate) fn add_throttled(
        &mut self,
        tag: Tag,
        pace: QueuePace,
        start: u128,
        entry: &Entry,
    ) -> Option<Duration> {
        let bytes = entry.bytes;
        let before = self.at_limit.filter(|(of, _)| *of == tag);
        let with = before.map_or(bytes, |(_, before)| before.saturating_add(bytes));
        self.at_limit = Some((tag, with));
        pace.time_for(with, self.now).map(|at_limit| {
            let ahead = self.ahead_of(entry.flow, entry.sort_key, start);
            let in_queue = self.pace.time_for(ahead.saturating_add(bytes), self.now);
            joined_wait(at_limit, in_queue)
        })
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
