//! The scan for windows, compared with a plain one.

use super::*;
use crate::index::Stretches;
use std::time::Duration;

const STEP: u64 = CHUNK / 8;

/// Returns a heap of used, free, pending, unmapped, claimed and reserved ranges and of rooms, in steps of [`STEP`], and
/// its used blocks.
fn random_heap(random: &mut fastrand::Rng, virtual_memory: bool) -> (Heap, Vec<Grant>) {
    let mut heap = heap(virtual_memory);
    if virtual_memory {
        heap.add_range(BASE << 1, 24 * MIB);
    }
    let mut used = Vec::new();
    for _ in 0..random.usize(1..40) {
        let stream = if random.bool() { A } else { B };
        if virtual_memory && random.u8(..12) == 0 {
            let clock = Clock::default();
            let view = View {
                placement: Placement::WithRoom(random.u64(1..4) * CHUNK),
                ..view(stream, &clock)
            };
            let request = request(random.u64(1..3) * CHUNK);
            let plan = heap.plan(request, &view, Growth::Allowed);
            used.extend(plan.and_then(|plan| carry_out(&mut heap, plan)));
        } else if random.u8(..3) > 0 {
            used.extend(get(&mut heap, stream, random.u64(1..=24) * STEP));
        } else if !used.is_empty() {
            let grant: Grant = used.swap_remove(random.usize(..used.len()));
            let ticket = Ticket(random.u64(..3));
            let mut fences = if ticket == Ticket::ZERO {
                Fences::default()
            } else {
                Fences::one(stream, ticket)
            };
            if random.u8(..4) == 0 {
                fences.join_all(&Fences::one(C, Ticket(random.u64(1..3))));
            }
            heap.give_back(grant.id, fences);
        }
    }
    let mut left = Vec::new();
    for grant in used {
        let blocks = heap.map.blocks();
        let above = blocks[grant.id].next.map(|above| &blocks[above].state);
        match random.u8(..8) {
            ..4 => drop(heap.give_back(grant.id, Fences::default())),
            // A block with room is never set aside.
            4 if above != Some(&State::Room) => {
                reservation::create(&mut heap, [grant.id]);
            }
            _ => left.push(grant),
        }
    }
    release(&mut heap, Target::Keep(random.u64(..32) * MIB));
    if random.bool() {
        // Under way.
        drop(plan(&mut heap, random.u64(1..8) * CHUNK, Growth::Allowed));
    }
    if random.bool() {
        heap.set_capacity(random.u64(8..48) * MIB);
    }
    check::invariants(&heap).unwrap();
    (heap, left)
}

/// Returns the starts at which a request may lie.
fn starts(heap: &Heap, request: Request, placement: Placement) -> Vec<u64> {
    let Request { bytes, alignment } = request;
    match placement {
        Placement::Above(_, end) => vec![end],
        Placement::WithRoom(room) => {
            let blocks = heap.map.blocks().iter().map(|(_, block)| block);
            let holes = blocks.filter(|block| block.state == State::Hole);
            let holes = holes.map(|block| (block.bytes, block.address));
            let least = holes.filter(|(hole, _)| *hole >= bytes + room).min();
            least.into_iter().map(|(_, address)| address).collect()
        }
        Placement::Anywhere => {
            let of_segment = |(address, segment): (u64, _)| {
                let first = u64::next_multiple_of(address, alignment);
                let step = if alignment < STEP { STEP } else { alignment };
                let segment: block_map::Segment = segment;
                let end = (address + segment.bytes).saturating_sub(bytes);
                (first..end + 1).step_by(step as usize)
            };
            heap.map.segments().flat_map(of_segment).collect()
        }
    }
}

