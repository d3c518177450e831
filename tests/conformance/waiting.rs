//! Single waiting futures: which waker is called, and what a dropped future frees.

use crate::bench::{Bench, Gate};
use crate::common::{Count, MIB, not_ready, poll, poll_with};
use crate::site::{Site, Worker, eventually};
use futures::executor::block_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use weirpool::{Block, Pool, Stream};

/// Creates a pool with one block that takes all memory and is in use until the gate opens; with its worker, and another
/// worker without memory.
fn full<B: Bench>() -> (Site<B>, [Worker<B>; 2], Block, Gate) {
    let site = Site::without_device_waits(8 * MIB);
    let workers = site.workers();
    let block = workers[0].take(8 * MIB);
    let gate = workers[0].use_until_opened(&block, 1);
    (site, workers, block, gate)
}

fn assert_end<B: Bench>(site: &Site<B>, workers: &[Worker<B>; 2]) {
    let all = block_on(workers[1].allocate(8 * MIB));
    workers[1].use_up(&all, 9);
    workers[1].free_and_settle(all);
    site.assert_sound();
}

/// cuda-async `reactor_correctness`: a future that is polled for no reason keeps waiting.
pub(crate) fn spurious_wake_up_keeps_the_request_waiting<B: Bench>() {
    let (site, workers, block, gate) = full::<B>();
    let mut waiting = site.pool.allocate(&workers[1].stream, MIB);
    for _ in 0..3 {
        assert!(poll(&mut waiting).is_pending());
    }
    drop(block);
    let mut passed = Box::pin(workers[0].stream.synchronize());
    for _ in 0..3 {
        assert!(poll(&mut waiting).is_pending());
        assert!(poll(&mut passed).is_pending());
    }
    assert_eq!(site.pool.inspect().statistics().waits.waiting, 1);
    gate.open();
    drop(block_on(waiting).unwrap());
    block_on(passed).unwrap();
    assert_end(&site, &workers);
}

/// The waker of the last poll is woken, for every kind of future.
pub(crate) fn latest_waker_is_woken<B: Bench>() {
    let (site, workers, block, gate) = full::<B>();
    let mut waiting = site.pool.allocate(&workers[1].stream, MIB);
    let mut passed = workers[0].stream.synchronize();
    let mut freed = block.deallocate();
    let (old, old_waker) = Count::new();
    let mut new = Vec::new();
    macro_rules! poll_twice {
        ($future:expr) => {
            let (count, waker) = Count::new();
            assert!(poll_with($future, &old_waker).is_pending());
            assert!(poll_with($future, &waker).is_pending());
            new.push(count);
        };
    }
    poll_twice!(&mut waiting);
    poll_twice!(&mut passed);
    poll_twice!(&mut freed);
    let before = old.get();
    gate.open();
    workers[0].settle();
    eventually(|| new.iter().all(|count| count.get() > 0));
    // The thread that serves the queue wakes the waiter that it grants to.
    eventually(|| {
        site.pool.maintain().reap().unwrap();
        site.pool.inspect().statistics().waits.served == 1
    });
    assert_eq!(old.get(), before, "the old waker is not called");
    drop(block_on(waiting).unwrap());
    block_on(passed).unwrap();
    block_on(freed).unwrap();
    assert_end(&site, &workers);
}

/// Futures that are dropped before their first poll, while they wait, or with a grant that was not taken return
/// all their memory.
pub(crate) fn futures_dropped_in_flight_give_everything_back<B: Bench>() {
    let (site, workers, block, gate) = full::<B>();
    let allocate = |bytes| site.pool.allocate(&workers[1].stream, bytes);
    drop(allocate(8 * MIB));
    let mut cancelled = allocate(8 * MIB);
    let (mut granted, mut last) = (allocate(8 * MIB), allocate(8 * MIB));
    for future in [&mut cancelled, &mut granted, &mut last] {
        assert!(poll(future).is_pending());
    }
    drop(cancelled);
    drop((block, gate));
    workers[0].settle();
    // Polling the last one serves the queue; the grant goes to the one before it.
    eventually(|| {
        assert!(poll(&mut last).is_pending());
        site.pool.inspect().statistics().waits.served == 1
    });
    drop(granted);
    drop(block_on(last).unwrap());
    let waits = site.pool.inspect().statistics().waits;
    assert_eq!((waits.waiting, waits.served, waits.unserved()), (0, 2, 1));
    assert_end(&site, &workers);
}

/// A waiter that is woken to serve the queue, and is dropped instead, wakes the next. Otherwise free memory would lie
/// idle.
pub(crate) fn woken_waiter_that_leaves_wakes_the_next<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let block = first.take(8 * MIB);
    let allocate = |bytes| site.pool.allocate(&second.stream, bytes);
    let (mut small, mut large, mut last) = (allocate(MIB), allocate(8 * MIB), allocate(MIB));
    let (_, waker) = Count::new();
    assert!(poll_with(&mut small, &waker).is_pending());
    assert!(poll_with(&mut large, &waker).is_pending());
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut last, &waker).is_pending());
    first.free_and_settle(block);
    // It serves the queue, is granted, and wakes the second, which is never polled again.
    let Poll::Ready(Ok(block)) = poll(&mut small) else {
        panic!("there is memory for the first request");
    };
    let before = woken.get();
    drop(large);
    eventually(|| woken.get() > before);
    drop((block_on(last).unwrap(), block));
    site.assert_conserved();
}

