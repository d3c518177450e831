//! A stream's own figures.

use super::*;
use weirpool_observe::{Record as _, Recorded as _};

#[test]
fn a_stream_has_figures_of_its_own() {
    let (device, pool, [(work, a), (_, b)]) = set_up(64 * MIB);
    let large = pool.try_allocate(&a, 8 * MIB).unwrap();
    let small = pool.try_allocate(&a, 1000).unwrap();
    let others = pool.try_allocate(&b, MIB).unwrap();
    let figures = a.statistics();
    assert_eq!(figures.stream, a.id());
    assert_eq!(figures.used.current, 8 * MIB + 1024);
    assert_eq!(figures.lost_to_rounding, 24);
    let found = (figures.allocations, figures.frees, figures.lane_hits);
    assert_eq!(found, (2, 0, 0));

    use_block(&work, &large, us(100));
    drop((large, small));
    let figures = a.statistics();
    let found = (figures.used.current, figures.used.high);
    assert_eq!(found, (0, 8 * MIB + 1024));
    let found = (figures.pending, figures.cached_in_lane);
    assert_eq!(found, (8 * MIB + 1024, 1024));
    assert_eq!(figures.lost_to_rounding, 0);
    assert_eq!(b.statistics().pending, 0);

    a.seal().unwrap();
    device.advance(us(100));
    pool.maintain().reap().unwrap();
    let figures = a.statistics();
    assert_eq!((figures.pending, figures.latency), (0, us(100)));
    let by_stream = pool.inspect().statistics_by_stream();
    assert_eq!(by_stream[0], figures);
    let used: u64 = by_stream.iter().map(|of| of.used.current).sum();
    assert_eq!(used, pool.inspect().statistics().used.current);
    drop(others);
}

/// Memory that is pending on two streams is pending on each.
#[test]
fn memory_used_on_two_streams_is_pending_on_both() {
    let (device, pool, [(work, a), (other, b)]) = set_up(64 * MIB);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    b.record_use(Unordered::UntilFreed(&block)).unwrap();
    run(&work, us(10));
    run(&other, us(20));
    drop(block);
    let pending = |stream: &Stream| stream.statistics().pending / MIB;
    assert_eq!((pending(&a), pending(&b)), (8, 8));
    assert_eq!(figures(&pool).pending.current, 8 * MIB, "and counted once");
    device.advance(us(10));
    pool.maintain().reap().unwrap();
    assert_eq!((pending(&a), pending(&b)), (0, 8));
}

#[test]
fn named_stream_is_shown_with_its_name() {
    let device = manual();
    let pool = builder(&device, 64 * MIB).history(100).made();
    let stream = pool.register(&device.create_stream()).unwrap();
    assert_eq!(
        (stream.name(), format!("{stream:?}").as_str()),
        (None, "Stream(S1)")
    );
    let stream = stream.named("decode");
    let clone = stream.clone().named("a later name");
    assert_eq!(clone.name(), Some("decode"), "the first name stays");
    assert_eq!(format!("{stream:?}"), "Stream(decode (S1))");
    let block = pool.try_allocate(&stream, MIB).unwrap();
    assert_eq!(stream.statistics().name.as_deref(), Some("decode"));
    let by_stream = pool.inspect().statistics_by_stream();
    assert_eq!(by_stream[0].name.as_deref(), Some("decode"));
    let history = pool.history().to_string();
    assert!(history.contains("allocated 1.0 MiB"), "{history}");
    assert!(history.contains(" on decode (S1) "), "{history}");
    let snapshot = pool.inspect().snapshot().to_string();
    assert!(
        snapshot.contains("used     decode (S1) grown"),
        "{snapshot}"
    );
    drop(block);
    let snapshot = pool.inspect().snapshot().to_string();
    assert!(snapshot.contains("waits for decode (S1)"), "{snapshot}");
}

/// Each free counts, although neighbours become one block. The blocks fill their chunks, so that none is free beside them.
#[test]
fn neighbours_that_merge_are_counted_one_by_one() {
    for device in devices() {
        for lane_bytes in [0, 1 << 20] {
            let pool = tuned(&device, 64 * MIB, |tuning| tuning.lane_bytes = lane_bytes);
            let [(work, a), (_, b)] = streams(&device, &pool);
            let take = || pool.try_allocate(&a, 512).unwrap();
            let blocks: Vec<_> = (0..8192).map(|_| take()).collect();
            run(&work, us(10));
            drop(blocks);
            let count = || pool.inspect().pending_blocks(&a);
            assert_eq!((count(), pool.inspect().pending_blocks(&b)), (8192, 0));
            pool.inspect().check().unwrap();
            let again = [(); 100].map(|()| take());
            assert_eq!(count(), 8092);
            drop(again);
            assert_eq!(count(), 8192);
            device.advance(us(10));
            now(a.synchronize()).unwrap();
            pool.maintain().reap().unwrap();
            assert_eq!(count(), 0);
        }
    }
}

/// On virtual and on plain memory: blocks in the heap, in the lane, used on two streams, and of a foreign pool.
#[test]
fn pending_blocks_are_counted_by_stream() {
    for device in devices() {
        let (pool, elsewhere) = (pool(&device, 64 * MIB), pool(&device, 64 * MIB));
        let [(work, a), (other, b)] = streams(&device, &pool);
        let counts = || [&a, &b].map(|stream| pool.inspect().pending_blocks(stream));
        assert_eq!(counts(), [0, 0]);
        let take = |bytes| pool.try_allocate(&a, bytes).unwrap();
        let (large, both, small) = (take(8 * MIB), take(9 * MIB), take(512));
        b.record_use(Unordered::UntilFreed(&both)).unwrap();
        run(&work, us(10));
        run(&other, us(20));
        drop((large, both, small));
        assert_eq!(counts(), [3, 1]);
        assert_eq!(elsewhere.inspect().pending_blocks(&a), 0);
        // The stream itself reuses the memory, and frees it again.
        let small = take(512);
        assert_eq!(counts(), [2, 1]);
        drop(small);
        let kept: Vec<_> = (0..20).map(|_| take(512)).collect();
        drop(kept);
        assert_eq!(counts(), [22, 1]);

        for seal in [&a, &b] {
            seal.seal().unwrap();
        }
        device.advance(us(10));
        pool.maintain().reap().unwrap();
        // One still waits for the other stream.
        assert_eq!(counts(), [0, 1]);
        assert_eq!(a.statistics().pending, 0);
        device.advance(us(10));
        pool.maintain().reap().unwrap();
        assert_eq!(counts(), [0, 0]);
    }
}

/// Given when the device made it, or later.
#[test]
fn stream_name_is_in_every_report() {
    let device = manual();
    let pool = builder(&device, 64 * MIB).history(100).made();
    let decode = pool
        .register(&device.create_stream_named("decode"))
        .unwrap();
    let encode = pool
        .register(&device.create_stream())
        .unwrap()
        .named("encode");
    for (stream, name) in [(&decode, "decode"), (&encode, "encode")] {
        assert_eq!(stream.name(), Some(name));
        assert_eq!(stream.statistics().name.as_deref(), Some(name));
        let label = format!("{name} ({})", stream.id());
        let block = pool.try_allocate(stream, MIB).unwrap();
        let reports = [
            pool.inspect().snapshot().to_string(),
            pool.history().to_string(),
            format!("{stream:?}"),
            format!("{block:?}"),
        ];
        for report in reports {
            assert!(report.contains(&label), "{report}");
        }
    }
}
