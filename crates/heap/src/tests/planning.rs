//! Plans: windows, moved and new chunks, segments of plain memory, and plans that fail.

use super::*;

/// rmm#2489: a merged list kept one event only.
#[test]
fn span_across_fences_carries_all_of_them() {
    let mut heap = heap(true);
    let [a, b] = [MIB, MIB].map(|bytes| get(&mut heap, A, bytes).unwrap());
    free_behind(&mut heap, &a, A, 1);
    free_behind(&mut heap, &b, B, 7);
    let clock = Clock::one(B, Ticket(7));
    let plan = heap.plan(request(2 * MIB), &view(A, &clock), Growth::None);
    assert!(mapping_ref(plan.as_ref()).steps.is_empty());
    let grant = carry_out(&mut heap, plan.unwrap()).unwrap();
    let fences = [A, B].map(|stream| grant.fences.of(stream));
    assert_eq!(fences, [Ticket(1), Ticket(7)]);
    heap.give_back(grant.id, grant.fences);
    check(&heap);
}

fn mapping_ref(plan: Option<&Plan>) -> &Mapping {
    match plan {
        Some(Plan::Map(mapping)) => mapping,
        other => panic!("not a mapping: {other:?}"),
    }
}

#[test]
fn free_chunks_are_moved_before_new_ones_are_taken() {
    let mut heap = heap(true);
    let blocks: Vec<_> = (0..8).map(|_| get(&mut heap, A, CHUNK).unwrap()).collect();
    for block in blocks.iter().step_by(2) {
        free(&mut heap, block);
    }
    let span = grow(&mut heap, A, 4 * CHUNK).unwrap();
    assert_eq!(reserved(&heap), 8 * CHUNK, "no chunk is new");
    check(&heap);
    free(&mut heap, &span);
    let holes = layout(&heap)
        .iter()
        .filter(|(kind, _)| *kind == "hole")
        .count();
    assert!(holes >= 4, "the places that the chunks came from are holes");
    for block in blocks.iter().skip(1).step_by(2) {
        free(&mut heap, block);
    }
    check::conserved(&heap).unwrap();
}

/// Chunks come from the smallest blocks that hold one, in the order of the steps.
#[test]
fn moved_chunks_come_from_the_smallest_blocks() {
    for (count, places) in [(6, vec![4, 6, 7, 0, 1, 2]), (4, vec![4, 6, 7, 2])] {
        let mut heap = heap(true);
        let sizes = [3, 1, 1, 1, 2, 1].map(|chunks| chunks * CHUNK);
        let blocks = grow_each(&mut heap, sizes);
        for at in [0, 2, 4] {
            free(&mut heap, &blocks[at]);
        }
        let mapping = mapping(plan(&mut heap, count * CHUNK, Growth::Remap));
        let from = mapping.steps.iter().filter_map(|step| step.from);
        let from: Vec<_> = from.map(|from| (from - BASE) / CHUNK).collect();
        assert_eq!(from, places);
        assert!(carry_out(&mut heap, Plan::Map(mapping)).is_some());
        check(&heap);
        assert_eq!(heap.totals().whole_free_chunks, 6 - count);
    }
}

#[test]
fn mapping_that_fails_half_way_leaves_each_chunk_where_it_is() {
    let mut heap = heap(true);
    let [a, _b] = [CHUNK, CHUNK].map(|bytes| get(&mut heap, A, bytes).unwrap());
    free(&mut heap, &a);
    let mapping = mapping(plan(&mut heap, 3 * CHUNK, Growth::Allowed));
    assert_eq!(mapping.steps.len(), 3);
    assert!(mapping.steps[0].from.is_some() && mapping.steps[1].from.is_none());
    assert_eq!(mapping.new_bytes(), 2 * CHUNK);
    assert_eq!(heap.totals().planned, 2 * CHUNK);
    let outcome = Outcome {
        done: 2,
        lost: false,
    };
    assert!(mapping.commit(&mut heap, outcome).is_none());
    check(&heap);
    assert_eq!((reserved(&heap), heap.totals().planned), (3 * CHUNK, 0));
    assert_eq!(layout(&heap)[..3], [("hole", 1), ("used", 1), ("free", 2)]);
}

