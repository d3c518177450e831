//! Access to a pool's memory: given and taken back, for each kind of memory.

use super::*;

#[test]
fn access_is_directional_and_covers_earlier_and_later_mappings() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pools = [memory.pool(&first), memory.pool(&second)];
        let streams = [0, 1].map(|at| pools[at].create_stream().unwrap());
        let early = pools[0].try_allocate(&streams[0], MIB).unwrap();
        let other = pools[1].try_allocate(&streams[1], MIB).unwrap();
        assert!(pools[0].peers().is_supported(&second), "{memory:?}");
        assert!(!pools[0].peers().is_enabled(&second));
        assert!(!may_use(&second, &early), "{memory:?}");
        assert!(pools[0].peers().enable(&second).unwrap());
        assert!(!pools[0].peers().enable(&second).unwrap(), "it was enabled");
        let later = pools[0].try_allocate(&streams[0], 32 * MIB).unwrap();
        assert!(
            may_use(&second, &early) && may_use(&second, &later),
            "{memory:?}"
        );
        assert_eq!(seen_from(&second, &later), Some(0));
        assert!(!may_use(&first, &other), "the other direction: {memory:?}");
        assert!(!pools[1].peers().is_enabled(&first));
        assert!(pools[0].peers().disable(&second).unwrap());
        assert!(!pools[0].peers().disable(&second).unwrap());
        assert!(
            !may_use(&second, &early) && !may_use(&second, &later),
            "{memory:?}"
        );
    }
}

/// Chunks of scattered free blocks are mapped elsewhere, for one block: the access moves with the list, not with the
/// chunk.
#[test]
fn access_covers_remapped_memory() {
    let [first, second] = two();
    let pool = builder(&first, 16 * MIB).made();
    let stream = pool.create_stream().unwrap();
    pool.peers().enable(&second).unwrap();
    let blocks = several(&pool, &stream, 8, 2 * MIB);
    let mut kept = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        if at % 2 == 0 {
            kept.push(block);
        }
    }
    let before = [Call::SetAccess, Call::Unmap].map(|call| first.counters().calls(call));
    let whole = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert_eq!(figures(&pool).reserved.current, 16 * MIB, "remapped");
    let after = [Call::SetAccess, Call::Unmap].map(|call| first.counters().calls(call));
    assert!(after[1] > before[1]);
    assert_eq!(after[0] - before[0], after[1] - before[1]);
    for at in [0, 3 * MIB, 8 * MIB - 64] {
        second.take_violations();
        let work = second.create_stream();
        work.submit(Operation::new(us(0)).reads(whole.address() + at, 64));
        assert_eq!(second.take_violations(), []);
    }
    assert_eq!(seen_from(&second, &whole), Some(0));
}

#[test]
fn access_is_unsupported_without_a_link_and_on_another_host() {
    let [first, second] = settings().peer_access(false).build_host();
    let elsewhere = manual();
    let pool = pool(&first, 8 * MIB);
    for device in [&second, &elsewhere] {
        assert!(!pool.peers().is_supported(device));
        let error = pool.peers().enable(device).unwrap_err();
        assert_matches!(error, AccessError::Unsupported { .. });
        assert!(error.to_string().contains("copy_to"));
        assert!(!pool.peers().is_enabled(device));
    }
    assert!(pool.peers().is_supported(&first) && pool.peers().is_enabled(&first));
    assert!(!pool.peers().enable(&first).unwrap());
    assert_eq!(pool.peers().disable(&first), Err(AccessError::OwnDevice));
}

/// Every device sees the host's memory. The access makes the device known to the pool, and costs no call.
#[test]
fn access_to_memory_of_the_host_needs_no_link() {
    let [first, second] = settings().peer_access(false).build_host();
    for upstream in [Upstream::Pinned, Upstream::Managed] {
        let pool = builder(&first, 8 * MIB).upstream(upstream).made();
        let home = pool.create_stream().unwrap();
        let block = pool.try_allocate(&home, MIB).unwrap();
        assert!(pool.peers().is_supported(&second));
        pool.peers().enable(&second).unwrap();
        assert_eq!(first.counters().calls(Call::SetAccess), 0);
        let stream = pool.register(&second.create_stream()).unwrap();
        let _use = stream.record_use(&block).unwrap();
        assert_eq!(seen_from(&second, &block), Some(0));
    }
}

#[test]
fn access_is_not_taken_back_while_memory_may_be_in_use() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pool = memory.pool(&first);
        let home = pool.create_stream().unwrap();
        pool.peers().enable(&second).unwrap();
        let work = second.create_stream();
        let stream = pool.register(&work).unwrap();
        let block = pool.try_allocate(&home, MIB).unwrap();
        work.submit(Operation::new(us(50)).reads(stream.record_use(&block).unwrap().address(), 64));
        let in_use = Err(AccessError::InUse { streams: 1 });
        assert_eq!(pool.peers().disable(&second), in_use);
        drop(stream);
        assert_eq!(
            pool.peers().disable(&second),
            in_use,
            "the block was used there"
        );
        drop(block);
        assert_eq!(
            pool.peers().disable(&second),
            in_use,
            "its work runs: {memory:?}"
        );
        second.advance(us(50));
        assert_eq!(pool.peers().disable(&second), Ok(true), "{memory:?}");
        second.assert_ordered();
        assert_eq!(
            pool.register(&work).unwrap_err(),
            StreamError::ForeignDevice
        );
    }
}

