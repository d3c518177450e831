//! The pool's figures.

use crate::bench::Bench;
use crate::common::MIB;
use crate::site::Site;
use futures::executor::block_on;
use weirpool::{Rung, Statistics};

fn assert_sum(statistics: &Statistics) {
    let Statistics {
        free,
        used,
        pending,
        reserved,
        ..
    } = *statistics;
    assert_eq!(free + used.current + pending.current, reserved.current);
    for level in [used, pending, reserved] {
        assert!(level.high >= level.current, "{level:?}");
    }
}

/// [19] CUDA and HIP `reserved` and `used`: what is free, used and pending is what is reserved, and is
/// what it says.
pub(crate) fn figures_add_up_at_rest<B: Bench>() {
    let (site, probe) = Site::<B>::probed(64 * MIB, |builder| builder);
    let worker = site.worker();
    let blocks: Vec<_> = (1..20).map(|n| worker.take(n * 100_000)).collect();
    let used = site.pool.statistics();
    assert_sum(&used);
    let sizes = blocks.iter().map(|block| block.size()).sum::<u64>();
    assert_eq!(
        (used.used.current, used.reserved.current),
        (sizes, probe.held())
    );
    let gate = worker.use_until_opened(&blocks[0], 1);
    drop(blocks);
    let pending = site.pool.statistics();
    assert_sum(&pending);
    assert_eq!((pending.used.current, pending.pending.current), (0, sizes));
    assert_eq!(pending.hits.total(), 19);
    gate.open();
    worker.settle();
    assert_eq!(site.pool.statistics(), pending, "asking harvests nothing");
    block_on(worker.stream.synchronize()).unwrap();
    let free = site.pool.statistics();
    assert_sum(&free);
    assert_eq!((free.pending.current, free.free), (0, probe.held()));
    site.assert_sound();
}

/// [19] The high-water marks, and how they are reset: to the present figures, not to zero.
pub(crate) fn high_marks_are_kept_and_reset<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let kept = worker.take(8 * MIB);
    drop(worker.take(16 * MIB));
    block_on(worker.stream.synchronize()).unwrap();
    site.pool.trim_to(0).unwrap();
    let high = |s: &Statistics| [s.used.high, s.reserved.high].map(|bytes| bytes / MIB);
    let current = |s: &Statistics| [s.used.current, s.reserved.current].map(|bytes| bytes / MIB);
    let before = site.pool.statistics();
    assert_eq!((high(&before), current(&before)), ([24, 24], [8, 8]));
    site.pool.reset_high_water_marks();
    let after = site.pool.statistics();
    assert_eq!((high(&after), current(&after)), ([8, 8], [8, 8]));
    assert_eq!(after.hits, before.hits);
    drop(kept);
    site.assert_conserved();
}

/// [20] RMM `UntrackedDeallocation`: nothing is ever counted below zero, whatever order things end in.
pub(crate) fn nothing_is_freed_more_than_it_was_allocated<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [first, second] = site.workers();
    let mut random = fastrand::Rng::with_seed(20);
    let mut live = Vec::new();
    for _ in 0..200 {
        live.extend(first.try_take(random.u64(0..MIB)));
        if random.bool() && !live.is_empty() {
            let block = live.swap_remove(random.usize(..live.len()));
            drop(block.deallocate_on(&second.stream).unwrap());
        }
        let sizes: u64 = live
            .iter()
            .map(|block: &weirpool::Block| block.size())
            .sum();
        assert_eq!(site.pool.statistics().used.current, sizes);
        if random.u8(..) < 20 {
            site.pool.reset_high_water_marks();
        }
        assert_sum(&site.pool.statistics());
    }
    drop(live);
    site.assert_conserved();
}

/// Every grant is counted once, by where it came from.
pub(crate) fn grants_are_counted_by_their_rung<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [first, second] = site.workers();
    let rungs = [Rung::Grown, Rung::SameStream].map(|rung| drop(first.take_from(rung, 8 * MIB)));
    drop(second.take(8 * MIB));
    drop(second.take(MIB));
    drop(second.take_from(Rung::Lane, MIB));
    let hits = site.pool.statistics().hits;
    assert_eq!(hits.total(), rungs.len() as u64 + 3);
    assert_eq!(hits.of(Rung::Lane), 1);
    assert_eq!(hits.of(Rung::Grown), 1);
    let by_rung: u64 = Rung::ALL.iter().map(|rung| hits.of(*rung)).sum();
    assert_eq!(by_rung, hits.total());
}
