//! The heap against a naive model, and the cases worth naming.

use super::plan::Step;
use super::window::Growth;
use super::*;
use crate::id::{StreamId, Ticket};
use crate::measure::Mark;
use proptest::prelude::*;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const CHUNK: u64 = 2 * MIB;
const BASE: u64 = 1 << 40;
pub(super) const A: StreamId = StreamId(1);
pub(super) const B: StreamId = StreamId(2);
pub(super) const C: StreamId = StreamId(3);

pub(super) fn heap(virtual_memory: bool) -> Heap {
    let mut heap = Heap::new(Geometry {
        capacity: 32 * MIB,
        chunk_bytes: CHUNK,
        granularity: CHUNK,
        virtual_memory,
        growth: GrowBy::default(),
    });
    if virtual_memory {
        heap.add_range(BASE, 256 * MIB);
    }
    [A, B, C]
        .into_iter()
        .for_each(|stream| heap.register(stream, Ticket::ZERO));
    heap
}

pub(super) fn request(bytes: u64) -> Request {
    Request {
        bytes,
        alignment: GRANULE,
    }
}

pub(super) fn view<'a>(stream: StreamId, after: &'a Clock) -> View<'a> {
    View {
        stream,
        after,
        waits: None,
        placement: Placement::Anywhere,
    }
}

pub(super) fn take(heap: &mut Heap, stream: StreamId, bytes: u64) -> Option<Grant> {
    heap.take(request(bytes), &view(stream, &Clock::default()))
}

/// Plans and carries out everything, as a device without faults would.
pub(super) fn grow(heap: &mut Heap, stream: StreamId, bytes: u64) -> Option<Grant> {
    let clock = Clock::default();
    match heap.plan(request(bytes), &view(stream, &clock), Growth::Allowed)? {
        Plan::Map(mapping) => {
            let outcome = Outcome {
                done: mapping.steps.len(),
                lost: false,
            };
            heap.commit(mapping, outcome)
        }
        Plan::Memory(bytes, request) => {
            let ends = heap.segments.iter().flatten().map(|s| s.address + s.bytes);
            let address = ends.max().unwrap_or(BASE).next_multiple_of(CHUNK);
            heap.commit_memory(bytes, request, Some(address))
        }
    }
}

pub(super) fn get(heap: &mut Heap, stream: StreamId, bytes: u64) -> Option<Grant> {
    take(heap, stream, bytes).or_else(|| grow(heap, stream, bytes))
}

fn sound(heap: &Heap) {
    heap.check().unwrap();
}

#[test]
fn free_neighbours_merge_and_best_fit_takes_the_smallest() {
    let mut heap = heap(true);
    let [a, b, c] = [MIB, MIB, 2 * MIB].map(|bytes| get(&mut heap, A, bytes).unwrap());
    heap.give_back(a.id, Fences::default());
    heap.give_back(c.id, Fences::default());
    sound(&heap);
    let again = take(&mut heap, B, MIB).unwrap();
    assert_eq!(
        again.address, a.address,
        "the hole of its size, not the large one"
    );
    heap.give_back(again.id, Fences::default());
    heap.give_back(b.id, Fences::default());
    sound(&heap);
    assert_eq!(heap.figures(Mark::RESET).free_blocks, 1);
    assert_eq!(heap.largest_free(), 4 * MIB);
}

