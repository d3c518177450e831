//! Requests that are the first to wait, and that nothing serves.

use super::*;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls a request for its stall.
macro_rules! stalled {
    ($request:expr, $waker:expr) => {
        match Pin::new(&mut $request).poll_stalled(&mut Context::from_waker($waker)) {
            Poll::Ready(shortfall) => Some(shortfall),
            Poll::Pending => None,
        }
    };
    ($request:expr) => {
        stalled!($request, Waker::noop())
    };
}

/// A pool without free memory, with its blocks of 1 MiB each.
fn full(device: &SimDevice) -> (TestPool, Stream, Vec<Block>) {
    let pool = base(device).made();
    let (_, stream) = stream(device, &pool);
    let all = std::iter::from_fn(|| pool.try_allocate(&stream, MIB).ok()).collect();
    (pool, stream, all)
}

#[test]
fn stall_is_told_once() {
    for device in devices() {
        let (pool, stream, mut blocks) = full(&device);
        let mut request = not_ready(pool.allocate(&stream, 3 * MIB));
        let shortfall = stalled!(request).expect("nothing serves it");
        let figures = (shortfall.requested, shortfall.used, shortfall.free);
        assert_eq!((figures, shortfall.waiting), ((3 * MIB, ALL, 0), 1));
        assert_eq!(stalled!(request), None);
        blocks.truncate(6);
        assert!(poll(&mut request).is_pending());
        assert_eq!(stalled!(request), None, "it is the same stall");
        blocks.clear();
        assert!(poll(&mut request).is_ready());
        assert_eq!(stalled!(request), None);
    }
}

#[test]
fn every_kind_of_request_stalls() {
    let device = manual();
    let (pool, stream, mut blocks) = full(&device);
    let block = blocks.pop();
    let mut reservation = pool.reserve(MIB).try_now();
    assert!(reservation.is_err() && block.is_some());
    drop(block);
    reservation = pool.reserve(MIB).try_now();
    let mut reservation = reservation.unwrap();
    let mut many = not_ready(pool.allocate_many(&stream, [MIB, 4096]));
    assert_eq!(stalled!(many).unwrap().requested, MIB + 4096);
    drop(many);
    let mut reserve = not_ready(pool.reserve(2 * MIB));
    assert_eq!(stalled!(reserve).unwrap().requested, 2 * MIB);
    drop(reserve);
    let mut owned = not_ready(pool.allocate_owned(&stream, MIB));
    assert!(stalled!(owned).is_some());
    drop(owned);
    let mut growth = not_ready(reservation.grow(MIB));
    assert!(stalled!(growth).is_some());
}

/// The waker is called, because the request was not polled after the stall.
#[test]
fn stall_is_told_if_it_is_asked_for_before_the_request_waits() {
    let device = manual();
    let (pool, stream, _blocks) = full(&device);
    let (woken, waker) = Count::new();
    let mut request = pool.allocate(&stream, MIB);
    assert_eq!(stalled!(request, &waker), None);
    assert_eq!(waiting(&pool), 0);
    assert!(poll_with(&mut request, &waker).is_pending());
    assert!(woken.get() > 0);
    assert!(stalled!(request, &waker).is_some());
}

#[test]
fn request_that_finds_memory_does_not_stall() {
    let device = manual();
    let (pool, stream, mut blocks) = full(&device);
    blocks.pop();
    let mut request = pool.allocate(&stream, MIB);
    assert_eq!(stalled!(request), None);
    let granted = poll(&mut request);
    assert!(granted.is_ready());
    assert_eq!(stalled!(request), None);
    let evictable = blocks.pop().unwrap().into_evictable();
    let mut request = pool.allocate(&stream, MIB);
    assert_eq!(stalled!(request), None);
    assert!(poll(&mut request).is_ready());
    assert!(evictable.pin().is_none());
}

#[test]
fn request_behind_the_head_stalls_when_it_becomes_the_head() {
    let device = manual();
    let (pool, stream, _blocks) = full(&device);
    let mut first = not_ready(pool.allocate(&stream, 2 * MIB));
    assert!(stalled!(first).is_some());
    let (mut second, woken, waker) = not_ready_counted(pool.allocate(&stream, MIB));
    assert_eq!((stalled!(second, &waker), woken.get()), (None, 0));
    drop(first);
    assert_eq!(woken.take(), 1);
    assert!(poll_with(&mut second, &waker).is_pending());
    assert!(stalled!(second, &waker).is_some());
    assert_eq!((stalled!(second, &waker), woken.get()), (None, 0));
}

