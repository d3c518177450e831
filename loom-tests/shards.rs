//! Per-thread caches (shards) of one stream.

use super::releases::seal_against_a_free;
use super::*;
use loom::future::block_on;
use loom::thread;
use weirpool::testing::give_threads_caches;

const SMALL: u64 = 4096;

/// Creates a pool as [`pool`](super::pool) does, whose shards have room.
fn roomy_pool(device: &SimDevice) -> Pool {
    let builder = builder(device).tuning(|tuning| tuning.lane_bytes = 4 * SMALL);
    builder.build().unwrap()
}

/// Creates streams with a cache for each thread.
fn sharded_streams<const N: usize>(device: &SimDevice, pool: &Pool) -> [(SimStream, Stream); N] {
    let streams = streams(device, pool);
    for (_, stream) in &streams {
        give_threads_caches(stream);
    }
    streams
}

/// The block is freed to a shard.
#[test]
fn sealing_against_a_free_to_a_shard() {
    model("sealing against a free to a shard", || {
        let device = device();
        let pool = roomy_pool(&device);
        seal_against_a_free(&device, &pool, sharded_streams(&device, &pool), SMALL);
    });
}

/// A block is freed to a shard while a request waits for all memory. The request gets it. Small, so that loom explores
/// all.
#[test]
fn free_to_a_shard_against_a_waiter() {
    model("free to a shard against a waiter", || {
        let device = device();
        let pool = roomy_pool(&device);
        let [(_, a), (_, b)] = sharded_streams(&device, &pool);
        let block = pool.try_allocate(&a, SMALL).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let all = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        freeing.join().unwrap();
        drop(all);
        pool.inspect().check_conserved().unwrap();
    });
}

/// The shard has an entry for the block, so that its lock is all that the free takes.
#[test]
fn further_free_to_a_shard_against_a_waiter() {
    model("further free to a shard against a waiter", || {
        let device = unwatched();
        let pool = roomy_pool(&device);
        let [(_, a), (_, b)] = sharded_streams(&device, &pool);
        let take = || pool.try_allocate(&a, SMALL).unwrap();
        drop(take());
        // An event covers that free: only the next one is left to be covered.
        a.seal().unwrap();
        let block = take();
        let waiting = {
            let pool = pool.clone();
            thread::spawn(move || drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap()))
        };
        drop(block);
        waiting.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// The event is recorded by another thread while the block is freed to a shard that has an entry for it. The stream that
/// gets the memory comes after its use.
#[test]
fn sealing_against_a_further_free_to_a_shard() {
    model("sealing against a further free to a shard", || {
        let device = unwatched();
        let pool = roomy_pool(&device);
        let [(work_a, a), (work_b, b)] = sharded_streams(&device, &pool);
        let take = || pool.try_allocate(&a, SMALL).unwrap();
        drop(take());
        let block = take();
        let taking = {
            let (pool, device, a) = (pool.clone(), device.clone(), a.clone());
            thread::spawn(move || {
                let event = a.event().unwrap();
                b.wait(&event).unwrap();
                if let Ok(block) = pool.try_allocate(&b, 2 * MIB) {
                    run(&work_b, 1);
                    device.advance(Duration::from_micros(9));
                    assert!(work_b.backlog() > 0, "b came before a's last use");
                    drop(block);
                }
            })
        };
        run(&work_a, 10);
        drop(block);
        taking.join().unwrap();
        device.advance(Duration::from_micros(20));
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two threads free to their shards while a request waits for all memory. It gets it. The waiter's own thread is one of
/// them, since loom does not end with three; `free_to_a_shard_against_a_waiter` has the race with the beginning of the
/// wait.
#[test]
fn frees_to_two_shards_against_a_waiter() {
    model("frees to two shards against a waiter", || {
        let device = device();
        let pool = roomy_pool(&device);
        let [(_, a), (_, b)] = sharded_streams(&device, &pool);
        let [first, second] = [0; 2].map(|_| pool.try_allocate(&a, SMALL).unwrap());
        let mut waiting = pool.allocate(&b, 2 * MIB);
        assert!(poll(&mut waiting).is_pending());
        let freeing = thread::spawn(move || drop(first));
        drop(second);
        let all = block_on(waiting).unwrap();
        freeing.join().unwrap();
        drop(all);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two threads allocate and free on one stream, each in its shard or the stream's own cache. No block has two owners,
/// and no count is lost.
#[test]
fn two_shards_of_one_stream() {
    model("two shards of one stream", || {
        let device = device();
        let pool = roomy_pool(&device);
        let [(_, a)] = sharded_streams(&device, &pool);
        drop(pool.try_allocate(&a, SMALL).unwrap());
        let other = {
            let (pool, a) = (pool.clone(), a.clone());
            thread::spawn(move || {
                let block = pool.try_allocate(&a, SMALL).unwrap();
                block.address()
            })
        };
        let block = pool.try_allocate(&a, SMALL).unwrap();
        pool.inspect().check().unwrap();
        other.join().unwrap();
        drop(block);
        let statistics = pool.inspect().statistics();
        assert_eq!((statistics.allocations, statistics.frees), (3, 3));
        assert_eq!(statistics.used.current, 0);
        drop(a);
        device.advance(Duration::from_micros(1));
        pool.maintain().reap().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}