#[test]
fn a_large_piece_is_broken_up_only_if_nothing_else_may_fit() {
    let none = Clock::default();
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let sizes = [4 * CHUNK, 2 * CHUNK, CHUNK];
        let [large, other, own] = sizes.map(|bytes| grow(&mut heap, A, bytes).unwrap());
        heap.give_back(large.id, Fences::default());
        let good_fit = |heap: &mut Heap, bytes| heap.take_good_fit(request(bytes), &view(A, &none));

        heap.give_back(own.id, Fences::one(A, Ticket(1)));
        let Fit::Good(first) = good_fit(&mut heap, 2 * CHUNK) else {
            panic!("what is pending is its own: there is nobody to ask");
        };
        assert_eq!(first.address, large.address);
        heap.give_back(first.id, Fences::default());

        heap.give_back(other.id, Fences::one(B, Ticket(1)));
        assert!(matches!(good_fit(&mut heap, 2 * CHUNK), Fit::Loose));
        assert!(matches!(good_fit(&mut heap, 5 * CHUNK), Fit::None));
        sound(&heap);
        let Fit::Good(close) = good_fit(&mut heap, 3 * CHUNK + GRANULE) else {
            panic!("less than a handle is over");
        };
        heap.give_back(close.id, Fences::default());
        heap.complete(B, Ticket(1));
        let Fit::Good(second) = good_fit(&mut heap, 2 * CHUNK) else {
            panic!("nothing of others is pending any more");
        };
        assert_eq!(second.bytes, 2 * CHUNK);
        sound(&heap);
    }
}

#[test]
fn pending_memory_serves_its_own_stream_and_those_ordered_after_it() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    heap.give_back(block.id, Fences::one(A, Ticket(3)));
    assert!(take(&mut heap, B, CHUNK).is_none());
    let early = Clock::one(A, Ticket(2));
    assert!(heap.take(request(CHUNK), &view(B, &early)).is_none());
    let late = Clock::one(A, Ticket(3));
    let for_b = heap.take(request(CHUNK), &view(B, &late)).unwrap();
    assert_eq!(for_b.fences.of(A), Ticket(3));
    heap.give_back(for_b.id, for_b.fences);
    let for_a = take(&mut heap, A, CHUNK).unwrap();
    assert_eq!(for_a.address, block.address);
    heap.give_back(for_a.id, for_a.fences);
    sound(&heap);
}

/// Umpire#1020: the tail split from a reused pending block became free.
#[test]
fn both_parts_of_a_split_keep_the_fences() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    heap.give_back(block.id, Fences::one(A, Ticket(1)));
    let part = take(&mut heap, A, MIB).unwrap();
    assert_eq!(part.fences.of(A), Ticket(1));
    assert!(
        take(&mut heap, B, GRANULE).is_none(),
        "the tail is pending still"
    );
    heap.complete(A, Ticket(1));
    assert!(take(&mut heap, B, GRANULE).is_some());
    sound(&heap);
}

/// rmm#2489: a merged list kept one event only.
#[test]
fn a_span_across_fences_carries_all_of_them() {
    let mut heap = heap(true);
    let [a, b] = [MIB, MIB].map(|bytes| get(&mut heap, A, bytes).unwrap());
    heap.give_back(a.id, Fences::one(A, Ticket(1)));
    heap.give_back(b.id, Fences::one(B, Ticket(7)));
    let clock = Clock::one(B, Ticket(7));
    let plan = heap.plan(request(2 * MIB), &view(A, &clock), Growth::None);
    let Some(Plan::Map(mapping)) = plan else {
        panic!("the span is there: {plan:?}");
    };
    assert!(mapping.steps.is_empty());
    let grant = heap
        .commit(
            mapping,
            Outcome {
                done: 0,
                lost: false,
            },
        )
        .unwrap();
    assert_eq!(
        (grant.fences.of(A), grant.fences.of(B)),
        (Ticket(1), Ticket(7))
    );
    heap.give_back(grant.id, grant.fences);
    sound(&heap);
}

#[test]
fn a_block_with_several_fences_is_free_after_the_last() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    let mut fences = Fences::one(A, Ticket(1));
    fences.join_all(&Fences::one(B, Ticket(1)));
    heap.give_back(block.id, fences);
    heap.complete(A, Ticket(5));
    sound(&heap);
    assert!(take(&mut heap, C, CHUNK).is_none());
    heap.complete(B, Ticket(1));
    assert!(take(&mut heap, C, CHUNK).is_some());
}