/// Returns the cost of the window from `start` on, if the requester may take all of it, block by block.
fn naive_cost(
    heap: &Heap,
    start: u64,
    request: Request,
    view: &View<'_>,
    moves: u64,
) -> Option<(u64, u64, bool)> {
    let (end, units) = (start + request.bytes, heap.map.units());
    let (mut maps, mut inside, mut is_pending, mut covered) = (0, 0, false, 0);
    for (_, block) in heap.map.blocks().iter() {
        let (low, high) = (block.address.max(start), block.end().min(end));
        if low >= high {
            continue;
        }
        covered += high - low;
        match &block.state {
            State::Free => {
                let touched = units.chunks_touched(low, high);
                inside += units.whole_chunks(block).both(touched).count();
            }
            State::Pending(fences) => {
                view.forecast(fences)?;
                is_pending = true;
            }
            State::Hole => maps += units.chunks_touched(low, high).count(),
            State::Room if matches!(view.placement, Placement::Above(_, end) if end == block.address) =>
            {
                maps += units.chunks_touched(low, high).count();
            }
            _ => return None,
        }
    }
    let elsewhere = heap.totals().whole_free_chunks - inside;
    let new = maps - maps.min(elsewhere).min(moves);
    (covered == request.bytes).then_some((new, maps, is_pending))
}

fn random_request(
    random: &mut fastrand::Rng,
    virtual_memory: bool,
    used: &[Grant],
) -> (Request, Placement) {
    let placement = match (random.u8(..4), random.choice(used)) {
        (0, Some(below)) => Placement::Above(below.id, below.address + below.bytes),
        (1, _) if virtual_memory => Placement::WithRoom(random.u64(1..8) * CHUNK),
        _ => Placement::Anywhere,
    };
    let (bytes, alignment) = match placement {
        Placement::Anywhere => {
            let alignment = [512, STEP, CHUNK, 3 * STEP][random.usize(..4)];
            (random.u64(1..80) * STEP, alignment)
        }
        Placement::Above(..) => (random.u64(1..16) * STEP, 1),
        Placement::WithRoom(_) => (random.u64(1..4) * CHUNK, CHUNK),
    };
    (Request { bytes, alignment }, placement)
}

/// Returns the cost of the window that a search finds.
fn found_cost(
    heap: &mut Heap,
    request: Request,
    view: &View<'_>,
    growth: Growth,
) -> Option<(u64, u64, bool)> {
    let offers = heap.offers(request, view, growth);
    let window = offers.window(growth);
    if let Some(window) = window {
        let first = &heap.map.blocks()[window.first];
        assert!((first.address..first.end()).contains(&window.start));
        assert_eq!(window.start % request.alignment, 0);
    }
    let cost = window.map(|window| (window.new, window.maps, window.is_pending));
    assert_eq!(offers.new_chunks(growth), cost.map(|cost| cost.0));
    cost
}

#[test]
fn one_scan_finds_the_cheapest_window_for_each_growth() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut lists = 0;
    for round in 0..if cfg!(miri) { 4 } else { 1200 } {
        let virtual_memory = round % 4 > 0;
        let (mut heap, used) = random_heap(&mut random, virtual_memory);
        let (request, placement) = random_request(&mut random, virtual_memory, &used);
        let after = Clock::one(B, Ticket(random.u64(..3)));
        let may_wait = random.bool();
        let waits = |fence: Fence| (fence.stream == C).then(Forecast::default);
        let view = View {
            waits: may_wait.then_some(&waits),
            placement,
            ..view(A, &after)
        };
        let starts = starts(&heap, request, placement);
        let naive = |moves, most: u64, has_holes: bool| {
            let costs = starts.iter();
            let costs = costs.filter_map(|start| naive_cost(&heap, *start, request, &view, moves));
            let allowed = costs.filter(|(_, maps, _)| has_holes || *maps == 0);
            allowed.min().filter(|(new, ..)| *new <= most)
        };
        let totals = heap.totals();
        let left = heap.capacity.left(&totals) / CHUNK;
        let spare = heap.capacity.to_spare(&totals, request.bytes) / CHUNK;
        let any = naive(u64::MAX, left, true);
        for (growth, expected) in [
            (Growth::None, naive(0, 0, false)),
            (Growth::Remap, naive(u64::MAX, 0, true)),
            (Growth::Allowed, any),
            (Growth::New, naive(0, left, true).or(any)),
            (Growth::Sparing(2), naive(2, left.min(spare), true).or(any)),
        ] {
            // The first search looks at all blocks, and the second lists the stretches, if there are blocks enough.
            heap.map.index_mut().stretches = Stretches::default();
            let [all, listed] = [(); 2].map(|()| found_cost(&mut heap, request, &view, growth));
            lists += usize::from(heap.map.index().stretches.lists().is_some());
            let case = format!("round {round}, {growth:?}, {request:?}, {placement:?}");
            assert_eq!(listed, all, "{case}");
            if CHUNK.is_multiple_of(request.alignment) {
                assert_eq!(all, expected, "{case}");
            } else {
                // Inside a hole, a start that suits the chunks better is not looked for.
                assert!(all.is_none_or(|_| expected <= all), "{case}");
            }
        }
    }
    assert!(lists > 0, "no heap had blocks enough for lists");
}

