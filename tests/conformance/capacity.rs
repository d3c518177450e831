//! The limits of memory: bounds, errors, and memory that a later attempt finds.

use crate::bench::Bench;
use crate::common::{MIB, assert_matches, not_ready, poll};
use crate::site::{ONLY_COMPLETE, Site, builder, eventually};
use futures::executor::block_on;
use weirpool::device::DeviceErrorKind;
use weirpool::{AllocError, BuildError, GrowBy, ReleaseThreshold, Shortfall, Source};

/// RMM `pool_mr_tests`: an initial size above the maximum is refused, and so are other invalid settings.
pub(crate) fn settings_out_of_range_are_refused<B: Bench>() {
    let device = B::new().device();
    let build = |initial| {
        builder::<B>(device.clone(), 8 * MIB)
            .tuning(|tuning| tuning.initial_size = initial)
            .build()
    };
    let refused = BuildError::InitialOverCapacity {
        initial: 8 * MIB + 1,
        capacity: 8 * MIB,
    };
    assert_eq!(build(8 * MIB + 1).unwrap_err(), refused);
    assert_matches!(
        builder::<B>(device.clone(), 1).build(),
        Err(BuildError::CapacityTooSmall { .. })
    );
    assert_matches!(
        builder::<B>(device.clone(), 8 * MIB).chunk_bytes(3).build(),
        Err(BuildError::InvalidChunk { .. })
    );
    for alignment in [0, 3, 1 << 40] {
        let refused = builder::<B>(device.clone(), 8 * MIB)
            .tuning(|tuning| tuning.alignment = alignment)
            .build();
        assert_matches!(refused, Err(BuildError::InvalidAlignment { .. }));
    }
    for growth in [GrowBy::AtLeast(9 * MIB), GrowBy::Factor(1.0)] {
        let refused = builder::<B>(device.clone(), 8 * MIB)
            .tuning(|tuning| tuning.growth = growth)
            .build();
        assert_matches!(refused, Err(BuildError::InvalidGrowth { .. }));
    }
    assert!(build(8 * MIB).is_ok());
}

/// Umpire, sizes of the first and the next allocation: the initial size first, then steps, and never more than the
/// capacity.
pub(crate) fn pool_grows_by_steps<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| {
        builder.tuning(|tuning| {
            tuning.initial_size = 4 * MIB;
            tuning.growth = GrowBy::AtLeast(12 * MIB);
        })
    });
    assert_eq!(probe.held(), 4 * MIB);
    let worker = site.worker();
    let mut blocks = vec![worker.take(4 * MIB)];
    for held in [16, 16, 28, 28, 32, 32] {
        blocks.push(worker.take(if held == 32 { 2 * MIB } else { 6 * MIB }));
        assert_eq!(probe.held(), held * MIB);
    }
    worker.take_nothing(2 * MIB);
    blocks.iter().for_each(|block| worker.use_up(block, 1));
    worker.settle();
    drop(blocks);
    site.assert_sound();
}

/// An initial size equal to the maximum works. Growth beyond it fails cleanly, and the pool stays usable.
pub(crate) fn growth_beyond_the_capacity_fails_and_the_pool_stays_usable<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| {
        builder.tuning(|tuning| tuning.initial_size = 8 * MIB)
    });
    assert_eq!(probe.held(), 8 * MIB);
    let worker = site.worker();
    let block = worker.take_from(Source::Free, 6 * MIB);
    worker.take_nothing(4 * MIB);
    worker.use_up(&block, 1);
    drop(block);
    let all = worker.take(8 * MIB);
    worker.use_up(&all, 2);
    worker.free_and_settle(all);
    assert_eq!(probe.peak(), 8 * MIB);
    site.assert_sound();
}

