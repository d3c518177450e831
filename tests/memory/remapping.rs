//! Mapping free memory elsewhere or growing, by policy and by elapsed time.

use crate::common::*;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::DeviceErrorKind::{Other, OutOfMemory};
use weirpool::device::sim::{Call, SimDevice};
use weirpool::*;

/// The number of moves that a pool begins with.
const BURST: u64 = 256;

const POLICIES: [Remapping; 3] = [Remapping::Always, Remapping::Share(0.125), Remapping::Never];

fn pool_with(device: &SimDevice, capacity: u64, remapping: Remapping) -> TestPool {
    let builder = builder(device, capacity).tuning(|tuning| tuning.lane_bytes = 0);
    builder.tuning(|tuning| tuning.remapping = remapping).made()
}

/// Allocates 16 chunks, and frees every second one. Returns the others.
fn in_pieces(pool: &Pool, stream: &Stream) -> Vec<Block> {
    let blocks = [(); 16].map(|()| pool.try_allocate(stream, CHUNK).unwrap());
    blocks.into_iter().skip(1).step_by(2).collect()
}

/// Requests 16 MiB of scattered free memory as one block.
fn turn(pool: &Pool, stream: &Stream) {
    let kept = in_pieces(pool, stream);
    drop(pool.try_allocate(stream, 8 * CHUNK).unwrap());
    pool.inspect().check().unwrap();
    drop(kept);
}

/// Returns the number of chunks moved so far, and of chunks held.
fn figures(pool: &Pool) -> (u64, u64) {
    let figures = pool.inspect().statistics();
    (figures.remaps, figures.reserved.current / CHUNK)
}

#[test]
fn policy_decides_how_many_chunks_are_moved() {
    for (remapping, expected) in POLICIES.into_iter().zip([(8, 16), (8, 16), (0, 24)]) {
        let (_, pool, [(_, stream)]) =
            set_up_with(|device| pool_with(device, 512 * MIB, remapping));
        let _kept = in_pieces(&pool, &stream);
        let whole = pool.try_allocate(&stream, 8 * CHUNK).unwrap();
        assert_eq!(whole.source(), Source::Grown);
        assert_eq!(figures(&pool), expected, "{remapping:?}");
    }
}

/// The clock stands still, so only the initial moves are available. Then time passes.
#[test]
fn pool_grows_beyond_its_share_of_the_time() {
    let grows_at = |last: usize, idle: Duration| {
        let (device, pool, [(_, stream)]) =
            set_up_with(|device| pool_with(device, 512 * MIB, Remapping::Share(0.5)));
        for number in 0..1000 {
            if number == last {
                device.advance(idle);
            }
            turn(&pool, &stream);
            if figures(&pool).1 > 16 {
                return (number, figures(&pool).0);
            }
        }
        panic!("it never does");
    };
    let (last, moved) = grows_at(0, Duration::ZERO);
    assert_eq!(moved, BURST);
    // A move takes 64 us, half of 128 us. A turn needs up to eight moves.
    let (later, moved) = grows_at(last, us(8 * 128));
    assert!(later > last);
    assert_eq!(moved, BURST + 8);
    assert_eq!(grows_at(last, us(127)), (last, BURST), "not a whole move");
}

/// The moves that new chunks earn are used before the pool grows further.
#[test]
fn growth_earns_moves() {
    let (_, pool, [(_, stream)]) =
        set_up_with(|device| pool_with(device, 512 * MIB, Remapping::default()));
    while figures(&pool).1 <= 16 {
        turn(&pool, &stream);
    }
    let (_, held) = figures(&pool);
    let new = held - 16;
    // More blocks are live from here on, so that all held memory is needed.
    let _more = several(&pool, &stream, new, CHUNK);
    while figures(&pool).1 <= held {
        turn(&pool, &stream);
    }
    assert_eq!(figures(&pool).0, BURST + new);
}

#[test]
fn always_has_no_bound() {
    let (_, pool, [(_, stream)]) =
        set_up_with(|device| pool_with(device, 512 * MIB, Remapping::Always));
    (0..100).for_each(|_| turn(&pool, &stream));
    let (moved, held) = figures(&pool);
    assert_eq!(held, 16);
    assert!(moved > 2 * BURST, "{moved}");
}

