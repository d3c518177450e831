//! Limits of tags, and the requests that wait for them.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use weirpool::device::sim::{Checker, SimDevice};

/// A pool in which a tag has a limit, and a stream.
fn limited(device: &SimDevice, capacity: u64, (tag, limit): (Tag, u64)) -> (TestPool, Stream) {
    let pool = builder(device, capacity).made();
    pool.tag(tag).set_limit(Some(limit));
    let (_, stream) = stream(device, &pool);
    (pool, stream)
}

/// A request over the limit that does not wait fails with the figures and takes nothing. Others are not affected.
#[test]
fn limit_refuses_requests_that_do_not_wait() {
    let device = manual();
    let [guest, host] = tags("refuses");
    let (pool, stream) = limited(&device, 64 * MIB, (guest, 8 * MIB));
    let first = pool
        .allocate(&stream, 6 * MIB)
        .tag(guest)
        .try_now()
        .unwrap();
    let refused = pool.allocate(&stream, 3 * MIB).tag(guest).try_now();
    let expected = AllocError::LimitReached {
        tag: guest,
        requested: 3 * MIB,
        used: 6 * MIB,
        limit: 8 * MIB,
    };
    assert_eq!(refused.unwrap_err(), expected);
    assert!(expected.to_string().contains("refuses: 0"), "{expected}");
    let never = pool.allocate(&stream, 9 * MIB).tag(guest).try_now();
    assert_matches!(never, Err(AllocError::OverLimit { .. }));
    let never = now(pool.allocate(&stream, 9 * MIB).tag(guest));
    assert_matches!(never, Err(AllocError::OverLimit { .. }));
    let _others = [Some(host), None].map(|tag| {
        let allocate = pool.allocate(&stream, 9 * MIB);
        let allocate = tag.into_iter().fold(allocate, Allocate::tag);
        allocate.try_now().unwrap()
    });
    let rest = pool
        .allocate(&stream, 2 * MIB)
        .tag(guest)
        .try_now()
        .unwrap();
    assert_eq!(used(&pool, guest), 8 * MIB);
    assert_eq!(pool.tag(guest).statistics().limit, Some(8 * MIB));
    drop((first, rest));
    assert_eq!(used(&pool, guest), 0);
    drop(
        pool.allocate(&stream, 8 * MIB)
            .tag(guest)
            .try_now()
            .unwrap(),
    );
}

/// A request that comes before those at the limit of its tag, and is small enough for the rest of it, does not wait for
/// them.
#[test]
fn small_request_of_higher_priority_does_not_wait_at_the_limit() {
    let device = manual();
    let [guest, _] = tags("first in line");
    let (pool, stream) = limited(&device, 64 * MIB, (guest, 8 * MIB));
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    let held = allocate(6 * MIB).try_now().unwrap();
    let mut large = not_ready(allocate(4 * MIB));
    let mut behind = not_ready(allocate(MIB));
    let small = now(allocate(MIB).priority(1)).expect("2 MiB are left");
    assert_eq!(used(&pool, guest), 7 * MIB);
    assert!(poll(&mut large).is_pending() && poll(&mut behind).is_pending());
    drop((held, small));
    let [Poll::Ready(Ok(_large)), Poll::Ready(Ok(_behind))] = [poll(&mut large), poll(&mut behind)]
    else {
        panic!("both are within the limit");
    };
    assert_eq!(used(&pool, guest), 5 * MIB);
}

