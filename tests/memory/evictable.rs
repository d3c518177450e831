//! Evictable memory: which blocks are taken back, when, and in which order.

use crate::common::*;
use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;
use weirpool::device::sim::{Operation, SimDevice};
use weirpool::device::{Device, MemoryKind};
use weirpool::{AllocError, Block, Evictable, Pool, Stream, Tag, WhenShort};

/// A full pool of `N` evictable blocks of 2 MiB on one stream, the first one least recently used.
pub(crate) fn cached<const N: usize>(pool: &Pool, stream: &Stream) -> [Evictable; N] {
    std::array::from_fn(|_| pool.try_allocate(stream, 2 * MIB).unwrap().into_evictable())
}

pub(crate) fn present(blocks: &[Evictable]) -> Vec<bool> {
    blocks.iter().map(Evictable::is_present).collect()
}

#[test]
fn least_recently_used_memory_is_evicted_first() {
    for device in devices() {
        let pool = pool(&device, 8 * MIB);
        let (_, stream) = stream(&device, &pool);
        let blocks: [_; 4] = cached(&pool, &stream);
        assert_eq!(pool.inspect().statistics().evictable, 8 * MIB);
        drop(blocks[0].pin().unwrap());
        let _first = pool.try_allocate(&stream, 2 * MIB).unwrap();
        assert_eq!(present(&blocks), [true, false, true, true]);
        let _second = pool.try_allocate(&stream, 2 * MIB).unwrap();
        assert_eq!(present(&blocks), [true, false, false, true]);
        let figures = pool.inspect().statistics();
        assert_eq!((figures.evictions, figures.evicted), (2, 4 * MIB));
        assert_eq!(figures.evictable, 4 * MIB);
    }
}

#[test]
fn pinned_memory_is_not_evicted() {
    let (_, pool, [(_, stream)]) = set_up(4 * MIB);
    let blocks: [_; 2] = cached(&pool, &stream);
    let pins = [blocks[0].pin().unwrap(), blocks[0].pin().unwrap()];
    assert_eq!(pool.inspect().statistics().evictable, 2 * MIB);
    let block = pool.try_allocate(&stream, 2 * MIB).unwrap();
    assert_eq!(present(&blocks), [true, false]);
    assert!(blocks[1].pin().is_none());
    let [first, second] = pins;
    drop(first);
    assert!(pool.try_allocate(&stream, 2 * MIB).is_err(), "pinned still");
    drop(second);
    let other = pool.try_allocate(&stream, 2 * MIB).unwrap();
    assert_eq!(present(&blocks), [false, false]);
    drop((block, other));
}

/// A kernel of another stream reads the memory when it is evicted. The ordering checker watches.
#[test]
fn eviction_is_ordered_as_a_free() {
    for waits in [true, false] {
        for device in devices() {
            let mut settings = builder(&device, 2 * MIB);
            if !waits {
                settings = settings.tuning(|tuning| tuning.reuse = only_host_waits());
            }
            let pool = settings.made();
            let [(write, a), (read, b), (work, c)] = streams(&device, &pool);
            let block = pool.try_allocate(&a, 2 * MIB).unwrap();
            use_block(&write, &block, us(10));
            let cached = block.into_evictable();
            {
                let pin = cached.pin().unwrap();
                let address = b.record_use(&*pin).unwrap().address();
                read.submit(Operation::new(us(500)).reads(address, 2 * MIB));
            }
            let mut request = pool.allocate(&c, 2 * MIB);
            let granted = match poll(&mut request) {
                Poll::Ready(granted) => granted,
                Poll::Pending => {
                    device.advance(us(600));
                    now(request)
                }
            };
            use_block(&work, &granted.unwrap(), us(10));
            assert!(!cached.is_present());
            device.advance(us(2_000));
            device.assert_ordered();
        }
    }
}

