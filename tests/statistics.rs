//! What a pool tells of itself, on a clock that is told when to move: where the figures are known to the
//! nanosecond and to the byte. What holds on any device is in `conformance`.

mod common;

use common::*;
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::*;

/// A pool of 64 MiB with one stream.
fn site() -> (SimDevice, Pool, Stream) {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (_, stream) = stream(&device, &pool);
    (device, pool, stream)
}

// ---- scopes ------------------------------------------------------------------------------------------

/// Small blocks come and go through the lane, where the ledger sees nothing of them.
#[test]
fn the_peak_of_a_scope_is_exact_on_one_stream() {
    let (_device, pool, stream) = site();
    let warm: Vec<_> = (0..4)
        .map(|_| pool.try_allocate(&stream, MIB).unwrap())
        .collect();
    drop(warm);
    let scope = pool.statistics_scope();
    for _ in 0..3 {
        let first = pool.try_allocate(&stream, MIB).unwrap();
        let second = pool.try_allocate(&stream, 1000).unwrap();
        drop((first, second));
    }
    let figures = scope.end();
    assert_eq!((figures.used_before, figures.used_after), (0, 0));
    assert_eq!(figures.peak, MIB + 1024);
    assert_eq!((figures.allocations, figures.frees), (6, 6));
    assert_eq!(figures.allocated, 3 * (MIB + 1024));
    assert_eq!(figures.freed, figures.allocated);
    assert_eq!(figures.hits.total(), 6);
    assert_eq!(figures.hits.of(Rung::Lane), 5, "all but the first 1000");
}

/// Nested ones, and ones that overlap, each with a peak of its own.
#[test]
fn scopes_nest_and_overlap() {
    let (_device, pool, stream) = site();
    let take = |mib| pool.try_allocate(&stream, mib * MIB).unwrap();
    let outer = pool.statistics_scope();
    drop(take(16));
    let kept = take(1);
    let inner = pool.statistics_scope();
    drop(take(4));
    let overlapping = pool.statistics_scope();
    let inner = inner.end();
    drop(take(8));
    let [outer, overlapping] = [outer, overlapping].map(StatisticsScope::end);
    let told = [outer, inner, overlapping].map(|figures| {
        let mib = [figures.used_before, figures.peak, figures.retained()].map(|b| b / MIB);
        (figures.allocations, figures.frees, mib)
    });
    assert_eq!(
        told,
        [(4, 3, [0, 16, 1]), (1, 1, [1, 5, 0]), (1, 1, [1, 9, 0])]
    );
    drop(kept);
}

/// RMM's counters go below zero here: what was allocated before a scope is freed in it.
#[test]
fn what_was_allocated_before_a_scope_may_be_freed_in_it() {
    let (_device, pool, stream) = site();
    let blocks = [4, 2].map(|mib| pool.try_allocate(&stream, mib * MIB).unwrap());
    let scope = pool.statistics_scope();
    drop(blocks);
    let small = pool.try_allocate(&stream, 512).unwrap();
    let figures = scope.read();
    assert_eq!((figures.frees, figures.freed), (2, 6 * MIB));
    assert_eq!((figures.retained(), figures.allocated), (0, 512));
    assert_eq!((figures.peak, figures.peak_growth()), (6 * MIB, 0));
    drop(small);
    assert_eq!(scope.end().frees, 3);
}

/// A stream that comes and goes while a scope is open counts for it, and so does one that went before
/// its lane was let go.
#[test]
fn streams_that_come_and_go_count_for_open_scopes() {
    let (device, pool, first) = site();
    let early = pool.register(&device.create_stream()).unwrap();
    drop(pool.try_allocate(&early, 4096).unwrap());
    let scope = pool.statistics_scope();
    let late = pool.register(&device.create_stream()).unwrap();
    pool.reset_high_water_marks();
    drop(pool.try_allocate(&early, MIB).unwrap());
    drop(pool.try_allocate(&late, 2 * MIB).unwrap());
    pool.reset_high_water_marks();
    drop((early, late));
    pool.harvest().unwrap();
    assert_eq!(pool.statistics_by_stream().len(), 1, "the others are gone");
    drop(pool.try_allocate(&first, 4 * MIB).unwrap());
    let figures = scope.end();
    assert_eq!((figures.allocations, figures.frees), (3, 3));
    assert_eq!(figures.allocated, 7 * MIB);
    assert!((4 * MIB..=7 * MIB).contains(&figures.peak), "{figures:?}");
    let all = pool.statistics();
    assert_eq!((all.allocations, all.frees, all.live_blocks), (4, 4, 0));
    assert_eq!(all.hits.total(), 4);
}

