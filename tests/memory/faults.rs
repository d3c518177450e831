//! A device that fails by script: no memory is lost or reused early, and errors are reported.

use crate::common::*;
use weirpool::device::Device;
use weirpool::device::DeviceErrorKind::{Other, OutOfMemory, Sticky, Unsupported};
use weirpool::device::sim::Fault::{Fails, Late, Never, Reports};
use weirpool::device::sim::{Call, SimDevice, SimStream};
use weirpool::*;

fn is_consistent(device: &SimDevice, pool: &Pool) {
    pool.inspect().check().unwrap();
    let statistics = pool.inspect().statistics();
    let found = statistics.reserved.current;
    assert_eq!(found, device.counters().physical_in_use);
}

/// The upstream fails during growth, at each of its steps.
#[test]
fn growth_that_fails_halfway_loses_no_memory() {
    for call in [Call::Create, Call::Map] {
        for nth in 1..=4 {
            let (device, pool, [(_, stream)]) = set_up(16 * MIB);
            device.faults().script(call, nth, Fails(OutOfMemory));
            let refused = pool.try_allocate(&stream, 4 * CHUNK).unwrap_err();
            assert_matches!(refused, AllocError::Exhausted(_), "{call:?} {nth}");
            is_consistent(&device, &pool);
            let _block = pool.try_allocate(&stream, 4 * CHUNK).unwrap();
        }
    }
}

/// Remapping fails between unmapping memory here and mapping it there.
#[test]
fn remapping_that_fails_halfway_loses_no_memory() {
    for call in [Call::Unmap, Call::Map] {
        for nth in 1..=2 {
            let (device, pool, [(_, stream)]) = set_up(4 * CHUNK);
            let blocks = several(&pool, &stream, 4, CHUNK);
            let mut kept = Vec::new();
            for (n, block) in blocks.into_iter().enumerate() {
                if n % 2 == 1 {
                    kept.push(block);
                }
            }
            now(stream.synchronize()).unwrap();
            device.faults().script(call, nth, Fails(Other));
            let refused = pool.try_allocate(&stream, 2 * CHUNK).unwrap_err();
            assert_matches!(refused, AllocError::Device(_), "{call:?} {nth}");
            is_consistent(&device, &pool);
            drop(pool.try_allocate(&stream, 2 * CHUNK).unwrap());
        }
    }
}

#[test]
fn failed_release_keeps_unreleased_memory() {
    let (device, pool, [(_, stream)]) = set_up(16 * MIB);
    drop(pool.try_allocate(&stream, 4 * CHUNK).unwrap());
    now(stream.synchronize()).unwrap();
    device.faults().script(Call::Unmap, 3, Fails(Other));
    assert!(pool.trim_to(0).is_err());
    is_consistent(&device, &pool);
    assert_eq!(reserved(&pool), 2 * CHUNK);
    assert_eq!(pool.trim_to(0).unwrap().released, 2 * CHUNK);
}

/// The device is full for a while. An allocation waits for memory of the pool itself.
#[test]
fn full_device_is_waited_for() {
    let device = manual_builder().memory(8 * MIB).build();
    let pool = host_waits_only(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 2 * MIB).unwrap();
    let others = device.faults().occupy(u64::MAX);
    assert_eq!(others.bytes(), 6 * MIB);
    let refused = pool.try_allocate(&stream, 4 * MIB).unwrap_err();
    assert_matches!(refused, AllocError::Exhausted(_));
    let waiting = not_ready(pool.allocate(&stream, 2 * MIB));
    drop(block);
    let _block = now(waiting).unwrap();
    drop(others);
    let _more = pool.try_allocate(&stream, 6 * MIB).unwrap();
    is_consistent(&device, &pool);
}

/// A failed record leaves the memory pending until a later event completes it.
#[test]
fn failed_record_is_compensated_by_the_next() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| host_waits_only(device, 8 * MIB));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    use_block(&work, &block, us(10));
    device.faults().fail_next(Call::Record, Other);
    drop(block);
    assert!(pool.try_allocate(&b, 8 * MIB).is_err(), "the work runs");
    device.advance(us(10));
    drop(pool.try_allocate(&b, 8 * MIB).unwrap());
}

/// An event that completes late only delays the reuse.
#[test]
fn late_ticket_delays_the_reuse() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| host_waits_only(device, 8 * MIB));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    use_block(&work, &block, us(10));
    device.faults().script(Call::Record, 1, Late(us(100)));
    drop(block);
    let (mut waiting, woken, waker) = not_ready_counted(pool.allocate(&b, 8 * MIB));
    device.advance(us(99));
    assert_eq!(work.backlog(), 0);
    assert!(
        poll_with(&mut waiting, &waker).is_pending(),
        "not complete yet"
    );
    let before = woken.get();
    device.advance(us(1));
    assert!(woken.get() > before);
    assert!(poll(&mut waiting).is_ready());
}