/// Every place where a mapping can stop, with and without the loss of a chunk.
#[test]
fn mapping_that_fails_anywhere_keeps_every_chunk_but_a_lost_one() {
    for (done, lost) in (0..5).flat_map(|done| [(done, false), (done, true)]) {
        let mut heap = heap(true);
        let blocks = grow_each(&mut heap, [CHUNK; 7]);
        for at in [0, 2, 4] {
            free(&mut heap, &blocks[at]);
        }
        let mapping = mapping(plan(&mut heap, 5 * CHUNK, Growth::Allowed));
        let moves = mapping
            .steps
            .iter()
            .filter(|step| step.from.is_some())
            .count();
        assert_eq!((mapping.steps.len(), moves), (5, 3));
        let lost = lost && done < moves;
        let to: Vec<_> = mapping.steps.iter().map(|step| step.to).collect();
        let from: Vec<_> = mapping.steps.iter().filter_map(|step| step.from).collect();
        assert!(mapping.commit(&mut heap, Outcome { done, lost }).is_none());
        check(&heap);
        let new = done.saturating_sub(moves) as u64;
        assert_eq!(reserved(&heap) / CHUNK, 7 + new - u64::from(lost));
        let has_memory = |address: &u64| Found::at(&heap, *address).is_some();
        assert!(to[..done].iter().all(has_memory));
        assert!(!to[done..].iter().any(has_memory));
        let gone = (done + usize::from(lost)).min(moves);
        assert!(!from[..gone].iter().any(has_memory));
        assert!(from[gone..].iter().all(has_memory));
        let free_bytes = heap.totals().free.current;
        assert_eq!(free_bytes / CHUNK, 3 + new - u64::from(lost));
    }
}

#[test]
fn pending_piece_of_a_failed_plan_is_free_if_it_became_complete() {
    for completes in [false, true] {
        let mut heap = heap(true);
        let [block] = grow_each(&mut heap, [CHUNK]);
        free_behind(&mut heap, &block, A, 1);
        let mapping = mapping(plan(&mut heap, 2 * CHUNK, Growth::Allowed));
        if completes {
            heap.complete(A, Ticket(1));
        }
        let outcome = Outcome {
            done: 0,
            lost: false,
        };
        assert!(mapping.commit(&mut heap, outcome).is_none());
        check(&heap);
        let state = if completes { "free" } else { "pending" };
        assert_eq!(layout(&heap)[0], (state, 1));
    }
}

#[test]
fn growth_stops_at_the_capacity_and_leaves_the_heap_usable() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let all = get(&mut heap, A, CAPACITY).unwrap();
        assert_eq!(inspect::left_and_free(&heap), (0, 0));
        assert!(get(&mut heap, A, GRANULE).is_none());
        check(&heap);
        free(&mut heap, &all);
        assert_eq!(inspect::left_and_free(&heap), (0, CAPACITY));
        assert_eq!(release(&mut heap, Target::Keep(0)), CAPACITY);
        check(&heap);
        assert_eq!(reserved(&heap), 0);
        assert!(get(&mut heap, A, CAPACITY).is_some());
    }
}

#[test]
fn two_growers_do_not_both_take_the_last_of_the_capacity() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let first = plan(&mut heap, 20 * MIB, Growth::Allowed);
        assert!(plan(&mut heap, 20 * MIB, Growth::Allowed).is_none());
        assert!(carry_out(&mut heap, first.unwrap()).is_some());
        check(&heap);
    }
}

