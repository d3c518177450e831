//! Waiters, the reclaimer, and how waits end.

use super::*;
use loom::future::block_on;
use loom::thread;
use weirpool::AllocError;

/// A reclaimer parks while a request begins to wait. One of the two serves the queue.
#[test]
fn reclaimer_parking_against_a_new_waiter() {
    model("reclaimer parking against a new waiter", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let reclaimer = pool.maintain().reclaimer();
        let reclaiming = thread::spawn(move || block_on(reclaimer));
        drop((block, a));
        drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap());
        pool.inspect().check_conserved().unwrap();
        drop((b, pool));
        reclaiming.join().unwrap();
    });
}

/// The reclaimer that serves the queue is dropped while a request waits. The waiter takes over.
#[test]
fn dropped_reclaimer_against_a_waiter() {
    model("dropped reclaimer against a waiter", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut reclaimer = pool.maintain().reclaimer();
        assert!(Pin::new(&mut reclaimer).poll_once().is_pending());
        let leaving = thread::spawn(move || {
            drop(block);
            drop(reclaimer);
        });
        drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap());
        leaving.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// The last handles are dropped while a reclaimer searches. The reclaimer ends.
#[test]
fn last_handle_against_the_reclaimer() {
    model("last handle against the reclaimer", || {
        let (device, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let reclaimer = pool.maintain().reclaimer();
        let reclaiming = thread::spawn(move || block_on(reclaimer));
        drop((pool, a));
        drop(block);
        reclaiming.join().unwrap();
        assert_eq!(device.counters().physical_in_use, 0);
    });
}

/// A stream is registered, and frees, while the gate closes. Its lane is flushed or bypassed.
#[test]
fn gate_against_a_registration() {
    model("gate against a registration", || {
        let (device, pool, [(_, b)]) = start();
        let registering = {
            let (pool, device) = (pool.clone(), device.clone());
            thread::spawn(move || {
                let (_, c) = stream(&device, &pool);
                drop(pool.try_allocate(&c, 4096));
            })
        };
        drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap());
        registering.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// The time limit ends together with the grant. Either the waiter has the block, or the pool has it.
#[test]
fn timeout_against_grant() {
    model("timeout against grant", || {
        let (device, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let freeing = {
            let device = device.clone();
            thread::spawn(move || {
                device.advance(Duration::from_micros(10));
                drop(block);
            })
        };
        let limit = Duration::from_micros(10);
        match block_on(pool.allocate(&b, 2 * MIB).timeout(limit)) {
            Ok(block) => drop(block),
            Err(error) => assert!(matches!(error, AllocError::TimedOut { .. })),
        }
        freeing.join().unwrap();
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// The pool is closed while a request joins the queue. The request fails rather than sleeps for ever.
#[test]
fn close_against_wait() {
    model("close against wait", || {
        let (_, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let closing = {
            let pool = pool.clone();
            thread::spawn(move || pool.close())
        };
        let error = block_on(pool.allocate(&a, 2 * MIB)).unwrap_err();
        assert_eq!(error, AllocError::Closed);
        closing.join().unwrap();
        drop(block);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Drops the first of two waiters, while another thread frees the block that both wait for. The second is granted.
fn cancel_of_the_head(pool: &Pool, block: Block, [a, b]: [&Stream; 2]) {
    let mut head = pool.allocate(a, 2 * MIB);
    assert!(poll(&mut head).is_pending());
    let mut next = pool.allocate(b, 2 * MIB);
    assert!(poll(&mut next).is_pending());
    let freeing = thread::spawn(move || drop(block));
    drop(head);
    drop(block_on(next).unwrap());
    freeing.join().unwrap();
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn cancel_of_the_head_against_a_free() {
    model("cancel of the head against a free", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        cancel_of_the_head(&pool, block, [&a, &b]);
    });
}

/// The first of two waiters is dropped beside a reclaimer that is never polled again. It serves for the next waiter.
#[test]
fn cancel_of_the_head_beside_a_reclaimer_that_sleeps() {
    model("cancel of the head beside a reclaimer that sleeps", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut reclaimer = pool.maintain().reclaimer();
        assert!(Pin::new(&mut reclaimer).poll_once().is_pending());
        cancel_of_the_head(&pool, block, [&a, &b]);
    });
}

/// The device breaks while a request joins the queue. The request fails.
#[test]
fn breaking_against_wait() {
    model("breaking against wait", || {
        let (device, pool, [(work, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        drop(block.deallocate());
        let breaking = {
            let device = device.clone();
            thread::spawn(move || device.faults().break_device("an illegal address"))
        };
        let error = block_on(pool.allocate(&b, 2 * MIB)).unwrap_err();
        assert!(matches!(error, AllocError::Device(_)), "{error}");
        breaking.join().unwrap();
    });
}
