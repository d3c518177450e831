//! Tests that count the work of waiting: locks of the heap, each of which a search takes, and waiters looked at.

use crate::common::{Made, TestPool};
use futures::executor::LocalSpawner;
use futures::task::LocalSpawnExt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::{AllocateOwned, Block, Pool, Stream, Tag};
use weirpool_queue::visits;
use weirpool_sync::{Guards, census};

const MIB: u64 = 1 << 20;
const MS: Duration = Duration::from_millis(1);

/// Returns how often this thread locked a heap or looked at a waiter since it last asked.
fn work() -> u64 {
    let locks = census().locks.into_iter();
    let of_heap = locks.filter(|(guards, _)| *guards == Guards::Heap);
    of_heap.map(|(_, count)| count).sum::<u64>() + visits::take()
}

/// Runs a service on the device's executor, and returns its work.
fn work_of<F: Future>(
    capacity: u64,
    serve: impl FnOnce(LocalSpawner, SimDevice, Pool, Stream) -> F,
) -> u64 {
    let device = SimDevice::builder().memory(1 << 30).build();
    let builder = Pool::builder(device.clone()).capacity(capacity);
    let pool = builder.chunk_bytes(2 * MIB).made();
    let stream = pool.register(&device.create_stream()).unwrap();
    work();
    device.run(|spawner| serve(spawner, device.clone(), pool.clone(), stream));
    work()
}

/// Requests wait for memory that is held, half of them beyond a deadlock's grace. Then each is granted and leaves.
fn work_of_requests(requests: u64) -> u64 {
    work_of(8 * MIB, |spawner, device, pool, stream| async move {
        let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let mut tasks = Vec::new();
        for at in 0..requests {
            let (pool, stream) = (pool.clone(), stream.clone());
            let task = async move { drop(pool.allocate(&stream, MIB).await.unwrap()) };
            tasks.push(spawner.spawn_local_with_handle(task).unwrap());
            if at % 100 == 0 {
                device.sleep(MS).await;
            }
        }
        drop(held);
        for task in tasks {
            task.await;
        }
    })
}

