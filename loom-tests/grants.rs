//! Grants and wake-ups.

use super::*;
use loom::future::block_on;
use loom::thread;

/// Frees a block while an allocation of all memory joins the queue.
fn free_against_enqueue(pool: &Pool, block: Block, stream: &Stream) {
    let freeing = thread::spawn(move || drop(block));
    let granted = block_on(pool.allocate(stream, 2 * MIB)).unwrap();
    freeing.join().unwrap();
    drop(granted);
    pool.inspect().check_conserved().unwrap();
}

/// A block is freed while an allocation joins the queue. The allocation finds it by searching, or is woken.
#[test]
fn release_against_enqueue() {
    model("release against enqueue", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        free_against_enqueue(&pool, block, &b);
    });
}

/// A small block, which the lane would cache, is freed while an allocation joins the queue: the gate closes first.
#[test]
fn lane_free_against_enqueue() {
    model("lane free against enqueue", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 4096).unwrap();
        free_against_enqueue(&pool, block, &b);
    });
}

/// A stream takes a slightly larger block from its lane, while another stream's request flushes the lane and then
/// waits. One of the two gets the block, and the other does not miss it.
#[test]
fn larger_block_from_the_lane_against_a_flush() {
    model("larger block from the lane against a flush", || {
        let device = unwatched();
        let pool = builder(&device)
            .tuning(|tuning| tuning.lane_bytes = 8192)
            .build()
            .unwrap();
        let [(_, a), (_, b)] = streams(&device, &pool);
        drop(pool.try_allocate(&a, 4608).unwrap());
        let taking = {
            let pool = pool.clone();
            thread::spawn(move || {
                let taken = pool.try_allocate(&a, 4096).ok();
                if let Some(block) = &taken {
                    assert!([4096, 4608].contains(&block.size()), "{block:?}");
                    assert_eq!(block.requested(), 4096);
                }
                drop(taken);
                a
            })
        };
        let granted = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        let _a = taking.join().unwrap();
        drop(granted);
        assert_eq!(pool.inspect().statistics().lost_to_rounding, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Returns a pool, and streams of which the first keeps its block of 2 MiB.
fn with_large_blocks<const N: usize>() -> (Pool, [Stream; N]) {
    let device = device();
    let builder = builder(&device).tuning(|tuning| tuning.lane_bytes = MIB / 4);
    let pool = builder.build().unwrap();
    let streams = streams(&device, &pool).map(|(_, stream)| stream);
    for _ in 0..2 {
        drop(pool.try_allocate(&streams[0], 2 * MIB).unwrap());
    }
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 2 * MIB);
    (pool, streams)
}

/// A large block, which the lane would cache, is freed while an allocation joins the queue.
#[test]
fn large_block_free_against_enqueue() {
    model("large block free against enqueue", || {
        let (pool, [a, b]) = with_large_blocks();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        free_against_enqueue(&pool, block, &b);
    });
}

/// Two streams allocate from a complete block that a third one caches, and that is large enough for both. Neither is
/// refused, whichever of them flushes the cache.
#[test]
fn two_streams_flushing_one_lane() {
    model("two streams flushing one lane", || {
        let (pool, [a, b, c]) = with_large_blocks();
        a.seal().unwrap();
        pool.maintain().reap().unwrap();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&b, MIB).unwrap())
        };
        let mine = pool.try_allocate(&c, MIB).unwrap();
        let theirs = other.join().unwrap();
        drop((mine, theirs));
        pool.inspect().check_conserved().unwrap();
    });
}

/// A waiter is dropped while it is granted. The grant returns to the pool, whichever thread held it last.
#[test]
fn cancel_against_grant() {
    model("cancel against grant", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut waiting = pool.allocate(&b, 2 * MIB);
        assert!(poll(&mut waiting).is_pending());
        let granting = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(block);
                pool.maintain().reap().unwrap();
            })
        };
        drop(waiting);
        granting.join().unwrap();
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A waiter is dropped while another thread serves it. The check for conservation waits for what that thread holds.
#[test]
fn conservation_is_checked_against_a_cancelled_grant() {
    model("conservation against a cancelled grant", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut waiting = pool.allocate(&b, 2 * MIB);
        assert!(poll(&mut waiting).is_pending());
        drop(block);
        let granting = {
            let pool = pool.clone();
            thread::spawn(move || pool.maintain().reap().map(drop).unwrap())
        };
        drop(waiting);
        pool.inspect().check_conserved().unwrap();
        granting.join().unwrap();
    });
}

/// Two streams allocate the only free block. One gets it, and the other is refused.
#[test]
fn two_streams_taking_one_block() {
    model("two streams taking one block", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        drop(block);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&b, 2 * MIB).ok())
        };
        let mine = pool.try_allocate(&a, 2 * MIB).ok();
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "{mine:?} {theirs:?}");
        drop((mine, theirs));
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two waiters want one block. The second is granted after the first, whichever thread serves the queue.
#[test]
fn two_waiters_one_block() {
    model("two waiters one block", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                let block = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
                drop(block);
            })
        };
        drop(block);
        let mine = block_on(pool.allocate(&a, 2 * MIB)).unwrap();
        drop(mine);
        other.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// One thread reaps events while another waits. The waiter gets the reaped memory.
#[test]
fn reap_elsewhere_against_enqueue() {
    model("reap elsewhere against enqueue", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        drop(block);
        a.seal().unwrap();
        let trimming = {
            let pool = pool.clone();
            thread::spawn(move || pool.trim_to(2 * MIB).unwrap())
        };
        let granted = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        let _ = trimming.join().unwrap();
        drop(granted);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A stream's last handle is dropped while another thread seals the stream. Its work is still waited for.
#[test]
fn retire_against_seal() {
    model("retire against seal", || {
        let (device, pool, [(work, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 4096).unwrap();
        run(&work, 10);
        drop(block);
        let retiring = thread::spawn(move || drop(a));
        let got = pool.try_allocate(&b, 2 * MIB);
        assert!(got.is_err(), "a's work runs still: {got:?}");
        retiring.join().unwrap();
        device.advance(Duration::from_micros(20));
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two threads make the first allocation at once. Memory that one takes from the device serves the other.
#[test]
fn growth_elsewhere_against_enqueue() {
    model("growth elsewhere against enqueue", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let growing = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&a, 4096).ok())
        };
        let mine = block_on(pool.allocate(&b, 4096)).unwrap();
        let theirs = growing.join().unwrap();
        drop((mine, theirs));
        pool.inspect().check_conserved().unwrap();
    });
}
