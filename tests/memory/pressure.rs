//! Devices that refuse memory because other pools or other processes hold it.

use crate::common::*;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::sim::{Call, Clock, Fault, SimDevice, SimStream};
use weirpool::device::{DeviceErrorKind, MemoryInfo};
use weirpool::*;

fn small(virtual_memory: bool) -> SimDevice {
    SimDevice::builder()
        .memory(64 * MIB)
        .clock(Clock::Manual)
        .virtual_memory(virtual_memory)
        .build()
}

/// Two pools that may each take the whole device, with a stream each.
fn two_pools(device: &SimDevice) -> [(TestPool, SimStream, Stream); 2] {
    [(); 2].map(|()| {
        let pool = pool(device, 64 * MIB);
        let (work, stream) = stream(device, &pool);
        (pool, work, stream)
    })
}

/// Unused memory of other pools is released. Used memory stays, and so does memory that is not needed.
#[test]
fn other_pools_spill() {
    for virtual_memory in [true, false] {
        let device = small(virtual_memory);
        let [(one, _, a), (other, _, b)] = two_pools(&device);
        let kept = one.try_allocate(&a, 16 * MIB).unwrap();
        let freed = [0; 3].map(|_| one.try_allocate(&a, 16 * MIB).unwrap());
        drop(freed);
        assert_eq!(reserved(&one), 64 * MIB);
        let block = other.try_allocate(&b, 32 * MIB).unwrap();
        assert_eq!(reserved(&one), 32 * MIB, "no more than was needed");
        let refused = other.try_allocate(&b, 32 * MIB).unwrap_err();
        assert_matches!(refused, AllocError::Exhausted(_));
        assert_eq!(
            reserved(&one),
            32 * MIB,
            "too little to help is not released"
        );
        one.inspect().check().unwrap();
        other.inspect().check().unwrap();
        drop((block, kept));
        one.inspect().check_conserved().unwrap();
        other.inspect().check_conserved().unwrap();
    }
}

/// A device may refuse memory that it reports as free, for example because its page tables need some. While it refuses,
/// other pools release more, in steps that grow.
#[test]
fn other_pools_spill_while_the_device_refuses_what_it_reports() {
    for (virtual_memory, call) in [(true, Call::Create), (false, Call::Allocate)] {
        for (first, refusals) in (1..=40).flat_map(|first| [(first, 1), (first, 2), (first, 3)]) {
            let device = SimDevice::builder()
                .memory(92 * MIB)
                .virtual_memory(virtual_memory)
                .build();
            let [(one, _, a), (other, _, b)] = two_pools(&device);
            let freed = [0; 32].map(|_| one.try_allocate(&a, 2 * MIB).unwrap());
            drop(freed);
            assert_eq!(reserved(&one), 64 * MIB);
            for nth in first..first + refusals {
                device
                    .faults()
                    .script(call, nth, Fault::Fails(DeviceErrorKind::OutOfMemory));
            }
            let block = other.try_allocate(&b, 32 * MIB);
            let block =
                block.unwrap_or_else(|error| panic!("{call:?} {first}+{refusals}: {error}"));
            let most = (4 * MIB) << refusals;
            let kept = reserved(&one);
            assert!(
                kept >= 64 * MIB - most,
                "{call:?} {first}+{refusals}: {kept}"
            );
            drop(block);
            one.inspect().check_conserved().unwrap();
            other.inspect().check_conserved().unwrap();
        }
    }
}

/// Plain segments are released as a whole, even if one is larger than needed.
#[test]
fn segment_is_spilled_as_a_whole() {
    let device = small(false);
    let [(one, _, a), (other, _, b)] = two_pools(&device);
    let sizes = [4 * MIB, 40 * MIB, 8 * MIB];
    let blocks = sizes.map(|bytes| one.try_allocate(&a, bytes).unwrap());
    drop(blocks);
    drop(other.try_allocate(&b, 16 * MIB).unwrap());
    assert_eq!(reserved(&one), 48 * MIB, "the smallest that suffices");
    drop(other.try_allocate(&b, 40 * MIB).unwrap());
    assert_eq!(reserved(&one), 8 * MIB);
    one.inspect().check_conserved().unwrap();
}

