//! Reservations, and exchanges.

use super::*;

/// Returns a reservation of chunks at these places of a row of 8, whose other chunks are in use. Returns the
/// reservation and the blocks in use.
fn scattered(heap: &mut Heap, places: &[usize]) -> (ReservationId, Vec<Grant>) {
    let blocks = grow_each(heap, [CHUNK; 8]);
    let aside = places.iter().map(|at| blocks[*at].id);
    let reservation = reservation::create(heap, aside);
    let mut blocks: Vec<_> = blocks.into_iter().enumerate().collect();
    blocks.retain(|(at, _)| !places.contains(at));
    let used = blocks.into_iter().map(|(_, block)| block).collect();
    (reservation, used)
}

fn state(heap: &Heap, reservation: ReservationId) -> (u64, u64) {
    let state = reservation::state(heap, reservation);
    (state.left / CHUNK, state.largest / CHUNK)
}

fn arrivals(heap: &Heap, reservation: ReservationId) -> (u64, u64) {
    let arrivals = reservation::state(heap, reservation).arrivals;
    (arrivals.so_far, arrivals.under_way / CHUNK)
}

fn draw(heap: &mut Heap, reservation: ReservationId, bytes: u64) -> Option<Grant> {
    let clock = Clock::default();
    reservation::take(heap, reservation, request(bytes), &view(A, &clock))
}

#[test]
fn reservation_ids_continue_beyond_32_bits() {
    let mut heap = heap(true);
    let first = reservation::create(&mut heap, []);
    heap.reservations.skip_ids(u64::from(u32::MAX));
    let later = [
        reservation::create(&mut heap, []),
        reservation::create(&mut heap, []),
    ];
    assert!(first < later[0] && later[0] < later[1]);
    assert_eq!(inspect::reservations(&heap).count(), 3);
}

#[test]
fn reserved_memory_is_out_of_reach_of_others() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let [block] = grow_each(&mut heap, [2 * CHUNK]);
        let reservation = reservation::create(&mut heap, [block.id]);
        check(&heap);
        assert!(take(&mut heap, A, GRANULE).is_none());
        assert!(plan(&mut heap, GRANULE, Growth::None).is_none());
        assert_eq!(release(&mut heap, Target::Keep(0)), 0);
        let totals = heap.totals();
        assert_eq!(
            (totals.used.current, totals.set_aside.current),
            (2 * CHUNK, 2 * CHUNK)
        );
        let part = draw(&mut heap, reservation, CHUNK).unwrap();
        assert_eq!(heap.totals().set_aside.current, CHUNK);
        assert_eq!(state(&heap, reservation), (1, 1));
        assert_eq!(arrivals(&heap, reservation), (0, 0));
        let behind = Fences::one(B, Ticket(1));
        let returned_to = heap.free(part.id, behind);
        assert_eq!(returned_to, ReturnedTo::Reservation(reservation));
        assert_eq!(arrivals(&heap, reservation), (1, 0));
        assert_eq!(state(&heap, reservation), (2, 1), "neighbours stay apart");
        let listed: Vec<_> = inspect::reservations(&heap).collect();
        assert_eq!(listed, [(reservation, 2 * CHUNK)]);
        reservation::disband(&mut heap, reservation);
        check(&heap);
        assert_eq!(layout(&heap)[..2], [("pending", 1), ("free", 1)]);
        assert_eq!(state(&heap, reservation), (0, 0));
    }
}

#[test]
fn block_drawn_from_a_reservation_that_ended_is_free_for_all() {
    let mut heap = heap(true);
    let [block] = grow_each(&mut heap, [CHUNK]);
    let reservation = reservation::create(&mut heap, [block.id]);
    let drawn = draw(&mut heap, reservation, CHUNK).unwrap();
    reservation::disband(&mut heap, reservation);
    assert_eq!(
        heap.free(drawn.id, Fences::default()),
        ReturnedTo::AnyStream
    );
    assert_eq!(arrivals(&heap, reservation), (0, 0));
    check::conserved(&heap).unwrap();
}

