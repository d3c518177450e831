//! Waiting on threads.

use super::*;
use std::thread;
use weirpool::device::sim::SimStream;

/// Threads without an executor share a small pool: each wait ends, and no memory is missing.
#[test]
fn threads_share_a_small_pool() {
    let device = SimDevice::new();
    let pool = base(&device).made();
    let threads: Vec<_> = (1..=8)
        .map(|n| {
            let (pool, (work, stream)) = (pool.clone(), stream(&device, &pool));
            thread::spawn(move || {
                for round in 0..20 {
                    let bytes = (n + round) % 8 * MIB + 1;
                    let block = pool.allocate(&stream, bytes).blocking().unwrap();
                    use_block(&work, &block, us(50));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    pool.drain().blocking().unwrap();
    assert_eq!(waiting(&pool), 0);
    pool.inspect().check_conserved().unwrap();
}

/// The limit is measured by the device's clock.
#[test]
fn timeout_of_a_blocking_wait_is_on_the_devices_clock() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    thread::scope(|scope| {
        let (pool, stream) = (&pool, &stream);
        let one = scope.spawn(|| pool.allocate(stream, MIB).timeout(us(100)).blocking());
        let many = scope.spawn(|| {
            let many = pool.allocate_many(stream, [MIB, MIB]);
            many.deadline(us(100)).blocking()
        });
        let reserve = scope.spawn(|| pool.reserve(MIB).timeout(us(100)).blocking());
        eventually(|| waiting(pool) == 3);
        device.advance(us(100));
        let errors = [
            one.join().unwrap().unwrap_err(),
            many.join().unwrap().unwrap_err(),
            reserve.join().unwrap().unwrap_err(),
        ];
        for error in errors {
            let AllocError::TimedOut {
                waited, shortfall, ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!((waited, shortfall.used), (us(100), ALL));
        }
    });
    drop(held);
    pool.inspect().check_conserved().unwrap();
}

/// Several blocks and reservations are granted as they are to tasks.
#[test]
fn every_request_can_wait_on_a_thread() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let many = pool.allocate_many(&stream, [MIB, 2 * MIB]).blocking()?;
            let reservation = pool.reserve(MIB).blocking()?;
            let block = reservation.allocate(&stream, MIB)?;
            Ok::<_, AllocError>(many.len() as u64 * block.size())
        });
        eventually(|| waiting(&pool) == 1);
        drop(held);
        assert_eq!(waiter.join().unwrap(), Ok(2 * MIB));
    });
}

/// The head of the queue and the reclaimer are notified, and no executor polls them.
#[test]
fn blocked_thread_is_served_behind_a_head_that_is_not_polled() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    let _reclaimer = not_ready(pool.maintain().reclaimer());
    let mut first = not_ready(pool.allocate(&stream, MIB));
    thread::scope(|scope| {
        let second = scope.spawn(|| pool.allocate(&stream, MIB).blocking());
        eventually(|| waiting(&pool) == 2);
        drop(held);
        eventually(|| {
            device.advance(us(1000));
            second.is_finished()
        });
        drop(second.join().unwrap().unwrap());
    });
    assert!(poll(&mut first).is_ready());
}

/// Waits for memory that comes back by itself after 100 us of work.
fn wait_for_work(pool: &Pool, work: &SimStream, stream: &Stream) -> Result<u64, AllocError> {
    let held = pool.try_allocate(stream, ALL).unwrap();
    use_block(work, &held, us(100));
    drop(held);
    Ok(pool.reserve(ALL).blocking()?.size())
}

/// The wait parks the thread itself, so it does not panic inside an executor.
#[test]
fn blocking_wait_works_inside_an_executor() {
    let device = SimDevice::new();
    let pool = base(&device).made();
    let (work, stream) = stream(&device, &pool);
    let wait_for_work = || wait_for_work(&pool, &work, &stream);
    let found = futures::executor::block_on(async { wait_for_work() });
    assert_eq!(found, Ok(ALL));
    assert_eq!(smol::block_on(async { wait_for_work() }), Ok(ALL));
}

