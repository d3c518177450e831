//! Operations on the queue of waiting requests, beside a list that answers the same questions slowly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weirpool_heap::Request;
use weirpool_heap::id::StreamId;
use weirpool_queue::{
    Entry, Flow, Newcomer, Overtaking, Pieces, Position, Queue, QueueLimit, Refused, Rules, Tag,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Queued,
    Throttled,
    Aside,
}

/// The queue as a list.
#[derive(Clone, Default)]
struct Oracle {
    list: Vec<(Entry, Where)>,
    weights: BTreeMap<Tag, u32>,
    /// The virtual time at which each flow's turn begins, and of the last turn.
    starts: BTreeMap<Flow, u128>,
    now: u128,
    /// The generation of the last search for every request, and the requests that came since.
    scan: Option<(u64, BTreeSet<Position>)>,
}

impl Oracle {
    fn at(&self, at: Where) -> impl Iterator<Item = &Entry> {
        let there = self.list.iter().filter(move |(_, of)| *of == at);
        there.map(|(entry, _)| entry)
    }

    fn start(&self, flow: Flow) -> u128 {
        let start = self.starts.get(&flow).copied().unwrap_or_default();
        match self.at(Where::Queued).any(|entry| entry.flow == flow) {
            true => start,
            false => start.max(self.now),
        }
    }

    /// The next turn: of the flow that has paid least, its request that is due first.
    fn head(&self) -> Option<Entry> {
        let turn = |entry: &&Entry| (self.start(entry.flow), entry.sort_key, entry.flow);
        self.at(Where::Queued).min_by_key(turn).copied()
    }

    fn in_order(&self) -> Vec<Position> {
        let (mut rest, mut order) = (self.clone(), Vec::new());
        while let Some(entry) = rest.head() {
            rest.leave(&entry, true);
            order.push(entry.sort_key.position);
        }
        order
    }

    fn enter(&mut self, entry: Entry, at: Where) {
        if at == Where::Queued {
            let start = self.start(entry.flow);
            self.starts.insert(entry.flow, start);
            if let Some((_, untried)) = &mut self.scan {
                untried.insert(entry.sort_key.position);
            }
        }
        self.list.push((entry, at));
    }

    fn leave(&mut self, entry: &Entry, is_served: bool) {
        let at = self.list.iter().position(|(other, _)| other == entry);
        let (_, of) = self.list.swap_remove(at.unwrap());
        if of != Where::Queued {
            return;
        }
        if is_served {
            let start = self.starts.entry(entry.flow).or_default();
            self.now = self.now.max(*start);
            let cost = u128::from(entry.bytes) << 32;
            let weight = entry.flow.and_then(|tag| self.weights.get(&tag).copied());
            *start += cost / u128::from(weight.unwrap_or(1));
        }
        if let Some((_, untried)) = &mut self.scan {
            untried.remove(&entry.sort_key.position);
        }
        if self.at(Where::Queued).next().is_none() {
            (self.now, self.scan) = (0, None);
            self.starts.clear();
        }
    }

    /// The throttled request of a tag that is due first.
    fn first_throttled(&self, tag: Tag) -> Option<&Entry> {
        let of_tag = self.at(Where::Throttled);
        let of_tag = of_tag.filter(|entry| entry.tag == Some(tag));
        of_tag.min_by_key(|entry| entry.sort_key)
    }

    fn queued(&self) -> (usize, u64) {
        amount(self.at(Where::Queued))
    }

