//! Tasks that await memory, on any executor.

use crate::allocation::random_size;
use crate::bench::Bench;
use crate::common::MIB;
use crate::executors::{Executor, Task};
use crate::site::{Site, Worker};
use futures::future::{Either, select};
use std::pin::pin;
use std::time::Duration;
use weirpool::AllocError;

pub(crate) use crate::pools::an_override_stays_with_its_task;

fn tasks<B, F>(
    site: &Site<B>,
    count: usize,
    mut start: impl FnMut(usize, Worker<B>) -> F,
) -> Vec<Task>
where
    B: Bench,
    F: Future<Output = ()> + Send + 'static,
{
    (0..count)
        .map(|n| -> Task { Box::pin(start(n, site.worker())) })
        .collect()
}

/// [4, 21] More tasks than fit, each with random sizes: all are served, and no byte is overwritten.
pub(crate) fn many_tasks_share_a_small_pool<B: Bench, E: Executor>() {
    let site = Site::<B>::new(8 * MIB);
    E::run(tasks(&site, 12, |n, worker| async move {
        let mut random = fastrand::Rng::with_seed(n as u64);
        for round in 0..20 {
            let block = worker.allocate(random_size(&mut random)).await;
            worker.use_up(&block, (12 * round + n) as u8);
            drop(block);
        }
        worker.stream.synchronize().await.unwrap();
    }));
    let waits = site.pool.statistics().waits;
    assert_eq!((waits.waiting, waits.abandoned), (0, 0));
    site.assert_sound();
}

/// [21] A free lets the next one in: every task needs all of the memory.
pub(crate) fn a_free_lets_the_next_one_in<B: Bench, E: Executor>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    E::run(tasks(&site, 8, |n, worker| async move {
        for _ in 0..3 {
            let block = worker.allocate(8 * MIB).await;
            worker.use_up(&block, n as u8);
            drop(block);
        }
        worker.stream.synchronize().await.unwrap();
    }));
    site.assert_sound();
}

/// [1] Frees and events are awaited, and what was awaited is over.
pub(crate) fn frees_and_events_are_awaited<B: Bench, E: Executor>() {
    let site = Site::<B>::new(32 * MIB);
    E::run(tasks(&site, 4, |n, worker| async move {
        for _ in 0..10 {
            let block = worker.allocate(MIB).await;
            worker.use_up(&block, n as u8);
            let event = worker.stream.event().unwrap();
            block.deallocate().await.unwrap();
            assert!(event.is_complete().unwrap());
            event.await.unwrap();
        }
    }));
    site.assert_sound();
}

/// [25] A wait that is limited ends with the figures, and a later one is served.
pub(crate) fn a_limited_wait_ends_with_the_figures<B: Bench, E: Executor>() {
    const LIMIT: Duration = Duration::from_micros(200);
    let site = Site::<B>::new(8 * MIB);
    let holder = site.worker();
    let block = holder.take(8 * MIB);
    E::run(tasks(&site, 3, |_, worker| async move {
        let limited = worker.pool.allocate(&worker.stream, MIB).timeout(LIMIT);
        match limited.await {
            Err(AllocError::TimedOut { waited, shortfall }) => {
                assert!(waited >= LIMIT);
                assert_eq!((shortfall.requested, shortfall.reserved), (MIB, 8 * MIB));
            }
            other => panic!("{other:?}"),
        }
    }));
    drop(block);
    E::run(tasks(&site, 3, |n, worker| async move {
        let block = worker.allocate(8 * MIB).await;
        worker.use_up(&block, n as u8);
        drop(block);
        worker.stream.synchronize().await.unwrap();
    }));
    site.assert_sound();
}

/// [31] Waits that lose a race are dropped, at whatever point they are; in the end nothing is missing.
pub(crate) fn waits_that_are_given_up_lose_nothing<B: Bench, E: Executor>() {
    let site = Site::<B>::new(8 * MIB);
    E::run(tasks(&site, 8, |n, worker| async move {
        let mut random = fastrand::Rng::with_seed(n as u64);
        for _ in 0..15 {
            let mine = pin!(worker.pool.allocate(&worker.stream, 8 * MIB));
            let other = pin!(
                worker
                    .pool
                    .allocate(&worker.stream, random_size(&mut random))
            );
            let (Either::Left((block, _)) | Either::Right((block, _))) = select(other, mine).await;
            let block = block.unwrap();
            worker.use_up(&block, n as u8);
            drop(block);
        }
        worker.stream.synchronize().await.unwrap();
    }));
    assert_eq!(site.pool.statistics().waits.waiting, 0);
    site.assert_sound();
}

/// A reclaimer that runs as a task of its own serves all the others, and ends with the pool.
pub(crate) fn a_reclaimer_runs_as_a_task<B: Bench, E: Executor>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let mut all = tasks(&site, 6, |n, worker| async move {
        for _ in 0..4 {
            let block = worker.allocate(5 * MIB).await;
            worker.use_up(&block, n as u8);
            drop(block);
        }
        worker.stream.synchronize().await.unwrap();
    });
    all.push(Box::pin(site.pool.reclaimer()));
    let Site { pool, witness, .. } = site;
    drop(pool);
    E::run(all);
    witness.assert_content();
}