/// Memory in the lanes of other pools is released, but not memory that running work may touch.
#[test]
fn pending_memory_is_not_spilled() {
    let device = small(true);
    let [(one, work, a), (other, _, b)] = two_pools(&device);
    let blocks = [0; 2].map(|_| one.try_allocate(&a, 30 * MIB).unwrap());
    let small = one.try_allocate(&a, MIB).unwrap();
    use_block(&work, &blocks[0], us(100));
    drop((blocks, small));
    assert!(other.try_allocate(&b, 60 * MIB).is_err(), "the work runs");
    assert_eq!(reserved(&one), 62 * MIB);
    device.advance(us(100));
    drop(other.try_allocate(&b, 60 * MIB).unwrap());
    assert!(reserved(&one) <= 4 * MIB);
}

/// A pool in which requests wait does not spill, nor does a pool of another device.
#[test]
fn pool_with_waiters_does_not_spill() {
    let device = small(true);
    let [(one, _, a), (other, _, b)] = two_pools(&device);
    let first = one.try_allocate(&a, 32 * MIB).unwrap();
    drop(one.try_allocate(&a, 32 * MIB).unwrap());
    let waiting = not_ready(one.allocate(&a, 40 * MIB));
    assert!(other.try_allocate(&b, 16 * MIB).is_err());
    assert_eq!(reserved(&one), 64 * MIB);
    drop(first);
    drop(now(waiting).unwrap());
    drop(other.try_allocate(&b, 16 * MIB).unwrap());

    let elsewhere = small(true);
    let third = pool(&elsewhere, 64 * MIB);
    let (_, c) = stream(&elsewhere, &third);
    drop(third.try_allocate(&c, 64 * MIB).unwrap());
    let _others = device.faults().occupy(u64::MAX);
    let most = reserved(&one) + reserved(&other);
    assert!(other.try_allocate(&b, most + 2 * MIB).is_err());
    assert_eq!(reserved(&third), 64 * MIB);
}

/// A refusal reports the device's figures if the device refused, and none if the pool is at its capacity.
#[test]
fn refusal_reports_the_memory_of_the_device() {
    for virtual_memory in [true, false] {
        let device = small(virtual_memory);
        let pool = pool(&device, 64 * MIB);
        let (_, stream) = stream(&device, &pool);
        let others = device.faults().occupy(48 * MIB);
        let left = MemoryInfo {
            free: 16 * MIB,
            total: 64 * MIB,
        };
        let refused = pool.try_allocate(&stream, 32 * MIB).unwrap_err();
        let AllocError::Exhausted(shortfall) = &refused else {
            panic!("{refused}");
        };
        assert_eq!(shortfall.device, Some(left));
        let text = refused.to_string();
        for words in ["the device refused more", "16.0 MiB of 64.0 MiB free"] {
            assert!(text.contains(words), "{text}");
        }
        let mut waiting = not_ready(pool.allocate(&stream, 32 * MIB).timeout(us(100)));
        device.advance(us(100));
        let Poll::Ready(Err(AllocError::TimedOut { shortfall, .. })) = poll(&mut waiting) else {
            panic!("the timeout has passed");
        };
        assert_eq!(shortfall.device, Some(left));
        // Now the device has memory, and the pool is at its capacity.
        drop(others);
        let _all = pool.try_allocate(&stream, 64 * MIB).unwrap();
        let refused = pool.try_allocate(&stream, MIB).unwrap_err();
        let AllocError::Exhausted(shortfall) = refused else {
            panic!("{refused}");
        };
        assert_eq!(shortfall.device, None);
    }
}

