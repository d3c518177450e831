//! Which task serves the queue, and which one is woken for it.

use super::*;
use std::task::Poll;

/// A lasting reclaimer is woken only when there is something to do.
#[test]
fn reclaimer_sleeps_while_no_request_waits() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| host_waits_only(device, 8 * MIB));
    let mut reclaimer = pool.maintain().reclaimer();
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut reclaimer, &waker).is_pending());
    for _ in 0..1000 {
        use_and_free(&pool, (&work, &a), MIB, us(10));
        device.advance(us(3));
    }
    assert_eq!(woken.get(), 0, "no request waited");
    device.advance(us(10_000));

    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut waiting = not_ready(pool.allocate(&b, 8 * MIB));
    use_block(&work, &block, us(10_000));
    drop(block);
    assert_eq!(woken.get(), 1, "the free");
    assert!(poll_with(&mut reclaimer, &waker).is_pending());
    device.advance(us(9_000));
    assert_eq!(woken.get(), 1, "nothing has happened");
    device.advance(us(1_000_000));
    assert_eq!(woken.get(), 2, "the completion");
    assert_eq!(pool.inspect().statistics().waits.waiting, 1);
    assert!(poll_with(&mut reclaimer, &waker).is_pending());
    assert_eq!(figures(&pool).waits.waiting, 0, "the reclaimer granted");
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

/// A reclaimer that is polled without a change makes no device call.
#[test]
fn reclaimer_that_is_polled_without_a_change_does_nothing() {
    let device = manual();
    let (pool, work, _, block) = full(&device);
    let (_, b) = stream(&device, &pool);
    let mut reclaimer = not_ready(pool.maintain().reclaimer());
    let mut waiting = not_ready(pool.allocate(&b, 8 * MIB));
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
    assert_eq!(figures(&pool).waits.waiting, 0, "the completion rang");
    assert!(poll(&mut waiting).is_ready());
}

/// The reclaimer is not polled. The first request in order that was not notified serves the queue.
#[test]
fn next_request_is_woken_beside_the_reclaimer() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let mut reclaimer = pool.maintain().reclaimer();
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
    assert_eq!(woken(), [1, 1, 2], "the first is next now");
    assert!(poll_with(&mut first, &plain.1).is_ready());
}

/// A request that was granted, and has not taken the grant yet, is not notified to serve.
#[test]
fn free_between_grant_and_take_wakes_the_next_request() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    drop(block);
    let [one, two] = [(); 2].map(|()| pool.try_allocate(&a, 4 * MIB).unwrap());
    let _reclaimer = not_ready(pool.maintain().reclaimer());
    let mut first = not_ready(pool.allocate(&a, 4 * MIB));
    let (mut second, woken, waker) = not_ready_counted(pool.allocate(&a, 4 * MIB));
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
}

/// The reclaimer is dropped: the next request serves the queue.
#[test]
fn request_takes_over_when_the_reclaimer_is_dropped() {
    let device = manual();
    let (pool, work, a, block) = full(&device);
    let reclaimer = not_ready(pool.maintain().reclaimer());
    let (_, b) = stream(&device, &pool);
    let (mut waiting, woken, waker) = not_ready_counted(pool.allocate(&b, MIB));
    use_block(&work, &block, us(10));
    drop(block);
    drop(reclaimer);
    assert_eq!(woken.get(), 1, "beside the reclaimer");
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = woken.get();
    device.advance(us(10));
    assert!(woken.get() > before, "the waiter drives now");
    assert!(poll(&mut waiting).is_ready());
    drop(a);
}

/// Returns a device whose memory calls block.
fn slow_device() -> SimDevice {
    SimDevice::builder()
        .memory(1 << 30)
        .blocking_memory_calls(true)
        .build()
}

