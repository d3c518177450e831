//! Fills that the device refuses.

use super::*;
use weirpool::Unordered;
use weirpool::device::DeviceErrorKind::{Other, Sticky, Unsupported};

/// The memory is available again, and the statistics are right.
#[test]
fn failed_fill_of_an_allocation_loses_no_memory() {
    for bytes in [512, MIB, 9 * MIB] {
        let setup = Setup::new(zero_on_allocate);
        drop(setup.take(bytes)); // later blocks come from the lane, too
        for awaited in [false, true] {
            setup.device.faults().fail_next(Call::Fill, Other);
            let refused = match awaited {
                false => setup.pool.try_allocate(&setup.stream, bytes).map(drop),
                true => now(setup.pool.allocate(&setup.stream, bytes)).map(drop),
            };
            let Err(AllocError::Device(error)) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!((error.kind(), error.call()), (Other, "fill"));
            setup.pool.inspect().check().unwrap();
            let statistics = setup.pool.inspect().statistics();
            assert_eq!(statistics.used.current, 0);
            assert_eq!(statistics.allocations, statistics.frees);
        }
        drop(setup.take(bytes));
        let all = setup.take(64 * MIB);
        assert_eq!(setup.byte_at(all.address(), all.size()), 0);
    }
}

/// The bytes that the request charged are available to the tag's next request.
#[test]
fn failed_fill_uncharges_the_tag() {
    let tag = Tag::new("fills");
    let setup = Setup::new(zero_on_allocate);
    setup.pool.tag(tag).set_limit(Some(MIB));
    let allocate = || setup.pool.allocate(&setup.stream, MIB).tag(tag);
    setup.device.faults().fail_next(Call::Fill, Other);
    let refused = allocate().try_now().unwrap_err();
    assert_matches!(refused, AllocError::Device(_));
    let block = allocate().try_now().unwrap();
    let held = not_ready(allocate());
    drop(block);
    setup.device.faults().fail_next(Call::Fill, Other);
    let refused = now(held).unwrap_err();
    assert_matches!(refused, AllocError::Device(_));
    drop(now(allocate()).unwrap());
    let statistics = setup.pool.tag(tag).statistics();
    assert_eq!(statistics.used.current, 0);
}

/// The waiter gets the error, and the next request in the queue gets the memory.
#[test]
fn failed_fill_of_a_waiter_admits_the_next_one() {
    let setup = Setup::new(zero_on_allocate);
    let all = setup.take(64 * MIB);
    let mut first = setup.pool.allocate(&setup.stream, 64 * MIB);
    let mut second = setup.pool.allocate(&setup.stream, 64 * MIB);
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(all);
    setup.device.faults().fail_next(Call::Fill, Other);
    let refused = setup.finish(first).unwrap_err();
    assert_matches!(refused, AllocError::Device(_));
    let block = setup.finish(second).unwrap();
    assert_eq!(setup.byte_at(block.address(), block.size()), 0);
}

/// A stream takes no fill while it is captured. The memory is granted as it is.
#[test]
fn fill_is_skipped_on_a_stream_that_takes_none() {
    let setup = Setup::new(|builder| {
        builder
            .fill(FillAt::Allocation, Fill::Zero)
            .fill(FillAt::Free, Fill::Poison)
    });
    let block = setup.take(MIB);
    let address = block.address();
    write_after(&setup.work, &block, 5, 7);
    setup.device.faults().fail_next(Call::Fill, Unsupported);
    drop(block);
    setup.device.faults().fail_next(Call::Fill, Unsupported);
    let block = setup.take(MIB);
    assert_eq!(block.address(), address);
    assert_eq!(setup.byte_at(address, MIB), 7);
    drop(block);
    assert_eq!(setup.byte_at(address, MIB), POISON);
}

/// A free has no caller to report to. The memory is freed unfilled, in the order of all its streams.
#[test]
fn free_takes_place_when_its_fill_fails() {
    for call in [Call::Fill, Call::Record, Call::Wait] {
        for kind in [Other, Unsupported] {
            let setup = Setup::new(|builder| poison_on_free(builder).capacity(8 * MIB));
            let (other, further) = stream(&setup.device, &setup.pool);
            let block = setup.take(8 * MIB);
            let address = block.address();
            further.record_use(Unordered::UntilFreed(&block)).unwrap();
            write_after(&other, &block, 300, 7);
            setup.device.faults().fail_next(call, kind);
            drop(block);
            let (_, third) = stream(&setup.device, &setup.pool);
            let block = setup.pool.try_allocate(&third, 8 * MIB).unwrap();
            assert_eq!(block.address(), address);
            assert!(contents(&setup, &third, &block) == vec![7; 8 << 20]);
            drop(block);
            assert_eq!(setup.byte_at(address, 8 * MIB), POISON);
        }
    }
}

#[test]
fn device_that_breaks_in_a_fill_ends_the_pool_without_a_panic() {
    for on_free in [false, true] {
        let setup = Setup::new(|builder| {
            builder
                .fill(FillAt::Allocation, Fill::Zero)
                .fill(FillAt::Free, Fill::Zero)
        });
        let block = setup.take(MIB);
        let mut waiting = not_ready(setup.pool.allocate(&setup.stream, 64 * MIB));
        setup.device.faults().fail_next(Call::Fill, Sticky);
        if on_free {
            drop(block);
        } else {
            drop(waiting);
            let refused = setup.pool.try_allocate(&setup.stream, MIB).unwrap_err();
            assert_matches!(refused, AllocError::Device(error) if error.is_sticky());
            waiting = setup.pool.allocate(&setup.stream, 64 * MIB);
            drop(block);
        }
        let told = now(waiting).unwrap_err();
        assert_matches!(told, AllocError::Device(error) if error.is_sticky());
        setup.pool.inspect().check().unwrap();
    }
}

/// No order between the streams exists, so the pool does not write memory that may be in use.
#[test]
fn memory_used_on_unordered_streams_is_not_filled() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .device_side_waits(false)
        .build();
    let setup = Setup::on(device, poison_on_free);
    let (other, further) = stream(&setup.device, &setup.pool);
    let block = setup.take(MIB);
    let address = block.address();
    further.record_use(Unordered::UntilFreed(&block)).unwrap();
    write_after(&other, &block, 300, 7);
    drop(block);
    assert_eq!(setup.byte_at(address, MIB), 7);
    assert_eq!(setup.fills(), 0);
    // A block that was used only on its own stream is filled.
    let block = setup.take(2 * MIB);
    let address = block.address();
    drop(block);
    assert_eq!(setup.byte_at(address, 2 * MIB), POISON);
}

/// The memory is the reservation's again, whether it came from the heap or was kept for the stream.
#[test]
fn failed_fill_of_a_reserved_block_loses_no_memory() {
    for frees in 0..4 {
        let setup = Setup::new(zero_on_allocate);
        let reservation = setup.pool.reserve(4 * MIB).try_now().unwrap();
        let take = || reservation.allocate(&setup.stream, MIB);
        (0..frees).for_each(|_| drop(take().unwrap()));
        setup.device.faults().fail_next(Call::Fill, Other);
        let Err(AllocError::Device(error)) = take().map(drop) else {
            panic!("the fill fails");
        };
        assert_eq!((error.kind(), error.call()), (Other, "fill"));
        assert_eq!(reservation.left(), 4 * MIB);
        let block = take().unwrap();
        assert_eq!(setup.byte_at(block.address(), block.size()), 0);
        drop((block, reservation));
        let statistics = setup.pool.inspect().statistics();
        assert_eq!(statistics.allocations, statistics.frees);
    }
}