#[test]
fn every_request_evicts_before_it_waits() {
    for device in devices() {
        let is_virtual = device.capabilities().virtual_memory;
        for order in [WhenShort::GrowFirst, WhenShort::WaitBriefly] {
            let pool = tuned(&device, 8 * MIB, |tuning| tuning.when_short = order);
            let (_, stream) = stream(&device, &pool);
            let fill = || cached::<4>(&pool, &stream);
            let blocks = fill();
            drop(now(pool.allocate(&stream, 6 * MIB)).unwrap());
            drop(blocks);
            let blocks = fill();
            drop(pool.allocate(&stream, 4 * MIB).blocking().unwrap());
            drop(blocks);
            let blocks = fill();
            drop(now(pool.reserve(8 * MIB)).unwrap());
            drop(blocks);
            let blocks = fill();
            drop(now(pool.allocate_many(&stream, [2 * MIB, 4 * MIB])).unwrap());
            drop(blocks);
            assert_eq!(pool.inspect().statistics().waits.waiting, 0);
            let least = 3 + 2 + 4 + 3;
            // Plain memory may be scattered.
            let most = if is_virtual { least } else { 16 };
            let evictions = pool.inspect().statistics().evictions;
            assert!(
                (least..=most).contains(&evictions),
                "{order:?}: {evictions}"
            );
        }
    }
}

#[test]
fn growth_in_place_evicts() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let room = pool.allocate(&stream, 2 * MIB).room(6 * MIB);
    let mut block = now(room).unwrap();
    let blocks: [_; 3] = cached(&pool, &stream);
    now(block.grow(2 * MIB)).unwrap();
    assert_eq!(present(&blocks), [false, true, true]);
}

#[test]
fn unpinned_memory_serves_a_request_that_waits() {
    for device in devices() {
        let pool = pool(&device, 2 * MIB);
        let (_, stream) = stream(&device, &pool);
        let block = pool.try_allocate(&stream, 2 * MIB).unwrap();
        let (mut request, woken, waker) = not_ready_counted(pool.allocate(&stream, 2 * MIB));
        let cached = block.into_evictable();
        assert_eq!(woken.take(), 1, "it is evictable from now on");
        let pin = cached.pin().unwrap();
        assert!(poll_with(&mut request, &waker).is_pending());
        drop(pin);
        assert_eq!(woken.take(), 1, "it is not pinned any more");
        assert!(poll_with(&mut request, &waker).is_ready());
        assert!(!cached.is_present());
    }
}

#[test]
fn nothing_is_evicted_if_all_of_it_is_not_enough() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let kept = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let blocks: [_; 2] = cached(&pool, &stream);
    let error = pool.try_allocate(&stream, 6 * MIB).unwrap_err();
    assert_matches!(error, AllocError::Exhausted(_));
    assert_eq!(present(&blocks), [true, true]);
    let mut request = not_ready(pool.allocate(&stream, 6 * MIB));
    assert_eq!(present(&blocks), [true, true]);
    drop(kept);
    assert!(poll(&mut request).is_ready());
    assert_eq!(present(&blocks), [false, true]);
}

/// Plain memory cannot be remapped: neighbours must be free, and some that are free already are of no use.
#[test]
fn eviction_goes_on_until_a_contiguous_range_is_free() {
    let device = &devices()[1];
    let pool = tuned(device, 16 * MIB, |tuning| tuning.initial_size = 16 * MIB);
    let (_, stream) = stream(device, &pool);
    let blocks: [_; 8] = cached(&pool, &stream);
    // Every second one is used: the oldest ones are scattered, and go with a neighbour.
    for at in [1, 3, 5, 7] {
        drop(blocks[at].pin().unwrap());
    }
    let granted = pool.try_allocate(&stream, 4 * MIB).unwrap();
    assert_eq!(pool.inspect().statistics().evictions, 2);
    drop((granted, blocks));
    // Between them, memory is in use, and the last two are not old enough to be chosen at once.
    let mut all = several(&pool, &stream, 8, 2 * MIB);
    all.sort_by_key(Block::address);
    let (mut blocks, mut in_use) = (Vec::new(), Vec::new());
    for (at, block) in all.into_iter().enumerate() {
        match at {
            1 | 3 | 5 => in_use.push(block),
            _ => blocks.push(block.into_evictable()),
        }
    }
    for _ in 0..100 {
        drop(blocks[4].pin().unwrap());
    }
    drop(pool.try_allocate(&stream, 4 * MIB).unwrap());
    assert_eq!(pool.inspect().statistics().evictions, 2 + 5);
}

