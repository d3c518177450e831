//! The order in which waiters are served: deadlines, priorities, overtaking, deadlocks. In virtual time.

use crate::common::*;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::*;

const ALL: u64 = 8 * MIB;

fn base(device: &SimDevice) -> PoolBuilder {
    builder(device, ALL).tuning(|tuning| tuning.reuse = only_host_waits())
}

/// Queues requests, this long after each other, and serves all of them. Returns their numbers in the order of service.
fn order_of<'a>(
    device: &SimDevice,
    pool: &'a Pool,
    stream: &'a Stream,
    apart: Duration,
    terms: &[fn(Allocate<'a>) -> Allocate<'a>],
) -> Vec<usize> {
    let all = pool.try_allocate(stream, ALL).unwrap();
    let mut waiting: Vec<_> = Vec::new();
    for (number, terms) in terms.iter().enumerate() {
        let allocate = not_ready(terms(pool.allocate(stream, ALL)));
        waiting.push((number, allocate));
        device.advance(apart);
        // Tasks that do not answer would lose their turn.
        for (_, allocate) in &mut waiting {
            assert!(poll(allocate).is_pending());
        }
    }
    drop(all);
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let ready = waiting
            .iter_mut()
            .position(|(_, allocate)| poll(allocate).map(|block| drop(block.unwrap())).is_ready());
        let (number, _) = waiting.remove(ready.expect("one of them is served"));
        order.push(number);
    }
    order
}

const MS: Duration = us(1000);

/// The request with the earliest due time is served first. Without a deadline, a request is due 1 s after its arrival.
#[test]
fn deadlines_order_the_queue() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let order = order_of(
        &device,
        &pool,
        &stream,
        MS,
        &[
            |plain| plain,
            |late| late.deadline(MS * 2000),
            |soon| soon.deadline(MS * 900),
            |sooner| sooner.deadline(MS * 500),
            |plain| plain.timeout(MS * 10),
        ],
    );
    assert_eq!(order, [3, 2, 0, 4, 1]);
}

/// A deadline is a timeout, too. The order of the other requests does not change.
#[test]
fn deadline_ends_the_wait() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let _all = pool.try_allocate(&stream, ALL).unwrap();
    let mut waiting = not_ready(pool.allocate(&stream, ALL).deadline(MS));
    device.advance(MS);
    let Poll::Ready(Err(AllocError::TimedOut { waited, .. })) = poll(&mut waiting) else {
        panic!("the deadline has passed");
    };
    assert_eq!(waited, MS);
}

/// A step of priority is worth a second: a request with priority overtakes requests that arrived within its step.
#[test]
fn priority_is_worth_its_step_of_time() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let order = order_of(
        &device,
        &pool,
        &stream,
        MS * 400,
        &[
            |first| first,
            |second| second,
            |later| later.priority(1), // 0.8 s after the first: within a step
            |last| last,
            |too_late| too_late.priority(1), // 1.2 s after the second
            |patient| patient.priority(-1),
        ],
    );
    assert_eq!(order, [2, 0, 1, 4, 3, 5]);
}

/// A waiter is overtaken only by requests of higher priority that arrive within their steps, however many arrive. So it
/// does not starve.
#[test]
fn request_does_not_starve_behind_priorities() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let mut held = Some(pool.try_allocate(&stream, ALL).unwrap());
    let mut patient = not_ready(pool.allocate(&stream, ALL));
    let mut passed = 0;
    // A request of priority 5 arrives every half step, and each holds the memory for that long.
    let mut urgent = std::collections::VecDeque::new();
    while poll(&mut patient).is_pending() {
        let allocate = not_ready(pool.allocate(&stream, ALL).priority(5));
        urgent.push_back(allocate);
        device.advance(MS * 500);
        held = None;
        if let Some(Poll::Ready(block)) = urgent.front_mut().map(poll) {
            urgent.pop_front();
            held = Some(block.unwrap());
            passed += 1;
        }
        assert!(passed < 100, "it starves");
    }
    assert_eq!(passed, 10, "five steps of two requests each");
    drop((held, urgent));
}

