//! Random operations on the queue, beside a list that answers the same questions slowly. The seed of a failure is told;
//! `WEIRPOOL_STEPS` sets the number of operations.

use fastrand::Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weirpool_heap::Request;
use weirpool_heap::id::StreamId;
use weirpool_queue::{Entry, Newcomer, Overtaking, Pieces, Queue, QueueLimit, Refused, Rules, Tag};

type Flow = Option<Tag>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Queued,
    Throttled,
    Aside,
}

/// The queue as a list.
#[derive(Clone, Default)]
struct Oracle {
    list: Vec<(u64, Entry, Where)>,
    weights: BTreeMap<Tag, u32>,
    /// The virtual time at which each flow's turn begins, and of the last turn.
    starts: BTreeMap<Flow, u128>,
    now: u128,
    /// The generation of the last search for every request, and the requests that came since.
    scan: Option<(u64, Vec<u64>)>,
}

impl Oracle {
    fn at(&self, at: Where) -> impl Iterator<Item = &(u64, Entry, Where)> {
        self.list.iter().filter(move |(_, _, of)| *of == at)
    }

    fn start(&self, flow: Flow) -> u128 {
        let start = self.starts.get(&flow).copied().unwrap_or_default();
        match self
            .at(Where::Queued)
            .any(|(_, entry, _)| entry.flow == flow)
        {
            true => start,
            false => start.max(self.now),
        }
    }

    /// The next turn: of the flow that has paid least, its request that is due first.
    fn head(&self) -> Option<&(u64, Entry, Where)> {
        self.at(Where::Queued)
            .min_by_key(|(_, entry, _)| (self.start(entry.flow), entry.sort_key, entry.flow))
    }

    fn in_order(&self) -> Vec<u64> {
        let (mut rest, mut order) = (self.clone(), Vec::new());
        while let Some((number, entry, _)) = rest.head().copied() {
            rest.leave(&entry, true);
            order.push(number);
        }
        order
    }

    fn enter(&mut self, number: u64, entry: Entry, at: Where) {
        if at == Where::Queued {
            let start = self.start(entry.flow);
            self.starts.insert(entry.flow, start);
            if let Some((_, untried)) = &mut self.scan {
                untried.push(number);
            }
        }
        self.list.push((number, entry, at));
    }

    fn leave(&mut self, entry: &Entry, is_served: bool) -> Option<(u64, Where)> {
        let is_it = |(_, other, _): &(u64, Entry, Where)| other.sort_key == entry.sort_key;
        let at = self.list.iter().position(is_it)?;
        let (number, entry, of) = self.list.swap_remove(at);
        if of == Where::Queued {
            if is_served {
                let start = self.starts.entry(entry.flow).or_default();
                self.now = self.now.max(*start);
                let cost = u128::from(entry.bytes) << 32;
                let weight = entry.flow.and_then(|tag| self.weights.get(&tag).copied());
                *start += cost / u128::from(weight.unwrap_or(1));
            }
            if self.at(Where::Queued).next().is_none() {
                (self.now, self.scan) = (0, None);
                self.starts.clear();
            }
        }
        Some((number, of))
    }

    /// The throttled request of a tag that is due first.
    fn first_throttled(&self, tag: Tag) -> Option<(Entry, u64)> {
        let of_tag = self.at(Where::Throttled);
        let of_tag = of_tag.filter(|(_, entry, _)| entry.tag == Some(tag));
        let first = of_tag.min_by_key(|(_, entry, _)| entry.sort_key)?;
        Some((first.1, first.0))
    }

    fn bytes(&self, at: Where) -> (usize, u64) {
        let bytes = self.at(at).map(|(_, entry, _)| entry.bytes);
        (self.at(at).count(), bytes.sum())
    }
}

struct Pair {
    queue: Queue<u64>,
    oracle: Oracle,
    rules: Rules,
    now: Duration,
    next: u64,
    /// No request waits any more under a limit that was lowered.
    limit: QueueLimit,
}

const TAGS: [&str; 3] = ["oracle: a", "oracle: b", "oracle: c"];

