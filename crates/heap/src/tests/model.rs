//! The heap against a naive model of all grants, and of all past uses with the points that must precede their reuse.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Action {
    Get {
        stream: u64,
        granules: u64,
    },
    Free {
        pick: usize,
        on: Vec<u64>,
    },
    Complete {
        stream: u64,
    },
    Release {
        target: Target,
        /// How many fourths of the spans are released.
        fourths: usize,
    },
    FailedGrowth {
        granules: u64,
        done: usize,
        lost: bool,
    },
}

fn target() -> impl Strategy<Value = Target> {
    let bytes = || (0..64u64).prop_map(|half| half * MIB / 2);
    prop_oneof![
        2 => bytes().prop_map(Target::Keep),
        1 => (bytes(), bytes()).prop_map(|(reserved, most)| Target::DownTo { reserved, most }),
        1 => bytes().prop_map(Target::Bytes),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..4u64, 1..6000u64).prop_map(|(stream, granules)| Action::Get { stream, granules }),
        4 => (any::<usize>(), proptest::collection::vec(1..4u64, 0..3))
            .prop_map(|(pick, on)| Action::Free { pick, on }),
        2 => (1..4u64).prop_map(|stream| Action::Complete { stream }),
        1 => (target(), 0..5usize).prop_map(|(target, fourths)| Action::Release { target, fourths }),
        1 => (1..20_000u64, 0..4usize, any::<bool>())
            .prop_map(|(granules, done, lost)| Action::FailedGrowth { granules, done, lost }),
    ]
}

/// A free: address, end, and the points that must be complete before another stream uses the bytes.
type Past = (u64, u64, Vec<(u64, u64)>);

#[derive(Default)]
struct Model {
    live: Vec<(Grant, StreamId)>,
    /// Frees, newest last.
    past: Vec<Past>,
    tickets: [u64; 4],
    complete: [u64; 4],
}

impl Model {
    /// *tiling*: no two grants overlap. *order*: every earlier use of these bytes is complete, or of the taker's own
    /// stream; and if it is not complete, the grant's fences name it.
    fn check_grant(&self, grant: &Grant, stream: StreamId) {
        for (live, _) in &self.live {
            let apart = live.address + live.bytes <= grant.address
                || grant.address + grant.bytes <= live.address;
            assert!(apart, "tiling: {grant:?} overlaps {live:?}");
        }
        for (start, end, fences) in &self.past {
            if *start < grant.address + grant.bytes && grant.address < *end {
                for (donor, ticket) in fences {
                    let is_done = self.complete[*donor as usize] >= *ticket;
                    let is_own = *donor == stream.0;
                    assert!(
                        is_done || is_own,
                        "order: {grant:?} for {stream:?} before {donor}#{ticket}"
                    );
                    let is_named = grant.fences.of(StreamId(*donor)) >= Ticket(*ticket);
                    assert!(
                        is_done || is_named,
                        "order: {grant:?} forgets {donor}#{ticket}"
                    );
                }
            }
        }
    }

    fn note_free(&mut self, grant: &Grant, fences: Vec<(u64, u64)>) {
        self.past
            .push((grant.address, grant.address + grant.bytes, fences));
    }

    /// Frees a block on some streams. Returns the grant and its fences.
    fn free(&mut self, pick: usize, on: &[u64]) -> (Grant, Fences) {
        let at = pick % self.live.len();
        let (grant, home) = self.live.swap_remove(at);
        let mut fences = grant.fences.clone();
        let streams = on.iter().copied().chain([home.0]);
        let left: Vec<_> = streams
            .map(|stream| {
                self.tickets[stream as usize] += 1;
                (stream, self.tickets[stream as usize])
            })
            .collect();
        for (stream, ticket) in &left {
            fences.join_all(&Fences::one(StreamId(*stream), Ticket(*ticket)));
        }
        self.note_free(&grant, left);
        (grant, fences)
    }
}

fn failed_growth(heap: &mut Heap, granules: u64, done: usize, lost: bool) {
    match plan(heap, granules * GRANULE, Growth::Allowed) {
        Some(Plan::Map(mapping)) if !mapping.steps.is_empty() => {
            let done = done.min(mapping.steps.len() - 1);
            let lost = lost && mapping.steps[done].from.is_some();
            assert!(mapping.commit(heap, Outcome { done, lost }).is_none());
        }
        Some(Plan::Memory(segment)) => {
            assert!(segment.commit(heap, None, Fences::default()).is_none());
        }
        Some(plan) => {
            let grant = carry_out(heap, plan).unwrap();
            heap.give_back(grant.id, grant.fences);
        }
        None => {}
    }
}

fn run(virtual_memory: bool, actions: Vec<Action>) {
    let mut heap = heap(virtual_memory);
    let mut model = Model::default();
    for action in actions {
        match action {
            Action::Get { stream, granules } => {
                if let Some(grant) = get(&mut heap, StreamId(stream), granules * GRANULE) {
                    model.check_grant(&grant, StreamId(stream));
                    model.live.push((grant, StreamId(stream)));
                }
            }
            Action::Free { pick, on } if !model.live.is_empty() => {
                let (grant, fences) = model.free(pick, &on);
                heap.give_back(grant.id, fences);
            }
            Action::Free { .. } => {}
            Action::Complete { stream } => {
                let ticket = model.tickets[stream as usize];
                model.complete[stream as usize] = ticket;
                heap.complete(StreamId(stream), Ticket(ticket));
            }
            Action::Release { target, fourths } => {
                let before = reserved(&heap);
                let release = heap.plan_release(target);
                let done = release.spans.len() * fourths / 4;
                let bytes = heap.commit_release(release, done);
                assert_eq!(reserved(&heap), before - bytes);
                match target {
                    Target::Keep(keep) => assert!(bytes == 0 || reserved(&heap) >= keep),
                    Target::DownTo { most, .. } => assert!(bytes <= most),
                    Target::Bytes(_) => {}
                }
            }
            Action::FailedGrowth {
                granules,
                done,
                lost,
            } => failed_growth(&mut heap, granules, done, lost),
        }
        check(&heap);
    }
    for (grant, _) in model.live.drain(..) {
        free(&mut heap, &grant);
    }
    check::conserved(&heap).unwrap();
}

/// Maximum number of operations of a run, plus one.
const MOST: usize = if cfg!(miri) { 30 } else { 120 };

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_on_virtual_memory(actions in proptest::collection::vec(action(), 1..MOST)) {
        run(true, actions);
    }

    #[test]
    fn random_operations_on_plain_memory(actions in proptest::collection::vec(action(), 1..MOST)) {
        run(false, actions);
    }
}