/// RMM limiting adaptor: at the limit an attempt fails, an awaited request waits, and a free admits the next one.
pub(crate) fn request_at_the_capacity_fails_if_tried_and_waits_if_awaited<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let block = first.take(8 * MIB);
    let gate = first.use_until_opened(&block, 1);
    second.take_nothing(MIB);
    let mut waiting = not_ready(site.pool.allocate(&second.stream, MIB));
    drop(block);
    assert!(poll(&mut waiting).is_pending(), "its work runs still");
    gate.open();
    let block = block_on(waiting).unwrap();
    second.use_up(&block, 2);
    second.free_and_settle(block);
    first.settle();
    assert_eq!(site.pool.inspect().statistics().waits.served, 1);
    site.assert_sound();
}

/// pytorch#19222, #189504: memory that was pending when memory was short may be complete by now. A later attempt
/// finds it, without a reap in between.
pub(crate) fn memory_that_completed_meanwhile_is_found_by_the_next_attempt<B: Bench>() {
    for bytes in [8 * MIB, 2 * MIB, MIB, 4096] {
        let site = Site::<B>::without_device_waits(8 * MIB);
        let [first, second] = site.workers();
        let blocks: Vec<_> = (0..8 * MIB / bytes).map(|_| first.take(bytes)).collect();
        let gate = first.use_until_opened(&blocks[0], 1);
        drop(blocks);
        second.take_nothing(8 * MIB);
        gate.open();
        first.settle();
        let block = second.take(8 * MIB);
        second.use_up(&block, 2);
        second.free_and_settle(block);
        site.assert_sound();
    }
}

/// The device is full although the pool could grow: memory that has completed meanwhile suffices.
pub(crate) fn completed_memory_serves_a_request_that_a_full_device_refuses<B: Bench>() {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let [first, second] = site.workers();
    let block = first.take(8 * MIB);
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    let call = growing_call(&site);
    // This holds for every number of attempts, because other threads may have released memory meanwhile.
    probe.refuse(call, DeviceErrorKind::OutOfMemory);
    let before = probe.calls(call);
    second.take_nothing(8 * MIB);
    assert!(probe.calls(call) > before);
    gate.open();
    first.settle();
    let block = second.take_from(Source::Free, 8 * MIB);
    second.use_up(&block, 2);
    second.free_and_settle(block);
    assert_eq!(probe.held(), 8 * MIB);
    site.assert_sound();
}

/// Returns the call with which a pool takes memory.
pub(crate) fn growing_call<B: Bench>(site: &Site<B>) -> &'static str {
    if site.is_virtual() {
        "create"
    } else {
        "allocate"
    }
}

/// rmm#869, step by step: memory that is being taken counts before the device has provided it.
pub(crate) fn growth_under_way_counts_against_the_capacity<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let [first, second] = site.workers();
    probe.amid_next(growing_call(&site), move || second.take_nothing(4 * MIB));
    let block = first.take(6 * MIB);
    assert_eq!(probe.peak(), 6 * MIB);
    drop(block);
    site.assert_conserved();
}

/// The device may give released memory to another pool at once, before the first pool knows that the release is over.
pub(crate) fn released_address_may_be_reused_at_once<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let [first, second] = site.workers();
    drop(first.take(4 * MIB));
    block_on(first.stream.synchronize()).unwrap();
    let is_virtual = site.is_virtual();
    let (send, given) = std::sync::mpsc::channel();
    probe.amid_next(if is_virtual { "destroy" } else { "free" }, move || {
        let block = second.take(4 * MIB);
        send.send((second, block)).unwrap();
    });
    assert_eq!(site.pool.trim_to(0).unwrap().released, 4 * MIB);
    let (second, block) = given.recv().unwrap();
    second.use_up(&block, 2);
    assert_eq!(probe.held(), 4 * MIB);
    second.free_and_settle(block);
    assert_eq!(site.pool.trim_to(0).unwrap().released, 4 * MIB);
    assert_eq!(probe.held(), 0);
    site.assert_sound();
}