/// A request that waits for the limit of its tag delays no other, and enters the queue when its tag frees memory.
#[test]
fn throttled_request_delays_no_other() {
    let device = manual();
    let [guest, host] = tags("held");
    let (pool, stream) = limited(&device, 64 * MIB, (guest, 8 * MIB));
    let allocate = |tag, bytes| pool.allocate(&stream, bytes).tag(tag);
    let first = allocate(guest, 8 * MIB).try_now().unwrap();
    let (mut held, woken, _waker) = not_ready_counted(allocate(guest, 4 * MIB));
    assert_eq!(pool.tag(guest).statistics().waits.waiting, 1);
    drop(pool.try_allocate(&stream, MIB).expect("the gate is open"));
    drop(now(allocate(host, MIB)).unwrap());
    assert_eq!(woken.get(), 0);
    drop(first);
    assert!(woken.get() > 0, "the free lets it in");
    let block = now(&mut held).expect("there is memory, and the limit allows it");
    assert_eq!(used(&pool, guest), 4 * MIB);
    let waits = pool.tag(guest).statistics().waits;
    assert_eq!((waits.waiting, waits.served), (0, 1));
    drop(block);
    assert_eq!(used(&pool, guest), 0);
}

/// A throttled request is not polled again before it is let in. It is woken then, although the last change came when no
/// request waited for memory, and the drain that heard of it did not answer.
#[test]
fn throttled_request_is_woken_after_a_change_that_no_request_waited_for() {
    for device in devices() {
        let [guest] = tags("after a change");
        let (pool, stream) = limited(&device, 64 * MIB, (guest, 8 * MIB));
        let other = pool.try_allocate(&stream, MIB).unwrap();
        let block = pool
            .allocate(&stream, 8 * MIB)
            .tag(guest)
            .try_now()
            .unwrap();
        let mut tasks = [Woken::new(pool.allocate(&stream, 8 * MIB).tag(guest))];
        let _drain = not_ready(pool.drain());
        drop(other);
        drop(block);
        settle(&mut tasks);
        assert!(!tasks[0].is_waiting());
    }
}

/// Whichever way a block of the tag is freed, the free wakes the request that waits for the limit: into the stream's cache,
/// with and without room for one more, to the heap, or awaited.
#[test]
fn every_free_of_a_tag_lets_a_throttled_request_in() {
    type Free = fn(Block, &Stream);
    let frees: [(u64, u32, Free); 5] = [
        (64 << 10, 0, |block, _| drop(block)),
        (64 << 10, 1, |block, _| drop(block)),
        (8 * MIB, 1, |block, _| drop(block)),
        (64 << 10, 1, |block, other| {
            drop(block.deallocate_on(other).unwrap())
        }),
        (64 << 10, 1, |block, _| drop(block.deallocate())),
    ];
    // The checker observes the blocks, and each free of an observed block takes the long way.
    for checker in [Checker::Off, Checker::Panic] {
        for (bytes, pairs_before, free) in frees {
            let device = manual_builder().checker(checker).build();
            let [guest] = tags("every free");
            let (pool, stream) = limited(&device, 64 * MIB, (guest, bytes));
            let (_, other) = crate::common::stream(&device, &pool);
            let allocate = || pool.allocate(&stream, bytes).tag(guest);
            for _ in 0..pairs_before {
                drop(allocate().try_now().unwrap());
            }
            let block = allocate().try_now().unwrap();
            let (throttled, woken, _) = not_ready_counted(allocate());
            free(block, &other);
            assert!(
                woken.get() > 0,
                "{bytes} bytes, {pairs_before} pairs before"
            );
            drop(now(throttled).unwrap());
            assert_eq!(used(&pool, guest), 0);
        }
    }
}

/// No request passes another of its tag, however small it is.
#[test]
fn requests_of_a_tag_enter_in_arrival_order() {
    let device = manual();
    let [guest] = tags("first come");
    let (pool, stream) = limited(&device, 64 * MIB, (guest, 8 * MIB));
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    let blocks = [0; 4].map(|_| allocate(2 * MIB).try_now().unwrap());
    let (mut large, mut small) = (allocate(6 * MIB), allocate(MIB));
    assert!(poll(&mut large).is_pending());
    assert!(poll(&mut small).is_pending());
    let mut blocks = blocks.into_iter();
    drop(blocks.next());
    assert!(poll(&mut small).is_pending(), "the larger one came first");
    let refused = allocate(512).try_now().unwrap_err();
    assert_matches!(refused, AllocError::LimitReached { .. });
    drop((blocks.next(), blocks.next()));
    let large = now(large).unwrap();
    assert!(poll(&mut small).is_pending());
    drop(large);
    drop(now(small).unwrap());
    drop(blocks);
    assert_eq!(used(&pool, guest), 0);
}

