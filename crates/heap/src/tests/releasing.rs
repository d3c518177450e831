//! Giving memory back to the device.

use super::*;

fn down_to(reserved: u64) -> Target {
    Target::DownTo {
        reserved,
        most: u64::MAX,
    }
}

/// The figures name what a release would release; where memory is plain, segments count.
#[test]
fn figures_name_releasable_memory() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let blocks = grow_each(&mut heap, [2 * CHUNK; 3]);
        let chunks = if virtual_memory { 6 } else { 3 };
        assert_eq!(Figures::of(&heap, Mark::RESET).chunks, chunks);
        let releasable = |heap: &Heap| {
            let figures = Figures::of(heap, Mark::RESET);
            (figures.releasable_chunks, figures.releasable_bytes)
        };
        assert_eq!(releasable(&heap), (0, 0));
        free(&mut heap, &blocks[1]);
        free_behind(&mut heap, &blocks[2], A, 1);
        assert_eq!(releasable(&heap), (chunks / 3, 2 * CHUNK));
        let part = take(&mut heap, B, MIB).unwrap();
        let whole = if virtual_memory { CHUNK } else { 0 };
        assert_eq!(releasable(&heap).1, whole, "a part of a chunk is in use");
        assert_eq!(inspect::pending_on(&heap, A), 2 * CHUNK);
        free_behind(&mut heap, &part, B, 1);
        heap.complete(B, Ticket(1));
        heap.complete(A, Ticket(1));
        assert_eq!(inspect::pending_on(&heap, A), 0);
        let promised = Figures::of(&heap, Mark::RESET).releasable_bytes;
        assert_eq!(release(&mut heap, Target::Keep(0)), promised);
        assert_eq!(Figures::of(&heap, Mark::RESET).chunks, chunks / 3);
        check(&heap);
    }
}

#[test]
fn piece_is_the_releasable_part_of_a_block() {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [CHUNK, 2 * CHUNK, CHUNK, 3 * CHUNK]);
    free(&mut heap, &blocks[1]);
    free(&mut heap, &blocks[3]);
    let figures = Figures::of(&heap, Mark::RESET);
    assert_eq!(
        (figures.releasable_blocks, figures.releasable_chunks),
        (2, 5)
    );
    let piece = |total| figures.piece_for(total * MIB, CHUNK) / MIB;
    assert_eq!([14, 10, 7, 5, 4, 3].map(piece), [10, 6, 4, 2, 0, 0]);
    assert_eq!([15, 20].map(piece), [12, 16], "with new memory");
}

#[test]
fn highest_chunks_are_released_first() {
    let mut heap = heap(true);
    let blocks = grow_each(&mut heap, [2 * CHUNK, CHUNK, 3 * CHUNK]);
    free(&mut heap, &blocks[0]);
    free(&mut heap, &blocks[2]);
    assert_eq!(release(&mut heap, Target::Keep(4 * CHUNK + MIB)), CHUNK);
    assert_eq!(layout(&heap)[..3], [("free", 2), ("used", 1), ("free", 2)]);
    assert_eq!(release(&mut heap, Target::Keep(2 * CHUNK)), 3 * CHUNK);
    assert_eq!(layout(&heap)[..3], [("free", 1), ("hole", 1), ("used", 1)]);
    check(&heap);
}

#[test]
fn chunks_are_released_down_to_the_target_or_up_to_it() {
    for (target, released) in [
        (Target::Keep(3 * CHUNK + 1), 0),
        (Target::Keep(3 * CHUNK), 1),
        (Target::Keep(2 * CHUNK + 1), 1),
        (down_to(3 * CHUNK + 1), 1),
        (down_to(3 * CHUNK), 1),
        (down_to(3 * CHUNK - 1), 2),
        (down_to(4 * CHUNK), 0),
        (Target::Bytes(1), 1),
        (Target::Bytes(CHUNK), 1),
        (Target::Bytes(CHUNK + 1), 2),
        (Target::Bytes(9 * CHUNK), 4),
    ] {
        let mut heap = heap(true);
        let [block] = grow_each(&mut heap, [4 * CHUNK]);
        free(&mut heap, &block);
        assert_eq!(heap.could_release(target), released > 0, "{target:?}");
        assert_eq!(release(&mut heap, target), released * CHUNK, "{target:?}");
        check::conserved(&heap).unwrap();
    }
}

#[test]
fn no_more_is_released_than_was_allowed() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let blocks = grow_each(&mut heap, [CHUNK, 2 * CHUNK, 4 * CHUNK]);
        blocks.iter().for_each(|block| free(&mut heap, block));
        for (most, released) in [
            (CHUNK - 1, 0),
            (2 * CHUNK - 1, 1),
            (2 * CHUNK, 2),
            (9 * CHUNK, 4),
        ] {
            let target = Target::DownTo { reserved: 0, most };
            assert_eq!(heap.could_release(target), released > 0);
            assert_eq!(release(&mut heap, target), released * CHUNK, "{most}");
            check(&heap);
        }
    }
}

