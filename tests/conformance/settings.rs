//! Settings take effect on every device.

use crate::bench::{Bench, Gate};
use crate::common::{MIB, not_ready};
use crate::site::{Site, Worker, eventually};
use futures::executor::block_on;
use weirpool::{
    Block, CoalesceHeuristic, GrowBy, ReleaseThreshold, Remapping, Reuse, Sealing, Source,
    WhenShort,
};

/// Allocates three of eight pieces, with bytes that must stay. Free memory lies around them, and no work runs.
fn kept_among_free<B: Bench>(worker: &Worker<B>) -> [Block; 3] {
    let blocks = [(); 8].map(|()| worker.take(2 * MIB));
    blocks.iter().for_each(|block| worker.fill(block, 1));
    let [first, a, second, b, third, rest @ ..] = blocks;
    drop((a, b, rest));
    worker.settle();
    [first, second, third]
}

fn end<B: Bench>(site: &Site<B>, worker: &Worker<B>, kept: impl IntoIterator<Item = Block>) {
    for block in kept {
        worker.expect(&block, 1);
    }
    block_on(worker.stream.synchronize()).unwrap();
    // Maintenance may still be running.
    eventually(|| site.pool.inspect().check_conserved().is_ok());
    site.assert_sound();
}

/// Umpire `percent_releasable`: maintenance coalesces free memory into one piece without a call, from the same
/// memory or from as much new memory. Memory in use stays where it is.
pub(crate) fn heuristic_coalesces_unasked<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| {
        builder
            .tuning(|tuning| tuning.coalesce = Some(CoalesceHeuristic::percent_releasable(50)))
            .tuning(|tuning| tuning.lane_bytes = 0)
    });
    let worker = site.worker();
    let kept = kept_among_free(&worker);
    eventually(|| {
        let figures = site.pool.inspect().statistics();
        (figures.releasable_blocks, figures.largest_free) == (1, 10 * MIB)
    });
    assert_eq!(probe.held(), 16 * MIB);
    let whole = worker.take_from(Source::Free, 10 * MIB);
    worker.use_up(&whole, 2);
    drop(whole);
    end(&site, &worker, kept);
}

/// A custom heuristic: it shrinks the pool to the memory in use.
pub(crate) fn custom_heuristic_shrinks_the_pool<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| {
        builder
            .tuning(|tuning| {
                tuning.coalesce = Some(CoalesceHeuristic::new(|figures| figures.in_use.current))
            })
            .tuning(|tuning| tuning.lane_bytes = 0)
    });
    let worker = site.worker();
    let kept = kept_among_free(&worker);
    eventually(|| probe.held() == 6 * MIB);
    let more = worker.take(4 * MIB);
    worker.use_up(&more, 2);
    drop(more);
    end(&site, &worker, kept);
}

/// Memory that completes while maintenance releases other memory is neither in the figures that the heuristic saw
/// nor pending afterwards.
pub(crate) fn memory_that_completes_during_maintenance_is_released_by_the_next_one<B: Bench>() {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| {
        builder
            .tuning(|tuning| {
                tuning.coalesce = Some(CoalesceHeuristic::new(|figures| figures.in_use.current))
            })
            .tuning(|tuning| tuning.lane_bytes = 0)
    });
    let [worker, other] = site.workers();
    let kept = worker.take(2 * MIB);
    let free = worker.take(4 * MIB);
    let late = other.take(4 * MIB);
    worker.fill(&kept, 1);
    worker.settle();
    // Releasing plain memory waits for all work of the device: a held stream would hold it too.
    let (release, gate) = if site.is_virtual() {
        ("destroy", Some(other.use_until_opened(&late, 2)))
    } else {
        other.use_up(&late, 2);
        ("free", None)
    };
    drop(late);
    let pool = site.pool.clone();
    probe.amid_next(release, move || {
        gate.into_iter().for_each(Gate::open);
        other.settle();
        pool.maintain().reap().unwrap();
    });
    drop(free);
    eventually(|| probe.held() == 2 * MIB);
    end(&site, &worker, [kept]);
}

/// By default free memory is kept. The threshold can be set later.
pub(crate) fn threshold_can_be_set_later<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| {
        builder.tuning(|tuning| tuning.lane_bytes = 0)
    });
    let worker = site.worker();
    let kept = kept_among_free(&worker);
    site.pool.maintain().reap().unwrap();
    assert_eq!(probe.held(), 16 * MIB);
    let threshold = ReleaseThreshold::Bytes(8 * MIB);
    site.pool
        .maintain()
        .set_release_threshold(threshold)
        .unwrap();
    eventually(|| probe.held() <= 8 * MIB);
    assert!(probe.held() >= 6 * MIB, "what is used is not free");
    end(&site, &worker, kept);
}

/// HIP: memory above the threshold is released when a stream or an event is next waited for, though the stream's lane
/// cached it.
pub(crate) fn threshold_is_met_at_the_next_synchronization<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| {
        let threshold = ReleaseThreshold::Bytes(4 * MIB);
        builder.release_threshold(threshold)
    });
    let worker = site.worker();
    let wait_for_stream = || block_on(worker.stream.synchronize()).unwrap();
    let wait_for_event = || block_on(worker.stream.event().unwrap().into_future()).unwrap();
    for synchronize in [&wait_for_stream as &dyn Fn(), &wait_for_event] {
        let blocks = [(); 8].map(|()| worker.take(2 * MIB));
        blocks.iter().for_each(|block| worker.use_up(block, 1));
        synchronize();
        assert_eq!(probe.held(), 16 * MIB, "used memory stays");
        drop(blocks);
        worker.settle();
        synchronize();
        eventually(|| probe.held() <= 4 * MIB);
        let calls = probe.calls("free") + probe.calls("unmap");
        synchronize();
        assert_eq!(probe.calls("free") + probe.calls("unmap"), calls);
    }
    eventually(|| site.pool.inspect().check_conserved().is_ok());
    site.assert_sound();
}