    /// The requests that lose their places to a newcomer, in the words of [`QueueLimit`]; `None` if it may not join.
    fn displaced(&self, newcomer: &Newcomer, limit: QueueLimit) -> Option<Vec<Entry>> {
        let is_full = |(requests, bytes): (usize, u64), limit: QueueLimit| {
            requests >= limit.requests || bytes + newcomer.bytes > limit.bytes
        };
        let mut rest: Vec<Entry> = self.at(Where::Queued).copied().collect();
        let total = amount(rest.iter());
        if !is_full(total, limit) {
            return Some(Vec::new());
        }
        if is_full((0, 0), limit) {
            return None;
        }
        // Requests from quota queues can exceed the limit, and stay.
        let bound = QueueLimit {
            requests: limit.requests.max(total.0),
            bytes: limit.bytes.max(total.1),
        };
        let weight_of = |party: Flow| {
            let weight = party.and_then(|tag| self.weights.get(&tag));
            u128::from(weight.copied().unwrap_or(1))
        };
        let mut parties: BTreeSet<Flow> = rest.iter().map(|entry| entry.tag).collect();
        parties.insert(newcomer.tag);
        let weights: u128 = parties.iter().map(|party| weight_of(*party)).sum();
        let of_party = |list: &[Entry], party| {
            let own: Vec<_> = list.iter().filter(|entry| entry.tag == party).collect();
            amount(own.into_iter())
        };
        let own = of_party(&rest, newcomer.tag);
        let with = (own.0 + 1, own.1 + newcomer.bytes);
        let mut displaced = Vec::new();
        while is_full(amount(rest.iter()), bound) {
            let by_requests = rest.len() >= bound.requests;
            let counted = |(requests, bytes): (usize, u64)| match by_requests {
                true => requests as u128,
                false => bytes.into(),
            };
            let above = |of, party| {
                let share = counted((limit.requests, limit.bytes)) * weight_of(party);
                counted(of) * weights > share && !(by_requests && of.0 <= 1)
            };
            let is_within = !above(with, newcomer.tag);
            if own.0 > 0 && !is_within {
                return None;
            }
            // The only request of a tag has to go only for the first of another one.
            let is_single = own.0 == 0 && is_within && !by_requests;
            let furthest = parties.iter().rev().filter(|party| {
                let of = of_party(&rest, **party);
                let least = if is_single { 1 } else { 2 };
                **party != newcomer.tag && of.0 >= least && above(of, **party)
            });
            let party = *furthest.max_by(|one, other| {
                let over = |it: &Flow, of: &Flow| counted(of_party(&rest, *it)) * weight_of(*of);
                over(one, other).cmp(&over(other, one))
            })?;
            let of_party = rest.iter().filter(|entry| entry.tag == party);
            let last = *of_party.max_by_key(|entry| entry.sort_key)?;
            rest.retain(|entry| *entry != last);
            displaced.push(last);
        }
        Some(displaced)
    }
}

fn amount<'a>(list: impl Iterator<Item = &'a Entry>) -> (usize, u64) {
    list.fold((0, 0), |(requests, bytes), entry| {
        (requests + 1, bytes + entry.bytes)
    })
}

/// Bytes that decide what happens. Once they are used up, each choice is the first.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let Some((chosen, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return 0;
        };
        self.0 = rest;
        u64::from(u16::from_le_bytes(*chosen)) % bound
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

struct Pair {
    queue: Queue,
    oracle: Oracle,
    rules: Rules,
    now: Duration,
    tags: [Tag; 3],
}

fn needs(position: Position) -> Pieces {
    let request = Request {
        bytes: position % 7 + 1,
        alignment: 1 << (position % 3),
    };
    Pieces {
        all: [request].into_iter().collect(),
        is_anywhere: true,
    }
}

