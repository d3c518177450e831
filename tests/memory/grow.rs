//! Blocks that grow in place.

use crate::common::*;
use std::task::Poll;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Fault, SimDevice};
use weirpool::*;
use weirpool_observe::{HistoryEvent, Record as _, Recorded as _};

fn site() -> (SimDevice, TestPool) {
    let device = manual();
    let pool = tuned(&device, 32 * MIB, |tuning| tuning.lane_bytes = 0);
    (device, pool)
}

/// A block with room keeps its address up to the end of its room, whatever other requests take meanwhile.
#[test]
fn block_grows_into_its_room() {
    let (device, pool) = site();
    let (work, stream) = stream(&device, &pool);
    let mut cache = now(pool.allocate(&stream, MIB).room(16 * MIB)).unwrap();
    assert_eq!((cache.size(), cache.requested()), (2 * MIB, MIB));
    let address = cache.address();
    let mut others = Vec::new();
    for step in 1..=8 {
        others.push(pool.try_allocate(&stream, MIB).unwrap());
        use_block(&work, &cache, us(10));
        now(cache.grow(2 * MIB)).unwrap();
        use_block(&work, &cache, us(10)); // the checker would find memory of another owner
        assert_eq!(
            (cache.address(), cache.size()),
            (address, (1 + step) * 2 * MIB)
        );
        assert_eq!(cache.requested(), MIB + step * 2 * MIB);
        pool.inspect().check().unwrap();
    }
    let used = cache.size() + 8 * MIB;
    assert_eq!(pool.inspect().statistics().used.current, used);
    // Above the room, other blocks may be in the way.
    assert_eq!(cache.grow(1).try_now(), Err(AllocError::NoRoom { room: 0 }));
    assert_eq!(cache.size(), 18 * MIB);
    drop((cache, others));
    stream.seal().unwrap();
    device.advance(us(1000));
    pool.maintain().reap().unwrap();
    assert_eq!(figures(&pool).allocations, figures(&pool).frees);
    drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
}

/// Growth waits like an allocation, can be dropped like one, and can use remapped memory.
#[test]
fn growth_waits_for_memory() {
    let (device, pool) = site();
    let (work, stream) = stream(&device, &pool);
    let mut cache = pool
        .allocate(&stream, 8 * MIB)
        .room(24 * MIB)
        .try_now()
        .unwrap();
    let others = pool.try_allocate(&stream, 24 * MIB).unwrap();
    use_block(&work, &others, us(100));
    assert!(poll(&mut Box::pin(cache.grow(4 * MIB))).is_pending());
    assert_eq!(cache.size(), 8 * MIB, "unchanged when dropped early");
    let mut growing = not_ready(Box::pin(cache.grow(4 * MIB)));
    drop(others);
    stream.seal().unwrap();
    assert!(
        poll(&mut growing).is_pending(),
        "memory in use cannot be remapped"
    );
    device.advance(us(100));
    assert_matches!(poll(&mut growing), Poll::Ready(Ok(())));
    drop(growing);
    assert_eq!(cache.size(), 12 * MIB);
    assert_eq!(pool.inspect().statistics().remaps, 2);
}

/// A block without room grows up to the next used block. Then growth fails at once, also for a request that waits.
#[test]
fn block_without_room_grows_up_to_the_next_used_block() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .virtual_memory(virtual_memory)
            .clock(device::sim::Clock::Manual)
            .build();
        let pool = tuned(&device, 32 * MIB, |tuning| {
            tuning.initial_size = 32 * MIB;
            tuning.lane_bytes = 0;
        });
        let (_, stream) = stream(&device, &pool);
        let mut block = pool.try_allocate(&stream, 1000).unwrap();
        block.grow(4000).try_now().unwrap();
        assert_eq!((block.size(), block.requested()), (1024 + 4096, 5000));
        let above = pool.try_allocate(&stream, 512).unwrap();
        assert_eq!(above.address(), block.address() + block.size());
        let refused = block.grow(1).try_now().unwrap_err();
        assert_eq!(refused, AllocError::NoRoom { room: 0 });
        assert_eq!(now(block.grow(1)), Err(AllocError::NoRoom { room: 0 }));
        drop(above);
        block.grow(1).try_now().unwrap();
    }
}

/// Another block takes the room that a growth waits for. The growth fails, and does not hold up other requests.
#[test]
fn growth_fails_once_its_room_is_taken() {
    let (device, pool) = site();
    let [(work, a), (_, b)] = streams(&device, &pool);
    let mut below = pool.try_allocate(&a, 16 * MIB).unwrap();
    let above = pool.try_allocate(&a, 16 * MIB).unwrap();
    assert_eq!(above.address(), below.address() + below.size());
    use_block(&work, &above, us(100));
    drop(above);
    a.seal().unwrap();
    let waiting = not_ready(Box::pin(below.grow(24 * MIB)));
    let behind = not_ready(pool.allocate(&b, 16 * MIB));
    drop(waiting);
    device.advance(us(100));
    let taken = now(behind).unwrap();
    assert_eq!(taken.address(), below.address() + below.size());
    assert_matches!(now(below.grow(512)), Err(AllocError::NoRoom { .. }));
}

