//! What a pool is built with: growth, alignment, and nonsense.

use super::*;
use crate::common::{Made, assert_matches, set_up_with, several};
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Clock, Fault};
use weirpool::{BuildError, Capacity, CoalesceHeuristic, GrowBy, Upstream};

fn growing(virtual_memory: bool, growth: GrowBy) -> (SimDevice, PoolBuilder) {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .virtual_memory(virtual_memory)
        .build();
    let builder = crate::common::builder(&device, 64 * MIB).tuning(|tuning| tuning.growth = growth);
    (device, builder)
}

#[test]
fn pool_grows_by_the_configured_amount() {
    for virtual_memory in [true, false] {
        let reserved = |growth, initial, asked: &[u64]| {
            let (device, builder) = growing(virtual_memory, growth);
            let pool = builder
                .tuning(|tuning| tuning.initial_size = initial)
                .made();
            assert_eq!(pool.inspect().statistics().reserved.current, initial);
            let (_work, home) = stream(&device, &pool);
            let take = |bytes: &u64| pool.try_allocate(&home, *bytes).unwrap();
            let blocks: Vec<_> = asked.iter().map(take).collect();
            let reserved = pool.inspect().statistics().reserved.current;
            assert_eq!(reserved, device.counters().physical_in_use);
            drop(blocks);
            pool.inspect().check_conserved().unwrap();
            reserved / MIB
        };
        let by = GrowBy::AtLeast(10 * MIB);
        assert_eq!(reserved(GrowBy::Chunks, 0, &[MIB]), 2);
        assert_eq!(reserved(GrowBy::Chunks, 4 * MIB, &[4 * MIB, MIB]), 6);
        assert_eq!(reserved(by, 0, &[MIB]), 10);
        assert_eq!(reserved(by, 4 * MIB, &[4 * MIB, MIB]), 14);
        assert_eq!(reserved(by, 0, &[12 * MIB]), 12);
        assert_eq!(reserved(by, 0, &[10 * MIB, MIB]), 20);
        assert_eq!(reserved(GrowBy::Factor(2.0), 8 * MIB, &[8 * MIB, MIB]), 16);
        let found = reserved(GrowBy::Factor(1.5), 8 * MIB, &[8 * MIB, 6 * MIB]);
        assert_eq!(found, 14);
        // Never over the capacity.
        assert_eq!(reserved(by, 60 * MIB, &[60 * MIB, MIB]), 64);
        let found = reserved(GrowBy::Factor(100.0), 2 * MIB, &[2 * MIB, MIB]);
        assert_eq!(found, 64);
    }
}

#[test]
fn memory_taken_ahead_serves_the_next_request_with_no_call() {
    let (device, builder) = growing(true, GrowBy::AtLeast(16 * MIB));
    let pool = builder.made();
    let (_work, home) = stream(&device, &pool);
    let _first = pool.try_allocate(&home, 3 * MIB).unwrap();
    let calls = device.counters().calls(Call::Create);
    let _rest = several(&pool, &home, 13, MIB);
    assert_eq!(device.counters().calls(Call::Create), calls);
}

#[test]
fn growing_ahead_is_a_wish() {
    let (device, builder) = growing(true, GrowBy::AtLeast(16 * MIB));
    let pool = builder.made();
    let (_work, home) = stream(&device, &pool);
    // The first handle is the request's, the third one of those that come on top.
    device
        .faults()
        .script(Call::Create, 3, Fault::Fails(DeviceErrorKind::OutOfMemory));
    let _block = pool.try_allocate(&home, MIB).unwrap();
    assert_eq!(pool.inspect().statistics().reserved.current, 4 * MIB);
    assert_eq!(device.counters().physical_in_use, 4 * MIB);
}

#[test]
fn every_block_has_the_alignment_of_its_pool() {
    let device = manual();
    for alignment in [1, 512, 4096, 65536, 2 * MIB] {
        let pool = crate::common::tuned(&device, 64 * MIB, |tuning| tuning.alignment = alignment);
        let (_work, home) = stream(&device, &pool);
        let step = alignment.max(512);
        for bytes in [1, 700, 5000, 100_000] {
            let blocks = several(&pool, &home, 4, bytes);
            for block in &blocks {
                assert!(block.address().is_aligned_to(step) && block.size() % step == 0);
                assert!(
                    block.size() - bytes < step,
                    "rounded to the step, and no further"
                );
            }
            drop(blocks);
            // From the lane, which keeps them by their size alone.
            let again = pool.try_allocate(&home, bytes).unwrap();
            let found = again.source() == weirpool::Source::Lane;
            assert_eq!(found, again.size() <= 2 * MIB);
            assert!(again.address().is_aligned_to(step));
        }
    }
}

