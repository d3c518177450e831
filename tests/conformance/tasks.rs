//! Tasks that await memory, on any executor.

use crate::allocation::random_size;
use crate::bench::Bench;
use crate::common::{MIB, assert_matches};
use crate::executors::{Executor, Task};
use crate::site::{Site, Worker};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use futures::future::{Either, join_all, select};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use weirpool::AllocError;

pub(crate) use crate::pools::override_applies_to_its_task_only;

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

/// More tasks than fit, with random sizes: all are served, and no contents are overwritten.
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
    let waits = site.pool.inspect().statistics().waits;
    assert_eq!((waits.waiting, waits.unserved()), (0, 0));
    site.assert_sound();
}

/// Every task needs all of the memory, so each free admits the next request.
pub(crate) fn free_admits_the_next_request<B: Bench, E: Executor>() {
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

/// Frees and events are awaited. When a future is ready, its work is complete.
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

/// A wait with a timeout ends with the figures, and a later request is served.
pub(crate) fn wait_with_a_timeout_ends_with_the_figures<B: Bench, E: Executor>() {
    const LIMIT: Duration = Duration::from_micros(200);
    let site = Site::<B>::new(8 * MIB);
    let holder = site.worker();
    let block = holder.take(8 * MIB);
    E::run(tasks(&site, 3, |_, worker| async move {
        let limited = worker.pool.allocate(&worker.stream, MIB).timeout(LIMIT);
        match limited.await {
            Err(AllocError::TimedOut {
                waited, shortfall, ..
            }) => {
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

/// Waits that lose a `select` are dropped at any point. In the end no memory is missing.
pub(crate) fn dropped_waits_lose_no_memory<B: Bench, E: Executor>() {
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
    assert_eq!(site.pool.inspect().statistics().waits.waiting, 0);
    site.assert_sound();
}

/// A reclaimer that runs as a separate task serves all others, and ends with the pool.
pub(crate) fn reclaimer_runs_as_a_task<B: Bench, E: Executor>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let mut all = tasks(&site, 6, |n, worker| async move {
        for _ in 0..4 {
            let block = worker.allocate(5 * MIB).await;
            worker.use_up(&block, n as u8);
            drop(block);
        }
        worker.stream.synchronize().await.unwrap();
    });
    all.push(Box::pin(site.pool.maintain().reclaimer()));
    let Site { pool, witness, .. } = site;
    drop(pool);
    E::run(all);
    witness.assert_content();
}

struct Request {
    bytes: u64,
    value: u8,
    reply: oneshot::Sender<u64>,
}

/// A small service. Clients send requests, and hold a little memory of their own for a random time. The server takes
/// requests in batches, reserves memory for each batch, and spreads it over two streams. Waits time out or lose a
/// `select!`, and clients leave before they are answered. In the end the pool is closed and drained.
pub(crate) fn small_service_runs_on_any_executor<B: Bench, E: Executor>() {
    let site = Site::<B>::new(8 * MIB);
    let (sender, requests) = mpsc::unbounded();
    let mut all = tasks(&site, 8, |n, worker| client(n, worker, sender.clone()));
    drop(sender);
    all.push(Box::pin(serve(site.workers(), requests)));
    E::run(all);
    let pool = site.pool.clone();
    E::run(vec![Box::pin(async move {
        pool.close();
        pool.drain().await.unwrap();
    })]);
    let statistics = site.pool.inspect().statistics();
    assert_eq!(statistics.waits.waiting, 0);
    let found = (statistics.used.current, statistics.pending.current);
    assert_eq!(found, (0, 0));
    site.assert_sound();
}

async fn client<B: Bench>(n: usize, worker: Worker<B>, sender: mpsc::UnboundedSender<Request>) {
    let mut random = fastrand::Rng::with_seed(n as u64);
    for _ in 0..6 {
        let scratch = worker
            .pool
            .allocate(&worker.stream, random_size(&mut random));
        let scratch = scratch.timeout(Duration::from_micros(random.u64(1..500)));
        tokio::select! {
            block = scratch => match block {
                Ok(block) => worker.use_up(&block, n as u8),
                Err(error) => assert_matches!(error, AllocError::TimedOut { .. }),
            },
            () = mood(random.u32(1..40)) => {}
        }
        let (reply, answer) = oneshot::channel();
        let bytes = random.u64(1..2 * MIB);
        let value = random.u8(..);
        let request = Request {
            bytes,
            value,
            reply,
        };
        sender.unbounded_send(request).expect("a server");
        if random.bool() {
            assert_eq!(answer.await, Ok(bytes));
        }
    }
}

/// Is ready after this many polls.
async fn mood(mut polls: u32) {
    std::future::poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn serve<B: Bench>(workers: [Worker<B>; 2], requests: mpsc::UnboundedReceiver<Request>) {
    let mut batches = requests.ready_chunks(4);
    while let Some(mut batch) = batches.next().await {
        // Requests of clients that left are skipped.
        batch.retain(|request| !request.reply.is_canceled());
        let sizes: Vec<_> = batch.iter().map(|request| request.bytes).collect();
        let reservation = workers[0].pool.reserve_many(sizes).await.unwrap();
        let answers = batch.into_iter().zip(workers.iter().cycle());
        let answers = answers.map(|(request, worker)| {
            reservation.scope(async move {
                let block = worker.allocate(request.bytes).await;
                worker.use_up(&block, request.value);
                let size = block.requested();
                block.deallocate().await.unwrap();
                let _ = request.reply.send(size);
            })
        });
        join_all(answers).await;
    }
}