#[test]
fn free_handles_are_mapped_elsewhere_before_new_ones_are_taken() {
    let mut heap = heap(true);
    let blocks: Vec<_> = (0..8).map(|_| get(&mut heap, A, CHUNK).unwrap()).collect();
    for block in blocks.iter().step_by(2) {
        heap.give_back(block.id, Fences::default());
    }
    let span = grow(&mut heap, A, 4 * CHUNK).unwrap();
    assert_eq!(
        heap.totals().reserved.current,
        8 * CHUNK,
        "nothing new was taken"
    );
    sound(&heap);
    heap.give_back(span.id, Fences::default());
    let holes = heap.blocks.iter().filter(|(_, b)| b.state == State::Hole);
    assert!(holes.count() >= 4, "the places it came from are holes now");
    for block in blocks.into_iter().skip(1).step_by(2) {
        heap.give_back(block.id, Fences::default());
    }
    sound(&heap);
    heap.check_conserved().unwrap();
}

#[test]
fn a_mapping_that_fails_half_way_leaves_each_handle_where_it_is() {
    let mut heap = heap(true);
    let [a, _b] = [CHUNK, CHUNK].map(|bytes| get(&mut heap, A, bytes).unwrap());
    heap.give_back(a.id, Fences::default());
    let clock = Clock::default();
    let plan = heap.plan(request(3 * CHUNK), &view(A, &clock), Growth::Allowed);
    let Some(Plan::Map(mapping)) = plan else {
        panic!("{plan:?}");
    };
    assert_eq!(mapping.steps.len(), 3);
    assert!(matches!(mapping.steps[0], Step { from: Some(_), .. }));
    assert!(
        heap.commit(
            mapping,
            Outcome {
                done: 2,
                lost: false
            }
        )
        .is_none()
    );
    sound(&heap);
    assert_eq!(heap.totals().reserved.current, 3 * CHUNK);
    assert_eq!(heap.totals().planned, 0);
    assert!(take(&mut heap, B, 2 * CHUNK).is_some());
}

#[test]
fn growth_stops_at_the_capacity_and_leaves_the_heap_usable() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let all = get(&mut heap, A, 32 * MIB).unwrap();
        assert!(get(&mut heap, A, GRANULE).is_none());
        sound(&heap);
        heap.give_back(all.id, Fences::default());
        let release = heap.plan_trim(0);
        let done = release.spans.len();
        assert_eq!(heap.commit_trim(release, done), 32 * MIB);
        sound(&heap);
        assert_eq!(heap.totals().reserved.current, 0);
        assert!(get(&mut heap, A, 32 * MIB).is_some());
    }
}

#[test]
fn a_forgotten_stream_holds_nothing_back() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    heap.give_back(block.id, Fences::one(A, Ticket(3)));
    heap.forget(A);
    let block = take(&mut heap, B, CHUNK).unwrap();
    heap.give_back(block.id, Fences::one(A, Ticket(4)));
    assert!(take(&mut heap, C, CHUNK).is_some());
    sound(&heap);
}

#[test]
fn two_growers_do_not_both_take_the_last_of_the_capacity() {
    let mut heap = heap(true);
    let clock = Clock::default();
    let first = heap.plan(request(20 * MIB), &view(A, &clock), Growth::Allowed);
    let second = heap.plan(request(20 * MIB), &view(B, &clock), Growth::Allowed);
    assert!(first.is_some() && second.is_none());
    let Some(Plan::Map(mapping)) = first else {
        unreachable!()
    };
    let done = mapping.steps.len();
    assert!(
        heap.commit(mapping, Outcome { done, lost: false })
            .is_some()
    );
    sound(&heap);
}

#[test]
fn reservation_ids_continue_beyond_32_bits() {
    let mut heap = heap(true);
    let first = heap.reservation([]);
    heap.reservations_so_far = u64::from(u32::MAX);
    let later = [heap.reservation([]), heap.reservation([])];
    assert!(first < later[0] && later[0] < later[1]);
    assert_eq!(heap.reservations().count(), 3);
}