/// Further streams of a block come after the earlier life of the memory that it grows by. The free waits for the
/// further streams.
#[test]
fn further_streams_come_after_the_earlier_life_of_a_growth() {
    let (device, pool) = site();
    let [(work_a, a), (work_b, b)] = streams(&device, &pool);
    let mut below = pool.try_allocate(&a, 2 * MIB).unwrap();
    let above = pool.try_allocate(&a, 2 * MIB).unwrap();
    b.record_use(Unordered::UntilFreed(&below)).unwrap();
    use_block(&work_a, &above, us(100));
    drop(above);
    below.grow(2 * MIB).try_now().unwrap(); // in the order of `a`, behind the work
    use_block(&work_b, &below, us(100)); // the checker would find it before the end of the work
    drop(below);
    b.seal().unwrap();
    device.advance(us(150));
    let (_, c) = stream(&device, &pool);
    pool.maintain().reap().unwrap();
    assert_eq!(pool.inspect().statistics().pending.current, 4 * MIB);
    device.advance(us(50));
    pool.maintain().reap().unwrap();
    drop(pool.try_allocate(&c, 32 * MIB).unwrap());
}

/// The device fails halfway through a growth. The block keeps its size, and its room if no memory was mapped.
#[test]
fn failed_growth_loses_no_memory() {
    for (nth, keeps_room) in [(1, true), (2, false)] {
        let (device, pool) = site();
        let (_, stream) = stream(&device, &pool);
        let mut cache = pool
            .allocate(&stream, 2 * MIB)
            .room(16 * MIB)
            .try_now()
            .unwrap();
        device
            .faults()
            .script(Call::Create, nth, Fault::Fails(DeviceErrorKind::Other));
        assert_matches!(cache.grow(8 * MIB).try_now(), Err(AllocError::Device(_)));
        pool.inspect().check().unwrap();
        assert_eq!(cache.size(), 2 * MIB);
        let other = pool.try_allocate(&stream, 2 * MIB).unwrap();
        if keeps_room {
            assert_ne!(other.address(), cache.address() + cache.size());
            cache.grow(8 * MIB).try_now().unwrap();
        }
    }
}

/// Growth is charged to the block's tag, within the tag's limit.
#[test]
fn growth_is_charged_to_the_tag() {
    let (device, pool) = site();
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("grow: caches");
    pool.tag(tag).set_limit(Some(8 * MIB));
    let cache = pool.allocate(&stream, 4 * MIB).tag(tag).room(16 * MIB);
    let mut cache = cache.try_now().unwrap();
    cache.grow(4 * MIB).try_now().unwrap();
    assert_eq!(pool.tag(tag).statistics().used.current, 8 * MIB);
    assert_matches!(
        cache.grow(2 * MIB).try_now(),
        Err(AllocError::OverLimit { .. } | AllocError::LimitReached { .. })
    );
    drop(cache);
    let statistics = pool.tag(tag).statistics();
    let found = (statistics.used.current, statistics.used.high);
    assert_eq!(found, (0, 8 * MIB));
    assert_eq!((statistics.allocations, statistics.frees), (1, 1));
}

/// Missing addresses, missing virtual memory and unpooled memory are reported at once.
#[test]
fn unavailable_room_is_refused_at_once() {
    let (device, pool) = site();
    let (_, own) = stream(&device, &pool);
    let room = |bytes| pool.allocate(&own, MIB).room(bytes);
    assert_matches!(room(1 << 40).try_now(), Err(AllocError::NoRoom { room }) if *room >= 32 * MIB);
    assert_matches!(now(room(u64::MAX)), Err(AllocError::NoRoom { .. }));
    assert_matches!(room(0).try_now(), Ok(block) if block.size() == 2 * MIB);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let mut drawn = reservation.allocate(&own, 512).unwrap();
    let found = drawn.grow(512).try_now();
    assert_eq!(found, Err(AllocError::NoRoom { room: 0 }));
    let plain = SimDevice::builder().virtual_memory(false).build();
    let pool = builder(&plain, 32 * MIB).made();
    let (_, own) = stream(&plain, &pool);
    let refused = pool.allocate(&own, MIB).room(MIB).try_now();
    assert_matches!(refused, Err(AllocError::NoRoom { room: 0 }));
    let pool = Pool::builder(device.clone())
        .upstream(Upstream::Unpooled)
        .made();
    let (_, own) = stream(&device, &pool);
    let mut block = pool.try_allocate(&own, MIB).unwrap();
    let found = block.grow(MIB).try_now();
    assert_eq!(found, Err(AllocError::NoRoom { room: 0 }));
}