/// The memory held to save moves is at most as much as was in use.
#[test]
fn pool_grows_to_at_most_twice_the_used_memory() {
    for (remapping, is_bounded) in [(Remapping::default(), true), (Remapping::Never, false)] {
        let (_, pool, [(_, stream)]) =
            set_up_with(|device| pool_with(device, 1024 * MIB, remapping));
        let mut random = fastrand::Rng::with_seed(3);
        let mut blocks: Vec<Block> = Vec::new();
        let (mut used, mut most) = (0, 0);
        for _ in 0..4000 {
            let bytes = random.u64(1..=16) * MIB / 2;
            while used + bytes > 32 * MIB {
                used -= blocks.swap_remove(random.usize(..blocks.len())).size();
            }
            blocks.push(pool.try_allocate(&stream, bytes).unwrap());
            used += bytes;
            most = most.max(used);
        }
        let held = pool.inspect().statistics().reserved.high;
        assert!(
            !is_bounded || held <= 2 * most.next_multiple_of(CHUNK),
            "{held}"
        );
        assert!(is_bounded || pool.inspect().statistics().remaps == 0);
    }
}

/// Where there is no new memory, every policy moves free memory, within the capacity and the device's memory.
#[test]
fn no_request_fails_because_of_a_policy() {
    for remapping in POLICIES {
        for is_of_the_device in [false, true] {
            let device = manual();
            let capacity = if is_of_the_device { 1024 } else { 32 } * MIB;
            let pool = pool_with(&device, capacity, remapping);
            let (_, stream) = stream(&device, &pool);
            drop(pool.try_allocate(&stream, 16 * CHUNK).unwrap());
            let others = is_of_the_device.then(|| device.faults().occupy(u64::MAX));
            (0..100).for_each(|_| turn(&pool, &stream));
            let (moved, held) = figures(&pool);
            assert_eq!(held, 16, "{remapping:?}");
            assert!(moved > 2 * BURST, "{moved}");
            drop(others);
            let takes_more = is_of_the_device && remapping != Remapping::Always;
            (0..4).for_each(|_| turn(&pool, &stream));
            assert_eq!(figures(&pool).1 > 16, takes_more, "{remapping:?}");
        }
    }
}

/// The device has only a part of the missing memory. The request takes none of it, and is served by moving.
#[test]
fn request_is_served_by_moving_when_the_device_refuses() {
    let (device, pool, [(_, stream)]) =
        set_up_with(|device| pool_with(device, 512 * MIB, Remapping::Never));
    let kept = in_pieces(&pool, &stream);
    let free = device
        .memory_info(weirpool::device::MemoryKind::Device)
        .unwrap()
        .free;
    let others = device.faults().occupy(free - 3 * CHUNK);
    let whole = pool.try_allocate(&stream, 8 * CHUNK).unwrap();
    assert_eq!(figures(&pool), (8, 16));
    drop(others);
    drop((whole, kept));
    // A growth that fails for another reason reports it.
    let _kept = in_pieces(&pool, &stream);
    device.faults().fail_next(Call::Create, Other);
    let failed = pool.try_allocate(&stream, 12 * CHUNK).unwrap_err();
    assert_matches!(failed, AllocError::Device(_));
}

/// A device that cannot map moved memory is not asked again by the same request, since each attempt loses a chunk.
#[test]
fn refused_move_is_tried_once() {
    for remapping in POLICIES {
        let device = manual();
        let capacity = if remapping == Remapping::Never {
            32
        } else {
            512
        } * MIB;
        let pool = pool_with(&device, capacity, remapping);
        let (_, stream) = stream(&device, &pool);
        let _kept = in_pieces(&pool, &stream);
        (0..4).for_each(|_| device.faults().fail_next(Call::Map, OutOfMemory));
        pool.try_allocate(&stream, 4 * CHUNK).unwrap_err();
        assert_eq!(figures(&pool), (0, 15), "{remapping:?}");
    }
}

/// A draw of one block from a scattered reservation succeeds with each policy, with or without spare memory.
#[test]
fn draw_succeeds_with_every_policy() {
    for remapping in POLICIES {
        for capacity in [32 * MIB, 512 * MIB] {
            let (_, pool, [(_, stream)]) =
                set_up_with(|device| pool_with(device, capacity, remapping));
            let reservation = pool.reserve(32 * MIB).try_now().unwrap();
            let draw = |bytes| reservation.allocate(&stream, bytes).unwrap();
            let blocks = [(); 16].map(|()| draw(CHUNK));
            let _kept: Vec<_> = blocks.into_iter().step_by(2).collect();
            let _whole = draw(8 * CHUNK);
            let takes_more = remapping == Remapping::Never && capacity > 32 * MIB;
            assert_eq!(figures(&pool).1 > 16, takes_more, "{remapping:?}");
            assert_eq!(reservation.left(), 0);
            pool.inspect().check().unwrap();
        }
    }
}

#[test]
fn block_grows_into_moved_or_new_memory() {
    for (remapping, expected) in POLICIES.into_iter().zip([(8, 17), (8, 17), (0, 25)]) {
        let (_, pool, [(_, stream)]) =
            set_up_with(|device| pool_with(device, 512 * MIB, remapping));
        let cache = pool.allocate(&stream, CHUNK).room(64 * MIB);
        let mut cache = cache.try_now().unwrap();
        let _kept = in_pieces(&pool, &stream);
        now(cache.grow(8 * CHUNK)).unwrap();
        assert_eq!(figures(&pool), expected, "{remapping:?}");
    }
}

