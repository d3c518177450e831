//! What waiting does: order, cancellation, time, and who drives.

mod common;

use common::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::*;

/// A pool with a block that takes all of it, on a stream of its own.
fn full(device: &SimDevice) -> (Pool, weirpool::device::sim::SimStream, Stream, Block) {
    let pool = builder(device, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (work, stream) = stream(device, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    (pool, work, stream, block)
}

#[test]
fn an_allocation_waits_for_a_free_and_for_its_work() {
    let device = manual();
    let (pool, work, _a, block) = full(&device);
    let (_, b) = stream(&device, &pool);
    let (woken, waker) = Count::new();
    let mut waiting = pool.allocate(&b, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    use_block(&work, &block, us(100));
    drop(block);
    assert!(woken.get() > 0, "a free while somebody waits is heard");
    assert!(
        poll_with(&mut waiting, &waker).is_pending(),
        "the work runs still"
    );
    let before = woken.get();
    device.advance(us(100));
    assert!(woken.get() > before, "the device is watched");
    let Poll::Ready(Ok(granted)) = poll_with(&mut waiting, &waker) else {
        panic!("granted");
    };
    assert_eq!(pool.statistics().waits.served, 1);
    assert_eq!(pool.statistics().waits.longest, us(100));
    drop(granted);
    pool.check_conserved().unwrap();
}

/// First come, first served: nothing behind the head is granted first, and try fails.
#[test]
fn nobody_overtakes_the_head_of_the_queue() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    drop(block);
    let small = pool.try_allocate(&a, MIB).unwrap();
    let (_, b) = stream(&device, &pool);
    let mut head = pool.allocate(&b, 8 * MIB);
    assert!(poll(&mut head).is_pending());
    let mut next = pool.allocate(&b, MIB);
    assert!(
        poll(&mut next).is_pending(),
        "there is room for it, but it came second"
    );
    let error = pool.try_allocate(&a, 512).unwrap_err();
    let AllocError::Exhausted(shortfall) = error else {
        panic!("{error}")
    };
    assert_eq!(shortfall.waiting, 2);
    drop(small);
    let first = now(head).unwrap();
    assert!(poll(&mut next).is_pending());
    drop(first);
    assert!(poll(&mut next).is_ready());
    assert!(
        pool.try_allocate(&a, 512).is_ok(),
        "the queue is empty again"
    );
}

/// A warm lane does not starve the queue: lanes are drained and bypassed while anybody waits.
#[test]
fn a_warm_lane_does_not_starve_the_queue() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let blocks: Vec<_> = (0..8)
        .map(|_| pool.try_allocate(&a, MIB).unwrap())
        .collect();
    let mut waiting = pool.allocate(&b, 4 * MIB);
    assert!(poll(&mut waiting).is_pending());
    for block in blocks {
        drop(block);
        if pool.statistics().waits.waiting > 0 {
            assert!(pool.try_allocate(&a, MIB).is_err(), "the lane is bypassed");
        }
    }
    assert!(poll(&mut waiting).is_ready());
}

#[test]
fn a_cancelled_waiter_leaves_the_queue_and_the_next_is_served() {
    let device = manual();
    let (pool, _, _, block) = full(&device);
    drop(block);
    let (_, a) = stream(&device, &pool);
    let half = pool.try_allocate(&a, 4 * MIB).unwrap();
    let mut head = pool.allocate(&a, 8 * MIB);
    let mut next = pool.allocate(&a, 4 * MIB);
    assert!(poll(&mut head).is_pending());
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut next, &waker).is_pending());
    drop(head);
    assert!(woken.get() > 0);
    assert!(poll(&mut next).is_ready());
    assert_eq!(pool.statistics().waits.abandoned, 1);
    drop(half);
    pool.check_conserved().unwrap();
}

/// Dropped after the grant and before it was taken: the grant passes on.
#[test]
fn a_grant_that_nobody_takes_passes_on() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let mut head = pool.allocate(&a, 8 * MIB);
    let mut next = pool.allocate(&a, 8 * MIB);
    let (_, head_waker) = Count::new();
    assert!(poll_with(&mut head, &head_waker).is_pending());
    assert!(poll(&mut next).is_pending());
    drop(block);
    assert!(
        poll(&mut next).is_pending(),
        "this poll drove, and granted the head"
    );
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut next, &waker).is_pending());
    drop(head);
    assert!(woken.get() > 0);
    assert!(poll(&mut next).is_ready());
    pool.check().unwrap();
}