#[test]
fn access_stays_until_the_last_scope_ends() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pool = memory.pool(&first);
        let is_open = || pool.peers().is_enabled(&second);
        let [early, late] = [(); 2].map(|()| pool.peers().grant(&second).unwrap());
        drop(early);
        assert!(is_open(), "{memory:?}");
        late.end().unwrap();
        assert!(!is_open(), "{memory:?}");
        // Set before or within a scope, it stays as it was set.
        assert_eq!(pool.peers().enable(&second), Ok(true));
        drop(pool.peers().grant(&second).unwrap());
        assert!(is_open());
        let scope = pool.peers().grant(&second).unwrap();
        assert_eq!(pool.peers().disable(&second), Ok(true));
        drop(scope);
        assert!(!is_open());
    }
}

#[test]
fn scope_without_access_gives_it_back() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pool = memory.pool(&first);
        let is_open = || pool.peers().is_enabled(&second);
        pool.peers().enable(&second).unwrap();
        let without = pool.peers().deny(&second).unwrap();
        assert!(!is_open());
        let work = second.create_stream();
        let refused = pool.register(&work).unwrap_err();
        assert_eq!(refused, StreamError::ForeignDevice);
        let with = pool.peers().grant(&second).unwrap();
        assert!(is_open(), "the scope that began last decides");
        drop(without);
        assert!(is_open());
        drop(with);
        assert!(is_open(), "{memory:?}");
        let stream = pool.register(&work).unwrap();
        let refused = pool.peers().deny(&second).unwrap_err();
        assert_eq!(refused, AccessError::InUse { streams: 1 });
        drop(stream);
        drop(pool.peers().deny(&second).unwrap());
        assert!(is_open());
        let refused = pool.peers().deny(&first).unwrap_err();
        assert_eq!(refused, AccessError::OwnDevice);
    }
}

#[test]
fn scope_that_ends_while_memory_is_in_use_ends_with_the_last_use() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pool = memory.pool(&first);
        let home = pool.create_stream().unwrap();
        let guard = pool.peers().grant(&second).unwrap();
        let work = second.create_stream();
        let stream = pool.register(&work).unwrap();
        let block = pool.try_allocate(&home, MIB).unwrap();
        work.submit(Operation::new(us(50)).reads(stream.record_use(&block).unwrap().address(), 64));
        guard.end().unwrap();
        assert!(pool.peers().is_enabled(&second) && may_use(&second, &block));
        let refused = pool.register(&second.create_stream()).unwrap_err();
        assert_eq!(refused, StreamError::ForeignDevice, "its end is near");
        drop((stream, block));
        pool.maintain().reap().unwrap();
        assert!(pool.peers().is_enabled(&second), "the work runs");
        second.advance(us(50));
        pool.maintain().reap().unwrap();
        let block = pool.try_allocate(&home, MIB).unwrap();
        assert!(!may_use(&second, &block), "{memory:?}");
        assert!(!pool.peers().is_enabled(&second));
        second.assert_ordered();
    }
}

/// Warp's example of `ScopedMempoolAccess`: the arrays outlive the scope.
#[test]
fn scope_around_a_copy_ends_while_its_arrays_live() {
    for memory in Memory::ALL {
        for (is_awaited, is_dropped) in [(true, false), (true, true), (false, true)] {
            let [first, second] = two();
            let pools = [memory.pool(&first), memory.pool(&second)];
            let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
            let scope = pools[0].peers().grant(&second).unwrap();
            let a0 = pools[0].try_allocate(&streams[0], MIB).unwrap();
            let mut a1 = pools[1].try_allocate(&streams[1], MIB).unwrap();
            let copied = a0.copy_to(0..MIB, &mut a1, 0, &streams[1]).unwrap();
            if is_awaited {
                first.advance(us(100_000));
                now(copied).unwrap();
                now(streams[0].synchronize()).unwrap();
                now(streams[1].synchronize()).unwrap();
            } else {
                drop(copied);
            }
            match is_dropped {
                true => drop(scope),
                false => scope.end().unwrap(),
            }
            assert_eq!(may_use(&second, &a0), !is_awaited, "{memory:?}");
            first.advance(us(100_000));
            assert!(!pools[0].peers().is_enabled(&second));
            assert!(!may_use(&second, &a0), "{memory:?}");
            drop(a0.copy_to(0..MIB, &mut a1, 0, &streams[1]).unwrap()); // staged
            first.advance(us(100_000));
            first.assert_ordered();
        }
    }
}

/// Plain memory is accessible as a whole. Each pool counts.
#[test]
fn plain_access_stays_while_another_pool_has_it() {
    let [first, second] = two();
    let pools = [Memory::Plain.pool(&first), Memory::Plain.pool(&first)];
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let block = pools[1].try_allocate(&streams[1], MIB).unwrap();
    pools.iter().for_each(|pool| {
        pool.peers().enable(&second).unwrap();
    });
    assert_eq!(pools[0].peers().disable(&second), Ok(true));
    assert!(may_use(&second, &block));
    // A pool that ends takes its share back.
    let [_, last] = pools;
    let third = Memory::Plain.pool(&first);
    third.peers().enable(&second).unwrap();
    assert_eq!(last.peers().disable(&second), Ok(true));
    let held = third
        .try_allocate(&third.create_stream().unwrap(), MIB)
        .unwrap();
    assert!(may_use(&second, &held));
    drop((held, third));
    let again = last.try_allocate(&streams[1], MIB).unwrap();
    assert!(!may_use(&second, &again) && !may_use(&second, &block));
    drop((again, block, last));
}

#[test]
fn pool_without_peers_makes_no_calls_for_them() {
    let [first, _] = two();
    let pool = pool(&first, 32 * MIB);
    let stream = pool.create_stream().unwrap();
    drop(pool.try_allocate(&stream, 16 * MIB).unwrap());
    assert_eq!(first.counters().calls(Call::SetAccess), 0);
}