/// Handles need not be a power of two, and what is to move in whole handles is aligned to them.
#[test]
fn any_alignment_is_honoured() {
    let mut heap = heap(false);
    let address = BASE + GRANULE; // as plain memory may lie
    let whole = heap.add_segment(address, 16 * MIB, State::Free);
    heap.totals.reserved.add(16 * MIB);
    heap.file(whole);
    for alignment in [1, GRANULE, 3 * MIB, 4 * MIB, 5 * GRANULE] {
        let request = Request {
            bytes: MIB,
            alignment,
        };
        let taken = heap.take(request, &view(A, &Clock::default())).unwrap();
        assert_eq!(taken.address % alignment, 0, "{alignment}");
        heap.check().unwrap();
    }
}

#[test]
fn alignment_is_honoured_and_the_rest_stays_usable() {
    let mut heap = heap(true);
    let small = get(&mut heap, A, GRANULE).unwrap();
    let clock = Clock::default();
    let aligned = Request {
        bytes: MIB,
        alignment: 4096,
    };
    let grant = heap.take(aligned, &view(A, &clock)).unwrap();
    assert_eq!(grant.address % 4096, 0);
    sound(&heap);
    heap.give_back(grant.id, Fences::default());
    heap.give_back(small.id, Fences::default());
    assert_eq!(heap.figures(Mark::RESET).free_blocks, 1);
}

/// What the naive model does: bytes are in one of three states, a fence per byte range.
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
    Trim {
        keep: u64,
    },
    FailedGrowth {
        granules: u64,
        done: usize,
        lost: bool,
    },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..4u64, 1..6000u64).prop_map(|(stream, granules)| Action::Get { stream, granules }),
        4 => (any::<usize>(), proptest::collection::vec(1..4u64, 0..3))
            .prop_map(|(pick, on)| Action::Free { pick, on }),
        2 => (1..4u64).prop_map(|stream| Action::Complete { stream }),
        1 => (0..32u64).prop_map(|mib| Action::Trim { keep: mib * MIB }),
        1 => (1..20_000u64, 0..4usize, any::<bool>())
            .prop_map(|(granules, done, lost)| Action::FailedGrowth { granules, done, lost }),
    ]
}

/// A free: address, end, and what must be complete for the bytes to be another's.
type Past = (u64, u64, Vec<(u64, u64)>);

/// The naive model: every grant, and every past use with what must come before its reuse.
#[derive(Default)]
struct Model {
    live: Vec<(Grant, StreamId)>,
    /// Frees, newest last.
    past: Vec<Past>,
    tickets: [u64; 4],
    complete: [u64; 4],
}

impl Model {
    /// I2: every earlier use of these bytes is complete, or of the taker's own stream, or named in
    /// the grant's fences.
    fn check_grant(&self, grant: &Grant, stream: StreamId) {
        for (live, _) in &self.live {
            let apart = live.address + live.bytes <= grant.address
                || grant.address + grant.bytes <= live.address;
            assert!(apart, "I1: {grant:?} overlaps {live:?}");
        }
        for (start, end, fences) in &self.past {
            if *start < grant.address + grant.bytes && grant.address < *end {
                for (donor, ticket) in fences {
                    let is_done = self.complete[*donor as usize] >= *ticket;
                    let is_own = *donor == stream.0;
                    assert!(
                        is_done || is_own,
                        "I2: {grant:?} for {stream:?} before {donor}#{ticket}"
                    );
                    let is_named = grant.fences.of(StreamId(*donor)) >= Ticket(*ticket);
                    assert!(
                        is_done || is_named,
                        "I2: {grant:?} forgets {donor}#{ticket}"
                    );
                }
            }
        }
    }