#[test]
fn draw_prefers_blocks_that_need_no_wait_and_joins_neighbours_in_the_end() {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [CHUNK, CHUNK, 2 * CHUNK]);
    let reservation = reservation::create(&mut heap, blocks.iter().map(|block| block.id));
    let drawn = draw(&mut heap, reservation, CHUNK).unwrap();
    heap.free(drawn.id, Fences::one(B, Ticket(1)));
    let best = draw(&mut heap, reservation, CHUNK).unwrap();
    assert_ne!(best.address, drawn.address, "that one is pending elsewhere");
    heap.free(best.id, Fences::default());
    // Three chunks in one block are not there: neighbours are joined, with their fences.
    assert!(
        draw(&mut heap, reservation, 4 * CHUNK).is_none(),
        "one of them is pending"
    );
    let clock = Clock::one(B, Ticket(1));
    let joined = reservation::take(&mut heap, reservation, request(4 * CHUNK), &view(A, &clock));
    let joined = joined.unwrap();
    assert_eq!(joined.fences.of(B), Ticket(1));
    assert_eq!(state(&heap, reservation), (0, 0));
    check(&heap);
    heap.complete(B, Ticket(1));
    heap.free(joined.id, Fences::default());
    let aligned = Request {
        bytes: CHUNK + GRANULE,
        alignment: 2 * CHUNK,
    };
    let clock = Clock::default();
    let grant = reservation::take(&mut heap, reservation, aligned, &view(A, &clock));
    assert_eq!(grant.unwrap().address % (2 * CHUNK), 0);
    check(&heap);
}

#[test]
fn fences_that_became_complete_are_dropped_from_a_draw() {
    let mut heap = heap(true);
    let [block] = grow_each(&mut heap, [CHUNK]);
    let reservation = reservation::create(&mut heap, [block.id]);
    let drawn = draw(&mut heap, reservation, CHUNK).unwrap();
    heap.free(drawn.id, Fences::one(B, Ticket(1)));
    assert!(draw(&mut heap, reservation, CHUNK).is_none());
    heap.complete(B, Ticket(1));
    let again = draw(&mut heap, reservation, CHUNK).unwrap();
    assert!(again.fences.is_empty());
}

#[test]
fn split_takes_exactly_the_bytes() {
    let mut heap = heap(true);
    let (reservation, _used) = scattered(&mut heap, &[0, 2, 3, 6]);
    assert!(reservation::split(&mut heap, reservation, 4 * CHUNK + 1, false).is_none());
    let part = reservation::split(&mut heap, reservation, CHUNK + MIB, false).unwrap();
    check(&heap);
    assert_eq!(reservation::state(&heap, part).left, CHUNK + MIB);
    assert_eq!(reservation::state(&heap, reservation).left, 2 * CHUNK + MIB);
    let all = reservation::split(&mut heap, part, CHUNK + MIB, false).unwrap();
    assert_eq!(reservation::state(&heap, part).left, 0);
    assert_eq!(reservation::state(&heap, all).left, CHUNK + MIB);
    check(&heap);
}

#[test]
fn split_in_one_piece_is_refused_where_only_several_are_left() {
    let mut heap = heap(true);
    let (reservation, _used) = scattered(&mut heap, &[0, 2]);
    assert!(reservation::split(&mut heap, reservation, 2 * CHUNK, true).is_none());
    assert_eq!(state(&heap, reservation), (2, 1));
    let several = reservation::split(&mut heap, reservation, 2 * CHUNK, false).unwrap();
    assert_eq!(state(&heap, several), (2, 1));
    check(&heap);
}

#[test]
fn more_memory_for_a_reservation_is_an_arrival() {
    let mut heap = heap(true);
    let [one, two] = grow_each(&mut heap, [CHUNK, CHUNK]);
    let reservation = reservation::create(&mut heap, [one.id]);
    assert_eq!(arrivals(&heap, reservation), (0, 0));
    reservation::extend(&mut heap, reservation, [two.id]);
    assert_eq!(arrivals(&heap, reservation), (1, 0));
    assert_eq!(state(&heap, reservation), (2, 1));
    check(&heap);
}

fn exchange(heap: &mut Heap, reservation: ReservationId, bytes: u64) -> Option<Exchanged> {
    let clock = Clock::default();
    let view = view(A, &clock);
    Exchange::begin(
        heap,
        reservation,
        request(bytes),
        &view,
        Growth::Allowed,
        &Ranges::default(),
    )
}

#[test]
fn scattered_blocks_are_exchanged_for_free_memory() {
    let mut heap = heap(true);
    let (reservation, mut used) = scattered(&mut heap, &[0, 3]);
    // Places 1 and 2 become free, between the reserved blocks and the rest.
    for _ in 0..2 {
        let block = used.remove(0);
        free(&mut heap, &block);
    }
    let Some(Exchanged::Granted(grant)) = exchange(&mut heap, reservation, 2 * CHUNK) else {
        panic!("four free chunks are neighbours");
    };
    check(&heap);
    assert_eq!(
        state(&heap, reservation),
        (0, 0),
        "all of it was given for the grant"
    );
    assert_eq!(heap.totals().free.current, 2 * CHUNK);
    assert_eq!(
        heap.free(grant.id, Fences::default()),
        ReturnedTo::Reservation(reservation)
    );
    assert_eq!(state(&heap, reservation), (2, 2));
}