/// A request that comes before another in the order takes the stall from it, until it leaves.
#[test]
fn stall_that_was_not_told_ends_when_another_request_is_first() {
    let device = manual();
    let (pool, stream, _blocks) = full(&device);
    let (woken, waker) = Count::new();
    let mut request = pool.allocate(&stream, MIB);
    assert_eq!(stalled!(request, &waker), None);
    assert!(poll_with(&mut request, &waker).is_pending());
    assert_eq!(woken.take(), 1, "it has stalled");
    let mut urgent = not_ready(pool.allocate(&stream, MIB).priority(1));
    assert_eq!(stalled!(request, &waker), None);
    assert!(stalled!(urgent).is_some());
    woken.take();
    drop(urgent);
    assert_eq!(woken.take(), 1);
    assert!(stalled!(request, &waker).is_some());
}

#[test]
fn memory_that_comes_back_before_the_stall_is_told_ends_it() {
    let device = manual();
    let (pool, stream, mut blocks) = full(&device);
    let mut request = pool.allocate(&stream, MIB);
    assert_eq!(stalled!(request), None);
    assert!(poll(&mut request).is_pending());
    blocks.pop();
    assert_eq!(stalled!(request), None);
    assert!(poll(&mut request).is_ready());
}

/// The owner that only asks for stalls serves the queue as well.
#[test]
fn poll_for_a_stall_answers_a_notification() {
    let device = manual();
    let (pool, stream, mut blocks) = full(&device);
    let mut served = not_ready(pool.allocate(&stream, 2 * MIB));
    let (woken, waker) = Count::new();
    assert!(stalled!(served, &waker).is_some());
    assert_eq!(stalled!(served, &waker), None);
    woken.take();
    blocks.truncate(4);
    assert!(woken.get() > 0);
    assert_eq!(stalled!(served, &waker), None);
    assert_eq!(waiting(&pool), 0, "it was granted");
    assert_eq!(pool.inspect().statistics().used.current, 4 * MIB + 2 * MIB);
    assert!(poll(&mut served).is_ready());
}

#[test]
fn first_request_at_a_limit_stalls_and_then_the_next() {
    let device = manual();
    let tag = Tag::new("stalled: a tenant");
    let pool = base(&device).made();
    let (_, stream) = stream(&device, &pool);
    pool.tag(tag).set_limit(Some(2 * MIB));
    let held = pool.allocate(&stream, 2 * MIB).tag(tag).try_now().unwrap();
    let mut first = not_ready(pool.allocate(&stream, 2 * MIB).tag(tag));
    let shortfall = stalled!(first).expect("nothing of the tag is freed");
    let of = shortfall.tag.unwrap();
    assert_eq!((of.used, of.limit), (2 * MIB, 2 * MIB));
    assert_eq!(stalled!(first), None);
    let (mut second, woken, waker) = not_ready_counted(pool.allocate(&stream, MIB).tag(tag));
    assert_eq!((stalled!(second, &waker), woken.get()), (None, 0));
    drop(first);
    assert_eq!(woken.take(), 1);
    assert!(stalled!(second, &waker).is_some());
    // In the fair queue it stalls again.
    let rest: Vec<_> = std::iter::from_fn(|| pool.try_allocate(&stream, MIB).ok()).collect();
    woken.take();
    pool.tag(tag).set_limit(Some(4 * MIB));
    assert!(woken.get() > 0);
    assert!(poll_with(&mut second, &waker).is_pending());
    assert!(stalled!(second, &waker).is_some());
    drop(rest);
    assert!(poll_with(&mut second, &waker).is_ready());
    drop((held, second));
}

