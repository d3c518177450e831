//! What may happen while a device call is on its way, and other places where waiting, fences and bounds
//! could go wrong.
//!
//! The device is the simulated one, with hooks that run inside its calls: whatever a test does there
//! happens at that very moment, as another thread could do it.

mod common;

use common::*;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::device::*;
use weirpool::*;

type Hook = Box<dyn FnOnce() + Send>;
#[derive(Clone)]
struct Hooked {
    sim: SimDevice,
    hooks: Arc<Mutex<Vec<(&'static str, Hook)>>>,
    /// Plain memory that was freed, by its size: it is given out again first, as a driver does.
    spare: Arc<Mutex<Vec<(u64, u64)>>>,
}
impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hooked")
    }
}
impl Hooked {
    fn new(sim: &SimDevice) -> Self {
        Self {
            sim: sim.clone(),
            hooks: Arc::default(),
            spare: Arc::default(),
        }
    }
    fn on(&self, call: &'static str, hook: impl FnOnce() + Send + 'static) {
        self.hooks.lock().unwrap().push((call, Box::new(hook)));
    }
    fn at(&self, call: &str) {
        let hook = {
            let mut h = self.hooks.lock().unwrap();
            h.iter().position(|(c, _)| *c == call).map(|i| h.remove(i))
        };
        if let Some((_, hook)) = hook {
            hook()
        }
    }
}
// SAFETY: every call is passed on to the simulated device.
unsafe impl Device for Hooked {
    pass_on! {
        |hooked| &hooked.sim =>
        id, describe, capabilities, memory_info, now, cancel_alarm, reserve, unreserve, destroy, map,
        create_stream, destroy_stream, create_event, destroy_event, query, watch, unwatch, upload, download,
        fill,
    }

    fn set_alarm(&self, at: Duration, w: &Waker) -> AlarmId {
        let alarm = self.sim.set_alarm(at, w);
        self.at("alarm");
        alarm
    }

    fn create(&self, b: u64) -> Result<PhysicalHandle, DeviceError> {
        self.at("create");
        self.sim.create(b)
    }

    fn unmap(&self, a: u64, b: u64) -> Result<(), DeviceError> {
        self.at("unmap");
        self.sim.unmap(a, b)
    }

    fn allocate(&self, k: MemoryKind, b: u64) -> Result<u64, DeviceError> {
        self.at("allocate");
        let mut spare = self.spare.lock().unwrap();
        let fitting = spare.iter().position(|(bytes, _)| *bytes == b);
        match fitting.map(|at| spare.remove(at)) {
            Some((_, address)) => Ok(address),
            None => self.sim.allocate(k, b),
        }
    }

    fn free(&self, k: MemoryKind, a: u64, b: u64) -> Result<(), DeviceError> {
        self.at("free");
        let _ = k;
        self.spare.lock().unwrap().push((b, a));
        self.at("freed");
        Ok(())
    }

    fn record(&self, e: RawEvent, s: RawStream) -> Result<(), DeviceError> {
        self.at("record");
        self.sim.record(e, s)
    }

    fn wait(&self, s: RawStream, e: RawEvent) -> Result<(), DeviceError> {
        let r = self.sim.wait(s, e);
        self.at("wait");
        r
    }
}
fn only_host_waits() -> Reuse {
    Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    }
}

/// The last handle of a stream goes while another thread is between close and record of its ticket.
#[test]
fn a_ticket_that_is_closed_and_not_published_keeps_its_stream() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = builder(&sim, 8 * MIB);
    drop(pool);
    let pool = Pool::builder(dev.clone())
        .capacity(2 * MIB)
        .handle_bytes(HANDLE)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let work_a = sim.create_stream();
    let a = pool.register(&work_a).unwrap();
    let (_wb, b) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, MIB).unwrap();
    let other = pool.try_allocate(&a, MIB).unwrap();
    drop(other);
    use_block(&work_a, &block, us(100));
    drop(block);
    dev.on("record", move || drop(a));
    let got = pool.try_allocate(&b, 2 * MIB);
    assert!(work_a.backlog() > 0);
    assert!(
        got.is_err(),
        "granted {:?} while A's work runs",
        got.unwrap()
    );
}

