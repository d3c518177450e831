//! Admission: which requests may wait.

use super::*;
use weirpool::FullQueue;

fn refusal(pool: &Pool, stream: &Stream, bytes: u64) -> AllocError {
    now(pool.allocate(stream, bytes)).unwrap_err()
}

#[track_caller]
fn of_full_queue(error: &AllocError) -> FullQueue {
    match error {
        AllocError::QueueFull(full) => **full,
        other => panic!("{other}"),
    }
}

/// As many requests wait as the limit allows. The next one fails at once, with the figures, until one leaves.
#[test]
fn full_queue_refuses_requests() {
    let (_, pool, [(_, stream)]) = set_up_with(|device| base(device).queue_limit(2));
    let held = pool.try_allocate(&stream, ALL).unwrap();
    let mut waiters = [MIB, 2 * MIB].map(|bytes| pool.allocate(&stream, bytes));
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    let full = refusal(&pool, &stream, 4 * MIB);
    let text = "FullQueue { tag: None, requested: 4.0 MiB, waiting: 2, limit: 2, waiting_bytes: 3.0 MiB, \
                limit_bytes: 16384.0 PiB, expected_wait: None }";
    assert_eq!(format!("{:?}", of_full_queue(&full)), text);
    assert_eq!(now(pool.reserve(4 * MIB)).unwrap_err(), full);
    assert_eq!(
        now(pool.allocate_many(&stream, [4 * MIB])).unwrap_err(),
        full
    );
    assert_eq!(waiting(&pool), 2);
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.refused, waits.shed, waits.unserved()), (3, 0, 0));
    // A request for a reservation names no stream.
    assert_eq!(stream.statistics().waits.refused, 2);
    let [first, mut second] = waiters;
    drop(first);
    let mut third = not_ready(pool.allocate(&stream, MIB));
    drop(held);
    assert!(poll(&mut second).is_ready() && poll(&mut third).is_ready());
}

/// A request that is granted at once is not counted against the limit.
#[test]
fn request_that_need_not_wait_is_granted_beside_a_full_queue() {
    let (_, pool, [(_, stream)]) = set_up_with(|device| base(device).queue_limit(0));
    let block = now(pool.allocate(&stream, ALL)).unwrap();
    assert_eq!(of_full_queue(&refusal(&pool, &stream, MIB)).waiting, 0);
    drop(block);
    drop(now(pool.allocate(&stream, ALL)).unwrap());
}

#[test]
fn queue_limit_counts_bytes_and_can_change() {
    let device = manual();
    let pool = base(&device).made();
    assert_eq!(pool.inspect().describe().queue_limit, QueueLimit::NONE);
    let (_, stream) = stream(&device, &pool);
    let _held = pool.try_allocate(&stream, ALL).unwrap();
    let mut waiter = not_ready(pool.allocate(&stream, 3 * MIB));
    pool.maintain().set_queue_limit(QueueLimit::bytes(4 * MIB));
    let error = refusal(&pool, &stream, 2 * MIB);
    let full = of_full_queue(&error);
    let bytes = (full.waiting_bytes, full.limit_bytes);
    assert_eq!(bytes, (3 * MIB, 4 * MIB));
    let _other = not_ready(pool.allocate(&stream, MIB));
    pool.maintain().set_queue_limit(QueueLimit::NONE);
    let _third = not_ready(pool.allocate(&stream, 2 * MIB));
    pool.maintain().set_queue_limit(0);
    assert!(poll(&mut waiter).is_pending(), "waiting requests stay");
    assert_eq!(waiting(&pool), 3);
}

/// A tenant over its limit fills its own queue. The pool's queue and those of other tenants stay empty.
#[test]
fn throttled_requests_do_not_refuse_the_requests_of_others() {
    let (_, pool, [(_, stream)]) = set_up_with(|device| base(device).queue_limit(2));
    let [flooding, other] = ["admission: flooding", "admission: other"].map(Tag::new);
    let held = pool.allocate(&stream, MIB).tag(flooding).try_now().unwrap();
    pool.tag(flooding).set_limit(Some(MIB));
    pool.tag(other).set_limit(Some(4 * MIB));
    let request = |tag, bytes| pool.allocate(&stream, bytes).tag(tag);
    let mut throttled = [MIB, MIB].map(|bytes| request(flooding, bytes));
    assert!(throttled.iter_mut().all(|waiter| poll(waiter).is_pending()));
    let refused = now(request(flooding, MIB)).unwrap_err();
    assert_eq!(of_full_queue(&refused).waiting, 2);
    let rest = pool.try_allocate(&stream, ALL - MIB).unwrap();
    let mut waiting = [MIB, MIB].map(|bytes| request(other, bytes));
    assert!(waiting.iter_mut().all(|waiter| poll(waiter).is_pending()));
    let refused = now(request(other, MIB)).unwrap_err();
    let full = of_full_queue(&refused);
    assert_eq!((full.tag, full.waiting), (None, 2));
    let refused = [flooding, other].map(|tag| pool.tag(tag).statistics().waits.refused);
    assert_eq!(refused, [1, 1]);
    drop((rest, held));
    assert!(waiting.iter_mut().all(|waiter| poll(waiter).is_ready()));
}