#[test]
fn a_future_never_polled_takes_nothing() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    drop(pool.allocate(&a, 8 * MIB));
    drop(block);
    assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
    pool.check_conserved().unwrap();
}

/// A forgotten future may leak its place or its grant, and nothing else.
#[test]
fn a_forgotten_grant_leaks_only_itself() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (_, a) = stream(&device, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut waiting = pool.allocate(&a, 2 * MIB);
    assert!(poll(&mut waiting).is_pending());
    let mut second = pool.allocate(&a, 2 * MIB);
    assert!(poll(&mut second).is_pending());
    drop(block);
    assert!(poll(&mut second).is_ready());
    std::mem::forget(waiting);
    assert!(pool.try_allocate(&a, 6 * MIB).is_ok());
    assert!(pool.try_allocate(&a, 8 * MIB).is_err());
    pool.check().unwrap();
}

/// Whose it is was settled when it joined the queue: that tag claimed the memory.
#[test]
fn several_are_for_the_tag_they_waited_for() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let [first, later] = ["waiting: first", "waiting: later"].map(Tag::new);
    let mut many = pool.allocate_many(&a, [MIB, MIB]).tag(first);
    let mut reserve = pool.reserve(MIB).tag(first);
    assert!(poll(&mut many).is_pending() && poll(&mut reserve).is_pending());
    drop(block);
    let blocks = now(many.tag(later)).unwrap();
    let reservation = now(reserve.tag(later)).unwrap();
    assert!(blocks.iter().all(|block| block.tag() == Some(first)));
    assert_eq!(reservation.tag(), Some(first));
    drop((blocks, reservation));
    for tag in [first, later] {
        assert_eq!(pool.statistics_of_tag(tag).used.current, 0);
    }
    pool.check_conserved().unwrap();
}

#[test]
fn a_timeout_is_on_the_devices_clock() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let (woken, waker) = Count::new();
    let mut waiting = pool.allocate(&a, MIB).timeout(us(50));
    assert!(poll_with(&mut waiting, &waker).is_pending());
    device.advance(us(49));
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = woken.get();
    device.advance(us(1));
    assert!(woken.get() > before);
    let Poll::Ready(Err(AllocError::TimedOut { waited, shortfall })) = poll(&mut waiting) else {
        panic!("timed out");
    };
    assert_eq!((waited, shortfall.requested), (us(50), MIB));
    drop(block);
    assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
}

#[test]
fn closing_fails_who_waits_and_keeps_live_blocks() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let (woken, waker) = Count::new();
    let mut waiting = pool.allocate(&a, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    pool.close();
    assert_eq!(woken.get(), 1);
    assert_eq!(now(waiting).unwrap_err(), AllocError::Closed);
    assert_eq!(pool.try_allocate(&a, 1).unwrap_err(), AllocError::Closed);
    assert_eq!(now(pool.allocate(&a, 1)).unwrap_err(), AllocError::Closed);
    assert!(pool.is_closed());
    now(block.deallocate()).unwrap();
    pool.check_conserved().unwrap();
}

/// I10: a broken device fails every waiter; what is pending is leaked rather than reused.
#[test]
fn a_broken_device_fails_every_waiter() {
    let device = manual();
    let (pool, work, a, block) = full(&device);
    let (_, b) = stream(&device, &pool);
    let (woken, waker) = Count::new();
    let mut first = pool.allocate(&b, MIB);
    let mut second = pool.allocate(&b, MIB);
    assert!(poll_with(&mut first, &waker).is_pending());
    assert!(poll_with(&mut second, &waker).is_pending());
    use_block(&work, &block, us(100));
    drop(block);
    assert!(poll_with(&mut second, &waker).is_pending());
    let before = woken.get();
    device.break_device("an illegal address");
    assert!(woken.get() > before, "watches are called on errors too");
    for waiting in [first, second] {
        let error = now(waiting).unwrap_err();
        assert!(matches!(error, AllocError::Device(_)), "{error}");
    }
    let error = pool.try_allocate(&a, 1).unwrap_err();
    assert!(matches!(error, AllocError::Device(_)), "{error}");
    assert_eq!(
        pool.statistics().pending.current,
        8 * MIB,
        "leaked, not reused"
    );
    assert!(a.event().is_err());
    assert!(now(a.synchronize()).is_err());
}