/// A request that gives up lets those behind it in.
#[test]
fn throttled_request_that_gives_up_lets_the_next_in() {
    let device = manual();
    let [guest] = tags("gives up");
    let (pool, stream) = limited(&device, 64 * MIB, (guest, 8 * MIB));
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    let block = allocate(4 * MIB).try_now().unwrap();
    let (mut large, mut small) = (allocate(8 * MIB), allocate(4 * MIB));
    assert!(poll(&mut large).is_pending());
    assert!(poll(&mut small).is_pending());
    drop(large);
    let small = now(small).unwrap();
    assert_eq!(used(&pool, guest), 8 * MIB);
    drop((block, small));
    assert_eq!(used(&pool, guest), 0);
}

/// Order is kept across limits: a request that is let in has the queue position of its coming.
#[test]
fn request_that_is_let_in_keeps_its_queue_position() {
    let device = manual();
    let [guest] = tags("place");
    let (pool, stream) = limited(&device, 8 * MIB, (guest, 4 * MIB));
    let of_guest = pool.allocate(&stream, 4 * MIB).tag(guest).try_now();
    let other = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let held = not_ready(pool.allocate(&stream, 4 * MIB).tag(guest));
    let mut later = not_ready(pool.allocate(&stream, 8 * MIB));
    drop(of_guest);
    let held = now(held).expect("it came before the other");
    drop(other);
    assert!(poll(&mut later).is_pending());
    drop(held);
    drop(now(later).unwrap());
}

/// A future is dropped in the quota queue, in the fair queue, or after the grant: its tag is charged nothing in the
/// end.
#[test]
fn dropped_future_uncharges_its_tag() {
    let device = manual();
    let [guest] = tags("dropped");
    let (pool, stream) = limited(&device, 8 * MIB, (guest, 4 * MIB));
    let allocate = || pool.allocate(&stream, 4 * MIB).tag(guest);
    for stage in 0..4 {
        let mut of_guest = Some(allocate().try_now().unwrap());
        let mut other = Some(pool.try_allocate(&stream, 4 * MIB).unwrap());
        let future = not_ready(allocate());
        let mut ahead = (stage == 2).then(|| pool.allocate(&stream, 8 * MIB));
        if stage > 0 {
            of_guest = None; // lets it in
        }
        if let Some(ahead) = &mut ahead {
            assert!(poll(ahead).is_pending());
        }
        if stage == 3 {
            other = None; // grants it
            assert!(pool.tag(guest).statistics().waits.waiting <= 1);
        }
        drop(future);
        drop((of_guest, other, ahead));
        let figures = pool.tag(guest).statistics();
        assert_eq!((figures.used.current, figures.waits.waiting), (0, 0));
        drop(allocate().try_now().unwrap());
        pool.inspect().check_conserved().unwrap();
    }
}

#[test]
fn timeout_at_a_limit_names_the_limit() {
    let device = manual();
    let [guest] = tags("times out");
    let (pool, stream) = limited(&device, 64 * MIB, (guest, 4 * MIB));
    let allocate = || pool.allocate(&stream, 4 * MIB).tag(guest);
    let block = allocate().try_now().unwrap();
    let (waiting, woken, _) = not_ready_counted(allocate().timeout(us(100)));
    device.advance(us(100));
    assert_eq!(woken.get(), 1);
    let Err(AllocError::TimedOut {
        waited, shortfall, ..
    }) = now(waiting)
    else {
        panic!("it has waited long enough");
    };
    assert_eq!(waited, us(100));
    let of_tag = shortfall.tag.expect("the tag has a limit");
    let found = (of_tag.tag, of_tag.used, of_tag.limit);
    assert_eq!(found, (guest, 4 * MIB, 4 * MIB));
    assert!(
        shortfall
            .to_string()
            .contains("times out: 0 holds or was promised 4.0 MiB of its limit of 4.0 MiB")
    );
    drop(block);
    drop(allocate().try_now().unwrap());
}

