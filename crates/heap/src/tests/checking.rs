//! The checks notice each violation.

use super::*;
use crate::block::{Block, Blocks, Was};

/// Returns a used, a pending, a free and a reserved block, and a hole above.
fn sound() -> (Heap, [Grant; 4]) {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [CHUNK; 4]);
    free_behind(&mut heap, &blocks[1], B, 1);
    free(&mut heap, &blocks[2]);
    reservation::create(&mut heap, [blocks[3].id]);
    check(&heap);
    (heap, blocks)
}

/// Breaks a sound heap in one way. Returns what the check says.
fn broken(harm: impl FnOnce(&mut Blocks, &mut Totals, &[Grant; 4])) -> String {
    let (mut heap, grants) = sound();
    let (blocks, totals) = heap.map.parts_mut();
    harm(blocks, totals, &grants);
    check::invariants(&heap).expect_err("the check notices")
}

#[test]
fn block_that_does_not_begin_at_the_end_of_the_one_below_is_noticed() {
    let message = broken(|blocks, _, grants| blocks[grants[1].id].address += GRANULE);
    assert!(
        message.contains("tiling") && message.contains("does not begin"),
        "{message}"
    );
}

#[test]
fn empty_block_is_noticed() {
    let message = broken(|blocks, _, grants| {
        let hole = blocks[grants[3].id].next.expect("the hole");
        blocks[hole].bytes = 0;
    });
    assert!(
        message.contains("tiling") && message.contains("is empty"),
        "{message}"
    );
}

#[test]
fn lost_link_is_noticed() {
    let message = broken(|blocks, _, grants| blocks[grants[2].id].previous = None);
    assert!(message.contains("linked to another"), "{message}");
    let message = broken(|blocks, _, grants| {
        blocks[grants[2].id].previous = Some(grants[0].id);
    });
    assert!(message.contains("linked to another"), "{message}");
}

#[test]
fn neighbours_that_were_not_merged_are_noticed() {
    let message = broken(|blocks, totals, grants| {
        // A free block in two parts.
        blocks.split(grants[2].id, MIB);
        totals.subtract_releasable(CHUNK, 1);
    });
    assert!(message.contains("not merged"), "{message}");
}

#[test]
fn segment_that_is_not_counted_is_noticed() {
    let message = broken(|blocks, _, _| {
        blocks.insert(Block::new(0, GRANULE, State::Used(None)));
    });
    assert!(message.contains("segments, and"), "{message}");
}

#[test]
fn block_in_no_segment_is_noticed() {
    let message = broken(|blocks, _, grants| {
        let stray = blocks[grants[1].id].clone();
        blocks.insert(stray);
    });
    assert!(message.contains("of them in a segment"), "{message}");
}

#[test]
fn total_that_is_not_the_sum_of_its_blocks_is_noticed() {
    type Figure = fn(&mut Totals) -> &mut u64;
    let figures: [(&str, Figure); 10] = [
        ("free", |totals| &mut totals.free.current),
        ("pending", |totals| &mut totals.pending.current),
        ("used", |totals| &mut totals.used.current),
        ("claimed", |totals| &mut totals.claimed),
        ("in use", |totals| &mut totals.in_use.current),
        ("set aside", |totals| &mut totals.set_aside.current),
        ("whole free chunks", |totals| &mut totals.whole_free_chunks),
        ("releasable", |totals| &mut totals.releasable),
        ("releasable blocks", |totals| &mut totals.releasable_blocks),
        ("reserved", |totals| &mut totals.reserved.current),
    ];
    for (name, figure) in figures {
        let message = broken(|_, totals, _| *figure(totals) += GRANULE);
        assert!(
            message.contains("conservation") && message.contains(name),
            "{message}"
        );
    }
    let message = broken(|_, totals, _| totals.planned = CAPACITY);
    assert!(message.contains("over the capacity"), "{message}");
}

#[test]
fn block_in_another_index_than_that_of_its_state_is_noticed() {
    // Used and reserved, or pending and used, count the same in no total but these.
    let message = broken(|blocks, totals, grants| {
        let pending = &mut blocks[grants[1].id];
        pending.state = State::Used(None);
        totals.pending.current -= CHUNK;
        totals.used.current += CHUNK;
    });
    assert!(message.contains("index of pending"), "{message}");
    let message = broken(|blocks, totals, grants| {
        blocks[grants[2].id].state = State::Claimed(Was::Free);
        totals.free.current -= CHUNK;
        totals.claimed += CHUNK;
        totals.subtract_releasable(CHUNK, 1);
    });
    assert!(message.contains("index of free"), "{message}");
    let message = broken(|blocks, totals, grants| {
        blocks[grants[3].id].state = State::Used(None);
        totals.set_aside.current -= CHUNK;
    });
    assert!(message.contains("index of reserved"), "{message}");
}

#[test]
fn impossible_states_are_noticed() {
    let message = broken(|blocks, _, grants| {
        blocks[grants[1].id].state = State::Pending(Fences::default());
    });
    assert!(message.contains("behind no fence"), "{message}");
    let (mut heap, _) = sound();
    heap.completed.set(B, Ticket(1));
    let message = check::invariants(&heap).expect_err("it is complete");
    assert!(
        message.contains("order") && message.contains("complete"),
        "{message}"
    );
    let gone = ReservationId::after(99);
    let message = broken(|blocks, totals, grants| {
        blocks[grants[0].id].state = State::Reserved(gone, Fences::default());
        totals.set_aside.current += CHUNK;
    });
    assert!(message.contains("which is gone"), "{message}");
    let message = broken(|blocks, totals, grants| {
        // Above a pending block.
        blocks[grants[2].id].state = State::Room;
        totals.free.current -= CHUNK;
        totals.reserved.current -= CHUNK;
        totals.whole_free_chunks -= 1;
        totals.releasable -= CHUNK;
        totals.releasable_blocks -= 1;
    });
    assert!(message.contains("is room above"), "{message}");
    let message = broken(|blocks, _, grants| {
        let hole = blocks[grants[3].id].next.expect("the hole");
        let upper = blocks.split(hole, GRANULE);
        blocks[hole].state = State::Claimed(Was::Hole);
        assert_eq!(blocks[upper].state, State::Hole);
    });
    assert!(message.contains("splits a chunk"), "{message}");
}

#[test]
fn memory_that_was_not_given_back_is_noticed() {
    let mut heap = heap(true);
    check::conserved(&heap).unwrap();
    let block = get(&mut heap, A, CHUNK).unwrap();
    let message = check::conserved(&heap).expect_err("a block is used");
    assert!(message.contains("not given back"), "{message}");
    free(&mut heap, &block);
    let release = heap.plan_release(Target::Keep(0));
    check::conserved(&heap).expect_err("a release is under way");
    heap.commit_release(release, 1);
    let plan = plan(&mut heap, CHUNK, Growth::Allowed).unwrap();
    check::conserved(&heap).expect_err("a growth is planned");
    let grant = carry_out(&mut heap, plan).unwrap();
    free_behind(&mut heap, &grant, B, 1);
    check::conserved(&heap).expect("pending memory is given back");
}