/// Nobody waits, no wake-ups: a lasting reclaimer is polled only when there is something to do.
#[test]
fn a_reclaimer_sleeps_while_nobody_waits() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let mut reclaimer = pool.reclaimer();
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut reclaimer, &waker).is_pending());
    for _ in 0..1000 {
        let block = pool.try_allocate(&a, MIB).unwrap();
        use_block(&work, &block, us(10));
        drop(block);
        device.advance(us(3));
    }
    assert_eq!(woken.get(), 0, "nobody waited");
    device.advance(us(10_000));

    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut waiting = pool.allocate(&b, 8 * MIB);
    assert!(poll(&mut waiting).is_pending());
    use_block(&work, &block, us(10_000));
    drop(block);
    assert_eq!(woken.get(), 1, "the free");
    assert!(poll_with(&mut reclaimer, &waker).is_pending());
    device.advance(us(9_000));
    assert_eq!(woken.get(), 1, "nothing has happened");
    device.advance(us(1_000_000));
    assert_eq!(woken.get(), 2, "the completion");
    assert_eq!(pool.statistics().waits.waiting, 1);
    assert!(poll_with(&mut reclaimer, &waker).is_pending());
    assert_eq!(pool.statistics().waits.waiting, 0, "the reclaimer granted");
    assert!(poll(&mut waiting).is_ready());
    drop(waiting);
    let quiet = woken.get();
    device.advance(us(1_000_000));
    assert_eq!(woken.get(), quiet);
    drop((a, b));
    drop(pool);
    assert!(woken.get() > quiet, "the last handle went");
    assert!(poll(&mut reclaimer).is_ready());
}

/// Polled for nothing, as beside another future that was woken, the reclaimer asks the device nothing.
#[test]
fn a_reclaimer_that_is_polled_for_nothing_does_nothing() {
    let device = manual();
    let (pool, work, _, block) = full(&device);
    let (_, b) = stream(&device, &pool);
    let mut reclaimer = pool.reclaimer();
    assert!(poll(&mut reclaimer).is_pending());
    let mut waiting = pool.allocate(&b, 8 * MIB);
    assert!(poll(&mut waiting).is_pending());
    use_block(&work, &block, us(10));
    drop(block);
    assert!(poll(&mut reclaimer).is_pending());
    let calls = device.counters().device_calls;
    for _ in 0..100 {
        assert!(poll(&mut reclaimer).is_pending());
    }
    assert_eq!(device.counters().device_calls, calls);
    device.advance(us(10));
    assert!(poll(&mut reclaimer).is_pending());
    assert_eq!(pool.statistics().waits.waiting, 0, "the completion rang");
    assert!(poll(&mut waiting).is_ready());
}

/// A waker that panics takes who serves along; what that had begun to serve is served by the next poll.
#[test]
fn what_a_panic_left_unserved_is_served_by_the_next_poll() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let mut first = pool.allocate(&a, 4 * MIB);
    assert!(poll_with(&mut first, &Waker::from(Arc::new(Panics))).is_pending());
    let (woken, waker) = Count::new();
    let mut second = pool.allocate(&a, 4 * MIB);
    assert!(poll_with(&mut second, &waker).is_pending());
    let freed = catch_unwind(AssertUnwindSafe(|| drop(block)));
    assert!(freed.is_err(), "the first is woken");
    let mut reclaimer = pool.reclaimer();
    let served = catch_unwind(AssertUnwindSafe(|| poll(&mut reclaimer)));
    assert!(served.is_err(), "the first is granted");
    let before = woken.get();
    assert!(poll(&mut reclaimer).is_pending());
    assert_eq!(woken.get(), before + 1, "the second is granted");
    assert!(poll(&mut first).is_ready() && poll(&mut second).is_ready());
}

