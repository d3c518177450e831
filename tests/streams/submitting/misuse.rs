//! Submitted work in the hands of callers that panic, re-enter the pool, give up, or wait in a circle.

use super::*;
use futures::channel::oneshot;
use futures::future::join;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use weirpool::device::Argument;

/// A future that panics at its first poll and when it is dropped, and would go on at its second poll.
struct PanicsOnce {
    polls: usize,
    drops: Arc<AtomicUsize>,
    panics_in_drop: bool,
}

impl Future for PanicsOnce {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<usize> {
        self.polls += 1;
        match self.polls {
            1 => resume_unwind(Box::new("the first poll")),
            polls => Poll::Ready(polls),
        }
    }
}

impl Drop for PanicsOnce {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        if self.panics_in_drop {
            resume_unwind(Box::new("the drop"));
        }
    }
}

/// The stream goes on after a panic, so that the future must not.
#[test]
fn panicked_future_is_dropped_before_the_stream_goes_on() {
    for panics_in_drop in [false, true] {
        let (device, _pool, [stream]) = place();
        let drops = Arc::new(AtomicUsize::new(0));
        let future = PanicsOnce {
            polls: 0,
            drops: drops.clone(),
            panics_in_drop,
        };
        let mut task = Box::pin(stream.spawn(future).unwrap());
        let seen = drops.clone();
        let dropped_before = stream.run(move || seen.load(Ordering::SeqCst)).unwrap();
        for _ in 0..2 {
            let polled = catch_unwind(AssertUnwindSafe(|| poll(&mut task)));
            assert!(polled.is_err(), "{polled:?}");
        }
        device.advance(us(1));
        assert_eq!(now(dropped_before), Ok(1));
        drop(task);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        assert_eq!(stream.statistics().abandoned_host_tasks, 1);
    }
}

/// No lock is held while a closure runs: it may use the pool, the stream itself, and close the pool.
#[test]
fn closure_may_re_enter_the_pool() {
    let (device, pool, [stream, other]) = place();
    let mut block = pool.try_allocate(&stream, MIB).unwrap();
    let task = stream.submit(&mut block, |work: &SimStream, argument| {
        work.submit(Operation::new(us(10)).writes(argument.address(), argument.size()));
        let mut inner = pool.try_allocate(&stream, MIB).unwrap();
        let nested = stream.submit(&mut inner, |work: &SimStream, inner| {
            work.submit(Operation::new(us(5)).writes(inner.address(), inner.size()));
            drop(pool.register(work).unwrap());
        });
        drop(inner);
        let nested = nested.unwrap();
        other.after(&nested).unwrap();
        drop(stream.run(|| ()).unwrap());
        let waiting = pool.allocate(&other, 64 * MIB);
        drop(not_ready(Box::pin(waiting)));
        pool.maintain().reap().unwrap();
        drop(pool.trim_to(0));
        nested
    });
    drop(block);
    device.advance(us(20));
    let nested = now(task.unwrap()).unwrap();
    assert_eq!(now(nested), Ok(()));
    let closes = stream.submit((), |_: &SimStream, ()| {
        pool.close();
        stream.submit((), |_: &SimStream, ()| ()).map(drop)
    });
    assert_eq!(now(closes.unwrap()), Ok(Err(TaskError::Closed)));
    device.assert_ordered();
}

/// Work submitted before the pool was closed comes to its end.
#[test]
fn host_task_and_tasks_end_after_the_pool_is_closed() {
    let (device, pool, [stream, other]) = place();
    let host = stream.spawn(async { 7 }).unwrap();
    let work = spend(&stream, 10);
    let called = stream.run(|| 8).unwrap();
    pool.close();
    other.after(&work).unwrap();
    assert_matches!(stream.run(|| ()), Err(TaskError::Closed));
    assert_matches!(stream.spawn(async {}), Err(TaskError::Closed));
    drop(pool);
    assert_eq!(now(host), Ok(7));
    device.advance(us(10));
    assert_eq!((now(work), now(called)), (Ok(()), Ok(8)));
}