/// The blocks of each chunk were used in rounds, so the oldest ones lie in different chunks.
#[test]
fn eviction_takes_blocks_that_are_free_in_one_piece() {
    for stride in [1, 2, 4, 8] {
        for device in devices() {
            let settings = builder(&device, 64 * MIB).chunk_bytes(2 * MIB);
            let pool = settings.made();
            let (_, stream) = stream(&device, &pool);
            let small = || pool.try_allocate(&stream, 16 << 10).unwrap();
            let blocks: Vec<_> = (0..4096).map(|_| small().into_evictable()).collect();
            for first in 0..stride {
                let round = blocks.iter().skip(first).step_by(stride);
                round.for_each(|block| drop(block.pin().unwrap()));
            }
            let _wanted = pool.try_allocate(&stream, 2 * MIB).unwrap();
            let gone = pool.inspect().statistics().evictions;
            assert!(
                gone <= 256,
                "stride {stride}: {gone} blocks for a need of 128"
            );
            let _less = pool.try_allocate(&stream, 64 << 10).unwrap();
            let gone = pool.inspect().statistics().evictions - gone;
            assert!(gone <= 8, "stride {stride}: {gone} blocks for a need of 4");
        }
    }
}

/// One block of each chunk is in use all the time, but for one chunk.
#[test]
fn eviction_passes_over_chunks_that_hold_memory_in_use() {
    for device in devices() {
        let settings = builder(&device, 32 * MIB).chunk_bytes(2 * MIB);
        let pool = settings.made();
        let (_, stream) = stream(&device, &pool);
        let quarter = || pool.try_allocate(&stream, MIB / 2).unwrap();
        let (mut blocks, mut in_use) = (Vec::new(), Vec::new());
        for place in 0..64 {
            match place % 4 {
                0 if place != 32 => in_use.push(quarter()),
                _ => blocks.push(quarter().into_evictable()),
            }
        }
        drop(pool.try_allocate(&stream, 2 * MIB).unwrap());
        assert_eq!(pool.inspect().statistics().evictions, 4);
    }
}

/// A block that is used all the time shares its chunk with the oldest one.
#[test]
fn memory_used_lately_is_not_evicted_for_its_neighbours() {
    for device in devices() {
        let settings = builder(&device, 8 * MIB).chunk_bytes(2 * MIB);
        let pool = settings.made();
        let (_, stream) = stream(&device, &pool);
        let half = || pool.try_allocate(&stream, MIB).unwrap();
        let blocks: Vec<_> = (0..8).map(|_| half().into_evictable()).collect();
        for _ in 0..100 {
            drop(blocks[1].pin().unwrap());
        }
        drop(pool.try_allocate(&stream, 2 * MIB).unwrap());
        let expected = [true, true, false, false, true, true, true, true];
        assert_eq!(present(&blocks), expected);
    }
}

