//! Snapshots, histories and leak reports.

use crate::bench::Bench;
use crate::common::MIB;
use crate::site::Site;
use futures::executor::block_on;
use weirpool::{BlockState, Pool, Snapshot};
use weirpool_observe::{HistoryEvent, Record as _, Recorded as _};

fn assert_adds_up(pool: &Pool) -> Snapshot {
    let (snapshot, figures) = (pool.inspect().snapshot(), pool.inspect().statistics());
    let states = [BlockState::Used, BlockState::Pending, BlockState::Free];
    let found = states.map(|state| snapshot.bytes_in(state));
    assert_eq!(
        found,
        [figures.used.current, figures.pending.current, figures.free]
    );
    assert_eq!(snapshot.reserved(), figures.reserved.current);
    for segment in &snapshot.segments {
        let gaps = segment.unmapped();
        let gaps: u64 = gaps
            .map(|gap| gap.end.offset_from(gap.start).unwrap())
            .sum();
        assert_eq!(segment.mapped + gaps, segment.size);
        let ends = segment
            .blocks
            .iter()
            .map(|block| block.address + block.size);
        let next = segment.blocks.iter().skip(1).map(|block| block.address);
        assert!(ends.zip(next).all(|(end, next)| end <= next));
    }
    snapshot
}

/// PyTorch's `memory_snapshot`: its blocks add up to the statistics.
pub(crate) fn snapshot_of_an_idle_pool_adds_up<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let [first, second] = site.workers();
    let used = first.take(5 * MIB);
    let [large, small] = [8 * MIB, 4096].map(|bytes| second.take(bytes));
    let [pending, kept] = [large.address(), small.address()];
    let gate = second.use_until_opened(&large, 1);
    drop((large, small));
    let snapshot = assert_adds_up(&site.pool);
    let at = |address| {
        let mut blocks = snapshot.blocks();
        let block = blocks.find(|block| block.address == address).unwrap();
        (block.state, block.stream, block.waits_for.clone())
    };
    let [one, two] = [&first, &second].map(|worker| worker.stream.id());
    assert_eq!(at(used.address()), (BlockState::Used, Some(one), vec![]));
    assert_eq!(at(pending), (BlockState::Pending, None, vec![two]));
    assert_eq!(at(kept), (BlockState::Pending, Some(two), vec![two]));
    gate.open();
    second.settle();
    block_on(second.stream.synchronize()).unwrap();
    let snapshot = assert_adds_up(&site.pool);
    assert_eq!(snapshot.bytes_in(BlockState::Pending), 0);
    drop(used);
    block_on(first.stream.synchronize()).unwrap();
    let _ = site.pool.trim_to(0).unwrap();
    assert_adds_up(&site.pool);
    site.assert_sound();
}

/// PyTorch's `_record_memory_history`: growth comes before its blocks, and an allocation before its free.
pub(crate) fn history_is_in_the_order_of_events<B: Bench>() {
    let site = Site::<B>::with(16 * MIB, |builder| builder.history(100));
    let worker = site.worker();
    let (small, large) = (worker.take(1000), worker.take(6 * MIB));
    worker.use_up(&large, 1);
    drop(large);
    block_on(worker.stream.synchronize()).unwrap();
    worker.take_nothing(16 * MIB);
    drop(small.deallocate());
    block_on(worker.stream.synchronize()).unwrap();
    let reserved = site.pool.inspect().statistics().reserved.current;
    let released = site.pool.trim_to(0).unwrap().released;
    assert_eq!(released, reserved);

    let history = site.pool.history();
    assert_eq!(history.forgotten, 0);
    let times = history.entries.iter().map(|entry| entry.time);
    assert!(times.is_sorted());
    let (mut held, mut used) = (0, 0);
    let (mut numbers, mut freed, mut failures) = (Vec::new(), Vec::new(), 0);
    for entry in &history.entries {
        match &entry.event {
            HistoryEvent::Grown { bytes, .. } => held += bytes,
            HistoryEvent::Released { bytes, .. } => held -= bytes,
            HistoryEvent::Allocated { size, origin, .. } => {
                used += size;
                numbers.push((origin.number, origin.requested));
                assert!(origin.site.file.ends_with("site.rs"), "{}", origin.site);
            }
            HistoryEvent::Freed {
                size, number, site, ..
            } => {
                used -= size;
                freed.push((*number, site.is_some()));
            }
            HistoryEvent::OutOfMemory { .. } => failures += 1,
            _ => {}
        }
        assert!(used <= held);
        let occupancy = entry.occupancy;
        // A run of several segments has one entry for each, all with the occupancy after the last.
        assert_eq!(occupancy.used, used, "{entry}");
    }
    assert_eq!((held, used, failures), (0, 0, 1));
    assert_eq!(numbers, [(1, 1000), (2, 6 * MIB)]);
    assert_eq!(freed, [(2, false), (1, true)]);
    site.assert_sound();
}

pub(crate) fn leaks_are_the_blocks_in_use<B: Bench>() {
    let site = Site::<B>::with(16 * MIB, |builder| builder.history(1));
    let worker = site.worker();
    assert!(site.pool.leaks().is_empty());
    let block = worker.take(3 * MIB);
    drop(worker.take(MIB));
    site.pool.close();
    let leaks = site.pool.leaks();
    let [leak] = &leaks.blocks[..] else {
        panic!("{leaks}");
    };
    assert_eq!((leak.address, leak.size), (block.address(), block.size()));
    let origin = leak.origin.as_ref().unwrap();
    assert_eq!((origin.number, origin.requested), (1, 3 * MIB));
    assert!(leaks.to_string().contains("site.rs:"), "{leaks}");
    drop(block);
    assert!(site.pool.leaks().is_empty());
    site.assert_conserved();
}
