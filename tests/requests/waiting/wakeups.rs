//! Everything that makes memory reachable wakes the requests that can profit, and no request is woken without end.
//! Tasks are polled only when they are woken. Each test runs with virtual memory and with plain memory.

use super::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Fault, Operation};

fn host_waits(device: &SimDevice, capacity: u64) -> TestPool {
    let pool = builder(device, capacity).tuning(|tuning| tuning.reuse = only_host_waits());
    pool.made()
}

/// Longer than a notification may be unanswered.
const UNANSWERED: Duration = us(3000);

/// The head maps new memory for one of its parts, and gives it back. The request behind it releases that memory to the
/// device, in vain as well.
#[test]
fn requests_that_cannot_be_served_do_not_wake_each_other_for_ever() {
    for device in devices() {
        let overtaking = overtaking(1, 4 * MIB);
        let pool = tuned(&device, 4 * MIB, |tuning| tuning.overtaking = overtaking);
        let (_, a) = stream(&device, &pool);
        let held = pool.try_allocate(&a, MIB).unwrap();
        let parts = async { pool.allocate_many(&a, [2 * MIB, 2 * MIB]).await.map(drop) };
        let block = async { pool.allocate(&a, 4 * MIB).await.map(drop) };
        let mut tasks = [Woken::new(parts)];
        settle(&mut tasks);
        let [parts] = tasks;
        let mut tasks = [parts, Woken::new(block)];
        let before = device.counters().device_calls;
        settle(&mut tasks);
        // The grace of a deadlock, and long after it.
        pass(&device, 100, us(1000), &mut tasks);
        let calls = device.counters().device_calls - before;
        assert!(calls < 1000, "{calls} device calls for nothing");
        assert!(tasks.iter().all(Woken::is_waiting));
        drop(held);
        settle(&mut tasks);
        assert!(tasks.iter().all(|task| task.output == Some(Ok(()))));
    }
}

/// Once a stream's request has left, the order of that stream is of no use to the others that wait.
#[test]
fn users_ordering_wakes_no_request_on_another_stream() {
    for device in devices() {
        let pool = builder(&device, 4 * MIB).made();
        let [(work, a), (_, b), (_, c)] = streams(&device, &pool);
        let held = pool.try_allocate(&a, 4 * MIB).unwrap();
        drop(not_ready(pool.allocate(&b, MIB)));
        let (waiting, woken, _) = not_ready_counted(pool.allocate(&c, MIB));
        work.submit(Operation::new(us(10)));
        let before = woken.get();
        b.wait(&a.event().unwrap()).unwrap();
        assert_eq!(woken.get(), before);
        drop((held, waiting));
        device.advance(us(10));
    }
}

