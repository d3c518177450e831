//! A model of fairness: each guarantee of the guide's page on services, as an assertion about random queues. Requests are
//! numbers, memory is a number of bytes, and no thread runs.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weirpool_heap::id::StreamId;
use weirpool_queue::{
    DUE_AFTER, Entry, Newcomer, Overtaking, PRIORITY_STEP, Queue, QueueLimit, Refused, Rules, Tag,
    Terms, due, longest_wait,
};

const MS: Duration = Duration::from_millis(1);

fn rules() -> Rules {
    Rules {
        overtaking: Overtaking::NONE,
        deadlock_grace: MS,
        deadlock_limit: None,
        queue_limit: QueueLimit::NONE,
        sheds: false,
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..if cfg!(miri) { 3 } else { 2000 }
}

/// A queue, the clock, and the quotas of tags.
struct Model {
    queue: Queue,
    now: Duration,
    /// The requests that wait, by number.
    waiting: BTreeMap<u64, Entry>,
    terms: BTreeMap<u64, Terms>,
    /// The bytes that each tag has charged, and its limit.
    quotas: BTreeMap<Tag, (u64, u64)>,
    throttled: BTreeSet<u64>,
}

impl Model {
    fn new(rules: Rules) -> Self {
        Self {
            queue: Queue::new(&rules),
            now: Duration::ZERO,
            waiting: BTreeMap::new(),
            terms: BTreeMap::new(),
            quotas: BTreeMap::new(),
            throttled: BTreeSet::new(),
        }
    }

    /// A request arrives. Returns its number and those that it displaced.
    fn ask(&mut self, bytes: u64, terms: Terms) -> Result<(u64, Vec<u64>), Refused> {
        let quota = terms.tag.and_then(|tag| self.quotas.get_mut(&tag));
        let has_throttled = terms
            .tag
            .is_some_and(|tag| self.queue.first_throttled(tag).is_some());
        let is_throttled =
            quota.is_some_and(|(charged, limit)| has_throttled || *charged + bytes > *limit);
        let newcomer = Newcomer {
            tag: terms.tag,
            bytes,
            stream: StreamId(1),
            due: due(&terms, self.now),
            limit: longest_wait(&terms),
            is_throttled,
        };
        let admitted = self.queue.admit(&newcomer, self.now)?;
        let number = admitted.entry.sort_key.position;
        let displaced = admitted.displaced.into_iter().map(|(entry, _)| {
            assert!(self.queue.leave(&entry, false, self.now).is_some());
            self.waiting.remove(&entry.sort_key.position);
            entry.sort_key.position
        });
        let displaced = displaced.collect();
        self.waiting.insert(number, admitted.entry);
        self.terms.insert(number, terms);
        let over = terms.tag.filter(|_| is_throttled);
        let _ = self.queue.join(admitted.entry, over, self.now);
        match over {
            Some(tag) => {
                self.throttled.insert(number);
                self.let_in(tag);
            }
            None => {
                if let Some((charged, _)) = terms.tag.and_then(|tag| self.quotas.get_mut(&tag)) {
                    *charged += bytes;
                }
            }
        }
        Ok((number, displaced))
    }

    /// Lets throttled requests of a tag in, as far as its quota allows.
    fn let_in(&mut self, tag: Tag) {
        while let Some(entry) = self.queue.first_throttled(tag) {
            let (charged, limit) = self.quotas.get_mut(&tag).unwrap();
            if *charged + entry.bytes > *limit {
                return;
            }
            *charged += entry.bytes;
            self.throttled.remove(&entry.sort_key.position);
            assert!(self.queue.enter_first(tag, self.now).has_new_first);
        }
    }

    /// Bytes of a tag are freed.
    fn free(&mut self, tag: Tag, bytes: u64) {
        let (charged, _) = self.quotas.get_mut(&tag).unwrap();
        *charged -= bytes;
        self.let_in(tag);
    }

    fn serve(&mut self, number: u64) -> Entry {
        let entry = self.waiting.remove(&number).unwrap();
        assert!(self.queue.leave(&entry, true, self.now).is_some());
        entry
    }

    /// Serves the head.
    fn serve_head(&mut self) -> Option<(u64, Entry)> {
        let head = self.queue.head()?;
        Some((head, self.serve(head)))
    }
}

fn tags() -> [Tag; 3] {
    ["fairness: a", "fairness: b", "fairness: c"].map(Tag::new)
}

#[test]
fn requests_on_the_same_terms_are_served_in_arrival_order() {
    for seed in seeds() {
        let (mut random, mut model) = (Rng::with_seed(seed), Model::new(rules()));
        let mut served = Vec::new();
        for _ in 0..60 {
            model.now += MS * random.u32(..20);
            match random.u8(..3) {
                0 => served.extend(model.serve_head().map(|(number, _)| number)),
                1 if !model.waiting.is_empty() => {
                    // It gives up.
                    let at = random.usize(..model.waiting.len());
                    let number = *model.waiting.keys().nth(at).unwrap();
                    let entry = model.waiting.remove(&number).unwrap();
                    assert!(model.queue.leave(&entry, false, model.now).is_some());
                }
                _ => drop(model.ask(random.u64(1..99), Terms::default()).unwrap()),
            }
        }
        assert!(served.is_sorted(), "seed {seed}: {served:?}");
    }
}

/// Deadlines and priorities: the request that is served was due first, so that a request is passed by few later ones.
#[test]
fn request_is_passed_only_by_requests_that_are_due_earlier() {
    for seed in seeds() {
        let (mut random, mut model) = (Rng::with_seed(seed), Model::new(rules()));
        for _ in 0..80 {
            model.now += MS * random.u32(..300);
            if random.u8(..3) > 0 {
                let deadline = random.bool().then(|| MS * random.u32(..3000));
                let terms = Terms {
                    deadline,
                    priority: [0, 0, random.i32(-3..4)][random.usize(..3)],
                    ..Terms::default()
                };
                let _ = model.ask(1, terms).unwrap();
                continue;
            }
            let Some((number, entry)) = model.serve_head() else {
                continue;
            };
            let terms = model.terms[&number];
            for (other, passed) in model.waiting.range(..number) {
                let others = model.terms[other];
                assert!(entry.sort_key < passed.sort_key, "seed {seed}");
                if terms.priority == 0 && others.priority == 0 {
                    // A request is not overtaken by requests that arrive after it is due.
                    let due_at = passed.since + others.deadline.unwrap_or(DUE_AFTER);
                    assert!(entry.since <= due_at, "seed {seed}");
                }
                if terms.deadline.is_none() && others.deadline.is_none() {
                    // With n steps more, only if it arrived at most n steps later.
                    let steps = u32::try_from(terms.priority - others.priority).unwrap();
                    assert!(
                        entry.since <= passed.since + PRIORITY_STEP * steps,
                        "seed {seed}"
                    );
                }
            }
        }
    }
}

/// While two tags both have requests waiting, their granted bytes over their weights differ by at most one largest
/// request of each over its weight.
#[test]
fn tags_with_weights_share_granted_bytes() {
    for seed in seeds() {
        let (mut random, mut model) = (Rng::with_seed(seed), Model::new(rules()));
        let parties = [None, Some(tags()[0]), Some(tags()[1])];
        let weights = [1, random.u32(1..9), random.u32(1..9)];
        for (party, weight) in parties.iter().zip(weights).skip(1) {
            model.queue.set_weight(party.unwrap(), weight);
        }
        let largest = [(); 3].map(|()| random.u64(1..1000));
        let mut waiting = [0; 3];
        let party_of = |tag| parties.iter().position(|it| *it == tag).unwrap();
        // The bytes of each, since any pair of them began to wait at once.
        let mut granted = [[[0u64; 2]; 3]; 3];
        for _ in 0..200 {
            model.now += MS * random.u32(..20);
            if random.u8(..5) < 2 {
                let at = random.usize(..3);
                let terms = Terms {
                    tag: parties[at],
                    deadline: random.bool().then(|| MS * random.u32(..300)),
                    ..Terms::default()
                };
                let _ = model.ask(random.u64(1..=largest[at]), terms).unwrap();
                waiting[at] += 1;
            } else if let Some((_, entry)) = model.serve_head() {
                let at = party_of(entry.tag);
                for other in [0, 1, 2] {
                    granted[at][other][0] += entry.bytes;
                    granted[other][at][1] += entry.bytes;
                }
                waiting[at] -= 1;
            }
            for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                if waiting[one] == 0 || waiting[other] == 0 {
                    granted[one][other] = [0; 2];
                    continue;
                }
                let over = |at: usize, bytes: u64| bytes as f64 / f64::from(weights[at]);
                let [first, second] = granted[one][other];
                let apart = (over(one, first) - over(other, second)).abs();
                let most = over(one, largest[one]) + over(other, largest[other]);
                assert!(apart <= most + 1e-6, "seed {seed}: {apart} above {most}");
            }
        }
    }
}