#[test]
fn smaller_capacity_stops_growth_and_keeps_held_memory() {
    let mut heap = heap(true);
    let [block] = grow_each(&mut heap, [8 * CHUNK]);
    heap.set_capacity(4 * CHUNK);
    check(&heap);
    assert!(grow(&mut heap, A, CHUNK).is_none());
    free(&mut heap, &block);
    let target = Target::DownTo {
        reserved: 4 * CHUNK,
        most: u64::MAX,
    };
    assert_eq!(release(&mut heap, target), 4 * CHUNK);
    heap.set_capacity(5 * CHUNK);
    assert_eq!(inspect::left_and_free(&heap), (CHUNK, 4 * CHUNK));
    assert!(grow(&mut heap, A, 5 * CHUNK).is_some());
    assert!(grow(&mut heap, A, CHUNK).is_none());
    check(&heap);
}

/// A request that may move nothing takes new memory while there is some, and moves free memory where there is none.
#[test]
fn chunks_are_moved_where_there_is_no_new_memory() {
    for (growth, moved) in [
        (Growth::Remap, 3),
        (Growth::Allowed, 3),
        (Growth::Sparing(3), 3),
        (Growth::Sparing(2), 2),
        (Growth::New, 0),
    ] {
        let mut heap = heap(true);
        let blocks = grow_each(&mut heap, [CHUNK; 6]);
        for at in [0, 2, 4] {
            free(&mut heap, &blocks[at]);
        }
        let mapping = mapping(plan(&mut heap, 3 * CHUNK, growth));
        let moves = mapping
            .steps
            .iter()
            .filter(|step| step.from.is_some())
            .count();
        assert_eq!(moves, moved, "{growth:?}");
        assert!(carry_out(&mut heap, Plan::Map(mapping)).is_some());
        check(&heap);
        heap.set_capacity(reserved(&heap));
        if growth == Growth::New {
            let moves = self::mapping(plan(&mut heap, 3 * CHUNK, growth)).steps;
            assert!(moves.iter().all(|step| step.from.is_some()));
        }
    }
}

#[test]
fn memory_is_spared_up_to_twice_the_most_in_use() {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [CHUNK; 4]);
    for block in &blocks[1..] {
        free(&mut heap, block);
    }
    // One chunk in use and three requested: eight may be held, and four are.
    let clock = Clock::default();
    let new = |heap: &mut Heap, growth| {
        let offers = heap.offers(request(3 * CHUNK), &view(B, &clock), growth);
        offers.new_chunks(growth)
    };
    assert_eq!(
        new(&mut heap, Growth::Sparing(0)),
        Some(0),
        "the free chunks are neighbours"
    );
    let in_between = take(&mut heap, A, CHUNK).unwrap();
    free(&mut heap, &blocks[0]);
    assert_eq!(new(&mut heap, Growth::Sparing(0)), Some(1));
    free(&mut heap, &in_between);
}

#[test]
fn new_memory_is_one_free_block_within_the_capacity() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let plan = heap.plan_new(3 * CHUNK - 1).unwrap();
        assert_eq!(plan.new_bytes(), 3 * CHUNK);
        heap.commit_as_free(|heap| carry_out(heap, plan));
        check::conserved(&heap).unwrap();
        assert_eq!(layout(&heap)[0], ("free", 3));
        assert_eq!(heap.totals().used.high, 0, "no stream used it");
        assert_eq!(heap.totals().in_use.high, 0);
        assert!(heap.plan_new(0).is_none());
        let most = heap.plan_new(CAPACITY);
        assert_eq!(
            most.is_some(),
            virtual_memory,
            "plain memory comes whole or not at all"
        );
        if let Some(most) = most {
            assert_eq!(most.new_bytes(), CAPACITY - 3 * CHUNK);
            heap.commit_as_free(|heap| carry_out(heap, most));
        }
        check::conserved(&heap).unwrap();
    }
}

#[test]
fn new_memory_lies_in_the_lowest_hole_that_holds_it() {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [CHUNK, 2 * CHUNK, CHUNK, 3 * CHUNK, CHUNK]);
    free(&mut heap, &blocks[1]);
    free(&mut heap, &blocks[3]);
    release(&mut heap, Target::Keep(0));
    let address = |heap: &mut Heap, chunks| {
        let plan = heap.plan_new(chunks * CHUNK).unwrap();
        let to = mapping_ref(Some(&plan)).steps[0].to;
        heap.commit_as_free(|heap| carry_out(heap, plan));
        release(heap, Target::Keep(0));
        to
    };
    assert_eq!(address(&mut heap, 1), blocks[1].address);
    assert_eq!(address(&mut heap, 2), blocks[1].address);
    assert_eq!(address(&mut heap, 3), blocks[3].address);
    assert!(address(&mut heap, 4) > blocks[4].address);
}

