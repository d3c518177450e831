//! Releasing and coalescing: on demand, and by themselves.

mod common;

use common::*;
use std::time::Duration;
use weirpool::device::sim::{Call, Checker, Clock, Operation, SimDevice};
use weirpool::*;

const INTERVAL: u64 = 10_000;

fn devices() -> [SimDevice; 2] {
    [true, false].map(|virtual_memory| {
        SimDevice::builder()
            .memory(1 << 30)
            .clock(Clock::Manual)
            .virtual_memory(virtual_memory)
            .build()
    })
}

/// Lets so many intervals pass, one after the other: what is done in one may be followed up in the next.
fn let_pass(device: &SimDevice, intervals: u64) {
    for _ in 0..intervals {
        device.advance(us(INTERVAL));
    }
}

fn memory_calls(device: &SimDevice) -> u64 {
    let counters = device.counters();
    let calls = Call::ALL.iter().filter(|call| call.is_memory_call());
    calls.map(|call| counters.calls(*call)).sum()
}

/// Blocks of a handle each; every other one is freed, and all that was submitted is complete.
fn every_other_one(pool: &Pool, stream: &Stream, count: usize) -> Vec<Block> {
    let take = |_| pool.try_allocate(stream, HANDLE).unwrap();
    let blocks: Vec<_> = (0..count).map(take).collect();
    let kept = blocks.into_iter().step_by(2).collect();
    stream.seal().unwrap();
    pool.harvest().unwrap();
    kept
}

/// [16] Umpire `coalesce`: all that is free becomes one piece, and what is used keeps its bytes.
#[test]
fn coalescing_makes_one_piece_and_moves_nothing_in_use() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB).lane_bytes(0).build().unwrap();
        let (work, stream) = stream(&device, &pool);
        let kept = every_other_one(&pool, &stream, 16);
        for (block, value) in kept.iter().zip(1..) {
            let (address, bytes) = (block.address(), block.size());
            let fill = Operation::new(us(1)).writes(address, bytes);
            work.submit(fill.run(move |memory| memory.fill(address, bytes, value)));
        }
        device.advance_to_end();
        pool.harvest().unwrap();
        let before = pool.figures();
        assert_eq!(
            (before.releasable_blocks, before.releasable_bytes),
            (8, 8 * HANDLE)
        );
        assert_eq!(pool.coalesce().unwrap(), 8 * HANDLE);
        let after = pool.figures();
        assert_eq!(
            (after.releasable_blocks, after.largest_available),
            (1, 8 * HANDLE)
        );
        assert_eq!(
            (before.actual_size, before.current_size),
            (after.actual_size, after.current_size)
        );
        for (block, value) in kept.iter().zip(1..) {
            let mut bytes = vec![0; HANDLE as usize];
            device.read(block.address(), &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == value));
        }
        let whole = pool.try_allocate(&stream, 8 * HANDLE).unwrap();
        assert_eq!(whole.rung(), Rung::Free);
        drop((whole, kept));
        pool.check().unwrap();
        pool.check_conserved().unwrap();
    }
}

/// What is one piece already costs no memory call, however often.
#[test]
fn coalescing_again_does_nothing() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB).lane_bytes(0).build().unwrap();
        let (_, stream) = stream(&device, &pool);
        let _kept = every_other_one(&pool, &stream, 16);
        device.advance_to_end();
        pool.coalesce().unwrap();
        let calls = memory_calls(&device);
        for _ in 0..5 {
            assert_eq!(pool.coalesce().unwrap(), 8 * HANDLE);
        }
        assert_eq!(memory_calls(&device), calls);
    }
}

/// Memory that work may touch is neither moved nor released; what has completed since is seen.
#[test]
fn pending_memory_is_left_alone_until_it_is_complete() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB).lane_bytes(0).build().unwrap();
        let (work, stream) = stream(&device, &pool);
        let take = |_| pool.try_allocate(&stream, HANDLE).unwrap();
        let blocks: Vec<_> = (0..8).map(take).collect();
        blocks
            .iter()
            .for_each(|block| use_block(&work, block, us(100)));
        let kept: Vec<_> = blocks.into_iter().step_by(2).collect();
        let calls = memory_calls(&device);
        assert_eq!(pool.coalesce().unwrap(), 0);
        assert_eq!(pool.trim_to(0).unwrap(), 0);
        assert_eq!(memory_calls(&device), calls);
        device.advance_to_end();
        assert_eq!(
            pool.coalesce().unwrap(),
            4 * HANDLE,
            "nobody had to ask in between"
        );
        drop(kept);
        device.assert_ordered();
    }
}

