//! Order, cancellation, time, and the end of the waiting.

use super::*;
use std::task::Poll;
use weirpool::device::sim::Clock;
use weirpool::device::{Device, MemoryKind};

#[test]
fn allocation_waits_for_a_free_and_for_its_work() {
    let device = manual();
    let (pool, work, _a, block) = full(&device);
    let (_, b) = stream(&device, &pool);
    let (mut waiting, woken, waker) = not_ready_counted(pool.allocate(&b, MIB));
    use_block(&work, &block, us(100));
    drop(block);
    assert!(woken.get() > 0, "a free wakes the waiting request");
    assert!(
        poll_with(&mut waiting, &waker).is_pending(),
        "the work runs still"
    );
    let before = woken.get();
    device.advance(us(100));
    assert!(woken.get() > before, "the device is watched");
    let _granted = now(&mut waiting).expect("granted");
    assert_eq!(pool.inspect().statistics().waits.served, 1);
    assert_eq!(pool.inspect().statistics().waits.times.longest(), us(100));
}

/// Requests are granted in the order of their coming: none passes the head, and `try_allocate` fails.
#[test]
fn no_request_overtakes_the_head_of_the_queue() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    drop(block);
    let small = pool.try_allocate(&a, MIB).unwrap();
    let (_, b) = stream(&device, &pool);
    let head = not_ready(pool.allocate(&b, 8 * MIB));
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

/// Caches are flushed and bypassed while any request waits.
#[test]
fn warm_cache_does_not_starve_the_queue() {
    let (_, pool, [(_, a), (_, b)]) = set_up_with(|device| host_waits_only(device, 8 * MIB));
    let blocks = several(&pool, &a, 8, MIB);
    let mut waiting = not_ready(pool.allocate(&b, 4 * MIB));
    for block in blocks {
        drop(block);
        if pool.inspect().statistics().waits.waiting > 0 {
            assert!(pool.try_allocate(&a, MIB).is_err(), "the lane is bypassed");
        }
    }
    assert!(poll(&mut waiting).is_ready());
}

#[test]
fn cancelled_request_leaves_the_queue_and_the_next_is_served() {
    let device = manual();
    let (pool, _, _, block) = full(&device);
    drop(block);
    let (_, a) = stream(&device, &pool);
    let _half = pool.try_allocate(&a, 4 * MIB).unwrap();
    let mut head = pool.allocate(&a, 8 * MIB);
    let mut next = pool.allocate(&a, 4 * MIB);
    assert!(poll(&mut head).is_pending());
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut next, &waker).is_pending());
    drop(head);
    assert!(woken.get() > 0);
    assert!(poll(&mut next).is_ready());
    assert_eq!(pool.inspect().statistics().waits.unserved(), 1);
}

/// The future is dropped after the grant, before it takes it: the grant goes to the next request.
#[test]
fn grant_that_is_not_taken_goes_to_the_next_request() {
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
    pool.inspect().check().unwrap();
}

#[test]
fn future_that_is_never_polled_takes_nothing() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    drop(pool.allocate(&a, 8 * MIB));
    drop(block);
    assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
}

/// A forgotten future leaks at most its queue position and its grant.
#[test]
fn forgotten_grant_leaks_only_itself() {
    let (_, pool, [(_, a)]) = set_up_with(|device| host_waits_only(device, 8 * MIB));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let waiting = not_ready(pool.allocate(&a, 2 * MIB));
    let mut second = not_ready(pool.allocate(&a, 2 * MIB));
    drop(block);
    assert!(poll(&mut second).is_ready());
    std::mem::forget(waiting);
    assert!(pool.try_allocate(&a, 6 * MIB).is_ok());
    assert!(pool.try_allocate(&a, 8 * MIB).is_err());
    pool.inspect().check().unwrap();
    drop(second);
    pool.end_before_its_blocks();
}

/// The memory is charged to the tag that the request had when it joined the queue.
#[test]
fn several_blocks_are_charged_to_the_tag_they_waited_for() {
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
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
    }
}

#[test]
fn timeout_is_on_the_devices_clock() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let (mut waiting, woken, waker) = not_ready_counted(pool.allocate(&a, MIB).timeout(us(50)));
    device.advance(us(49));
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = woken.get();
    device.advance(us(1));
    assert!(woken.get() > before);
    let Poll::Ready(Err(AllocError::TimedOut {
        waited, shortfall, ..
    })) = poll(&mut waiting)
    else {
        panic!("timed out");
    };
    assert_eq!((waited, shortfall.requested), (us(50), MIB));
    drop(block);
    assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
}

#[test]
fn timeouts_say_of_which_time_they_are() {
    for (clock, is_virtual) in [(Clock::Virtual, true), (Clock::Wall, false)] {
        let device = SimDevice::builder().clock(clock).build();
        let (pool, _, a, _block) = full(&device);
        let waits = pool.allocate(&a, MIB).timeout(us(500)).blocking();
        let drains = pool.drain().timeout(us(500)).blocking();
        for text in [
            waits.unwrap_err().to_string(),
            drains.unwrap_err().to_string(),
        ] {
            assert_eq!(text.contains(" of virtual time"), is_virtual, "{text}");
        }
    }
}