impl Pair {
    fn new(choices: &mut Choices<'_>) -> Self {
        let queue_limit = match choices.below(3) {
            0 => QueueLimit::NONE,
            1 => QueueLimit::requests(1 + choices.below(9) as usize),
            _ => QueueLimit::bytes(1 + choices.below(2000)),
        };
        let rules = Rules {
            overtaking: choices.of(&[Overtaking::NONE, Overtaking { times: 1, bytes: 9 }]),
            deadlock_grace: Duration::ZERO,
            deadlock_limit: None,
            queue_limit,
            sheds: choices.of(&[false, true]),
        };
        Self {
            queue: Queue::new(&rules),
            oracle: Oracle::default(),
            rules,
            now: Duration::ZERO,
            tags: ["oracle: a", "oracle: b", "oracle: c"].map(Tag::new),
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        self.now += Duration::from_micros(choices.below(2000));
        let any = match &*self.oracle.list {
            [] => None,
            list => Some(choices.of(list)),
        };
        match (choices.below(16), any) {
            (0..=5, _) => self.ask(choices),
            (6..=8, Some(_)) => {
                if let Some(entry) = self.oracle.head() {
                    let left = self.queue.leave(&entry, true, self.now).unwrap();
                    assert!(!left.moved.has_candidate && !left.was_throttled);
                    self.oracle.leave(&entry, true);
                }
            }
            (9, Some((entry, at))) => self.give_up(&entry, at),
            (10, Some((entry, at))) => {
                assert_eq!(self.queue.set_aside(&entry), at == Where::Queued);
                if at == Where::Queued {
                    self.move_to(entry, Where::Aside);
                }
            }
            (11, Some((entry, at))) => {
                let was_aside = at == Where::Aside;
                assert_eq!(self.queue.bring_back(&entry, self.now), was_aside);
                if was_aside {
                    self.move_to(entry, Where::Queued);
                }
            }
            (12, _) => {
                let tag = choices.of(&self.tags);
                if let Some(entry) = self.oracle.first_throttled(tag).copied() {
                    assert!(self.queue.enter_first(tag, self.now).has_new_first);
                    self.move_to(entry, Where::Queued);
                }
            }
            (13, _) => {
                // Weights of waiting flows stay: the order that was told ahead would change.
                let tag = choices.of(&self.tags);
                let mut waiting = self.oracle.list.iter();
                if waiting.all(|(entry, _)| entry.tag != Some(tag)) {
                    let weight = choices.of(&[0, 1, 2, 4]);
                    self.queue.set_weight(tag, weight);
                    match weight {
                        0 => drop(self.oracle.weights.remove(&tag)),
                        _ => drop(self.oracle.weights.insert(tag, weight)),
                    }
                }
            }
            (14, _) => self.scan(choices.below(3)),
            _ => {
                self.queue.forget_scan();
                self.oracle.scan = None;
            }
        }
        self.check(choices);
    }

    fn move_to(&mut self, entry: Entry, at: Where) {
        self.oracle.leave(&entry, false);
        self.oracle.enter(entry, at);
    }

    fn ask(&mut self, choices: &mut Choices<'_>) {
        let tag = [None, Some(choices.of(&self.tags))];
        let tag = choices.of(&tag);
        let over = tag.filter(|_| choices.below(3) == 0);
        let limit = [None, Some(Duration::from_millis(choices.below(50)))];
        let newcomer = Newcomer {
            tag,
            bytes: 1 + choices.below(300),
            stream: StreamId(1 + choices.below(3)),
            due: i128::from(choices.below(50)),
            limit: choices.of(&limit),
            is_throttled: over.is_some(),
        };
        let (count, _) = self.oracle.queued();
        let expected = match over {
            Some(_) => Some(Vec::new()),
            None => self.oracle.displaced(&newcomer, self.rules.queue_limit),
        };
        let admitted = match self.queue.admit(&newcomer, self.now) {
            Ok(admitted) => admitted,
            Err(Refused::Full(full)) => {
                let throttled = self.oracle.at(Where::Throttled);
                let of_tag = throttled.filter(|entry| entry.tag == over).count();
                let waiting = over.map_or(count, |_| of_tag);
                assert_eq!((full.tag, full.waiting), (over, waiting));
                assert!(over.is_some() || expected.is_none());
                return;
            }
            Err(Refused::Shed { expected, limit }) => {
                assert!(self.rules.sheds && expected > limit && newcomer.limit == Some(limit));
                return;
            }
        };
        let displaced = admitted.displaced.iter().map(|(entry, _)| *entry);
        assert_eq!(Some(displaced.collect()), expected);
        for (entry, full) in admitted.displaced {
            assert_eq!((full.requested, full.waiting), (entry.bytes, count));
            assert!(self.queue.leave(&entry, false, self.now).is_some());
            self.oracle.leave(&entry, false);
        }
        let entry = admitted.entry;
        let Newcomer { bytes, due, .. } = newcomer;
        let expected = self.queue.expected_wait(over, tag, bytes, due, self.now);
        let is_candidate = self.queue.join(entry, over, self.now);
        let was_scanned = self.oracle.scan.is_some();
        match over {
            Some(_) => self.oracle.enter(entry, Where::Throttled),
            None => self.oracle.enter(entry, Where::Queued),
        }
        let is_looked_at = over.is_none() && (was_scanned || self.is_looked_at(&entry));
        assert_eq!(is_candidate, is_looked_at);
        // A newcomer is listed with the expected wait that it was admitted with.
        let listed = self.listed(usize::MAX).into_iter();
        let mut listed = listed.filter(|(position, _)| *position == entry.sort_key.position);
        let told = listed.next().unwrap().1;
        let apart = |one: Duration, other: Duration| one.abs_diff(other) > Duration::from_nanos(9);
        assert_eq!(expected.is_some(), told.is_some());
        let pair = expected.zip(told);
        assert!(
            pair.is_none_or(|(one, other)| !apart(one, other)),
            "{pair:?}"
        );
    }

    fn is_looked_at(&self, entry: &Entry) -> bool {
        let most = if self.rules.overtaking.times == 0 {
            1
        } else {
            64
        };
        let order = self.oracle.in_order();
        order
            .iter()
            .take(most)
            .any(|it| *it == entry.sort_key.position)
    }

    fn give_up(&mut self, entry: &Entry, at: Where) {
        let was_looked_at = self.is_looked_at(entry);
        let first = entry.tag.and_then(|tag| self.oracle.first_throttled(tag));
        let was_first = at == Where::Throttled && first == Some(entry);
        let left = self.queue.leave(entry, false, self.now).unwrap();
        assert!(self.queue.leave(entry, false, self.now).is_none());
        assert_eq!(left.was_throttled, at == Where::Throttled);
        assert_eq!(left.moved.has_candidate, was_looked_at);
        assert_eq!(left.moved.has_new_first, was_first);
        self.oracle.leave(entry, false);
    }

    /// Searches for every request: each is tried once in a generation, unless a smaller one was tried in vain before.
    fn scan(&mut self, generation: u64) {
        let to_try = self.queue.to_scan(generation, 1, needs);
        let expected = match self.oracle.scan.take() {
            Some((last, untried)) if last == generation => untried.into_iter().collect(),
            _ => {
                let mut tried = Vec::<Request>::new();
                let mut expected = self.oracle.in_order();
                expected.drain(..expected.len().min(1));
                expected.retain(|position| {
                    let piece = needs(*position).all[0];
                    let is_in_vain = |other: &Request| {
                        other.bytes <= piece.bytes && other.alignment <= piece.alignment
                    };
                    let is_in_vain = tried.iter().any(is_in_vain);
                    if !is_in_vain {
                        tried.push(piece);
                    }
                    !is_in_vain
                });
                expected
            }
        };
        assert_eq!(to_try, expected);
        self.oracle.scan = Some((generation, BTreeSet::new()));
    }

    fn listed(&self, part: usize) -> Vec<(Position, Option<Duration>)> {
        let mut listed = self.queue.begin_list(usize::MAX, self.now);
        let mut list = Vec::new();
        while let parts = self.queue.list(&mut listed, part)
            && !parts.is_empty()
        {
            list.extend(parts);
        }
        list
    }

    fn check(&self, choices: &mut Choices<'_>) {
        let (queue, oracle) = (&self.queue, &self.oracle);
        let head = oracle.head();
        assert_eq!(queue.head(), head.map(|entry| entry.sort_key.position));
        let (count, _) = oracle.queued();
        assert_eq!((queue.queued(), queue.is_gate_open()), (count, count == 0));
        for tag in self.tags {
            assert_eq!(queue.first_throttled(tag), oracle.first_throttled(tag));
        }
        if choices.below(4) > 0 {
            return;
        }
        let order = oracle.in_order();
        assert!(queue.in_order(usize::MAX).eq(order.iter().copied()));
        let list = self.listed(1 + choices.below(9) as usize);
        let positions = list.iter().map(|(position, _)| *position);
        assert!(positions.clone().take(count).eq(order));
        let waiting = oracle.list.iter();
        let waiting: BTreeMap<_, _> = waiting.map(|it| (it.0.sort_key.position, it)).collect();
        assert!(positions.collect::<BTreeSet<_>>().iter().eq(waiting.keys()));
        // The expected waits are those of the bytes that are served up to the end of each request, at one pace.
        let (mut served, mut pace) = (0, None);
        for (position, expected) in list {
            let (entry, at) = waiting[&position];
            assert_eq!(queue.has(entry), *at == Where::Queued);
            let firsts = [
                oracle.head(),
                entry
                    .tag
                    .and_then(|tag| oracle.first_throttled(tag))
                    .copied(),
            ];
            assert_eq!(queue.is_first(entry), firsts.contains(&Some(*entry)));
            match at {
                Where::Queued => {
                    served += entry.bytes;
                    let expected = expected.map(|wait| wait.as_secs_f64() / served as f64);
                    let pace = *pace.get_or_insert(expected);
                    let apart = expected.zip(pace).map(|(one, other)| (one - other).abs());
                    assert_eq!(expected.is_some(), pace.is_some());
                    assert!(apart.is_none_or(|apart| apart < 1e-9));
                }
                // It has no turn before its waiter is polled.
                Where::Aside => assert_eq!(expected, None),
                Where::Throttled => {}
            }
        }
        let since = oracle.at(Where::Queued).map(|entry| entry.since);
        assert_eq!(queue.oldest(), since.min());
        for stream in (1..4).map(StreamId) {
            let mut queued = oracle.at(Where::Queued);
            let is_any = queued.any(|entry| entry.stream == stream);
            assert_eq!(queue.waits_for(stream), is_any);
        }
        let bytes = choices.below(300);
        for tag in self.tags {
            let is_larger = |entry: &Entry| entry.tag == Some(tag) && entry.bytes > bytes;
            let expected = waiting.iter().filter(|(_, it)| is_larger(&it.0));
            let larger: BTreeSet<_> = queue.larger_than(tag, bytes).collect();
            assert!(larger.iter().eq(expected.map(|(position, _)| position)));
        }
    }
}

/// Executes the operations that the bytes encode. Panics where the queue and the list differ.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut pair = Pair::new(&mut choices);
    while !choices.0.is_empty() {
        pair.step(&mut choices);
    }
}