/// A throttled request neither delays a request of another tag nor makes it fail, and no tag is above its quota.
#[test]
fn throttled_request_delays_no_other_tag() {
    for seed in seeds() {
        let (mut random, mut with) = (Rng::with_seed(seed), Model::new(rules()));
        let [limited, ..] = tags();
        with.quotas.insert(limited, (0, random.u64(1..300)));
        // A second queue, without the requests that are throttled when they come.
        let mut without = Model::new(rules());
        let mut numbers = BTreeMap::new();
        let mut held = Vec::new();
        for _ in 0..80 {
            with.now += MS * random.u32(..20);
            without.now = with.now;
            match random.u8(..4) {
                0 => {
                    let expected = without.serve_head().map(|(number, _)| number);
                    let mut served = with.serve_head();
                    // A request that came in from its quota queue is in one of the two only.
                    while let Some((number, entry)) = served
                        && !numbers.contains_key(&number)
                    {
                        held.push(entry.bytes);
                        served = with.serve_head();
                    }
                    let served = served.map(|(number, entry)| {
                        if entry.tag == Some(limited) {
                            held.push(entry.bytes);
                        }
                        numbers[&number]
                    });
                    assert_eq!(served, expected, "seed {seed}");
                }
                1 if !held.is_empty() => {
                    let bytes = held.swap_remove(random.usize(..held.len()));
                    with.free(limited, bytes);
                }
                _ => {
                    let terms = Terms {
                        tag: random.bool().then_some(limited),
                        ..Terms::default()
                    };
                    let bytes = random.u64(1..200);
                    let (number, _) = with.ask(bytes, terms).unwrap();
                    if !with.throttled.contains(&number) {
                        let (other, _) = without.ask(bytes, terms).unwrap();
                        numbers.insert(number, other);
                    }
                }
            }
            let (charged, limit) = with.quotas[&limited];
            assert!(charged <= limit);
            let first = with.queue.first_throttled(limited);
            // The first waits for the limit, and nothing else.
            assert!(first.is_none_or(|first| charged + first.bytes > limit));
            // They enter in the order in which they are due.
            let due_first = with.throttled.iter().map(|number| &with.waiting[number]);
            let due_first = due_first.min_by_key(|entry| entry.sort_key);
            assert_eq!(first, due_first, "seed {seed}");
        }
    }
}