/// The waiter is cancelled, and its stream let go, while its grant is made behind a wait on the device.
#[test]
fn a_grant_whose_waiter_and_stream_are_gone_keeps_its_fences() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(8 * MIB)
        .handle_bytes(HANDLE)
        .wait_limit(WaitLimit::Unlimited)
        .build()
        .unwrap();
    let work_a = sim.create_stream();
    let a = pool.register(&work_a).unwrap();
    let (_wl, l) = stream(&sim, &pool);
    let (wc, c) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let p = pool.clone();
    let mut w1: std::pin::Pin<Box<dyn Future<Output = Result<Block, AllocError>> + Send>> =
        Box::pin(async move { p.allocate(&l, 8 * MIB).await });
    assert!(poll(&mut w1).is_pending());
    use_block(&work_a, &block, us(100));
    drop(block);
    dev.on("wait", move || drop(w1));
    let mut w2 = pool.allocate(&c, 8 * MIB);
    let Poll::Ready(Ok(got)) = poll(&mut w2) else {
        return;
    };
    run(&wc, us(1));
    sim.advance(us(5));
    assert!(work_a.backlog() > 0);
    assert!(
        wc.backlog() > 0,
        "C ran on memory that A still uses; rung {:?}",
        got.rung()
    );
}

/// An allocation queues while another thread's growth has the capacity planned.
#[test]
fn who_queues_while_memory_is_taken_is_served_by_what_is_over() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(2 * MIB)
        .handle_bytes(HANDLE)
        .build()
        .unwrap();
    let (_wa, a) = stream(&sim, &pool);
    let (_wb, b) = stream(&sim, &pool);
    let (woken, waker) = Count::new();
    let p = pool.clone();
    let mut w: std::pin::Pin<Box<dyn Future<Output = Result<Block, AllocError>> + Send>> =
        Box::pin(async move { p.allocate(&b, 4096).await });
    let slot = Arc::new(Mutex::new(None));
    let s = slot.clone();
    dev.on("create", move || {
        assert!(poll_with(&mut w, &waker).is_pending());
        *s.lock().unwrap() = Some((w, woken.get(), woken));
    });
    let mine = pool.try_allocate(&a, 4096).unwrap();
    let (mut w, before, woken) = slot.lock().unwrap().take().unwrap();
    assert!(
        woken.get() > before,
        "free memory, a waiter, and nobody woke it"
    );
    assert!(poll(&mut w).is_ready());
    drop(mine);
}

/// The same while memory is being released.
#[test]
fn who_queues_while_memory_is_released_is_woken() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(2 * MIB)
        .handle_bytes(HANDLE)
        .initial_size(2 * MIB)
        .build()
        .unwrap();
    let (_wb, b) = stream(&sim, &pool);
    let (woken, waker) = Count::new();
    let p = pool.clone();
    let mut w: std::pin::Pin<Box<dyn Future<Output = Result<Block, AllocError>> + Send>> =
        Box::pin(async move { p.allocate(&b, 4096).await });
    let slot = Arc::new(Mutex::new(None));
    let s = slot.clone();
    dev.on("unmap", move || {
        assert!(poll_with(&mut w, &waker).is_pending());
        *s.lock().unwrap() = Some((w, woken.get(), woken));
    });
    assert_eq!(pool.trim_to(0).unwrap(), 2 * MIB);
    let (_w, before, woken) = slot.lock().unwrap().take().unwrap();
    assert!(
        woken.get() > before,
        "all the capacity is there, a waiter, and nobody woke it"
    );
}

/// The waiter that was polled last is forgotten.
#[test]
fn a_forgotten_waiter_does_not_silence_the_others() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (_wa, a) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let (woken, waker) = Count::new();
    let mut first = pool.allocate(&a, MIB);
    assert!(poll_with(&mut first, &waker).is_pending());
    let mut second = pool.allocate(&a, MIB);
    assert!(poll(&mut second).is_pending());
    std::mem::forget(second);
    drop(block);
    assert!(woken.get() > 0, "the head sleeps for ever");
}