/// A reclaimer that nobody polls is made up for by the one waiter who is served next, wherever it stands.
#[test]
fn beside_the_reclaimer_the_one_is_woken_who_is_served_next() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let mut reclaimer = pool.reclaimer();
    let [driver, plain, urgent] = [(); 3].map(|()| Count::new());
    assert!(poll_with(&mut reclaimer, &driver.1).is_pending());
    let mut first = pool.allocate(&a, 8 * MIB);
    let mut second = pool.allocate(&a, 8 * MIB).priority(1);
    assert!(poll_with(&mut first, &plain.1).is_pending());
    assert!(poll_with(&mut second, &urgent.1).is_pending());
    let woken = || [&driver, &plain, &urgent].map(|(count, _)| count.get());
    assert_eq!(woken(), [0, 0, 0]);
    drop(block);
    assert_eq!(woken(), [1, 0, 1]);
    let Poll::Ready(Ok(block)) = poll_with(&mut second, &urgent.1) else {
        panic!("it serves itself");
    };
    assert_eq!(woken(), [1, 0, 2], "its own grant");
    drop(block);
    assert_eq!(woken(), [2, 1, 2], "the first is next now");
    assert!(poll_with(&mut first, &plain.1).is_ready());
    pool.check_conserved().unwrap();
}

/// One that was granted its memory, and has not taken it yet, is not who is served next.
#[test]
fn a_free_between_grant_and_take_wakes_the_next() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    drop(block);
    let [one, two] = [(); 2].map(|()| pool.try_allocate(&a, 4 * MIB).unwrap());
    let mut reclaimer = pool.reclaimer();
    assert!(poll(&mut reclaimer).is_pending());
    let mut first = pool.allocate(&a, 4 * MIB);
    assert!(poll(&mut first).is_pending());
    let (woken, waker) = Count::new();
    let mut second = pool.allocate(&a, 4 * MIB);
    assert!(poll_with(&mut second, &waker).is_pending());
    drop(one);
    assert_eq!(woken.get(), 0);
    assert!(
        poll_with(&mut second, &waker).is_pending(),
        "this poll granted the first"
    );
    drop(two);
    assert_eq!(woken.get(), 1);
    assert!(poll_with(&mut second, &waker).is_ready());
    assert!(poll(&mut first).is_ready());
    pool.check_conserved().unwrap();
}