/// 8 MiB live and 1,000 MiB free with a threshold of 16 MiB kept 1,008 MiB.
#[test]
fn segment_larger_than_the_excess_is_released_down_to_the_target() {
    let mut heap = heap(false);
    let [live, large] = grow_each(&mut heap, [CHUNK, 12 * CHUNK]);
    free(&mut heap, &large);
    let kept = release(&mut heap, Target::Keep(2 * CHUNK));
    assert_eq!(kept, 0, "at least the target stays");
    assert!(!heap.could_release(Target::Keep(2 * CHUNK)));
    assert!(heap.could_release(down_to(2 * CHUNK)));
    assert_eq!(release(&mut heap, down_to(2 * CHUNK)), 12 * CHUNK);
    assert_eq!(reserved(&heap), CHUNK);
    free(&mut heap, &live);
    check::conserved(&heap).unwrap();
}

#[test]
fn segments_that_exceed_the_target_least_are_released() {
    let sizes = [CHUNK, 2 * CHUNK, 4 * CHUNK, 6 * CHUNK];
    for (bytes, left) in [
        (1, vec![2, 4, 6]),
        (2, vec![1, 4, 6]),
        (3, vec![1, 2, 6]),
        (5, vec![1, 2, 4]),
        (7, vec![2, 4]),
        (8, vec![1, 4]),
        (11, vec![2]),
        (12, vec![1]),
        (13, vec![]),
        (99, vec![]),
    ] {
        let mut heap = heap(false);
        let blocks = grow_each(&mut heap, sizes);
        blocks.iter().for_each(|block| free(&mut heap, block));
        release(&mut heap, Target::Bytes(bytes * CHUNK));
        let kept: Vec<_> = layout(&heap).iter().map(|(_, chunks)| *chunks).collect();
        assert_eq!(kept, left, "{bytes}");
        check::conserved(&heap).unwrap();
    }
}

#[test]
fn segment_in_part_use_or_pending_is_not_released() {
    let mut heap = heap(false);
    let [a, b] = grow_each(&mut heap, [2 * CHUNK, 2 * CHUNK]);
    free(&mut heap, &a);
    free_behind(&mut heap, &b, B, 1);
    let part = take(&mut heap, A, CHUNK).unwrap();
    assert_eq!(release(&mut heap, down_to(0)), 0);
    assert!(!heap.could_release(down_to(0)));
    free(&mut heap, &part);
    assert_eq!(release(&mut heap, down_to(0)), 2 * CHUNK);
    heap.complete(B, Ticket(1));
    assert_eq!(release(&mut heap, down_to(0)), 2 * CHUNK);
    check::conserved(&heap).unwrap();
}

#[test]
fn release_that_stops_half_way_frees_the_rest() {
    for virtual_memory in [true, false] {
        for done in 0..=3 {
            let mut heap = heap(virtual_memory);
            let blocks = grow_each(&mut heap, [CHUNK; 6]);
            for at in [0, 2, 3, 5] {
                free(&mut heap, &blocks[at]);
            }
            let release = heap.plan_release(Target::Bytes(3 * CHUNK));
            assert_eq!(release.spans.len(), 3);
            let spans = release.spans.clone();
            assert_eq!(heap.totals().claimed, 3 * CHUNK);
            assert_eq!(heap.commit_release(release, done), done as u64 * CHUNK);
            check(&heap);
            for (at, (address, _)) in spans.into_iter().enumerate() {
                assert_eq!(Found::at(&heap, address).is_none(), at < done);
            }
            assert_eq!(heap.totals().free.current, (4 - done as u64) * CHUNK);
        }
    }
}

#[test]
fn releases_under_way_count_as_released() {
    for virtual_memory in [true, false] {
        let mut heap = heap(virtual_memory);
        let blocks = grow_each(&mut heap, [CHUNK; 4]);
        blocks.iter().for_each(|block| free(&mut heap, block));
        let first = heap.plan_release(Target::Keep(3 * CHUNK));
        assert_eq!(first.spans.len(), 1);
        assert!(!heap.could_release(Target::Keep(3 * CHUNK)));
        let second = heap.plan_release(down_to(3 * CHUNK));
        assert!(second.spans.is_empty());
        let third = heap.plan_release(Target::Keep(2 * CHUNK));
        assert_eq!(third.spans.len(), 1);
        for release in [third, first, second] {
            let done = release.spans.len();
            heap.commit_release(release, done);
            check(&heap);
        }
        assert_eq!(reserved(&heap), 2 * CHUNK);
        assert_eq!(release(&mut heap, Target::Keep(CHUNK)), CHUNK);
    }
}

/// Ending a release visits each block once: the number of steps is linear in the chunks, and this test ends soon.
#[test]
fn release_of_very_many_chunks_ends_soon() {
    const COUNT: u64 = if cfg!(miri) { 200 } else { 200_000 };
    let mut heap = Heap::new(Geometry {
        capacity: COUNT * CHUNK,
        chunk_bytes: CHUNK,
        granularity: CHUNK,
        virtual_memory: true,
        growth: GrowBy::default(),
    });
    heap.add_range(BASE, 2 * COUNT * CHUNK);
    let all = grow(&mut heap, A, COUNT * CHUNK).unwrap();
    free(&mut heap, &all);
    let release = heap.plan_release(Target::Keep(0));
    let done = release.spans.len() - 1;
    assert_eq!(heap.commit_release(release, done), done as u64 * CHUNK);
    // A growth that fails at its last step is undone as fast.
    let failed = mapping(plan(&mut heap, COUNT * CHUNK, Growth::Allowed));
    let done = failed.steps.len() - 1;
    let outcome = Outcome { done, lost: false };
    assert!(failed.commit(&mut heap, outcome).is_none());
    check::conserved(&heap).unwrap();
}
