//! Functions and tasks of the host.

use super::*;
use futures::channel::oneshot;
use futures::future::{join, join3};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use weirpool::device::DeviceErrorKind;

/// Tells that it was dropped.
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn guard() -> (Guard, impl Fn() -> bool) {
    let dropped = Arc::new(AtomicBool::new(false));
    let seen = dropped.clone();
    (Guard(dropped), move || seen.load(Ordering::SeqCst))
}

#[test]
fn detached_function_is_called_and_its_value_dropped() {
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    let (value, is_dropped) = guard();
    drop(stream.run(move || value).unwrap());
    assert!(!is_dropped());
    device.advance(us(10));
    assert!(is_dropped());
}

/// A value whose drop panics in the device's thread must not break the device.
#[test]
fn panicking_drop_of_a_detached_value_is_contained() {
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            resume_unwind(Box::new("a drop that panics"));
        }
    }
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    drop(stream.run(|| Panics).unwrap());
    device.advance(us(10));
    assert_eq!(now(spend(&stream, 0)), Ok(()));
}

#[test]
fn function_on_a_broken_device_is_never_called() {
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    let (owned, is_dropped) = guard();
    let task = stream.run(move || {
        drop(owned);
        unreachable!("the device is broken");
    });
    let mut task = Woken::new(task.unwrap());
    device.faults().break_device("a test");
    assert!(is_dropped());
    assert!(task.poll_if_woken());
    assert_matches!(task.output, Some(Err(TaskError::Device(error))) if error.is_sticky());
}

/// The future is dropped without a poll, and before the task's end is told.
#[test]
fn host_task_on_a_broken_device_ends_with_its_error() {
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    let (owned, is_dropped) = guard();
    let task = stream.spawn(async move {
        drop(owned);
        unreachable!("the device is broken");
    });
    let mut task = Woken::new(task.unwrap());
    device.faults().break_device("a test");
    assert!(task.poll_if_woken());
    assert_matches!(task.output, Some(Err(TaskError::Device(error))) if error.is_sticky());
    assert!(is_dropped());
    assert_eq!(stream.statistics().abandoned_host_tasks, 1);
}

/// The stream goes on only when the future and all that it owned are gone.
#[test]
fn dropped_host_task_ends_its_future_before_the_stream_goes_on() {
    for polls in 0..3 {
        let (device, _pool, [stream]) = place();
        let (owned, is_dropped) = guard();
        let task = stream.spawn(async move {
            let _owned = owned;
            std::future::pending::<()>().await;
        });
        let mut task = Box::pin(task.unwrap());
        let (observed, was_dropped) = oneshot::channel();
        drop(
            stream
                .run(move || observed.send(is_dropped()).unwrap())
                .unwrap(),
        );
        for _ in 0..polls {
            assert!(poll(&mut task).is_pending());
        }
        device.advance(us(10));
        drop(task);
        assert_eq!(now(was_dropped), Ok(true), "after {polls} polls");
    }
}

#[test]
fn host_task_is_polled_only_when_the_stream_is_there() {
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    let mut polls = 0;
    let future = std::future::poll_fn(|_: &mut Context<'_>| {
        polls += 1;
        Poll::Ready(())
    });
    let mut task = Woken::new(stream.spawn(future).unwrap());
    device.advance(us(9));
    assert!(!task.poll_if_woken());
    device.advance(us(1));
    assert!(task.poll_if_woken());
    assert_eq!(task.output, Some(Ok(())));
    drop(task);
    assert_eq!(polls, 1);
}

/// What a stream freed before the task is available to the task, although the stream stands still.
#[test]
fn host_task_gets_memory_that_was_freed_before_it() {
    let (device, pool, [stream, other]) = place();
    let block = pool.try_allocate(&stream, 64 * MIB).unwrap();
    drop(spend(&stream, 10));
    drop(block);
    let task = stream.spawn(async { pool.allocate(&other, 64 * MIB).await.map(drop) });
    let mut task = Woken::new(task.unwrap());
    device.advance(us(10));
    settle(std::slice::from_mut(&mut task));
    assert_eq!(task.output, Some(Ok(Ok(()))));
}