/// A later event of the stream completes an earlier ticket whose event is late, or never completes.
#[test]
fn later_ticket_completes_one_whose_event_never_does() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| host_waits_only(device, 8 * MIB));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    device.faults().script(Call::Record, 1, Never);
    let freed = block.deallocate();
    assert!(pool.try_allocate(&b, 8 * MIB).is_err());
    let (mut waiting, woken, waker) = not_ready_counted(pool.allocate(&b, 8 * MIB));
    device.advance(us(1_000_000));
    assert!(
        poll_with(&mut waiting, &waker).is_pending(),
        "no event completes it"
    );
    run(&work, us(10));
    let later = a.event().unwrap();
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = woken.get();
    device.advance(us(10));
    assert!(woken.get() > before, "the later event is watched too");
    let granted = poll(&mut waiting);
    assert!(granted.is_ready());
    now(freed).unwrap();
    assert!(later.is_complete().unwrap());
}

/// A ticket that never completes pins its own memory, but not that of other streams (pytorch#71745).
#[test]
fn incomplete_ticket_pins_only_its_own_memory() {
    let (device, pool, [(_, a), (work, b)]) =
        set_up_with(|device| host_waits_only(device, 8 * MIB));
    let stuck = pool.try_allocate(&a, 4 * MIB).unwrap();
    let other = pool.try_allocate(&b, 4 * MIB).unwrap();
    device.faults().script(Call::Record, 1, Never);
    let mut freed = not_ready(stuck.deallocate());
    run(&work, us(10));
    drop(other);
    device.advance(us(10));
    let (_, c) = stream(&device, &pool);
    drop(pool.try_allocate(&c, 4 * MIB).unwrap());
    assert!(pool.try_allocate(&c, 8 * MIB).is_err());
    assert!(poll(&mut freed).is_pending());
}

/// *errors-are-errors*: an event that reports an error is not "not ready". Its waiter gets the error, and it completes
/// nothing. Other streams go on, and a later event completes the ticket.
#[test]
fn event_with_an_error_completes_nothing_and_is_reported() {
    let (device, pool, [(_, a), (_, b)]) = set_up_with(|device| host_waits_only(device, 16 * MIB));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    device.faults().script(Call::Record, 1, Reports(Other));
    let freed = block.deallocate();
    assert_eq!(now(freed).unwrap_err().kind(), Other);
    let _other = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert!(pool.try_allocate(&b, 8 * MIB).is_err());
    assert_eq!(pool.inspect().statistics().pending.current, 8 * MIB);
    now(a.synchronize()).unwrap();
    drop(pool.try_allocate(&b, 8 * MIB).unwrap());
}

/// An event reports a sticky error. Every request fails with it, and the memory is leaked.
#[test]
fn event_with_a_sticky_error_fails_everything() {
    let (device, pool, [(_, a), (_, b)]) = set_up_with(|device| host_waits_only(device, 8 * MIB));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    device.faults().script(Call::Record, 1, Reports(Sticky));
    let freed = block.deallocate();
    let error = pool.try_allocate(&b, 8 * MIB).unwrap_err();
    let AllocError::Device(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), Sticky);
    assert_eq!(now(freed).unwrap_err().kind(), Sticky);
    assert_eq!(
        now(pool.allocate(&b, 8 * MIB)).unwrap_err(),
        AllocError::Device(error)
    );
    assert_eq!(
        figures(&pool).pending.current,
        8 * MIB,
        "leaked, not reused"
    );
}

/// A wait on the device that cannot be enqueued is not relied on, and the block stays where it was.
#[test]
fn failed_device_wait_returns_the_block() {
    let (device, pool, [(work, a), (_, b)]) = set_up(8 * MIB);
    use_and_free(&pool, (&work, &a), 8 * MIB, us(10));
    device.faults().fail_next(Call::Wait, Other);
    let refused = pool.try_allocate(&b, 8 * MIB).unwrap_err();
    assert_matches!(refused, AllocError::Device(_));
    assert_eq!(pool.inspect().statistics().pending.current, 8 * MIB);
    let event = a.event().unwrap();
    device.faults().fail_next(Call::Wait, Other);
    assert!(b.wait(&event).is_err());
    let granted = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert_eq!(
        granted.source(),
        Source::DeviceWait,
        "the failed wait changed no clock"
    );
}

/// A further stream that could not be ordered does not become a user of the block.
#[test]
fn use_that_cannot_be_ordered_is_refused() {
    let (device, pool, [(work, a), (_, b)]) = set_up(8 * MIB);
    drop(pool.try_allocate(&a, 8 * MIB).unwrap());
    run(&work, us(10));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    device.faults().fail_next(Call::Wait, Other);
    assert_matches!(
        b.record_use(Unordered::UntilFreed(&block)),
        Err(StreamError::Device(_))
    );
    b.record_use(Unordered::UntilFreed(&block)).unwrap();
    drop(block);
    device.advance(us(10));
}