/// The driver goes away: the next waiter takes over.
#[test]
fn when_the_driver_goes_away_a_waiter_takes_over() {
    let device = manual();
    let (pool, work, a, block) = full(&device);
    let mut reclaimer = pool.reclaimer();
    assert!(poll(&mut reclaimer).is_pending());
    let (_, b) = stream(&device, &pool);
    let (woken, waker) = Count::new();
    let mut waiting = pool.allocate(&b, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    use_block(&work, &block, us(10));
    drop(block);
    let before = woken.get();
    drop(reclaimer);
    assert!(
        woken.get() > before,
        "a ring that it did not answer goes to the waiters"
    );
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = woken.get();
    device.advance(us(10));
    assert!(woken.get() > before, "the waiter drives now");
    assert!(poll(&mut waiting).is_ready());
    drop(a);
}

/// With no runtime and nobody driving, the waiters drive themselves: any executor will do.
#[test]
fn waiters_drive_themselves_on_any_executor() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Virtual)
        .build();
    let pool = builder(&device, 8 * MIB).build().unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (pool, served) = (pool.clone(), served.clone());
            let (work, stream) = stream(&device, &pool);
            std::thread::spawn(move || {
                let allocate = async {
                    for _ in 0..20 {
                        let block = pool.allocate(&stream, (n % 4 + 1) * 2 * MIB).await.unwrap();
                        use_block(&work, &block, us(50));
                        drop(block);
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                };
                if n % 2 == 0 {
                    smol::block_on(allocate);
                } else {
                    futures::executor::block_on(allocate);
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    assert_eq!(served.load(Ordering::SeqCst), 16 * 20);
    pool.check_conserved().unwrap();
}

/// A deterministic executor on the virtual clock: the same seed, the same times.
#[test]
fn the_same_seed_gives_the_same_run() {
    let run_once = || {
        let device = SimDevice::builder().memory(1 << 30).seed(7).build();
        let pool = builder(&device, 8 * MIB).build().unwrap();
        device.block_on(async {
            let tasks = (0..8u64).map(|n| {
                let (work, stream) = stream(&device, &pool);
                let (pool, device) = (pool.clone(), device.clone());
                async move {
                    let mut times = Vec::new();
                    for round in 0..10 {
                        let bytes = (n + round) % 8 * MIB + 1;
                        let block = pool.allocate(&stream, bytes).await.unwrap();
                        times.push((device.now_ns(), block.address()));
                        use_block(&work, &block, us(10 * (n + 1)));
                    }
                    times
                }
            });
            futures::future::join_all(tasks).await
        })
    };
    let [first, second] = [run_once(), run_once()].map(|runs| {
        let base = runs[0][0].1;
        let relative = |(time, address): (u64, DeviceAddress)| {
            (time, address.to_bits().wrapping_sub(base.to_bits()))
        };
        runs.into_iter()
            .map(|run| run.into_iter().map(relative).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    });
    assert_eq!(first, second);
}

trait NowNs {
    fn now_ns(&self) -> u64;
}

impl NowNs for SimDevice {
    fn now_ns(&self) -> u64 {
        weirpool::device::Device::now(self).as_nanos() as u64
    }
}

/// Where memory calls block, growing happens on a thread of its own, and the waiter is served by it.
#[test]
fn slow_growth_is_not_done_inside_a_poll() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .blocking_memory_calls(true)
        .build();
    let pool = builder(&device, 64 * MIB).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let mut allocation = pool.allocate(&stream, 8 * MIB);
    let first = poll(&mut allocation);
    assert!(first.is_pending(), "the first poll makes no memory call");
    let block = futures::executor::block_on(allocation).unwrap();
    assert_eq!(block.rung(), Rung::Grown);
    drop(block);
    pool.check_conserved().unwrap();
}

/// The thread that is to grow may come when the waiter has what another gave back meanwhile. The memory is taken all the
/// same, and the next one finds it: what is short for moments only would be short for ever.
#[test]
fn growth_that_came_late_is_for_the_next() {
    for _ in 0..100 {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .blocking_memory_calls(true)
            .build();
        let pool = builder(&device, 16 * MIB).build().unwrap();
        let (_, stream) = stream(&device, &pool);
        let first = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let mut waiting = pool.allocate(&stream, 8 * MIB);
        assert!(poll(&mut waiting).is_pending());
        // Served by this, or by what is taken from the device.
        drop(first);
        let second = futures::executor::block_on(waiting).unwrap();
        let since = std::time::Instant::now();
        while pool.statistics().reserved.current < 16 * MIB {
            assert!(since.elapsed().as_secs() < 60, "nothing is taken for it");
            std::thread::yield_now();
        }
        let third = pool.try_allocate(&stream, 8 * MIB).unwrap();
        drop((second, third));
        pool.check_conserved().unwrap();
    }
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;

    /// The runtime that drives is shut down: a waiter elsewhere takes over.
    #[test]
    fn a_runtime_that_is_shut_down_is_replaced() {
        let device = SimDevice::new();
        let (pool, work, _a, block) = full(&device);
        let (_, b) = stream(&device, &pool);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut waiting = pool.allocate(&b, MIB);
        runtime.block_on(async { assert!(poll(&mut waiting).is_pending()) });
        drop(runtime);
        use_block(&work, &block, us(100));
        drop(block);
        let granted = futures::executor::block_on(waiting).unwrap();
        assert_eq!(granted.requested(), MIB);
    }

    /// Timeouts through the runtime's own timer cancel cleanly.
    #[tokio::test]
    async fn a_runtimes_timeout_cancels_cleanly() {
        let device = manual();
        let (pool, _, a, block) = full(&device);
        let waited = tokio::time::timeout(us(5_000), pool.allocate(&a, MIB)).await;
        assert!(waited.is_err());
        drop(block);
        assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
        pool.check_conserved().unwrap();
    }
}
