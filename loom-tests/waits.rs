//! Who waits, who drives, and how it ends.

use super::*;
use loom::future::block_on;
use loom::thread;
use weirpool::AllocError;

/// A reclaimer parks while a waiter comes: one of them serves.
#[test]
fn reclaimer_parking_against_a_new_waiter() {
    model("reclaimer parking against a new waiter", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let reclaimer = pool.reclaimer();
        let reclaiming = thread::spawn(move || block_on(reclaimer));
        drop((block, a));
        drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap());
        pool.check_conserved().unwrap();
        drop((b, pool));
        reclaiming.join().unwrap();
    });
}

/// The one who drives goes away while somebody waits: the waiter takes over.
#[test]
fn the_driver_going_away() {
    model("the driver going away", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut reclaimer = pool.reclaimer();
        assert!(Pin::new(&mut reclaimer).poll_once().is_pending());
        let leaving = thread::spawn(move || {
            drop(block);
            drop(reclaimer);
        });
        drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap());
        leaving.join().unwrap();
        pool.check_conserved().unwrap();
    });
}

/// The last handles go while a lasting reclaimer looks: it ends.
#[test]
fn last_handle_against_the_reclaimer() {
    model("last handle against the reclaimer", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let reclaimer = pool.reclaimer();
        let reclaiming = thread::spawn(move || block_on(reclaimer));
        drop((pool, a));
        drop(block);
        reclaiming.join().unwrap();
        assert_eq!(device.counters().physical_in_use, 0);
    });
}

/// A stream is registered, and frees, while the gate is raised: its lane is drained or bypassed.
#[test]
fn the_gate_against_a_registration() {
    model("the gate against a registration", || {
        let device = device();
        let pool = pool(&device);
        let (_, b) = stream(&device, &pool);
        let registering = {
            let (pool, device) = (pool.clone(), device.clone());
            thread::spawn(move || {
                let (_, c) = stream(&device, &pool);
                drop(pool.try_allocate(&c, 4096));
            })
        };
        drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap());
        registering.join().unwrap();
        pool.check_conserved().unwrap();
    });
}

/// The deadline comes with the grant: the waiter has the block, or the pool has it.
#[test]
fn timeout_against_grant() {
    model("timeout against grant", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
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
        assert_eq!(pool.statistics().waits.waiting, 0);
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.check_conserved().unwrap();
    });
}

/// The pool is closed while somebody joins the queue: it fails, and does not sleep for ever.
#[test]
fn close_against_wait() {
    model("close against wait", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let closing = {
            let pool = pool.clone();
            thread::spawn(move || pool.close())
        };
        let error = block_on(pool.allocate(&a, 2 * MIB)).unwrap_err();
        assert_eq!(error, AllocError::Closed);
        closing.join().unwrap();
        drop(block);
        pool.check_conserved().unwrap();
    });
}

/// Two waiters and a free from a third thread, the first of them cancelled: the second is served.
#[test]
fn cancel_of_the_head_against_a_free() {
    model("cancel of the head against a free", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut head = pool.allocate(&a, 2 * MIB);
        assert!(poll(&mut head).is_pending());
        let freeing = thread::spawn(move || drop(block));
        let next = {
            let pool = pool.clone();
            thread::spawn(move || drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap()))
        };
        drop(head);
        freeing.join().unwrap();
        next.join().unwrap();
        pool.check_conserved().unwrap();
    });
}

/// The same beside a reclaimer that nobody polls any more: who was woken leaves, and serves for the next.
#[test]
fn cancel_of_the_head_beside_a_reclaimer_that_sleeps() {
    model("cancel of the head beside a sleeping reclaimer", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut reclaimer = pool.reclaimer();
        assert!(Pin::new(&mut reclaimer).poll_once().is_pending());
        let mut head = pool.allocate(&a, 2 * MIB);
        assert!(poll(&mut head).is_pending());
        let freeing = thread::spawn(move || drop(block));
        let next = {
            let pool = pool.clone();
            thread::spawn(move || drop(block_on(pool.allocate(&b, 2 * MIB)).unwrap()))
        };
        drop(head);
        freeing.join().unwrap();
        next.join().unwrap();
        pool.check_conserved().unwrap();
    });
}

/// The device breaks while somebody joins the queue: it fails.
#[test]
fn breaking_against_wait() {
    model("breaking against wait", || {
        let device = device();
        let pool = pool(&device);
        let (work, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        drop(block.deallocate());
        let breaking = {
            let device = device.clone();
            thread::spawn(move || device.break_device("an illegal address"))
        };
        let error = block_on(pool.allocate(&b, 2 * MIB)).unwrap_err();
        assert!(matches!(error, AllocError::Device(_)), "{error}");
        breaking.join().unwrap();
    });
}