/// Frees a block behind work of 10 us, for a request of another stream. These records of the device fail, counted from
/// the free on.
fn free_with_failing_records(
    device: &SimDevice,
    failing: &[u64],
    then: impl FnOnce(&Stream, &mut [Woken<'_, Result<Block, AllocError>>]),
) {
    let pool = host_waits(device, 8 * MIB);
    let [(work, a), (_, b)] = streams(device, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let mut tasks = [Woken::new(pool.allocate(&b, 8 * MIB))];
    use_block(&work, &block, us(10));
    for nth in failing {
        device.faults().script(
            Call::Record,
            *nth,
            Fault::Fails(DeviceErrorKind::Unsupported),
        );
    }
    drop(block);
    settle(&mut tasks);
    then(&a, &mut tasks);
}

/// A record that fails at a free, as during a capture, leaves the memory pending until the stream is sealed.
#[test]
fn seal_wakes_a_request_on_another_stream() {
    for device in devices() {
        free_with_failing_records(&device, &[1, 2], |a, tasks| {
            a.seal().unwrap();
            settle(tasks);
            assert!(tasks[0].is_waiting(), "the work is still running");
            device.advance(us(10));
            settle(tasks);
            assert!(!tasks[0].is_waiting(), "the event was not watched");
        });
    }
}

/// Nothing happens on the device but the pool's own calls, and the first of these fail.
#[test]
fn record_that_fails_again_and_again_is_tried_again() {
    for device in devices() {
        free_with_failing_records(&device, &[1, 2, 3, 4, 5], |_, tasks| {
            pass(&device, 100, us(50_000), tasks);
            assert!(!tasks[0].is_waiting(), "the memory stayed pending");
            assert!(tasks[0].polls < 50, "{} polls", tasks[0].polls);
        });
    }
}

#[test]
fn users_ordering_wakes_a_request_on_that_stream() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let [(work, a), (_, b), (_, c)] = streams(&device, &pool);
        use_and_free(&pool, (&work, &a), 8 * MIB, us(1000));
        let mut tasks = [Woken::new(pool.allocate(&b, 8 * MIB))];
        settle(&mut tasks);
        let event = a.event().unwrap();
        settle(&mut tasks);
        let polls = tasks[0].polls;
        c.wait(&event).unwrap();
        settle(&mut tasks);
        assert_eq!(
            tasks[0].polls, polls,
            "the other stream's order is nothing to it"
        );
        b.wait(&event).unwrap();
        settle(&mut tasks);
        assert!(!tasks[0].is_waiting());
    }
}

#[test]
fn memory_that_returns_to_a_reservation_wakes_a_task_in_its_scope() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let reservation = now(pool.reserve(4 * MIB)).unwrap();
        let drawn = reservation.allocate(&a, 4 * MIB).unwrap();
        let _rest = pool.try_allocate(&a, 4 * MIB).unwrap();
        let scoped = reservation.scope(async { pool.allocate(&a, 2 * MIB).await.map(drop) });
        let outside = pool.allocate(&a, 2 * MIB);
        let mut tasks = [Woken::new(scoped)];
        let mut others = [Woken::new(outside)];
        settle(&mut tasks);
        settle(&mut others);
        let polls = others[0].polls;
        drop(drawn);
        assert!(!others[0].is_woken(), "the reservation is nothing to it");
        settle(&mut tasks);
        settle(&mut others);
        assert!(!tasks[0].is_waiting());
        assert_eq!(others[0].polls, polls);
        drop((tasks, others));
    }
}

/// The stream's own work outlasts the rest of the other stream's from some time on: then a wait on the device is
/// allowed.
#[test]
fn time_at_which_a_device_side_wait_is_allowed_wakes_a_request() {
    for device in devices() {
        let pool = builder(&device, 8 * MIB).sealing(Sealing::EveryFree);
        let pool = pool.made();
        let [(fast, a), (slow, b)] = streams(&device, &pool);
        // The paces of the streams become known: 0.1 ms, and 1 ms.
        for _ in 0..8 {
            for (work, stream, duration) in [(&fast, &a, 100), (&slow, &b, 1000)] {
                use_and_free(&pool, (work, stream), MIB, us(duration));
                device.advance(us(duration));
                pool.maintain().reap().unwrap();
            }
        }
        let _ = pool.trim_to(0).unwrap();
        use_and_free(&pool, (&slow, &b), 8 * MIB, us(1000));
        run(&fast, us(5000));
        let _point = a.event().unwrap();
        let mut tasks = [Woken::new(pool.allocate(&a, 8 * MIB))];
        settle(&mut tasks);
        assert!(tasks[0].is_waiting(), "the wait would be long");
        pass(&device, 99, us(10), &mut tasks);
        assert!(!tasks[0].is_waiting(), "no time woke it");
        let block = tasks[0].output.take().unwrap().unwrap();
        assert_eq!(block.source(), Source::DeviceWait);
    }
}

/// The head of the queue and the reclaimer belong to an executor that runs no more.
#[test]
fn waking_goes_past_a_head_that_is_not_polled() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 8 * MIB).unwrap();
        let _reclaimer = not_ready(pool.maintain().reclaimer());
        let mut dead = not_ready(pool.allocate(&a, 4 * MIB));
        let mut tasks = [Woken::new(pool.allocate(&a, 4 * MIB))];
        drop(block);
        device.advance(UNANSWERED);
        settle(&mut tasks);
        assert!(!tasks[0].is_waiting(), "there is memory for both");
        assert!(poll(&mut dead).is_ready());
    }
}