#[test]
fn one_more_block_is_planned_only_if_none_is_free_and_the_capacity_holds_it() {
    let mut heap = heap(true);
    assert!(heap.plan_one_more(request(CAPACITY + GRANULE)).is_none());
    let plan = heap.plan_one_more(request(CHUNK)).unwrap();
    heap.commit_as_free(|heap| carry_out(heap, plan));
    assert!(heap.plan_one_more(request(CHUNK)).is_none(), "one is free");
    let rest = heap.plan_one_more(request(CAPACITY - CHUNK));
    assert_eq!(rest.as_ref().map(Plan::new_bytes), Some(CAPACITY - CHUNK));
    heap.commit_as_free(|heap| carry_out(heap, rest.unwrap()));
    check(&heap);
}

/// Takes ahead what the engine would after a growth. Returns the sizes of the plans in chunks.
fn grow_ahead(heap: &mut Heap, grown: u64) -> Vec<u64> {
    let mut ahead = heap.ahead(grown);
    let mut sizes = Vec::new();
    while ahead > 0 {
        let Some(plan) = heap.plan_ahead(ahead, grown) else {
            break;
        };
        ahead = ahead.saturating_sub(plan.new_bytes());
        sizes.push(plan.new_bytes() / CHUNK);
        heap.commit_as_free(|heap| carry_out(heap, plan));
        check(heap);
    }
    sizes
}

#[test]
fn growth_by_a_factor_is_one_block_or_several_segments() {
    for (virtual_memory, ahead) in [(true, vec![3]), (false, vec![1, 1, 1])] {
        let mut heap = heap_with(virtual_memory, GrowBy::Factor(2.0));
        let _ = grow(&mut heap, A, 4 * CHUNK).unwrap();
        assert!(
            grow_ahead(&mut heap, 4 * CHUNK).is_empty(),
            "nothing was held before"
        );
        let _ = grow(&mut heap, A, CHUNK).unwrap();
        assert_eq!(grow_ahead(&mut heap, CHUNK), ahead);
        assert_eq!(reserved(&heap), 8 * CHUNK);
        if !virtual_memory {
            let _ = grow(&mut heap, A, 5 * CHUNK).unwrap();
            let rest = grow_ahead(&mut heap, 5 * CHUNK);
            assert_eq!(rest, [3], "the capacity bounds it");
            assert_eq!(reserved(&heap), CAPACITY);
        }
    }
}

#[test]
fn growth_by_a_step_is_one_segment_of_plain_memory() {
    let mut heap = heap_with(false, GrowBy::AtLeast(5 * CHUNK));
    let grant = grow(&mut heap, A, MIB).unwrap();
    assert_eq!(reserved(&heap), 5 * CHUNK);
    assert!(grow_ahead(&mut heap, 5 * CHUNK).is_empty());
    free(&mut heap, &grant);
    assert_eq!(layout(&heap), [("free", 5)]);
    assert!(plan(&mut heap, 6 * CHUNK, Growth::Remap).is_none());
    assert!(grow(&mut heap, A, 6 * CHUNK).is_some());
    assert_eq!(reserved(&heap), 11 * CHUNK);
}

