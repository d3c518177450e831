//! Work that is submitted to streams with the memory that it uses, and the host's part in their order.

use crate::bench::{Bench, Gate};
use crate::common::{MIB, assert_matches, until_freed};
use crate::site::{Site, Worker, eventually, settle_all};
use futures::channel::oneshot;
use futures::executor::block_on;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use weirpool::device::DeviceErrorKind::{Other, Unsupported};
use weirpool::{Accesses, StreamError, Task, TaskError};

impl<B: Bench> Worker<B> {
    /// Submits work to this worker's stream.
    fn submit<A: Accesses, T>(
        &self,
        accesses: A,
        enqueue: impl FnOnce(&B::Work, A::Arguments) -> T,
    ) -> Task<T> {
        let submitted = self.stream.submit(accesses, enqueue);
        submitted.expect("work that is submitted")
    }

    /// Holds the stream until the gate is opened.
    fn hold(&self) -> Gate {
        self.bench.hold(&self.work)
    }
}

/// The streams are ordered by the memory alone, and memory that is freed at once is reused behind the work.
pub(crate) fn submitted_work_is_ordered_by_its_memory<B: Bench>() {
    let site = Site::<B>::new(2 * MIB);
    let [writer, reader, taker] = site.workers();
    let mut block = writer.take(2 * MIB);
    let gate = writer.hold();
    writer.submit(&mut block, |_, memory| writer.fill(memory, 1));
    reader.submit(&block, |_, memory| reader.expect(memory, 1));
    drop(block);
    let mut next = taker.take(2 * MIB);
    taker.submit(&mut next, |_, memory| taker.use_up(memory, 2));
    site.bench.let_run();
    gate.open();
    settle_all(&[&writer, &reader, &taker]);
    drop(next);
    site.assert_sound();
}

/// The closure gets the stream of its registration: one of the device's owner, or one that the pool made.
pub(crate) fn closure_gets_the_stream_of_the_backend<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let own = site.worker();
    let made = site.worker_as(own.work.clone(), site.pool.create_stream().unwrap());
    for worker in [&own, &made] {
        let block = worker.take(MIB);
        let raw = worker.stream.raw();
        let bench = &site.bench;
        let task = worker.submit(&block, |work: &B::Work, memory| {
            assert_eq!(crate::bench::raw(work), raw);
            bench.fill(work, memory.into(), 7);
            bench.compare(work, memory.into(), 7, site.witness.ask());
            "submitted"
        });
        drop(block);
        assert_eq!(block_on(task), Ok("submitted"));
    }
    site.assert_sound();
}

pub(crate) fn task_is_ready_once_the_device_has_passed_its_work<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let gate = worker.hold();
    let task = worker.submit((), |_, ()| 42);
    task.seal().unwrap();
    // Later work does not delay the task.
    let later = worker.hold();
    site.bench.let_run();
    assert_eq!(task.is_complete(), Ok(false));
    gate.open();
    assert_eq!(block_on(task), Ok(42));
    later.open();
    worker.settle();
}

/// A detached task and an unobserved one cost no event.
pub(crate) fn submitted_work_needs_no_device_call<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let worker = site.worker();
    let mut block = worker.take(MIB);
    let calls = probe.all_calls();
    for value in 0..10 {
        let task = worker.submit(&mut block, |_, memory| worker.use_up(memory, value));
        let place = format!("stream: {:?}", worker.stream.id());
        assert!(format!("{task:?}").contains(&place), "{task:?}");
    }
    assert_eq!(probe.all_calls(), calls);
    worker.settle();
    drop(block);
    site.assert_sound();
}

pub(crate) fn stream_comes_after_a_task<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [first, second, third] = site.workers();
    let block = first.take(MIB);
    until_freed(&second.stream, &block);
    until_freed(&third.stream, &block);
    let gate = first.hold();
    let task = first.submit((), |_, ()| first.fill(&block, 1));
    second.stream.after(&task).unwrap();
    let next = second.submit((), |_, ()| {
        second.expect(&block, 1);
        second.fill(&block, 2);
    });
    third.stream.after(&next).unwrap();
    third.expect(&block, 2);
    site.bench.let_run();
    gate.open();
    settle_all(&[&first, &second, &third]);
    // A task whose work is over needs no wait.
    first.stream.after(&next).unwrap();
    drop(block);
    site.assert_sound();
}