/// Throttled requests fail when the pool ends, or changes so that they can never be served.
#[test]
fn throttled_requests_fail_when_the_pool_ends() {
    let close = |pool: &Pool, _: &SimDevice, _: Tag| pool.close();
    let shatter =
        |_: &Pool, device: &SimDevice, _: Tag| device.faults().break_device("an illegal address");
    let shrink = |pool: &Pool, _: &SimDevice, _: Tag| assert!(pool.resize(2 * MIB).is_ok());
    let restrict = |pool: &Pool, _: &SimDevice, tag| pool.tag(tag).set_limit(Some(MIB));
    type End = fn(&Pool, &SimDevice, Tag);
    type Expected = fn(&AllocError) -> bool;
    let ends: [(End, Expected); 4] = [
        (close, |error| *error == AllocError::Closed),
        (shatter, |error| matches!(error, AllocError::Device(_))),
        (shrink, |error| matches!(error, AllocError::TooLarge { .. })),
        (restrict, |error| {
            matches!(error, AllocError::OverLimit { .. })
        }),
    ];
    for (number, (end, is_expected)) in ends.into_iter().enumerate() {
        let device = manual();
        let tag = Tag::new(&format!("end {number}"));
        let (pool, stream) = limited(&device, 64 * MIB, (tag, 4 * MIB));
        let block = pool.allocate(&stream, 4 * MIB).tag(tag).try_now().unwrap();
        let (mut held, woken, waker) = not_ready_counted(pool.allocate(&stream, 4 * MIB).tag(tag));
        end(&pool, &device, tag);
        if number == 1 {
            // The pool is told when it next calls the device.
            let _ = pool.maintain().reap();
            drop(stream.event());
        }
        assert!(woken.get() > 0, "end {number} is heard");
        let Poll::Ready(Err(error)) = poll_with(&mut held, &waker) else {
            panic!("end {number} ends the wait");
        };
        assert!(is_expected(&error), "end {number}: {error}");
        drop((block, held));
    }
}

/// A higher limit lets requests in at once. A lower one takes nothing back, and lets none in until enough is freed.
#[test]
fn limits_change_at_run_time() {
    let device = manual();
    let [guest] = tags("changes");
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    assert_eq!(pool.tag(guest).statistics().limit, None);
    let blocks = [0; 4].map(|_| allocate(4 * MIB).try_now().unwrap());
    pool.tag(guest).set_limit(Some(8 * MIB));
    assert_eq!(pool.tag(guest).statistics().limit, Some(8 * MIB));
    let (mut waiting, woken, waker) = not_ready_counted(allocate(4 * MIB));
    let mut blocks = blocks.into_iter();
    drop((blocks.next(), blocks.next()));
    assert!(
        poll_with(&mut waiting, &waker).is_pending(),
        "8 MiB are there still"
    );
    let before = woken.get();
    pool.tag(guest).set_limit(Some(12 * MIB));
    assert!(woken.get() > before);
    let block = now(waiting).unwrap();
    let mut more = allocate(16 << 20);
    assert_matches!(now(allocate(13 << 20)), Err(AllocError::OverLimit { .. }));
    pool.tag(guest).set_limit(Some(16 << 20));
    assert!(poll(&mut more).is_pending());
    pool.tag(guest).set_limit(None);
    drop(now(more).unwrap());
    drop((block, blocks));
    assert_eq!(used(&pool, guest), 0);
}