/// Where memory calls block, a poll maps a few chunks at most. The pool grows by more on a thread of its own, and the
/// request is served from there.
#[test]
fn slow_growth_does_not_run_inside_a_poll() {
    let device = slow_device();
    let pool = builder(&device, 96 * MIB).chunk_bytes(8 * MIB).made();
    let (_, stream) = stream(&device, &pool);
    let little = poll(&mut pool.allocate(&stream, 32 * MIB));
    assert!(little.is_ready(), "four chunks are mapped at once");
    drop(little);
    let calls = device.counters().device_calls;
    let mut allocation = pool.allocate(&stream, 80 * MIB);
    let first = poll(&mut allocation);
    assert!(first.is_pending(), "the first poll makes no memory call");
    let block = futures::executor::block_on(allocation).unwrap();
    assert_eq!(block.source(), Source::Grown);
    assert!(device.counters().device_calls > calls);
}

/// A caller that blocks anyway makes the calls itself. No thread is started, and nothing counts as a wait.
#[test]
fn blocked_caller_makes_the_memory_calls_itself() {
    let device = slow_device();
    let pool = builder(&device, 64 * MIB).made();
    let (_, stream) = stream(&device, &pool);
    let block = pool.allocate(&stream, 8 * MIB).blocking().unwrap();
    assert_eq!(block.source(), Source::Grown);
    assert_eq!(pool.inspect().statistics().waits.served, 0);
    drop(block);
    let _reservation = pool.reserve(32 * MIB).blocking().unwrap();
    assert_eq!(pool.inspect().statistics().waits.served, 0);
}

/// The growing thread may begin when the request was already served with returned memory. The pool grows all the same,
/// for the next request: otherwise a pool that is short for moments only would never grow.
#[test]
fn late_growth_is_for_the_next_request() {
    for _ in 0..100 {
        let device = slow_device();
        let pool = builder(&device, 64 * MIB).made();
        let (_, stream) = stream(&device, &pool);
        let first = pool.try_allocate(&stream, 32 * MIB).unwrap();
        let mut waiting = pool.allocate(&stream, 32 * MIB);
        if poll(&mut waiting).is_ready() {
            // The thread was faster than this poll.
            continue;
        }
        // Served with this memory, or with memory taken from the device.
        drop(first);
        let _second = futures::executor::block_on(waiting).unwrap();
        let since = std::time::Instant::now();
        while pool.inspect().statistics().reserved.current < 64 * MIB {
            assert!(since.elapsed().as_secs() < 60, "nothing is taken for it");
            std::thread::yield_now();
        }
        let _third = pool.try_allocate(&stream, 32 * MIB).unwrap();
    }
}

/// Memory calls that block are made on a thread of their own. Where none can be started, they are made in the poll. The
/// test runs in a child process whose threads would have stacks larger than the address space.
#[test]
fn queue_is_served_where_no_thread_can_be_started() {
    const CHILD: &str = "WEIRPOOL_CHILD_WITHOUT_THREADS";
    if std::env::var_os(CHILD).is_none() {
        let name = "waiting::driving::queue_is_served_where_no_thread_can_be_started";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name, "--test-threads=1"]);
        child
            .env(CHILD, "yes")
            .env("RUST_MIN_STACK", (1u64 << 60).to_string());
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| {}).is_err());
    let device = SimDevice::builder()
        .virtual_memory(false)
        .blocking_memory_calls(true)
        .build();
    let pool = Pool::builder(device.clone()).capacity(8 * MIB).made();
    let (_, stream) = stream(&device, &pool);
    device.block_on(async {
        let first = pool
            .allocate(&stream, 5 * MIB)
            .timeout(us(1_000))
            .await
            .unwrap();
        // The only segment is too small, and is released first.
        drop(first);
        let _second = pool
            .allocate(&stream, 8 * MIB)
            .timeout(us(1_000))
            .await
            .unwrap();
    });
}

mod without_alarms {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::task::Waker;
    use weirpool::device::*;

    /// A device that cannot keep the time: an alarm calls at once, as where no thread can be started.
    #[derive(Clone, Debug)]
    struct WithoutAlarms {
        device: sim::SimDevice,
        /// It watches no events either: whenever it is asked to watch or to keep the time, it calls all watchers at once.
        watchers: Option<Arc<Mutex<BTreeMap<u64, Waker>>>>,
    }