#[test]
fn a_scope_counts_what_all_threads_do() {
    let (device, pool, _) = site();
    let scope = pool.statistics_scope();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let stream = pool.register(&device.create_stream()).unwrap();
            let pool = &pool;
            threads.spawn(move || {
                for _ in 0..100 {
                    let _block = pool.try_allocate(&stream, 64 << 10).unwrap();
                    let _inner = pool.statistics_scope().end();
                }
            });
        }
    });
    let figures = scope.end();
    assert_eq!((figures.allocations, figures.frees), (400, 400));
    assert_eq!(figures.retained(), 0);
    assert!((64 << 10..=4 * (64 << 10)).contains(&figures.peak));
}

#[test]
fn a_scope_tells_who_waited_in_it() {
    let (device, pool, stream) = site();
    let scope = pool.statistics_scope();
    wait_for(&device, &pool, &stream, None, 30);
    let inner = pool.statistics_scope();
    wait_for(&device, &pool, &stream, None, 50);
    let [scope, inner] = [scope, inner].map(StatisticsScope::end);
    assert_eq!((inner.waits, inner.waited), (1, us(50)));
    assert_eq!((scope.waits, scope.waited), (2, us(80)));
}

/// Has the pool full for some microseconds, while a request of half of it waits.
fn wait_for(device: &SimDevice, pool: &Pool, stream: &Stream, tag: Option<Tag>, micros: u64) {
    let all = pool.try_allocate(stream, pool.capacity()).unwrap();
    let mut waiting = pool.allocate(stream, pool.capacity() / 2);
    if let Some(tag) = tag {
        waiting = waiting.tag(tag);
    }
    assert!(poll(&mut waiting).is_pending());
    device.advance(us(micros));
    drop(all);
    drop(now(waiting).unwrap());
}

// ---- tags --------------------------------------------------------------------------------------------

#[test]
fn a_tag_has_what_was_allocated_for_it() {
    let (_device, pool, stream) = site();
    let [decode, prefill] = ["tag test: decode", "tag test: prefill"].map(Tag::new);
    let take = |tag, bytes| pool.allocate(&stream, bytes).tag(tag).try_now().unwrap();
    assert_eq!(pool.statistics_of_tag(decode).allocations, 0);
    let blocks = [1000, 5000].map(|bytes| take(decode, bytes));
    drop(take(decode, 8 * MIB));
    let other = take(prefill, 512);
    let untagged = pool.try_allocate(&stream, MIB).unwrap();
    assert_eq!((blocks[0].tag(), untagged.tag()), (Some(decode), None));

    let figures = pool.statistics_of_tag(decode);
    let level = |current, high| {
        let level = figures.used;
        assert_eq!((level.current, level.high), (current, high));
    };
    level(1024 + 5120, 1024 + 5120 + 8 * MIB);
    assert_eq!((figures.allocations, figures.frees), (3, 1));
    assert_eq!(pool.statistics_of_tag(prefill).used.current, 512);
    let tags: Vec<_> = pool.statistics_by_tag().iter().map(|of| of.tag).collect();
    assert!(tags.len() == 2 && tags.contains(&decode) && tags.contains(&prefill));

    drop(other);
    std::thread::spawn(move || drop(blocks)).join().unwrap();
    pool.reset_high_water_marks();
    let figures = pool.statistics_of_tag(decode);
    assert_eq!((figures.used.current, figures.used.high), (0, 0));
    assert_eq!((figures.allocations, figures.frees), (3, 3));
}

