//! The pool's statistics.

use crate::bench::Bench;
use crate::common::{MIB, not_ready};
use crate::site::{Site, Worker, eventually};
use futures::executor::block_on;
use weirpool::{Source, Statistics, StatisticsScope, Tag};
use weirpool_compat::{Attribute, AttributeError};

fn assert_sum(statistics: &Statistics) {
    let Statistics {
        free,
        used,
        pending,
        reserved,
        moving,
        ..
    } = statistics;
    let found = free + used.current + pending.current + moving;
    assert_eq!(found, reserved.current);
    for level in [used, pending, reserved] {
        assert!(level.high >= level.current, "{level:?}");
    }
}

/// CUDA and HIP `reserved` and `used`: free, used and pending bytes add up to the reserved ones, and have the
/// right values.
pub(crate) fn statistics_add_up_in_an_idle_pool<B: Bench>() {
    let (site, probe) = Site::<B>::probed(64 * MIB, |builder| builder);
    let worker = site.worker();
    let blocks: Vec<_> = (1..20).map(|n| worker.take(n * 100_000)).collect();
    let used = site.pool.inspect().statistics();
    assert_sum(&used);
    let sizes = blocks.iter().map(|block| block.size()).sum::<u64>();
    let found = (used.used.current, used.reserved.current);
    assert_eq!(found, (sizes, probe.held()));
    let gate = worker.use_until_opened(&blocks[0], 1);
    drop(blocks);
    let pending = site.pool.inspect().statistics();
    assert_sum(&pending);
    assert_eq!((pending.used.current, pending.pending.current), (0, sizes));
    assert_eq!(pending.hits.total(), 19);
    gate.open();
    worker.settle();
    assert_eq!(
        site.pool.inspect().statistics(),
        pending,
        "reading reaps nothing"
    );
    block_on(worker.stream.synchronize()).unwrap();
    let free = site.pool.inspect().statistics();
    assert_sum(&free);
    assert_eq!((free.pending.current, free.free), (0, probe.held()));
    site.assert_sound();
}

/// High-water marks are reset to the current values, not to zero.
pub(crate) fn high_water_marks_are_kept_and_reset<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let kept = worker.take(8 * MIB);
    drop(worker.take(16 * MIB));
    block_on(worker.stream.synchronize()).unwrap();
    let _ = site.pool.trim_to(0).unwrap();
    let high = |s: &Statistics| [s.used.high, s.reserved.high].map(|bytes| bytes / MIB);
    let current = |s: &Statistics| [s.used.current, s.reserved.current].map(|bytes| bytes / MIB);
    let before = site.pool.inspect().statistics();
    assert_eq!((high(&before), current(&before)), ([24, 24], [8, 8]));
    site.pool.inspect().reset_high_water_marks();
    let after = site.pool.inspect().statistics();
    assert_eq!((high(&after), current(&after)), ([8, 8], [8, 8]));
    assert_eq!(after.hits, before.hits);
    drop(kept);
    site.assert_conserved();
}

/// RMM `UntrackedDeallocation`: no count falls below zero, in whichever order blocks are freed.
pub(crate) fn used_bytes_are_those_of_live_blocks<B: Bench>() {
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
        assert_eq!(site.pool.inspect().statistics().used.current, sizes);
        if random.u8(..) < 20 {
            site.pool.inspect().reset_high_water_marks();
        }
        assert_sum(&site.pool.inspect().statistics());
    }
    drop(live);
    site.assert_conserved();
}

/// Every grant is counted once, by its source.
pub(crate) fn grants_are_counted_by_their_source<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [first, second] = site.workers();
    let sources =
        [Source::Grown, Source::SameStream].map(|source| drop(first.take_from(source, 8 * MIB)));
    drop(second.take(8 * MIB));
    drop(second.take(MIB));
    drop(second.take_from(Source::Lane, MIB));
    let hits = site.pool.inspect().statistics().hits;
    assert_eq!(hits.total(), sources.len() as u64 + 3);
    assert_eq!(hits.of(Source::Lane), 1);
    assert_eq!(hits.of(Source::Grown), 1);
    assert_eq!(hits.total(), site.pool.inspect().statistics().allocations);
}