/// The next change finds the head known not to answer, and needs no time.
#[test]
fn head_that_did_not_answer_is_passed_over_at_the_next_change() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let small = pool.try_allocate(&a, 2 * MIB).unwrap();
        let large = pool.try_allocate(&a, 6 * MIB).unwrap();
        let _dead = not_ready(pool.allocate(&a, 4 * MIB));
        let mut tasks = [Woken::new(pool.allocate(&a, 2 * MIB))];
        drop(small);
        device.advance(UNANSWERED);
        settle(&mut tasks);
        drop(large);
        settle(&mut tasks);
        assert!(!tasks[0].is_waiting());
    }
}

/// The oldest event reports an error, and the newest is far away.
#[test]
fn completion_behind_an_event_that_errs_wakes_a_request() {
    for device in devices() {
        let pool = builder(&device, 12 * MIB)
            .tuning(|tuning| tuning.reuse = only_host_waits())
            .sealing(Sealing::EveryFree);
        let pool = pool.made();
        let [(work, a), (_, b)] = streams(&device, &pool);
        let blocks = [(); 3].map(|()| pool.try_allocate(&a, 4 * MIB).unwrap());
        device
            .faults()
            .script(Call::Record, 1, Fault::Reports(DeviceErrorKind::Other));
        for (block, duration) in blocks.into_iter().zip([10, 10, 100_000]) {
            use_block(&work, &block, us(duration));
            drop(block);
        }
        let mut tasks = [Woken::new(pool.allocate(&b, 8 * MIB))];
        settle(&mut tasks);
        pass(&device, 10, us(10), &mut tasks);
        assert!(!tasks[0].is_waiting(), "8 MiB are complete");
    }
}

/// Each of two pools has one request for what both of them have free together.
#[test]
fn two_pools_of_a_device_do_not_starve_each_other() {
    for is_virtual in [true, false] {
        let device = sized(8 * MIB, is_virtual);
        let pools = [(); 2].map(|()| pool(&device, 8 * MIB));
        let streams = pools.each_ref().map(|pool| stream(&device, pool).1);
        let held = [0, 1].map(|at: usize| pools[at].try_allocate(&streams[at], 4 * MIB).unwrap());
        let requests = [0, 1].map(|at: usize| {
            let (pool, stream) = (&pools[at], &streams[at]);
            async move { pool.allocate(stream, 6 * MIB).await.map(drop) }
        });
        let mut tasks = requests.map(Woken::new);
        drop(held);
        settle(&mut tasks);
        pass(&device, 1000, us(1000), &mut tasks);
        let waiting = tasks.iter().filter(|task| task.is_waiting()).count();
        assert_eq!(waiting, 0, "one after the other");
    }
}

/// A pool that was closed, or in which a drain waits that does not end, still gives its free memory to others.
#[test]
fn pool_that_ends_gives_its_free_memory_to_others() {
    for (is_virtual, is_closed) in [(true, true), (true, false), (false, true), (false, false)] {
        let device = sized(8 * MIB, is_virtual);
        let pools = [(); 2].map(|()| pool(&device, 8 * MIB));
        let streams = pools.each_ref().map(|pool| stream(&device, pool).1);
        let free = pools[0].try_allocate(&streams[0], 6 * MIB).unwrap();
        let _held = pools[0].try_allocate(&streams[0], 2 * MIB).unwrap();
        let mut tasks = [Woken::new(pools[1].allocate(&streams[1], 4 * MIB))];
        let _drain = match is_closed {
            true => {
                pools[0].close();
                None
            }
            false => Some(not_ready(pools[0].drain())),
        };
        drop(free);
        settle(&mut tasks);
        pass(&device, 1000, us(1000), &mut tasks);
        assert!(
            !tasks[0].is_waiting(),
            "virtual: {is_virtual}, closed: {is_closed}"
        );
    }
}