/// A deallocation that is awaited, one in the order of further streams, and one that is refused.
#[test]
fn every_way_to_free_credits_the_tag() {
    let (device, pool, stream) = site();
    let (_, further) = common::stream(&device, &pool);
    let foreign = {
        let other = common::pool(&device, 8 * MIB);
        common::stream(&device, &other).1
    };
    let tag = Tag::new("tag test: ways");
    let take = || pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    let used = || pool.statistics_of_tag(tag).used.current / MIB;
    let awaited = take().deallocate();
    assert_eq!(used(), 0, "used until it is freed, not until that is over");
    drop(awaited);
    drop(take().deallocate_on(&further).unwrap());
    assert_eq!(used(), 0);
    let refused = take().deallocate_on(&foreign).unwrap_err();
    assert_eq!(used(), 1);
    drop(refused);
    let shared = take();
    shared.used_on(&further).unwrap();
    drop(shared);
    assert_eq!(used(), 0);
    assert_eq!(pool.statistics_of_tag(tag).frees, 4);
    assert_eq!(pool.statistics_of(&stream).unwrap().frees, 4);
    assert_eq!(pool.statistics_of(&further).unwrap().frees, 0);
}

/// A grant that nobody takes, and a request that fails, are on nobody's account.
#[test]
fn what_is_not_taken_is_not_charged() {
    let (_device, pool, stream) = site();
    let tag = Tag::new("tag test: untaken");
    let all = pool.try_allocate(&stream, 64 * MIB).unwrap();
    assert!(pool.allocate(&stream, MIB).tag(tag).try_now().is_err());
    let mut head = pool.allocate(&stream, 64 * MIB).tag(tag);
    let mut next = pool.allocate(&stream, MIB);
    assert!(poll(&mut head).is_pending() && poll(&mut next).is_pending());
    assert_eq!(pool.statistics_of_tag(tag).waits.waiting, 1);
    drop(all);
    assert!(poll(&mut next).is_pending(), "served the head");
    drop(head);
    drop(now(next).unwrap());
    let figures = pool.statistics_of_tag(tag);
    assert_eq!((figures.used.high, figures.allocations), (0, 0));
    assert_eq!((figures.waits.waiting, figures.waits.served), (0, 1));
    let all = pool.statistics();
    assert_eq!((all.allocations, all.frees), (2, 2));
    assert!(all.hits.total() > 2, "grants that passed on are hits");
}

#[test]
fn waits_are_counted_for_pool_stream_and_tag() {
    let (device, pool, stream) = site();
    let (_, idle) = common::stream(&device, &pool);
    let tag = Tag::new("tag test: waits");
    wait_for(&device, &pool, &stream, Some(tag), 40);
    wait_for(&device, &pool, &stream, None, 70);
    let full = pool.try_allocate(&stream, 64 * MIB).unwrap();
    let mut given_up = pool.allocate(&stream, MIB).tag(tag);
    assert!(poll(&mut given_up).is_pending());
    drop((given_up, full));

    let of_tag = pool.statistics_of_tag(tag).waits;
    assert_eq!((of_tag.served, of_tag.abandoned), (1, 1));
    assert_eq!((of_tag.longest, of_tag.total), (us(40), us(40)));
    let of_pool = pool.statistics().waits;
    assert_eq!(pool.statistics_of(&stream).unwrap().waits, of_pool);
    assert_eq!((of_pool.served, of_pool.longest), (2, us(70)));
    assert_eq!(
        pool.statistics_of(&idle).unwrap().waits,
        WaitStatistics::default()
    );
}

#[test]
fn tags_are_counted_by_pool() {
    let (device, pool, stream) = site();
    let other = common::pool(&device, 8 * MIB);
    let tag = Tag::new("tag test: pools");
    let _block = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    assert_eq!(other.statistics_of_tag(tag).used.current, 0);
    assert!(other.statistics_by_tag().is_empty());
}

// ---- streams -----------------------------------------------------------------------------------------