/// [16] A heuristic is asked a while after memory came back, and no memory call is made by the free.
#[test]
fn a_heuristic_coalesces_by_itself() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .coalesce(CoalesceHeuristic::blocks_releasable(3))
            .lane_bytes(0)
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let take = |_| pool.try_allocate(&stream, HANDLE).unwrap();
        let mut blocks: Vec<_> = (0..16).map(take).collect();
        for n in 1..=3 {
            drop(blocks.remove(n));
        }
        let_pass(&device, 3);
        assert_eq!(pool.figures().releasable_blocks, 3, "not yet");
        let calls = memory_calls(&device);
        drop(blocks.remove(4));
        drop(blocks.remove(5));
        assert_eq!(memory_calls(&device), calls);
        let_pass(&device, 3);
        let figures = pool.figures();
        assert_eq!(
            (figures.releasable_blocks, figures.largest_available),
            (1, 5 * HANDLE)
        );
        pool.check().unwrap();
    }
}

/// [16] Percent, to the high-water mark; and a function of one's own.
#[test]
fn heuristics_shrink_to_the_mark_and_may_be_ones_own() {
    for own in [false, true] {
        let device = manual();
        let heuristic = if own {
            CoalesceHeuristic::new(|figures| figures.current_size)
        } else {
            CoalesceHeuristic::percent_releasable_hwm(75)
        };
        let pool = builder(&device, 64 * MIB)
            .coalesce(heuristic)
            .lane_bytes(0)
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let blocks: Vec<_> = (0..16)
            .map(|_| pool.try_allocate(&stream, HANDLE).unwrap())
            .collect();
        drop(blocks);
        pool.harvest().unwrap();
        pool.reset_high_water_marks();
        let _small = pool.try_allocate(&stream, HANDLE).unwrap();
        let other = pool.try_allocate(&stream, 3 * HANDLE).unwrap();
        drop(other);
        let_pass(&device, 1);
        let_pass(&device, 1);
        let left = if own { HANDLE } else { 4 * HANDLE };
        assert_eq!(pool.statistics().reserved.current, left, "own: {own}");
        pool.check().unwrap();
    }
}

/// Umpire#906: a high-water mark that is no multiple of the step must not make the pool reallocate at
/// every turn. Umpire#846: coalescing and freeing must not call each other for ever.
#[test]
fn an_odd_mark_does_not_reallocate_at_every_turn() {
    for device in devices() {
        let pool = builder(&device, 256 * MIB)
            .coalesce(CoalesceHeuristic::percent_releasable_hwm(100))
            .lane_bytes(0)
            .build()
            .unwrap();
        let (work, stream) = stream(&device, &pool);
        let mut calls = Vec::new();
        for _ in 0..20 {
            let blocks = [3 * MIB + 512, 5 * MIB + 1536, 777, 9 * MIB + 4608]
                .map(|bytes| pool.try_allocate(&stream, bytes).unwrap());
            blocks
                .iter()
                .for_each(|block| use_block(&work, block, us(5)));
            drop(blocks);
            let_pass(&device, 2);
            calls.push(memory_calls(&device));
        }
        assert_eq!(calls[5], calls[19], "{calls:?}");
        pool.check_conserved().unwrap();
    }
}

/// [18] CUDA, HIP `ReleaseThreshold`: what is held above it is given back, a while after it came back.
#[test]
fn memory_above_the_threshold_is_released_by_itself() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .release_threshold(ReleaseThreshold::Bytes(4 * HANDLE))
            .build()
            .unwrap();
        let (work, stream) = stream(&device, &pool);
        let blocks: Vec<_> = (0..16)
            .map(|_| pool.try_allocate(&stream, HANDLE).unwrap())
            .collect();
        blocks
            .iter()
            .for_each(|block| use_block(&work, block, us(100)));
        let calls = memory_calls(&device);
        drop(blocks);
        assert_eq!(memory_calls(&device), calls, "not by the free");
        let_pass(&device, 4);
        assert_eq!(pool.statistics().reserved.current, 4 * HANDLE);
        let calls = device.counters();
        let_pass(&device, 100);
        assert_eq!(device.counters(), calls, "nothing is due any more");
    }
}

