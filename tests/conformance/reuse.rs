//! Which stream gets freed memory, when, and behind which work.

use crate::bench;
use crate::bench::Bench;
use crate::common::MIB;
use crate::parts::halves;
use crate::site::{ONLY_COMPLETE, Site, Worker, eventually, settle_all};
use futures::executor::block_on;
use weirpool::{PoolBuilder, Sealing, Source};

/// Umpire `check_states`, cupy `free_stream`: a block is freed and allocated again on the same stream at once,
/// while its work runs: the same address, and no device call.
pub(crate) fn stream_reuses_its_freed_block_without_device_calls<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| builder);
    let worker = site.worker();
    for bytes in [1, 4096, MIB] {
        let block = worker.take(bytes);
        let address = block.address();
        let gate = worker.use_until_opened(&block, 1);
        let calls = probe.all_calls();
        drop(block);
        let again = worker.take_from(Source::Lane, bytes);
        assert_eq!(again.address(), address);
        assert_eq!(probe.all_calls(), calls);
        worker.use_up(&again, 2);
        gate.open();
        worker.free_and_settle(again);
    }
    site.assert_sound();
}

/// A block that is too large for the lane is reused as well, without a memory call or a wait.
pub(crate) fn large_block_is_reused_on_its_stream_while_its_work_runs<B: Bench>() {
    let (site, probe) = Site::<B>::probed(32 * MIB, |builder| builder);
    let worker = site.worker();
    let block = worker.take(32 * MIB);
    let address = block.address();
    let gate = worker.use_until_opened(&block, 1);
    drop(block);
    let memory_calls =
        || ["create", "map", "unmap", "allocate", "wait"].map(|name| probe.calls(name));
    let before = memory_calls();
    let again = worker.take_from(Source::SameStream, 32 * MIB);
    assert_eq!(again.address(), address);
    assert_eq!(memory_calls(), before);
    worker.use_up(&again, 2);
    gate.open();
    worker.free_and_settle(again);
    site.assert_sound();
}

/// Umpire `check_states`: another stream, work still running: other memory while there is room.
pub(crate) fn another_stream_gets_other_memory_while_there_is_room<B: Bench>() {
    let site = Site::<B>::new(32 * MIB);
    let [first, second] = site.workers();
    let block = first.take(8 * MIB);
    let address = block.address();
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    assert_eq!(site.pool.inspect().statistics().pending.current, 8 * MIB);
    let other = second.take(8 * MIB);
    assert_ne!(other.address(), address);
    second.use_up(&other, 2);
    second.settle();
    assert_eq!(site.pool.inspect().statistics().device_waits, 0);
    gate.open();
    settle_all(&[&first, &second]);
    drop(other);
    site.assert_sound();
}

/// Without room, the other stream gets that memory, behind a wait on the device.
pub(crate) fn other_stream_waits_for_the_work_if_memory_is_full<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [first, second] = site.workers();
    for bytes in [8 * MIB, MIB] {
        let waits = site.pool.inspect().statistics().device_waits;
        let blocks: Vec<_> = (0..8 * MIB / bytes).map(|_| first.take(bytes)).collect();
        let gate = first.use_until_opened(&blocks[0], 1);
        let address = blocks[0].address();
        drop(blocks);
        let all = second.take_from(Source::DeviceWait, 8 * MIB);
        assert_eq!(all.address(), address);
        assert_eq!(site.pool.inspect().statistics().device_waits, waits + 1);
        second.fill(&all, 2);
        second.expect(&all, 2);
        site.bench.let_run();
        gate.open();
        settle_all(&[&first, &second]);
        second.free_and_settle(all);
    }
    site.assert_sound();
}

