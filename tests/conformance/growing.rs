//! Blocks that grow where they are.

use crate::bench::Bench;
use crate::common::{MIB, until_freed};
use crate::site::{Site, settle_all};
use futures::executor::block_on;
use weirpool::AllocError;

/// Caches that grow by turns keep their contents, while others take and free memory around them.
pub(crate) fn growing_blocks_keep_their_contents<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let [worker, other] = site.workers();
    let room = |bytes| site.pool.allocate(&worker.stream, bytes).room(16 * MIB);
    if !site.is_virtual() {
        let refused = room(MIB).try_now().unwrap_err();
        assert_eq!(refused, AllocError::NoRoom { room: 0 });
        return;
    }
    let mut caches = [1, 2, 3].map(|value| (value, room(MIB).try_now().unwrap()));
    caches
        .iter()
        .for_each(|(value, cache)| worker.fill(cache, *value));
    for step in 0..4u8 {
        let around = other.take(3 * MIB);
        other.use_up(&around, 0x40 + step);
        for (value, cache) in &mut caches {
            let (address, size) = (cache.address(), cache.size());
            block_on(cache.grow(2 * MIB)).unwrap();
            assert_eq!((cache.address(), cache.size()), (address, size + 2 * MIB));
            let upper = crate::bench::Span {
                address: address + size,
                bytes: 2 * MIB,
            };
            worker.fill(upper, *value);
            worker.expect(&*cache, *value);
        }
    }
    settle_all(&[&worker, &other]);
    drop(caches);
    site.assert_sound();
}

/// What a block grows by comes after the work on it, of every stream that has the block.
pub(crate) fn growth_of_a_block_comes_after_its_earlier_life<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| {
        builder.tuning(|tuning| {
            tuning.lane_bytes = 0;
            tuning.initial_size = 8 * MIB;
        })
    });
    let [worker, other] = site.workers();
    let mut below = worker.take(2 * MIB);
    let above = worker.take(6 * MIB);
    until_freed(&other.stream, &below);
    let gate = worker.use_until_opened(&above, 7);
    drop(above);
    below.grow(6 * MIB).try_now().unwrap();
    other.fill(&below, 8);
    site.bench.let_run();
    gate.open();
    settle_all(&[&worker, &other]);
    drop(below);
    site.assert_sound();
}