/// With `WaitFirst`, a request waits before the pool makes more moves than the policy allows, unless there is no new
/// memory anyway.
#[test]
fn request_waits_before_more_is_moved() {
    for (remapping, capacity, waits) in [
        (Remapping::Always, 512 * MIB, false),
        (Remapping::default(), 512 * MIB, false),
        (Remapping::Never, 512 * MIB, true),
        (Remapping::Never, 48 * MIB, false),
    ] {
        let device = manual();
        let reuse = only_host_waits();
        let builder = builder(&device, capacity).tuning(|tuning| {
            tuning.lane_bytes = 0;
            tuning.reuse = reuse;
        });
        let builder = builder.tuning(|tuning| {
            tuning.when_short = WhenShort::WaitFirst;
        });
        let pool = builder.tuning(|tuning| tuning.remapping = remapping).made();
        let [(_, stream_a), (work, b)] = streams(&device, &pool);
        let running = pool.try_allocate(&b, 8 * CHUNK).unwrap();
        // The pool learns how long the work takes.
        let turn = pool.try_allocate(&b, CHUNK).unwrap();
        use_block(&work, &turn, us(100));
        drop(turn);
        b.seal().unwrap();
        device.advance(us(100));
        pool.maintain().reap().unwrap();
        let kept = in_pieces(&pool, &stream_a);
        let before = figures(&pool);
        use_block(&work, &running, us(100));
        drop(running);
        b.seal().unwrap();
        let mut allocation = pool.allocate(&stream_a, 8 * CHUNK);
        let polled = poll(&mut allocation);
        assert_eq!(polled.is_pending(), waits, "{remapping:?}");
        let block = match polled {
            Poll::Ready(block) => block.unwrap(),
            Poll::Pending => {
                device.advance(us(100));
                now(allocation).unwrap()
            }
        };
        let moved = figures(&pool).0 - before.0;
        assert_eq!(moved, if waits { 0 } else { 8 }, "{remapping:?}");
        assert_eq!(figures(&pool).1, before.1);
        drop((block, kept));
        device.advance_to_end();
    }
}

/// Explicit coalescing takes place, and does not use the budget of requests.
#[test]
fn explicit_coalescing_is_neither_limited_nor_counted() {
    let (device, pool, [(_, stream)]) =
        set_up_with(|device| pool_with(device, 512 * MIB, Remapping::Share(0.001)));
    for _ in 0..100 {
        let kept = in_pieces(&pool, &stream);
        assert_eq!(pool.maintain().coalesce().unwrap(), 8 * CHUNK);
        drop(kept);
        pool.maintain().coalesce().unwrap();
    }
    assert_eq!(figures(&pool).1, 16);
    let moved = figures(&pool).0;
    assert!(moved > 2 * BURST, "{moved}");
    let kept = in_pieces(&pool, &stream);
    let whole = pool.try_allocate(&stream, 8 * CHUNK).unwrap();
    let (all, held) = figures(&pool);
    assert!(all > moved && held == 16, "{all} {held}");
    drop((kept, whole));
    // A pool that never moves by itself does so on request.
    let pool = pool_with(&device, 512 * MIB, Remapping::Never);
    let stream = pool.create_stream().unwrap();
    let kept = in_pieces(&pool, &stream);
    assert_eq!(pool.maintain().coalesce().unwrap(), 8 * CHUNK);
    assert_eq!(figures(&pool), (8, 16));
    drop(kept);
}

#[test]
fn invalid_share_is_refused() {
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        let builder =
            Pool::builder(manual()).tuning(|tuning| tuning.remapping = Remapping::Share(share));
        let error = builder.build().unwrap_err();
        assert_matches!(error, BuildError::InvalidShare { .. });
        assert!(error.to_string().contains("Remapping::Never"), "{error}");
    }
    Pool::builder(manual())
        .tuning(|tuning| tuning.remapping = Remapping::Share(1.0))
        .made();
}

/// Without virtual memory nothing is moved, with any policy.
#[test]
fn plain_memory_stays_where_it_is() {
    for remapping in POLICIES {
        let device = SimDevice::builder().virtual_memory(false).build();
        let pool = pool_with(&device, 512 * MIB, remapping);
        let stream = pool.create_stream().unwrap();
        let kept = in_pieces(&pool, &stream);
        let whole = pool.try_allocate(&stream, 8 * CHUNK).unwrap();
        assert_eq!(figures(&pool), (0, 24));
        drop((kept, whole));
        device.advance(Duration::from_millis(1));
    }
}
