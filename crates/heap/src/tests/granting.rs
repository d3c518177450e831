//! Granting present memory, and taking it back.

use super::*;

#[test]
fn free_neighbours_merge_and_best_fit_takes_the_smallest() {
    let mut heap = heap(true);
    let [a, b, c] = [MIB, MIB, 2 * MIB].map(|bytes| get(&mut heap, A, bytes).unwrap());
    free(&mut heap, &a);
    free(&mut heap, &c);
    check(&heap);
    let again = take(&mut heap, B, MIB).unwrap();
    assert_eq!(again.address, a.address, "the block of that size");
    free(&mut heap, &again);
    free(&mut heap, &b);
    check(&heap);
    let figures = Figures::of(&heap, Mark::RESET);
    assert_eq!((figures.free_blocks, figures.largest_free), (1, 4 * MIB));
}

#[test]
fn large_block_is_broken_up_only_if_no_other_may_fit() {
    let none = Clock::default();
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let [large, other, own] = grow_each(&mut heap, [4 * CHUNK, 2 * CHUNK, CHUNK]);
        free(&mut heap, &large);
        let good_fit = |heap: &mut Heap, bytes| heap.take_good_fit(request(bytes), &view(A, &none));

        free_behind(&mut heap, &own, A, 1);
        let Fit::Good(first) = good_fit(&mut heap, 2 * CHUNK) else {
            panic!("only its own memory is pending, so asking would not help");
        };
        assert_eq!(first.address, large.address);
        free(&mut heap, &first);

        free_behind(&mut heap, &other, B, 1);
        assert!(matches!(good_fit(&mut heap, 2 * CHUNK), Fit::Loose));
        assert!(matches!(good_fit(&mut heap, 3 * CHUNK), Fit::Loose));
        assert!(matches!(good_fit(&mut heap, 5 * CHUNK), Fit::None));
        check(&heap);
        let Fit::Good(close) = good_fit(&mut heap, 3 * CHUNK + GRANULE) else {
            panic!("less than a chunk is left over");
        };
        free(&mut heap, &close);
        heap.complete(B, Ticket(1));
        let Fit::Good(second) = good_fit(&mut heap, 2 * CHUNK) else {
            panic!("no memory of other streams is pending any more");
        };
        assert_eq!(second.bytes, 2 * CHUNK);
        check(&heap);
    }
}

#[test]
fn pending_block_serves_its_own_stream_and_streams_ordered_after_it() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    free_behind(&mut heap, &block, A, 3);
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
    check(&heap);
}

/// Umpire#1020: the tail split from a reused pending block became free.
#[test]
fn both_parts_of_a_split_keep_the_fences() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    free_behind(&mut heap, &block, A, 1);
    let part = take(&mut heap, A, MIB).unwrap();
    assert_eq!(part.fences.of(A), Ticket(1));
    assert!(take(&mut heap, B, GRANULE).is_none(), "the tail is pending");
    heap.complete(A, Ticket(1));
    assert!(take(&mut heap, B, GRANULE).is_some());
    check(&heap);
}

#[test]
fn block_with_several_fences_is_free_after_the_last() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    let mut fences = Fences::one(A, Ticket(1));
    fences.join_all(&Fences::one(B, Ticket(1)));
    heap.give_back(block.id, fences);
    assert_eq!(inspect::pending_on(&heap, A), CHUNK);
    assert!(heap.complete(A, Ticket(5)), "it is news");
    assert!(!heap.complete(A, Ticket(5)) && !heap.complete(A, Ticket(4)));
    check(&heap);
    assert_eq!(inspect::pending_on(&heap, A), 0);
    assert_eq!(inspect::pending_on(&heap, B), CHUNK);
    assert!(take(&mut heap, C, CHUNK).is_none());
    assert!(take(&mut heap, B, CHUNK).is_some());
    heap.complete(B, Ticket(1));
}

#[test]
fn block_with_several_fences_serves_a_stream_ordered_after_all_of_them() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    let both: Clock = [A, B]
        .map(|stream| Fence {
            stream,
            ticket: Ticket(1),
        })
        .into_iter()
        .collect();
    heap.give_back(block.id, both.clone());
    let one = Clock::one(A, Ticket(1));
    assert!(heap.take(request(CHUNK), &view(C, &one)).is_none());
    let grant = heap.take(request(CHUNK), &view(C, &both)).unwrap();
    assert_eq!(grant.fences, both);
}