/// Memory was unmapped, but its chunk could not be released. The pool does not grant those addresses without memory
/// behind them.
#[test]
fn unmapped_memory_is_not_granted_when_its_release_fails() {
    let (device, pool, [(_, stream)]) = set_up(16 * MIB);
    drop(pool.try_allocate(&stream, 4 * CHUNK).unwrap());
    now(stream.synchronize()).unwrap();
    device.faults().fail_next(Call::Destroy, Other);
    assert!(pool.trim_to(0).is_err());
    pool.inspect().check().unwrap();
    let block = pool.try_allocate(&stream, 4 * CHUNK).unwrap();
    assert!(device.is_mapped(block.address(), block.size()));
    drop(block);
    now(stream.synchronize()).unwrap();
    let _ = pool.trim_to(0).unwrap();
    assert_eq!(reserved(&pool), 0);
}

/// *safe-teardown*: the pool is dropped when no event could be recorded for its last free. So the end of the work is
/// unknown, and the memory is leaked.
#[test]
fn unsealed_memory_of_a_dropped_pool_is_leaked() {
    let (device, pool, [(work, stream)]) = set_up(8 * MIB);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    use_block(&work, &block, us(100));
    for nth in 1..=4 {
        device.faults().script(Call::Record, nth, Fails(Other));
    }
    drop(block);
    drop((stream, pool));
    assert_eq!(device.counters().physical_in_use, 8 * MIB);
    device.advance_to_end();
    device.assert_ordered();
}

/// A stream that currently takes no event or no wait, because it is being captured, fails no request. Its memory is not
/// available meanwhile.
#[test]
fn memory_behind_a_capturing_stream_is_skipped() {
    for call in [Call::Record, Call::Wait] {
        let (device, pool, [(work, a), (_, b)]) = set_up_with(|device| {
            builder(device, 8 * MIB)
                .sealing(Sealing::OnDemand)
                .tuning(|tuning| tuning.when_short = WhenShort::GrowThenWait)
        });
        use_and_free(&pool, (&work, &a), 8 * MIB, us(10));
        let refuse = || {
            for nth in 1..=20 {
                device.faults().script(call, nth, Fails(Unsupported));
            }
        };
        refuse();
        let refused = pool.try_allocate(&b, 8 * MIB).unwrap_err();
        assert_matches!(refused, AllocError::Exhausted(_), "{call:?}");
        let mut waiting = pool.allocate(&b, 8 * MIB);
        assert!(poll(&mut waiting).is_pending(), "{call:?}");
        drop(waiting);
        pool.inspect().check().unwrap();
    }
}

/// A device-side wait fails, but other memory is complete and is taken instead.
#[test]
fn failed_device_wait_falls_back_to_complete_memory() {
    let device = manual();
    let limit = WhenShort::GrowThenWait;
    let pool = tuned(&device, 8 * MIB, |tuning| tuning.when_short = limit);
    let [(work, a), (_, b)] = streams(&device, &pool);
    let used_for = |time| {
        drop(pool.try_allocate(&a, 8 * MIB).unwrap());
        run(&work, time);
        a.seal().unwrap();
    };
    used_for(us(100));
    device.advance(us(100));
    pool.maintain().reap().unwrap();
    used_for(us(10));
    device.advance(us(10)); // sooner than expected, and not polled
    device.faults().fail_next(Call::Wait, Other);
    assert_eq!(source(&pool, &b, 8 * MIB), Source::Free);
    assert_eq!(device.counters().calls(Call::Wait), 1);
}

/// The error of one event says nothing about earlier ones.
#[test]
fn complete_work_counts_although_a_later_event_has_an_error() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| host_waits_only(device, 24 * MIB));
    let blocks = [(); 3].map(|()| pool.try_allocate(&a, 8 * MIB).unwrap());
    device.faults().script(Call::Record, 2, Reports(Other));
    for (at, block) in blocks.into_iter().enumerate() {
        run(&work, us(if at < 2 { 10 } else { 1000 }));
        drop(block);
        a.seal().unwrap();
    }
    device.advance(us(50));
    let first = pool.try_allocate(&b, 8 * MIB).unwrap();
    assert!(pool.try_allocate(&b, 8 * MIB).is_err());
    device.advance(us(1000));
    drop((first, pool.try_allocate(&b, 16 * MIB).unwrap()));
}

