//! Who gets a block, and who is told.

use super::*;
use loom::future::block_on;
use loom::thread;

/// A free comes while an allocation is joining the queue: it is found by the look, or it is heard.
#[test]
fn release_against_enqueue() {
    model("release against enqueue", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let granted = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        freeing.join().unwrap();
        drop(granted);
        pool.check_conserved().unwrap();
    });
}

/// The same for a small block, which the lane would have kept: the gate is raised before the drain.
#[test]
fn lane_free_against_enqueue() {
    model("lane free against enqueue", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 4096).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let granted = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        freeing.join().unwrap();
        drop(granted);
        pool.check_conserved().unwrap();
    });
}

/// A stream takes a block that is a little larger than what it asks for, at once, while another's request drains the
/// lane and then waits: the block is the one's or goes to the other, and nobody misses it.
#[test]
fn a_larger_block_taken_at_once_against_a_drain() {
    model("a larger block taken at once against a drain", || {
        let device = unwatched();
        let pool = pool_keeping(&device, 8192);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
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
        assert_eq!(pool.statistics().lost_to_rounding, 0);
        pool.check_conserved().unwrap();
    });
}

/// The same for a large one, which the lane would have kept for its stream's next turn.
#[test]
fn shelving_against_enqueue() {
    model("shelving against enqueue", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        for _ in 0..2 {
            drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        }
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let granted = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        freeing.join().unwrap();
        drop(granted);
        pool.check_conserved().unwrap();
    });
}

/// Two reach for what a stream keeps for its next turn, complete, which does for both: neither is refused, whoever
/// takes it back.
#[test]
fn two_streams_robbing_one_lane() {
    model("two streams robbing one lane", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let (_, c) = stream(&device, &pool);
        for _ in 0..2 {
            drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        }
        a.seal().unwrap();
        pool.reap().unwrap();
        assert_eq!(pool.statistics().cached_in_lanes, 2 * MIB);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&b, MIB).unwrap())
        };
        let mine = pool.try_allocate(&c, MIB).unwrap();
        let theirs = other.join().unwrap();
        drop((mine, theirs));
        pool.check_conserved().unwrap();
    });
}

/// A waiter is dropped while it is granted: the grant comes back, whoever had it last.
#[test]
fn cancel_against_grant() {
    model("cancel against grant", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut waiting = pool.allocate(&b, 2 * MIB);
        assert!(poll(&mut waiting).is_pending());
        let granting = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(block);
                pool.reap().unwrap();
            })
        };
        drop(waiting);
        granting.join().unwrap();
        assert_eq!(pool.statistics().waits.waiting, 0);
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.check_conserved().unwrap();
    });
}

/// Two streams reach for the one free block: one gets it, the other is told there is none.
#[test]
fn two_streams_stealing_one_block() {
    model("two streams stealing one block", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
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
        pool.check_conserved().unwrap();
    });
}

/// Two waiters, one block: the second is granted after the first, whoever drives.
#[test]
fn two_waiters_one_block() {
    model("two waiters, one block", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
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
        pool.check_conserved().unwrap();
    });
}

/// One thread reaps and asks for nothing; another waits: it is served by what was reaped.
#[test]
fn reap_elsewhere_against_enqueue() {
    model("harvest elsewhere against enqueue", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        drop(block);
        a.seal().unwrap();
        let trimming = {
            let pool = pool.clone();
            thread::spawn(move || pool.trim_to(2 * MIB).unwrap())
        };
        let granted = block_on(pool.allocate(&b, 2 * MIB)).unwrap();
        trimming.join().unwrap();
        drop(granted);
        pool.check_conserved().unwrap();
    });
}

/// A stream's last handle goes while another thread seals it: its work is waited for all the same.
#[test]
fn retire_against_seal() {
    model("retire against seal", || {
        let device = device();
        let pool = pool(&device);
        let (work, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 4096).unwrap();
        run(&work, 10);
        drop(block);
        let retiring = thread::spawn(move || drop(a));
        let got = pool.try_allocate(&b, 2 * MIB);
        assert!(got.is_err(), "a's work runs still: {got:?}");
        retiring.join().unwrap();
        device.advance(Duration::from_micros(20));
        pool.check_conserved().unwrap();
    });
}

/// Two first allocations at once: what one takes from the device serves the other.
#[test]
fn growth_elsewhere_against_enqueue() {
    model("growth elsewhere against enqueue", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let growing = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&a, 4096).ok())
        };
        let mine = block_on(pool.allocate(&b, 4096)).unwrap();
        let theirs = growing.join().unwrap();
        drop((mine, theirs));
        pool.check_conserved().unwrap();
    });
}