/// The head is held and not polled, since its task awaits something else; the last is cancelled.
#[test]
fn a_head_that_is_not_polled_does_not_silence_the_others() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (_wa, a) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut head = pool.allocate(&a, MIB);
    assert!(poll(&mut head).is_pending());
    let (woken, waker) = Count::new();
    let mut middle = pool.allocate(&a, MIB);
    assert!(poll_with(&mut middle, &waker).is_pending());
    let mut last = pool.allocate(&a, MIB);
    assert!(poll(&mut last).is_pending());
    drop(last);
    let before = woken.get();
    drop(block);
    assert!(
        woken.get() > before,
        "no driver: the middle one sleeps for ever"
    );
}

/// A reclaimer was spawned on a current-thread runtime that nobody runs now.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_nobody_runs_does_not_silence_the_others() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (_wa, a) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let rt = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    rt.block_on(async {
        let mut w = pool.allocate(&a, MIB);
        assert!(poll(&mut w).is_pending());
        drop(w); // e.g. a timeout, a select
    });
    let (woken, waker) = Count::new();
    let mut w = pool.allocate(&a, MIB);
    assert!(poll_with(&mut w, &waker).is_pending());
    drop(block);
    assert!(
        woken.get() > 0,
        "the bell rings at a runtime that nobody runs"
    );
}

/// The runtime that was entered is shut down: a task spawned on it is dropped at once.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_was_shut_down_is_not_asked_again_and_again() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (_wa, a) = stream(&sim, &pool);
    let _block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let handle = rt.handle().clone();
    rt.shutdown_background();
    let _g = handle.enter();
    let (woken, waker) = Count::new();
    let mut w = pool.allocate(&a, MIB);
    for _ in 0..20 {
        assert!(poll_with(&mut w, &waker).is_pending());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(woken.get() <= 2, "each poll wakes itself: {}", woken.get());
}

/// I8: events of a loop that orders streams by events.
#[test]
fn ordering_streams_by_events_makes_no_more_of_them() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let (_wa, a) = stream(&sim, &pool);
    let (_wb, b) = stream(&sim, &pool);
    for _ in 0..20_000 {
        let block = pool.try_allocate(&a, 4096).unwrap();
        drop(block);
        let e = a.event().unwrap();
        b.wait(&e).unwrap();
        sim.advance(us(1));
    }
    let made = pool.statistics().events_created;
    assert!(made < 2000, "{made} events");
}

/// I8: events and lanes of streams that come and go.
#[test]
fn streams_that_come_and_go_leave_nothing_behind() {
    let sim = manual();
    let pool = pool(&sim, 512 * MIB);
    for _ in 0..3000 {
        let (w, s) = stream(&sim, &pool);
        let b = pool.try_allocate(&s, 4096).unwrap();
        run(&w, us(1));
        drop(b);
        drop(s);
        drop(w);
        sim.advance(us(1));
    }
    assert!(
        pool.statistics().events_created < 100,
        "events {}",
        pool.statistics().events_created
    );
}

/// Two sealers whose events were recorded in the other order, with long work in between.
#[test]
fn a_marker_that_is_published_late_holds_nobody_back() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(8 * MIB)
        .handle_bytes(HANDLE)
        .build()
        .unwrap();
    let work = sim.create_stream();
    let a = pool.register(&work).unwrap();
    let slot = Arc::new(Mutex::new(None));
    let (s, a2) = (slot.clone(), a.clone());
    let w2 = work.clone();
    dev.on("record", move || {
        let e = a2.event().unwrap();
        run(&w2, us(1000));
        *s.lock().unwrap() = Some(e);
    });
    let _e5 = a.event().unwrap();
    let e6 = slot.lock().unwrap().take().unwrap();
    let (woken, waker) = Count::new();
    let mut f = e6.into_future();
    let mut done = false;
    for _ in 0..50 {
        if poll_with(&mut f, &waker).is_ready() {
            done = true;
            break;
        }
    }
    assert!(
        done,
        "complete on the device, not seen; woken {} times in 50 polls",
        woken.get()
    );
}

