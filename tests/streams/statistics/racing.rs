//! Figures that are read while other threads allocate and free.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Allocates on the stream until told to stop, and hands the blocks to a thread that frees them: so the allocations
/// and the frees of a stream are counted by different threads.
fn allocate(pool: &Pool, stream: &Stream, blocks: SyncSender<Block>, stop: &AtomicBool) {
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let bytes = 512 + round % 7 * 1000;
        if pool
            .try_allocate(stream, bytes)
            .is_ok_and(|block| blocks.send(block).is_err())
        {
            return;
        }
    }
}

fn free(blocks: Receiver<Block>) {
    blocks.into_iter().for_each(drop);
}

/// Allocates and hands on what the same thread freed before, and frees what another thread hands on: all of it inside
/// the caches of the threads.
fn swap(
    pool: &Pool,
    stream: &Stream,
    to: SyncSender<Block>,
    from: Receiver<Block>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let is_gone = match pool.try_allocate(stream, 8192) {
            Ok(block) => to.send(block).is_err(),
            Err(_) => false,
        };
        if is_gone {
            return;
        }
        drop(from.try_recv());
    }
}

fn assert_consistent(figures: &Statistics) {
    let Statistics { free, moving, .. } = *figures;
    let [reserved, used, pending, in_use] = [
        figures.reserved,
        figures.used,
        figures.pending,
        figures.in_use,
    ];
    let sum = free + used.current + pending.current + moving;
    assert_eq!(sum, reserved.current, "{figures}");
    assert!(in_use.current <= reserved.current, "{figures}");
    assert!(figures.frees <= figures.allocations, "{figures}");
    assert_eq!(figures.live_blocks, figures.allocations - figures.frees);
    assert!(figures.live_blocks < 1000, "{figures}");
    assert!(figures.lost_to_rounding < MIB, "{figures}");
    for level in [reserved, used, pending, in_use] {
        assert!(level.current <= level.high && level.high <= 64 * MIB);
    }
}

/// Each thread counts in a shard of its own; a reader that read the shards one after another saw more frees than
/// allocations.
#[test]
fn racing_statistics_are_consistent_and_never_below_zero() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = crate::common::stream(&device, &pool);
    let (_, second) = crate::common::stream(&device, &pool);
    [&stream, &second]
        .into_iter()
        .for_each(weirpool::testing::give_threads_caches);
    let stop = AtomicBool::new(false);
    let (pool, stop) = (&pool, &stop);
    std::thread::scope(|threads| {
        // Shards are read in the order of their threads: one pair begins with the allocations, one with the frees.
        let (sender, receiver) = sync_channel(1);
        threads.spawn(|| allocate(pool, &stream, sender, stop));
        threads.spawn(|| free(receiver));
        let (sender, receiver) = sync_channel(1);
        threads.spawn(|| free(receiver));
        threads.spawn(|| allocate(pool, &stream, sender, stop));
        let (sender, receiver) = sync_channel(1);
        threads.spawn(|| free(receiver));
        threads.spawn(|| allocate(pool, &second, sender, stop));
        let (first, second) = (sync_channel(1), sync_channel(1));
        threads.spawn(|| swap(pool, &stream, first.0, second.1, stop));
        threads.spawn(|| swap(pool, &stream, second.0, first.1, stop));
        let _stopped = StopOnDrop(stop);
        let whole = pool.inspect().statistics_scope();
        // The others may not be scheduled at once.
        while whole.read().allocations == 0 {
            std::thread::yield_now();
        }
        for _ in 0..20_000 {
            let scope = pool.inspect().statistics_scope();
            assert_consistent(&pool.inspect().statistics());
            let of_stream = stream.statistics();
            assert!(of_stream.frees <= of_stream.allocations);
            assert!(of_stream.used.current <= 64 * MIB && of_stream.pending <= 64 * MIB);
            let figures = scope.end();
            assert!(figures.allocations < u64::MAX / 2 && figures.frees < u64::MAX / 2);
            assert!(figures.retained() <= 64 * MIB);
        }
        assert!(whole.end().allocations > 0, "something was raced with");
    });
    let figures = pool.inspect().statistics();
    assert_consistent(&figures);
    assert_eq!((figures.live_blocks, figures.used.current), (0, 0));
    assert_eq!(figures.lost_to_rounding, 0);
}

/// Stops the others even if the reader panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