/// Umpire `getReleasableSize`, `getBlocksInPool`, `getLargestAvailableBlock`, `getAllocationCount`: the counts of
/// blocks and chunks are right.
pub(crate) fn releasable_bytes_are_released_by_a_trim<B: Bench>() {
    let (site, probe) = Site::<B>::probed(64 * MIB, |builder| builder);
    let worker = site.worker();
    let held = || {
        let taken = probe.calls("create") + probe.calls("allocate");
        taken - probe.calls("destroy") - probe.calls("free")
    };
    let [first, middle, last] = [4, 8, 4].map(|mib| worker.take_from(Source::Grown, mib * MIB));
    let figures = site.pool.inspect().statistics();
    assert_eq!((figures.live_blocks, figures.chunks), (3, held()));
    let found = (figures.releasable_chunks, figures.releasable_bytes);
    assert_eq!(found, (0, 0));

    let gate = worker.use_until_opened(&middle, 1);
    drop(middle);
    let pending = site.pool.inspect().statistics();
    assert_eq!((pending.live_blocks, pending.releasable_bytes), (2, 0));
    gate.open();
    block_on(worker.stream.synchronize()).unwrap();
    let figures = site.pool.inspect().statistics();
    let told = [figures.largest_free, figures.releasable_bytes];
    assert_eq!(told.map(|bytes| bytes / MIB), [8, 8]);
    assert!((1..figures.chunks).contains(&figures.releasable_chunks));
    let found = site.pool.trim_to(0).unwrap().released;
    assert_eq!(found, figures.releasable_bytes);
    let trimmed = site.pool.inspect().statistics();
    assert_eq!(trimmed.chunks, figures.chunks - figures.releasable_chunks);
    let found = (trimmed.chunks, trimmed.reserved.current);
    assert_eq!(found, (held(), probe.held()));
    drop((first, last));
    assert_eq!(site.pool.inspect().statistics().live_blocks, 0);
    site.assert_sound();
}

/// CUDA and HIP `cudaMemPoolGetAttribute`: the attributes are the pool's figures, and setting 0 resets a high-water mark.
pub(crate) fn attributes_are_those_of_cuda_and_hip<B: Bench>() {
    const FIGURES: [Attribute; 4] = [
        Attribute::ReservedMemCurrent,
        Attribute::ReservedMemHigh,
        Attribute::UsedMemCurrent,
        Attribute::UsedMemHigh,
    ];
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let pool = &site.pool;
    let read = || FIGURES.map(|figure| figure.get(pool) / MIB);
    let kept = worker.take(8 * MIB);
    drop(worker.take(16 * MIB));
    block_on(worker.stream.synchronize()).unwrap();
    let _ = pool.trim_to(0).unwrap();
    assert_eq!(read(), [8, 24, 8, 24]);
    Attribute::ReservedMemHigh.set(pool, 0).unwrap();
    assert_eq!(read(), [8, 8, 8, 24], "one at a time");
    Attribute::UsedMemHigh.set(pool, 0).unwrap();
    assert_eq!(read(), [8, 8, 8, 8]);
    let attribute = Attribute::UsedMemHigh;
    let refused = attribute.set(pool, 5).unwrap_err();
    let value = 5;
    assert_eq!(refused, AttributeError::NotZero { attribute, value });
    assert!(Attribute::UsedMemCurrent.set(pool, 0).is_err());
    assert_eq!(Attribute::ReuseAllowOpportunistic.get(pool), 1);
    drop(kept);
    site.assert_conserved();
}

/// CUDA `ReservedMemHigh`, as a soft cap: the mark shows that it was exceeded, and memory above it is given back.
pub(crate) fn soft_cap_may_be_exceeded_and_memory_above_it_is_given_back<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let pool = &site.pool;
    let high = || Attribute::ReservedMemHigh.get(pool) / MIB;
    drop(worker.take(8 * MIB));
    Attribute::ReservedMemHigh.set(pool, 16 * MIB).unwrap();
    assert_eq!(high(), 16, "within the cap");
    let blocks = [worker.take(16 * MIB), worker.take(8 * MIB)];
    assert_eq!(high(), 24, "the pool exceeds it");
    assert_eq!(Attribute::ReservedMemCurrent.get(pool) / MIB, 24);
    drop(blocks);
    block_on(worker.stream.synchronize()).unwrap();
    eventually(|| Attribute::ReservedMemCurrent.get(pool) <= 16 * MIB);
    Attribute::ReservedMemHigh.set(pool, 0).unwrap();
    drop([worker.take(16 * MIB), worker.take(16 * MIB)]);
    block_on(worker.stream.synchronize()).unwrap();
    assert_eq!(high(), 32, "without a cap all is kept");
    assert_eq!(Attribute::ReservedMemCurrent.get(pool) / MIB, 32);
    site.assert_conserved();
}

/// CUDA, an example that sets `ReservedMemCurrent`: the pool reserves more, as far as it may, or gives free memory back.
pub(crate) fn reserved_bytes_can_be_set<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let reserved = Attribute::ReservedMemCurrent;
    let read = || reserved.get(&site.pool) / MIB;
    reserved.set(&site.pool, 32 * MIB).unwrap();
    assert_eq!(read(), 32);
    let block = worker.take(32 * MIB);
    assert_eq!((read(), block.source()), (32, Source::Free));
    reserved.set(&site.pool, 1 << 40).unwrap();
    assert_eq!(read(), 64, "the capacity");
    reserved.set(&site.pool, 0).unwrap();
    assert_eq!(read(), 32, "used memory stays");
    drop(block);
    site.assert_conserved();
}