/// The first throttled request is let in, and the one behind it is the first.
#[test]
fn request_at_a_limit_stalls_when_the_first_is_let_in() {
    let device = manual();
    let tag = Tag::new("stalled: another tenant");
    let pool = base(&device).made();
    let (_, stream) = stream(&device, &pool);
    pool.tag(tag).set_limit(Some(2 * MIB));
    let mut held = std::array::from_fn::<_, 2, _>(|_| {
        Some(pool.allocate(&stream, MIB).tag(tag).try_now().unwrap())
    });
    let mut first = not_ready(pool.allocate(&stream, MIB).tag(tag));
    let (woken, waker) = Count::new();
    let mut second = pool.allocate(&stream, 2 * MIB).tag(tag);
    assert_eq!(stalled!(second, &waker), None);
    assert!(poll_with(&mut second, &waker).is_pending());
    assert_eq!(woken.get(), 0);
    drop(held[0].take());
    assert_eq!(woken.take(), 1);
    assert!(stalled!(second, &waker).is_some());
    assert!(poll(&mut first).is_ready());
}

/// Tenants are throttled apart: each has a first request.
#[test]
fn first_request_of_each_tag_stalls() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let tags = ["stalled: one", "stalled: two"].map(Tag::new);
    let mut requests = tags.map(|tag| {
        pool.tag(tag).set_limit(Some(MIB));
        let held = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
        (
            held,
            not_ready(pool.allocate(&stream, MIB).tag(tag)),
            not_ready(pool.allocate(&stream, MIB).tag(tag)),
        )
    });
    for (_, first, second) in &mut requests {
        assert_eq!(stalled!(*second), None);
        assert!(stalled!(*first).is_some());
    }
}

#[test]
fn waker_that_panics_loses_no_stall() {
    let device = manual();
    let (pool, stream, _blocks) = full(&device);
    let first = not_ready(pool.allocate(&stream, 2 * MIB));
    let mut told = false;
    let mut second = pool.allocate(&stream, MIB);
    let mut waits = Woken::panicking(std::future::poll_fn(|context| {
        told |= Pin::new(&mut second).poll_stalled(context).is_ready();
        match told {
            true => Poll::Ready(()),
            false => Pin::new(&mut second).poll(context).map(drop),
        }
    }));
    drop(first);
    assert!(waits.is_woken() && waits.poll_if_woken());
    assert_eq!(waits.output, Some(()));
}

/// The head was woken, and its task never runs. It loses its turn, and the next head is told.
#[test]
fn request_behind_a_dead_task_stalls() {
    let device = manual();
    let (pool, stream, mut blocks) = full(&device);
    let (_, dead) = Count::new();
    let mut first = pool.allocate(&stream, 4 * MIB);
    assert!(poll_with(&mut first, &dead).is_pending());
    std::mem::forget(first);
    let (mut second, woken, waker) = not_ready_counted(pool.allocate(&stream, 3 * MIB));
    assert_eq!(stalled!(second, &waker), None);
    blocks.pop(); // wakes the first
    let mut told = None;
    for _ in 0..400 {
        device.advance(us(1000));
        if woken.take() > 0 {
            assert!(poll_with(&mut second, &waker).is_pending());
            told = told.or(stalled!(second, &waker));
        }
    }
    assert!(told.is_some());
}

/// A request that a thread grows the pool for does not stall meanwhile; it does when the device refuses.
#[test]
fn growth_on_a_thread_comes_before_the_stall() {
    let device = manual_builder().blocking_memory_calls(true).build();
    let pool = builder(&device, 8 * CHUNK).made();
    let (_, stream) = stream(&device, &pool);
    let (woken, waker) = Count::new();
    let mut request = pool.allocate(&stream, 8 * CHUNK);
    let mut told = 0;
    let mut polled = poll_with(&mut request, &waker);
    while polled.is_pending() {
        told += usize::from(stalled!(request, &waker).is_some());
        eventually(|| woken.take() > 0);
        polled = poll_with(&mut request, &waker);
    }
    assert_eq!(told, 0);
    let mut request = pool.allocate(&stream, CHUNK);
    eventually(|| {
        assert!(poll_with(&mut request, &waker).is_pending());
        stalled!(request, &waker).is_some()
    });
}

#[test]
fn closed_pool_tells_no_stall() {
    let device = manual();
    let (pool, stream, _blocks) = full(&device);
    let mut request = pool.allocate(&stream, MIB);
    assert_eq!(stalled!(request), None);
    assert!(poll(&mut request).is_pending());
    pool.close();
    assert_eq!(stalled!(request), None);
    assert_matches!(poll(&mut request), Poll::Ready(Err(AllocError::Closed)));
}
