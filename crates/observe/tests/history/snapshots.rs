//! All blocks at one moment.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use weirpool::Unordered;
use weirpool::device::sim::{Checker, Clock};

#[test]
fn a_snapshot_adds_up_whatever_blocks_are_at() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    assert_eq!(assert_adds_up(&pool).blocks().count(), 0);
    let [(first_work, first), (second_work, second)] = streams(&device, &pool);
    let used = pool.try_allocate(&first, 5 * MIB).unwrap();
    let shared = pool.try_allocate(&first, 3 * MIB).unwrap();
    let pending = pool.try_allocate(&second, 4 * MIB).unwrap();
    let kept: Vec<_> = (0..3)
        .map(|_| pool.try_allocate(&second, 4096).unwrap())
        .collect();
    let [shared_at, pending_at, cached_at] = [&shared, &pending, &kept[0]].map(Block::address);
    use_block(&first_work, &shared, us(50));
    second.record_use(Unordered::UntilFreed(&shared)).unwrap();
    use_block(&second_work, &pending, us(50));
    drop((shared, pending, kept));

    let snapshot = assert_adds_up(&pool);
    let at = |address| {
        let found = snapshot.blocks().find(|block| block.address == address);
        let block = found.unwrap();
        // One block is looked up as it is listed with all others.
        assert_eq!(pool.inspect().block_at(address).as_ref(), Some(block));
        (block.state, block.stream, block.waits_for.clone())
    };
    let (one, two) = (first.id(), second.id());
    assert_eq!(at(used.address()), (BlockState::Used, Some(one), vec![]));
    assert_eq!(at(shared_at), (BlockState::Pending, None, vec![one, two]));
    assert_eq!(at(pending_at), (BlockState::Pending, None, vec![two]));
    assert_eq!(at(cached_at), (BlockState::Pending, Some(two), vec![two]));
    let text = snapshot.to_string();
    assert!(text.contains("pending  waits for S1, S2"), "{text}");

    // Complete and known to be: what the lane keeps is free, and kept.
    let mut passed = [&first, &second].map(Stream::synchronize);
    assert!(passed.iter_mut().all(|passed| poll(passed).is_pending()));
    device.advance(us(100));
    passed.into_iter().for_each(|passed| now(passed).unwrap());
    let snapshot = assert_adds_up(&pool);
    let kept = snapshot.blocks_in(BlockState::Free);
    let kept: Vec<_> = kept.filter(|block| block.stream == Some(two)).collect();
    assert_eq!(kept.len(), 3);
    drop(used);
    let _ = pool.trim_to(0).unwrap();
    let mut passed = first.synchronize();
    device.advance(us(1));
    assert!(poll(&mut passed).is_ready());
    let _ = pool.trim_to(0).unwrap();
    let snapshot = assert_adds_up(&pool);
    assert_eq!((snapshot.reserved(), snapshot.blocks().count()), (0, 0));
    assert!(snapshot.segments.iter().all(|segment| segment.mapped == 0));
}

#[test]
fn a_snapshot_of_remapped_and_of_plain_memory_adds_up() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .virtual_memory(virtual_memory)
            .clock(Clock::Manual)
            .build();
        let pool = pool(&device, 32 * MIB);
        let (_, first) = stream(&device, &pool);
        let blocks: Vec<_> = (0..8)
            .map(|_| pool.try_allocate(&first, 4 * MIB).unwrap())
            .collect();
        let kept: Vec<_> = blocks.into_iter().step_by(2).collect();
        now(first.synchronize()).unwrap();
        let whole = pool.try_allocate(&first, 8 * MIB);
        assert!(whole.is_ok());
        let snapshot = assert_adds_up(&pool);
        assert_eq!(snapshot.virtual_memory, virtual_memory);
        let gaps = snapshot.segments.iter().flat_map(SegmentInfo::unmapped);
        assert_eq!(gaps.count() > 0, virtual_memory);
        drop((kept, whole));
    }
}

/// Others allocate and free; the listed blocks are of one moment all the same.
#[test]
fn a_snapshot_is_consistent_while_others_go_on() {
    let device = SimDevice::builder().checker(Checker::Off).build();
    let pool = recorded(&device, 64 * MIB);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (pool, device, is_over) = (&pool, &device, &is_over);
            scope.spawn(move || {
                let stream = pool.register(&device.create_stream()).unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                let mut blocks = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let bytes = random.u64(1..3 * MIB);
                    blocks.extend(pool.try_allocate(&stream, bytes).ok());
                    if blocks.len() > 8 {
                        drop(blocks.swap_remove(random.usize(..blocks.len())));
                    }
                }
            });
        }
        let mut forgotten = 0;
        for count in 0.. {
            if count >= 200 && forgotten >= 10_000 {
                break;
            }
            let (snapshot, history) = pool.recorded();
            forgotten = history.forgotten;
            assert_tiled(&snapshot);
            let times = history.entries.iter().map(|entry| entry.time);
            assert!(times.is_sorted());
            assert_mapped(&snapshot, &history);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_adds_up(&pool);
    assert_eq!(pool.recorded().1.entries.len(), 1000);
}

/// The last that the history tells of any memory is whether it is there.
fn assert_mapped(snapshot: &Snapshot, history: &History) {
    let is_mapped = |address: DeviceAddress| {
        let mut blocks = snapshot.blocks();
        blocks.any(|block| (block.address..block.address + block.size).contains(&address))
    };
    let mut told = std::collections::BTreeMap::new();
    let mut tell = |address: DeviceAddress, bytes: u64, is_there: bool| {
        for offset in (0..bytes).step_by(CHUNK as usize) {
            told.insert(address + offset, is_there);
        }
    };
    for entry in &history.entries {
        match entry.event {
            HistoryEvent::Grown { address, bytes } => tell(address, bytes, true),
            HistoryEvent::Released { address, bytes } => tell(address, bytes, false),
            HistoryEvent::Remapped { from, to, bytes } => {
                tell(from, bytes, false);
                tell(to, bytes, true);
            }
            _ => {}
        }
    }
    for (handle, is_there) in told {
        assert_eq!(is_mapped(handle), is_there, "{handle:#x}");
    }
}
