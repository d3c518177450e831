//! What a stream has from its lane: blocks of the same size, and those that are a little larger.

mod common;

use common::*;
use weirpool::*;

const KIB: u64 = 1 << 10;

fn with_a_stream() -> (Pool, Stream) {
    let device = manual();
    let pool = pool(&device, 256 * MIB);
    let (_, stream) = stream(&device, &pool);
    (pool, stream)
}

/// Frees one block, asks for another: its size, and whence it is.
fn after_a_free(of: u64, request: Allocate<'_>, on: (&Pool, &Stream)) -> (u64, Rung) {
    drop(on.0.try_allocate(on.1, of).unwrap());
    let block = request.try_now().unwrap();
    let figures = on.0.statistics();
    assert_eq!(figures.used.current, block.size());
    assert_eq!(figures.lost_to_rounding, block.size() - block.requested());
    (block.size(), block.rung())
}

#[test]
fn a_block_that_is_larger_by_an_eighth_does() {
    let (pool, stream) = with_a_stream();
    let on = (&pool, &stream);
    let ask = |bytes| pool.allocate(&stream, bytes);
    let larger = after_a_free(72 * KIB, ask(64 * KIB), on);
    assert_eq!(larger, (72 * KIB, Rung::Lane));
    // What is too large by a step stays where it is.
    let (size, rung) = after_a_free(1153 * KIB, ask(1024 * KIB), on);
    assert_eq!(size, 1024 * KIB);
    assert_ne!(rung, Rung::Lane);
    // Of several the smallest, and one of the size before all.
    for sizes in [[110, 105, 100], [100, 110, 105]] {
        let blocks = sizes.map(|size| pool.try_allocate(&stream, size * KIB).unwrap());
        drop(blocks);
        let taken = [100, 100, 100].map(|size| pool.try_allocate(&stream, size * KIB).unwrap());
        assert_eq!(
            taken.each_ref().map(Block::size),
            [100, 105, 110].map(|size| size * KIB)
        );
        assert_eq!(taken.each_ref().map(Block::requested), [100 * KIB; 3]);
    }
    pool.check_conserved().unwrap();
}

/// A tag's limit counts what was asked for, and alignment beyond the pool's is not what a lane knows of.
#[test]
fn who_has_a_tag_or_an_alignment_gets_its_size() {
    let (pool, stream) = with_a_stream();
    let on = (&pool, &stream);
    let tagged = pool.allocate(&stream, 64 * KIB).tag(Tag::new("lanes"));
    assert_eq!(after_a_free(72 * KIB, tagged, on).0, 64 * KIB);
    let aligned = pool.allocate(&stream, 65 * KIB).alignment(64 * KIB);
    assert_eq!(after_a_free(72 * KIB, aligned, on).0, 65 * KIB);
    pool.check_conserved().unwrap();
}