/// pytorch#29554: an error states the requested bytes, the free bytes and their pieces, the pending bytes, the
/// held bytes, and the number of waiting requests.
pub(crate) fn exhaustion_reports_every_figure<B: Bench>() {
    let site = Site::<B>::without_device_waits(16 * MIB);
    let [first, second] = site.workers();
    drop(first.take(16 * MIB));
    block_on(first.stream.synchronize()).unwrap();
    let mut blocks: Vec<_> = (0..8).map(|_| Some(first.take(2 * MIB))).collect();
    // Free: 2 + 4 MiB in pieces. Pending: 4 MiB. In use: the other 6 MiB.
    for freed in [0, 2, 3] {
        drop(blocks[freed].take());
    }
    block_on(first.stream.synchronize()).unwrap();
    let pending = [5, 6].map(|at| blocks[at].take().unwrap());
    let gate = first.use_until_opened(&pending[0], 1);
    drop(pending);
    let Err(AllocError::Exhausted(shortfall)) = second.try_take(8 * MIB) else {
        panic!("more memory than there is");
    };
    assert_shortfall(&shortfall);
    // The pool reports the same figures on request, not only in the error.
    let figures = site.pool.inspect().statistics();
    let found = (figures.free, figures.used.current);
    assert_eq!(found, (shortfall.free, shortfall.used));
    assert_eq!(figures.fragmentation(), shortfall.fragmentation());
    gate.open();
    first.settle();
    drop(blocks);
    site.assert_sound();
}

fn assert_shortfall(shortfall: &Shortfall) {
    let Shortfall {
        requested,
        free,
        largest_free,
        pending,
        used,
        reserved,
        capacity,
        waiting,
        ..
    } = *shortfall;
    let figures = [requested, free, largest_free, pending, used];
    assert_eq!(figures.map(|bytes| bytes / MIB), [8, 6, 4, 4, 6]);
    assert_eq!((free + pending + used, reserved), (reserved, capacity));
    assert_eq!((reserved / MIB, waiting), (16, 0));
    assert!((shortfall.fragmentation() - 1.0 / 3.0).abs() < 1e-9);
    let text = AllocError::Exhausted(Box::new(*shortfall)).to_string();
    for figure in [requested, free, largest_free, pending, used, reserved] {
        let figure = format!("{}.0 MiB", figure / MIB);
        assert!(text.contains(&figure), "{text}");
    }
    assert!(text.contains("33 %"), "{text}");
}

/// rocm-systems#11642: a failed allocation counted as used memory.
pub(crate) fn failed_allocation_is_not_counted<B: Bench>() {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| builder);
    let worker = site.worker();
    let block = worker.take(8 * MIB);
    let before = site.pool.inspect().statistics();
    let call = growing_call(&site);
    for kind in [DeviceErrorKind::OutOfMemory, DeviceErrorKind::Other] {
        probe.refuse(call, kind);
        let before = probe.calls(call);
        assert!(worker.try_take(4 * MIB).is_err());
        assert!(probe.calls(call) > before);
    }
    probe.allow(call);
    assert!(worker.try_take(1 << 40).is_err());
    worker.take_nothing(12 * MIB);
    let after = site.pool.inspect().statistics();
    assert_eq!((after.used, after.hits), (before.used, before.hits));
    assert_eq!(after.reserved.current, probe.held());
    drop(block);
    site.assert_conserved();
}

/// CUDA, HIP and Warp, release threshold: free memory above it is released without a call. Memory in use
/// stays.
pub(crate) fn memory_above_the_threshold_is_released<B: Bench>() {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| {
        builder
            .release_threshold(ReleaseThreshold::Bytes(4 * MIB))
            .tuning(|tuning| tuning.lane_bytes = 0)
    });
    let worker = site.worker();
    let [kept, freed @ ..] = [(); 8].map(|()| worker.take(2 * MIB));
    worker.fill(&kept, 1);
    freed.iter().for_each(|block| worker.use_up(block, 2));
    drop(freed);
    worker.settle();
    eventually(|| probe.held() <= 4 * MIB);
    assert!(probe.held() >= kept.size());
    worker.expect(&kept, 1);
    worker.settle();
    drop(kept);
    // Maintenance is still running.
    eventually(|| site.pool.inspect().check_conserved().is_ok());
    site.assert_sound();
}