/// CUDA and HIP: the flags of reuse change on a live pool, and a request that waits is served under the new ones.
pub(crate) fn reuse_changes_on_a_live_pool<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| {
        let builder = builder.tuning(|tuning| tuning.reuse = Reuse::NONE);
        builder.tuning(|tuning| tuning.when_short = WhenShort::GrowThenWait)
    });
    let [freeing, taking] = site.workers();
    let block = freeing.take(8 * MIB);
    let gate = freeing.use_until_opened(&block, 1);
    drop(block);
    taking.take_nothing(8 * MIB);
    let request = not_ready(site.pool.allocate(&taking.stream, 8 * MIB));
    let internal = Reuse {
        internal_dependencies: true,
        ..Reuse::NONE
    };
    assert_eq!(site.pool.maintain().set_reuse(internal), Reuse::NONE);
    let granted = block_on(request).expect("memory behind a wait, while the stream is held");
    assert_eq!(granted.source(), Source::DeviceWait);
    taking.use_up(&granted, 2);
    gate.open();
    taking.settle();
    drop(granted);
    assert_eq!(site.pool.maintain().set_reuse(Reuse::ALL), internal);
    site.assert_sound();
}

/// If lanes keep no bytes, memory that a stream freed comes back to it from the heap, whether or not its work runs.
pub(crate) fn lanes_cache_up_to_their_limit<B: Bench>() {
    for (bytes, source) in [(8 * MIB, Source::Lane), (0, Source::SameStream)] {
        let site = Site::<B>::with(8 * MIB, |builder| {
            builder.tuning(|tuning| tuning.lane_bytes = bytes)
        });
        let worker = site.worker();
        let block = worker.take(64 << 10);
        let address = block.address();
        let gate = worker.use_until_opened(&block, 1);
        drop(block);
        let again = worker.take_from(source, 64 << 10);
        assert_eq!(again.address(), address);
        gate.open();
        worker.fill(&again, 1);
        end(&site, &worker, [again]);
    }
}

/// Events are recorded at each free, after enough bytes were freed, or on demand.
pub(crate) fn events_are_recorded_as_often_as_configured<B: Bench>() {
    const FREES: u64 = 64;
    const BYTES: u64 = 64 << 10;
    let records = |sealing| {
        let (site, probe) = Site::<B>::probed(16 * MIB, |builder| builder.sealing(sealing));
        let worker = site.worker();
        let blocks: Vec<_> = (0..FREES).map(|_| worker.take(BYTES)).collect();
        blocks.iter().for_each(|block| worker.use_up(block, 1));
        let before = probe.calls("record");
        drop(blocks);
        let unasked = probe.calls("record") - before;
        worker.stream.seal().unwrap();
        let all = probe.calls("record") - before;
        block_on(worker.stream.synchronize()).unwrap();
        site.assert_sound();
        (unasked, all)
    };
    assert_eq!(records(Sealing::EveryFree), (FREES, FREES));
    // The free that passes the bound seals: one in 17, or fewer where frees come close.
    let (unasked, all) = records(Sealing::Spaced(16 * BYTES));
    assert!((1..=FREES / 17).contains(&unasked), "{unasked} events");
    assert_eq!(all, unasked + 1);
    assert_eq!(records(Sealing::OnDemand), (0, 1));
}

/// Growth by a factor, up to the capacity.
pub(crate) fn pool_grows_by_a_factor<B: Bench>() {
    let (site, probe) = Site::<B>::probed(24 * MIB, |builder| {
        builder.tuning(|tuning| {
            tuning.initial_size = 4 * MIB;
            tuning.growth = GrowBy::Factor(2.0);
            tuning.lane_bytes = 0;
        })
    });
    let worker = site.worker();
    let mut blocks = Vec::new();
    for held in [4, 8, 16, 16, 24, 24] {
        blocks.push(worker.take(4 * MIB));
        assert_eq!(probe.held(), held * MIB);
    }
    worker.take_nothing(4 * MIB);
    blocks.iter().for_each(|block| worker.fill(block, 1));
    end(&site, &worker, blocks);
}

/// Scattered free memory is mapped together, or more is taken. If there is no more, it is mapped together (or released
/// for as much) whatever the setting. Memory in use stays as it is.
pub(crate) fn free_memory_is_moved_or_more_is_taken<B: Bench>() {
    for (remapping, capacity, held) in [
        (Remapping::Always, 32, 16),
        (Remapping::default(), 32, 16),
        (Remapping::Never, 32, 24),
        (Remapping::Never, 16, 16),
    ] {
        let (site, probe) = Site::<B>::probed(capacity * MIB, |builder| {
            builder
                .tuning(|tuning| {
                    tuning.remapping = remapping;
                    tuning.lane_bytes = 0;
                })
                .chunk_bytes(2 * MIB)
        });
        let worker = site.worker();
        let blocks: Vec<_> = (0..8).map(|_| worker.take(2 * MIB)).collect();
        blocks.iter().for_each(|block| worker.fill(block, 1));
        let kept: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect();
        worker.settle();
        let whole = worker.take(8 * MIB);
        worker.use_up(&whole, 2);
        let is_moved = site.is_virtual() || capacity == 16;
        let held = if is_moved { held } else { 24 };
        assert_eq!(probe.held(), held * MIB, "{remapping:?}");
        drop(whole);
        end(&site, &worker, kept);
    }
}