/// A capacity over the memory of the device: what can never fit does not queue.
#[test]
fn what_the_device_can_never_hold_fails_at_once() {
    let sim = manual(); // 1 GiB
    let pool = Pool::builder(sim.clone())
        .capacity(1 << 40)
        .build()
        .unwrap();
    let (_w, a) = stream(&sim, &pool);
    let mut w = pool.allocate(&a, 2 << 30);
    let p = poll(&mut w);
    assert!(
        matches!(p, Poll::Ready(Err(AllocError::TooLarge { .. }))),
        "{p:?}"
    );
}

/// A capacity that no device has.
#[test]
fn a_capacity_without_bound_is_that_of_the_device() {
    let sim = manual();
    let pool = Pool::builder(sim.clone())
        .capacity(u64::MAX)
        .build()
        .unwrap();
    assert_eq!(pool.capacity(), 1 << 30);
}

/// Handles larger than the capacity.
#[test]
fn a_handle_over_the_capacity_is_cut_to_steps_of_the_device() {
    let sim = manual();
    let r = Pool::builder(sim.clone())
        .capacity(5 * MIB)
        .handle_bytes(16 * MIB)
        .build();
    assert!(
        r.is_ok() || matches!(r, Err(BuildError::InvalidHandle { .. })),
        "{r:?}"
    );
}

/// Without the opportunistic policy: waiting is synchronizing.
#[test]
fn who_waits_sees_what_completed_whatever_the_policy() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB).reuse(Reuse::NONE).build().unwrap();
    let (wa, a) = stream(&sim, &pool);
    let (_wb, b) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut w = pool.allocate(&b, 8 * MIB);
    assert!(poll(&mut w).is_pending());
    run(&wa, us(10));
    drop(block);
    sim.advance(us(100));
    assert!(
        poll(&mut w).is_ready(),
        "all work is over, all memory given back, and it waits"
    );
}

/// I8: every free seals while somebody waits.
#[test]
fn events_are_bounded_while_somebody_waits() {
    let sim = manual();
    let pool = builder(&sim, 64 * MIB)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let (wa, a) = stream(&sim, &pool);
    let (_wb, b) = stream(&sim, &pool);
    let small: Vec<_> = (0..8000)
        .map(|_| pool.try_allocate(&a, 512).unwrap())
        .collect();
    let big = pool.try_allocate(&a, 32 * MIB).unwrap();
    let mut w = pool.allocate(&b, 60 * MIB);
    assert!(poll(&mut w).is_pending());
    run(&wa, us(1000));
    drop(small);
    let made = pool.statistics().events_created;
    drop(big);
    assert!(made < 2000, "{made} events");
}

/// A query of another stream fails, and not for good.
#[test]
fn an_error_of_one_stream_does_not_fail_another() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let (wa, a) = stream(&sim, &pool);
    let (_wb, b) = stream(&sim, &pool);
    let x = pool.try_allocate(&a, 2 * MIB).unwrap();
    run(&wa, us(10));
    drop(x);
    a.seal().unwrap();
    sim.fail_next(weirpool::device::sim::Call::Query, DeviceErrorKind::Other);
    let got = pool.try_allocate(&b, 2 * MIB);
    assert!(got.is_ok(), "{got:?}");
}

fn trained(
    sim: &SimDevice,
    pool: &Pool,
    n: usize,
) -> Vec<(weirpool::device::sim::SimStream, Stream)> {
    let streams: Vec<_> = (0..n).map(|_| stream(sim, pool)).collect();
    for _ in 0..20 {
        for (w, s) in &streams {
            run(w, us(10));
            let _ = s.event().unwrap();
        }
        sim.advance(us(10));
        pool.harvest().unwrap();
    }
    streams
}