#[test]
fn a_stream_has_figures_of_its_own() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let large = pool.try_allocate(&a, 8 * MIB).unwrap();
    let small = pool.try_allocate(&a, 1000).unwrap();
    let others = pool.try_allocate(&b, MIB).unwrap();
    let figures = pool.statistics_of(&a).unwrap();
    assert_eq!(figures.stream, a.id());
    assert_eq!(figures.used.current, 8 * MIB + 1024);
    assert_eq!(figures.lost_to_rounding, 24);
    assert_eq!(
        (figures.allocations, figures.frees, figures.lane_hits),
        (2, 0, 0)
    );

    use_block(&work, &large, us(100));
    drop((large, small));
    let figures = pool.statistics_of(&a).unwrap();
    assert_eq!(
        (figures.used.current, figures.used.high),
        (0, 8 * MIB + 1024)
    );
    assert_eq!(
        (figures.pending, figures.kept_by_lane),
        (8 * MIB + 1024, 1024)
    );
    assert_eq!(figures.lost_to_rounding, 0);
    assert_eq!(pool.statistics_of(&b).unwrap().pending, 0);

    a.seal().unwrap();
    device.advance(us(100));
    pool.harvest().unwrap();
    let figures = pool.statistics_of(&a).unwrap();
    assert_eq!((figures.pending, figures.latency), (0, us(100)));
    let by_stream = pool.statistics_by_stream();
    assert_eq!(by_stream[0], figures);
    let used: u64 = by_stream.iter().map(|of| of.used.current).sum();
    assert_eq!(used, pool.statistics().used.current);
    drop(others);
}

#[test]
fn a_stream_of_another_pool_has_no_figures_here() {
    let (device, pool, _) = site();
    let (_, foreign) = stream(&device, &common::pool(&device, 8 * MIB));
    assert_eq!(
        pool.statistics_of(&foreign).unwrap_err(),
        StreamError::ForeignPool
    );
}

/// What is pending on two streams is pending on each.
#[test]
fn memory_used_on_two_streams_is_pending_on_both() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let [(work, a), (other, b)] = [(); 2].map(|()| stream(&device, &pool));
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    block.used_on(&b).unwrap();
    run(&work, us(10));
    run(&other, us(20));
    drop(block);
    let pending = |stream| pool.statistics_of(stream).unwrap().pending / MIB;
    assert_eq!((pending(&a), pending(&b)), (8, 8));
    assert_eq!(
        pool.statistics().pending.current,
        8 * MIB,
        "and counted once"
    );
    device.advance(us(10));
    pool.harvest().unwrap();
    assert_eq!((pending(&a), pending(&b)), (0, 8));
}

// ---- levels ------------------------------------------------------------------------------------------

/// Memory that lanes kept does not count as used in the high, as long as one stream is used.
#[test]
fn the_high_of_used_is_exact_on_one_stream() {
    let (device, pool, stream) = site();
    for bytes in [MIB, 512 << 10, 256 << 10, 3000] {
        drop(pool.try_allocate(&stream, bytes).unwrap());
    }
    let figures = pool.statistics();
    assert_eq!((figures.used.current, figures.used.high), (0, MIB));
    assert!(figures.kept_by_lanes > MIB);
    // With two it is a bound: their highs may have been at different times.
    let (_, second) = common::stream(&device, &pool);
    drop(pool.try_allocate(&second, 128 << 10).unwrap());
    let high = pool.statistics().used.high;
    assert!((MIB..=MIB + (128 << 10)).contains(&high), "{high}");
}

#[test]
fn free_memory_in_one_piece_is_not_fragmented() {
    let device = manual();
    let pool = builder(&device, 16 * MIB)
        .initial_size(16 * MIB)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    assert_eq!(
        pool.statistics().fragmentation(),
        0.0,
        "all free, in one piece"
    );
    let blocks: Vec<_> = (0..4)
        .map(|_| pool.try_allocate(&stream, 4 * MIB).unwrap())
        .collect();
    assert_eq!(pool.statistics().fragmentation(), 0.0, "nothing is free");
    let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
    for freed in [0, 2] {
        blocks[freed] = None;
    }
    now(stream.synchronize()).unwrap();
    assert_eq!(
        pool.statistics().fragmentation(),
        0.5,
        "two pieces of 4 MiB"
    );
    blocks[1] = None;
    now(stream.synchronize()).unwrap();
    assert_eq!(pool.statistics().fragmentation(), 0.0, "one of 12 MiB");
}

