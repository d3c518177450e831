//! Programs that are ordered, for which the checker is silent, and programs that are not.

use super::*;
use std::task::Waker;

#[test]
fn used_on_with_a_wait_is_ordered() {
    let world = World::new();
    for _ in 0..10 {
        let block = world.written(0, MIB);
        world.order(0, 1);
        until_freed(&world.stream[1], &block);
        world.read(1, &block);
        world.read(0, &block);
        drop(block);
    }
    world.assert_silent();
}

/// The further stream uses the block first: only `used_on` orders that use after the earlier block.
#[test]
fn used_on_orders_after_the_grant() {
    let world = World::new();
    for bytes in [MIB, 8 * MIB, MIB] {
        let earlier = world.written(0, bytes);
        drop(earlier);
        let block = world.allocate(0, bytes);
        until_freed(&world.stream[1], &block);
        world.write(1, &block);
        drop(block);
    }
    world.assert_silent();
}

#[test]
fn deallocate_on_with_a_wait_is_ordered() {
    let world = World::new();
    for _ in 0..10 {
        let block = world.written(0, MIB);
        world.order(0, 1);
        world.write(1, &block);
        drop(block.deallocate_on(&world.stream[1]).unwrap());
    }
    world.assert_silent();
}

#[test]
fn event_awaited_before_the_free_replaces_used_on() {
    let world = World::new();
    for _ in 0..10 {
        let block = world.written(0, MIB);
        world.order(0, 1);
        world.write(1, &block);
        world.order(1, 0);
        drop(block);
    }
    world.assert_silent();
}

#[test]
fn work_seen_complete_by_the_host_is_ordered() {
    let world = World::new();
    let block = world.written(0, MIB);
    let done = world.stream[0].event().unwrap();
    world.device.advance(us(100));
    assert!(done.is_complete().unwrap());
    world.write(1, &block);
    world.device.advance(us(100));
    assert_eq!(world.work[1].backlog(), 0);
    drop(block);
    world.assert_silent();
}

/// On a clock that moves by itself, awaiting tells the host which work is complete.
#[test]
fn synchronize_orders_later_work() {
    let world = World::over(SimDevice::builder().build());
    let block = world.allocate(0, MIB);
    world.device.block_on(async {
        world.write(0, &block);
        world.stream[0].synchronize().await.unwrap();
        world.write(1, &block);
        world.stream[1].synchronize().await.unwrap();
    });
    drop(block);
    world.device.assert_ordered();
}

#[test]
fn called_watch_orders_the_host() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    world.write(1, &block);
    let event = world.device.create_event().unwrap();
    world.device.record(event, world.work[1].raw()).unwrap();
    world.device.watch(event, Waker::noop());
    world.device.advance(us(100));
    drop(block);
    world.assert_silent();
}

/// The host learns nothing from elapsed time.
#[test]
fn elapsed_time_orders_nothing() {
    let world = World::new();
    let block = world.written(0, MIB);
    world.device.advance(us(1000));
    world.write(1, &block);
    assert_eq!(world.only().kind, ViolationKind::Race);
}

#[test]
fn flag_handshake_orders_both_streams() {
    let world = World::new();
    let [a, b] = &world.work;
    let (there, back) = (world.device.flag(), world.device.flag());
    let block = world.allocate(0, MIB);
    for round in 1..10 {
        // The waits are submitted before the signals, so their order becomes known later.
        b.wait_until(&there, round);
        world.write(1, &block);
        b.signal(&back, round);
        world.write(0, &block);
        a.signal(&there, round);
        a.wait_until(&back, round);
    }
    until_freed(&world.stream[1], &block);
    drop(block);
    world.assert_silent();
}

#[test]
fn flag_signalled_too_early_orders_nothing() {
    let world = World::new();
    let [a, b] = &world.work;
    let flag = world.device.flag();
    let block = world.allocate(0, MIB);
    until_freed(&world.stream[1], &block);
    b.wait_until(&flag, 1);
    world.read(1, &block);
    a.signal(&flag, 1);
    assert_eq!(world.device.take_violations(), []);
    world.write(0, &block);
    world.device.advance(us(1000));
    assert_eq!(world.only().kind, ViolationKind::Race);
}

#[test]
fn flag_between_host_and_device_orders() {
    let world = World::new();
    let [a, b] = &world.work;
    let (seen, go) = (world.device.flag(), world.device.flag());
    let block = world.allocate(0, MIB);
    until_freed(&world.stream[1], &block);
    b.wait_until(&go, 1);
    world.write(0, &block);
    a.signal(&seen, 1);
    world.device.advance(us(100));
    assert_eq!(seen.value(), 1);
    go.set(1);
    world.write(1, &block);
    drop(block);
    world.assert_silent();
}

/// A wait for an event passes on everything that the event's stream waited for, flags included.
#[test]
fn order_is_transitive_through_a_third_stream() {
    let world = World::new();
    let (work_c, c) = stream(&world.device, &world.pool);
    let flag = world.device.flag();
    let block = world.allocate(0, MIB);
    until_freed(&world.stream[1], &block);
    work_c.wait_until(&flag, 1);
    world.stream[1].wait(&c.event().unwrap()).unwrap();
    world.write(0, &block);
    world.work[0].signal(&flag, 1);
    world.write(1, &block);
    drop(block);
    world.assert_silent();
}

