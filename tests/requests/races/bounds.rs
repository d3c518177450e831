//! Bounds of the number of events (*bounded-events*), and of memory.

use super::*;
use std::task::Poll;

/// *bounded-events* in a loop that orders streams by events.
#[test]
fn ordering_streams_by_events_makes_no_more_of_them() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let [(_wa, a), (_wb, b)] = streams(&sim, &pool);
    for _ in 0..20_000 {
        let block = pool.try_allocate(&a, 4096).unwrap();
        drop(block);
        let e = a.event().unwrap();
        b.wait(&e).unwrap();
        sim.advance(us(1));
    }
    let made = pool.inspect().statistics().events_created;
    assert!(made < 2000, "{made} events");
}

/// *bounded-events* for streams that are registered and dropped. Their lanes are bounded, too.
#[test]
fn streams_that_come_and_go_leave_nothing_behind() {
    let sim = manual();
    let pool = pool(&sim, 512 * MIB);
    for _ in 0..3000 {
        let (w, s) = stream(&sim, &pool);
        let b = pool.try_allocate(&s, 4096).unwrap();
        run(&w, us(1));
        drop(b);
        drop(s);
        drop(w);
        sim.advance(us(1));
    }
    assert!(
        figures(&pool).events_created < 100,
        "events {}",
        figures(&pool).events_created
    );
}

/// *bounded-events* while a request waits, so that every free seals.
#[test]
fn events_are_bounded_while_a_request_waits() {
    let sim = manual();
    let pool = host_waits_only(&sim, 64 * MIB);
    let [(wa, a), (_wb, b)] = streams(&sim, &pool);
    let small = several(&pool, &a, 8000, 512);
    let big = pool.try_allocate(&a, 32 * MIB).unwrap();
    let _w = not_ready(pool.allocate(&b, 60 * MIB));
    run(&wa, us(1000));
    drop(small);
    let made = pool.inspect().statistics().events_created;
    drop(big);
    assert!(made < 2000, "{made} events");
}

/// *bounded-events* for frees after the pool was closed.
#[test]
fn events_are_bounded_after_close() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let (wa, a) = stream(&sim, &pool);
    let small = several(&pool, &a, 8000, 512);
    pool.close();
    run(&wa, us(1000));
    drop(small);
    let made = pool.inspect().statistics().events_created;
    assert!(made < 2000, "{made} events");
}

/// A capacity over the memory of the device: a request that can never fit does not queue.
#[test]
fn request_larger_than_the_device_fails_at_once() {
    let sim = manual(); // 1 GiB
    let pool = Pool::builder(sim.clone()).capacity(1 << 40).made();
    let (_w, a) = stream(&sim, &pool);
    let mut w = pool.allocate(&a, 2 << 30);
    let p = poll(&mut w);
    assert_matches!(p, Poll::Ready(Err(AllocError::TooLarge { .. })));
}

/// A capacity that no device has.
#[test]
fn a_capacity_without_bound_is_that_of_the_device() {
    let sim = manual();
    let pool = Pool::builder(sim.clone()).capacity(u64::MAX).made();
    assert_eq!(pool.capacity(), 1 << 30);
}

/// Handles larger than the capacity.
#[test]
fn a_handle_over_the_capacity_is_cut_to_steps_of_the_device() {
    let sim = manual();
    let pool = Pool::builder(sim.clone())
        .capacity(5 * MIB)
        .chunk_bytes(16 * MIB)
        .made();
    // One handle of 4 MiB: a step of the device is 2.
    assert_eq!(pool.capacity(), 4 * MIB);
}
