//! Access while device calls fail, and while other threads change the mappings.

use super::*;
use DeviceErrorKind::{Other, OutOfMemory, Sticky};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Four chunks are mapped, in two blocks.
fn place() -> ([SimDevice; 2], TestPool, Stream, [Block; 2]) {
    let [first, second] = two();
    let pool = pool(&first, 32 * MIB);
    let stream = pool.create_stream().unwrap();
    let blocks = [(); 2].map(|()| pool.try_allocate(&stream, 4 * MIB).unwrap());
    ([first, second], pool, stream, blocks)
}

#[test]
fn access_that_fails_half_way_is_taken_back() {
    for nth in 1..=4 {
        let ([first, second], pool, _stream, blocks) = place();
        first
            .faults()
            .script(Call::SetAccess, nth, Fault::Fails(Other));
        let error = pool.peers().enable(&second).unwrap_err();
        assert_matches!(error, AccessError::Device(_));
        assert!(!pool.peers().is_enabled(&second));
        assert!(blocks.iter().all(|block| !may_use(&second, block)), "{nth}");
        assert!(pool.peers().enable(&second).unwrap());
        assert!(blocks.iter().all(|block| may_use(&second, block)));
        pool.inspect().check().unwrap();
    }
}

#[test]
fn access_stays_if_taking_it_back_fails_half_way() {
    for nth in 1..=4 {
        let ([first, second], pool, stream, blocks) = place();
        pool.peers().enable(&second).unwrap();
        first
            .faults()
            .script(Call::SetAccess, nth, Fault::Fails(Other));
        pool.peers().disable(&second).unwrap_err();
        assert!(pool.peers().is_enabled(&second));
        let later = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let all = blocks.iter().chain([&later]);
        assert!(
            all.into_iter().all(|block| may_use(&second, block)),
            "{nth}"
        );
        assert_eq!(pool.peers().disable(&second), Ok(true));
        assert!(blocks.iter().all(|block| !may_use(&second, block)));
    }
}

/// A chunk that its peers cannot use is not given out.
#[test]
fn growth_without_access_fails_and_loses_nothing() {
    for kind in [Other, OutOfMemory] {
        let ([first, second], pool, stream, _blocks) = place();
        pool.peers().enable(&second).unwrap();
        let held = reserved(&pool);
        first
            .faults()
            .script(Call::SetAccess, 2, Fault::Fails(kind));
        pool.try_allocate(&stream, 8 * MIB).unwrap_err();
        pool.inspect().check().unwrap();
        let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
        assert!(may_use(&second, &block));
        drop(block);
        second.advance_to_end();
        let _trimmed = pool.trim_to(0).unwrap();
        assert_eq!(reserved(&pool), held);
        assert_eq!(first.counters().physical_in_use, held, "nothing is lost");
    }
}

#[test]
fn sticky_error_ends_the_pool() {
    let ([first, second], pool, stream, _blocks) = place();
    first
        .faults()
        .script(Call::SetAccess, 2, Fault::Fails(Sticky));
    assert_matches!(pool.peers().enable(&second), Err(AccessError::Device(_)));
    assert!(pool.try_allocate(&stream, 16 * MIB).is_err());
    assert!(pool.peers().enable(&second).is_err() && !pool.peers().is_enabled(&second));
}

/// Threads map, unmap and remap memory while another gives and takes back access: whatever is mapped afterwards is
/// accessible as the pool says.
#[test]
fn access_is_right_while_threads_grow_and_trim() {
    let [first, second] = settings().checker(Checker::Off).build_host();
    let pool = builder(&first, 64 * MIB).made();
    let working = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (pool, working) = (&pool, &working);
            scope.spawn(move || {
                let stream = pool.create_stream().unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..300 {
                    let sizes = [0; 3].map(|_| random.u64(1..8) * MIB);
                    let blocks = sizes.map(|bytes| pool.try_allocate(&stream, bytes).ok());
                    drop(blocks);
                    let _ = pool.trim_to(random.u64(0..8) * MIB);
                }
                working.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut is_enabled = false;
        while working.load(Ordering::Relaxed) > 0 {
            let changed = match is_enabled {
                true => pool.peers().disable(&second),
                false => pool.peers().enable(&second),
            };
            assert_eq!(changed, Ok(true));
            is_enabled = !is_enabled;
        }
    });
    for is_enabled in [false, true, false] {
        if is_enabled {
            pool.peers().enable(&second).unwrap();
        } else {
            let _ = pool.peers().disable(&second).unwrap();
        }
        let access = first.mapped_for(&second);
        assert!(!access.is_empty() || reserved(&pool) == 0);
        assert!(
            access.iter().all(|(_, allowed)| *allowed == is_enabled),
            "{access:?}"
        );
    }
    pool.inspect().check().unwrap();
}