#[test]
fn request_at_the_limit_of_its_tag_evicts_memory_of_that_tag() {
    let (_, pool, [(_, stream)]) = set_up(16 * MIB);
    let (one, other) = (Tag::new("evicts"), Tag::new("keeps"));
    pool.tag(one).set_limit(Some(4 * MIB));
    let block = |tag| now(pool.allocate(&stream, 2 * MIB).tag(tag)).unwrap();
    let others = [block(other).into_evictable(), block(other).into_evictable()];
    let blocks = [block(one).into_evictable(), block(one).into_evictable()];
    let third = block(one);
    assert_eq!(present(&blocks), [false, true]);
    // Throttled while the rest is pinned.
    let pin = blocks[1].pin().unwrap();
    let mut request = pool.allocate(&stream, 2 * MIB).tag(one);
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut request, &waker).is_pending());
    woken.take();
    drop(pin);
    assert!(woken.take() > 0);
    assert!(poll_with(&mut request, &waker).is_ready());
    assert_eq!(present(&blocks), [false, false]);
    assert_eq!(present(&others), [true, true]);
    drop(third);
}

#[derive(Debug)]
enum Change {
    Free,
    RaisedLimit,
    CancelledFirst,
}

/// A throttled request is not polled after it began to wait. As soon as evicting memory of its tag is enough, whatever
/// changed, the memory is evicted and the request woken.
#[test]
fn throttled_request_is_woken_once_evicting_is_enough() {
    let tag = Tag::new("evictable: woken");
    for change in [Change::Free, Change::RaisedLimit, Change::CancelledFirst] {
        let device = manual();
        let pool = builder(&device, 64 * MIB);
        let pool = pool.made();
        pool.tag(tag).set_limit(Some(6 * MIB));
        let (_, stream) = stream(&device, &pool);
        let allocate = |bytes| pool.allocate(&stream, bytes).tag(tag);
        let held = allocate(4 * MIB).try_now().unwrap();
        let cached = [(); 2].map(|()| allocate(MIB).try_now().unwrap().into_evictable());
        // All that can be evicted is too little for the first request.
        let mut tasks = [5 * MIB, MIB].map(|bytes| Woken::new(allocate(bytes)));
        assert_eq!(present(&cached), [true, true]);
        let (held, first) = match change {
            Change::Free => {
                drop(held);
                (None, 0)
            }
            Change::RaisedLimit => {
                pool.tag(tag).set_limit(Some(9 * MIB));
                (Some(held), 0)
            }
            Change::CancelledFirst => {
                tasks[0].cancel();
                (Some(held), 1)
            }
        };
        assert!(tasks[first].is_woken(), "{change:?}");
        settle(&mut tasks);
        assert!(!tasks[first].is_waiting(), "{change:?}");
        // One block is enough for one of the requests, and both are needed for both of them, or at the raised limit.
        assert!(!cached[0].is_present());
        let found = cached[1].is_present();
        assert_eq!(found, matches!(change, Change::CancelledFirst));
        drop(held);
    }
}

/// The requests that are throttled when the pool closes fail, and none of them has memory evicted first.
#[test]
fn nothing_is_evicted_for_requests_that_fail() {
    let device = manual();
    let tag = Tag::new("evictable: closed");
    let pool = builder(&device, 64 * MIB);
    let pool = pool.made();
    pool.tag(tag).set_limit(Some(6 * MIB));
    let (_, stream) = stream(&device, &pool);
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(tag);
    let held = allocate(4 * MIB).try_now().unwrap();
    let cached = [(); 2].map(|()| allocate(MIB).try_now().unwrap().into_evictable());
    let requests = [5 * MIB, MIB, MIB].map(|bytes| not_ready(allocate(bytes)));
    pool.close();
    drop(held);
    assert_eq!(present(&cached), [true, true]);
    for request in requests {
        assert_matches!(now(request), Err(AllocError::Closed));
    }
    // Nor has one that comes later.
    let later = allocate(5 * MIB).try_now();
    assert_matches!(later, Err(AllocError::Closed));
    assert_eq!(present(&cached), [true, true]);
}