#[test]
fn panic_of_a_host_task_reaches_its_poller() {
    let (device, _pool, [stream]) = place();
    let (owned, is_dropped) = guard();
    let task = stream.task("decode").spawn(async move {
        let _owned = owned;
        resume_unwind(Box::new("no input"));
    });
    let mut task = Box::pin(task.unwrap());
    assert!(format!("{task:?}").contains("decode"));
    let next = spend(&stream, 5);
    let panicked: Result<Poll<Result<(), _>>, _> =
        catch_unwind(AssertUnwindSafe(|| poll(&mut task)));
    assert!(panicked.is_err() && is_dropped());
    device.advance(us(5));
    assert_eq!(now(next), Ok(()));
    assert_eq!(stream.statistics().abandoned_host_tasks, 1);
}

#[test]
fn waker_that_panics_does_not_hold_the_stream() {
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    let mut task = Woken::panicking(stream.spawn(async {}).unwrap());
    let _ = catch_unwind(AssertUnwindSafe(|| device.advance(us(10))));
    task.poll();
    assert_eq!(task.output, Some(Ok(())));
    assert_eq!(now(spend(&stream, 0)), Ok(()));
}

/// A future that never ends shows in the stream's figures and in the report of a device on which no task can proceed.
#[test]
fn stream_that_is_held_for_ever_is_explained() {
    let device = SimDevice::new();
    let pool = pool(&device, 8 * MIB);
    let stream = pool.create_stream().unwrap().named("main");
    let task = stream.task("upload").spawn(std::future::pending::<()>());
    let task = task.unwrap();
    let work = spend(&stream, 10);
    assert_eq!(stream.statistics().host_tasks, 1);
    let stuck = catch_unwind(AssertUnwindSafe(|| {
        device.block_on(async { join(task, work).await })
    }));
    let report = stuck.unwrap_err();
    let report = report.downcast_ref::<String>().unwrap();
    for words in [
        "is held by the host task \"upload\", which has not ended",
        "main (S1) is held by the host task \"upload\", since 0.000 ms, at tests/streams/submitting/host.rs",
    ] {
        assert!(report.contains(words), "{words:?} in {report}");
    }
}

/// In virtual time: the stream, the task, and the stream again.
#[test]
fn host_tasks_of_two_streams_take_turns_with_their_work() {
    let device = SimDevice::new();
    let pool = pool(&device, 8 * MIB);
    let [a, b] = [(); 2].map(|()| pool.create_stream().unwrap());
    let clock = device.clone();
    let pause = move |time| {
        let clock = clock.clone();
        async move { clock.sleep(us(time)).await }
    };
    drop(spend(&a, 10));
    let first = a.spawn(pause(5)).unwrap();
    b.after(&first).unwrap();
    let second = b.spawn(pause(7)).unwrap();
    let end = spend(&b, 3);
    device.block_on(async {
        let (first, second, end) = join3(first, second, end).await;
        first.and(second).and(end).unwrap();
    });
    assert_eq!(device.now(), us(10 + 5 + 7 + 3));
}

#[test]
fn work_that_the_device_refuses_is_dropped() {
    let (device, _pool, [stream]) = place();
    let (owned, is_dropped) = guard();
    device
        .faults()
        .fail_next(Call::Run, DeviceErrorKind::Unsupported);
    let refused = stream.run(move || drop(owned)).map(drop);
    assert!(refused.is_err() && is_dropped());
    let (owned, is_dropped) = guard();
    device
        .faults()
        .fail_next(Call::Hold, DeviceErrorKind::Unsupported);
    let refused = stream.spawn(async move { drop(owned) }).map(drop);
    assert!(refused.is_err() && is_dropped());
    assert_eq!(now(spend(&stream, 0)), Ok(()));
}