    impl WithoutAlarms {
        fn stream(&self, pool: &Pool) -> (sim::SimStream, Stream) {
            let work = self.device.create_stream();
            let stream = pool.register(&work).unwrap();
            (work, stream)
        }

        fn call_watchers(&self) {
            let watchers = self.watchers.iter().flat_map(|watchers| {
                let watchers = watchers.lock().unwrap();
                watchers.values().cloned().collect::<Vec<_>>()
            });
            watchers.for_each(Waker::wake);
        }
    }

    // SAFETY: every other call is passed on to the simulated device.
    unsafe impl Device for WithoutAlarms {
        pass_on! {
            |device| &device.device =>
            id, describe, capabilities, block_observer, memory_info, now, reserve, unreserve, create, destroy, map, unmap,
            allocate, free, host_pointer, create_stream, destroy_stream, is_abandoned, create_event, destroy_event,
            record, query, wait, upload, download, fill,
        }

        unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
            let Some(watchers) = &self.watchers else {
                return self.device.watch(event, waker);
            };
            let id = {
                let mut watchers = watchers.lock().unwrap();
                let id = watchers.keys().last().map_or(0, |last| last + 1);
                watchers.insert(id, waker.clone());
                id
            };
            self.call_watchers();
            WatchId(id)
        }

        fn unwatch(&self, watch: WatchId) {
            match &self.watchers {
                Some(watchers) => drop(watchers.lock().unwrap().remove(&watch.0)),
                None => self.device.unwatch(watch),
            }
        }

        fn set_alarm(&self, _: std::time::Duration, waker: &Waker) -> AlarmId {
            self.call_watchers();
            waker.wake_by_ref();
            AlarmId(0)
        }

        fn cancel_alarm(&self, _: AlarmId) {}
    }

    #[test]
    fn requests_are_served_or_time_out_where_alarms_call_at_once() {
        let device = WithoutAlarms {
            device: manual(),
            watchers: None,
        };
        let pool = builder(&device, 8 * MIB).made();
        let [(work, first), (_, second)] = [(); 2].map(|()| device.stream(&pool));
        let block = pool.try_allocate(&first, 8 * MIB).unwrap();
        let waiting = || pool.allocate(&second, 8 * MIB).timeout(us(100));
        let mut late = not_ready(waiting());
        device.device.advance(us(100));
        assert_matches!(
            poll(&mut late),
            Poll::Ready(Err(AllocError::TimedOut { .. }))
        );
        let mut served = not_ready(waiting());
        use_block(&work, &block, us(10));
        drop(block);
        device.device.advance(us(20));
        let block = now(&mut served).expect("the memory is back");
        drop(block);
        drop(served);
        device.device.advance_to_end();
    }

    #[test]
    fn blocked_thread_looks_again_where_nothing_can_wake_it_later() {
        for watches in [true, false] {
            let wall = sim::SimDevice::builder().clock(sim::Clock::Wall).build();
            let device = WithoutAlarms {
                device: wall,
                watchers: (!watches).then(Arc::default),
            };
            let pool = builder(&device, 8 * MIB).made();
            let [(work, first), (_, second)] = [(); 2].map(|()| device.stream(&pool));
            let block = pool.try_allocate(&first, 8 * MIB).unwrap();
            use_block(&work, &block, us(20_000));
            let (sender, ended) = std::sync::mpsc::channel();
            let request = |limit| {
                let sender = sender.clone();
                let request = pool.allocate_owned(&second, 8 * MIB).timeout(limit);
                std::thread::spawn(move || {
                    let outcome = futures::executor::block_on(request);
                    sender.send(outcome.is_ok()).unwrap();
                })
            };
            let end = || {
                let ended = ended.recv_timeout(std::time::Duration::from_secs(20));
                ended.expect("it does not sleep for ever")
            };
            let late = request(us(5_000));
            assert!(!end(), "the block is used for 20 ms");
            let served = request(us(60_000_000));
            drop(block);
            assert!(end());
            late.join().unwrap();
            served.join().unwrap();
        }
    }
}