#[test]
fn block_grows_into_its_room_and_gives_it_up_when_it_is_freed() {
    let mut heap = heap(true);
    let clock = Clock::default();
    let with_room = View {
        placement: Placement::WithRoom(3 * CHUNK),
        ..view(A, &clock)
    };
    let block = request(2 * CHUNK);
    assert!(
        heap.take(block, &with_room).is_none(),
        "room is planned, not taken"
    );
    assert!(heap.plan(block, &with_room, Growth::None).is_none());
    let plan = heap.plan(block, &with_room, Growth::Allowed).unwrap();
    let block = carry_out(&mut heap, plan).unwrap();
    check(&heap);
    assert_eq!(layout(&heap)[..2], [("used", 2), ("room", 3)]);
    let other = grow(&mut heap, A, CHUNK).unwrap();
    assert_eq!(other.address, block.address + 5 * CHUNK, "the room is kept");

    let above = Placement::Above(block.id, block.address + block.bytes);
    assert_eq!(heap.addresses(above), 3 * CHUNK, "up to the other block");
    assert_eq!(heap.addresses(Placement::Above(block.id, block.address)), 0);
    assert_eq!(heap.addresses(Placement::Anywhere), u64::MAX);
    let holes = 128 - 6;
    assert_eq!(heap.addresses(Placement::WithRoom(CHUNK)), holes * CHUNK);
    assert_eq!(Placement::WithRoom(CHUNK).needs(MIB), CHUNK + MIB);
    assert_eq!(
        (above.needs(MIB), Placement::Anywhere.needs(MIB)),
        (MIB, MIB)
    );

    let above_view = View {
        placement: above,
        ..view(A, &clock)
    };
    assert!(heap.take(request(CHUNK), &above_view).is_none());
    let plan = heap
        .plan(request(CHUNK), &above_view, Growth::Allowed)
        .unwrap();
    let upper = carry_out(&mut heap, plan).unwrap();
    assert_eq!(upper.address, block.address + block.bytes);
    heap.join_used(block.id, upper.id);
    check(&heap);
    assert_eq!(layout(&heap)[..2], [("used", 3), ("room", 2)]);
    heap.give_back(block.id, Fences::default());
    check(&heap);
    assert_eq!(layout(&heap)[..2], [("free", 3), ("hole", 2)]);
}

#[test]
fn room_survives_an_extension_that_fails() {
    for done in 0..2 {
        let mut heap = heap(true);
        let clock = Clock::default();
        let with_room = View {
            placement: Placement::WithRoom(3 * CHUNK),
            ..view(A, &clock)
        };
        let plan = heap
            .plan(request(CHUNK), &with_room, Growth::Allowed)
            .unwrap();
        let block = carry_out(&mut heap, plan).unwrap();
        let above = View {
            placement: Placement::Above(block.id, block.address + CHUNK),
            ..view(A, &clock)
        };
        let plan = heap.plan(request(2 * CHUNK), &above, Growth::Allowed);
        let outcome = Outcome { done, lost: false };
        assert!(mapping(plan).commit(&mut heap, outcome).is_none());
        check(&heap);
        let layout = layout(&heap);
        match done {
            0 => assert_eq!(layout[..2], [("used", 1), ("room", 3)]),
            _ => assert_eq!(layout[..2], [("used", 1), ("free", 1)]),
        }
    }
}

#[test]
fn block_is_extended_into_free_memory_above_it() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let [whole] = grow_each(&mut heap, [3 * CHUNK]);
        free(&mut heap, &whole);
        let lower = take(&mut heap, A, CHUNK).unwrap();
        let clock = Clock::default();
        let above = |end| View {
            placement: Placement::Above(lower.id, end),
            ..view(A, &clock)
        };
        let end = lower.address + CHUNK;
        assert!(heap.take(request(CHUNK), &above(end + GRANULE)).is_none());
        assert!(
            heap.take(request(2 * CHUNK + GRANULE), &above(end))
                .is_none()
        );
        let upper = heap.take(request(CHUNK), &above(end)).unwrap();
        assert_eq!(upper.address, end);
        let beyond = View {
            placement: Placement::Above(upper.id, end + CHUNK),
            ..view(A, &clock)
        };
        free_behind(&mut heap, &lower, B, 1);
        let last = heap.take(request(CHUNK), &beyond).unwrap();
        free_behind(&mut heap, &last, B, 2);
        assert!(
            heap.take(request(CHUNK), &beyond).is_none(),
            "it is pending elsewhere"
        );
        assert!(heap.addresses(beyond.placement) >= CHUNK);
        check(&heap);
    }
}