/// While another tag is above its share, no request of a tag within its share is refused, and each tag can have one
/// request waiting unless all are at their shares.
#[test]
fn tag_within_its_share_of_the_queue_is_not_refused_while_another_is_above() {
    for seed in seeds() {
        let mut random = Rng::with_seed(seed);
        let limit = random.usize(1..12);
        let mut rules = rules();
        rules.queue_limit = QueueLimit::requests(limit);
        let mut model = Model::new(rules);
        let parties = [None, Some(tags()[0]), Some(tags()[1]), Some(tags()[2])];
        let mut weights = [1; 4];
        for at in 1..4 {
            weights[at] = random.u32(1..6);
            model.queue.set_weight(parties[at].unwrap(), weights[at]);
        }
        for _ in 0..80 {
            if random.u8(..4) == 0 {
                let _ = model.serve_head();
                continue;
            }
            let counts = parties.map(|party| {
                let waits = model.waiting.values();
                waits.filter(|entry| entry.tag == party).count()
            });
            let at = [0, random.usize(..4)][random.usize(..2)];
            let present: u32 = (0..4)
                .filter(|of| *of == at || counts[*of] > 0)
                .map(|of| weights[of])
                .sum();
            let is_above = |of: usize, count: usize| {
                count > 1
                    && count as u64 * u64::from(present) > (limit as u64) * u64::from(weights[of])
            };
            let is_full = model.waiting.len() >= limit;
            let others_above = (0..4).any(|of| of != at && is_above(of, counts[of]));
            let terms = Terms {
                tag: parties[at],
                ..Terms::default()
            };
            match model.ask(1, terms) {
                Ok((_, displaced)) => {
                    assert_eq!(displaced.len(), usize::from(is_full), "seed {seed}");
                }
                Err(refused) => {
                    assert!(matches!(refused, Refused::Full(_)) && is_full);
                    let is_within = !is_above(at, counts[at] + 1);
                    assert!(!(is_within && others_above), "seed {seed}");
                }
            }
            assert!(model.waiting.len() <= limit);
        }
    }
}