/// Among pending windows of equal cost the one that is complete first is taken, wherever it lies in the run.
#[test]
fn window_expected_first_is_chosen_among_equal_ones() {
    for early in 0..6 {
        let mut heap = heap(true);
        let blocks = [(); 12].map(|()| get(&mut heap, B, MIB).unwrap());
        for (number, block) in (0..).zip(&blocks) {
            heap.give_back(block.id, Fences::one(B, Ticket(1 + number)));
        }
        let pair = [2 * early + 1, 2 * early + 2];
        let waits = |fence: Fence| {
            let delay = if pair.contains(&fence.ticket.0) { 1 } else { 9 };
            let donor = Donor {
                sealed_at: Some(Duration::ZERO),
                expected_at: Some(Duration::from_millis(delay)),
                number: delay,
                latency: Duration::from_millis(1),
            };
            let (now, tail) = (Duration::ZERO, Duration::ZERO);
            Some(Forecast::of(donor, Taker { now, tail }))
        };
        let after = Clock::default();
        let view = View {
            waits: Some(&waits),
            ..view(A, &after)
        };
        let offers = heap.offers(request(2 * MIB), &view, Growth::None);
        let window = offers.window(Growth::None).unwrap();
        assert_eq!(window.start, blocks[2 * early as usize].address);
    }
}

#[test]
fn plain_memory_could_grow_where_free_segments_make_room() {
    let mut heap = heap(false);
    let [held, free] = [20 * MIB, 8 * MIB].map(|bytes| grow(&mut heap, A, bytes).unwrap());
    heap.give_back(free.id, Fences::default());
    let clock = Clock::default();
    let could_grow = |heap: &mut Heap, bytes| {
        let offers = heap.offers(request(bytes), &view(A, &clock), Growth::None);
        offers.could_grow()
    };
    assert!(
        could_grow(&mut heap, 12 * MIB),
        "8 MiB are free and 4 MiB are left"
    );
    assert!(!could_grow(&mut heap, 12 * MIB + 512));
    heap.give_back(held.id, Fences::one(B, Ticket(1)));
    assert!(
        !could_grow(&mut heap, 12 * MIB + 512),
        "pending memory makes no room"
    );
    assert!(take(&mut heap, A, 8 * MIB).is_some());
}

/// The shortest stretches are compared first. The one that serves the request comes after very many that do not.
#[test]
fn stretch_that_serves_is_found_after_many_that_do_not() {
    let mut heap = heap(true);
    let piece = 64 << 10;
    let pieces: Vec<_> = (0..384)
        .map(|_| get(&mut heap, A, piece).unwrap())
        .collect();
    for pair in pieces[..300].chunks(3) {
        free_behind(&mut heap, &pair[0], B, 1);
        free_behind(&mut heap, &pair[1], B, 2);
    }
    for (number, piece) in (1..).zip(&pieces[301..304]) {
        free_behind(&mut heap, piece, A, number);
    }
    heap.map.index_mut().stretches = Stretches::default();
    let clock = Clock::default();
    for has_lists in [false, true] {
        let offers = heap.offers(request(2 * piece), &view(A, &clock), Growth::None);
        let window = offers.window(Growth::None).unwrap();
        assert_eq!(window.start, pieces[301].address);
        let lists = heap.map.index().stretches.lists();
        assert_eq!(lists.is_some(), has_lists);
    }
}

