//! Closing, and waiting until everything came back.

use super::*;
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::task::Poll;
use weirpool::testing::Invariants;

assert_impl_all!(Drain: Send, Sync, Unpin);
assert_impl_all!(DrainError: Send, Sync, std::error::Error);
// What waits for memory borrows the pool: the last handle cannot go before it.
assert_not_impl_any!(Pool: Copy);

const DONE: Poll<Result<(), DrainError>> = Poll::Ready(Ok(()));

/// A pool that nobody used, and one that everything came back to: at once.
#[test]
fn nothing_is_waited_for_where_nothing_is_out() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    assert_eq!(now(pool.drain()), Ok(()));
    let (_, stream) = stream(&device, &pool);
    // Kept by the stream's lane, and under no event yet; but the device has nothing to do.
    drop(pool.try_allocate(&stream, 4096).unwrap());
    assert_eq!(now(pool.drain()), Ok(()));
}

/// Whatever is out is waited for: blocks of any size, what is set aside, who waits, what is pending. And each
/// that may be the last wakes.
#[test]
fn everything_is_waited_for() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (work, stream) = stream(&device, &pool);
    let (woken, waker) = Count::new();
    let mut drain = pool.drain();
    let mut is_woken_for_nothing_less = |what: &'static str| {
        let before = woken.get();
        assert!(poll_with(&mut drain, &waker).is_pending(), "{what}");
        move |woken: &Count| assert!(woken.get() > before, "{what} is over, and nobody is told")
    };

    let small = pool.try_allocate(&stream, 4096).unwrap();
    let check = is_woken_for_nothing_less("a small block");
    let reservation = pool.reserve(MIB).try_now().unwrap();
    drop(small);
    check(&woken);
    let check = is_woken_for_nothing_less("a reservation");
    let mut waiting = pool.allocate(&stream, ALL);
    assert!(poll(&mut waiting).is_pending());
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
    pool.check_conserved().unwrap();
}

/// Who waits and gives up may be the last.
#[test]
fn a_waiter_that_gives_up_may_be_the_last() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("drain: at the door");
    pool.set_tag_limit(tag, Some(MIB));
    let held = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    let mut at_the_door = pool.allocate(&stream, MIB).tag(tag);
    assert!(poll(&mut at_the_door).is_pending());
    let (woken, waker) = Count::new();
    let mut drain = pool.drain();
    drop(held);
    // Let in, and granted: it has not heard of it.
    assert!(poll_with(&mut drain, &waker).is_pending());
    let before = woken.get();
    drop(at_the_door);
    assert!(woken.get() > before);
    assert_eq!(poll(&mut drain), DONE);
}

/// It ends nothing: allocations are granted while somebody drains, though not from lanes; and those are back
/// in use after it.
#[test]
fn draining_is_not_closing() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (_, stream) = stream(&device, &pool);
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

/// After closing, who waited is out of the queue, even if its future is never looked at again.
#[test]
fn a_closed_pool_drains() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    let mut waiting = pool.allocate(&stream, MIB);
    assert!(poll(&mut waiting).is_pending());
    std::mem::forget(waiting);
    let (woken, waker) = Count::new();
    let mut drain = pool.drain();
    assert!(poll_with(&mut drain, &waker).is_pending());
    assert_eq!(pool.close().blocks.len(), 1);
    assert!(woken.get() > 0);
    assert!(poll_with(&mut drain, &waker).is_pending(), "a block lives");
    drop(held);
    assert_eq!(poll(&mut drain), DONE);
    assert_eq!(now(pool.drain()), Ok(()));
}

#[test]
fn a_timeout_says_what_is_out() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (work, stream) = stream(&device, &pool);
    let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let pending = pool.try_allocate(&stream, MIB).unwrap();
    use_block(&work, &pending, us(1000));
    drop(pending);
    let (woken, waker) = Count::new();
    let mut drain = pool.drain().timeout(us(100));
    assert!(poll_with(&mut drain, &waker).is_pending());
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
fn a_device_that_breaks_ends_it() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, MIB).unwrap();
    use_block(&work, &block, us(100));
    drop(block);
    let (woken, waker) = Count::new();
    let mut drain = pool.drain();
    assert!(poll_with(&mut drain, &waker).is_pending());
    let before = woken.get();
    device.break_device("an illegal address");
    assert!(woken.get() > before);
    let ended = poll(&mut drain);
    assert!(
        matches!(ended, Poll::Ready(Err(DrainError::Device(_)))),
        "{ended:?}"
    );
}

#[test]
fn unpooled_pool_drains() {
    let device = manual();
    let pool = Pool::builder(device.clone());
    let pool = pool.capacity(ALL).unpooled().build().unwrap();
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, MIB).unwrap();
    use_block(&work, &block, us(100));
    let mut drain = pool.drain();
    assert!(poll(&mut drain).is_pending());
    drop(block);
    assert!(poll(&mut drain).is_pending());
    device.advance(us(100));
    assert_eq!(poll(&mut drain), DONE);
}

/// Each of these is a handle: the pool is there for as long as any of them.
#[test]
fn a_drain_and_a_reservation_outlive_the_last_handle() {
    let device = manual();
    let pool = base(&device).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let reservation = pool.reserve(MIB).try_now().unwrap();
    let mut drain = pool.drain();
    assert!(poll(&mut drain).is_pending());
    drop((pool, stream));
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

    /// The runtime goes first, with tasks that wait and drain on it: another finishes what is left.
    #[test]
    fn the_runtime_is_shut_down_first() {
        let device = SimDevice::new();
        let pool = base(&device).build().unwrap();
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
        pool.check_conserved().unwrap();
    }

    /// Futures that began on one runtime go on on another, whether or not the first one lives.
    #[test]
    fn the_runtime_is_changed() {
        for lives_on in [true, false] {
            let device = SimDevice::new();
            let pool = base(&device).build().unwrap();
            let (work, stream) = stream(&device, &pool);
            let held = pool.try_allocate(&stream, ALL).unwrap();
            let mut waiting = pool.allocate(&stream, MIB);
            let mut drain = pool.drain();
            let first = runtime();
            first.block_on(async {
                assert!(poll(&mut waiting).is_pending());
                assert!(poll(&mut drain).is_pending());
            });
            let first = lives_on.then_some(first);
            let second = runtime();
            second.block_on(async {
                use_block(&work, &held, us(100));
                drop(held);
                drop(waiting.await.unwrap());
                drain.await.unwrap();
            });
            drop(first);
            pool.check_conserved().unwrap();
        }
    }
}