/// Each of three pools has one request for more than it has free. The pool with the oldest request gets the memory of
/// the others, whichever pool was built first.
#[test]
fn pool_with_the_oldest_request_is_served_first() {
    for is_virtual in [true, false] {
        let device = sized(12 * MIB, is_virtual);
        let pools = [(); 3].map(|()| pool(&device, 12 * MIB));
        let streams = pools.each_ref().map(|pool| stream(&device, pool).1);
        let held = [0, 1, 2].map(|at: usize| {
            let block = pools[at].try_allocate(&streams[at], 4 * MIB);
            block.unwrap()
        });
        let order = RefCell::new(Vec::new());
        let mut tasks: Vec<_> = [1, 2, 0]
            .into_iter()
            .map(|at: usize| {
                device.advance(us(1));
                let (pool, stream, order) = (&pools[at], &streams[at], &order);
                Woken::new(async move {
                    let block = pool.allocate(stream, 10 * MIB).await.unwrap();
                    order.borrow_mut().push(at);
                    drop(block);
                })
            })
            .collect();
        drop(held);
        settle(&mut tasks);
        pass(&device, 1000, us(1000), &mut tasks);
        assert_eq!(*order.borrow(), [1, 2, 0]);
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

#[test]
fn waker_that_panics_neither_reaches_the_free_nor_keeps_others_from_being_woken() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 8 * MIB).unwrap();
        let mut first = pool.allocate(&a, 4 * MIB);
        let panics = Waker::from(Arc::new(Panics));
        assert!(poll_with(&mut first, &panics).is_pending());
        let mut tasks = [Woken::new(pool.allocate(&a, 4 * MIB))];
        let freed = catch_unwind(AssertUnwindSafe(|| drop(block)));
        assert!(freed.is_ok(), "a free does not panic");
        device.advance(UNANSWERED);
        settle(&mut tasks);
        assert!(!tasks[0].is_waiting());
        assert!(poll(&mut first).is_ready());
    }
}

#[test]
fn polls_that_find_nothing_changed_search_nothing() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let held = pool.try_allocate(&a, 8 * MIB).unwrap();
        let mut waiting = pool.allocate(&a, 4 * MIB);
        let mut reclaimer = pool.maintain().reclaimer();
        assert!(poll(&mut waiting).is_pending() && poll(&mut reclaimer).is_pending());
        let calls = device.counters().device_calls;
        for _ in 0..100 {
            assert!(poll(&mut waiting).is_pending() && poll(&mut reclaimer).is_pending());
        }
        assert_eq!(device.counters().device_calls, calls);
        drop(held);
    }
}

/// One free of what one request needs wakes that request's driver, and not all that wait.
#[test]
fn free_wakes_few_of_many_waiting_requests() {
    for device in devices() {
        let pool = host_waits(&device, 8 * MIB);
        let (_, a) = stream(&device, &pool);
        let mut held = several(&pool, &a, 8, MIB);
        let request = || async { pool.allocate(&a, MIB).await.map(drop) };
        let mut tasks: Vec<_> = (0..100).map(|_| Woken::new(request())).collect();
        drop(held.pop());
        let polls = settle(&mut tasks);
        assert_eq!(tasks.iter().filter(|task| task.is_waiting()).count(), 0);
        // Each is woken to be granted, and its own free wakes the next.
        assert!(polls <= 300, "{polls} polls for 100 grants");
    }
}

/// The device refuses memory to the head, and gives some to a smaller request behind it. Later another pool releases what
/// the head lacks, and does not say so.
#[test]
fn refused_head_is_asked_for_again_after_another_request_grew() {
    for is_virtual in [true, false] {
        let device = sized(20 * MIB, is_virtual);
        let outside = pool(&device, 8 * MIB);
        let taken = outside.try_allocate(&stream(&device, &outside).1, 8 * MIB);
        let all = overtaking(8, 64 * MIB);
        let pool = tuned(&device, 16 * MIB, |tuning| {
            tuning.lane_bytes = 0;
            tuning.reuse = only_host_waits();
            tuning.overtaking = all;
        });
        let [(work, a), (_, b)] = streams(&device, &pool);
        // Pending for so long that there is no deadlock.
        let pending = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, us(1_000_000_000));
        drop(pending);
        let mut head = [Woken::new(pool.allocate(&b, 12 * MIB))];
        let small = now(pool.allocate(&b, 2 * MIB)).unwrap();
        drop((taken, outside));
        pass(&device, 10, us(20_000), &mut head);
        assert!(!head[0].is_waiting(), "virtual: {is_virtual}");
        drop(small);
    }
}