/// What is used again and again is not given away in between, however much is free at times.
#[test]
fn memory_that_is_used_in_between_is_not_released() {
    let device = manual();
    let pool = builder(&device, 64 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .lane_bytes(0)
        .build()
        .unwrap();
    let (work, stream) = stream(&device, &pool);
    for _ in 0..50 {
        let block = pool.try_allocate(&stream, 16 * MIB).unwrap();
        use_block(&work, &block, us(10));
        drop(block);
        device.advance(us(INTERVAL / 3));
        pool.harvest().unwrap();
    }
    assert_eq!(device.counters().calls(Call::Create), 16 * MIB / HANDLE);
    let_pass(&device, 3);
    assert_eq!(pool.statistics().reserved.current, 0, "now it is not used");
}

/// [18] Warp: a fraction of the device's memory. Set later, too.
#[test]
fn a_threshold_may_be_a_fraction_and_may_be_set_later() {
    let device = manual();
    for fraction in [-0.1, 1.1, f64::NAN] {
        let refused =
            builder(&device, 64 * MIB).release_threshold(ReleaseThreshold::Fraction(fraction));
        assert!(matches!(
            refused.build(),
            Err(BuildError::InvalidFraction { .. })
        ));
    }
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    assert_eq!(pool.release_threshold(), u64::MAX);
    drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
    let_pass(&device, 5);
    assert_eq!(
        pool.statistics().reserved.current,
        32 * MIB,
        "kept by default"
    );
    let threshold = ReleaseThreshold::Fraction(1.0 / 128.0);
    pool.set_release_threshold(threshold).unwrap();
    assert_eq!(pool.release_threshold(), 8 * MIB);
    let_pass(&device, 3);
    assert_eq!(pool.statistics().reserved.current, 8 * MIB);
    assert!(
        pool.set_release_threshold(ReleaseThreshold::Fraction(2.0))
            .is_err()
    );
}

/// While somebody waits for memory none is given away.
#[test]
fn nothing_is_released_while_somebody_waits() {
    let device = manual();
    let pool = builder(&device, 16 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let holder = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let other = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let mut waiter = pool.allocate(&stream, 16 * MIB).into_future();
    assert!(poll(&mut waiter).is_pending());
    drop(other);
    let_pass(&device, 5);
    assert_eq!(pool.statistics().reserved.current, 16 * MIB);
    drop(holder);
    assert!(now(waiter).is_ok());
    let_pass(&device, 5);
    assert_eq!(pool.statistics().reserved.current, 0);
}

/// A pool whose upkeep is due ends all the same, and its memory goes back.
#[test]
fn upkeep_does_not_keep_the_pool() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let pool = builder(&device, 64 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .coalesce(CoalesceHeuristic::blocks_releasable(0))
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    drop((stream, pool));
    assert_eq!(device.counters().physical_in_use, 0);
    let_pass(&device, 5);
}

/// A failing device loses nothing: the next upkeep does what is left.
#[test]
fn a_failed_release_is_made_up_for() {
    let device = manual();
    let pool = builder(&device, 64 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    device.fail_next(Call::Unmap, weirpool::device::DeviceErrorKind::Other);
    let_pass(&device, 1);
    pool.check().unwrap();
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    let_pass(&device, 3);
    assert_eq!(pool.statistics().reserved.current, 0);
    pool.check_conserved().unwrap();
}

/// What cannot be released in whole handles is left, and nothing is due because of it.
#[test]
fn a_threshold_between_handles_is_no_work_for_ever() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .release_threshold(ReleaseThreshold::Bytes(4 * HANDLE + HANDLE / 2))
            .lane_bytes(0)
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        drop(
            (0..16)
                .map(|_| pool.try_allocate(&stream, HANDLE).unwrap())
                .collect::<Vec<_>>(),
        );
        let_pass(&device, 5);
        assert_eq!(pool.statistics().reserved.current, 5 * HANDLE);
        let counters = device.counters();
        let_pass(&device, 20);
        assert_eq!(device.counters(), counters, "nothing is due any more");
    }
}

/// A closed pool gives its memory back like any other, and then has nothing to do.
#[test]
fn a_closed_pool_is_kept_up_too() {
    let device = manual();
    let pool = builder(&device, 64 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .lane_bytes(0)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    pool.close();
    drop(block);
    let_pass(&device, 5);
    assert_eq!(pool.statistics().reserved.current, 0);
    let counters = device.counters();
    let_pass(&device, 20);
    assert_eq!(device.counters(), counters);
}

/// On a device that is broken nothing is due.
#[test]
fn a_broken_device_is_let_alone() {
    let device = manual();
    let pool = builder(&device, 64 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .lane_bytes(0)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    device.break_device("for the test");
    let _ = stream.event();
    let_pass(&device, 5);
    let counters = device.counters();
    let_pass(&device, 20);
    assert_eq!(device.counters(), counters);
}

/// Memory whose grant nobody took came back, too.
#[test]
fn a_grant_that_was_given_up_is_released() {
    let device = manual();
    let pool = builder(&device, 16 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .lane_bytes(0)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let holder = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut waiter = pool.allocate(&stream, 16 * MIB);
    assert!(poll(&mut waiter).is_pending());
    drop(holder);
    let mut other = pool.allocate(&stream, 512);
    assert!(poll(&mut other).is_pending(), "the other is granted now");
    drop(other);
    let_pass(&device, 5);
    assert_eq!(pool.statistics().reserved.current, 16 * MIB);
    drop(waiter);
    let_pass(&device, 5);
    assert_eq!(pool.statistics().reserved.current, 0);
}

/// What was taken for several together, of which one could not be had, is above the threshold like anything else.
#[test]
fn what_was_taken_for_several_in_vain_is_released() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .release_threshold(ReleaseThreshold::Bytes(0))
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 16 * MIB).unwrap();
        let several = pool.allocate_many(&stream, [32 * MIB, 24 * MIB]);
        assert!(several.try_now().is_err());
        assert_eq!(pool.statistics().reserved.current, 48 * MIB);
        let_pass(&device, 3);
        assert_eq!(pool.statistics().reserved.current, 16 * MIB);
        drop(held);
        let_pass(&device, 3);
        assert_eq!(pool.statistics().reserved.current, 0);
        pool.check_conserved().unwrap();
    }
}

/// While somebody waits coalescing is put off, and not forgotten.
#[test]
fn coalescing_is_put_off_and_not_forgotten() {
    let device = manual();
    let pool = builder(&device, 16 * HANDLE)
        .coalesce(CoalesceHeuristic::blocks_releasable(1))
        .lane_bytes(0)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let kept = every_other_one(&pool, &stream, 16);
    let mut waiter = pool.allocate(&stream, 16 * HANDLE);
    assert!(poll(&mut waiter).is_pending());
    let_pass(&device, 3);
    assert_eq!(pool.figures().releasable_blocks, 8);
    drop(waiter);
    let_pass(&device, 3);
    assert_eq!(pool.figures().releasable_blocks, 1);
    drop(kept);
}

/// A heuristic may ask for anything.
#[test]
fn a_heuristic_may_ask_for_more_than_there_is() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .coalesce(CoalesceHeuristic::new(|_| u64::MAX))
            .lane_bytes(0)
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let _kept = every_other_one(&pool, &stream, 16);
        let_pass(&device, 3);
        assert_eq!(pool.figures().largest_available, 8 * HANDLE);
        pool.check().unwrap();
    }
}

