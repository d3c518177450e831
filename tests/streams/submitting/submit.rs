//! Work of the device: its cost, its memory, its errors.

use super::*;
use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use weirpool::device::sim::Clock;
use weirpool::device::{Argument, DeviceErrorKind, NativeStream};
use weirpool_share::Share;

/// This holds as long as no other stream uses the memory.
#[test]
fn submission_makes_no_heap_allocation_and_no_device_call() {
    let (device, pool, [stream]) = place();
    let mut block = pool.try_allocate(&stream, MIB).unwrap();
    let other = pool.try_allocate(&stream, MIB).unwrap();
    let calls = device.counters().device_calls;
    let made = allocations(|| {
        for _ in 0..10 {
            let accesses = (&mut block, &other);
            let task = stream.submit(accesses, |_: &SimStream, (a, b)| a.size() + b.size());
            drop(task.unwrap());
        }
    });
    assert_eq!(made, 0);
    assert_eq!(device.counters().device_calls, calls);
}

#[test]
fn tasks_share_the_event_of_the_first_that_is_awaited() {
    let (device, _pool, [stream, other]) = place();
    let [first, second] = [spend(&stream, 10), spend(&stream, 10)];
    let records = || device.counters().calls(Call::Record);
    let before = records();
    assert!(poll(&mut { second }).is_pending());
    other.after(&first).unwrap();
    assert_eq!(records() - before, 1);
    device.advance(us(20));
    assert_eq!(now(first), Ok(()));
    assert_eq!(records() - before, 1);
}

/// Sealed, a task does not wait for later work.
#[test]
fn sealed_task_ends_before_later_work() {
    let (device, _pool, [stream]) = place();
    let [lazy, sealed] = [spend(&stream, 10), spend(&stream, 10)];
    sealed.seal().unwrap();
    sealed.seal().unwrap();
    drop(spend(&stream, 100));
    device.advance(us(20));
    assert_eq!(sealed.is_complete(), Ok(true));
    assert_eq!(lazy.is_complete(), Ok(true), "an event behind it exists");
    let last = spend(&stream, 0);
    assert_eq!(last.is_complete(), Ok(false));
    device.advance(us(100));
    assert_eq!(now(last), Ok(()));
}

#[test]
fn awaited_stream_has_completed_its_work() {
    let (device, _pool, [stream]) = place();
    drop(spend(&stream, 10));
    let mut waiting = Woken::new(stream.synchronize());
    drop(spend(&stream, 100));
    device.advance(us(10));
    assert!(waiting.poll_if_woken());
    assert_eq!(waiting.output, Some(Ok(())));
    let mut waiting = Woken::new(stream.synchronize());
    device.advance(us(100));
    assert!(waiting.poll_if_woken());
    assert_eq!(waiting.output, Some(Ok(())));
}

#[test]
fn memory_is_given_in_the_shape_of_the_accesses() {
    let (_device, pool, [stream]) = place();
    let take = || pool.try_allocate(&stream, 4096).unwrap();
    let sum = |arguments: &[Argument<'_>]| arguments.iter().map(Argument::size).sum::<u64>();
    let (a, mut b, shared) = (take(), take(), take().share());
    let mut buffer = pool.buffer::<f32>(&stream, 1000).try_now().unwrap();
    let elements = pool.buffer::<u8>(&stream, 10).try_now().unwrap().share();
    {
        let (mut head, tail) = buffer.split_at_mut(10).unwrap();
        let accesses = (
            &a,
            &mut b,
            &shared,
            &elements,
            &mut head,
            &tail,
            (),
            &[][..] as &[Block],
        );
        let task = stream.submit(accesses, |_: &SimStream, (a, b, c, d, e, f, (), none)| {
            assert!(none.is_empty());
            [a, b, c, d, e, f].map(|one| one.size())
        });
        let sizes = [4096, 4096, 4096, 10, 40, 3960];
        assert_eq!(now(task.unwrap()), Ok(sizes));
    }
    let mut pages = [take(), take()];
    let (last, earlier) = pages.split_last_mut().unwrap();
    let accesses = (&*earlier, last, &mut buffer);
    let task = stream.submit(accesses, |_: &SimStream, (read, written, buffer)| {
        (sum(&read), written.size(), buffer.size())
    });
    assert_eq!(now(task.unwrap()), Ok((4096, 4096, 4096)));
    let count = |_: &SimStream, all: Vec<Argument<'_>>| sum(&all);
    assert_eq!(now(stream.submit(&pages[..], count).unwrap()), Ok(8192));
    assert_eq!(now(stream.submit(&mut pages[..], count).unwrap()), Ok(8192));
    assert_eq!(now(stream.submit([&a, &b], count).unwrap()), Ok(8192));
    assert_eq!(now(stream.submit(vec![&a], count).unwrap()), Ok(4096));
}

/// Another backend's stream.
struct Foreign;

// SAFETY: it stands for no stream.
unsafe impl NativeStream for Foreign {
    fn with<R>(
        _: &(dyn Any + Send + Sync),
        _: Option<&Cow<'static, str>>,
        _: impl FnOnce(&Self) -> R,
    ) -> Option<R> {
        None
    }
}

/// Nothing is ordered then, and no use is noted.
#[test]
fn closure_for_another_backend_is_refused() {
    let (device, pool, [stream, other]) = place();
    let mut block = pool.try_allocate(&stream, MIB).unwrap();
    let calls = device.counters().device_calls;
    let never = |_: &Foreign, _: Argument<'_>| unreachable!("it is no such stream");
    let refused = other.submit(&mut block, never).map(drop).unwrap_err();
    let TaskError::OtherBackend {
        expected,
        device: found,
    } = &refused
    else {
        panic!("{refused}");
    };
    assert!(expected.ends_with("Foreign"), "{expected}");
    assert!(found.contains("simulated device"), "{found}");
    assert!(refused.to_string().contains("Foreign"));
    assert_eq!(device.counters().device_calls, calls);
    // Nothing can keep an external stream, so that none is given away.
    let work = device.create_stream();
    let external = pool.register(&External::of(&work)).unwrap();
    let refused = external.submit((), |_: &SimStream, ()| ()).map(drop);
    assert_matches!(refused, Err(TaskError::OtherBackend { .. }));
}

#[test]
fn host_is_no_stream_for_work() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).upstream(Upstream::Pinned);
    let host = pool.made().host_stream().unwrap();
    let refused = host.run(|| ()).map(drop).unwrap_err();
    let TaskError::Device(error) = refused else {
        panic!("{refused}");
    };
    assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
}

