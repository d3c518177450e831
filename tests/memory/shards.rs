//! Many threads on one stream, each with its own cache (shard).

use crate::common::*;
use std::sync::Barrier;
use weirpool::device::sim::SimDevice;
use weirpool::device::sim::SimStream;
use weirpool::testing::give_threads_caches;
use weirpool::*;

fn sharded_stream(device: &SimDevice, pool: &Pool) -> (SimStream, Stream) {
    let (work, stream) = stream(device, pool);
    give_threads_caches(&stream);
    (work, stream)
}

/// A thread reuses blocks that it freed. Blocks that another thread freed are found only beyond the lanes.
#[test]
fn each_thread_caches_blocks_that_it_freed() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = sharded_stream(&device, &pool);
    let block = pool.try_allocate(&stream, 4096).unwrap();
    let address = block.address();
    use_block(&work, &block, us(10));
    drop(block);
    let take = || pool.try_allocate(&stream, 4096).unwrap();
    let elsewhere = std::thread::scope(|scope| scope.spawn(take).join().unwrap());
    assert_ne!(elsewhere.address(), address);
    let again = take();
    assert_eq!((again.address(), again.source()), (address, Source::Lane));
    drop((again, elsewhere));
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 8192);
    // All caches are flushed, in the order of the stream.
    drop(pool.try_allocate(&stream, 64 * MIB).unwrap());
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    device.advance(us(10));
    pool.maintain().reap().unwrap();
}

/// Shards cache up to a share of the lane. Further blocks go to the stream's own cache, and then to the heap.
#[test]
fn shards_are_bounded() {
    let device = manual();
    let pool = tuned(&device, 64 * MIB, |tuning| tuning.lane_bytes = 4 * MIB);
    let (_, stream) = sharded_stream(&device, &pool);
    let blocks = several(&pool, &stream, 32, MIB / 2);
    drop(blocks);
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 5 * MIB);
    pool.inspect().check().unwrap();
}

/// A request of another stream has an event recorded behind what a shard caches.
#[test]
fn cached_block_of_a_shard_is_sealed_for_another_stream() {
    let device = manual();
    let pool = tuned(&device, 4 * MIB, |tuning| tuning.reuse = only_host_waits());
    let (work, stream) = sharded_stream(&device, &pool);
    let (_, other) = crate::common::stream(&device, &pool);
    let _rest = pool.try_allocate(&other, 3 * MIB).unwrap();
    use_and_free(&pool, (&work, &stream), MIB, us(10));
    assert_eq!(pool.inspect().statistics().cached_in_lanes, MIB);
    let mut waiting = not_ready(pool.allocate(&other, MIB));
    device.advance(us(10));
    pool.maintain().reap().unwrap();
    assert!(poll(&mut waiting).is_ready());
}

/// Several threads use one stream at once. Counts add up, no block has two owners, and all memory returns. The checker
/// watches the order.
#[test]
fn threads_on_one_stream_lose_no_memory() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = sharded_stream(&device, &pool);
    let (_, other) = crate::common::stream(&device, &pool);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (pool, stream, other, work, start) = (&pool, &stream, &other, &work, &start);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                start.wait();
                for _ in 0..2000 {
                    match random.u8(..8) {
                        0..4 => {
                            if let Ok(block) = pool.try_allocate(stream, 1 << random.u32(9..20)) {
                                use_block(work, &block, us(1));
                                held.push(block);
                            }
                        }
                        4..7 if !held.is_empty() => {
                            drop(held.swap_remove(random.usize(..held.len())));
                        }
                        7 if random.u8(..16) == 0 => drop(pool.try_allocate(other, 8 * MIB).ok()),
                        _ => {}
                    }
                }
            });
        }
    });
    let statistics = pool.inspect().statistics();
    assert_eq!(statistics.allocations, statistics.frees);
    assert_eq!((statistics.used.current, statistics.live_blocks), (0, 0));
    assert!(statistics.used.high > 0 && statistics.used.high <= 64 * MIB);
    assert_eq!(stream.statistics().used.current, 0);
    stream.seal().unwrap();
    other.seal().unwrap();
    device.advance(us(1_000_000));
    pool.maintain().reap().unwrap();
    drop(pool.try_allocate(&other, 64 * MIB).unwrap());
    pool.inspect().check_conserved().unwrap();
}

/// A dropped stream returns the blocks that its threads cached.
#[test]
fn dropped_stream_flushes_its_shards() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (_, gone) = sharded_stream(&device, &pool);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| drop(pool.try_allocate(&gone, MIB).unwrap()));
        }
    });
    drop(gone);
    device.advance(us(1));
    pool.maintain().reap().unwrap();
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    let (_, stream) = stream(&device, &pool);
    drop(pool.try_allocate(&stream, 64 * MIB).unwrap());
}