/// Two host tasks that wait for each other's streams stand still until one is dropped, and then both streams go on.
#[test]
fn circle_of_host_tasks_is_broken_by_dropping_one() {
    for first_is_dropped in [true, false] {
        let (device, _pool, [a, b]) = place();
        let (held_a, held_b) = (a.task("a"), b.task("b"));
        let (gate_a, wait_a) = oneshot::channel::<Task<()>>();
        let (gate_b, wait_b) = oneshot::channel::<Task<()>>();
        let awaits = |gate: oneshot::Receiver<Task<()>>| async { gate.await.unwrap().await };
        let first = held_a.spawn(awaits(wait_a)).unwrap();
        let second = held_b.spawn(awaits(wait_b)).unwrap();
        gate_a.send(spend(&b, 5)).ok().unwrap();
        gate_b.send(spend(&a, 5)).ok().unwrap();
        let (mut first, mut second) = (Box::pin(first), Box::pin(second));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        device.advance(us(1000));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        let left = match first_is_dropped {
            true => {
                drop(first);
                second
            }
            false => {
                drop(second);
                first
            }
        };
        device.advance(us(5));
        assert_eq!(now(left), Ok(Ok(())));
        device.advance(us(5));
        let held = [&a, &b].map(|stream| stream.statistics().host_tasks);
        assert_eq!(held, [0, 0]);
    }
}

/// A stream is ordered after tasks of every kind of stream, or told why not.
#[test]
fn order_after_tasks_of_other_pools_and_devices() {
    let (device, pool, [stream, captured]) = place();
    let host = Pool::builder(device.clone()).upstream(Upstream::Pinned);
    let host = host.made();
    let on_host = host.host_stream().unwrap();
    let foreign = {
        let device = manual();
        let pool = crate::common::pool(&device, 8 * MIB);
        let stream = pool.create_stream().unwrap();
        spend(&stream, 10)
    };
    let refused = stream.after(&foreign).unwrap_err();
    assert_eq!(refused, TaskError::Stream(StreamError::ForeignDevice));
    let task = spend(&stream, 10);
    let refused = on_host.after(&task).unwrap_err();
    assert_matches!(refused, TaskError::Device(error) if !error.is_sticky());
    let capture = pool.capture(&captured).unwrap();
    assert!(captured.after(&task).is_err(), "its work is not complete");
    device.advance(us(10));
    on_host.after(&task).unwrap();
    captured.after(&task).unwrap();
    drop(capture.end().unwrap());
    let ends = join(task, host.create_stream().unwrap().synchronize());
    assert_eq!(now(ends), (Ok(()), Ok(())));
}

/// The error names what to do, and that works: the device's stream is registered with the block's pool as well.
#[test]
fn memory_of_two_pools_meets_on_a_stream_that_both_know() {
    let device = manual();
    let here = pool(&device, 8 * MIB);
    let there = builder(&device, 8 * MIB).name("misuse: there");
    let there = there.made();
    let [(work, stream), (_, other)] = streams(&device, &here);
    let mut own = here.try_allocate(&stream, MIB).unwrap();
    let (_, home) = crate::common::stream(&device, &there);
    let mut foreign = there.try_allocate(&home, MIB).unwrap();
    assert_eq!((own.pool(), foreign.pool()), (here.clone(), there.clone()));
    drop(foreign.upload(&home, 0, b"weir").unwrap());

    let refused = stream.submit((&mut own, &foreign), |_: &SimStream, _| ());
    let refused = refused.map(drop).unwrap_err();
    assert_matches!(refused, TaskError::Stream(StreamError::ForeignPool(_)));
    let text = refused.to_string();
    let both = format!(
        "(stream {} is of an unnamed pool of 8.0 MiB, the block at {:#x} of pool \"misuse: there\")",
        stream.id(),
        foreign.address()
    );
    assert!(text.contains(&both), "{text}");
    assert!(
        text.contains("register the device's stream with the memory's pool as well"),
        "{text}"
    );

    let same = there.register(&work).unwrap();
    same.record_use(&mut foreign).unwrap();
    let (address, size) = (foreign.address(), foreign.size());
    let task = stream.submit(&mut own, |work: &SimStream, own: Argument<'_>| {
        let both = Operation::new(us(10)).writes(own.address(), own.size());
        work.submit(both.writes(address, size));
    });
    drop(task.unwrap());
    own.move_to(&other).unwrap();
    drop((own, foreign));
    device.advance_to_end();
    device.assert_ordered();
}