/// The head reserves free memory for itself, unless it may be overtaken, and then only up to the bound.
#[test]
fn overtaking_is_bounded() {
    for (bound, expected) in [
        (Overtaking::NONE, 0),
        (overtaking(3, u64::MAX), 3),
        (overtaking(9, 2 * MIB), 2),
    ] {
        let device = manual();
        let pool = base(&device)
            .tuning(|tuning| {
                tuning.overtaking = bound;
                tuning.lane_bytes = 0;
            })
            .fail_deadlocks_after(MS * 10_000)
            .made();
        let (_, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
        let head = not_ready(pool.allocate(&stream, ALL));
        let mut passed = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..6 {
            let mut allocate = pool.allocate(&stream, MIB);
            match poll(&mut allocate) {
                Poll::Ready(block) => passed.push(block.unwrap()),
                Poll::Pending => waiting.push(allocate),
            }
        }
        assert_eq!(passed.len(), expected, "{bound:?}");
        drop(passed);
        drop(held);
        drop(now(head).expect("it is served before the rest"));
        for allocate in waiting {
            drop(now(allocate).unwrap());
        }
        pool.inspect().check_conserved().unwrap();
    }
}

/// A request that may overtake is found behind many requests of another tag, because tags take turns. Each overtaking
/// counts, whichever tag it is of.
#[test]
fn request_that_may_overtake_is_found_behind_a_flood_of_another_tag() {
    const FLOOD: usize = 200;
    let device = manual();
    let [flood, other] = ["order: a flood", "order: another"].map(Tag::new);
    let bound = overtaking(3, u64::MAX);
    let pool = base(&device)
        .tuning(|tuning| {
            tuning.overtaking = bound;
            tuning.lane_bytes = 0;
        })
        .fail_deadlocks_after(MS * 10_000)
        .made();
    pool.tag(other).set_weight(1);
    pool.tag(flood).set_weight(1);
    let (_, stream) = stream(&device, &pool);
    let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let flood_of = || pool.allocate(&stream, ALL).tag(flood);
    let mut waiting: Vec<_> = (0..FLOOD).map(|_| flood_of()).collect();
    assert!(waiting.iter_mut().all(|waiter| poll(waiter).is_pending()));
    let mut little: Vec<_> = (0..5)
        .map(|_| pool.allocate(&stream, MIB / 2).tag(other))
        .collect();
    let mut passed = Vec::new();
    little.retain_mut(|waiter| match poll(waiter) {
        Poll::Ready(block) => {
            passed.push(block.unwrap());
            false
        }
        Poll::Pending => true,
    });
    assert_eq!((passed.len(), little.len()), (3, 2));
    // The head may not be overtaken anymore: it is served next, and then the requests behind it by tag.
    drop((passed, held));
    let mut waiting = waiting.into_iter();
    drop(now(waiting.next().unwrap()).expect("the head"));
    for waiter in little {
        drop(now(waiter).expect("its tag is next: the other has had more"));
    }
    assert!(waiting.all(|waiter| now(waiter).is_ok()));
    pool.inspect().check_conserved().unwrap();
}

/// *fair-progress*: a task that holds memory requests a little more, while the head requests a lot. Once nothing moves
/// anymore, the small request is granted rather than counted as deadlocked.
#[test]
fn holder_with_a_small_request_is_not_deadlocked() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let (mut head, woken, waker) = not_ready_counted(pool.allocate(&stream, 6 * MIB));
    let mut little = pool.allocate(&stream, MIB); // from the task that holds the 4 MiB
    assert!(poll_with(&mut little, &waker).is_pending());
    device.advance(MS * 9);
    assert!(
        poll_with(&mut little, &waker).is_pending(),
        "other tasks may still free memory"
    );
    let before = woken.get();
    device.advance(MS);
    assert!(
        woken.get() > before,
        "the deadlock is looked for without another call"
    );
    let block = now(&mut little).expect("there is memory for it");
    assert!(poll_with(&mut head, &waker).is_pending());
    drop((block, held));
    drop(now(head).unwrap());
}

/// While blocks are freed from time to time, there is no deadlock, and the head is not overtaken.
#[test]
fn head_is_not_overtaken_while_blocks_are_freed() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let mut held = several(&pool, &stream, 6, MIB);
    let head = not_ready(pool.allocate(&stream, ALL));
    let mut little = pool.allocate(&stream, MIB);
    while held.pop().is_some() && !held.is_empty() {
        assert!(poll(&mut little).is_pending());
        device.advance(MS * 9);
        assert!(poll(&mut little).is_pending());
    }
    let head = now(head).expect("all of it is free");
    assert!(poll(&mut little).is_pending());
    drop(head);
    drop(now(little).unwrap());
}

/// Frees within a reservation count as movement: its holder is working, so there is no deadlock.
#[test]
fn work_within_a_reservation_is_no_deadlock() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let head = not_ready(pool.allocate(&stream, ALL));
    let mut little = pool.allocate(&stream, MIB);
    for _ in 0..5 {
        drop(reservation.allocate(&stream, 4 * MIB).unwrap());
        assert!(poll(&mut little).is_pending());
        device.advance(MS * 9);
        assert!(poll(&mut little).is_pending());
    }
    // One grace period passes since the last movement was seen, and then another one.
    for _ in 0..2 {
        assert!(poll(&mut little).is_pending());
        device.advance(MS * 10);
    }
    drop(now(little).expect("nothing moves any more"));
    drop(reservation);
    drop(now(head).unwrap());
}