/// Memory that the device granted before it refused the rest is released at once. While the device has too little, it
/// is not asked for more, because others may need it.
#[test]
fn refused_growth_keeps_no_memory() {
    let device = small(true);
    let pool = builder(&device, 64 * MIB).made();
    let (_, stream) = stream(&device, &pool);
    let _kept = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let others = device.faults().occupy(48 * MIB);
    let mut waiting = not_ready(pool.allocate(&stream, 32 * MIB));
    assert_eq!(reserved(&pool), 4 * MIB);
    assert_eq!(device.counters().physical_in_use, 4 * MIB);
    let creates = || device.counters().calls(Call::Create);
    let before = creates();
    for _ in 0..3 {
        device.advance(us(10_000));
        assert!(poll(&mut waiting).is_pending());
    }
    assert_eq!(
        creates(),
        before,
        "the device was asked for its figures only"
    );
    drop(others);
    device.advance(us(10_000));
    let _block = now(&mut waiting).expect("there is memory");
    assert_eq!(creates(), before + 16);
}

/// A device may refuse memory that it reports as free. Then another pool releases memory nevertheless.
#[test]
fn figures_of_the_device_are_not_relied_on() {
    let device = small(true);
    let [(one, _, a), (other, _, b)] = two_pools(&device);
    drop(one.try_allocate(&a, 32 * MIB).unwrap());
    device
        .faults()
        .script(Call::Create, 3, Fault::Fails(DeviceErrorKind::OutOfMemory));
    let block = other.try_allocate(&b, 16 * MIB).unwrap();
    assert_eq!(reserved(&one), 32 * MIB - CHUNK);
    assert_eq!(reserved(&other), 16 * MIB);
    drop(block);
    one.inspect().check_conserved().unwrap();
    other.inspect().check_conserved().unwrap();
}

#[test]
fn waiter_of_an_unpooled_pool_asks_the_device_again() {
    let device = small(true);
    let keeper = pool(&device, 64 * MIB);
    let (_, a) = stream(&device, &keeper);
    let unpooled = Pool::builder(device.clone()).upstream(Upstream::Unpooled);
    let unpooled = unpooled.made();
    let (_, b) = stream(&device, &unpooled);
    drop(keeper.try_allocate(&a, 64 * MIB).unwrap());
    drop(unpooled.try_allocate(&b, 32 * MIB).unwrap());
    assert_eq!(reserved(&keeper), 32 * MIB);
    device.advance(us(10_000));
    device.advance(us(10_000));
    assert_eq!(reserved(&unpooled), 0);

    let others = device.faults().occupy(u64::MAX);
    let refused = unpooled.try_allocate(&b, 40 * MIB).unwrap_err();
    assert!(refused.to_string().contains("the device refused more"));
    let mut waiting = not_ready(unpooled.allocate(&b, 40 * MIB));
    device.advance(us(10_000));
    assert!(poll(&mut waiting).is_pending());
    drop(others);
    device.advance(us(10_000));
    let block = now(&mut waiting).expect("there is memory");
    drop(block);
    device.advance(us(10_000));
    device.advance(us(10_000));
    assert_eq!(reserved(&unpooled), 0);
}

/// Another process cannot notify the pool. So a waiter asks again until the device has enough.
#[test]
fn refused_waiter_asks_again() {
    let device = small(true);
    let pool = builder(&device, 64 * MIB).made();
    let (_, stream) = stream(&device, &pool);
    let others = device.faults().occupy(48 * MIB);
    let (mut waiting, woken, waker) = not_ready_counted(pool.allocate(&stream, 32 * MIB));
    for _ in 0..3 {
        let before = woken.get();
        device.advance(us(10_000));
        assert!(woken.get() > before, "it asks again");
        assert!(poll_with(&mut waiting, &waker).is_pending());
    }
    drop(others);
    device.advance(us(10_000));
    let _block = now(&mut waiting).expect("there is memory");
    let before = woken.get();
    device.advance(us(100_000));
    assert_eq!(woken.get(), before, "no request waits");
}