pub(crate) fn task_of_another_host_is_refused_and_of_another_pool_is_awaited<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let elsewhere = site.elsewhere(8 * MIB);
    let foreign = elsewhere.worker().submit((), |_, ()| ());
    let refused = Err(TaskError::Stream(StreamError::ForeignDevice));
    let expected = if B::IS_OF_ONE_HOST { Ok(()) } else { refused };
    assert_eq!(worker.stream.after(&foreign), expected);
    let other = crate::site::builder::<B>(site.bench.device(), 8 * MIB);
    let other = other.build().unwrap();
    let stream = other.register(&site.bench.stream()).unwrap();
    let foreign = stream.submit((), |_: &B::Work, ()| ()).unwrap();
    worker.stream.after(&foreign).unwrap();
    let block = worker.take(MIB);
    let refused = stream.submit(&block, |_: &B::Work, _| ());
    let error = refused.map(drop).unwrap_err();
    assert_matches!(error, TaskError::Stream(StreamError::ForeignPool(_)));
}

pub(crate) fn closed_pool_takes_no_work<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let gate = worker.hold();
    let before = worker.submit((), |_, ()| "before");
    site.pool.close();
    let never = |_: &B::Work, ()| unreachable!("the pool is closed");
    let refused = [
        worker.stream.submit((), never).map(drop),
        worker.stream.run(|| ()).map(drop),
        worker.stream.spawn(async {}).map(drop),
    ];
    assert_eq!(refused, [const { Err(TaskError::Closed) }; 3]);
    gate.open();
    assert_eq!(block_on(before), Ok("before"));
}

pub(crate) fn host_function_runs_in_stream_order<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let gate = worker.hold();
    let passed = Arc::new(AtomicU32::new(0));
    let step = |expected: u32| {
        let passed = passed.clone();
        move || passed.compare_exchange(expected, expected + 1, Ordering::SeqCst, Ordering::SeqCst)
    };
    drop(worker.stream.run(step(0)).unwrap());
    site.bench.spend(&worker.work);
    let second = worker.stream.run(step(1)).unwrap();
    site.bench.let_run();
    assert_eq!(passed.load(Ordering::SeqCst), 0);
    gate.open();
    assert_eq!(block_on(second), Ok(Ok(1)));
    assert_eq!(passed.load(Ordering::SeqCst), 2);
}

/// The stream goes on, and so does the pool.
pub(crate) fn panic_of_a_host_function_is_its_tasks_error<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    // Without a message of the panic hook.
    let panics = || -> u32 { std::panic::resume_unwind(Box::new("no input".to_owned())) };
    let failed = worker.stream.run(panics).unwrap();
    drop(worker.stream.run(panics).unwrap());
    let next = worker.submit((), |_, ()| "next");
    let message = "no input".to_owned();
    assert_eq!(block_on(failed), Err(TaskError::Panicked { message }));
    assert_eq!(block_on(next), Ok("next"));
    let block = worker.take(MIB);
    worker.submit((), |_, ()| worker.use_up(&block, 1));
    worker.settle();
    drop(block);
    site.assert_sound();
}

/// Each task begins once the stream has passed the event before its hold, whatever events other threads record behind the
/// hold at the same time.
pub(crate) fn host_tasks_begin_although_other_threads_seal_their_stream<B: Bench>() {
    const TASKS: usize = 2000;
    let site = Site::<B>::new(16 * MIB);
    let worker = site.worker();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for turn in 0..4u64 {
            let (worker, is_over) = (worker.clone(), &is_over);
            scope.spawn(move || {
                for turn in turn.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    drop(worker.try_take(4096));
                    match turn % 4 {
                        0 => drop(worker.stream.event().unwrap()),
                        1 => drop(block_on(worker.stream.synchronize())),
                        _ => worker.stream.seal().unwrap(),
                    }
                }
            });
        }
        for _ in 0..TASKS {
            let task = worker.stream.spawn(async { 6 }).unwrap();
            assert_eq!(block_on(task), Ok(6));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let block = worker.take(MIB);
    worker.use_up(&block, 1);
    worker.settle();
    drop(block);
    site.assert_sound();
}