/// Many threads never exceed the limit together, and all are served (rmm#869).
#[test]
fn threads_stay_within_the_limit_together() {
    const LIMIT: u64 = 6 * MIB;
    let device = SimDevice::new();
    let [guest] = tags("threads");
    let pool = builder(&device, 64 * MIB).made();
    pool.tag(guest).set_limit(Some(LIMIT));
    let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let all = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, held, most, all) = (&pool, &held, &most, &all);
            scope.spawn(move || {
                let stream = pool.create_stream().unwrap();
                let mut random = fastrand::Rng::with_seed(thread);
                let share = pool.allocate(&stream, LIMIT / 4).tag(guest);
                let share = share.try_now().unwrap();
                all.wait();
                let refused = pool.allocate(&stream, 1).tag(guest).try_now();
                assert_matches!(refused, Err(AllocError::LimitReached { .. }));
                all.wait();
                drop(share);
                for _ in 0..2000 {
                    let bytes = random.u64(1..=4 * MIB);
                    let allocate = pool.allocate(&stream, bytes).tag(guest);
                    let block = if random.bool() {
                        futures::executor::block_on(allocate).unwrap()
                    } else {
                        match allocate.try_now() {
                            Ok(block) => block,
                            Err(AllocError::LimitReached { .. }) => continue,
                            // A request that was let in waits for memory of another stream.
                            Err(AllocError::Exhausted(_)) => continue,
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let now = held.fetch_add(block.size(), Ordering::SeqCst) + block.size();
                    most.fetch_max(now, Ordering::SeqCst);
                    held.fetch_sub(block.size(), Ordering::SeqCst);
                    drop(block);
                }
            });
        }
    });
    assert!(most.into_inner() <= LIMIT);
    let figures = pool.tag(guest).statistics();
    assert_eq!((figures.used.current, figures.waits.waiting), (0, 0));
    pool.inspect().check_conserved().unwrap();
}

/// Where nothing is pooled, a block is whole steps of the device, and is charged as such.
#[test]
fn unpooled_blocks_are_charged_in_device_steps() {
    let device = manual();
    let [guest] = tags("unpooled");
    let pool = Pool::builder(device.clone())
        .upstream(Upstream::Unpooled)
        .made();
    pool.tag(guest).set_limit(Some(4 * MIB));
    let (_, stream) = stream(&device, &pool);
    let blocks = [0; 2].map(|_| pool.allocate(&stream, MIB).tag(guest).try_now().unwrap());
    assert_eq!(used(&pool, guest), 4 * MIB);
    assert_eq!((blocks[0].size(), blocks[0].requested()), (2 * MIB, MIB));
    assert_eq!(pool.inspect().statistics().lost_to_rounding, 2 * MIB);
    assert!(pool.allocate(&stream, MIB).tag(guest).try_now().is_err());
    drop(blocks);
    assert_eq!(pool.inspect().statistics().lost_to_rounding, 0);
    assert_eq!(used(&pool, guest), 0);
}

/// Runs a function once, when the last clone of its waker is dropped.
struct OnDrop(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::task::Wake for OnDrop {
    fn wake(self: std::sync::Arc<Self>) {}
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        let run = self.0.get_mut().unwrap().take();
        run.into_iter().for_each(|run| run());
    }
}