#[test]
fn one_allocation_may_ask_for_more_than_its_pool() {
    let (_, pool, [(_work, home)]) = set_up_with(|device| {
        crate::common::tuned(device, 64 * MIB, |tuning| tuning.alignment = 4096)
    });
    let _shifts = pool.try_allocate(&home, 1).unwrap();
    let block = now(pool.allocate(&home, 1).alignment(1 << 16)).unwrap();
    assert!(block.address().is_aligned_to(1 << 16));
    assert_eq!(block.size(), 4096);
    let least = pool.allocate(&home, 1).alignment(16).try_now().unwrap();
    assert!(least.address().is_aligned_to(4096));
}

#[test]
fn nonsense_is_refused_by_name() {
    let device = manual();
    let build = |set: &dyn Fn(PoolBuilder) -> PoolBuilder| {
        let builder = Pool::builder(device.clone()).capacity(8 * MIB);
        set(builder).build().map(drop).unwrap_err()
    };
    for alignment in [0, 3, 768, 4 * MIB] {
        let refused = build(&|builder| builder.tuning(|tuning| tuning.alignment = alignment));
        let largest = 2 * MIB;
        assert_eq!(refused, BuildError::InvalidAlignment { alignment, largest });
    }
    for growth in [
        GrowBy::AtLeast(0),
        GrowBy::AtLeast(9 * MIB),
        GrowBy::Factor(1.0),
        GrowBy::Factor(-2.0),
        GrowBy::Factor(f64::NAN),
    ] {
        let refused = build(&|builder| builder.tuning(|tuning| tuning.growth = growth));
        assert_matches!(refused, BuildError::InvalidGrowth { .. }, "{growth:?}");
    }
    let conflicts: [(&str, &dyn Fn(PoolBuilder) -> PoolBuilder); 4] = [
        ("initial_size", &|builder| {
            builder.tuning(|tuning| tuning.initial_size = MIB)
        }),
        ("growth", &|builder| {
            builder.tuning(|tuning| tuning.growth = GrowBy::Factor(2.0))
        }),
        ("chunk_bytes", &|builder| builder.chunk_bytes(2 * MIB)),
        ("coalesce", &|builder| {
            builder.tuning(|tuning| tuning.coalesce = Some(CoalesceHeuristic::blocks_releasable(1)))
        }),
    ];
    for (one, set) in conflicts {
        let refused = build(&|builder| set(builder.upstream(Upstream::Unpooled)));
        let other = "Upstream::Unpooled";
        assert_eq!(refused, BuildError::Conflict { one, other });
    }
    let before = device.counters().calls(Call::Reserve);
    assert_eq!(before, 0, "none of it cost the device anything");
}

#[test]
fn capacity_fraction_is_of_the_devices_memory() {
    let device = SimDevice::builder().memory(1 << 30).build();
    let pool = Pool::builder(device.clone()).capacity(Capacity::Fraction(0.5));
    assert_eq!(pool.made().capacity(), 512 * MIB);
    for fraction in [0.0, -1.0, 1.5, f64::NAN] {
        let refused = Pool::builder(device.clone()).capacity(Capacity::Fraction(fraction));
        assert_matches!(
            refused.build(),
            Err(BuildError::InvalidCapacityFraction { .. })
        );
    }
}

#[test]
fn failed_build_gives_its_initial_memory_back() {
    let device = manual();
    device
        .faults()
        .script(Call::Create, 3, Fault::Fails(DeviceErrorKind::OutOfMemory));
    let builder =
        crate::common::builder(&device, 64 * MIB).tuning(|tuning| tuning.initial_size = 32 * MIB);
    let refused = builder.build().unwrap_err();
    assert_matches!(refused, BuildError::Device(_));
    assert_eq!(device.counters().physical_in_use, 0);
}