/// Requests wait and are granted as above, on a tokio runtime, where a reclaimer is spawned for them.
#[cfg(feature = "tokio")]
fn work_of_requests_on_tokio(requests: u64) -> u64 {
    let device = SimDevice::builder().clock(Clock::Manual).build();
    let builder = Pool::builder(device.clone()).capacity(8 * MIB);
    let pool = builder.chunk_bytes(2 * MIB).made();
    let stream = pool.register(&device.create_stream()).unwrap();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.build().unwrap();
    work();
    runtime.block_on(async {
        let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let mut tasks = Vec::new();
        for at in 0..requests {
            let (pool, stream) = (pool.clone(), stream.clone());
            let task = async move { drop(pool.allocate(&stream, MIB).await.unwrap()) };
            tasks.push(tokio::spawn(task));
            if at % 100 == 0 {
                tokio::task::yield_now().await;
                device.advance(MS);
            }
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
    });
    work()
}

/// Tasks hold an eighth of the pool each for 10 ms, and no reclaimer is spawned.
fn work_of_reservations(tasks: u64) -> u64 {
    work_of(64 * MIB, |spawner, device, pool, _| async move {
        let task = |_| {
            let (device, pool) = (device.clone(), pool.clone());
            let task = async move {
                let _reservation = pool.reserve(8 * MIB).await.unwrap();
                device.sleep(10 * MS).await;
            };
            spawner.spawn_local_with_handle(task).unwrap()
        };
        let all: Vec<_> = (0..tasks).map(task).collect();
        for task in all {
            task.await;
        }
    })
}

#[test]
fn work_of_a_request_does_not_grow_with_the_number_of_waiters() {
    let services = [
        work_of_requests,
        work_of_reservations,
        #[cfg(feature = "tokio")]
        work_of_requests_on_tokio,
    ];
    for work in services {
        const FEW: u64 = if cfg!(miri) { 20 } else { 2000 };
        const MANY: u64 = 3 * FEW;
        let (few, many) = (work(FEW), work(MANY));
        assert!(many < 3 * few * 4 / 3, "{few} for {FEW}, {many} for {MANY}");
        assert!(many < MANY * 100, "{} for each request", many / MANY);
    }
}

/// A pool whose memory is all allocated, and a stream.
fn full() -> (TestPool, Stream, Block) {
    let device = SimDevice::builder().clock(Clock::Manual).build();
    let builder = Pool::builder(device.clone()).capacity(8 * MIB);
    let pool = builder.chunk_bytes(2 * MIB).made();
    let stream = pool.register(&device.create_stream()).unwrap();
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    (pool, stream, held)
}

fn wait(pool: &Pool, stream: &Stream, tag: Tag, count: usize) -> Vec<AllocateOwned> {
    let context = &mut Context::from_waker(Waker::noop());
    let request = |_| {
        let mut request = pool.allocate_owned(stream, 4096).tag(tag);
        assert!(pin!(&mut request).poll(context).is_pending());
        request
    };
    (0..count).map(request).collect()
}

/// Returns how many locks this thread took since it last asked, of any kind.
fn locks() -> u64 {
    census().locks.into_iter().map(|(_, count)| count).sum()
}

#[test]
fn list_of_waiting_requests_looks_at_each_once_and_takes_the_lock_in_parts() {
    const COUNT: usize = if cfg!(miri) { 30 } else { 1000 };
    let tags = ["list: 1", "list: 2", "list: 3", "list: throttled"].map(Tag::new);
    let (pool, stream, held) = full();
    (1..4).for_each(|weight| pool.tag(tags[weight - 1]).set_weight(weight as u32));
    pool.tag(tags[3]).set_limit(Some(4096));
    let waiting = tags.map(|tag| wait(&pool, &stream, tag, COUNT));
    work();
    let list = pool.inspect().waiting_requests(usize::MAX);
    assert_eq!(list.len(), 4 * COUNT);
    let over_limit = list.iter().filter(|request| request.is_over_limit);
    assert_eq!(over_limit.count(), COUNT - 1);
    let census = census().locks.into_iter();
    let of_queue = census.filter(|(guards, _)| *guards == Guards::Queue);
    let of_queue: u64 = of_queue.map(|(_, count)| count).sum();
    assert!(of_queue as usize >= 4 * COUNT / 256, "{of_queue} locks");
    assert!(visits::take() as usize <= 3 * COUNT + 1);
    drop((waiting, held));
}

#[test]
fn limits_and_weights_are_set_without_looking_at_those_that_wait() {
    const MANY: usize = if cfg!(miri) { 30 } else { 2000 };
    let tag = Tag::new("set: tag");
    let mut all = Vec::new();
    for (count, is_throttled) in [(3, false), (MANY, false), (3, true), (MANY, true)] {
        let (pool, stream, held) = full();
        if is_throttled {
            pool.tag(tag).set_limit(Some(4096));
        }
        let waiting = wait(&pool, &stream, tag, count);
        let _ = (locks(), visits::take());
        if !is_throttled {
            pool.tag(tag).set_limit(None);
        }
        pool.tag(tag).set_limit(Some(4096));
        pool.tag(tag).set_weight(7);
        all.push((locks(), visits::take()));
        // Requests that can never be served under the limit fail.
        pool.tag(tag).set_limit(Some(0));
        assert_eq!(pool.tag(tag).statistics().waits.waiting, 0);
        drop((waiting, held));
    }
    for pair in all.chunks(2) {
        let ((few, _), (many, visits)) = (pair[0], pair[1]);
        assert!(visits == 0 && few.abs_diff(many) < 10, "{all:?}");
    }
}

#[test]
fn poll_that_finds_nothing_changed_does_not_search() {
    let device = SimDevice::builder().clock(Clock::Manual).build();
    let pool = Pool::builder(device.clone()).capacity(8 * MIB).made();
    let stream = pool.register(&device.create_stream()).unwrap();
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let mut waiting = [(); 10].map(|()| Box::pin(pool.allocate(&stream, MIB)));
    let mut reclaimer = pin!(pool.maintain().reclaimer());
    let context = &mut Context::from_waker(Waker::noop());
    let mut poll = || {
        assert!(reclaimer.as_mut().poll(context).is_pending());
        for request in &mut waiting {
            assert!(request.as_mut().poll(context).is_pending());
        }
    };
    poll();
    work();
    (0..100).for_each(|_| poll());
    assert_eq!(work(), 0);
    drop(held);
}
