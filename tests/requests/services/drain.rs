//! Closing a pool, and waiting until all memory is back.

use super::*;
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::task::Poll;
use weirpool_observe::Recorded as _;

assert_impl_all!(Drain: Send, Sync, Unpin);
assert_impl_all!(DrainError: Send, Sync, std::error::Error);
// Requests borrow the pool: the last handle cannot be dropped before them.
assert_not_impl_any!(Pool: Copy);

const DONE: Poll<Result<(), DrainError>> = Poll::Ready(Ok(()));

/// A pool that was never used, and one whose memory is all back, are drained at once.
#[test]
fn drain_of_an_idle_pool_is_ready_at_once() {
    let device = manual();
    let pool = base(&device).made();
    assert_eq!(now(pool.drain()), Ok(()));
    let (_, stream) = stream(&device, &pool);
    // The stream's cache keeps it, and no event covers it yet. The device has no work.
    drop(pool.try_allocate(&stream, 4096).unwrap());
    assert_eq!(now(pool.drain()), Ok(()));
}

/// A drain waits for blocks of any size, reservations, waiting requests and pending memory. It is woken by each change
/// that may be the last one.
#[test]
fn drain_waits_for_all_memory_and_requests() {
    let (device, pool, [(work, stream)]) = set_up_with(base);
    let (woken, waker) = Count::new();
    let mut drain = pool.drain();
    let mut is_woken_for_nothing_less = |what: &'static str| {
        let before = woken.get();
        assert!(poll_with(&mut drain, &waker).is_pending(), "{what}");
        move |woken: &Count| {
            assert!(
                woken.get() > before,
                "{what} is over, and the drain was not woken"
            )
        }
    };

    let small = pool.try_allocate(&stream, 4096).unwrap();
    let check = is_woken_for_nothing_less("a small block");
    let reservation = pool.reserve(MIB).try_now().unwrap();
    drop(small);
    check(&woken);
    let check = is_woken_for_nothing_less("a reservation");
    let mut waiting = not_ready(pool.allocate(&stream, ALL));
    drop(reservation);
    check(&woken);
    let block = match poll(&mut waiting) {
        Poll::Ready(block) => block.unwrap(),
        Poll::Pending => panic!("there is room"),
    };
    let check = is_woken_for_nothing_less("a large block");
    use_block(&work, &block, us(100));
    drop(block);
    check(&woken);
    let check = is_woken_for_nothing_less("work");
    device.advance(us(100));
    check(&woken);
    assert_eq!(poll_with(&mut drain, &waker), DONE);
}

/// The last waiting request gives up.
#[test]
fn drain_ends_when_the_last_request_gives_up() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let tag = Tag::new("drain: at the limit");
    pool.tag(tag).set_limit(Some(MIB));
    let held = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    let at_the_limit = not_ready(pool.allocate(&stream, MIB).tag(tag));
    let (woken, waker) = Count::new();
    let mut drain = pool.drain();
    drop(held);
    // It was let in and granted, and has not been polled since. The first poll of the drain finds that the stream is
    // complete, and wakes all drains.
    for _ in 0..2 {
        assert!(poll_with(&mut drain, &waker).is_pending());
    }
    let before = woken.get();
    drop(at_the_limit);
    assert!(woken.get() > before);
    assert_eq!(poll(&mut drain), DONE);
}

/// Allocations are granted while a drain waits, but not from caches. After it, they are granted from caches again.
#[test]
fn drain_does_not_close_the_pool() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let source = |bytes| {
        drop(pool.try_allocate(&stream, bytes).unwrap());
        pool.try_allocate(&stream, bytes).unwrap().source()
    };
    assert_eq!(source(4096), Source::Lane);
    let held = pool.try_allocate(&stream, MIB).unwrap();
    let mut drains = [pool.drain(), pool.drain()];
    assert!(drains.iter_mut().all(|drain| poll(drain).is_pending()));
    assert_ne!(source(4096), Source::Lane);
    let [one, mut other] = drains;
    drop(one); // cancelled
    assert_ne!(source(4096), Source::Lane, "the other drains still");
    assert!(poll(&mut other).is_pending());
    drop(held);
    assert_eq!(poll(&mut other), DONE);
    assert_eq!(source(4096), Source::Lane);
}