fn needs(number: &u64) -> Pieces {
    Pieces {
        all: [Request {
            bytes: number % 7 + 1,
            alignment: 1 << (number % 3),
        }]
        .into_iter()
        .collect(),
        is_anywhere: true,
    }
}

impl Pair {
    fn new(random: &mut Rng) -> Self {
        let limit = match random.u8(..3) {
            0 => QueueLimit::NONE,
            1 => QueueLimit::requests(random.usize(1..10)),
            _ => QueueLimit::bytes(random.u64(1..2000)),
        };
        let rules = Rules {
            overtaking: [Overtaking::NONE, Overtaking { times: 1, bytes: 9 }][random.usize(..2)],
            deadlock_grace: Duration::ZERO,
            deadlock_limit: None,
            queue_limit: limit,
            sheds: random.bool(),
        };
        Self {
            queue: Queue::new(&rules),
            oracle: Oracle::default(),
            rules,
            now: Duration::ZERO,
            next: 0,
            limit,
        }
    }

    fn step(&mut self, random: &mut Rng, tags: [Tag; 3]) {
        self.now += Duration::from_micros(random.u64(..2000));
        let any = match self.oracle.list.len() {
            0 => None,
            count => Some(self.oracle.list[random.usize(..count)]),
        };
        match (random.u8(..16), any) {
            (0..=5, _) => self.ask(random, tags),
            (6..=8, Some(_)) => {
                if let Some((number, entry, _)) = self.oracle.head().copied() {
                    let left = self.queue.leave(&entry, true, self.now).unwrap();
                    assert_eq!(left.waiter, number);
                    assert!(!left.moved.has_candidate);
                    self.oracle.leave(&entry, true);
                }
            }
            (9, Some((number, entry, at))) => self.give_up(number, entry, at),
            (10, Some((_, entry, Where::Queued))) => {
                let _ = self.queue.set_aside(&entry);
                let (number, _) = self.oracle.leave(&entry, false).unwrap();
                self.oracle.enter(number, entry, Where::Aside);
            }
            (11, Some((_, entry, at))) => {
                let was_aside = at == Where::Aside;
                assert_eq!(self.queue.bring_back(&entry, self.now), was_aside);
                if was_aside {
                    let (number, _) = self.oracle.leave(&entry, false).unwrap();
                    self.oracle.enter(number, entry, Where::Queued);
                }
            }
            (12, _) => {
                let tag = tags[random.usize(..3)];
                if let Some((entry, number)) = self.oracle.first_throttled(tag) {
                    assert!(self.queue.enter_first(tag, self.now).has_new_first);
                    self.oracle.leave(&entry, false);
                    self.oracle.enter(number, entry, Where::Queued);
                }
            }
            (13, _) => {
                // Weights of waiting flows stay: the order that was told ahead would change.
                let tag = tags[random.usize(..3)];
                if self
                    .oracle
                    .list
                    .iter()
                    .all(|(_, entry, _)| entry.tag != Some(tag))
                {
                    let weight = [0, 1, 2, 4][random.usize(..4)];
                    self.queue.set_weight(tag, weight);
                    match weight {
                        0 => drop(self.oracle.weights.remove(&tag)),
                        _ => drop(self.oracle.weights.insert(tag, weight)),
                    }
                }
            }
            (14, _) => self.scan(random.u64(..3)),
            _ => {
                let _ = self.queue.forget_scan();
                self.oracle.scan = None;
            }
        }
        self.check(random, tags);
    }

