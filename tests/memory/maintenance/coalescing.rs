//! Coalescing: free memory becomes one range.

use super::*;
use weirpool::device::sim::Operation;

/// A pool without caches that coalesces by a heuristic, and a stream.
fn coalescing(device: &SimDevice, by: CoalesceHeuristic) -> (TestPool, SimStream, Stream) {
    let pool = tuned(device, 64 * MIB, |tuning| {
        tuning.coalesce = Some(by);
        tuning.lane_bytes = 0;
    });
    let (work, stream) = stream(device, &pool);
    (pool, work, stream)
}

/// Umpire `coalesce`: all free memory becomes one range, and used memory keeps its contents.
#[test]
fn coalescing_makes_one_range_and_moves_no_used_memory() {
    for device in devices() {
        let pool = tuned(&device, 64 * MIB, |tuning| tuning.lane_bytes = 0);
        let (work, stream) = stream(&device, &pool);
        let kept = every_other_one(&pool, &stream, 16);
        for (block, value) in kept.iter().zip(1..) {
            let (address, bytes) = (block.address(), block.size());
            let fill = Operation::new(us(1)).writes(address, bytes);
            work.submit(fill.run(move |memory| memory.fill(address, bytes, value)));
        }
        device.advance_to_end();
        pool.maintain().reap().unwrap();
        let before = pool.inspect().statistics();
        let seen = (before.releasable_blocks, before.releasable_bytes);
        assert_eq!(seen, (8, 8 * CHUNK));
        assert_eq!(pool.maintain().coalesce().unwrap(), 8 * CHUNK);
        let after = pool.inspect().statistics();
        let seen = (after.releasable_blocks, after.largest_free);
        assert_eq!(seen, (1, 8 * CHUNK));
        let seen = (before.reserved.current, before.in_use.current);
        assert_eq!(seen, (after.reserved.current, after.in_use.current));
        for (block, value) in kept.iter().zip(1..) {
            let mut bytes = vec![0; CHUNK as usize];
            device.read(block.address(), &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == value));
        }
        let whole = pool.try_allocate(&stream, 8 * CHUNK).unwrap();
        assert_eq!(whole.source(), Source::Free);
        drop((whole, kept));
        pool.inspect().check().unwrap();
    }
}

/// Memory that is contiguous already costs no memory calls, however often it is coalesced.
#[test]
fn coalescing_again_does_nothing() {
    for device in devices() {
        let pool = tuned(&device, 64 * MIB, |tuning| tuning.lane_bytes = 0);
        let (_, stream) = stream(&device, &pool);
        let _kept = every_other_one(&pool, &stream, 16);
        device.advance_to_end();
        pool.maintain().coalesce().unwrap();
        let calls = memory_calls(&device);
        for _ in 0..5 {
            assert_eq!(pool.maintain().coalesce().unwrap(), 8 * CHUNK);
        }
        assert_eq!(memory_calls(&device), calls);
    }
}

/// Pending memory is neither moved nor released. Memory that has completed meanwhile is found.
#[test]
fn pending_memory_is_left_alone_until_it_is_complete() {
    for device in devices() {
        let pool = tuned(&device, 64 * MIB, |tuning| tuning.lane_bytes = 0);
        let (work, stream) = stream(&device, &pool);
        let take = |_| pool.try_allocate(&stream, CHUNK).unwrap();
        let blocks: Vec<_> = (0..8).map(take).collect();
        use_all(&work, &blocks, us(100));
        let kept: Vec<_> = blocks.into_iter().step_by(2).collect();
        let calls = memory_calls(&device);
        assert_eq!(pool.maintain().coalesce().unwrap(), 0);
        assert_eq!(pool.trim_to(0).unwrap().released, 0);
        assert_eq!(memory_calls(&device), calls);
        device.advance_to_end();
        assert_eq!(
            pool.maintain().coalesce().unwrap(),
            4 * CHUNK,
            "coalescing polls for completion, without a call in between"
        );
        drop(kept);
        device.assert_ordered();
    }
}

/// A heuristic is called some time after frees, and the free itself makes no memory call.
#[test]
fn heuristic_coalesces_without_a_call() {
    for device in devices() {
        let (pool, _, stream) = coalescing(&device, CoalesceHeuristic::blocks_releasable(3));
        let take = |_| pool.try_allocate(&stream, CHUNK).unwrap();
        let mut blocks: Vec<_> = (0..16).map(take).collect();
        for n in 1..=3 {
            drop(blocks.remove(n));
        }
        let_pass(&device, 3);
        assert_eq!(figures(&pool).releasable_blocks, 3, "too few blocks");
        let calls = memory_calls(&device);
        drop(blocks.remove(4));
        drop(blocks.remove(5));
        assert_eq!(memory_calls(&device), calls);
        let_pass(&device, 3);
        let figures = pool.inspect().statistics();
        let seen = (figures.releasable_blocks, figures.largest_free);
        assert_eq!(seen, (1, 5 * CHUNK));
        pool.inspect().check().unwrap();
    }
}