#[test]
fn memory_is_taken_out_or_freed_with_its_last_pin() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let [mut first, second] = cached(&pool, &stream);
    let pin = first.pin().unwrap();
    assert!(first.take().is_none(), "pinned");
    drop(pin);
    let block = first.take().unwrap();
    assert!(!first.is_present() && first.take().is_none());
    assert_eq!(pool.inspect().statistics().evictable, 2 * MIB);
    let pin = second.pin().unwrap();
    drop(second);
    assert_eq!(pool.inspect().statistics().live_blocks, 2);
    assert_eq!(pin.size(), 2 * MIB);
    drop(pin);
    drop((first, block));
    let figures = pool.inspect().statistics();
    assert_eq!((figures.live_blocks, figures.evictable), (0, 0));
}

#[test]
fn drain_evicts_unpinned_memory() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let blocks: [_; 2] = cached(&pool, &stream);
    let pin = blocks[0].pin().unwrap();
    let mut drain = pool.drain();
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut drain, &waker).is_pending());
    assert_eq!(present(&blocks), [true, false]);
    // The block that it evicted came back meanwhile.
    while woken.take() > 0 {
        assert!(poll_with(&mut drain, &waker).is_pending());
    }
    drop(pin);
    assert!(woken.take() > 0);
    assert!(poll_with(&mut drain, &waker).is_ready());
    assert_eq!(present(&blocks), [false, false]);
}

#[test]
fn pool_evicts_on_request() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let blocks: [_; 3] = cached(&pool, &stream);
    let both = pool.inspect().statistics_scope();
    assert_eq!(pool.maintain().evict(3 * MIB), 4 * MIB);
    assert_eq!(present(&blocks), [false, false, true]);
    let second = pool.inspect().statistics_scope();
    assert_eq!(pool.maintain().evict(u64::MAX), 2 * MIB);
    assert_eq!(pool.maintain().evict(1), 0);
    for (scope, evictions, evicted) in [(second, 1, 2 * MIB), (both, 3, 6 * MIB)] {
        let figures = scope.end();
        assert_eq!((figures.evictions, figures.evicted), (evictions, evicted));
    }
}

#[test]
fn elements_of_an_evictable_buffer_are_read_through_its_pin() {
    let device = SimDevice::new();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    device.block_on(async {
        let mut buffer = pool.buffer::<u32>(&stream, 3).await.unwrap();
        buffer.write(&stream, &[1, 2, 3]).await.unwrap();
        let cached = buffer.into_evictable();
        let pin = cached.pin().unwrap();
        assert_eq!(pin.read(&stream).await.unwrap(), [1, 2, 3]);
    });
}

/// The device refuses new memory although the capacity allows it: others have it.
#[test]
fn memory_that_the_device_refuses_is_evicted_instead() {
    let device = manual_builder().memory(8 * MIB).build();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let others = device.allocate(MemoryKind::Device, 4 * MIB);
    let blocks: [_; 2] = cached(&pool, &stream);
    let block = pool.try_allocate(&stream, 4 * MIB).unwrap();
    assert_eq!(present(&blocks), [false, false]);
    drop((block, others));
}

#[test]
fn handles_of_evicted_memory_keep_no_pool_alive() {
    let (device, pool, [(_, stream)]) = set_up(2 * MIB);
    let [cached] = cached(&pool, &stream);
    assert_eq!(pool.maintain().evict(1), 2 * MIB);
    drop((stream, pool));
    let info = device.memory_info(MemoryKind::Device).unwrap();
    assert_eq!(info.free, info.total);
    assert!(cached.pin().is_none());
}