/// A donor far over its mean may be stuck behind the taker.
#[test]
fn a_stream_that_is_stuck_is_not_waited_for_on_the_device() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB).build().unwrap();
    let s = trained(&sim, &pool, 2);
    let ((wa, a), (wb, b)) = (&s[0], &s[1]);
    let block = pool.try_allocate(a, 8 * MIB).unwrap();
    let flag = sim.flag();
    wa.wait_until(&flag, 1); // B will signal it
    drop(block);
    a.seal().unwrap();
    sim.advance(us(5000)); // A is 500 times over its mean
    run(wb, us(10));
    let _e = b.event().unwrap();
    let mut w = pool.allocate(b, 8 * MIB);
    let p = poll(&mut w);
    if let Poll::Ready(Ok(block)) = &p {
        wb.signal(&flag, 1);
        sim.advance(us(1_000_000));
        assert!(
            wb.backlog() == 0,
            "knot: B waits for A which waits for B; rung {:?}",
            block.rung()
        );
    }
}

/// Waiting first, and what was on its way does not come.
#[test]
fn patience_ends_when_what_was_expected_is_overdue() {
    let sim = manual();
    let pool = builder(&sim, 64 * MIB)
        .order(Order::WaitFirst)
        .reuse(only_host_waits())
        .build()
        .unwrap();
    let s = trained(&sim, &pool, 2);
    let ((wa, a), (wb, b)) = (&s[0], &s[1]);
    let block = pool.try_allocate(a, 8 * MIB).unwrap();
    let flag = sim.flag();
    wa.wait_until(&flag, 1);
    drop(block);
    a.seal().unwrap();
    run(wb, us(10));
    let _e = b.event().unwrap();
    let mut w = pool.allocate(b, 8 * MIB);
    if poll(&mut w).is_pending() {
        sim.advance(us(1_000_000));
        assert!(
            poll(&mut w).is_ready(),
            "56 MiB may be taken, 100000 times the expected time is over"
        );
    }
}

/// The last handle goes while a runtime that nobody runs has a reclaimer.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_nobody_runs_does_not_keep_the_memory() {
    let sim = manual();
    let rt = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    {
        let pool = builder(&sim, 8 * MIB)
            .reuse(only_host_waits())
            .build()
            .unwrap();
        let (_wa, a) = stream(&sim, &pool);
        let block = pool.try_allocate(&a, 8 * MIB).unwrap();
        rt.block_on(async {
            let mut w = pool.allocate(&a, MIB);
            assert!(poll(&mut w).is_pending());
            drop(w);
        });
        drop(block);
    }
    assert_eq!(sim.counters().physical_in_use, 0);
}

/// Two threads allocate from an empty pool, and taking memory takes two milliseconds.
#[test]
fn two_first_allocations_share_what_one_of_them_takes() {
    let sim = SimDevice::builder().memory(1 << 30).build();
    let mut hung = 0;
    for _ in 0..20 {
        let dev = Hooked::new(&sim);
        dev.on("create", || std::thread::sleep(Duration::from_millis(2)));
        let pool = Pool::builder(dev)
            .capacity(2 * MIB)
            .handle_bytes(HANDLE)
            .build()
            .unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        for i in 0..2 {
            let (pool, sim, tx) = (pool.clone(), sim.clone(), tx.clone());
            std::thread::spawn(move || {
                let (_w, s) = stream(&sim, &pool);
                std::thread::sleep(Duration::from_millis(i));
                let b = futures::executor::block_on(pool.allocate(&s, 4096)).unwrap();
                tx.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(250));
                drop(b);
            });
        }
        for _ in 0..2 {
            if rx.recv_timeout(Duration::from_millis(150)).is_err() {
                hung += 1;
            }
        }
    }
    assert_eq!(
        hung, 0,
        "not served in 150 ms though 2 MiB - 4 KiB are free"
    );
}

/// I8: frees after the pool was closed.
#[test]
fn events_are_bounded_after_close() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let (wa, a) = stream(&sim, &pool);
    let small: Vec<_> = (0..8000)
        .map(|_| pool.try_allocate(&a, 512).unwrap())
        .collect();
    pool.close();
    run(&wa, us(1000));
    drop(small);
    let made = pool.statistics().events_created;
    assert!(made < 2000, "{made} events");
}