/// Only with the feature does the pool know of runtimes.
#[cfg(feature = "tokio")]
#[test]
fn wait_in_a_task_of_a_single_thread_runtime_is_refused() {
    let (device, pool, [(work, stream)]) = set_up_with(base);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let refused = Err(AllocError::BlocksRuntime { requested: ALL });
    runtime.block_on(async {
        assert_eq!(wait_for_work(&pool, &work, &stream), refused);
        device.advance(us(1000));
        // Free memory is granted; nothing waits.
        drop(pool.reserve(ALL).blocking().unwrap());
        let held = pool.try_allocate(&stream, ALL).unwrap();
        assert_eq!(pool.drain().blocking(), Err(DrainError::BlocksRuntime));
        drop(held);
    });
    let task = {
        let (pool, stream) = (pool.clone(), stream.clone());
        async move {
            let _held = pool.try_allocate(&stream, ALL).unwrap();
            pool.allocate(&stream, MIB).blocking().map(drop)
        }
    };
    let refused = Err(AllocError::BlocksRuntime { requested: MIB });
    assert_eq!(runtime.block_on(runtime.spawn(task)).unwrap(), refused);
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.failed, waits.cancelled, waits.waiting), (2, 0, 0));
    pool.inspect().check_conserved().unwrap();
}

/// A task that is granted memory goes on: its budget of work before it yields is left to it.
#[cfg(feature = "tokio")]
#[test]
fn granted_request_leaves_the_budget_of_its_task() {
    let device = SimDevice::builder().blocking_memory_calls(true).build();
    let pool = base(&device).made();
    let [(_, a), (_, b)] = streams(&device, &pool);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let grown = pool.allocate(&a, CHUNK).blocking().unwrap();
        now(tokio::task::consume_budget());
        drop(grown);
        drop(pool.allocate(&b, CHUNK).blocking().unwrap());
        now(tokio::task::consume_budget());
    });
    assert_eq!(pool.trim_to(0).unwrap().released, CHUNK);
    // Beside its tasks a growth of any size is made at once, and charged once.
    let _entered = runtime.enter();
    let tag = Tag::new("beside tasks");
    pool.tag(tag).set_limit(Some(ALL));
    let _block = pool.allocate(&a, ALL).tag(tag).blocking().unwrap();
    assert_eq!(pool.tag(tag).statistics().used.current, ALL);
    assert_eq!(pool.inspect().statistics().waits.served, 0);
}

/// Each of these threads knows a runtime, and may block.
#[test]
fn wait_beside_the_tasks_of_a_runtime_is_allowed() {
    let device = SimDevice::new();
    let pool = base(&device).made();
    let (work, stream) = stream(&device, &pool);
    let wait = {
        let pool = pool.clone();
        move || wait_for_work(&pool, &work, &stream)
    };
    let single = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    {
        let _entered = single.enter();
        assert_eq!(wait(), Ok(ALL));
    }
    let beside = wait.clone();
    let size = single.block_on(async { tokio::task::spawn_blocking(beside).await.unwrap() });
    assert_eq!(size, Ok(ALL));
    let several = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let in_place = several.spawn(async move { tokio::task::block_in_place(wait) });
    assert_eq!(several.block_on(in_place).unwrap(), Ok(ALL));
    pool.inspect().check_conserved().unwrap();
}

/// Closing wakes threads as it wakes tasks.
#[test]
fn closing_ends_blocking_waits() {
    let (_, pool, [(_, stream)]) = set_up_with(base);
    let _held = pool.try_allocate(&stream, ALL).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.allocate(&stream, MIB).blocking());
        eventually(|| waiting(&pool) == 1);
        pool.close();
        assert_eq!(waiter.join().unwrap().unwrap_err(), AllocError::Closed);
    });
}