/// A heuristic by percent shrinks to the high-water mark. A custom one may choose any target.
#[test]
fn heuristics_shrink_to_the_mark_and_may_be_custom() {
    for own in [false, true] {
        let device = manual();
        let heuristic = if own {
            CoalesceHeuristic::new(|figures| figures.in_use.current)
        } else {
            CoalesceHeuristic::percent_releasable_hwm(75)
        };
        let (pool, _, stream) = coalescing(&device, heuristic);
        let blocks = several(&pool, &stream, 16, CHUNK);
        drop(blocks);
        pool.maintain().reap().unwrap();
        pool.inspect().reset_high_water_marks();
        let _small = pool.try_allocate(&stream, CHUNK).unwrap();
        let other = pool.try_allocate(&stream, 3 * CHUNK).unwrap();
        drop(other);
        let_pass(&device, 1);
        let_pass(&device, 1);
        let left = if own { CHUNK } else { 4 * CHUNK };
        assert_eq!(figures(&pool).reserved.current, left, "own: {own}");
        pool.inspect().check().unwrap();
    }
}

/// Umpire#906: a high-water mark that is no multiple of the granularity must not cause reallocation at every turn.
/// Umpire#846: coalescing and freeing must not recurse without end.
#[test]
fn odd_mark_does_not_cause_reallocation_at_every_turn() {
    for device in devices() {
        let pool = tuned(&device, 256 * MIB, |tuning| {
            tuning.coalesce = Some(CoalesceHeuristic::percent_releasable_hwm(100));
            tuning.lane_bytes = 0;
        });
        let (work, stream) = stream(&device, &pool);
        let mut calls = Vec::new();
        for _ in 0..20 {
            let blocks = [3 * MIB + 512, 5 * MIB + 1536, 777, 9 * MIB + 4608]
                .map(|bytes| pool.try_allocate(&stream, bytes).unwrap());
            use_all(&work, &blocks, us(5));
            drop(blocks);
            let_pass(&device, 2);
            calls.push(memory_calls(&device));
        }
        assert_eq!(calls[5], calls[19], "{calls:?}");
    }
}

/// Coalescing is deferred while a request waits, and takes place afterwards.
#[test]
fn coalescing_is_deferred_while_a_request_waits() {
    let device = manual();
    let pool = tuned(&device, 16 * CHUNK, |tuning| {
        tuning.coalesce = Some(CoalesceHeuristic::blocks_releasable(1));
        tuning.lane_bytes = 0;
    });
    let (_, stream) = stream(&device, &pool);
    let kept = every_other_one(&pool, &stream, 16);
    let waiter = not_ready(pool.allocate(&stream, 16 * CHUNK));
    let_pass(&device, 3);
    assert_eq!(pool.inspect().statistics().releasable_blocks, 8);
    drop(waiter);
    let_pass(&device, 3);
    assert_eq!(pool.inspect().statistics().releasable_blocks, 1);
    drop(kept);
}

/// The pool grows to the target of a heuristic once: to its capacity at most.
#[test]
fn heuristic_grows_the_pool_to_its_target() {
    type Heuristic = fn() -> CoalesceHeuristic;
    let own: Heuristic = || CoalesceHeuristic::new(|_| 12 * CHUNK);
    let too_large: Heuristic = || CoalesceHeuristic::new(|_| u64::MAX);
    let mark: Heuristic = || CoalesceHeuristic::blocks_releasable_hwm(1);
    // The chunks that are allocated, every other one of which is kept, the most that were in use, and the target.
    for (name, heuristic, chunks, high, target) in [
        ("its own", own, 8, 8, 12),
        ("above the capacity", too_large, 16, 16, 32),
        ("the high-water mark", mark, 8, 16, 16),
    ] {
        for device in devices() {
            let (pool, _, stream) = coalescing(&device, heuristic());
            if high > chunks {
                drop(pool.try_allocate(&stream, high * CHUNK).unwrap());
                device.advance_to_end();
                let _ = pool.trim_to(0).unwrap();
            }
            let _kept = every_other_one(&pool, &stream, chunks as usize);
            let_pass(&device, 6);
            let figures = figures(&pool);
            assert_eq!(figures.in_use.high, high * CHUNK, "{name}");
            assert_eq!(figures.reserved.current, target * CHUNK, "{name}");
            let largest = (target - chunks / 2) * CHUNK;
            assert_eq!(figures.largest_free, largest, "{name}");
            let calls = memory_calls(&device);
            let_pass(&device, 20);
            assert_eq!(memory_calls(&device), calls, "{name}: it grows once");
            pool.inspect().check().unwrap();
        }
    }
}