/// Random operations beside a model: a queue of the evictable blocks. Everything evicted was the least recently used,
/// and a request fails only if all that is free and evictable together is not enough.
#[test]
fn evictions_follow_a_model() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = &devices()[usize::from(seed % 2 == 0)];
        let capacity = 24 * MIB;
        let pool = tuned(device, capacity, |tuning| tuning.initial_size = capacity);
        let (_, stream) = stream(device, &pool);
        let mut blocks: Vec<(u32, Evictable)> = Vec::new();
        let mut pins = Vec::new();
        let mut kept = Vec::new();
        let mut order = VecDeque::new();
        let mut sizes = BTreeMap::new();
        let mut next = 0;
        for _ in 0..120 {
            match random.u8(..6) {
                0 | 1 => {
                    let bytes = random.u64(1..=3) * 2 * MIB;
                    let before = pool.inspect().statistics();
                    let at_hand =
                        before.free + before.evictable + capacity - before.reserved.current;
                    match pool.try_allocate(&stream, bytes) {
                        Ok(block) => kept.push(block),
                        Err(_) if device.capabilities().virtual_memory => {
                            assert!(at_hand < bytes, "seed {seed}")
                        }
                        // Scattered: but then all was evicted, if it was enough in sum.
                        Err(_) => {
                            assert!(at_hand < bytes || pool.inspect().statistics().evictable == 0)
                        }
                    }
                }
                2 if !kept.is_empty() => {
                    let block = kept.swap_remove(random.usize(..kept.len()));
                    sizes.insert(next, block.size());
                    blocks.push((next, block.into_evictable()));
                    order.push_back(next);
                    next += 1;
                }
                3 if !blocks.is_empty() => {
                    let (name, block) = &blocks[random.usize(..blocks.len())];
                    if let Some(pin) = block.pin() {
                        order.retain(|other| other != name);
                        pins.push((*name, pin));
                    }
                }
                4 if !pins.is_empty() => {
                    let (name, pin) = pins.swap_remove(random.usize(..pins.len()));
                    drop(pin);
                    let is_pinned = pins.iter().any(|(other, _)| *other == name);
                    if !is_pinned && blocks.iter().any(|(other, _)| *other == name) {
                        order.push_back(name);
                    }
                }
                5 if random.u8(..4) == 0 && !blocks.is_empty() => {
                    let (name, block) = blocks.swap_remove(random.usize(..blocks.len()));
                    order.retain(|other| *other != name);
                    drop(block);
                }
                _ => drop((!kept.is_empty()).then(|| kept.swap_remove(0))),
            }
            let is_present = |name: &u32| {
                let block = blocks.iter().find(|(other, _)| other == name);
                block.is_some_and(|(_, block)| block.is_present())
            };
            while order.front().is_some_and(|name| !is_present(name)) {
                order.pop_front();
            }
            if !device.capabilities().virtual_memory {
                // Neighbours of older blocks were evicted before them.
                order.retain(|name| is_present(name));
            }
            assert!(
                order.iter().all(is_present),
                "seed {seed}: a later one was evicted first"
            );
            let sizes = order.iter().map(|name| sizes[name]);
            assert_eq!(sizes.sum::<u64>(), figures(&pool).evictable, "seed {seed}");
        }
    }
}

/// Memory that is evicted while its stream is at work is pending. It is enough once it is complete: nothing more is evicted
/// for a request that cannot wait.
#[test]
fn no_more_is_evicted_while_evicted_memory_is_pending() {
    for bytes in [2 * MIB, 6 * MIB] {
        let (device, pool, [(work, busy)]) = set_up(32 * MIB);
        let (_, idle) = stream(&device, &pool);
        let blocks: [_; 16] = cached(&pool, &busy);
        work.submit(Operation::new(us(100_000)));
        let left = 16 - (bytes / (2 * MIB)) as usize;
        let _tried = pool.try_allocate(&idle, bytes);
        assert_eq!(present(&blocks).iter().filter(|is| **is).count(), left);
        device.advance(us(100_000));
    }
}

