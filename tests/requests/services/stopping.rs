//! A pool that admits no more requests: what fails, what goes on, and what follows.

use super::*;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool::device::Argument;
use weirpool::device::sim::{Operation, SimStream};
use weirpool::extend::{Event, Fact, Observer};
use weirpool::{Health, Source};

fn is_stopping<T>(answer: Result<T, AllocError>) -> bool {
    matches!(answer, Err(AllocError::Stopping))
}

fn health(pool: &Pool) -> Health {
    pool.inspect().health()
}

#[test]
fn waiting_requests_of_every_kind_fail_and_are_woken() {
    let (_, pool, [(_, a), (_, b)]) = set_up_with(base);
    let tag = Tag::new("stopping: at its limit");
    let _held = pool.try_allocate(&a, ALL).unwrap();
    pool.tag(tag).set_limit(Some(MIB));
    let (woken, waker) = Count::new();
    let mut block = pool.allocate(&b, MIB);
    let mut blocks = pool.allocate_many(&b, [MIB, MIB]);
    let mut reservation = pool.reserve(MIB);
    let mut charge = pool.charge_for(MIB);
    let mut tagged = [
        pool.allocate(&b, MIB).tag(tag),
        pool.allocate(&b, MIB).tag(tag),
    ];
    assert!(poll_with(&mut block, &waker).is_pending());
    assert!(poll_with(&mut blocks, &waker).is_pending());
    assert!(poll_with(&mut reservation, &waker).is_pending());
    assert!(poll_with(&mut charge, &waker).is_pending());
    for request in &mut tagged {
        assert!(poll_with(request, &waker).is_pending());
    }
    assert_eq!(health(&pool).waiting, 6);
    let before = woken.get();
    pool.stop_admitting();
    assert_eq!(woken.get() - before, 6);
    assert_eq!(health(&pool).waiting, 0, "before any of them is polled");
    assert!(is_stopping(now(block)));
    assert!(is_stopping(now(blocks)));
    assert!(is_stopping(now(reservation)));
    assert!(is_stopping(now(charge)));
    for request in tagged {
        assert!(is_stopping(now(request)));
    }
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.failed, waits.cancelled), (6, 0));
    assert_eq!(pool.tag(tag).statistics().used.current, 0);
}

/// Blocks that the stream's cache has are no exception.
#[test]
fn new_requests_of_every_kind_fail_although_memory_is_free() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let tag = Tag::new("stopping: new");
    for bytes in [4096, MIB] {
        drop(pool.try_allocate(&stream, bytes).unwrap());
        drop(pool.allocate(&stream, bytes).tag(tag).try_now().unwrap());
    }
    assert_eq!(source(&pool, &stream, 4096), Source::Lane);
    pool.stop_admitting();
    for bytes in [4096, MIB] {
        assert!(is_stopping(pool.try_allocate(&stream, bytes)));
        assert!(is_stopping(
            pool.allocate(&stream, bytes).tag(tag).try_now()
        ));
        assert!(is_stopping(now(pool.allocate(&stream, bytes))));
        assert!(is_stopping(pool.allocate(&stream, bytes).blocking()));
    }
    assert!(is_stopping(now(pool.allocate_owned(&stream, MIB))));
    assert!(is_stopping(now(pool.allocate_many(&stream, [MIB, MIB]))));
    assert!(is_stopping(now(pool.reserve(MIB))));
    assert!(is_stopping(now(pool.reserve_many([MIB, MIB]))));
    assert!(is_stopping(pool.charge(MIB)));
    let error = now(pool.allocate(&stream, MIB)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unavailable);
    assert!(!error.is_retryable(), "not by this pool");
    assert_eq!(pool.tag(tag).statistics().used.current, 0);
    assert_eq!(now(pool.drain()), Ok(()));
}

#[test]
fn memory_that_is_held_is_used_to_the_end() {
    let (device, pool, [(_, a), (_, b)]) = set_up_with(base);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let mut block = pool.try_allocate(&a, MIB).unwrap();
    let charge = pool.charge(MIB).unwrap();
    pool.stop_admitting();

    let awaited = now(reservation.scope(pool.allocate(&a, MIB))).unwrap();
    let nested = now(reservation.scope(pool.reserve(MIB))).unwrap();
    for _ in 0..3 {
        drop(reservation.allocate(&a, 4096).unwrap());
    }
    for stream in [&a, &b] {
        let uses = |work: &SimStream, block: Argument<'_>| {
            work.submit(Operation::new(us(10)).writes(block.address(), block.size()));
        };
        drop(stream.submit(&mut block, uses).unwrap());
    }
    let mut drain = not_ready(pool.drain());
    assert_eq!(reservation.left(), 2 * MIB);
    drop((awaited, nested, block, charge));
    assert_eq!(reservation.left(), 4 * MIB);
    assert!(poll(&mut drain).is_pending(), "the reservation is held");
    drop(reservation.allocate(&b, 4 * MIB).unwrap());
    drop(reservation);
    device.advance_to_end();
    assert_eq!(poll(&mut drain), Poll::Ready(Ok(())));
    pool.close();
}