#[test]
fn closing_fails_waiting_requests_and_keeps_live_blocks() {
    let device = manual();
    let (pool, _, a, block) = full(&device);
    let (waiting, woken, _) = not_ready_counted(pool.allocate(&a, MIB));
    pool.close();
    assert_eq!(woken.get(), 1);
    assert_eq!(now(waiting).unwrap_err(), AllocError::Closed);
    assert_eq!(pool.try_allocate(&a, 1).unwrap_err(), AllocError::Closed);
    assert_eq!(now(pool.allocate(&a, 1)).unwrap_err(), AllocError::Closed);
    assert!(pool.inspect().health().is_closed);
    now(block.deallocate()).unwrap();
}

/// Pending memory of a broken device is leaked rather than reused.
#[test]
fn broken_device_fails_every_waiting_request() {
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
    device.faults().break_device("an illegal address");
    assert!(woken.get() > before, "watches are called on errors too");
    for waiting in [first, second] {
        let error = now(waiting).unwrap_err();
        assert_matches!(error, AllocError::Device(_));
    }
    let error = pool.try_allocate(&a, 1).unwrap_err();
    assert_matches!(error, AllocError::Device(_));
    assert_eq!(
        figures(&pool).pending.current,
        8 * MIB,
        "leaked, not reused"
    );
    assert!(a.event().is_err());
    assert!(now(a.synchronize()).is_err());
}

/// Plain memory stays as it is. The free segment has room for one of the blocks, and the device has no memory for the
/// other one before the segment is released.
#[test]
fn blocks_of_one_request_are_granted_although_the_free_segment_fits_only_one() {
    for blocking in [false, true] {
        let device = manual_builder()
            .virtual_memory(false)
            .blocking_memory_calls(blocking)
            .build();
        let pool = pool(&device, 16 * MIB);
        let (_, a) = stream(&device, &pool);
        drop(pool.try_allocate(&a, 12 * MIB).unwrap());
        let half = 6 * MIB + 512;
        let blocks = pool.allocate_many(&a, [half, half]).try_now().unwrap();
        drop(blocks);
        let _ = pool.trim_to(0).unwrap();
        let held = pool.try_allocate(&a, 12 * MIB).unwrap();
        let many = async { pool.allocate_many(&a, [half, half]).await.map(drop) };
        let mut tasks = [Woken::new(many)];
        drop(held);
        eventually(|| {
            settle(&mut tasks);
            !tasks[0].is_waiting()
        });
        assert_eq!(tasks[0].output, Some(Ok(())));
    }
}

/// Plain memory comes in segments of whole steps. The capacity holds both blocks, but not a segment for each.
#[test]
fn blocks_of_one_request_share_a_segment_where_each_of_its_own_is_too_much() {
    let device = manual_builder().virtual_memory(false).build();
    let pool = builder(&device, 14 * MIB).made();
    let [(_, a), (_, b)] = streams(&device, &pool);
    let parts = || [6 * MIB + 512; 2];
    drop(pool.allocate_many(&a, parts()).try_now().unwrap());
    let held = pool.try_allocate(&b, 10 * MIB).unwrap();
    let mut blocks = [Woken::new(pool.allocate_many(&a, parts()))];
    drop(held);
    device.advance(us(10_000));
    settle(&mut blocks);
    assert!(!blocks[0].is_waiting());
    drop(blocks);
    drop(now(pool.reserve_many(parts().to_vec())).unwrap());
}

/// The device refuses a segment for both blocks, and then gives one for the first. Other code releases memory later, and
/// does not say so.
#[test]
fn refused_segment_for_all_blocks_is_asked_for_again() {
    let device = sized(20 * MIB, false);
    let pool = builder(&device, 16 * MIB)
        .tuning(|tuning| {
            tuning.growth = GrowBy::AtLeast(6 * MIB);
            tuning.lane_bytes = 0;
        })
        .fail_deadlocks_after(10 * us(100_000_000))
        .made();
    let (_, stream) = stream(&device, &pool);
    let outside = device.allocate(MemoryKind::Device, 6 * MIB).unwrap();
    let _kept = pool.reserve(3 * MIB).try_now().unwrap();
    let mut tasks = [Woken::new(pool.allocate_many(&stream, [4 * MIB + 512; 2]))];
    device.advance(us(200_000));
    settle(&mut tasks);
    assert!(tasks[0].is_waiting());
    device.free(MemoryKind::Device, outside, 6 * MIB).unwrap();
    pass(&device, 10, us(20_000), &mut tasks);
    assert!(!tasks[0].is_waiting());
}

/// Times beyond half of what a `Duration` holds do not overflow, in the device and in the pool.
#[test]
fn clock_may_be_far_in_the_future() {
    for device in devices() {
        let pool = pool(&device, 8 * MIB);
        let [(work, stream), (_, other)] = streams(&device, &pool);
        for far in [
            std::time::Duration::from_secs(u64::MAX / 2),
            std::time::Duration::from_secs(1),
        ] {
            use_and_free(&pool, (&work, &stream), 4096, us(1));
            let event = stream.event().unwrap();
            device.advance(far);
            let _ = event.is_complete();
            for _ in 0..20 {
                use_and_free(&pool, (&work, &stream), MIB, us(1));
                drop(pool.try_allocate(&other, 8 * MIB));
                device.advance(us(1));
            }
        }
        let waiting = pool
            .allocate(&other, 4 * MIB)
            .timeout(std::time::Duration::MAX);
        drop(device.block_on(waiting).unwrap());
    }
}