#[test]
fn fences_that_are_complete_are_dropped_when_a_block_comes_back() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    heap.complete(A, Ticket(2));
    free_behind(&mut heap, &block, A, 2);
    assert!(take(&mut heap, B, CHUNK).is_some());
}

#[test]
fn retired_stream_holds_no_memory_back() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    free_behind(&mut heap, &block, A, 3);
    heap.forget(A);
    let block = take(&mut heap, B, CHUNK).unwrap();
    free_behind(&mut heap, &block, A, 4);
    assert!(take(&mut heap, C, CHUNK).is_some());
    check(&heap);
}

#[test]
fn exact_fit_is_the_pending_block_of_that_size_expected_first() {
    let mut heap = heap(true);
    let blocks = [(); 3].map(|()| get(&mut heap, A, CHUNK).unwrap());
    let spacer = get(&mut heap, A, CHUNK).unwrap();
    let donors = [B, C, D];
    for (donor, block) in donors.iter().zip(&blocks) {
        free_behind(&mut heap, block, *donor, 1);
    }
    let larger = get(&mut heap, A, 2 * CHUNK).unwrap();
    free_behind(&mut heap, &larger, C, 1);
    let none = Clock::default();
    for (first, block) in donors.into_iter().zip(&blocks) {
        let waits = |fence: Fence| {
            let millis = if fence.stream == first { 1 } else { 50 };
            let expected_at = std::time::Duration::from_millis(millis);
            let donor = Donor {
                sealed_at: Some(std::time::Duration::ZERO),
                expected_at: Some(expected_at),
                number: fence.stream.0,
                latency: expected_at,
            };
            let (now, tail) = Default::default();
            Some(Forecast::of(donor, Taker { now, tail }))
        };
        let view = View {
            waits: Some(&waits),
            ..view(A, &none)
        };
        let fences = heap.fences_of_exact_fit(request(CHUNK), &view).unwrap();
        assert_eq!(fences, Fences::one(first, Ticket(1)));
        let grant = heap.take_exact_fit(request(CHUNK), &view).unwrap();
        assert_eq!(grant.address, block.address);
        free_behind(&mut heap, &grant, first, 1);
        assert!(heap.take_exact_fit(request(MIB), &view).is_none());
    }
    assert!(
        heap.fences_of_exact_fit(request(CHUNK), &view(A, &none))
            .is_none()
    );
    free(&mut heap, &spacer);
}

/// A chunk need not be a power of two, and memory that is to move in whole chunks is aligned to them.
#[test]
fn any_alignment_is_kept() {
    let mut heap = heap(false);
    let address = BASE + GRANULE; // as plain memory may lie
    let whole = heap.map.add_segment(address, 16 * MIB, State::Free);
    heap.map.totals_mut().reserved.add(16 * MIB);
    heap.map.file(whole);
    for alignment in [1, GRANULE, 3 * MIB, 4 * MIB, 5 * GRANULE] {
        let request = Request {
            bytes: MIB,
            alignment,
        };
        let taken = heap.take(request, &view(A, &Clock::default())).unwrap();
        assert_eq!(taken.address % alignment, 0, "{alignment}");
        check(&heap);
    }
}

#[test]
fn memory_cut_off_for_alignment_stays_usable() {
    let mut heap = heap(true);
    let small = get(&mut heap, A, GRANULE).unwrap();
    let clock = Clock::default();
    let aligned = Request {
        bytes: MIB,
        alignment: 4096,
    };
    let grant = heap.take(aligned, &view(A, &clock)).unwrap();
    assert_eq!(grant.address % 4096, 0);
    check(&heap);
    free(&mut heap, &grant);
    free(&mut heap, &small);
    assert_eq!(Figures::of(&heap, Mark::RESET).free_blocks, 1);
}

#[test]
fn totals_follow_blocks_through_their_states() {
    let mut heap = heap(true);
    let block = get(&mut heap, A, CHUNK).unwrap();
    let other = get(&mut heap, A, CHUNK).unwrap();
    free_behind(&mut heap, &block, A, 1);
    let totals = heap.totals();
    let levels = [totals.used, totals.pending, totals.in_use, totals.reserved];
    assert_eq!(levels.map(|level| level.current / CHUNK), [1, 1, 2, 2]);
    assert_eq!(levels.map(|level| level.high / CHUNK), [2, 1, 2, 2]);
    heap.complete(A, Ticket(1));
    let totals = |heap: &Heap| Figures::of(heap, Mark::RESET).totals;
    assert_eq!(totals(&heap).in_use.high, 2 * CHUNK);
    for high in [High::InUse, High::Used, High::Pending] {
        heap.reset_high(high);
    }
    let highs = [
        totals(&heap).in_use,
        totals(&heap).used,
        totals(&heap).pending,
    ];
    assert_eq!(highs.map(|level| level.high / CHUNK), [1, 1, 0]);
    free(&mut heap, &other);
    release(&mut heap, Target::Keep(0));
    heap.reset_high(High::Reserved);
    assert_eq!(totals(&heap).reserved.high, 0);
}