/// Memory of a reservation goes back to the reservation. So it is not evicted for other requests, of its tag or of the pool,
/// before the reservation has ended; then it serves those that wait.
#[test]
fn memory_of_a_reservation_is_evicted_for_others_only_once_it_has_ended() {
    let tag = Tag::new("evictable: of a reservation");
    for (is_tagged, is_nested) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_, pool, [(_, stream)]) = set_up(16 * MIB);
        let reserve = match is_tagged {
            true => {
                pool.tag(tag).set_limit(Some(8 * MIB));
                pool.reserve(8 * MIB).tag(tag)
            }
            false => pool.reserve(8 * MIB),
        };
        let outer = reserve.try_now().unwrap();
        let inner = is_nested.then(|| {
            let nested = Box::pin(outer.scope(async { pool.reserve(8 * MIB).await }));
            now(nested).unwrap()
        });
        let reservation = inner.as_ref().unwrap_or(&outer);
        let blocks: Vec<_> = (0..4)
            .map(|_| {
                reservation
                    .allocate(&stream, 2 * MIB)
                    .unwrap()
                    .into_evictable()
            })
            .collect();
        let pin = blocks[3].pin().unwrap();
        let held = (!is_tagged).then(|| pool.try_allocate(&stream, 8 * MIB).unwrap());
        let request = || match is_tagged {
            true => pool.allocate(&stream, 4 * MIB).tag(tag),
            false => pool.allocate(&stream, 4 * MIB),
        };
        assert!(request().try_now().is_err());
        let mut waiting = Woken::new(request());
        assert_eq!(present(&blocks), [true; 4]);
        if let Some(inner) = inner {
            drop(inner);
            assert!(!waiting.poll_if_woken() || waiting.is_waiting());
            assert_eq!(present(&blocks), [true; 4], "of the outer one now");
        }
        drop(outer);
        while waiting.poll_if_woken() {}
        assert!(!waiting.is_waiting(), "{is_tagged} {is_nested}");
        assert_eq!(present(&blocks).iter().filter(|is| **is).count(), 2);
        // The memory that was pinned then is as available as the rest.
        drop(pin);
        let other = request().try_now().unwrap();
        assert_eq!(present(&blocks), [false; 4]);
        drop((waiting, other, blocks, held));
        pool.inspect().check_conserved().unwrap();
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
    }
}

/// A request comes while evictable memory is printed.
#[test]
fn memory_can_be_evicted_while_it_is_printed() {
    use std::fmt::{self, Write};

    struct Printer<'a>(&'a Pool, &'a Stream, Option<Result<Block, AllocError>>);

    impl Write for Printer<'_> {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            let Self(pool, stream, granted) = self;
            granted.get_or_insert_with(|| pool.try_allocate(stream, 8 * MIB));
            Ok(())
        }
    }

    for device in devices() {
        let pool = pool(&device, 8 * MIB);
        let (_, stream) = stream(&device, &pool);
        let cached = pool
            .try_allocate(&stream, 8 * MIB)
            .unwrap()
            .into_evictable();
        let mut printer = Printer(&pool, &stream, None);
        write!(printer, "{cached:?}").unwrap();
        assert!(printer.2.unwrap().is_ok());
        assert_eq!(pool.inspect().statistics().evictions, 1);
        let gone = format!("{cached:?}");
        assert_eq!(gone, "Evictable { address: None, bytes: None, pins: 0 }");
    }
}

/// A closure that panics drops its memory, which counts as evicted.
#[test]
fn eviction_that_panics_evicts_no_further_memory() {
    let (_, pool, [(_, stream)]) = set_up(4 * MIB);
    let take = || pool.try_allocate(&stream, 2 * MIB).unwrap();
    let panicking = Box::new(|block| {
        drop(block);
        panic!("an eviction panics")
    });
    let (first, pin) = Evictable::evicted_by(take(), panicking);
    drop(pin);
    let second = take().into_evictable();
    let _block = take();
    assert!(!first.is_present() && second.is_present());
    let figures = pool.inspect().statistics();
    assert_eq!((figures.evictions, figures.evicted), (1, 2 * MIB));
}
