//! Waiters beside others that are forgotten or never polled, on stopped runtimes, and for late memory.

use super::*;

/// A pool without waits on the device, and a stream with a block of all its memory.
fn full(sim: &SimDevice) -> (TestPool, Stream, Block) {
    let pool = host_waits_only(sim, 8 * MIB);
    let (_, stream) = stream(sim, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    (pool, stream, block)
}

/// The waiter that was polled last is forgotten.
#[test]
fn forgotten_waiter_does_not_silence_the_others() {
    let sim = manual();
    let (pool, a, block) = full(&sim);
    let (first, woken, _) = not_ready_counted(pool.allocate(&a, MIB));
    let second = not_ready(pool.allocate(&a, MIB));
    std::mem::forget(second);
    drop(block);
    assert!(woken.get() > 0, "the head sleeps for ever");
    drop(first);
    pool.end_before_its_blocks();
}

/// The head is not polled, since its task awaits something else, and the last waiter is cancelled.
#[test]
fn head_that_is_not_polled_does_not_silence_the_others() {
    let sim = manual();
    let (pool, a, block) = full(&sim);
    let _head = not_ready(pool.allocate(&a, MIB));
    let (_middle, woken, _) = not_ready_counted(pool.allocate(&a, MIB));
    let last = not_ready(pool.allocate(&a, MIB));
    drop(last);
    let before = woken.get();
    drop(block);
    sim.advance(us(3000));
    assert!(woken.get() > before, "the middle one sleeps for ever");
}

/// A request was polled under a runtime that runs no more.
#[test]
fn stopped_runtime_neither_silences_the_waiters_nor_keeps_the_memory() {
    let sim = manual();
    let (pool, a, block) = full(&sim);
    let rt = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    rt.block_on(async {
        let w = not_ready(pool.allocate(&a, MIB));
        drop(w); // e.g. a timeout, a select
    });
    let (w, woken, _) = not_ready_counted(pool.allocate(&a, MIB));
    drop(block);
    assert!(woken.get() > 0, "only the stopped runtime is notified");
    drop(w);
    drop((pool, a));
    assert_eq!(sim.counters().physical_in_use, 0);
}

/// The entered runtime was shut down, so a task spawned on it is dropped at once.
#[cfg(feature = "tokio")]
#[test]
fn terminated_runtime_is_not_spawned_on_repeatedly() {
    let sim = manual();
    let (pool, a, _block) = full(&sim);
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

/// Without the opportunistic policy, waiting synchronizes.
#[test]
fn waiter_sees_completed_memory_whatever_the_policy() {
    let sim = manual();
    let pool = tuned(&sim, 8 * MIB, |tuning| tuning.reuse = Reuse::NONE);
    let [(wa, a), (_wb, b)] = streams(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut w = not_ready(pool.allocate(&b, 8 * MIB));
    run(&wa, us(10));
    drop(block);
    sim.advance(us(100));
    assert!(
        poll(&mut w).is_ready(),
        "all work is complete and all memory is freed, but it waits"
    );
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
        pool.maintain().reap().unwrap();
    }
    streams
}

/// A donor that takes far longer than its mean may be stuck behind the taker.
#[test]
fn stuck_stream_is_not_waited_for_on_the_device() {
    let sim = manual();
    let pool = builder(&sim, 8 * MIB).made();
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
    assert!(
        poll(&mut w).is_pending(),
        "B would wait for A, which waits for B"
    );
    wb.signal(&flag, 1);
    sim.advance(us(1_000_000));
    assert_eq!(wb.backlog(), 0);
    assert!(poll(&mut w).is_ready());
}

/// With `WaitFirst`, the expected memory does not come.
#[test]
fn patience_ends_when_expected_memory_is_overdue() {
    let sim = manual();
    let pool = tuned(&sim, 64 * MIB, |tuning| {
        tuning.when_short = WhenShort::WaitBriefly;
        tuning.reuse = only_host_waits();
    });
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
    assert!(poll(&mut w).is_pending(), "it is expected soon");
    sim.advance(us(1_000_000));
    assert!(
        poll(&mut w).is_ready(),
        "56 MiB may be taken, 100000 times the expected time is over"
    );
}

/// A request that can never be served is forgotten at the head of the queue, while other work keeps the pool from being
/// quiet. After 100 ms without an answer it is set aside: those behind it are served, and requests that do not wait as well.
/// It leaks nothing.
#[test]
fn forgotten_request_at_the_head_blocks_no_other() {
    for device in devices() {
        for has_reclaimer in [false, true] {
            let pool = host_waits_only(&device, 8 * MIB);
            let [(work, a), (_, b)] = streams(&device, &pool);
            let held = pool.try_allocate(&a, MIB).unwrap();
            let pending = pool.try_allocate(&a, MIB).unwrap();
            use_block(&work, &pending, us(10_000_000));
            drop(pending);
            let mut small = several(&pool, &b, 4, 4096);
            let mut reclaimers: Vec<_> = has_reclaimer
                .then(|| Woken::new(pool.maintain().reclaimer()))
                .into_iter()
                .collect();
            std::mem::forget(not_ready(pool.allocate(&b, 8 * MIB)));
            let mut others = [(); 3].map(|()| Woken::new(pool.allocate(&b, MIB)));
            for at in 0..130 {
                if at % 10 == 0 {
                    drop(small.pop());
                }
                device.advance(us(1000));
                settle(&mut reclaimers);
                settle(&mut others);
                assert!(
                    at > 90 || others.iter().all(Woken::is_waiting),
                    "after {at} ms"
                );
            }
            assert!(others.iter().all(|other| !other.is_waiting()));
            drop(others);
            drop(pool.try_allocate(&b, 6 * MIB).expect("the gate is open"));
            assert_eq!(pool.inspect().statistics().used.current, MIB);
            assert_eq!(pool.inspect().statistics().waits.waiting, 1);
            assert_eq!(pool.inspect().waiting_requests(9)[0].requested, 8 * MIB);
            drop(held);
            pool.inspect().check().unwrap();
        }
    }
}

/// The task of the request at the head does not run for long. Others are served meanwhile; then it is at its position
/// again.
#[test]
fn request_that_was_set_aside_is_back_at_its_position_once_it_is_polled() {
    for device in devices() {
        let tag = Tag::new("waiters: slow");
        let pool = host_waits_only(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let mut blocks = several(&pool, &a, 4, 2 * MIB);
        let mut slow = not_ready(pool.allocate(&a, 6 * MIB).tag(tag));
        drop(blocks.pop());
        for _ in 0..200 {
            device.advance(us(1000));
        }
        // The alarms' calls served the queue.
        let taken = pool.try_allocate(&a, 2 * MIB).expect("the gate is open");
        assert!(poll(&mut slow).is_pending());
        assert!(pool.try_allocate(&a, 512).is_err(), "the gate is closed");
        let _behind = not_ready(pool.allocate(&a, 2 * MIB));
        drop(taken);
        assert_eq!(pool.inspect().waiting_requests(9)[0].requested, 6 * MIB);
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
        blocks.truncate(1);
        let _block = now(slow).unwrap();
        assert_eq!(pool.tag(tag).statistics().used.current, 6 * MIB);
    }
}