/// The last record of all fails.
#[test]
fn a_passing_error_at_the_end_leaks_nothing() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let (wa, a) = stream(&sim, &pool);
    let b = pool.try_allocate(&a, 4096).unwrap();
    run(&wa, us(10));
    drop(b);
    drop(pool);
    sim.fail_next(weirpool::device::sim::Call::Record, DeviceErrorKind::Other);
    drop(a);
    sim.advance(us(20));
    assert_eq!(sim.counters().physical_in_use, 0);
}

/// rmm#2304: what a pool let go may be given to another of its threads before the first has noted it.
#[test]
fn an_address_that_comes_back_at_once_is_not_forgotten() {
    let sim = SimDevice::builder()
        .memory(1 << 30)
        .clock(weirpool::device::sim::Clock::Manual)
        .virtual_memory(false)
        .build();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(8 * HANDLE)
        .handle_bytes(HANDLE)
        .build()
        .unwrap();
    let (_, a) = stream(&sim, &pool);
    drop(pool.try_allocate(&a, 2 * HANDLE).unwrap());
    now(a.synchronize()).unwrap();
    let taken = Arc::new(Mutex::new(None));
    let (other, stream, place) = (pool.clone(), a.clone(), taken.clone());
    dev.on("freed", move || {
        *place.lock().unwrap() = Some(other.try_allocate(&stream, 2 * HANDLE).unwrap());
    });
    assert_eq!(pool.trim_to(0).unwrap(), 2 * HANDLE);
    assert!(dev.spare.lock().unwrap().is_empty(), "it was given again");
    drop(taken.lock().unwrap().take());
    now(a.synchronize()).unwrap();
    assert_eq!(pool.trim_to(0).unwrap(), 2 * HANDLE);
    assert_eq!(dev.spare.lock().unwrap().len(), 1);
}

/// Two releases at once do not each release all of it.
#[test]
fn two_who_trim_keep_what_both_would_keep() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(16 * HANDLE)
        .handle_bytes(HANDLE)
        .build()
        .unwrap();
    let (_, a) = stream(&sim, &pool);
    drop(pool.try_allocate(&a, 8 * HANDLE).unwrap());
    now(a.synchronize()).unwrap();
    let other = pool.clone();
    dev.on("unmap", move || {
        assert_eq!(other.trim_to(4 * HANDLE).unwrap(), 0);
    });
    assert_eq!(pool.trim_to(4 * HANDLE).unwrap(), 4 * HANDLE);
    assert_eq!(pool.statistics().reserved.current, 4 * HANDLE);
    pool.check_conserved().unwrap();
}

/// A pool that shrinks while it grows holds more than it should, and lets it go once it comes back.
#[test]
fn a_resize_counts_growth_that_is_under_way() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(8 * HANDLE)
        .handle_bytes(HANDLE)
        .build()
        .unwrap();
    let (_, a) = stream(&sim, &pool);
    let other = pool.clone();
    dev.on("create", move || {
        other.resize(2 * HANDLE).unwrap();
    });
    let block = pool.try_allocate(&a, 8 * HANDLE).unwrap();
    pool.check().unwrap();
    drop(block);
    for _ in 0..5 {
        sim.advance(us(10_000));
    }
    assert_eq!(pool.statistics().reserved.current, 2 * HANDLE);
    pool.check_conserved().unwrap();
}

/// The alarm may ring, and the next be set, before the one who set the first has put it away.
#[test]
fn an_alarm_that_rings_at_once_does_not_take_the_next_along() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = Pool::builder(dev.clone())
        .capacity(8 * HANDLE)
        .handle_bytes(HANDLE)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .lane_bytes(0)
        .build()
        .unwrap();
    let (work, a) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * HANDLE).unwrap();
    use_block(&work, &block, us(15_000));
    let clock = sim.clone();
    dev.on("alarm", move || clock.advance(us(10_000)));
    drop(block);
    for _ in 0..5 {
        sim.advance(us(10_000));
    }
    assert_eq!(pool.statistics().reserved.current, 0);
}
