//! Requests at the limit of their tag when nothing of the tag is freed: the time limit for deadlocks. In virtual time.

use crate::common::*;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::*;

const MS: Duration = us(1000);

/// The limit of the tenant; the pool has much more.
const LIMIT: u64 = 8 * MIB;

const GRACE: Duration = us(10_000);

/// A pool in which the tag has a limit.
fn limited(device: &SimDevice, tag: Tag, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> TestPool {
    let builder = builder(device, 64 * MIB).tuning(|tuning| tuning.lane_bytes = 0);
    let pool = set(builder).made();
    pool.tag(tag).set_limit(Some(LIMIT));
    pool
}

/// A pool that fails deadlocks after the grace.
fn strict(device: &SimDevice, tag: Tag) -> TestPool {
    limited(device, tag, |builder| builder.fail_deadlocks_after(GRACE))
}

fn used(pool: &Pool, tag: Tag) -> u64 {
    pool.tag(tag).statistics().used.current
}

fn is_deadlocked<T>(polled: Poll<Result<T, AllocError>>) -> bool {
    matches!(
        polled,
        Poll::Ready(Err(AllocError::DeadlockedAtLimit { .. }))
    )
}

/// Two tasks hold half of the limit each, and wait for the other's half. Another tenant is not affected.
#[test]
fn first_throttled_request_fails_when_nothing_of_its_tag_is_freed() {
    let device = manual();
    let tag = Tag::new("tenant deadlocks: two");
    let pool = limited(&device, tag, |builder| {
        builder.fail_deadlocks_after(MS * 50)
    });
    let [(_, a), (_, b), (work, other)] = streams(&device, &pool);
    let hold = |stream| pool.allocate(stream, LIMIT / 2).tag(tag);
    let [one, two] = [&a, &b].map(|stream| hold(stream).try_now().unwrap());
    let (woken, waker) = Count::new();
    let (mut first, mut second) = (hold(&a), hold(&b));
    assert!(poll_with(&mut first, &waker).is_pending());
    assert!(poll_with(&mut second, &waker).is_pending());
    for _ in 0..5 {
        // Another tenant is at work all the time.
        use_and_free(&pool, (&work, &other), 16 * MIB, MS * 100);
        let before = woken.get();
        device.advance(MS * 10);
        if woken.get() > before {
            assert!(poll_with(&mut second, &waker).is_pending());
        }
    }
    let error = now(&mut first).expect_err("nothing of the tag moves");
    let expected = AllocError::DeadlockedAtLimit {
        tag,
        requested: LIMIT / 2,
        used: LIMIT,
        limit: LIMIT,
    };
    assert_eq!(error, expected);
    assert!(
        error.to_string().contains("tenant deadlocks: two"),
        "{error}"
    );
    assert!(poll_with(&mut second, &waker).is_pending());
    let waits = pool.tag(tag).statistics().waits;
    let found = (waits.deadlocked, waits.unserved(), waits.waiting);
    assert_eq!(found, (1, 1, 1));
    drop(one);
    drop(now(second).expect("there is room"));
    drop(two);
    assert_eq!(used(&pool, tag), 0);
    device.advance(MS * 1000);
}

#[test]
fn throttled_request_waits_for_ever_without_a_time_limit() {
    let device = manual();
    let tag = Tag::new("tenant deadlocks: lasts");
    let pool = limited(&device, tag, |builder| builder);
    let (_, stream) = stream(&device, &pool);
    let held = pool.allocate(&stream, LIMIT).tag(tag).try_now().unwrap();
    let mut waiting = pool.allocate(&stream, MIB).tag(tag);
    for _ in 0..10 {
        assert!(poll(&mut waiting).is_pending());
        device.advance(GRACE * 10);
    }
    drop(held);
    drop(now(waiting).unwrap());
    assert_eq!(used(&pool, tag), 0);
}

/// Frees that are too small to let the request in show that the tag's tasks are at work.
#[test]
fn every_free_of_the_tag_begins_the_time_anew() {
    let device = manual();
    let tag = Tag::new("tenant deadlocks: frees");
    let pool = strict(&device, tag);
    let [(_, a), (_, b)] = streams(&device, &pool);
    let allocate = |stream, bytes| pool.allocate(stream, bytes).tag(tag);
    let held = allocate(&a, 4 * MIB).try_now().unwrap();
    let mut small: Vec<_> = (0..4)
        .map(|_| allocate(&b, MIB).try_now().unwrap())
        .collect();
    let mut waiting = not_ready(allocate(&a, LIMIT));
    while small.pop().is_some() {
        device.advance(GRACE - us(1));
        assert!(poll(&mut waiting).is_pending());
    }
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut waiting)));
    drop(held);
}

/// The first request fails although its future is never polled again, and then the next one.
#[test]
fn forgotten_future_does_not_keep_others_from_failing() {
    let device = manual();
    let tag = Tag::new("tenant deadlocks: forgotten");
    let pool = strict(&device, tag);
    let (_, stream) = stream(&device, &pool);
    let allocate = || pool.allocate(&stream, LIMIT).tag(tag);
    let held = allocate().try_now().unwrap();
    let first = not_ready(allocate());
    std::mem::forget(first);
    let (mut second, woken, waker) = not_ready_counted(allocate());
    device.advance(GRACE);
    assert!(woken.take() > 0);
    assert!(poll_with(&mut second, &waker).is_pending());
    device.advance(GRACE);
    assert!(woken.take() > 0);
    assert!(is_deadlocked(poll(&mut second)));
    drop(held);
}

#[test]
fn growths_that_wait_for_each_other_fail_one_by_one() {
    let device = manual();
    let tag = Tag::new("tenant deadlocks: grow");
    let pool = strict(&device, tag);
    let [(_, a), (_, b)] = streams(&device, &pool);
    let cache = |stream| {
        let allocate = pool.allocate(stream, 2 * MIB).tag(tag).room(16 * MIB);
        allocate.try_now().unwrap()
    };
    let (mut one, mut other) = (cache(&a), cache(&b));
    let mut much = not_ready(Box::pin(one.grow(6 * MIB)));
    let mut as_much = not_ready(Box::pin(other.grow(6 * MIB)));
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut much)));
    assert!(poll(&mut as_much).is_pending());
    drop(much);
    drop(one);
    now(as_much).expect("there is room");
    assert_eq!(used(&pool, tag), LIMIT);
}
