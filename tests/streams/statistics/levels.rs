//! Bytes by state, and their highs.

use super::*;

/// Memory that lanes kept does not count as used in the high, as long as one stream is used.
#[test]
fn the_high_of_used_is_exact_on_one_stream() {
    let (device, pool, stream) = site();
    for bytes in [MIB, 512 << 10, 256 << 10, 3000] {
        drop(pool.try_allocate(&stream, bytes).unwrap());
    }
    let figures = pool.inspect().statistics();
    assert_eq!((figures.used.current, figures.used.high), (0, MIB));
    assert!(figures.cached_in_lanes > MIB);
    // With two it is a bound: their highs may have been at different times.
    let (_, second) = crate::common::stream(&device, &pool);
    drop(pool.try_allocate(&second, 128 << 10).unwrap());
    let high = pool.inspect().statistics().used.high;
    assert!((MIB..=MIB + (128 << 10)).contains(&high), "{high}");
}

/// On one thread with several streams, the high of used bytes is above the true peak by no more than lanes cached, and
/// exact where they cache nothing.
#[test]
fn high_of_used_exceeds_the_peak_by_what_lanes_cached_at_most() {
    for device in devices() {
        for lane_bytes in [0, 1 << 20, 8 << 20] {
            let pool = tuned(&device, 64 * MIB, |tuning| tuning.lane_bytes = lane_bytes);
            let streams: [_; 4] = streams(&device, &pool);
            let mut random = fastrand::Rng::with_seed(lane_bytes);
            let mut live: Vec<Block> = Vec::new();
            let (mut peak, mut cached) = (0, 0);
            for step in 0..4_000 {
                if step % 1_000 == 999 {
                    live.clear();
                } else if live.len() > 40 || random.u8(..) < 120 && !live.is_empty() {
                    drop(live.swap_remove(random.usize(..live.len())));
                } else {
                    let (_, stream) = &streams[random.usize(..4)];
                    let bytes = 512 << random.u32(..10);
                    live.push(pool.try_allocate(stream, bytes).unwrap());
                }
                let figures = pool.inspect().statistics();
                peak = peak.max(figures.used.current);
                cached = cached.max(figures.cached_in_lanes);
                let high = figures.used.high;
                assert!((peak..=peak + cached).contains(&high), "{high} {peak}");
            }
            assert_eq!(cached == 0, lane_bytes == 0);
        }
    }
}

/// In an exact scope, caches are bypassed: the peak is that of the bytes that were in use at one moment, on any number of
/// streams and with reservations. Scopes nest, and the caches work again after the last one.
#[test]
fn peak_of_an_exact_scope_is_exact_on_many_streams() {
    for (device, sharded) in devices()
        .into_iter()
        .flat_map(|it| [(it.clone(), false), (it, true)])
    {
        let pool = pool(&device, 64 * MIB);
        let streams: [_; 4] = streams(&device, &pool);
        for (_, stream) in streams.iter().filter(|_| sharded) {
            weirpool::testing::give_threads_caches(stream);
        }
        let reservation = pool.reserve(4 * MIB).try_now().unwrap();
        let mut random = fastrand::Rng::with_seed(u64::from(sharded));
        let mut live: Vec<Block> = Vec::new();
        let mut step = |live: &mut Vec<Block>| {
            if live.len() > 40 || random.u8(..) < 120 && !live.is_empty() {
                drop(live.swap_remove(random.usize(..live.len())));
                return;
            }
            let (_, stream) = &streams[random.usize(..4)];
            let bytes = 512 << random.u32(..10);
            live.push(match random.u8(..4) {
                0 => reservation
                    .allocate(stream, bytes)
                    .unwrap_or_else(|_| pool.try_allocate(stream, bytes).unwrap()),
                _ => pool.try_allocate(stream, bytes).unwrap(),
            });
        };
        // Caches are warm when the first scope begins.
        (0..500).for_each(|_| step(&mut live));
        live.clear();
        let outer = pool.inspect().exact_statistics_scope();
        let mut peaks = [pool.inspect().statistics().used.current; 2];
        for _ in 0..4 {
            let inner = pool.inspect().exact_statistics_scope();
            peaks[1] = pool.inspect().statistics().used.current;
            for _ in 0..300 {
                step(&mut live);
                let used = pool.inspect().statistics().used.current;
                peaks = peaks.map(|peak| peak.max(used));
                assert_eq!(inner.read().used.high, peaks[1]);
            }
            live.truncate(live.len() / 2);
            drop(inner);
        }
        assert_eq!(outer.end().used.high, peaks[0]);
        live.clear();
        let hits = || pool.inspect().statistics().hits.of(Source::Lane);
        let (_, stream) = &streams[0];
        let before = hits();
        (0..3).for_each(|_| drop(pool.try_allocate(stream, 4096).unwrap()));
        assert!(hits() > before, "the caches work again");
    }
}