#[test]
fn high_water_marks_are_kept_since_each_mark() {
    let mut heap = heap(true);
    let [first, second] = grow_each(&mut heap, [CHUNK, 2 * CHUNK]);
    free(&mut heap, &second);
    heap.begin_mark(Mark::RESET.next());
    let third = take(&mut heap, A, CHUNK).unwrap();
    let high = |heap: &Heap, mark| Figures::of(heap, mark).totals.used.high / CHUNK;
    assert_eq!(
        (high(&heap, Mark::RESET), high(&heap, Mark::RESET.next())),
        (3, 2)
    );
    heap.end_mark(Mark::RESET.next());
    free(&mut heap, &first);
    free(&mut heap, &third);
    assert_eq!(high(&heap, Mark::RESET), 3);
}

#[test]
fn least_that_was_free_is_kept_since_the_mark() {
    let mut heap = heap(true);
    let [block] = grow_each(&mut heap, [4 * CHUNK]);
    free(&mut heap, &block);
    heap.mark_free();
    let low = |heap: &Heap| heap.totals().free_low / CHUNK;
    assert_eq!(low(&heap), 4);
    let part = take(&mut heap, A, CHUNK).unwrap();
    assert_eq!(low(&heap), 3, "the rest is free");
    free(&mut heap, &part);
    assert_eq!(low(&heap), 3);
    let claimed = mapping(plan(&mut heap, 5 * CHUNK, Growth::Allowed));
    assert_eq!(low(&heap), 0, "a plan claims all of it");
    let done = claimed.steps.len();
    let grant = claimed
        .commit(&mut heap, Outcome { done, lost: false })
        .unwrap();
    free(&mut heap, &grant);
    heap.mark_free();
    assert_eq!(low(&heap), 5);
}

#[test]
fn frees_past_the_lanes_and_blocks_flushed_from_them_are_counted() {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [CHUNK; 3]);
    assert_eq!(
        heap.free(blocks[0].id, Fences::default()),
        ReturnedTo::AnyStream
    );
    heap.take_back(blocks[1].id, Fences::default());
    free(&mut heap, &blocks[2]);
    let totals = heap.totals();
    assert_eq!((totals.returns, totals.taken_back), (1, 1));
    check::conserved(&heap).unwrap();
}

#[test]
fn address_is_found_in_its_block_with_its_holder() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let [free_one, pending, used, aside] = grow_each(&mut heap, [CHUNK; 4]);
        free(&mut heap, &free_one);
        free_behind(&mut heap, &pending, B, 7);
        heap.set_user(used.id, B);
        let reservation = reservation::create(&mut heap, [aside.id]);
        let holding = |address| Found::at(&heap, address).map(|found| found.holding);
        let last = |grant: &Grant| grant.address + grant.bytes - 1;
        assert_eq!(holding(last(&free_one)), Some(Holding::Free));
        let behind = Fences::one(B, Ticket(7));
        assert_eq!(holding(pending.address), Some(Holding::Pending(behind)));
        assert_eq!(holding(last(&used)), Some(Holding::Used(B)));
        let set_aside = Holding::Reserved(reservation, Fences::default());
        assert_eq!(holding(aside.address), Some(set_aside));
        assert_eq!(holding(last(&aside) + 1), None, "no memory is mapped there");
        assert_eq!(holding(BASE - 1), None);
        let found = Found::at(&heap, pending.address + 5).unwrap();
        assert_eq!((found.address, found.bytes), (pending.address, CHUNK));
        assert_eq!(inspect::used_blocks(&heap), 1);
        assert_eq!(Figures::of(&heap, Mark::RESET).reservations, 1);
        let segments: Vec<_> = SegmentBlocks::all(&heap).collect();
        let blocks = segments.iter().map(|segment| segment.blocks.len());
        assert_eq!(blocks.sum::<usize>(), 4);
        assert!(segments.is_sorted_by_key(|segment| segment.address));
    }
}