/// Each waiter is passed at most as often as the bound says, by at most as many bytes, and only while the head cannot be
/// served.
#[test]
fn overtaking_is_bounded_by_requests_and_bytes() {
    for seed in seeds() {
        let mut random = Rng::with_seed(seed);
        let mut rules = rules();
        rules.overtaking = Overtaking {
            times: random.u32(..5),
            bytes: random.u64(..400),
        };
        let mut model = Model::new(rules);
        let mut passed = BTreeMap::<u64, (u64, u64)>::new();
        let mut free = random.u64(..200);
        let mut overtakers = 0;
        for _ in 0..100 {
            model.now += MS * random.u32(..20);
            match random.u8(..3) {
                0 => free += random.u64(..150),
                _ => drop(model.ask(random.u64(1..200), Terms::default()).unwrap()),
            }
            // A pass over the queue, as the pool's.
            loop {
                let first: Vec<u64> = model.queue.looked_at().collect();
                let Some(head) = first.first() else {
                    break;
                };
                assert!(first.len() <= 64 && (rules.overtaking.times > 0 || first.len() == 1));
                let bytes = |number: &u64| model.waiting[number].bytes;
                let served = match bytes(head) <= free {
                    true => Some(0),
                    false => (1..first.len()).find(|at| {
                        let bytes = bytes(&first[*at]);
                        let may_pass = |other: &u64| {
                            let passed = passed.get(other).copied().unwrap_or_default();
                            rules.may_overtake(passed, bytes)
                        };
                        bytes <= free && first[..*at].iter().all(may_pass)
                    }),
                };
                let Some(at) = served else {
                    break;
                };
                let entry = model.serve(first[at]);
                free -= entry.bytes;
                for other in &first[..at] {
                    let (times, bytes) = passed.entry(*other).or_default();
                    (*times, *bytes) = (*times + 1, *bytes + entry.bytes);
                    overtakers += 1;
                }
            }
            for (times, bytes) in passed.values() {
                let bound = rules.overtaking;
                assert!(*times <= u64::from(bound.times) && *bytes <= bound.bytes);
            }
        }
        assert!(overtakers == 0 || rules.overtaking.times > 0);
    }
}

/// A request whose task does not answer loses its turn, and nothing else: it is back at its position.
#[test]
fn request_that_was_set_aside_is_back_at_its_position() {
    for seed in seeds() {
        let (mut random, mut model) = (Rng::with_seed(seed), Model::new(rules()));
        for _ in 0..10 {
            let terms = Terms {
                priority: random.i32(-2..3),
                ..Terms::default()
            };
            let _ = model.ask(1, terms).unwrap();
        }
        let before: Vec<_> = model.queue.in_order(usize::MAX).collect();
        let head = model.waiting[&before[0]];
        let _ = model.queue.set_aside(&head);
        assert_eq!(model.queue.head(), Some(before[1]));
        let mut listed = model.queue.begin_list(usize::MAX, model.now);
        let listed = [(); 2].map(|()| model.queue.list(&mut listed, 9));
        assert_eq!(listed[1], [(before[0], None)], "it is listed last");
        assert!(model.queue.bring_back(&head, model.now));
        assert!(!model.queue.bring_back(&head, model.now));
        let after: Vec<_> = model.queue.in_order(usize::MAX).collect();
        assert_eq!(after, before);
    }
}
