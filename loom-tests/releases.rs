//! Frees, their tickets, and the events that prove them.

use super::*;
use loom::future::block_on;
use loom::thread;
use weirpool::Rung;

/// A free while an event closes the ticket: memory that another stream gets through the event is
/// behind the freeing stream's work.
#[test]
fn sealing_against_a_free() {
    model("sealing against a free", || {
        let device = device();
        let pool = pool(&device);
        let (work_a, a) = stream(&device, &pool);
        let (work_b, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || {
            run(&work_a, 10);
            drop(block);
        });
        let event = a.event().unwrap();
        b.wait(&event).unwrap();
        if let Ok(block) = pool.try_allocate(&b, 2 * MIB) {
            assert_ne!(block.rung(), Rung::Free, "a is still at it");
            run(&work_b, 1);
            device.advance(Duration::from_micros(9));
            assert!(work_b.backlog() > 0, "b came before a's last use");
            drop(block);
        }
        freeing.join().unwrap();
        device.advance(Duration::from_micros(20));
        pool.check_conserved().unwrap();
    });
}

/// Two threads seal the same stream: each ticket is proven by an event recorded after it was closed.
#[test]
fn two_sealers() {
    model("two sealers", || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
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
        pool.harvest().unwrap();
        assert_eq!(pool.statistics().pending.current, 0);
        pool.check_conserved().unwrap();
    });
}

/// A deallocation is awaited while another thread harvests: it completes once, and is heard of.
#[test]
fn deallocation_against_harvest() {
    model("deallocation against harvest", || {
        let device = device();
        let pool = pool(&device);
        let (work, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        let freed = block.deallocate();
        let harvesting = {
            let (pool, device) = (pool.clone(), device.clone());
            thread::spawn(move || {
                device.advance(Duration::from_micros(10));
                pool.harvest().unwrap();
            })
        };
        block_on(freed).unwrap();
        harvesting.join().unwrap();
        assert_eq!(pool.statistics().pending.current, 0);
        pool.check_conserved().unwrap();
    });
}

/// The last handles go from two threads at once: everything is given back to the device, once.
#[test]
fn last_handles_from_two_threads() {
    model("last handles from two threads", || {
        let device = device();
        let pool = pool(&device);
        let (work, a) = stream(&device, &pool);
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