/// cutile-rs#272: `mem::forget` defeats a guard that only borrows. Here a forgotten free takes place, a forgotten wait
/// at most keeps its queue position, and a forgotten block is leaked without effect on others.
pub(crate) fn forgotten_future_frees_nothing_early<B: Bench>() {
    let (site, [first, second], block, gate) = full::<B>();
    std::mem::forget(block.deallocate());
    second.take_nothing(8 * MIB);
    gate.open();
    first.settle();
    let block = second.take(6 * MIB);
    let rest = first.take(2 * MIB);
    second.fill(&block, 2);
    let address = block.address();
    std::mem::forget(block);
    drop(rest);
    let rest = first.take(2 * MIB);
    assert!(!(address..address + 6 * MIB).contains(&rest.address()));
    first.take_nothing(512);
    first.use_up(&rest, 3);
    first.free_and_settle(rest);
    second.settle();
    site.pool.inspect().check().unwrap();
    site.witness.assert_content();
    assert_eq!(site.pool.inspect().statistics().used.current, 6 * MIB);
}

/// cutile-rs#242: a cancelled task freed a buffer that a kernel was still using.
pub(crate) fn cancelled_task_frees_nothing_in_flight<B: Bench>() {
    let (site, [first, second], block, gate) = full::<B>();
    let stream = first.stream.clone();
    let mut task = Box::pin(async move {
        let _in_use = block;
        stream.synchronize().await
    });
    assert!(poll(&mut task).is_pending());
    drop(task);
    second.take_nothing(MIB);
    let waiting = not_ready(Box::pin(second.allocate(8 * MIB)));
    gate.open();
    let all = block_on(waiting);
    second.use_up(&all, 2);
    first.settle();
    second.free_and_settle(all);
    site.assert_sound();
}

/// A waker that calls the pool.
struct Caller {
    pool: Pool,
    stream: Stream,
    calls: AtomicUsize,
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.pool.maintain().reap().unwrap();
        drop(self.pool.try_allocate(&self.stream, 512));
        assert!(self.stream.event().is_ok());
        self.pool.inspect().check().unwrap();
        self.calls.fetch_add(1, Ordering::SeqCst);
    }
}

/// iree#15673: a host callback called CUDA, where that is not allowed, and deadlocked. Wakers are called where the pool
/// and the device may be called.
pub(crate) fn waker_can_call_the_pool<B: Bench>() {
    let (site, workers, block, gate) = full::<B>();
    let caller = Arc::new(Caller {
        pool: site.pool.clone(),
        stream: workers[0].stream.clone(),
        calls: AtomicUsize::new(0),
    });
    let calls = || caller.calls.load(Ordering::SeqCst);
    let waker = Waker::from(caller.clone());
    let mut passed = workers[0].stream.synchronize();
    assert!(poll_with(&mut passed, &waker).is_pending());
    let mut waiting = site.pool.allocate(&workers[1].stream, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    drop(block);
    eventually(|| calls() > 0);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = calls();
    gate.open();
    workers[0].settle();
    eventually(|| calls() > before);
    drop(block_on(waiting).unwrap());
    block_on(passed).unwrap();
    assert_end(&site, &workers);
}

/// golang#56910: large requests starved behind small ones that were served as they came.
pub(crate) fn large_request_is_not_overtaken<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let mut held: Vec<_> = (0..8).map(|_| first.take(MIB)).collect();
    let large = not_ready(site.pool.allocate(&second.stream, 8 * MIB));
    let mut small = not_ready(site.pool.allocate(&first.stream, MIB));
    while let Some(block) = held.pop() {
        first.take_nothing(512);
        assert!(poll(&mut small).is_pending(), "{} are left", held.len());
        first.free_and_settle(block);
    }
    let large = block_on(large).unwrap();
    assert!(poll(&mut small).is_pending());
    second.use_up(&large, 1);
    drop(large);
    drop(block_on(small).unwrap());
    second.settle();
    site.assert_sound();
}

/// golang#56910, the other direction: small requests wait behind a large one, but not for ever. Once it is served or
/// dropped, all requests that fit are served together.
pub(crate) fn small_requests_do_not_starve_behind_a_large_one<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let half = first.take(4 * MIB);
    let large = not_ready(site.pool.allocate(&second.stream, 8 * MIB));
    let mut small: Vec<_> = (0..4)
        .map(|_| site.pool.allocate(&second.stream, MIB))
        .collect();
    let (woken, waker) = Count::new();
    for request in &mut small {
        assert!(poll_with(request, &waker).is_pending());
    }
    drop(large);
    // Served by the dropped waiter, or by a thread that may make memory calls.
    eventually(|| woken.get() > 0);
    let blocks = block_on(futures::future::try_join_all(small)).unwrap();
    blocks.iter().for_each(|block| second.use_up(block, 1));
    second.settle();
    drop((half, blocks));
    site.assert_sound();
}