/// The future begins after earlier work, and later work begins after the future.
pub(crate) fn host_task_takes_its_turn_in_the_stream<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [worker, other] = site.workers();
    let block = worker.take(MIB);
    until_freed(&other.stream, &block);
    let gate = worker.hold();
    let (begins, mut begun) = oneshot::channel();
    let (ends, ended) = oneshot::channel();
    let task = worker.stream.spawn(async move {
        begins.send(()).unwrap();
        ended.await.unwrap();
        "ended"
    });
    let task = task.unwrap();
    worker.fill(&block, 1);
    other.stream.after(&task).unwrap();
    let after = other.submit((), |_, ()| ());
    let polling = std::thread::spawn(move || block_on(task));
    site.bench.let_run();
    assert_eq!(begun.try_recv(), Ok(None), "the stream is not there yet");
    gate.open();
    block_on(&mut begun).unwrap();
    let next = worker.submit((), |_, ()| ());
    site.bench.let_run();
    assert_eq!(next.is_complete(), Ok(false), "the stream is held");
    assert_eq!(after.is_complete(), Ok(false), "so is one that comes after");
    assert_eq!(worker.stream.statistics().host_tasks, 1);
    ends.send(()).unwrap();
    assert_eq!(polling.join().unwrap(), Ok("ended"));
    assert_eq!(block_on(next), Ok(()));
    assert_eq!(block_on(after), Ok(()));
    assert_eq!(worker.stream.statistics().host_tasks, 0);
    worker.expect(&block, 1);
    worker.settle();
    drop(block);
    site.assert_sound();
}

/// Before the stream is there, between polls, and by a panic.
pub(crate) fn abandoned_host_task_lets_its_stream_go_on<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let gate = worker.hold();
    drop(worker.stream.spawn(async {}).unwrap());
    gate.open();
    assert_eq!(block_on(worker.submit((), |_, ()| 1)), Ok(1));
    let pending = worker.stream.spawn(std::future::pending::<()>()).unwrap();
    let mut pending = Box::pin(pending);
    for _ in 0..3 {
        assert!(crate::common::poll(&mut pending).is_pending());
        site.bench.let_run();
    }
    drop(pending);
    assert_eq!(block_on(worker.submit((), |_, ()| 2)), Ok(2));
    let task = worker.stream.spawn(std::future::poll_fn(|_| -> Poll<()> {
        std::panic::resume_unwind(Box::new("no input"))
    }));
    let mut task = Box::pin(task.unwrap());
    let polled = catch_unwind(AssertUnwindSafe(|| block_on(&mut task)));
    assert!(polled.is_err());
    // The stream goes on even while the task lives.
    assert_eq!(block_on(worker.submit((), |_, ()| 3)), Ok(3));
    drop(task);
    let figures = worker.stream.statistics();
    assert_eq!((figures.host_tasks, figures.abandoned_host_tasks), (0, 3));
}

/// Holds are taken and released by several threads.
pub(crate) fn many_host_tasks_hold_many_streams<B: Bench>() {
    const ROUNDS: u32 = 20;
    let site = Site::<B>::new(8 * MIB);
    let workers: [Worker<B>; 4] = site.workers();
    let count = Arc::new(AtomicU32::new(0));
    let counted = |worker: Worker<B>| {
        let count = count.clone();
        std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                let count = count.clone();
                let task = worker.stream.spawn(async move {
                    count.fetch_add(1, Ordering::SeqCst);
                });
                worker.bench.spend(&worker.work);
                block_on(task.unwrap()).unwrap();
            }
            block_on(worker.stream.synchronize()).unwrap();
        })
    };
    for thread in workers.map(counted) {
        thread.join().unwrap();
    }
    assert_eq!(count.load(Ordering::SeqCst), 4 * ROUNDS);
}

/// A refused call leaves the stream as it was, and drops the function or future that it was given.
pub(crate) fn refused_host_work_leaves_the_stream_free<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let worker = site.worker();
    let owned = Arc::new(());
    for kind in [Other, Unsupported] {
        probe.fail("run", 1, kind);
        let moved = owned.clone();
        let refused = worker.stream.run(move || drop(moved)).map(drop);
        assert_matches!(refused, Err(TaskError::Device(error)) if error.kind() == kind);
        for call in ["record", "hold"] {
            probe.fail(call, 1, kind);
            let moved = owned.clone();
            let refused = worker.stream.spawn(async move { drop(moved) }).map(drop);
            assert_matches!(refused, Err(TaskError::Device(error)) if error.kind() == kind);
        }
    }
    eventually(|| Arc::strong_count(&owned) == 1);
    assert_eq!(worker.stream.statistics().host_tasks, 0);
    assert_eq!(block_on(worker.submit((), |_, ()| 1)), Ok(1));
}