/// Umpire `ExplicitSync`: another stream, work complete: the same address, without a wait.
pub(crate) fn complete_memory_is_available_to_every_stream<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [first, second] = site.workers();
    for bytes in [8 * MIB, MIB] {
        let block = first.take(bytes);
        let address = block.address();
        first.use_up(&block, 1);
        first.free_and_settle(block);
        let block = second.take_from(Source::Free, 8 * MIB);
        assert!(block.address() <= address);
        second.use_up(&block, 2);
        second.free_and_settle(block);
        block_on(second.stream.synchronize()).unwrap();
    }
    assert_eq!(site.pool.inspect().statistics().device_waits, 0);
    site.assert_sound();
}

/// Umpire `check_states_host`: work on the host is complete when the call returns, so a free on it has no pending
/// work: no request waits, and no memory stays pending.
pub(crate) fn work_that_is_over_is_never_waited_for<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| builder.sealing(Sealing::EveryFree));
    let workers = site.workers::<2>();
    for round in 0..40 {
        let worker = &workers[round % 2];
        let block = worker.take((8 * MIB) >> (round % 4));
        worker.use_up(&block, 1);
        worker.settle();
        worker.free_and_settle(block);
    }
    site.pool.maintain().reap().unwrap();
    let statistics = site.pool.inspect().statistics();
    let found = (statistics.pending.current, statistics.device_waits);
    assert_eq!(found, (0, 0));
    site.assert_sound();
}

/// Memory freed before an event that the stream waited for is available to the stream at once.
pub(crate) fn awaited_event_makes_memory_reusable<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let block = first.take(8 * MIB);
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    second.take_nothing(8 * MIB);
    second.come_after(&first);
    let block = second.take_from(Source::Ordered, 8 * MIB);
    second.fill(&block, 2);
    second.expect(&block, 2);
    site.bench.let_run();
    gate.open();
    settle_all(&[&first, &second]);
    drop(block);
    site.assert_sound();
}

/// An event proves the work before a free that came before it, and nothing about later frees.
pub(crate) fn event_before_the_free_proves_nothing<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [first, second] = site.workers();
    let block = first.take(8 * MIB);
    second.come_after(&first);
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    second.take_nothing(8 * MIB);
    gate.open();
    first.settle();
    let block = second.take_from(Source::Free, 8 * MIB);
    second.use_up(&block, 2);
    second.free_and_settle(block);
    site.assert_sound();
}

/// pytorch#71745: one pending block at the head of the list hid complete ones of other streams.
pub(crate) fn pending_memory_does_not_hide_complete_memory<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| builder.sealing(Sealing::EveryFree));
    let [slow, quick, third] = site.workers();
    let (head, other) = (slow.take(4 * MIB), quick.take(4 * MIB));
    let gate = slow.use_until_opened(&head, 1);
    drop(head);
    let address = other.address();
    quick.use_up(&other, 2);
    quick.free_and_settle(other);
    let block = third.take_from(Source::Free, 4 * MIB);
    assert_eq!(block.address(), address);
    third.use_up(&block, 3);
    third.free_and_settle(block);
    gate.open();
    slow.settle();
    site.assert_sound();
}

/// Umpire, resource-aware pool: it looked for completed blocks only when it coalesced, and ran out of memory although
/// there was free memory.
pub(crate) fn complete_memory_is_found_without_merging<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let [first, second] = site.workers();
    let blocks: Vec<_> = (0..8).map(|_| first.take(MIB)).collect();
    let gate = first.use_until_opened(&blocks[0], 1);
    drop(blocks);
    second.take_nothing(MIB);
    gate.open();
    first.settle();
    let memory_calls =
        || ["create", "map", "unmap", "allocate", "free"].map(|name| probe.calls(name));
    let before = memory_calls();
    let block = second.take_from(Source::Free, MIB);
    assert_eq!(memory_calls(), before);
    second.use_up(&block, 2);
    second.free_and_settle(block);
    site.assert_sound();
}

