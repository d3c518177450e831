//! Allocations from a stream's lane: blocks of the requested size, and slightly larger ones.

use crate::common::*;
use std::any::Any;
use std::sync::{Arc, Weak};
use weirpool::device::sim::{Checker, Clock, SimDevice};
use weirpool::*;

const KIB: u64 = 1 << 10;

/// With and without the checker. Without it, blocks take another code path.
const CHECKERS: [Checker; 2] = [Checker::Panic, Checker::Off];

fn with_a_stream(checker: Checker) -> (TestPool, Stream) {
    let device = SimDevice::builder().memory(1 << 30).checker(checker);
    let device = device.clock(Clock::Manual).build();
    let pool = pool(&device, 256 * MIB);
    let (_, stream) = stream(&device, &pool);
    (pool, stream)
}

/// Frees a block and allocates another one. Returns its size and source.
fn after_a_free(of: u64, request: Allocate<'_>, on: (&TestPool, &Stream)) -> (u64, Source) {
    drop(on.0.try_allocate(on.1, of).unwrap());
    let block = request.try_now().unwrap();
    let figures = on.0.inspect().statistics();
    assert_eq!(figures.used.current, block.size());
    assert_eq!(figures.lost_to_rounding, block.size() - block.requested());
    (block.size(), block.source())
}

#[test]
fn block_larger_by_an_eighth_serves_a_request() {
    for (pool, stream) in CHECKERS.map(with_a_stream) {
        let on = (&pool, &stream);
        let ask = |bytes| pool.allocate(&stream, bytes);
        let larger = after_a_free(72 * KIB, ask(64 * KIB), on);
        assert_eq!(larger, (72 * KIB, Source::Lane));
        // A block that is too large by one step stays in the lane.
        let (size, source) = after_a_free(1153 * KIB, ask(1024 * KIB), on);
        assert_eq!(size, 1024 * KIB);
        assert_ne!(source, Source::Lane);
        // The smallest suitable block is taken, and one of the exact size first.
        for sizes in [[110, 105, 100], [100, 110, 105]] {
            let blocks = sizes.map(|size| pool.try_allocate(&stream, size * KIB).unwrap());
            drop(blocks);
            let taken = [100, 100, 100].map(|size| pool.try_allocate(&stream, size * KIB).unwrap());
            let found = taken.each_ref().map(Block::size);
            assert_eq!(found, [100, 105, 110].map(|size| size * KIB));
            assert_eq!(taken.each_ref().map(Block::requested), [100 * KIB; 3]);
        }
        pool.inspect().check_conserved().unwrap();
    }
}

/// A tag's limit counts the requested size, and the lane does not record alignments beyond the pool's.
#[test]
fn tagged_or_aligned_request_gets_its_exact_size() {
    for (pool, stream) in CHECKERS.map(with_a_stream) {
        let on = (&pool, &stream);
        let tagged = pool.allocate(&stream, 64 * KIB).tag(Tag::new("lanes"));
        assert_eq!(after_a_free(72 * KIB, tagged, on).0, 64 * KIB);
        let aligned = pool.allocate(&stream, 65 * KIB).alignment(64 * KIB);
        assert_eq!(after_a_free(72 * KIB, aligned, on).0, 65 * KIB);
        pool.inspect().check_conserved().unwrap();
    }
}

/// A buffer has as many elements as requested. An awaited allocation may get a larger block like an immediate one.
#[test]
fn larger_block_has_no_more_elements() {
    for (pool, stream) in CHECKERS.map(with_a_stream) {
        drop(pool.try_allocate(&stream, 72 * KIB).unwrap());
        let mut buffer = pool.buffer::<u64>(&stream, 8 << 10).try_now().unwrap();
        assert_eq!(buffer.len(), 8 << 10);
        let beyond = buffer.slice_mut(8 << 10..(8 << 10) + 1).map(drop);
        assert_matches!(beyond, Err(CopyError::OutOfBounds { .. }));
        drop(buffer);
        let awaited = now(pool.allocate(&stream, 65 * KIB)).unwrap();
        assert_eq!((awaited.size(), awaited.requested()), (72 * KIB, 65 * KIB));
        drop(awaited);
        let exact = pool.try_allocate(&stream, 72 * KIB).unwrap();
        let found = (exact.requested(), exact.source());
        assert_eq!(found, (72 * KIB, Source::Lane));
        drop(exact);
        assert_eq!(pool.inspect().statistics().lost_to_rounding, 0);
        pool.inspect().check_conserved().unwrap();
    }
}