/// A full device reports some memory as free that it does not give. A request that would fit there waits all the same:
/// others may release memory.
#[test]
fn request_waits_although_a_full_device_reports_enough_memory() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .memory(64 * MIB)
            .withheld_memory(3 * MIB)
            .clock(Clock::Manual)
            .virtual_memory(virtual_memory)
            .build();
        let pool = builder(&device, 64 * MIB).chunk_bytes(2 * MIB).made();
        let (_, stream) = stream(&device, &pool);
        let others = device.faults().occupy(u64::MAX);
        let mut waiting = pool.allocate(&stream, 2 * MIB);
        for _ in 0..10 {
            assert!(poll(&mut waiting).is_pending());
            device.advance(us(10_000));
        }
        let refused = pool.try_allocate(&stream, 2 * MIB).unwrap_err();
        let AllocError::Exhausted(shortfall) = refused else {
            panic!("{refused}");
        };
        let left = shortfall.device.expect("the device refused");
        assert_eq!(left.free, 3 * MIB);
        drop(others);
        device.advance(us(10_000));
        let _block = now(&mut waiting).expect("there is memory");
    }
}

/// A pool that holds nothing is not deadlocked: the others that hold the device may release it.
#[test]
fn refused_waiter_does_not_fail_as_deadlocked() {
    let device = small(true);
    let pool = builder(&device, 64 * MIB)
        .fail_deadlocks_after(us(20_000))
        .made();
    let (_, stream) = stream(&device, &pool);
    let others = device.faults().occupy(48 * MIB);
    let mut waiting = not_ready(pool.allocate(&stream, 32 * MIB));
    for _ in 0..10 {
        device.advance(us(10_000));
        assert!(poll(&mut waiting).is_pending());
    }
    drop(others);
    device.advance(us(10_000));
    drop(now(waiting).unwrap());
}

/// Another pool of the process releases memory later, also if memory calls run on a separate thread.
#[test]
fn waiter_gets_memory_that_another_pool_frees_later() {
    for blocking in [false, true] {
        let device = SimDevice::builder()
            .memory(64 * MIB)
            .blocking_memory_calls(blocking)
            .build();
        let [(one, _, a), (other, _, b)] = two_pools(&device);
        let block = one.try_allocate(&a, 48 * MIB).unwrap();
        let holder = std::thread::spawn({
            let other = other.clone();
            let device = device.clone();
            move || device.block_on(other.allocate(&b, 32 * MIB)).map(drop)
        });
        while other.inspect().statistics().waits.waiting == 0 {
            std::thread::yield_now();
        }
        drop(block);
        holder.join().unwrap().unwrap();
        one.inspect().check_conserved().unwrap();
        other.inspect().check_conserved().unwrap();
    }
}

/// Pools make each other release memory from several threads at once: no thread holds a lock of one pool while it takes
/// one of another.
#[test]
fn threads_of_several_pools_share_a_full_device() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .memory(67 * MIB)
            .withheld_memory(3 * MIB)
            .virtual_memory(virtual_memory)
            .build();
        let pools = [(); 3].map(|()| pool(&device, 64 * MIB));
        std::thread::scope(|scope| {
            for seed in 0..6 {
                let (device, pool) = (&device, &pools[seed % 3]);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed as u64);
                    let (work, stream) = stream(device, pool);
                    let mut cached = None;
                    for _ in 0..300 {
                        let bytes = (1 + random.u64(..16)) * CHUNK;
                        let block = match random.bool() {
                            true => Some(device.block_on(pool.allocate(&stream, bytes)).unwrap()),
                            false => pool.try_allocate(&stream, bytes).ok(),
                        };
                        if let Some(block) = block {
                            use_block(&work, &block, us(10));
                        }
                        let small = pool.try_allocate(&stream, 2 * CHUNK).ok();
                        cached = small.map(Block::into_evictable);
                    }
                    drop(cached);
                });
            }
        });
        for pool in &pools {
            pool.inspect().check().unwrap();
            assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        }
    }
}