/// The poll stores its waker, and drops the last one: that frees memory, has the request granted, and lowers the limit
/// below it. Then the poll refuses the request.
#[test]
fn grant_to_a_request_that_its_poll_refuses_is_given_back() {
    for device in devices() {
        let [guest] = tags("refused after its grant");
        let (pool, stream) = limited(&device, 8 * MIB, (guest, 4 * MIB));
        let held = pool
            .allocate(&stream, 4 * MIB)
            .tag(guest)
            .try_now()
            .unwrap();
        let mut waiting = pool.allocate(&stream, 3 * MIB).tag(guest);
        let free = {
            let pool = pool.clone();
            move || {
                drop(held);
                // Serves the queue.
                drop(now(pool.reserve(MIB)).unwrap());
                assert_eq!(figures(&pool).live_blocks, 0, "granted, and not taken");
                assert_eq!(pool.inspect().statistics().used.current, 3 * MIB);
                pool.tag(guest).set_limit(Some(MIB));
            }
        };
        let waker = OnDrop(std::sync::Mutex::new(Some(Box::new(free))));
        let waker = std::task::Waker::from(std::sync::Arc::new(waker));
        assert!(poll_with(&mut waiting, &waker).is_pending());
        drop(waker);
        let refused = now(&mut waiting).expect_err("the request exceeds the limit");
        assert_matches!(refused, AllocError::OverLimit { .. });
        assert_eq!(used(&pool, guest), 0);
        pool.inspect().check_conserved().unwrap();
        assert_eq!(now(pool.drain()), Ok(()));
    }
}

/// The first request of a tag fails, because nothing of the tag is freed. Its task may run or not. The request behind it
/// is let in, and served.
#[test]
fn request_behind_a_failed_first_is_served() {
    const GRACE: std::time::Duration = us(10_000);
    for is_dead in [false, true] {
        let device = manual();
        let [guest] = tags("behind a failed first");
        let pool = builder(&device, 64 * MIB).fail_deadlocks_after(GRACE);
        let pool = pool.made();
        pool.tag(guest).set_limit(Some(8 * MIB));
        let (_, stream) = stream(&device, &pool);
        let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
        let _held = allocate(4 * MIB).try_now().unwrap();
        let mut first = [Woken::new(allocate(6 * MIB))];
        let mut second = [Woken::new(allocate(4 * MIB))];
        for _ in 0..20 {
            device.advance(GRACE / 4);
            settle(&mut second);
            if !is_dead {
                settle(&mut first);
            }
        }
        assert_matches!(second[0].output, Some(Ok(_)), "dead: {is_dead}");
    }
}

/// The first request of a tag exceeds the lowered limit, or the lowered capacity, and its task runs no more. It fails, and
/// the request behind it is served.
#[test]
fn request_behind_one_that_can_never_be_served_is_served() {
    for is_limit in [true, false] {
        let device = manual();
        let [guest] = tags("behind one that can never be served");
        let (pool, stream) = limited(&device, 64 * MIB, (guest, 16 * MIB));
        let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
        let _held = allocate(4 * MIB).try_now().unwrap();
        let mut first = not_ready(allocate(14 * MIB));
        let mut second = [Woken::new(allocate(MIB))];
        if is_limit {
            pool.tag(guest).set_limit(Some(12 * MIB));
        } else {
            let _ = pool.resize(12 * MIB).unwrap();
        }
        settle(&mut second);
        assert!(!second[0].is_waiting(), "limit: {is_limit}");
        let error = now(&mut first).expect_err("it can never be served");
        match is_limit {
            true => assert_matches!(error, AllocError::OverLimit { .. }),
            false => assert_matches!(error, AllocError::TooLarge { .. }),
        }
        drop(first);
        assert_eq!(used(&pool, guest), 5 * MIB);
    }
}

/// A request in the fair queue fails, and its task does not look at the answer: its bytes are those of its tag again.
#[test]
fn failed_request_gives_its_bytes_back_before_its_task_knows() {
    let device = manual();
    let [guest] = tags("failed");
    let (pool, stream) = limited(&device, 16 * MIB, (guest, 16 * MIB));
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    let other = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let dead = not_ready(allocate(14 * MIB));
    let mut second = [Woken::new(allocate(4 * MIB))];
    let _ = pool.resize(12 * MIB).unwrap();
    settle(&mut second);
    assert!(!second[0].is_waiting());
    assert_eq!(used(&pool, guest), 4 * MIB);
    drop((dead, second, other));
    assert_eq!(used(&pool, guest), 0);
}