/// Returns a pool, a stream on which blocks were freed, and a reference that is dead once the pool drops the stream.
fn watched(checker: Checker) -> (TestPool, Stream, Weak<dyn Any + Send + Sync>) {
    let device = SimDevice::builder().memory(1 << 30).checker(checker);
    let device = device.clock(Clock::Manual).build();
    let pool = pool(&device, 256 * MIB);
    let work = device.create_stream();
    let stream = pool.register(&work).unwrap();
    // The first blocks of a size have no slot in the lane yet.
    for _ in 0..2 {
        drop([(); 3].map(|()| pool.try_allocate(&stream, 64 * KIB).unwrap()));
    }
    (pool, stream, Arc::downgrade(&work.keep_alive()))
}

/// Freed blocks in the lane do not keep a stream alive longer than its last handle and block.
#[test]
fn stream_is_dropped_with_its_last_handle_and_block() {
    type Ends = fn(Stream, Block, Block);
    let orders: [Ends; 5] = [
        |stream, one, other| drop((one, other, stream)),
        |stream, one, other| drop((one, stream, other)),
        |stream, one, other| drop((stream, one, other)),
        |stream, one, other| drop((stream.clone(), one, stream, other)),
        // A handle is created again after all were dropped.
        |stream, one, other| {
            drop(stream);
            drop((other.stream(), one, other.stream(), other));
        },
    ];
    for checker in CHECKERS {
        for end in orders {
            let (pool, stream, alive) = watched(checker);
            let [one, other] = [(); 2].map(|()| pool.try_allocate(&stream, 64 * KIB).unwrap());
            end(stream, one, other);
            pool.maintain().reap().unwrap();
            assert!(alive.upgrade().is_none(), "the stream is kept");
        }
    }
}

/// The stream is dropped, too, when the pool's handles are dropped first.
#[test]
fn stream_may_outlive_its_pool() {
    let (pool, stream, alive) = watched(Checker::Off);
    let block = pool.try_allocate(&stream, 64 * KIB).unwrap();
    pool.end_before_its_blocks();
    drop(block);
    assert!(alive.upgrade().is_some());
    drop(stream);
    assert!(alive.upgrade().is_none());
}

/// Allocates and frees a block, and allocates one of that size again. Returns its source.
fn source_of_the_second(pool: &Pool, stream: &Stream, bytes: u64) -> Source {
    drop(pool.try_allocate(stream, bytes).unwrap());
    pool.try_allocate(stream, bytes).unwrap().source()
}

#[test]
fn lane_of_many_bytes_keeps_blocks_of_up_to_an_eighth_of_them() {
    for (lane_bytes, largest) in [
        (8 * MIB, 2 * MIB),
        (64 * MIB, 8 * MIB),
        (256 * MIB, 32 * MIB),
        (4 << 30, 64 * MIB),
    ] {
        let device = manual_builder().memory(8 << 30).build();
        let pool = tuned(&device, 1 << 30, |tuning| tuning.lane_bytes = lane_bytes);
        let (_, stream) = stream(&device, &pool);
        assert_eq!(
            source_of_the_second(&pool, &stream, largest),
            Source::Lane,
            "{lane_bytes}"
        );
        assert_ne!(
            source_of_the_second(&pool, &stream, largest + 4 * KIB),
            Source::Lane,
            "{lane_bytes}"
        );
    }
}

/// Blocks that a lane keeps serve another stream before the pool takes more from the device, or makes it wait.
#[test]
fn blocks_of_a_lane_of_many_bytes_serve_other_streams() {
    for checker in CHECKERS {
        let device = SimDevice::builder().memory(1 << 30).checker(checker);
        let device = device.clock(Clock::Manual).build();
        let pool = tuned(&device, 128 * MIB, |tuning| tuning.lane_bytes = 128 * MIB);
        let ((_, first), (_, second)) = (stream(&device, &pool), stream(&device, &pool));
        let blocks = [(); 8].map(|()| pool.try_allocate(&first, 16 * MIB).unwrap());
        drop(blocks);
        assert_eq!(pool.inspect().statistics().cached_in_lanes, 128 * MIB);
        for bytes in [16 * MIB, 96 * MIB, 128 * MIB] {
            drop(pool.try_allocate(&second, bytes).unwrap());
            assert_eq!(figures(&pool).reserved.current, 128 * MIB, "{bytes}");
        }
    }
}