/// Closing removes waiting requests from the queue, even if their futures are never polled again.
#[test]
fn closed_pool_drains() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    let waiting = not_ready(pool.allocate(&stream, MIB));
    std::mem::forget(waiting);
    let (mut drain, woken, waker) = not_ready_counted(pool.drain());
    pool.close();
    assert_eq!(pool.leaks().blocks.len(), 1);
    assert!(woken.get() > 0);
    assert!(poll_with(&mut drain, &waker).is_pending(), "a block lives");
    drop(held);
    assert_eq!(poll(&mut drain), DONE);
    assert_eq!(now(pool.drain()), Ok(()));
}

#[test]
fn timeout_of_a_drain_names_the_memory_in_use() {
    let (device, pool, [(work, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let pending = pool.try_allocate(&stream, MIB).unwrap();
    use_block(&work, &pending, us(1000));
    drop(pending);
    let (mut drain, woken, _) = not_ready_counted(pool.drain().timeout(us(100)));
    let before = woken.get();
    device.advance(us(100));
    assert!(woken.get() > before, "the device's alarm");
    let Poll::Ready(Err(DrainError::TimedOut {
        waited,
        used,
        pending,
        waiting,
        ..
    })) = poll(&mut drain)
    else {
        panic!("its time is over");
    };
    let out = (waited, used, pending, waiting);
    assert_eq!(out, (us(100), 4 * MIB, MIB, 0));
    drop(held);
}

#[test]
fn drain_fails_when_the_device_breaks() {
    let (device, pool, [(work, stream)]) = set_up_with(base);
    use_and_free(&pool, (&work, &stream), MIB, us(100));
    let (mut drain, woken, _) = not_ready_counted(pool.drain());
    let before = woken.get();
    device.faults().break_device("an illegal address");
    assert!(woken.get() > before);
    let ended = poll(&mut drain);
    assert_matches!(ended, Poll::Ready(Err(DrainError::Device(_))));
}

#[test]
fn unpooled_pool_drains() {
    let device = manual();
    let pool = Pool::builder(device.clone());
    let pool = pool.capacity(ALL).upstream(Upstream::Unpooled).made();
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, MIB).unwrap();
    use_block(&work, &block, us(100));
    let mut drain = not_ready(pool.drain());
    drop(block);
    assert!(poll(&mut drain).is_pending());
    device.advance(us(100));
    assert_eq!(poll(&mut drain), DONE);
}

/// Each of these is a handle: the pool lives as long as any of them.
#[test]
fn drain_and_reservation_keep_the_pool_alive() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let reservation = pool.reserve(MIB).try_now().unwrap();
    let mut drain = not_ready(pool.drain());
    pool.end_before_its_blocks();
    drop(stream);
    assert_eq!(reservation.left(), MIB);
    drop(reservation);
    assert_eq!(poll(&mut drain), DONE);
    assert!(device.counters().physical_in_use > 0);
    drop(drain);
    assert_eq!(device.counters().physical_in_use, 0);
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;
    use tokio::runtime::{Builder, Runtime};

    fn runtime() -> Runtime {
        Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap()
    }

    /// The runtime is shut down with tasks that wait and drain on it. Another runtime finishes the rest.
    #[test]
    fn drain_survives_the_shutdown_of_a_runtime() {
        let device = SimDevice::new();
        let pool = base(&device).made();
        let (work, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, ALL).unwrap();
        let first = runtime();
        first.spawn({
            let (pool, stream) = (pool.clone(), stream.clone());
            async move { drop(pool.allocate(&stream, MIB).await) }
        });
        first.spawn(pool.drain());
        eventually(|| waiting(&pool) == 1);
        drop(first);
        assert_eq!(waiting(&pool), 0, "its task is gone");
        use_block(&work, &held, us(100));
        drop(held);
        pool.close();
        assert_eq!(runtime().block_on(pool.drain()), Ok(()));
        pool.inspect().check_conserved().unwrap();
    }

    /// Futures that began on one runtime go on on another one, whether or not the first one lives.
    #[test]
    fn drain_moves_to_another_runtime() {
        for lives_on in [true, false] {
            let device = SimDevice::new();
            let pool = base(&device).made();
            let (work, stream) = stream(&device, &pool);
            let held = pool.try_allocate(&stream, ALL).unwrap();
            let mut waiting = pool.allocate(&stream, MIB);
            let mut drain = pool.drain();
            let first = runtime();
            first.block_on(async {
                assert!(poll(&mut waiting).is_pending());
                assert!(poll(&mut drain).is_pending());
            });
            let _first = lives_on.then_some(first);
            let second = runtime();
            second.block_on(async {
                use_block(&work, &held, us(100));
                drop(held);
                drop(waiting.await.unwrap());
                drain.await.unwrap();
            });
        }
    }
}
