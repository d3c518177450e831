//! Frees, their tickets, and the events that prove them.

use super::*;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use weirpool::device::PoolAttribute;
use weirpool::{Source, Unordered};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// A block is freed while an event closes the ticket. Memory that another stream gets by waiting for the event comes
/// after the freeing stream's work.
pub(super) fn seal_against_a_free(
    device: &SimDevice,
    pool: &Pool,
    [(work_a, a), (work_b, b)]: [(SimStream, Stream); 2],
    bytes: u64,
) {
    let block = pool.try_allocate(&a, bytes).unwrap();
    let freeing = thread::spawn(move || {
        run(&work_a, 10);
        drop(block);
    });
    let event = a.event().unwrap();
    b.wait(&event).unwrap();
    if let Ok(block) = pool.try_allocate(&b, 2 * MIB) {
        assert_ne!(block.source(), Source::Free, "a's work still runs");
        run(&work_b, 1);
        device.advance(Duration::from_micros(9));
        assert!(work_b.backlog() > 0, "b came before a's last use");
        drop(block);
    }
    freeing.join().unwrap();
    device.advance(Duration::from_micros(20));
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn sealing_against_a_free() {
    model("sealing against a free", || {
        let device = device();
        let pool = pool(&device);
        seal_against_a_free(&device, &pool, streams(&device, &pool), 2 * MIB);
    });
}

/// Two threads seal one stream. Each ticket is covered by an event recorded after it was closed.
#[test]
fn two_sealers() {
    model("two sealers", || {
        let (_, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, MIB).unwrap();
        let other = pool.try_allocate(&a, MIB).unwrap();
        let sealing = {
            let a = a.clone();
            thread::spawn(move || {
                drop(block);
                a.seal().unwrap();
            })
        };
        drop(other);
        a.seal().unwrap();
        sealing.join().unwrap();
        pool.maintain().reap().unwrap();
        assert_eq!(pool.inspect().statistics().pending.current, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A deallocation is awaited while another thread reaps. It completes once, and its future is woken.
#[test]
fn deallocation_against_reap() {
    model("deallocation against reap", || {
        let (device, pool, [(work, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        let freed = block.deallocate();
        let reaping = {
            let (pool, device) = (pool.clone(), device.clone());
            thread::spawn(move || {
                device.advance(Duration::from_micros(10));
                pool.maintain().reap().unwrap();
            })
        };
        block_on(freed).unwrap();
        reaping.join().unwrap();
        assert_eq!(pool.inspect().statistics().pending.current, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// The last handles are dropped by two threads at once. All memory is released to the device, once.
#[test]
fn last_handles_from_two_threads() {
    model("last handles from two threads", || {
        let (device, pool, [(work, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        let dropping = thread::spawn(move || drop(block));
        drop((a, pool));
        dropping.join().unwrap();
        assert!(device.counters().physical_in_use > 0, "the work runs still");
        device.advance(Duration::from_micros(10));
        assert_eq!(device.counters().physical_in_use, 0);
    });
}

/// Two threads reap one completion. The block becomes free once.
#[test]
fn completion_reaped_by_two_threads() {
    model("completion reaped by two threads", || {
        let (device, pool, [(work, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        drop(block);
        a.seal().unwrap();
        device.advance(Duration::from_micros(10));
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.maintain().reap().unwrap())
        };
        let mine = pool.maintain().reap().unwrap();
        let theirs = other.join().unwrap();
        assert!(mine || theirs, "one of the two saw it");
        assert_eq!(pool.inspect().statistics().free, 2 * MIB);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two threads reap a stream of which the first of three tickets is complete. Neither takes another ticket for
/// complete: the newest is queried, and the one in the middle must not be taken for the oldest.
#[test]
fn two_reapers_of_a_half_complete_stream() {
    model("two reapers of a half complete stream", || {
        let (device, pool, [(work, a)]) = start();
        let [first, second, third] =
            [MIB, MIB / 2, MIB / 2].map(|bytes| pool.try_allocate(&a, bytes).unwrap());
        drop(first);
        a.seal().unwrap();
        run(&work, 10);
        for block in [second, third] {
            drop(block);
            a.seal().unwrap();
        }
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.maintain().reap().unwrap())
        };
        pool.maintain().reap().unwrap();
        other.join().unwrap();
        let statistics = pool.inspect().statistics();
        assert_eq!((statistics.free, statistics.pending.current), (MIB, MIB));
        device.advance(Duration::from_micros(10));
        pool.inspect().check_conserved().unwrap();
    });
}

/// The newest of several tickets is queried first, while another thread adds a further ticket and queries it. The
/// further ticket does not become complete by the results of the others.
#[test]
fn query_of_the_newest_event_against_a_seal() {
    model("query of the newest event against a seal", || {
        let (device, pool, [(work, a)]) = start();
        let [first, second, third] = [(); 3].map(|()| pool.try_allocate(&a, MIB / 2).unwrap());
        for block in [first, second] {
            drop(block);
            a.seal().unwrap();
        }
        let sealing = {
            let pool = pool.clone();
            thread::spawn(move || {
                run(&work, 10);
                drop(third);
                a.seal().unwrap();
                pool.maintain().reap().unwrap();
                a
            })
        };
        pool.maintain().reap().unwrap();
        let _a = sealing.join().unwrap();
        assert_eq!(pool.inspect().statistics().pending.current, MIB / 2);
        device.advance(Duration::from_micros(10));
        pool.maintain().reap().unwrap();
        assert_eq!(pool.inspect().statistics().pending.current, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A block is freed into a lane while another stream's allocation flushes the lane.
#[test]
fn lane_free_against_a_flush() {
    model("lane free against a flush", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let [first, second] = [(); 2].map(|()| pool.try_allocate(&a, 4096).unwrap());
        drop(first);
        let freeing = thread::spawn(move || drop(second));
        drop(pool.try_allocate(&b, 2 * MIB));
        freeing.join().unwrap();
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A stream's last handle is dropped while another thread reaps the stream.
#[test]
fn dropped_stream_against_reap() {
    model("dropped stream against reap", || {
        let (_, pool, [(work, a), (_, b)]) = start();
        drop(pool.try_allocate(&a, 4096).unwrap());
        let leaving = thread::spawn(move || drop((a, work)));
        pool.maintain().reap().unwrap();
        leaving.join().unwrap();
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A use on a further stream is declared while the earlier life of the memory, on its own stream, is reaped.
#[test]
fn used_on_against_reap() {
    model("used on against reap", || {
        let (device, pool, [(work_a, a), (work_b, b)]) = start();
        let earlier = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work_a, 10);
        drop(earlier);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let reaping = {
            let pool = pool.clone();
            thread::spawn(move || pool.maintain().reap().unwrap())
        };
        b.record_use(Unordered::UntilFreed(&block)).unwrap();
        run(&work_b, 1);
        device.advance(Duration::from_micros(9));
        assert!(
            work_b.backlog() > 0,
            "b came before the earlier life had ended"
        );
        reaping.join().unwrap();
        device.advance(Duration::from_micros(10));
        drop(block);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two streams grow the pool at once. The capacity is used once.
#[test]
fn two_growers() {
    model("two growers", || {
        let (device, pool, [(_, a), (_, b)]) = start();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&b, 2 * MIB).ok())
        };
        let mine = pool.try_allocate(&a, 2 * MIB).ok();
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some());
        assert_eq!(device.counters().physical_in_use, 2 * MIB);
        drop((mine, theirs));
        pool.inspect().check_conserved().unwrap();
    });
}

/// Memory is trimmed while a stream allocates it. It is either released or granted.
#[test]
fn trim_against_allocate() {
    model("trim against allocate", || {
        let (_, pool, [(_, a)]) = start();
        drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        let trimming = {
            let pool = pool.clone();
            thread::spawn(move || pool.trim_to(0).unwrap())
        };
        let mine = pool.try_allocate(&a, 2 * MIB).ok();
        let released = trimming.join().unwrap().released;
        assert!(mine.is_some() || released > 0);
        drop(mine);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two further streams read a shared block at once, each after its writer. The last handle is dropped on either thread.
/// No stream gets the memory before both reads are complete.
#[test]
fn readers_of_a_shared_block() {
    model("readers of a shared block", || {
        let (device, pool, [(work_a, a), (work_b, b), (work_c, c)]) = start();
        let mut block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let _argument = a.record_use(&mut block).unwrap();
        run(&work_a, 10);
        let shared = Arc::new(block);
        let reading = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _argument = b.record_use(&*shared).unwrap();
                run(&work_b, 5);
                drop(shared);
                (work_b, b)
            })
        };
        let _argument = c.record_use(&*shared).unwrap();
        run(&work_c, 7);
        drop(shared);
        let (work_b, b) = reading.join().unwrap();
        device.advance(Duration::from_micros(9));
        assert!(work_b.backlog() > 0 && work_c.backlog() > 0);
        device.advance(Duration::from_micros(7));
        assert!(work_c.backlog() > 0);
        assert!(pool.try_allocate(&b, 2 * MIB).is_err());
        device.advance(Duration::from_micros(1));
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A free is passed on to a pool of the driver while another thread allocates. The driver may give it the same address
/// before the heap has removed the freed block.
#[test]
fn passed_free_against_an_allocation() {
    model("passed free against an allocation", || {
        let device = device();
        let driver_pool = DriverPool::default_of(&device).unwrap();
        let pool = Pool::builder(device.clone())
            .segment_source(driver_pool.segments(DriverPoolUse::PassedThrough))
            .capacity(4 * MIB)
            .build()
            .unwrap();
        let [(_, a), (_, b)] = streams(&device, &pool);
        let block = pool.try_allocate(&a, MIB).unwrap();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&b, MIB).unwrap())
        };
        drop(block);
        let other = other.join().unwrap();
        assert!(
            pool.inspect().block_at(other.address()).is_some(),
            "it is in the heap"
        );
        assert_eq!(pool.inspect().statistics().reserved.current, MIB);
        drop(other);
        assert_eq!(pool.inspect().statistics().reserved.current, 0);
        pool.inspect().check().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two threads change different flags. Neither change is lost.
#[test]
fn two_changes_of_the_reuse_flags() {
    model("two changes of the reuse flags", || {
        let pool = pool(&device());
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                pool.maintain()
                    .set_attribute(PoolAttribute::ReuseAllowOpportunistic, 0)
                    .unwrap()
            })
        };
        pool.maintain()
            .set_attribute(PoolAttribute::ReuseAllowInternalDependencies, 1)
            .unwrap();
        other.join().unwrap();
        let flags = pool
            .inspect()
            .attribute(PoolAttribute::ReuseAllowInternalDependencies);
        assert_eq!(
            (
                flags,
                pool.inspect()
                    .attribute(PoolAttribute::ReuseAllowOpportunistic)
            ),
            (1, 0)
        );
    });
}

/// A caller synchronizes while another thread frees. The memory is released by this synchronization or by the next.
#[test]
fn synchronization_against_a_free() {
    model("synchronization against a free", || {
        let device = device();
        let pool = builder(&device)
            .tuning(|tuning| tuning.lane_bytes = 0)
            .build()
            .unwrap();
        pool.maintain()
            .set_attribute(PoolAttribute::ReleaseThreshold, 0)
            .unwrap();
        let (_, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, MIB).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let synchronize = || assert!(std::pin::pin!(a.synchronize()).poll_once().is_ready());
        synchronize();
        freeing.join().unwrap();
        synchronize();
        assert_eq!(pool.inspect().statistics().reserved.current, 0);
        pool.inspect().check_conserved().unwrap();
    });
}