/// While running work will release memory, there is no deadlock, however long it takes.
#[test]
fn pending_memory_prevents_a_deadlock() {
    let (device, pool, [(work, stream_a), (_, stream_b)]) =
        set_up_with(|device| base(device).fail_deadlocks_after(MS));
    use_and_free(&pool, (&work, &stream_a), ALL, MS * 100);
    let mut waiting = pool.allocate(&stream_b, ALL);
    for _ in 0..9 {
        assert!(poll(&mut waiting).is_pending());
        device.advance(MS * 10);
    }
    device.advance(MS * 10);
    drop(now(waiting).unwrap());
}

/// Two tasks each hold what the other waits for. The first fails after the limit and frees, and the other is served.
#[test]
fn head_of_a_deadlock_fails_after_the_configured_time() {
    let (device, pool, [(_, stream)]) =
        set_up_with(|device| base(device).fail_deadlocks_after(MS * 50));
    let [one, other] = [0; 2].map(|_| pool.try_allocate(&stream, 4 * MIB).unwrap());
    let (woken, waker) = Count::new();
    let mut first = pool.allocate(&stream, 4 * MIB);
    let mut second = pool.allocate(&stream, 4 * MIB);
    assert!(poll_with(&mut first, &waker).is_pending());
    assert!(poll_with(&mut second, &waker).is_pending());
    // Each request is polled only when it is woken.
    for _ in 0..5 {
        let before = woken.get();
        device.advance(MS * 10);
        if woken.get() > before && poll_with(&mut second, &waker).is_ready() {
            panic!("the first request is the head");
        }
    }
    let Poll::Ready(Err(AllocError::Deadlocked(shortfall))) = poll_with(&mut first, &waker) else {
        panic!("nothing moves");
    };
    assert_eq!((shortfall.used, shortfall.waiting), (ALL, 2));
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.deadlocked, waits.unserved()), (1, 1));
    assert!(poll_with(&mut second, &waker).is_pending());
    drop(one);
    drop(now(second).unwrap());
    drop(other);
}

/// A request for an unusual alignment does not decide for requests with any alignment: they are served in a deadlock.
#[test]
fn request_with_unique_layout_does_not_hide_a_deadlock() {
    let (device, pool, [(_, stream)]) = set_up_with(base);
    let blocks = (0..8).map(|_| pool.try_allocate(&stream, MIB).unwrap());
    // The upper halves of two chunks are free.
    let mut numbered: Vec<_> = blocks.enumerate().collect();
    numbered.retain(|(number, _)| ![1, 3].contains(number));
    let mut head = not_ready(pool.allocate(&stream, ALL));
    let mut rare = not_ready(pool.allocate(&stream, 512).alignment(CHUNK));
    let little = not_ready(pool.allocate(&stream, MIB));
    device.advance(MS * 10);
    drop(now(little).expect("there are 2 MiB free, and nothing moves"));
    assert!(poll(&mut head).is_pending() && poll(&mut rare).is_pending());
}

/// A full device refuses growth. Requests that can be served nevertheless are, when nothing moves.
#[test]
fn full_device_does_not_hide_a_deadlock() {
    let device = SimDevice::builder()
        .memory(8 * MIB)
        .clock(weirpool::device::sim::Clock::Manual)
        .build();
    let _others = device.faults().occupy(2 * MIB);
    // The default capacity is all memory of the device, of which another process holds a part.
    let pool = base(&device).made();
    let (_, stream) = stream(&device, &pool);
    let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let mut head = not_ready(pool.allocate(&stream, 4 * MIB));
    // The task that holds the memory needs a little more before it frees.
    let little = not_ready(pool.allocate(&stream, MIB));
    device.advance(MS * 10);
    assert!(poll(&mut head).is_pending());
    let little = now(little).expect("there are 2 MiB free, and nothing moves");
    drop((held, little));
    drop(now(head).unwrap());
}

/// Only a request that is served overtakes others. One that fails or is dropped does not.
#[test]
fn failed_request_does_not_count_as_overtaking() {
    let device = manual();
    let tag = Tag::new("fails, and overtakes no request");
    let bound = overtaking(1, u64::MAX);
    let pool = base(&device)
        .tuning(|tuning| tuning.overtaking = bound)
        .made();
    let (_, stream) = stream(&device, &pool);
    let _held = several(&pool, &stream, 6, MIB);
    let mut head = not_ready(pool.allocate(&stream, ALL));
    let never = not_ready(pool.allocate(&stream, 3 * MIB).tag(tag));
    pool.tag(tag).set_limit(Some(MIB));
    let failed = now(never);
    assert_matches!(failed, Err(AllocError::OverLimit { .. }));
    drop(now(pool.allocate(&stream, MIB)).expect("the head was not overtaken yet"));
    assert!(poll(&mut head).is_pending());
}