/// Lane, heap, reuse by event, wait on the device, and remapping.
#[test]
fn every_source_of_reuse_is_ordered() {
    let world = World::panicking();
    let mut sources = std::collections::HashSet::new();
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..4000 {
        let on = random.usize(..2);
        let bytes = if random.bool() {
            MIB
        } else {
            random.u64(1..9) * CHUNK
        };
        let Ok(block) = world.pool.try_allocate(&world.stream[on], bytes) else {
            world.device.advance(us(150));
            continue;
        };
        sources.insert(block.source());
        world.write(on, &block);
        match round % 16 {
            0 => world.order(on, 1 - on),
            5 => world.device.advance(us(1000)),
            _ => {}
        }
        drop(block);
    }
    world.assert_silent();
    assert_eq!(sources.len(), Source::ALL.len(), "{sources:?}");
}

#[test]
fn remapped_memory_is_ordered() {
    let world = World::panicking();
    let mut blocks: Vec<_> = (0..8).map(|_| Some(world.allocate(0, CHUNK))).collect();
    for block in blocks.iter().flatten() {
        world.write(0, block);
    }
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    world.device.advance(us(1000));
    let large = world.allocate(1, 8 * MIB);
    assert!(world.pool.inspect().statistics().remaps > 0);
    world.write(1, &large);
    drop((large, blocks));
    world.assert_silent();
}

/// Memory without a pool belongs to no block, but accesses to it may race.
#[test]
fn memory_without_a_pool_is_checked_for_races_only() {
    let device = device().checker(Checker::Collect).build();
    let (a, b) = (device.create_stream(), device.create_stream());
    a.submit(Operation::new(us(1)).writes(1 << 60, 64));
    a.submit(Operation::new(us(1)).reads(1 << 60, 64));
    b.submit(Operation::new(us(1)).reads(1 << 50, 64));
    assert_eq!(device.take_violations(), []);
    b.submit(Operation::new(us(1)).reads(1 << 60, 64));
    let found = device.take_violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::Race);
}

/// A new stream with the name of a destroyed one does not come after the old one's work.
#[test]
fn reused_stream_name_inherits_no_order() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    for is_seen in [true, false] {
        let gone = world.device.create_stream();
        let name = gone.raw();
        let later = pool(&world.device, 2 * MIB);
        until_freed(&world.stream[1], &block);
        gone.submit(Operation::new(us(10)).writes(block.address(), 8));
        if is_seen {
            world.device.advance(us(10));
            assert_eq!(gone.backlog(), 0);
        }
        drop(gone);
        world.device.advance(us(10));
        let next = world.device.create_stream();
        assert_eq!(next.raw(), name);
        next.submit(Operation::new(us(10)).writes(block.address(), 8));
        assert_eq!(world.device.take_violations().is_empty(), is_seen);
        world.device.advance(us(10));
        assert_eq!(next.backlog(), 0);
        drop(later);
    }
}

/// The memory that a block grows by is filled in the order of later work.
#[test]
fn growth_of_a_filled_block_is_in_order() {
    let device = device().build();
    let builder = Pool::builder(device.clone())
        .capacity(16 * MIB)
        .tuning(|tuning| tuning.lane_bytes = 0);
    let pool = builder.fill(FillAt::Allocation, Fill::Zero).made();
    let (work, stream) = crate::common::stream(&device, &pool);
    let mut block = pool.try_allocate(&stream, MIB).unwrap();
    let above = pool.try_allocate(&stream, MIB).unwrap();
    assert_eq!(above.address(), block.address() + MIB);
    drop(above);
    work.submit(Operation::new(us(10)).writes(block.address(), block.size()));
    block.grow(MIB).try_now().unwrap();
    work.submit(Operation::new(us(10)).writes(block.address(), block.size()));
    drop(block);
    device.advance_to_end();
    device.assert_ordered();
}

/// The fill of a failed growth does not count as a use of the next block there.
#[test]
fn growth_that_fails_leaves_no_block_behind() {
    let device = device().build();
    let builder = Pool::builder(device.clone())
        .capacity(16 * MIB)
        .tuning(|tuning| tuning.lane_bytes = 0);
    let pool = builder.fill(FillAt::Allocation, Fill::Zero).made();
    let (work, stream) = crate::common::stream(&device, &pool);
    let mut block = pool.try_allocate(&stream, MIB).unwrap();
    device
        .faults()
        .fail_next(Call::Fill, DeviceErrorKind::Other);
    block.grow(2 * MIB).try_now().unwrap_err();
    let next = pool.try_allocate(&stream, MIB).unwrap();
    work.submit(Operation::new(us(10)).writes(next.address(), next.size()));
    drop((block, next));
    device.advance_to_end();
    device.assert_ordered();
}