/// Threads on streams of their own: none sees its blocks counted twice, or kept as used by a cache.
#[test]
fn exact_peak_of_threads_is_at_most_what_they_held() {
    for device in devices() {
        let pool = builder(&device, 64 * MIB).made();
        let scope = pool.inspect().exact_statistics_scope();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let (_, stream) = stream(&device, &pool);
                    for round in 0..200 {
                        drop(pool.try_allocate(&stream, 4096 << (round % 4)).unwrap());
                    }
                });
            }
        });
        let high = scope.end().used.high;
        assert!((32 << 10..=4 * (32 << 10)).contains(&high), "{high}");
    }
}

#[test]
fn free_memory_in_one_piece_is_not_fragmented() {
    let (_, pool, [(_, stream)]) =
        set_up_with(|device| tuned(device, 16 * MIB, |tuning| tuning.initial_size = 16 * MIB));
    assert_eq!(
        figures(&pool).fragmentation(),
        0.0,
        "all free, in one piece"
    );
    let blocks = several(&pool, &stream, 4, 4 * MIB);
    assert_eq!(figures(&pool).fragmentation(), 0.0, "nothing is free");
    let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
    for freed in [0, 2] {
        blocks[freed] = None;
    }
    now(stream.synchronize()).unwrap();
    assert_eq!(figures(&pool).fragmentation(), 0.5, "two pieces of 4 MiB");
    blocks[1] = None;
    now(stream.synchronize()).unwrap();
    assert_eq!(figures(&pool).fragmentation(), 0.0, "one of 12 MiB");
}

#[test]
fn attributes_have_the_values_of_the_statistics() {
    let device = manual();
    let reuse = Reuse {
        opportunistic: false,
        ..Reuse::ALL
    };
    let pool = tuned(&device, 64 * MIB, |tuning| tuning.reuse = reuse);
    let (_, stream) = stream(&device, &pool);
    let kept = pool.try_allocate(&stream, 4 * MIB).unwrap();
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    now(stream.synchronize()).unwrap();
    let _ = pool.trim_to(0).unwrap();
    let read = |attribute: Attribute| attribute.get(&pool);
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

    UsedMemHigh.set(&pool, 0).unwrap();
    assert_eq!(figures.map(|figure| read(figure) / MIB), [4, 12, 4, 4]);
    ReservedMemHigh.set(&pool, 0).unwrap();
    assert_eq!(figures.map(|figure| read(figure) / MIB), [4, 4, 4, 4]);
    let refused = UsedMemHigh.set(&pool, 1).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("can only be reset, with the value 0")
    );
    assert_eq!(read(ReleaseThreshold), u64::MAX, "all is kept");
    ReleaseThreshold.set(&pool, 32 * MIB).unwrap();
    let found = read(ReleaseThreshold);
    assert_eq!(found, pool.inspect().describe().release_threshold);
    for (number, attribute) in settings.into_iter().enumerate() {
        attribute.set(&pool, 0).unwrap();
        assert_eq!(read(attribute), 0);
        attribute.set(&pool, 7).unwrap();
        assert_eq!(read(attribute), 1, "flag {number}");
    }
    let attribute = UsedMemCurrent;
    let refused = attribute.set(&pool, 0).unwrap_err();
    assert_eq!(refused, AttributeError::ReadOnly { attribute });
    drop(kept);
}