/// Two threads that query a stream's progress at the same time learn what each of them asked, and no more. A thread
/// whose points the other one has removed must not take the next points for them.
pub(crate) fn concurrent_reaps_learn_no_more_than_either<B: Bench>() {
    let set = |builder: PoolBuilder| {
        builder
            .tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
            .sealing(Sealing::EveryFree)
    };
    let (site, probe) = Site::<B>::probed(8 * MIB, set);
    let [first, second] = site.workers();
    let [early, late] = halves(&first);
    first.use_up(&early, 1);
    first.free_and_settle(early);
    let gate = first.use_until_opened(&late, 2);
    drop(late);
    let pool = site.pool.clone();
    probe.amid_next("query", move || assert!(pool.maintain().reap().unwrap()));
    site.pool.maintain().reap().unwrap();
    second.take_nothing(8 * MIB);
    let complete = second.take_from(Source::Free, 4 * MIB);
    second.take_nothing(512);
    second.use_up(&complete, 3);
    second.settle();
    gate.open();
    first.settle();
    drop(complete);
    site.assert_sound();
}

/// Umpire#906: a size that is not a multiple of the step made the pool grow at every iteration.
pub(crate) fn odd_size_does_not_grow_the_pool_repeatedly<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let turn = || {
        let blocks = [9 * MIB + 1, 3 * MIB - 511, 12_345].map(|bytes| worker.take(bytes));
        blocks.iter().for_each(|block| worker.use_up(block, 1));
        drop(blocks);
        worker.settle();
    };
    (0..3).for_each(|_| turn());
    let warm = site.pool.inspect().statistics();
    (0..20).for_each(|_| turn());
    let after = site.pool.inspect().statistics();
    let found = (after.growths, after.reserved);
    assert_eq!(found, (warm.growths, warm.reserved));
    site.assert_sound();
}

/// camp: an event was created at every free, and none was destroyed.
pub(crate) fn events_are_made_once_and_destroyed<B: Bench>() {
    let (site, probe) = Site::<B>::probed(64 * MIB, |builder| builder.sealing(Sealing::EveryFree));
    let workers = site.workers::<4>();
    let rounds = |count: usize| {
        for _ in 0..count {
            for worker in &workers {
                let block = worker.take(4 * MIB);
                worker.bench.spend(&worker.work);
                drop(block);
            }
            workers.iter().for_each(Worker::settle);
        }
        site.pool.inspect().statistics().events_created
    };
    // A stream with 16 pending events checks which of them can be reused.
    assert!(rounds(30) <= 4 * 17);
    assert!(rounds(300) <= 4 * 17);
    let found = probe.calls("create_event");
    assert_eq!(found, site.pool.inspect().statistics().events_created);
    drop((site, workers));
    eventually(|| probe.events() == 0);
}

/// rmm#649: a recycled stream handle of the driver inherited the free list of the earlier stream.
pub(crate) fn recycled_stream_handle_inherits_nothing<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let old = site.worker();
    let (raw, id) = (bench::raw(&old.work), old.stream.id());
    let block = old.take(8 * MIB);
    let gate = old.use_until_opened(&block, 1);
    drop(block);
    // While its work runs, the driver cannot reuse the handle, although the user dropped the stream.
    drop(old);
    let held: Vec<_> = (0..8).map(|_| site.worker()).collect();
    assert!(held.iter().all(|worker| bench::raw(&worker.work) != raw));
    held[0].take_nothing(MIB);
    gate.open();
    eventually(|| site.pool.maintain().reap().unwrap());
    let new: Vec<_> = (0..8).map(|_| site.worker()).collect();
    let heir = new.iter().find(|worker| bench::raw(&worker.work) == raw);
    assert!(B::RECYCLES_STREAM_HANDLES.is_none_or(|recycles| recycles == heir.is_some()));
    let heir = heir.unwrap_or(&new[0]);
    assert_ne!(heir.stream.id(), id);
    let block = heir.take_from(Source::Free, 8 * MIB);
    heir.use_up(&block, 2);
    heir.free_and_settle(block);
    site.assert_sound();
}