/// A history shows growth as a free and an allocation at one address, and nothing leaks.
#[test]
fn history_shows_growth_as_a_free_and_an_allocation() {
    let (_, pool, [(_, stream)]) = set_up_with(|device| builder(device, 32 * MIB).history(64));
    let mut cache = pool
        .allocate(&stream, 2 * MIB)
        .room(8 * MIB)
        .try_now()
        .unwrap();
    cache.grow(2 * MIB).try_now().unwrap();
    let leaks = pool.leaks();
    assert_eq!(leaks.blocks.len(), 1);
    assert_eq!(leaks.blocks[0].size, 4 * MIB);
    let address = cache.address();
    drop(cache);
    let told = pool.history();
    let blocks: Vec<_> = told
        .entries
        .iter()
        .filter_map(|entry| match entry.event {
            HistoryEvent::Allocated { address, size, .. } => Some((true, address, size)),
            HistoryEvent::Freed { address, size, .. } => Some((false, address, size)),
            _ => None,
        })
        .collect();
    let expected = [(true, 2), (false, 2), (true, 4), (false, 4)];
    let expected = expected.map(|(is_begun, mib)| (is_begun, address, mib * MIB));
    assert_eq!(blocks, expected);
    assert!(pool.leaks().blocks.is_empty());
}

/// Many caches grow among other blocks, in random order. Blocks never overlap.
#[test]
fn caches_grow_among_others() {
    for seed in 0..10 {
        let (device, pool) = site();
        let (work, stream) = stream(&device, &pool);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut caches: Vec<Block> = Vec::new();
        let mut others: Vec<Block> = Vec::new();
        for _ in 0..400 {
            match random.u8(..10) {
                0..2 => {
                    let room = random.u64(0..8) * 2 * MIB;
                    caches.extend(pool.allocate(&stream, MIB).room(room).try_now().ok());
                }
                2..5 => {
                    let at = random.usize(..caches.len().max(1));
                    if let Some(cache) = caches.get_mut(at) {
                        let size = cache.size();
                        let bytes = random.u64(1..4 * MIB);
                        let grown = cache.grow(bytes).try_now().map_or(0, |()| bytes);
                        assert!(cache.size() >= size + grown);
                        use_block(&work, cache, us(1));
                    }
                }
                5..7 => {
                    others.extend(pool.try_allocate(&stream, random.u64(1..3 * MIB)).ok());
                }
                7 if !caches.is_empty() => drop(caches.swap_remove(random.usize(..caches.len()))),
                8 if !others.is_empty() => drop(others.swap_remove(random.usize(..others.len()))),
                _ => device.advance(us(3)),
            }
            pool.inspect().check().unwrap();
        }
        drop((caches, others));
        stream.seal().unwrap();
        device.advance(us(1000));
        pool.maintain().reap().unwrap();
        drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
    }
}

/// A chunk may be any multiple of the granularity. A block grows by whole chunks into free memory right above it.
#[test]
fn chunk_size_need_not_be_a_power_of_two() {
    const THREE: u64 = 3 * CHUNK;
    let device = manual();
    let pool = builder(&device, 16 * THREE)
        .chunk_bytes(THREE)
        .tuning(|tuning| tuning.lane_bytes = 0);
    let pool = pool.made();
    let (_, stream) = stream(&device, &pool);
    let mut cache = pool.allocate(&stream, THREE).room(THREE).try_now().unwrap();
    let above = pool.try_allocate(&stream, 8 * THREE).unwrap();
    let _far = pool.try_allocate(&stream, THREE).unwrap();
    now(cache.grow(THREE)).unwrap();
    drop(above);
    for handles in 3..=6 {
        now(cache.grow(THREE)).unwrap();
        assert_eq!(cache.size(), handles * THREE);
        pool.inspect().check().unwrap();
    }
    let _reservation = now(pool.reserve(2 * THREE)).unwrap();
    pool.maintain().coalesce().unwrap();
    pool.inspect().check().unwrap();
}

/// A growth waits on the terms of its own request.
#[test]
fn growth_has_its_own_terms() {
    let (device, pool) = site();
    let (_, stream) = stream(&device, &pool);
    let mut cache = now(pool.allocate(&stream, 8 * MIB).room(24 * MIB)).unwrap();
    let others = pool.try_allocate(&stream, 24 * MIB).unwrap();
    let growing = not_ready(cache.grow(4 * MIB).timeout(us(50)));
    device.advance(us(50));
    assert_matches!(now(growing), Err(AllocError::TimedOut { waited, .. }) if *waited == us(50));
    let mut urgent = cache.grow(4 * MIB).priority(1);
    let mut earlier = pool.allocate(&stream, 4 * MIB);
    assert!(poll(&mut earlier).is_pending() && poll(&mut urgent).is_pending());
    drop(others);
    assert!(now(urgent).is_ok() && now(earlier).is_ok());
    assert_eq!(cache.size(), 12 * MIB);
}