/// The work that it enqueued runs, and the memory is not reused before.
#[test]
fn panic_of_the_closure_keeps_the_order_of_its_work() {
    let (device, pool, [home, stream, third]) = place();
    let mut block = pool.try_allocate(&home, MIB).unwrap();
    let panicking = |work: &SimStream, memory: Argument<'_>| {
        let write = Operation::new(us(50)).writes(memory.address(), memory.size());
        work.submit(write);
        resume_unwind(Box::new("no kernel"));
    };
    let submit = || stream.submit(&mut block, panicking).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(submit)).is_err());
    let read = |work: &SimStream, memory: Argument<'_>| {
        let read = Operation::new(us(1)).reads(memory.address(), memory.size());
        work.submit(read);
    };
    let reading = third.submit(&block, read).unwrap();
    drop(block);
    device.advance(us(51));
    assert_eq!(now(reading), Ok(()));
    device.assert_ordered();
}

#[test]
fn error_of_the_closure_is_returned_at_once() {
    let (device, pool, [home, stream]) = place();
    let mut block = pool.try_allocate(&home, MIB).unwrap();
    let launch = |work: &SimStream, memory: Argument<'_>| -> anyhow::Result<()> {
        work.submit(Operation::new(us(50)).writes(memory.address(), memory.size()));
        anyhow::bail!("no second kernel")
    };
    let task = stream.task("two kernels").try_submit(&mut block, launch);
    assert_eq!(task.unwrap_err().to_string(), "no second kernel");
    drop(block);
    let next = pool.try_allocate(&home, 64 * MIB);
    assert!(next.is_err() || device.take_violations().is_empty());
    device.advance(us(50));
    device.assert_ordered();
}

/// A task that is dropped takes its watch with it.
#[test]
fn task_is_dropped_at_any_poll() {
    for polls in 0..3 {
        let (device, _pool, [stream]) = place();
        let mut task = spend(&stream, 10);
        for _ in 0..polls {
            assert!(poll(&mut task).is_pending());
        }
        drop(task);
        let next = spend(&stream, 10);
        device.advance(us(20));
        assert_eq!(now(next), Ok(()));
    }
}

#[test]
fn task_is_not_polled_after_its_end() {
    let (_device, _pool, [stream]) = place();
    let mut task = spend(&stream, 0);
    assert!(poll(&mut task).is_ready());
    let again = catch_unwind(AssertUnwindSafe(|| poll(&mut task)));
    assert!(again.is_err());
}

#[test]
fn task_outlives_its_stream_and_pool() {
    let (device, pool, [stream]) = place();
    let mut task = not_ready(spend(&stream, 10));
    drop((stream, pool));
    device.advance(us(10));
    assert_eq!(poll(&mut task), std::task::Poll::Ready(Ok(())));
}

#[test]
fn broken_device_fails_tasks_and_submissions() {
    let (device, _pool, [stream]) = place();
    let mut task = Woken::new(spend(&stream, 10));
    device.faults().break_device("a test");
    assert!(task.poll_if_woken());
    let is_sticky =
        |error: &TaskError| matches!(error, TaskError::Device(error) if error.is_sticky());
    assert!(is_sticky(&task.output.unwrap().unwrap_err()));
    let refused = stream.submit((), |_: &SimStream, ()| ()).map(drop);
    assert!(is_sticky(&refused.unwrap_err()));
}

/// A stream that cannot be ordered takes no work; a later attempt is as good as the first.
#[test]
fn failed_ordering_submits_nothing() {
    let (device, pool, [home, stream]) = place();
    let block = pool.try_allocate(&home, MIB).unwrap();
    for call in [Call::Record, Call::Wait] {
        drop(spend(&home, 10));
        device.faults().fail_next(call, DeviceErrorKind::Other);
        let never = |_: &SimStream, _: Argument<'_>| unreachable!("the stream is not ordered");
        let refused = stream.submit(&block, never).map(drop);
        assert_matches!(refused, Err(TaskError::Device(_)), "{call:?}");
    }
    let read = |work: &SimStream, memory: Argument<'_>| {
        work.submit(Operation::new(us(1)).reads(memory.address(), memory.size()));
    };
    let task = stream.submit(&block, read).unwrap();
    device.advance(us(21));
    assert_eq!(now(task), Ok(()));
    device.assert_ordered();
}

/// A stream that the pool made is destroyed with its last owner, tasks among them.
#[test]
fn stream_of_the_pool_lives_as_long_as_its_handles() {
    let device = SimDevice::builder().clock(Clock::Manual).build();
    let pool = builder(&device, 8 * MIB).made();
    let stream = pool.create_stream().unwrap();
    let task = spend(&stream, 0);
    drop(stream);
    assert_eq!(device.counters().calls(Call::DestroyStream), 0);
    drop(task);
    pool.maintain().reap().unwrap();
    assert_eq!(device.counters().calls(Call::DestroyStream), 1);
}