#[test]
fn exchange_gives_back_what_the_request_does_not_need() {
    let mut heap = heap(true);
    let (reservation, _used) = scattered(&mut heap, &[0, 1, 3, 5, 6]);
    // Five chunks in pieces of 2, 1 and 2: three in one block take a plan.
    let Some(Exchanged::Planned(plan, exchange)) = exchange(&mut heap, reservation, 3 * CHUNK)
    else {
        panic!("no three chunks are neighbours");
    };
    check(&heap);
    let moves = mapping_of(&plan);
    assert_eq!(plan.new_bytes(), 0, "its own chunks are moved");
    assert!(moves >= 1);
    let (_, under_way) = arrivals(&heap, reservation);
    let (left, _) = state(&heap, reservation);
    assert_eq!(
        left + under_way,
        5,
        "what is owed now or later is all it had"
    );
    assert!(under_way >= 3, "the request itself is under way");
    let grant = exchange
        .commit(&mut heap, |heap| carry_out(heap, plan))
        .unwrap();
    check(&heap);
    assert_eq!(arrivals(&heap, reservation), (1, 0));
    assert_eq!(state(&heap, reservation).0, 2);
    assert_eq!(
        heap.totals().free.current,
        0,
        "others lost nothing and gained nothing"
    );
    heap.free(grant.id, Fences::default());
    assert_eq!(state(&heap, reservation).0, 5);
}

/// A free block can be as large as a chunk and lie across two of them. It is no chunk that could be moved.
#[test]
fn exchange_gives_back_as_many_whole_chunks_as_it_took() {
    let mut heap = heap(true);
    let [row] = grow_each(&mut heap, [8 * CHUNK]);
    free(&mut heap, &row);
    let halves = [1, 2, 1, 2, 2, 2, 2, 2, 2];
    let blocks = halves.map(|halves| take(&mut heap, A, halves * CHUNK / 2).unwrap());
    assert!(blocks.is_sorted_by_key(|block| block.address));
    let across_two = 1;
    let aside = [across_two, 3, 5, 7].map(|at| blocks[at].id);
    let reservation = reservation::create(&mut heap, aside);
    let Some(Exchanged::Planned(plan, exchange)) = exchange(&mut heap, reservation, 2 * CHUNK)
    else {
        panic!("no two chunks are neighbours");
    };
    check(&heap);
    let _granted = exchange
        .commit(&mut heap, |heap| carry_out(heap, plan))
        .unwrap();
    check(&heap);
    assert_eq!(state(&heap, reservation).0, 2);
    let before = heap.totals().whole_free_chunks;
    reservation::disband(&mut heap, reservation);
    assert_eq!(
        heap.totals().whole_free_chunks - before,
        1,
        "one of its three whole chunks is left"
    );
}

fn mapping_of(plan: &Plan) -> usize {
    match plan {
        Plan::Map(mapping) => mapping.steps.len(),
        Plan::Memory(_) => 0,
    }
}

#[test]
fn exchange_that_the_device_refuses_restores_the_reservation() {
    for rest in [0, 1, 2] {
        let mut heap = heap(true);
        let places = &[0, 2, 4, 6, 7][..3 + rest];
        let (reservation, _used) = scattered(&mut heap, places);
        let before = state(&heap, reservation).0;
        let Some(Exchanged::Planned(plan, exchange)) = exchange(&mut heap, reservation, 3 * CHUNK)
        else {
            panic!("no three chunks are neighbours");
        };
        check(&heap);
        assert!(draw(&mut heap, reservation, 3 * CHUNK).is_none());
        let (_, under_way) = arrivals(&heap, reservation);
        assert_eq!(state(&heap, reservation).0 + under_way, before);
        let outcome = Outcome {
            done: 0,
            lost: false,
        };
        let grant = exchange.commit(&mut heap, |heap| mapping(Some(plan)).commit(heap, outcome));
        assert!(grant.is_none());
        check(&heap);
        assert_eq!(state(&heap, reservation).0, before);
        assert_eq!(arrivals(&heap, reservation), (1, 0));
        assert_eq!(heap.totals().free.current, 0);
        assert_eq!(
            inspect::reservations(&heap).count(),
            1,
            "the escrow is gone"
        );
    }
}