/// What the pool is to have afterwards is one piece, whatever of it was released for that.
#[test]
fn what_is_left_after_shrinking_is_one_piece() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .coalesce(CoalesceHeuristic::new(|_| 4 * HANDLE))
            .lane_bytes(0)
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let mut blocks: Vec<_> = (0..16)
            .map(|_| Some(pool.try_allocate(&stream, HANDLE).unwrap()))
            .collect();
        // One in use, and of what is free the pieces are 1, 6 and 8 handles.
        let used = blocks[1].take();
        let other = blocks[8].take();
        blocks.clear();
        drop(other);
        let_pass(&device, 1);
        let figures = pool.figures();
        assert_eq!(figures.actual_size, 4 * HANDLE);
        assert_eq!(figures.largest_available, 3 * HANDLE);
        drop(used);
        pool.check().unwrap();
    }
}

/// What is put together is lent to nobody: the marks do not see it used.
#[test]
fn coalescing_is_no_use() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB)
            .initial_size(4 * HANDLE)
            .lane_bytes(0)
            .build()
            .unwrap();
        assert_eq!(pool.statistics().used.high, 0);
        let (_, stream) = stream(&device, &pool);
        let kept = every_other_one(&pool, &stream, 16);
        device.advance_to_end();
        pool.reset_high_water_marks();
        pool.coalesce().unwrap();
        assert_eq!(pool.statistics().used.high, 8 * HANDLE);
        assert_eq!(pool.figures().high_water_mark, 8 * HANDLE);
        drop(kept);
        pool.check().unwrap();
    }
}

/// No interval at all is a very short one.
#[test]
fn no_interval_is_a_short_one() {
    let device = manual();
    let pool = builder(&device, 64 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .upkeep_interval(Duration::ZERO)
        .lane_bytes(0)
        .build()
        .unwrap();
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    use_block(&work, &block, us(1000));
    drop(block);
    assert_eq!(pool.statistics().reserved.current, 8 * MIB);
    let_pass(&device, 3);
    assert_eq!(pool.statistics().reserved.current, 0);
}