/// RMM statistics `Nested`: each scope counts the events inside it, and the outer scope those of the inner one,
/// too.
pub(crate) fn scopes_nest<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let before = worker.take(MIB);
    let outer = site.pool.inspect().statistics_scope();
    let first = worker.take(8 * MIB);
    let inner = site.pool.inspect().statistics_scope();
    drop(worker.take(4 * MIB));
    drop((before, first));
    let [inner, outer] = [inner, outer].map(StatisticsScope::end);
    assert_eq!((inner.allocations, inner.frees), (1, 3));
    assert_eq!((inner.allocated / MIB, inner.freed / MIB), (4, 13));
    assert_eq!(inner.used.high / MIB, 13);
    assert_eq!(inner.retained(), 0, "more was freed than allocated");
    assert_eq!((outer.allocations, outer.frees), (2, 3));
    assert_eq!(outer.used.high / MIB, 13);
    assert_eq!((outer.used.current, outer.retained()), (0, 0));
    site.assert_conserved();
}

/// Scopes nest while other threads allocate and free, and streams are created and dropped.
pub(crate) fn scopes_of_several_threads_never_go_below_zero<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let outer = site.pool.inspect().statistics_scope();
    std::thread::scope(|threads| {
        for _ in 0..3 {
            let worker = site.worker();
            threads.spawn(move || {
                for round in 0..50 {
                    let scope = worker.pool.inspect().statistics_scope();
                    let block = worker.take(100_000 * (1 + round % 4));
                    let figures = scope.read();
                    assert!(figures.allocated >= block.size(), "{figures:?}");
                    assert_sum(&figures);
                    let high = figures.used.high;
                    assert!(high >= block.size() && high <= 64 * MIB);
                    drop(block);
                    let figures = scope.end();
                    assert_sum(&figures);
                    assert!(figures.frees >= 1);
                }
            });
        }
    });
    let figures = outer.end();
    assert_eq!((figures.allocations, figures.frees), (150, 150));
    assert_eq!((figures.allocated, figures.retained()), (figures.freed, 0));
    site.assert_conserved();
}

/// Counts by stream and by tag do not depend on the freeing thread, or the stream of the free.
pub(crate) fn streams_and_tags_are_counted_separately<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let [first, second] = site.workers();
    let tags = ["conformance: weights", "conformance: scratch"].map(Tag::new);
    let take = |worker: &Worker<B>, bytes, tag| {
        let allocation = site.pool.allocate(&worker.stream, bytes).tag(tag);
        allocation.try_now().unwrap()
    };
    let weights = take(&first, 3_000_000, tags[0]);
    let scratch = [1000, 4 * MIB].map(|bytes| take(&second, bytes, tags[1]));
    let sizes = scratch.iter().map(|block| block.size()).sum::<u64>();
    let of_stream = |worker: &Worker<B>| {
        let figures = worker.stream.statistics();
        (figures.used.current, figures.allocations, figures.frees)
    };
    let of_tag = |tag| {
        let figures = site.pool.tag(tag).statistics();
        (figures.used.current, figures.allocations, figures.frees)
    };
    assert_eq!(of_stream(&first), (weights.size(), 1, 0));
    assert_eq!(of_tag(tags[0]), of_stream(&first));
    assert_eq!(of_tag(tags[1]), (sizes, 2, 0));
    assert_eq!(of_stream(&second), of_tag(tags[1]));
    let figures = site.pool.inspect().statistics();
    assert_eq!(figures.used.current, weights.size() + sizes);
    let requested = 3_000_000 + 1000 + 4 * MIB;
    assert_eq!(figures.lost_to_rounding, figures.used.current - requested);

    let order = first.stream.clone();
    let freeing = std::thread::spawn(move || {
        for block in scratch {
            drop(block.deallocate_on(&order).unwrap());
        }
    });
    freeing.join().unwrap();
    drop(weights);
    assert_eq!([of_tag(tags[0]), of_tag(tags[1])], [(0, 1, 1), (0, 2, 2)]);
    assert_eq!(
        [of_stream(&first), of_stream(&second)],
        [(0, 1, 1), (0, 2, 2)]
    );
    assert_eq!(site.pool.tag(tags[1]).statistics().used.high, sizes);
    assert_eq!(site.pool.inspect().statistics().lost_to_rounding, 0);
    site.assert_conserved();
}

/// The times of waits and of pending frees are recorded. (The test `statistics` checks their values on a manual clock.)
pub(crate) fn waits_and_pending_frees_are_timed<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let tag = Tag::new("conformance: waits");
    let block = first.take(8 * MIB);
    let gate = first.use_until_opened(&block, 1);
    let waiting = not_ready(site.pool.allocate(&second.stream, MIB).tag(tag));
    assert_eq!(site.pool.tag(tag).statistics().waits.waiting, 1);
    drop(block);
    gate.open();
    drop(block_on(waiting).unwrap());

    let waits = site.pool.inspect().statistics().waits;
    assert_eq!((waits.waiting, waits.served), (0, 1));
    assert_eq!(site.pool.tag(tag).statistics().waits, waits);
    let of_stream = |worker: &Worker<B>| worker.stream.statistics().waits.served;
    assert_eq!((of_stream(&first), of_stream(&second)), (0, 1));
    let times = waits.times;
    assert_eq!((times.count(), times.total()), (1, times.longest()));
    assert_eq!(times.percentile(50.0), times.longest());
    let ages = site.pool.inspect().statistics().pending_ages;
    assert!(ages.count() >= 1 && ages.percentile(100.0) == ages.longest());
    site.assert_sound();
}