#[test]
fn attributes_have_the_values_of_the_statistics() {
    let device = manual();
    let reuse = Reuse {
        opportunistic: false,
        ..Reuse::ALL
    };
    let pool = builder(&device, 64 * MIB).reuse(reuse).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let kept = pool.try_allocate(&stream, 4 * MIB).unwrap();
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    now(stream.synchronize()).unwrap();
    pool.trim_to(0).unwrap();
    let read = |attribute| pool.attribute(attribute);
    use Attribute::*;
    let figures = [
        ReservedMemCurrent,
        ReservedMemHigh,
        UsedMemCurrent,
        UsedMemHigh,
    ];
    assert_eq!(figures.map(|figure| read(figure) / MIB), [4, 12, 4, 12]);
    let settings = [
        ReuseFollowEventDependencies,
        ReuseAllowOpportunistic,
        ReuseAllowInternalDependencies,
    ];
    assert_eq!(settings.map(read), [1, 0, 1]);

    pool.set_attribute(UsedMemHigh, 0).unwrap();
    assert_eq!(figures.map(|figure| read(figure) / MIB), [4, 12, 4, 4]);
    pool.set_attribute(ReservedMemHigh, 0).unwrap();
    assert_eq!(figures.map(|figure| read(figure) / MIB), [4, 4, 4, 4]);
    let refused = pool.set_attribute(UsedMemHigh, 1).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("UsedMemHigh can be set to 0 only")
    );
    assert_eq!(read(ReleaseThreshold), u64::MAX, "all is kept");
    pool.set_attribute(ReleaseThreshold, 32 * MIB).unwrap();
    assert_eq!(read(ReleaseThreshold), pool.release_threshold());
    for attribute in settings
        .into_iter()
        .chain([UsedMemCurrent, ReservedMemCurrent])
    {
        let refused = pool.set_attribute(attribute, 0).unwrap_err();
        assert_eq!(refused, AttributeError::ReadOnly { attribute });
    }
    drop(kept);
}

// ---- histograms --------------------------------------------------------------------------------------

#[test]
fn wait_times_have_percentiles() {
    let (device, pool, stream) = site();
    for micros in 1..=100 {
        wait_for(&device, &pool, &stream, None, micros);
    }
    let full = pool.try_allocate(&stream, 64 * MIB).unwrap();
    let mut given_up = pool.allocate(&stream, MIB);
    assert!(poll(&mut given_up).is_pending());
    drop((given_up, full));

    let times = pool.wait_times();
    assert_eq!(times.count(), 100, "those that were served");
    assert_eq!((times.longest(), times.total()), (us(100), us(5050)));
    assert_eq!(times.mean(), Duration::from_nanos(50_500));
    for percent in [1.0, 50.0, 90.0, 99.0, 100.0] {
        let (told, exact) = (times.percentile(percent), us(percent as u64));
        assert!(
            exact <= told && told <= exact + exact / 16,
            "{percent}: {told:?}"
        );
    }
    let counts: u64 = times.buckets().map(|bucket| bucket.count).sum();
    assert_eq!(counts, 100);
    wait_for(&device, &pool, &stream, None, 7);
    let last = pool.wait_times().since(&times);
    assert_eq!((last.count(), last.total()), (1, us(7)));
    assert!((us(7)..us(8)).contains(&last.longest()), "{last:?}");
}

/// The age runs from the free's event to its being seen complete; an event that covers no free has none.
#[test]
fn pending_ages_are_of_frees() {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    use_block(&work, &block, us(30));
    let event = stream.event().unwrap();
    drop(block);
    device.advance(us(80));
    pool.harvest().unwrap();
    assert!(event.is_complete().unwrap());
    let ages = pool.pending_ages();
    assert_eq!(
        (ages.count(), ages.total()),
        (1, us(80)),
        "seen late, but told so"
    );
    let small = pool.try_allocate(&stream, 4096).unwrap();
    drop(small);
    assert_eq!(pool.pending_ages().count(), 1, "not sealed yet");
    now(stream.synchronize()).unwrap();
    assert_eq!(pool.pending_ages().count(), 2);
}