#[test]
fn tag_has_a_queue_limit_of_its_own() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let tag = Tag::new("admission: few may wait");
    pool.tag(tag).set_limit(Some(MIB));
    assert_eq!(pool.tag(tag).statistics().queue_limit, QueueLimit::NONE);
    pool.tag(tag).set_queue_limit(Some(QueueLimit::requests(1)));
    pool.maintain().set_queue_limit(7);
    let found = pool.tag(tag).statistics().queue_limit;
    assert_eq!(found, QueueLimit::requests(1));
    let held = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    let mut first = not_ready(pool.allocate(&stream, MIB).tag(tag));
    let refused = now(pool.allocate(&stream, MIB).tag(tag)).unwrap_err();
    let full = of_full_queue(&refused);
    assert_eq!((full.tag, full.waiting, full.limit), (Some(tag), 1, 1));
    assert!(refused.to_string().contains(&format!("queue of tag {tag}")));
    pool.tag(tag).set_queue_limit(None);
    let found = pool.tag(tag).statistics().queue_limit;
    assert_eq!(found, QueueLimit::requests(7));
    let _second = not_ready(pool.allocate(&stream, MIB).tag(tag));
    drop(held);
    assert!(poll(&mut first).is_ready());
}

/// Serves `count` requests for all of the memory. They come at once, and one is granted every 100 µs.
fn serve(device: &SimDevice, pool: &Pool, stream: &Stream, count: usize) {
    let mut block = pool.try_allocate(stream, ALL).unwrap();
    let mut waiters: Vec<_> = (0..count).map(|_| pool.allocate(stream, ALL)).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    for waiter in waiters {
        device.advance(us(100));
        drop(block);
        block = now(waiter).unwrap();
    }
}

/// The estimate divides the bytes ahead by the recent rate of grants. With load shedding, a request whose estimate
/// exceeds its limit fails at once.
#[test]
fn late_requests_are_shed() {
    let (device, pool, [(_, stream)]) = set_up_with(|device| base(device).load_shedding());
    assert_eq!(pool.inspect().expected_wait(ALL), None);
    serve(&device, &pool, &stream, 40);
    assert_eq!(pool.inspect().expected_wait(ALL), Some(us(100)));

    let held = pool.try_allocate(&stream, ALL).unwrap();
    // The first request may wait in any case: it keeps the estimate current.
    let _first = not_ready(pool.allocate(&stream, ALL).timeout(us(10)));
    let _second = not_ready(pool.allocate(&stream, ALL).timeout(us(250)));
    let shed = now(pool.allocate(&stream, ALL).timeout(us(250))).unwrap_err();
    let expected = AllocError::Shed {
        expected: us(300),
        limit: us(250),
        is_virtual: true,
    };
    assert_eq!(shed, expected);
    let text = shed.to_string();
    assert!(text.contains("300µs of virtual time"), "{text}");
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.shed, waits.refused), (1, 0));
    // Due before the others, so that no request is ahead.
    let urgent = not_ready(pool.allocate(&stream, ALL).timeout(us(150)).priority(1));
    // Without a limit it waits.
    let _patient = not_ready(pool.allocate(&stream, ALL));
    drop(held);
    drop(now(urgent).unwrap());
    assert_eq!(waiting(&pool), 3);
}

/// The pool has memory, and the tag may not hold more of it.
#[test]
fn late_requests_are_shed_at_the_limit_of_their_tag() {
    let (device, pool, [(_, stream)]) = set_up_with(|device| base(device).load_shedding());
    let tag = Tag::new("admission: late at its limit");
    pool.tag(tag).set_limit(Some(MIB));
    let request = || pool.allocate(&stream, MIB).tag(tag);
    let mut block = request().try_now().unwrap();
    let mut waiters: Vec<_> = (0..40).map(|_| request()).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    for waiter in waiters {
        device.advance(us(100));
        drop(block);
        block = now(waiter).unwrap();
    }
    let mut first = request().timeout(us(10));
    assert!(
        poll(&mut first).is_pending(),
        "it keeps the estimate current"
    );
    let _second = not_ready(request().timeout(us(250)));
    let shed = now(request().timeout(us(250))).unwrap_err();
    assert_matches!(shed, AllocError::Shed { expected, limit, .. } if *expected >= us(290) && *limit == us(250));
    let waits = pool.tag(tag).statistics().waits;
    assert_eq!((waits.shed, waits.refused, waits.waiting), (1, 0, 2));
    // A request without the tag needs not wait.
    drop(now(pool.allocate(&stream, MIB).timeout(us(1))).unwrap());
    drop(block);
    assert!(poll(&mut first).is_ready());
}

/// Without the setting, requests wait until their limits are over.
#[test]
fn requests_are_not_shed_by_default() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    serve(&device, &pool, &stream, 40);
    let _held = pool.try_allocate(&stream, ALL).unwrap();
    let mut waiters = [(); 3].map(|()| pool.allocate(&stream, ALL).timeout(us(10)));
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
}
