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
        assert!(pools[0].is_access_supported(&second), "{memory:?}");
        assert!(!pools[0].is_access_enabled(&second));
        assert!(!may_use(&second, &early), "{memory:?}");
        assert!(pools[0].enable_access(&second).unwrap());
        assert!(!pools[0].enable_access(&second).unwrap(), "it was enabled");
        let later = pools[0].try_allocate(&streams[0], 32 * MIB).unwrap();
        assert!(
            may_use(&second, &early) && may_use(&second, &later),
            "{memory:?}"
        );
        assert_eq!(seen_from(&second, &later), Some(0));
        assert!(!may_use(&first, &other), "the other direction: {memory:?}");
        assert!(!pools[1].is_access_enabled(&first));
        assert!(pools[0].disable_access(&second).unwrap());
        assert!(!pools[0].disable_access(&second).unwrap());
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
    let pool = builder(&first, 16 * MIB).build().unwrap();
    let stream = pool.create_stream().unwrap();
    pool.enable_access(&second).unwrap();
    let blocks: Vec<_> = (0..8)
        .map(|_| pool.try_allocate(&stream, 2 * MIB).unwrap())
        .collect();
    let mut kept = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        if at % 2 == 0 {
            kept.push(block);
        }
    }
    let before = [Call::SetAccess, Call::Unmap].map(|call| first.counters().calls(call));
    let whole = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert_eq!(pool.statistics().reserved.current, 16 * MIB, "remapped");
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
        assert!(!pool.is_access_supported(device));
        let error = pool.enable_access(device).unwrap_err();
        assert!(matches!(error, AccessError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("copy_to"));
        assert!(!pool.is_access_enabled(device));
    }
    assert!(pool.is_access_supported(&first) && pool.is_access_enabled(&first));
    assert!(!pool.enable_access(&first).unwrap());
    assert_eq!(pool.disable_access(&first), Err(AccessError::OwnDevice));
}

/// Every device sees the host's memory. The access makes the device known to the pool, and costs no call.
#[test]
fn access_to_memory_of_the_host_needs_no_link() {
    let [first, second] = settings().peer_access(false).build_host();
    for upstream in [Upstream::Pinned, Upstream::Managed] {
        let pool = builder(&first, 8 * MIB).upstream(upstream).build().unwrap();
        let home = pool.create_stream().unwrap();
        let block = pool.try_allocate(&home, MIB).unwrap();
        assert!(pool.is_access_supported(&second));
        pool.enable_access(&second).unwrap();
        assert_eq!(first.counters().calls(Call::SetAccess), 0);
        let stream = pool.register(&second.create_stream()).unwrap();
        let _use = block.read_on(&stream).unwrap();
        assert_eq!(seen_from(&second, &block), Some(0));
    }
}

#[test]
fn access_is_not_taken_back_while_memory_may_be_in_use() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pool = memory.pool(&first);
        let home = pool.create_stream().unwrap();
        pool.enable_access(&second).unwrap();
        let work = second.create_stream();
        let stream = pool.register(&work).unwrap();
        let block = pool.try_allocate(&home, MIB).unwrap();
        work.submit(Operation::new(us(50)).reads(block.read_on(&stream).unwrap().address(), 64));
        let in_use = Err(AccessError::InUse { streams: 1 });
        assert_eq!(pool.disable_access(&second), in_use);
        drop(stream);
        assert_eq!(
            pool.disable_access(&second),
            in_use,
            "the block was used there"
        );
        drop(block);
        assert_eq!(
            pool.disable_access(&second),
            in_use,
            "its work runs: {memory:?}"
        );
        second.advance(us(50));
        assert_eq!(pool.disable_access(&second), Ok(true), "{memory:?}");
        second.assert_ordered();
        assert_eq!(
            pool.register(&work).unwrap_err(),
            StreamError::ForeignDevice
        );
    }
}

#[test]
fn guard_takes_back_only_what_it_enabled() {
    let [first, second] = two();
    let pool = pool(&first, 8 * MIB);
    let outer = pool.scoped_access(&second).unwrap();
    let inner = pool.scoped_access(&second).unwrap();
    drop(inner);
    assert!(pool.is_access_enabled(&second));
    outer.end().unwrap();
    assert!(!pool.is_access_enabled(&second));
    let guard = pool.scoped_access(&second).unwrap();
    let stream = pool.register(&second.create_stream()).unwrap();
    assert_eq!(guard.end(), Err(AccessError::InUse { streams: 1 }));
    assert!(pool.is_access_enabled(&second));
    drop(stream);
    assert_eq!(pool.disable_access(&second), Ok(true));
}

/// Plain memory is accessible as a whole. Each pool counts.
#[test]
fn plain_access_stays_while_another_pool_has_it() {
    let [first, second] = two();
    let pools = [Memory::Plain.pool(&first), Memory::Plain.pool(&first)];
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let block = pools[1].try_allocate(&streams[1], MIB).unwrap();
    pools.iter().for_each(|pool| {
        pool.enable_access(&second).unwrap();
    });
    assert_eq!(pools[0].disable_access(&second), Ok(true));
    assert!(may_use(&second, &block));
    // A pool that ends takes its share back.
    let [_, last] = pools;
    let third = Memory::Plain.pool(&first);
    third.enable_access(&second).unwrap();
    assert_eq!(last.disable_access(&second), Ok(true));
    let held = third
        .try_allocate(&third.create_stream().unwrap(), MIB)
        .unwrap();
    assert!(may_use(&second, &held));
    drop((held, third));
    let again = last.try_allocate(&streams[1], MIB).unwrap();
    assert!(!may_use(&second, &again) && !may_use(&second, &block));
}

#[test]
fn pool_without_peers_makes_no_calls_for_them() {
    let [first, _] = two();
    let pool = pool(&first, 32 * MIB);
    let stream = pool.create_stream().unwrap();
    drop(pool.try_allocate(&stream, 16 * MIB).unwrap());
    assert_eq!(first.counters().calls(Call::SetAccess), 0);
}
