//! Statistics between two moments.

use super::*;

/// Small blocks are served by the lane, so the heap does not see them.
#[test]
fn peak_of_a_scope_is_exact_on_one_stream() {
    let (_device, pool, stream) = site();
    let warm = several(&pool, &stream, 4, MIB);
    drop(warm);
    let scope = pool.inspect().statistics_scope();
    for _ in 0..3 {
        let first = pool.try_allocate(&stream, MIB).unwrap();
        let second = pool.try_allocate(&stream, 1000).unwrap();
        drop((first, second));
    }
    let figures = scope.end();
    assert_eq!(figures.used.current, 0);
    assert_eq!(figures.used.high, MIB + 1024);
    assert_eq!((figures.allocations, figures.frees), (6, 6));
    assert_eq!(figures.allocated, 3 * (MIB + 1024));
    assert_eq!(figures.freed, figures.allocated);
    assert_eq!(figures.hits.total(), 6);
    assert_eq!(figures.hits.of(Source::Lane), 5, "all but the first 1000");
}

/// Scopes that nest or overlap have a peak of their own each.
#[test]
fn scopes_nest_and_overlap() {
    let (_device, pool, stream) = site();
    let take = |mib| pool.try_allocate(&stream, mib * MIB).unwrap();
    let outer = pool.inspect().statistics_scope();
    drop(take(16));
    let kept = take(1);
    let inner = pool.inspect().statistics_scope();
    drop(take(4));
    let overlapping = pool.inspect().statistics_scope();
    let report = |scope: StatisticsScope| {
        let figures = scope.end();
        let mib = [figures.used.high, figures.retained()].map(|b| b / MIB);
        (figures.allocations, figures.frees, mib)
    };
    let inner = report(inner);
    drop(take(8));
    let told = [report(outer), inner, report(overlapping)];
    assert_eq!(told, [(4, 3, [16, 1]), (1, 1, [5, 0]), (1, 1, [9, 0])]);
    drop(kept);
}

/// In RMM, these counters fall below zero: a block that was allocated before a scope is freed in it.
#[test]
fn block_allocated_before_a_scope_may_be_freed_in_it() {
    let (_device, pool, stream) = site();
    let blocks = [4, 2].map(|mib| pool.try_allocate(&stream, mib * MIB).unwrap());
    let scope = pool.inspect().statistics_scope();
    drop(blocks);
    let small = pool.try_allocate(&stream, 512).unwrap();
    let figures = scope.read();
    assert_eq!((figures.frees, figures.freed), (2, 6 * MIB));
    assert_eq!((figures.retained(), figures.allocated), (0, 512));
    assert_eq!(figures.used.high, 6 * MIB);
    drop(small);
    assert_eq!(scope.end().frees, 3);
}

/// A scope counts a stream that is registered and dropped while the scope is open, and a stream that was dropped before
/// its lane was released.
#[test]
fn streams_that_come_and_go_count_for_open_scopes() {
    let (device, pool, first) = site();
    let early = pool.register(&device.create_stream()).unwrap();
    drop(pool.try_allocate(&early, 4096).unwrap());
    let scope = pool.inspect().statistics_scope();
    let late = pool.register(&device.create_stream()).unwrap();
    pool.inspect().reset_high_water_marks();
    drop(pool.try_allocate(&early, MIB).unwrap());
    drop(pool.try_allocate(&late, 2 * MIB).unwrap());
    pool.inspect().reset_high_water_marks();
    drop((early, late));
    pool.maintain().reap().unwrap();
    assert_eq!(
        pool.inspect().statistics_by_stream().len(),
        1,
        "the others are gone"
    );
    drop(pool.try_allocate(&first, 4 * MIB).unwrap());
    let figures = scope.end();
    assert_eq!((figures.allocations, figures.frees), (3, 3));
    assert_eq!(figures.allocated, 7 * MIB);
    assert!(
        (4 * MIB..=7 * MIB).contains(&figures.used.high),
        "{figures:?}"
    );
    let all = pool.inspect().statistics();
    assert_eq!((all.allocations, all.frees, all.live_blocks), (4, 4, 0));
    assert_eq!(all.hits.total(), 4);
}

#[test]
fn scope_counts_all_threads() {
    let (device, pool, _) = site();
    let scope = pool.inspect().statistics_scope();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let stream = pool.register(&device.create_stream()).unwrap();
            let pool = &pool;
            threads.spawn(move || {
                for _ in 0..100 {
                    let _block = pool.try_allocate(&stream, 64 << 10).unwrap();
                    let _inner = pool.inspect().statistics_scope().end();
                }
            });
        }
    });
    let figures = scope.end();
    assert_eq!((figures.allocations, figures.frees), (400, 400));
    assert_eq!(figures.retained(), 0);
    assert!((64 << 10..=4 * (64 << 10)).contains(&figures.used.high));
}

#[test]
fn scope_counts_its_waits() {
    let (device, pool, stream) = site();
    let scope = pool.inspect().statistics_scope();
    wait_for(&device, &pool, &stream, None, 30);
    let inner = pool.inspect().statistics_scope();
    wait_for(&device, &pool, &stream, None, 50);
    let [scope, inner] = [scope, inner].map(StatisticsScope::end);
    assert_eq!((inner.waits.served, inner.waits.times.total()), (1, us(50)));
    assert_eq!((scope.waits.served, scope.waits.times.total()), (2, us(80)));
}