/// The oldest event reports an error. The pool polls the newest one instead of growing.
#[test]
fn event_with_an_error_causes_no_growth() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| host_waits_only(device, 64 * MIB));
    let used_for = |block: Block, time| {
        drop(block);
        run(&work, time);
        a.seal().unwrap();
    };
    let blocks = [8 * MIB, 4 * MIB].map(|bytes| pool.try_allocate(&a, bytes).unwrap());
    used_for(pool.try_allocate(&a, 4 * MIB).unwrap(), us(1000));
    device.advance(us(1000));
    pool.maintain().reap().unwrap();
    let before = reserved(&pool);
    device.faults().script(Call::Record, 1, Reports(Other));
    blocks.into_iter().for_each(|block| used_for(block, us(10)));
    device.advance(us(20)); // sooner than expected
    assert_eq!(source(&pool, &b, 8 * MIB), Source::Free);
    assert_eq!(reserved(&pool), before);
}

/// A pool that records an event at every free, and a stream with two blocks.
fn with_two_blocks(device: &SimDevice) -> (TestPool, SimStream, Stream, [Block; 2]) {
    let builder = builder(device, 16 * MIB).sealing(Sealing::EveryFree);
    let pool = builder.made();
    let (work, stream) = stream(device, &pool);
    let blocks = [(); 2].map(|()| pool.try_allocate(&stream, MIB).unwrap());
    (pool, work, stream, blocks)
}

/// One of two events reports an error while the pool ends. The newest event covers an older one: the memory is released
/// once it is complete. If the newest one has the error, no event tells when the work behind it ends.
#[test]
fn teardown_releases_memory_only_if_the_newest_event_completes() {
    for (blocking, newest_errs) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = manual_builder().blocking_memory_calls(blocking).build();
        let (pool, work, stream, blocks) = with_two_blocks(&device);
        for (block, errs) in blocks.into_iter().zip([!newest_errs, newest_errs]) {
            run(&work, us(100));
            if errs {
                device.faults().script(Call::Record, 1, Reports(Other));
            }
            drop(block);
        }
        let held = device.counters().physical_in_use;
        assert!(held > 0, "the work runs");
        drop((stream, pool));
        device.advance(us(1000));
        if newest_errs {
            assert_eq!(device.counters().physical_in_use, held, "leaked");
        } else {
            eventually(|| device.counters().physical_in_use == 0);
        }
    }
}

/// An older event that reports an error is covered by the newest one.
/// A growth that is refused halfway counts neither an allocation nor a free.
#[test]
fn refused_growth_leaves_the_statistics_as_they_were() {
    let (device, pool, [(work, a), (_, b)]) =
        set_up_with(|device| tuned(device, 16 * MIB, |tuning| tuning.lane_bytes = 0));
    let mut low = pool.try_allocate(&a, 512).unwrap();
    let above = pool.try_allocate(&a, MIB).unwrap();
    b.record_use(Unordered::UntilFreed(&low)).unwrap();
    run(&work, us(100));
    drop(above);
    let before = pool.inspect().statistics();
    device.faults().fail_next(Call::Wait, Other);
    low.grow(512).try_now().unwrap_err();
    let after = pool.inspect().statistics();
    assert_eq!(after.live_blocks, before.live_blocks);
    let found = (after.allocations, after.frees);
    assert_eq!(found, (before.allocations, before.frees));
    drop(low);
    let statistics = pool.inspect().statistics();
    assert_eq!((statistics.live_blocks, statistics.used.current), (0, 0));
    device.advance(us(1000));
    pool.maintain().reap().unwrap();
}

/// A task that the device wakes in the call which destroys an event may lock what it likes.
#[test]
fn no_lock_is_held_while_events_are_destroyed() {
    let (device, pool, [(work, home)]) = set_up(16 * MIB);
    drop(pool.try_allocate(&home, MIB).unwrap());
    drop(home.event().unwrap());
    let busy = device.create_stream();
    run(&busy, us(100));
    let event = device.create_event().unwrap();
    device.record(event, busy.raw()).unwrap();
    let (woken, waker) = Count::new();
    let watch = device.watch(event, &waker);
    device.faults().fail_next(Call::DestroyEvent, Sticky);
    drop((work, home, pool));
    assert_eq!(device.counters().calls(Call::DestroyEvent), 1);
    assert_eq!(woken.get(), 1, "the device broke in that call");
    device.unwatch(watch);
}

#[test]
fn event_whose_record_fails_is_used_again_and_destroyed() {
    for call in [Call::CreateEvent, Call::Record] {
        let (device, pool, [(work, home)]) = set_up(16 * MIB);
        device.faults().fail_next(call, Other);
        assert!(home.event().is_err());
        drop(home.event().unwrap());
        let count = |call| device.counters().calls(call);
        let failed = u64::from(call == Call::CreateEvent);
        assert_eq!(count(Call::CreateEvent), 1 + failed);
        drop((work, home, pool));
        assert_eq!(count(Call::DestroyEvent), 1);
    }
}
