//! Charges that are awaited, against frees, other charges and cancellations.

use super::*;
use loom::future::block_on;
use loom::thread;

/// Memory is freed while a charge begins to wait for it.
#[test]
fn free_against_a_charge() {
    model("free against a charge", || {
        let (_, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || drop((block, a)));
        let charge = block_on(pool.charge_for(2 * MIB)).unwrap();
        freeing.join().unwrap();
        assert_eq!(pool.inspect().statistics().charged, 2 * MIB);
        drop(charge);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A charge is dropped while a request begins to wait for its bytes.
#[test]
fn dropped_charge_against_a_request() {
    model("dropped charge against a request", || {
        let (_, pool, [(_, a)]) = start();
        let charge = pool.charge(2 * MIB).unwrap();
        let dropping = thread::spawn(move || drop(charge));
        drop(block_on(pool.allocate(&a, 2 * MIB)).unwrap());
        dropping.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// The first charge that waits is cancelled while the bytes come back that it waits for. They go to the next one.
#[test]
fn cancellation_against_the_grant_of_a_charge() {
    model("cancellation against the grant of a charge", || {
        let (_, pool, []) = start();
        let held = pool.charge(2 * MIB).unwrap();
        let mut first = pool.charge_for(2 * MIB);
        assert!(poll(&mut first).is_pending());
        let dropping = thread::spawn(move || drop(held));
        drop(first);
        drop(block_on(pool.charge_for(2 * MIB)).unwrap());
        dropping.join().unwrap();
        assert_eq!(pool.inspect().statistics().charged, 0);
        pool.inspect().check_conserved().unwrap();
    });
}