    fn ask(&mut self, random: &mut Rng, tags: [Tag; 3]) {
        let tag = [None, Some(tags[random.usize(..3)])][random.usize(..2)];
        let over = tag.filter(|_| random.u8(..3) == 0);
        let newcomer = Newcomer {
            tag,
            bytes: random.u64(1..300),
            stream: StreamId(random.u64(1..4)),
            due: i128::from(random.u32(..50)),
            limit: random
                .bool()
                .then(|| Duration::from_millis(random.u64(..50))),
            is_throttled: over.is_some(),
        };
        let (count, bytes) = self.oracle.bytes(Where::Queued);
        let is_full = count >= self.limit.requests || bytes + newcomer.bytes > self.limit.bytes;
        let admitted = match self.queue.admit(&newcomer, self.now) {
            Ok(admitted) => admitted,
            Err(Refused::Full(full)) => {
                let throttled = self.oracle.at(Where::Throttled);
                let of_tag: Vec<_> = throttled
                    .filter(|(_, entry, _)| entry.tag == over)
                    .collect();
                let waiting = over.map_or(count, |_| of_tag.len());
                assert_eq!((full.tag, full.waiting), (over, waiting));
                assert!(over.is_some() || is_full);
                return;
            }
            Err(Refused::Shed { expected, limit }) => {
                assert!(self.rules.sheds && expected > limit && newcomer.limit == Some(limit));
                return;
            }
        };
        assert!(over.is_some() || is_full != admitted.displaced.is_empty());
        let mut places = BTreeSet::new();
        for (entry, full) in admitted.displaced {
            assert!(entry.tag != tag && places.insert(entry.sort_key.position));
            assert_eq!((full.requested, full.waiting), (entry.bytes, count));
            // The last of its tag.
            let of_tag = self.oracle.at(Where::Queued);
            let of_tag = of_tag.filter(|(_, other, _)| other.tag == entry.tag);
            let last = of_tag.max_by_key(|(_, other, _)| other.sort_key).unwrap();
            assert_eq!(last.1, entry);
            assert!(self.queue.leave(&entry, false, self.now).is_some());
            self.oracle.leave(&entry, false);
        }
        let (number, entry) = (self.next, admitted.entry);
        self.next += 1;
        match over {
            Some(tag) => {
                self.queue.join_throttled(tag, entry, number, self.now);
                self.oracle.enter(number, entry, Where::Throttled);
            }
            None => {
                let is_candidate = self.queue.join(entry, number, self.now);
                let was_scanned = self.oracle.scan.is_some();
                self.oracle.enter(number, entry, Where::Queued);
                assert_eq!(is_candidate, was_scanned || self.is_looked_at(number));
            }
        }
    }

    fn is_looked_at(&self, number: u64) -> bool {
        let most = if self.rules.overtaking.times == 0 {
            1
        } else {
            64
        };
        self.oracle
            .in_order()
            .iter()
            .take(most)
            .any(|it| *it == number)
    }

    fn give_up(&mut self, number: u64, entry: Entry, at: Where) {
        let was_looked_at = self.is_looked_at(number);
        let first = entry.tag.and_then(|tag| self.oracle.first_throttled(tag));
        let left = self.queue.leave(&entry, false, self.now).unwrap();
        assert!(self.queue.leave(&entry, false, self.now).is_none());
        assert_eq!(left.waiter, number);
        assert_eq!(left.was_throttled, at == Where::Throttled);
        assert_eq!(left.moved.has_candidate, was_looked_at);
        let was_first = at == Where::Throttled && first.is_some_and(|(_, first)| first == number);
        assert_eq!(left.moved.has_new_first, was_first);
        self.oracle.leave(&entry, false);
    }

    /// Searches for every request: each is tried once in a generation, unless a smaller one was tried in vain before.
    fn scan(&mut self, generation: u64) {
        let order = self.oracle.in_order();
        let to_try = self.queue.to_scan(generation, 1, needs).all;
        match &self.oracle.scan {
            Some((last, untried)) if *last == generation => assert_eq!(to_try, *untried),
            _ => {
                let piece = |number: &u64| needs(number).all[0];
                let mut tried = Vec::<Request>::new();
                let expected = order.iter().skip(1).filter(|number| {
                    let piece = piece(number);
                    let is_in_vain = |other: &Request| {
                        other.bytes <= piece.bytes && other.alignment <= piece.alignment
                    };
                    let is_in_vain = tried.iter().any(is_in_vain);
                    if !is_in_vain {
                        tried.push(piece);
                    }
                    !is_in_vain
                });
                assert_eq!(to_try, expected.copied().collect::<Vec<_>>());
            }
        }
        self.oracle.scan = Some((generation, Vec::new()));
    }