/// The memory that remains after shrinking is one range, even if parts of it had to be released for that.
#[test]
fn shrunk_pool_is_one_range() {
    for device in devices() {
        let (pool, _, stream) = coalescing(&device, CoalesceHeuristic::new(|_| 4 * CHUNK));
        let mut blocks: Vec<_> = (0..16)
            .map(|_| Some(pool.try_allocate(&stream, CHUNK).unwrap()))
            .collect();
        // One chunk is used; the free ranges have 1, 6 and 8 chunks.
        let used = blocks[1].take();
        let other = blocks[8].take();
        blocks.clear();
        drop(other);
        let_pass(&device, 1);
        let figures = pool.inspect().statistics();
        assert_eq!(figures.reserved.current, 4 * CHUNK);
        assert_eq!(figures.largest_free, 3 * CHUNK);
        drop(used);
        pool.inspect().check().unwrap();
    }
}

/// Memory that is being coalesced does not count as used in the high-water marks.
#[test]
fn coalescing_does_not_count_as_use() {
    for device in devices() {
        let pool = tuned(&device, 64 * MIB, |tuning| {
            tuning.initial_size = 4 * CHUNK;
            tuning.lane_bytes = 0;
        });
        assert_eq!(pool.inspect().statistics().used.high, 0);
        let (_, stream) = stream(&device, &pool);
        let kept = every_other_one(&pool, &stream, 16);
        device.advance_to_end();
        pool.inspect().reset_high_water_marks();
        pool.maintain().coalesce().unwrap();
        assert_eq!(pool.inspect().statistics().used.high, 8 * CHUNK);
        assert_eq!(pool.inspect().statistics().in_use.high, 8 * CHUNK);
        drop(kept);
        pool.inspect().check().unwrap();
    }
}

/// Small blocks go to caches when they are freed, and the heuristic counts them.
#[test]
fn percent_releasable_fires_for_small_blocks() {
    for device in devices() {
        let pool = tuned(&device, 64 * MIB, |tuning| {
            tuning.coalesce = Some(CoalesceHeuristic::percent_releasable(100))
        });
        let (_, stream) = stream(&device, &pool);
        let blocks = several(&pool, &stream, 12, MIB / 2);
        // Without the heuristic, the free memory would stay scattered.
        let_pass(&device, 20);
        drop(blocks);
        assert!(figures(&pool).cached_in_lanes > 0, "they stay in a cache");
        let_pass(&device, 6);
        let statistics = pool.inspect().statistics();
        assert_eq!(statistics.cached_in_lanes, 0);
        assert_eq!(statistics.largest_free, statistics.reserved.current);
    }
}

/// Umpire `percent_releasable(100)`: fires once no block lives, though lanes cache the small blocks and their stream is
/// not idle.
#[test]
fn heuristic_of_100_percent_fires_for_small_blocks_that_lanes_cache() {
    for device in devices() {
        let pool = tuned(&device, 64 * MIB, |tuning| {
            tuning.coalesce = Some(CoalesceHeuristic::percent_releasable_hwm(100))
        });
        let (_, stream) = stream(&device, &pool);
        let take = |bytes: u64| pool.try_allocate(&stream, bytes).unwrap();
        // The most that was in use: the heuristic grows the pool to it, in one block.
        drop(take(32 * MIB));
        assert_eq!(pool.trim_to(0).unwrap().reserved, 0);
        let mut blocks: Vec<_> = (0..32).map(|_| take(64 << 10)).collect();
        let small = pool.inspect().statistics().reserved.current;
        assert!(small < 32 * MIB);
        let kept = blocks.remove(0);
        drop(blocks);
        for _ in 0..3 {
            drop(take(64 << 10)); // the stream is not idle
            let_pass(&device, 1);
        }
        assert_eq!(figures(&pool).reserved.current, small, "a block lives");
        drop(kept);
        for _ in 0..3 {
            drop(take(64 << 10));
            let_pass(&device, 1);
        }
        let figures = pool.inspect().statistics();
        assert_eq!(figures.used.current, 0);
        let seen = (figures.reserved.current, figures.largest_free);
        assert_eq!(seen, (32 * MIB, 32 * MIB));
        let calls = memory_calls(&device);
        let_pass(&device, 5);
        assert_eq!(memory_calls(&device), calls, "nothing is due any more");
        pool.inspect().check().unwrap();
    }
}

/// All of the memory is one free piece, which is larger than the mark.
#[test]
fn high_water_mark_heuristic_shrinks_one_free_piece() {
    for device in devices() {
        let pool = tuned(&device, 128 * MIB, |tuning| {
            tuning.coalesce = Some(CoalesceHeuristic::percent_releasable_hwm(100));
            tuning.lane_bytes = 0;
        });
        let (_, stream) = stream(&device, &pool);
        drop(pool.try_allocate(&stream, 100 * MIB).unwrap());
        pool.maintain().reap().unwrap();
        pool.inspect().reset_high_water_marks();
        drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
        let_pass(&device, 4);
        let reserved = || pool.inspect().statistics().reserved.current;
        let seen = (reserved(), figures(&pool).largest_free);
        assert_eq!(seen, (8 * MIB, 8 * MIB));
        let calls = memory_calls(&device);
        drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
        let_pass(&device, 20);
        assert_eq!((reserved(), memory_calls(&device)), (8 * MIB, calls));
    }
}