#[test]
fn exchange_of_a_reservation_that_ended_meanwhile_leaves_its_memory_free() {
    let mut heap = heap(true);
    let (reservation, used) = scattered(&mut heap, &[0, 2, 4, 6]);
    let Some(Exchanged::Planned(plan, exchange)) = exchange(&mut heap, reservation, 3 * CHUNK)
    else {
        panic!("no three chunks are neighbours");
    };
    reservation::disband(&mut heap, reservation);
    check(&heap);
    let grant = exchange
        .commit(&mut heap, |heap| carry_out(heap, plan))
        .unwrap();
    check(&heap);
    assert_eq!(
        heap.free(grant.id, Fences::default()),
        ReturnedTo::AnyStream
    );
    used.iter().for_each(|block| free(&mut heap, block));
    check::conserved(&heap).unwrap();
}

#[test]
fn exchange_needs_enough_complete_blocks() {
    let mut heap = heap(true);
    let (reservation, _used) = scattered(&mut heap, &[0, 2, 4]);
    assert!(exchange(&mut heap, reservation, 3 * CHUNK + GRANULE).is_none());
    let drawn = draw(&mut heap, reservation, CHUNK).unwrap();
    heap.free(drawn.id, Fences::one(B, Ticket(1)));
    assert!(
        exchange(&mut heap, reservation, 3 * CHUNK).is_none(),
        "one of them is pending"
    );
    assert_eq!(state(&heap, reservation).0, 3);
    check(&heap);
    heap.complete(B, Ticket(1));
    assert!(exchange(&mut heap, reservation, 3 * CHUNK).is_some());
}

/// Plain memory is not moved: an exchange finds free memory that joins, or a new segment, or nothing.
#[test]
fn exchange_of_plain_memory_restores_the_reservation_if_nothing_fits() {
    let mut heap = heap(false);
    let (reservation, _used) = scattered(&mut heap, &[0, 2, 4]);
    heap.set_capacity(8 * CHUNK);
    assert!(exchange(&mut heap, reservation, 2 * CHUNK).is_none());
    check(&heap);
    assert_eq!(state(&heap, reservation), (3, 1));
    heap.set_capacity(CAPACITY);
    let Some(Exchanged::Planned(plan, exchange)) = exchange(&mut heap, reservation, 2 * CHUNK)
    else {
        panic!("the capacity holds a new segment");
    };
    assert_eq!(plan.new_bytes(), 2 * CHUNK);
    let grant = exchange.commit(&mut heap, |heap| carry_out(heap, plan));
    assert!(grant.is_some());
    check(&heap);
    assert_eq!(state(&heap, reservation).0, 1);
    assert_eq!(
        heap.totals().free.current,
        2 * CHUNK,
        "the segments given for it"
    );
}

#[test]
fn exact_range_is_cut_out_of_neighbours_with_their_fences() {
    let mut heap = heap(true);
    let [block] = grow_each(&mut heap, [4 * CHUNK]);
    let (start, reservation) = (block.address, reservation::create(&mut heap, [block.id]));
    let parts: Vec<_> = (0..4)
        .map(|_| draw(&mut heap, reservation, CHUNK).unwrap())
        .collect();
    let behind = Fences::one(B, Ticket(1));
    for part in &parts[..3] {
        let fences = if part.address == start + CHUNK {
            behind.clone()
        } else {
            Fences::default()
        };
        heap.free(part.id, fences);
    }
    let range = (start + CHUNK / 2, CHUNK);
    let clock = Clock::default();
    let pending = reservation::take_at(&mut heap, reservation, range, &view(A, &clock));
    assert!(pending.is_none(), "a part waits for another stream");
    let clock = Clock::one(B, Ticket(1));
    let past_the_end = (start + 2 * CHUNK, 2 * CHUNK);
    let granted = reservation::take_at(&mut heap, reservation, past_the_end, &view(A, &clock));
    assert!(granted.is_none(), "a part is granted");
    let before = (start - GRANULE, CHUNK);
    assert!(reservation::take_at(&mut heap, reservation, before, &view(A, &clock)).is_none());
    let grant = reservation::take_at(&mut heap, reservation, range, &view(A, &clock)).unwrap();
    assert_eq!((grant.address, grant.bytes), range);
    assert_eq!(grant.fences.of(B), Ticket(1));
    check(&heap);
    let granted = inspect::granted_from(&heap, &[reservation]);
    assert_eq!(granted, [range, (start + 3 * CHUNK, CHUNK)]);
    heap.complete(B, Ticket(1));
    heap.free(grant.id, Fences::default());
    heap.free(parts[3].id, Fences::default());
    assert_eq!(reservation::state(&heap, reservation).left, 4 * CHUNK);
    reservation::disband(&mut heap, reservation);
    check::conserved(&heap).unwrap();
}