    fn check(&self, random: &mut Rng, tags: [Tag; 3]) {
        let (queue, oracle) = (&self.queue, &self.oracle);
        let head = oracle.head();
        assert_eq!(queue.head(), head.map(|(number, _, _)| number));
        let (count, _) = oracle.bytes(Where::Queued);
        assert_eq!((queue.queued(), queue.is_gate_open()), (count, count == 0));
        for tag in tags {
            let first = queue.first_throttled(tag).copied();
            assert_eq!(first, oracle.first_throttled(tag));
        }
        if random.u8(..4) > 0 {
            return;
        }
        let order = oracle.in_order();
        assert_eq!(
            queue.in_order(usize::MAX).copied().collect::<Vec<_>>(),
            order
        );
        let mut all: Vec<_> = queue.first(usize::MAX).copied().collect();
        assert_eq!(all[..count], order);
        let mut listed = queue.begin_list(usize::MAX, self.now);
        let part = random.usize(1..9);
        let mut list = Vec::new();
        while let parts = queue.list(&mut listed, part)
            && !parts.is_empty()
        {
            list.extend(parts);
        }
        assert_eq!(
            list.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            all
        );
        // The expected waits are those of the bytes that are served up to the end of each request, at one pace.
        let (mut served, mut pace) = (0, None);
        for (number, expected) in list {
            let (_, entry, at) = oracle.list.iter().find(|it| it.0 == number).unwrap();
            match at {
                Where::Queued => {
                    served += entry.bytes;
                    let expected = expected.map(|wait| wait.as_secs_f64() / served as f64);
                    let pace = *pace.get_or_insert(expected);
                    let apart = expected.zip(pace).map(|(one, other)| (one - other).abs());
                    assert_eq!(expected.is_some(), pace.is_some());
                    assert!(
                        apart.is_none_or(|apart| apart < 1e-9),
                        "{expected:?} {pace:?}"
                    );
                }
                // It has no turn before its waiter is polled.
                Where::Aside => assert_eq!(expected, None),
                Where::Throttled => {}
            }
        }
        all.sort_unstable();
        let mut expected: Vec<_> = oracle.list.iter().map(|(number, _, _)| *number).collect();
        expected.sort_unstable();
        assert_eq!(all, expected);
        let since = oracle.list.iter().map(|(_, entry, _)| entry.since);
        assert_eq!(queue.oldest(), since.min());
        let since = oracle.at(Where::Queued).map(|(_, entry, _)| entry.since);
        assert_eq!(queue.oldest_for_memory(), since.min());
        for stream in (1..4).map(StreamId) {
            let mut queued = oracle.at(Where::Queued);
            assert_eq!(
                queue.waits_for(stream),
                queued.any(|it| it.1.stream == stream)
            );
        }
        let bytes = random.u64(..300);
        for tag in tags {
            let mut larger: Vec<_> = queue.larger_than(tag, bytes).copied().collect();
            larger.sort_unstable();
            let of_tag = oracle
                .list
                .iter()
                .filter(|(_, entry, _)| entry.tag == Some(tag) && entry.bytes > bytes);
            let mut expected: Vec<_> = of_tag.map(|(number, _, _)| *number).collect();
            expected.sort_unstable();
            assert_eq!(larger, expected);
        }
    }
}

#[test]
fn random_operations_agree_with_a_list() {
    let steps = std::env::var("WEIRPOOL_STEPS").ok();
    let steps = steps.map_or(400_000, |steps| steps.parse().unwrap());
    let steps: u64 = if cfg!(miri) { 200 } else { steps };
    let tags = TAGS.map(Tag::new);
    for seed in 0..steps.div_ceil(200) {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut pair = Pair::new(&mut random);
        for _ in 0..200 {
            pair.step(&mut random, tags);
        }
        let left: BTreeSet<_> = pair.queue.take_all().map(Reverse).collect();
        assert!(left.len() >= pair.oracle.list.len());
    }
}
