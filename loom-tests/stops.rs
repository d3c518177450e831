//! A pool that admits no more requests, against requests that are granted, leave or come, and memory that comes back.

use super::*;
use loom::{future::block_on, thread};
use weirpool::AllocError;

/// Admits no more requests, on a thread of its own.
fn stop(pool: &Pool) -> thread::JoinHandle<()> {
    let pool = pool.clone();
    thread::spawn(move || pool.stop_admitting())
}

/// Checks that no request waits, and all memory is back: a drain is ready, whatever became of requests.
fn assert_ended(pool: &Pool) {
    assert_eq!(pool.inspect().statistics().waits.waiting, 0);
    assert!(block_on(pool.drain()).is_ok());
    pool.inspect().check_conserved().unwrap();
}

/// A request either has its block or fails, and is counted as what it was.
#[test]
fn stop_against_a_grant() {
    model("stop against a grant", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut request = pool.allocate(&b, 2 * MIB);
        assert!(poll(&mut request).is_pending());
        let stopping = stop(&pool);
        drop(block);
        // Serves the request.
        let _ = pool.resize(2 * MIB).unwrap();
        let is_served = match block_on(request) {
            Ok(_) => 1,
            Err(error) => {
                assert_eq!(error, AllocError::Stopping);
                0
            }
        };
        stopping.join().unwrap();
        let waits = Box::new(pool.inspect().statistics().waits);
        assert_eq!((waits.served, waits.failed), (is_served, 1 - is_served));
        assert_ended(&pool);
    });
}

/// A request that joins the queue meanwhile fails rather than sleeps for ever.
#[test]
fn stop_against_a_request_that_joins() {
    model("stop against a request that joins", || {
        let (_, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let stopping = stop(&pool);
        let error = block_on(pool.allocate(&a, 2 * MIB)).unwrap_err();
        assert_eq!(error, AllocError::Stopping);
        stopping.join().unwrap();
        drop(block);
        assert_ended(&pool);
    });
}

/// A request that was granted is cancelled while others are failed. Its memory is not lost.
#[test]
fn stop_against_a_cancellation() {
    model("stop against a cancellation", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let [mut first, mut second] = [(); 2].map(|()| pool.allocate(&b, 2 * MIB));
        assert!(poll(&mut first).is_pending());
        assert!(poll(&mut second).is_pending());
        drop(block);
        let stopping = stop(&pool);
        drop(first);
        match block_on(second) {
            Ok(block) => drop(block),
            Err(error) => assert_eq!(error, AllocError::Stopping),
        }
        stopping.join().unwrap();
        assert_ended(&pool);
    });
}

/// Memory comes back, and a holder of a reservation asks for more, while a request before it is failed or leaves.
#[test]
fn stop_against_a_free_for_a_holder() {
    model("stop against a free for a holder", || {
        let (_, pool, [(_, a)]) = start();
        let mut reservation = pool.reserve(MIB).try_now().unwrap();
        let block = pool.try_allocate(&a, MIB).unwrap();
        let mut other = pool.allocate(&a, MIB);
        assert!(poll(&mut other).is_pending());
        let stopping = stop(&pool);
        drop(block);
        drop(other);
        assert_eq!(block_on(reservation.grow(MIB)), Ok(()));
        stopping.join().unwrap();
        drop(reservation.allocate(&a, MIB).unwrap());
        drop(reservation);
        assert_ended(&pool);
    });
}

/// A block that is freed into the cache of its stream is not hidden there from a holder's request.
#[test]
fn stop_against_a_free_into_a_cache() {
    model("stop against a free into a cache", || {
        let device = unwatched();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let mut reservation = pool.reserve(MIB).try_now().unwrap();
        drop(pool.try_allocate(&a, 4096).unwrap());
        let block = pool.try_allocate(&a, 4096).unwrap();
        let stopping = stop(&pool);
        drop(block);
        assert_eq!(block_on(reservation.grow(MIB)), Ok(()));
        stopping.join().unwrap();
        let refused = pool.try_allocate(&a, 4096).unwrap_err();
        assert_eq!(refused, AllocError::Stopping);
        drop(reservation);
        assert_ended(&pool);
    });
}