/// The device reports free memory but always refuses, and nothing of the pool is in use. No other pool or process can
/// release memory.
#[test]
fn request_that_the_device_always_refuses_fails() {
    let device = sized(1 << 50, false);
    let pool = pool(&device, 1 << 50);
    let (_, stream) = stream(&device, &pool);
    for nth in 1..=20 {
        device.faults().script(
            Call::Allocate,
            nth,
            Fault::Fails(DeviceErrorKind::OutOfMemory),
        );
    }
    let mut waiting = pool.allocate(&stream, 200 << 40);
    let mut polls = 0;
    let refused = loop {
        match poll(&mut waiting) {
            Poll::Ready(answer) => break answer.unwrap_err(),
            Poll::Pending => device.advance(us(100_000)),
        }
        polls += 1;
        assert!(polls < 10, "the device is asked for ever");
    };
    assert_matches!(refused, AllocError::Exhausted(_));
    assert_eq!(pool.inspect().statistics().waits.waiting, 0);
}

/// The device reports more memory than it has addresses: it refuses each time it is asked, and no fault is scripted.
#[test]
fn request_beyond_the_addresses_of_the_device_fails() {
    for clock in [Clock::Virtual, Clock::Manual] {
        let device = SimDevice::builder()
            .memory(1 << 50)
            .clock(clock)
            .virtual_memory(false)
            .build();
        let pool = pool(&device, 1 << 50);
        let (_, stream) = stream(&device, &pool);
        for bytes in [256 << 40, 512 << 40] {
            let mut waiting = pool.allocate(&stream, bytes);
            let mut looks = 0;
            let answer = loop {
                if let Poll::Ready(answer) = poll(&mut waiting) {
                    break answer;
                }
                looks += 1;
                assert!(looks < 1000, "the device is asked for ever");
                device.advance(us(100_000));
            };
            let refused = answer.unwrap_err();
            assert_matches!(refused, AllocError::Exhausted(_));
        }
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        drop(pool.try_allocate(&stream, MIB).unwrap());
    }
}

/// A pool that was refused gives back memory that it does not need a little later: others need it.
#[test]
fn memory_that_stays_free_is_given_back_after_a_refusal() {
    for is_refused in [false, true] {
        let device = small(true);
        let pool = builder(&device, 64 * MIB).made();
        let (_, stream) = stream(&device, &pool);
        let _kept = pool.try_allocate(&stream, 16 * MIB).unwrap();
        let freed = pool.try_allocate(&stream, 32 * MIB).unwrap();
        let _others = device.faults().occupy(16 * MIB);
        let mut waiting = pool.allocate(&stream, 16 * MIB);
        if is_refused {
            assert!(poll(&mut waiting).is_pending());
            device.advance(us(10_000));
        }
        drop(freed);
        let block = now(&mut waiting).unwrap();
        assert_eq!(reserved(&pool), 48 * MIB, "it is served by what came back");
        drop(block);
        (0..5).for_each(|_| device.advance(us(10_000)));
        let left = if is_refused { 16 } else { 48 };
        assert_eq!(reserved(&pool), left * MIB);
    }
}

/// An integrated GPU gives memory that the host's page cache fills, and does not report it as free. After one refusal it
/// is asked again, however little it reports.
#[test]
fn device_that_reports_less_than_it_can_give_is_asked_again() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .memory(32 * MIB)
            .unreported_memory(20 * MIB)
            .virtual_memory(virtual_memory)
            .build();
        let pool = pool(&device, 64 * MIB);
        let stream = pool.create_stream().unwrap();
        let others = device.faults().occupy(30 * MIB);
        assert!(pool.try_allocate(&stream, 8 * MIB).is_err());
        drop(others);
        let calls = || device.counters().calls(Call::Create);
        let before = calls();
        let request = pool.allocate(&stream, 16 * MIB);
        let block = device.block_on(request.timeout(Duration::from_secs(1)));
        assert!(block.is_ok(), "12 MiB are reported: {block:?}");
        assert!(calls() - before <= 16, "it was not asked at each search");
    }
}