    fn note_free(&mut self, grant: &Grant, fences: Vec<(u64, u64)>) {
        self.past
            .push((grant.address, grant.address + grant.bytes, fences));
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
                let at = pick % model.live.len();
                let (grant, home) = model.live.swap_remove(at);
                let mut fences = grant.fences.clone();
                let streams = on.iter().copied().chain([home.0]);
                let left: Vec<_> = streams
                    .map(|stream| {
                        model.tickets[stream as usize] += 1;
                        (stream, model.tickets[stream as usize])
                    })
                    .collect();
                for (stream, ticket) in &left {
                    fences.join_all(&Fences::one(StreamId(*stream), Ticket(*ticket)));
                }
                model.note_free(&grant, left);
                heap.give_back(grant.id, fences);
            }
            Action::Free { .. } => {}
            Action::Complete { stream } => {
                let ticket = model.tickets[stream as usize];
                model.complete[stream as usize] = ticket;
                heap.complete(StreamId(stream), Ticket(ticket));
            }
            Action::Trim { keep } => {
                let release = heap.plan_trim(keep);
                let done = release.spans.len() / 2;
                heap.commit_trim(release, done);
            }
            Action::FailedGrowth {
                granules,
                done,
                lost,
            } => {
                let clock = Clock::default();
                let plan = heap.plan(
                    request(granules * GRANULE),
                    &view(A, &clock),
                    Growth::Allowed,
                );
                match plan {
                    Some(Plan::Map(mapping)) if !mapping.steps.is_empty() => {
                        let done = done.min(mapping.steps.len() - 1);
                        let lost = lost && mapping.steps[done].from.is_some();
                        assert!(heap.commit(mapping, Outcome { done, lost }).is_none());
                    }
                    Some(Plan::Map(mapping)) => {
                        let grant = heap.commit(
                            mapping,
                            Outcome {
                                done: 0,
                                lost: false,
                            },
                        );
                        let grant = grant.unwrap();
                        heap.give_back(grant.id, grant.fences);
                    }
                    Some(Plan::Memory(bytes, request)) => {
                        assert!(heap.commit_memory(bytes, request, None).is_none());
                    }
                    None => {}
                }
            }
        }
        heap.check().unwrap();
    }
    for (grant, _) in model.live.drain(..) {
        heap.give_back(grant.id, Fences::default());
    }
    heap.check_conserved().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_on_virtual_memory(actions in proptest::collection::vec(action(), 1..120)) {
        run(true, actions);
    }

    #[test]
    fn random_operations_on_plain_memory(actions in proptest::collection::vec(action(), 1..120)) {
        run(false, actions);
    }
}

/// What is told of handles is what a trim would release; where memory is plain, segments count.
#[test]
fn figures_tell_what_can_be_released() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let blocks = [(); 3].map(|()| grow(&mut heap, A, 2 * CHUNK).unwrap());
        let chunks = if virtual_memory { 6 } else { 3 };
        assert_eq!(heap.figures(Mark::RESET).chunks, chunks);
        let told = |heap: &Heap| {
            let figures = heap.figures(Mark::RESET);
            (figures.releasable_chunks, figures.releasable_bytes)
        };
        assert_eq!(told(&heap), (0, 0));
        heap.give_back(blocks[1].id, Fences::default());
        heap.give_back(blocks[2].id, Fences::one(A, Ticket(1)));
        assert_eq!(told(&heap), (chunks / 3, 2 * CHUNK));
        let part = take(&mut heap, B, MIB).unwrap();
        let whole = if virtual_memory { CHUNK } else { 0 };
        assert_eq!(told(&heap).1, whole, "a part of a handle is in use");
        assert_eq!(heap.pending_on(A), 2 * CHUNK);
        heap.give_back(part.id, Fences::one(B, Ticket(1)));
        heap.complete(B, Ticket(1));
        heap.complete(A, Ticket(1));
        assert_eq!(heap.pending_on(A), 0);
        let promised = heap.figures(Mark::RESET).releasable_bytes;
        let release = heap.plan_trim(0);
        let done = release.spans.len();
        assert_eq!(heap.commit_trim(release, done), promised);
        assert_eq!(heap.figures(Mark::RESET).chunks, chunks / 3);
        sound(&heap);
    }
}