/// Where the device refuses memory, a plan with less of it is looked for in all stretches.
#[test]
fn fewest_new_chunks_are_found_among_many_stretches() {
    let mut heap = Heap::new(Geometry {
        capacity: 1 << 30,
        chunk_bytes: CHUNK,
        granularity: CHUNK,
        virtual_memory: true,
        growth: GrowBy::default(),
    });
    heap.add_range(BASE, 4 << 30);
    heap.register(A, Ticket::ZERO);
    // A gap of one MiB and three chunks above each; the last one ends with two chunks of memory.
    let blocks = (0..80).map(|_| grow_each(&mut heap, [MIB, 3 * CHUNK + MIB]));
    let blocks: Vec<_> = blocks.collect();
    let [last] = grow_each(&mut heap, [2 * CHUNK]);
    let [above] = grow_each(&mut heap, [CHUNK]);
    for [_, gap] in &blocks {
        free(&mut heap, gap);
    }
    release(&mut heap, Target::Keep(0));
    free_behind(&mut heap, &last, A, 1);
    let clock = Clock::default();
    let (request, view) = (request(3 * CHUNK), view(A, &clock));
    heap.map.index_mut().stretches = Stretches::default();
    let mut new = |growth| heap.offers(request, &view, growth).new_chunks(growth);
    assert_eq!(new(Growth::New), Some(1), "all are looked at");
    assert_eq!(new(Growth::New), Some(3), "64 of the listed ones");
    assert_eq!(new(Growth::Allowed), Some(1));
    assert_eq!(new(Growth::Remap), None);
    free(&mut heap, &above);
    let offers = heap.offers(request, &view, Growth::Remap);
    assert_eq!(offers.new_chunks(Growth::Remap), Some(0));
}

/// Blocks that the stream may not take come before one that it may take, and none of them has an unused neighbour.
#[test]
fn pending_block_is_found_behind_many_others() {
    let mut heap = heap(true);
    let pieces: Vec<_> = (0..512)
        .map(|_| get(&mut heap, A, 64 << 10).unwrap())
        .collect();
    for piece in pieces[..200].iter().step_by(2) {
        free_behind(&mut heap, piece, B, 2);
    }
    let pair = &pieces[300..302];
    heap.join_used(pair[0].id, pair[1].id);
    free_behind(&mut heap, &pair[0], B, 1);
    heap.map.index_mut().stretches = Stretches::default();
    let after = Clock::one(B, Ticket(1));
    for _ in 0..2 {
        let offers = heap.offers(request(64 << 10), &view(A, &after), Growth::None);
        assert_eq!(offers.window(Growth::None).unwrap().start, pair[0].address);
    }
}

/// Segments of plain memory may touch, and stay apart.
#[test]
fn stretch_above_another_segment_stays_listed() {
    let mut heap = heap(false);
    for address in [BASE, BASE + CHUNK] {
        let Some(Plan::Memory(segment)) = heap.plan_new(CHUNK) else {
            panic!("a segment of plain memory");
        };
        let grant = segment.commit(&mut heap, Some(address), Fences::default());
        free(&mut heap, &grant.unwrap());
    }
    let blocks = [(); 8].map(|()| take(&mut heap, A, CHUNK / 4).unwrap());
    let clock = Clock::default();
    for (ticket, block) in (1..).zip(&blocks[4..]) {
        free_behind(&mut heap, block, A, ticket);
    }
    for (ticket, block) in (5..).zip(&blocks[2..4]) {
        free_behind(&mut heap, block, A, ticket);
        for _ in 0..2 {
            let offers = heap.offers(request(CHUNK), &view(A, &clock), Growth::None);
            let window = offers.window(Growth::None).unwrap();
            assert_eq!(window.start, BASE + CHUNK);
        }
        check(&heap);
    }
}