/// A service does not break an answer because the answer needs more than was reserved for it.
#[test]
fn requests_of_holders_wait_and_are_granted() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let tag = Tag::new("stopping: of others");
    let mut reservation = pool.reserve(2 * MIB).try_now().unwrap();
    let scope = pool.reserve(MIB).try_now().unwrap();
    let mut grows = pool.allocate(&stream, 2 * MIB).room(8 * MIB).try_now();
    let grows = grows.as_mut().unwrap();
    let held: Vec<_> = std::iter::from_fn(|| pool.try_allocate(&stream, MIB).ok()).collect();
    let waited = pool.inspect().statistics().waits.served;
    pool.stop_admitting();
    {
        let mut growth = not_ready(reservation.grow(2 * MIB));
        let mut larger = not_ready(grows.grow(2 * MIB));
        let mut beyond = not_ready(Box::pin(scope.scope(pool.allocate(&stream, 2 * MIB))));
        let others = pool.allocate(&stream, 2 * MIB).tag(tag);
        assert!(is_stopping(now(Box::pin(scope.scope(others)))));
        assert_eq!(health(&pool).waiting, 3);
        drop(held);
        assert_matches!(poll(&mut growth), Poll::Ready(Ok(())));
        assert_matches!(poll(&mut larger), Poll::Ready(Ok(())));
        assert_matches!(poll(&mut beyond), Poll::Ready(Ok(_)));
    }
    assert_eq!(pool.inspect().statistics().waits.served, waited + 3);
    assert_eq!((reservation.size(), grows.size()), (4 * MIB, 4 * MIB));
    // With memory free, and without waiting.
    reservation.grow(2 * MIB).try_now().unwrap();
    let _entered = scope.enter();
    drop(pool.try_allocate(&stream, 2 * MIB).unwrap());
    drop(pool.reserve(2 * MIB).try_now().unwrap());
}

#[test]
fn captures_take_memory_and_evictable_memory_is_evicted_for_holders() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let cached = pool.try_allocate(&stream, ALL - 4 * MIB).unwrap();
    let cached = cached.into_evictable();
    let mut reservation = pool.reserve(2 * MIB).try_now().unwrap();
    pool.stop_admitting();
    assert!(is_stopping(pool.try_allocate(&stream, 6 * MIB)));
    assert!(cached.is_present(), "a request that fails evicts nothing");
    let memory = pool.graph_memory();
    let capture = memory.capture(&stream).unwrap();
    drop(pool.try_allocate(&stream, MIB).unwrap());
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    assert!(cached.is_present());
    reservation.grow(4 * MIB).try_now().unwrap();
    assert!(!cached.is_present());
}

#[test]
fn grant_that_came_before_is_taken_after() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    let granted = not_ready(pool.allocate(&stream, ALL / 2));
    let forgone = not_ready(pool.allocate(&stream, ALL / 2));
    drop(held);
    let _ = pool.resize(ALL).unwrap(); // serves the queue
    assert_eq!(health(&pool).waiting, 0, "both were granted");
    pool.stop_admitting();
    drop(now(granted).unwrap());
    drop(forgone);
    assert_eq!(now(pool.drain()), Ok(()));
}

#[test]
fn close_follows_and_ends_draws_as_well() {
    #[derive(Debug, Default)]
    struct Ends(Mutex<Vec<&'static str>>);
    impl Observer for Ends {
        fn event(&self, event: &Event<'_>) {
            match event.fact {
                Fact::Stopping => self.0.lock().unwrap().push("stopping"),
                Fact::Closed => self.0.lock().unwrap().push("closed"),
                _ => {}
            }
        }
    }
    let device = manual();
    let ends = Arc::new(Ends::default());
    let pool = base(&device).observer(ends.clone()).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let mut reservation = pool.reserve(2 * MIB).try_now().unwrap();
    assert!(health(&pool).is_serving());
    for _ in 0..2 {
        pool.stop_admitting();
        let health = health(&pool);
        assert!(health.is_stopping && !health.is_closed && !health.is_serving());
    }
    drop(reservation.allocate(&stream, MIB).unwrap());
    pool.close();
    pool.stop_admitting();
    let closed = health(&pool);
    assert!(closed.is_stopping && closed.is_closed);
    assert_eq!(closed.to_string(), "closed; no requests waiting");
    let drawn = reservation.allocate(&stream, MIB).unwrap_err();
    assert_eq!(drawn, AllocError::Closed);
    let grown = reservation.grow(MIB).try_now().unwrap_err();
    assert_eq!(grown, AllocError::Closed);
    assert_eq!(
        pool.try_allocate(&stream, 1).unwrap_err(),
        AllocError::Closed
    );
    assert_eq!(*ends.0.lock().unwrap(), ["stopping", "closed"]);
}

/// The last handle is dropped while memory is held, and no drain was awaited.
#[test]
fn pool_that_stopped_ends_as_any_pool() {
    let (device, pool, [(work, stream)]) = set_up_with(base);
    let reservation = pool.reserve(2 * MIB).try_now().unwrap();
    let block = reservation.allocate(&stream, MIB).unwrap();
    use_block(&work, &block, us(10));
    pool.stop_admitting();
    pool.end_before_its_blocks();
    drop(stream);
    let pool = reservation.pool().downgrade();
    drop((block, reservation));
    device.advance_to_end();
    eventually(|| pool.upgrade().is_none());
    eventually(|| device.counters().physical_in_use == 0);
}
