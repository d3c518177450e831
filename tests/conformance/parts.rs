//! Memory that is split, joined, and moved.

use crate::bench::Bench;
use crate::common::MIB;
use crate::site::{Site, Worker, settle_all};
use futures::executor::block_on;
use weirpool::{Block, Sealing, Source};

/// Umpire#1020: the remainder of a pending block became free when a part of it was reused.
pub(crate) fn part_of_pending_memory_leaves_the_rest_pending<B: Bench>() {
    for own_part in [true, false] {
        let site = Site::<B>::new(8 * MIB);
        let [first, second, third] = site.workers();
        let all = first.take(8 * MIB);
        let gate = first.use_until_opened(&all, 1);
        drop(all);
        let part = if own_part {
            first.take_from(Source::SameStream, 4 * MIB)
        } else {
            second.take_from(Source::DeviceWait, 4 * MIB)
        };
        let rest = third.take_from(Source::DeviceWait, 4 * MIB);
        third.fill(&rest, 3);
        if !own_part {
            second.fill(&part, 2);
        }
        site.bench.let_run();
        gate.open();
        settle_all(&[&first, &second, &third]);
        third.expect(&rest, 3);
        third.settle();
        drop((part, rest));
        site.assert_sound();
    }
}

/// rmm#2489: merging lists kept the older of two events, so a third stream overtook the donor.
pub(crate) fn joined_memory_waits_for_its_latest_part<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| builder.sealing(Sealing::EveryFree));
    let [first, second, third] = site.workers();
    let [low, high] = halves(&first);
    let early = first.use_until_opened(&low, 1);
    drop(low);
    let late = first.use_until_opened(&high, 2);
    drop(high);
    // The second stream takes both, and frees them unused.
    drop(second.take_from(Source::DeviceWait, 8 * MIB));
    let all = third.take_from(Source::DeviceWait, 8 * MIB);
    third.fill(&all, 3);
    third.expect(&all, 3);
    early.open();
    site.bench.let_run();
    late.open();
    settle_all(&[&first, &second, &third]);
    drop(all);
    site.assert_sound();
}

/// The parts of joined memory were freed on two streams. Both are waited for.
pub(crate) fn joined_memory_waits_for_every_stream_of_its_parts<B: Bench>() {
    for opened_first in [0, 1] {
        let site = Site::<B>::new(8 * MIB);
        let [first, second, third] = site.workers();
        let [low, high] = halves_of(&first, &second);
        let mut gates = [
            Some(first.use_until_opened(&low, 1)),
            Some(second.use_until_opened(&high, 2)),
        ];
        drop((low, high));
        let all = third.take_from(Source::DeviceWait, 8 * MIB);
        third.fill(&all, 3);
        third.expect(&all, 3);
        drop(gates[opened_first].take());
        site.bench.let_run();
        drop(gates);
        settle_all(&[&first, &second, &third]);
        drop(all);
        site.assert_sound();
    }
}

/// Umpire#846: coalescing and freeing recursed without end. Here complete blocks have become one block by the next
/// look.
pub(crate) fn all_free_blocks_become_one<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    drop(worker.take(8 * MIB));
    block_on(worker.stream.synchronize()).unwrap();
    let mut random = fastrand::Rng::with_seed(16);
    let mut blocks: Vec<_> = (0..64).map(|_| worker.take(100_000)).collect();
    random.shuffle(&mut blocks);
    blocks.drain(..).for_each(drop);
    // Only all parts together hold this block.
    let whole = worker.take(8 * MIB);
    drop(whole);
    block_on(worker.stream.synchronize()).unwrap();
    let statistics = site.pool.inspect().statistics();
    let found = (statistics.free_blocks, statistics.largest_free);
    assert_eq!(found, (1, 8 * MIB));
    site.assert_conserved();
}

/// Scattered free memory serves a large request without more memory from the device: it is mapped together, or
/// exchanged for contiguous memory.
pub(crate) fn scattered_free_memory_serves_a_large_request<B: Bench>() {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| builder);
    let worker = site.worker();
    let is_virtual = site.is_virtual();
    let mut blocks: Vec<_> = (0..8).map(|_| worker.take(2 * MIB)).collect();
    blocks.iter().for_each(|block| worker.fill(block, 1));
    // Every second piece stays in use if the others can be mapped together.
    let mut is_kept = false;
    blocks.retain(|_| {
        is_kept = is_virtual && !is_kept;
        is_kept
    });
    block_on(worker.stream.synchronize()).unwrap();
    let whole = worker.take_from(Source::Grown, if is_virtual { 8 * MIB } else { 16 * MIB });
    worker.use_up(&whole, 2);
    blocks.iter().for_each(|block| worker.expect(block, 1));
    assert_eq!((probe.held(), probe.peak()), (16 * MIB, 16 * MIB));
    worker.settle();
    drop((whole, blocks));
    site.assert_sound();
}

/// Returns both halves of a pool of 8 MiB, which are adjacent.
pub(crate) fn halves<B: Bench>(worker: &Worker<B>) -> [Block; 2] {
    halves_of(worker, worker)
}

/// Returns both halves of a pool of 8 MiB, allocated by two workers.
fn halves_of<B: Bench>(first: &Worker<B>, second: &Worker<B>) -> [Block; 2] {
    drop(first.take(8 * MIB));
    block_on(first.stream.synchronize()).unwrap();
    [first, second].map(|worker| worker.take(4 * MIB))
}
