//! What a pool tells of its blocks: snapshots, histories, leaks.

mod common;

use common::*;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Checker, Clock, SimDevice};
use weirpool::*;

fn recorded(device: &SimDevice, capacity: u64) -> Pool {
    builder(device, capacity).history(1000).build().unwrap()
}

/// The place of the call.
#[track_caller]
fn here() -> Site {
    Location::caller().into()
}

/// Blocks tile what is mapped of each segment, in order.
fn assert_tiled(snapshot: &Snapshot) {
    let mut end = DeviceAddress::from_bits(0);
    for segment in &snapshot.segments {
        assert!(segment.address >= end, "segments overlap: {snapshot}");
        let blocks = segment.blocks.iter();
        let spans = blocks.map(|block| block.address..block.address + block.size);
        let mut spans: Vec<_> = spans.chain(segment.unmapped()).collect();
        spans.sort_by_key(|span| span.start);
        end = segment.address;
        for span in spans {
            assert!(
                span.start == end && span.end > end,
                "{span:x?} in {snapshot}"
            );
            end = span.end;
        }
        assert_eq!(end, segment.address + segment.size);
        let bytes = segment.blocks.iter().map(|block| block.size);
        assert_eq!(segment.mapped, bytes.sum::<u64>());
    }
}

/// At rest: the sums are those of the statistics.
fn assert_adds_up(pool: &Pool) -> Snapshot {
    let (snapshot, figures) = (pool.snapshot(), pool.statistics());
    assert_tiled(&snapshot);
    let sums = [BlockState::Used, BlockState::Pending, BlockState::Free];
    assert_eq!(
        sums.map(|state| snapshot.bytes_in(state)),
        [figures.used.current, figures.pending.current, figures.free]
    );
    assert_eq!(snapshot.reserved(), figures.reserved.current);
    let live = snapshot.blocks_in(BlockState::Used).count() as u64;
    assert_eq!(live, figures.live_blocks);
    snapshot
}

#[test]
fn a_snapshot_adds_up_whatever_blocks_are_at() {
    let device = manual();
    let pool = pool(&device, 32 * MIB);
    assert_eq!(assert_adds_up(&pool).blocks().count(), 0);
    let (first_work, first) = stream(&device, &pool);
    let (second_work, second) = stream(&device, &pool);
    let used = pool.try_allocate(&first, 5 * MIB).unwrap();
    let shared = pool.try_allocate(&first, 3 * MIB).unwrap();
    let pending = pool.try_allocate(&second, 4 * MIB).unwrap();
    let kept: Vec<_> = (0..3)
        .map(|_| pool.try_allocate(&second, 4096).unwrap())
        .collect();
    let [shared_at, pending_at, kept_at] = [&shared, &pending, &kept[0]].map(Block::address);
    use_block(&first_work, &shared, us(50));
    shared.used_on(&second).unwrap();
    use_block(&second_work, &pending, us(50));
    drop((shared, pending, kept));

    let snapshot = assert_adds_up(&pool);
    let at = |address| {
        let found = snapshot.blocks().find(|block| block.address == address);
        let block = found.unwrap();
        // One block is looked up as it is listed with all others.
        assert_eq!(pool.block_at(address).as_ref(), Some(block));
        (block.state, block.stream, block.waits_for.clone())
    };
    let (one, two) = (first.id(), second.id());
    assert_eq!(at(used.address()), (BlockState::Used, Some(one), vec![]));
    assert_eq!(at(shared_at), (BlockState::Pending, None, vec![one, two]));
    assert_eq!(at(pending_at), (BlockState::Pending, None, vec![two]));
    assert_eq!(at(kept_at), (BlockState::Pending, Some(two), vec![two]));
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
    pool.trim_to(0).unwrap();
    let mut passed = first.synchronize();
    device.advance(us(1));
    assert!(poll(&mut passed).is_ready());
    pool.trim_to(0).unwrap();
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

/// Others allocate and free; what is listed is of one moment all the same.
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
            let snapshot = pool.snapshot();
            forgotten = snapshot.history.forgotten;
            assert_tiled(&snapshot);
            let times = snapshot.history.entries.iter().map(|entry| entry.time);
            assert!(times.is_sorted());
            assert_mapped(&snapshot);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_adds_up(&pool);
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.history.entries.len(), 1000);
}

/// The last that the history tells of any memory is whether it is there.
fn assert_mapped(snapshot: &Snapshot) {
    let is_mapped = |address: DeviceAddress| {
        let mut blocks = snapshot.blocks();
        blocks.any(|block| (block.address..block.address + block.size).contains(&address))
    };
    let mut told = std::collections::BTreeMap::new();
    let mut tell = |address: DeviceAddress, bytes: u64, is_there: bool| {
        for offset in (0..bytes).step_by(HANDLE as usize) {
            told.insert(address + offset, is_there);
        }
    };
    for entry in &snapshot.history.entries {
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

#[test]
fn a_history_tells_what_happened_in_order() {
    let device = manual();
    let pool = recorded(&device, 8 * MIB);
    let (work, first) = stream(&device, &pool);
    let (_, second) = stream(&device, &pool);
    let tag = Tag::new("history");
    device.advance(us(10));
    let (block, at) = (pool.allocate(&first, 5000).tag(tag).try_now(), here());
    let block = block.unwrap();
    let (address, size) = (block.address(), block.size());
    use_block(&work, &block, us(50));
    block.used_on(&second).unwrap();
    device.advance(us(5));
    let (done, freed_at) = (block.deallocate(), here());
    drop(done);

    let history = pool.history();
    assert_eq!(history.forgotten, 0);
    let [grown, allocated, freed] = &history.entries[..] else {
        panic!("{history}");
    };
    let (expected, grown_by) = (address.to_bits() / HANDLE * HANDLE, HANDLE);
    assert!(
        matches!(grown.event, HistoryEvent::Grown { address, bytes } if (address.to_bits(), bytes) == (expected, grown_by))
    );
    let HistoryEvent::Allocated { origin, stream, .. } = &allocated.event else {
        panic!("{allocated}");
    };
    assert_eq!((allocated.time, *stream), (us(10), first.id()));
    assert_eq!((&origin.site.file, origin.site.line), (&at.file, at.line));
    assert_eq!(
        (origin.number, origin.time, origin.requested),
        (1, us(10), 5000)
    );
    assert_eq!(
        (origin.tag, origin.rung, origin.waited),
        (Some(tag), Rung::Grown, false)
    );
    assert_eq!(allocated.occupancy.used, size);
    let HistoryEvent::Freed {
        number,
        further,
        site: Some(site),
        ..
    } = &freed.event
    else {
        panic!("{freed}");
    };
    assert_eq!((freed.time, *number), (us(15), 1));
    assert_eq!(further, &[second.id()]);
    assert_eq!((&site.file, site.line), (&freed_at.file, freed_at.line));
    assert_eq!(freed.occupancy.used, 0);
    assert_eq!(freed.occupancy.reserved, HANDLE);
}

/// What is not an allocation or a free: a wait, a wait on the device, a failure, growth, and its end.
#[test]
fn a_history_tells_why_it_took_so_long() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .history(1000)
        .wait_limit(WaitLimit::Unlimited)
        .build()
        .unwrap();
    let (work, first) = stream(&device, &pool);
    let (_, second) = stream(&device, &pool);
    let full = pool.try_allocate(&first, 8 * MIB).unwrap();
    assert!(pool.try_allocate(&second, MIB).is_err());
    let mut late = pool.allocate(&second, MIB).timeout(us(3));
    assert!(poll(&mut late).is_pending());
    let mut waiting = pool.allocate(&second, 8 * MIB);
    assert!(poll(&mut waiting).is_pending());
    device.advance(us(3));
    assert!(poll(&mut late).is_ready());
    device.advance(us(4));
    use_block(&work, &full, us(20));
    drop(full);
    drop(now(waiting).unwrap());
    device.advance(us(50));
    for stream in [&first, &second] {
        let mut passed = stream.synchronize();
        device.advance(us(1));
        assert!(poll(&mut passed).is_ready());
    }
    pool.trim_to(0).unwrap();

    let told: Vec<_> = pool
        .history()
        .entries
        .into_iter()
        .map(|entry| entry.event)
        .collect();
    let position = |is_it: &dyn Fn(&HistoryEvent) -> bool| {
        let found = told.iter().position(is_it);
        found.unwrap_or_else(|| panic!("not told: {told:#?}"))
    };
    let of_second = |stream: Option<StreamId>| stream == Some(second.id());
    let order = [
        position(&|event| {
            matches!(event, HistoryEvent::OutOfMemory { stream, shortfall }
            if of_second(*stream) && (shortfall.requested, shortfall.waiting) == (MIB, 0))
        }),
        position(&|event| {
            matches!(event, HistoryEvent::OutOfMemory { shortfall, .. }
            if shortfall.waiting == 2)
        }),
        position(&|event| {
            matches!(event, HistoryEvent::Waited { stream, waited, served: false, .. }
            if of_second(*stream) && *waited == us(3))
        }),
        position(&|event| {
            matches!(event, HistoryEvent::DeviceWait { stream, donor }
            if of_second(Some(*stream)) && *donor == first.id())
        }),
        position(&|event| {
            matches!(event, HistoryEvent::Waited { requested, waited, served: true, .. }
            if (*requested, *waited) == (8 * MIB, us(7)))
        }),
        position(&|event| {
            matches!(event, HistoryEvent::Allocated { origin, .. }
            if origin.waited && origin.rung == Rung::DeviceWait)
        }),
        position(&|event| matches!(event, HistoryEvent::Harvested { .. })),
        position(
            &|event| matches!(event, HistoryEvent::Released { bytes, .. } if *bytes == 8 * MIB),
        ),
    ];
    assert!(order.is_sorted(), "{order:?} of {told:#?}");
}

/// A reservation is for no stream, and what is allocated of it is its tag's.
#[test]
fn a_history_knows_reservations() {
    let device = manual();
    let pool = recorded(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("history: reserved");
    let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert!(pool.reserve(MIB).try_now().is_err());
    let mut reserving = pool.reserve(4 * MIB).tag(tag);
    assert!(poll(&mut reserving).is_pending());
    device.advance(us(7));
    drop(full);
    let reservation = now(reserving).unwrap();
    let direct = reservation.allocate(&stream, MIB).unwrap();
    let in_scope = now(Box::pin(reservation.scope(pool.allocate(&stream, MIB)))).unwrap();

    let history = pool.history();
    let told = |is_it: fn(&HistoryEvent) -> bool| {
        let mut entries = history.entries.iter();
        let found = entries.find(|entry| is_it(&entry.event));
        found.unwrap_or_else(|| panic!("{history}")).to_string()
    };
    let out = told(|event| matches!(event, HistoryEvent::OutOfMemory { stream: None, .. }));
    assert!(out.contains("out of memory to reserve: 1048576 "), "{out}");
    let waited = told(|event| matches!(event, HistoryEvent::Waited { stream: None, .. }));
    let expected = "waited 7µs for 4194304 bytes to reserve, served";
    assert!(waited.ends_with(expected), "{waited}");
    let drawn = history
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            HistoryEvent::Allocated { origin, size, .. } if *size == MIB => Some(origin.tag),
            _ => None,
        });
    assert_eq!(drawn.collect::<Vec<_>>(), [Some(tag); 2]);
    let text = history.to_string();
    assert!(
        text.contains(" on S1") && !text.contains("S4294967295"),
        "{text}"
    );
    let snapshot = pool.snapshot();
    let left = snapshot.blocks_in(BlockState::Reserved).next().unwrap();
    assert_eq!(left.reservation.as_ref().unwrap().tag, Some(tag));
    assert_eq!(pool.block_at(left.address).as_ref(), Some(left));
    let text = snapshot.to_string();
    assert!(
        text.contains("2.0 MiB reserved 0.000 ms history: reserved tests/history.rs:"),
        "{text}"
    );
    let of_block = pool.block_at(direct.address()).unwrap().origin;
    assert_eq!(of_block.unwrap().tag, Some(tag));
    // The tag has what was reserved for it, once.
    assert_eq!(pool.statistics_of_tag(tag).used.current, 4 * MIB);
    drop((direct, in_scope, reservation));
    assert_eq!(pool.statistics_of_tag(tag).used.current, 0);
}

#[test]
fn a_history_is_bounded_and_its_blocks_are_known_for_as_long_as_they_live() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).history(10).build().unwrap();
    let (_, first) = stream(&device, &pool);
    let kept = pool.try_allocate(&first, 1000).unwrap();
    for _ in 0..50 {
        device.advance(us(1));
        drop(pool.try_allocate(&first, 1000).unwrap());
    }
    let history = pool.history();
    assert_eq!((history.entries.len(), history.forgotten), (10, 92));
    let last = history.entries.last().unwrap();
    assert!(
        matches!(last.event, HistoryEvent::Freed { number: 51, .. }),
        "{last}"
    );
    assert_eq!(last.time, us(50));
    let text = history.to_string();
    assert!(
        text.starts_with("(92 entries before these are forgotten)\n"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 11);
    let leaks = pool.leaks();
    assert_eq!(leaks.age_of(&leaks.blocks[0]), Some(us(50)));
    assert_eq!(leaks.blocks[0].origin.as_ref().unwrap().number, 1);
    drop(kept);
    // Without one, nothing is told.
    let silent = common::pool(&device, 8 * MIB);
    let (_, first) = stream(&device, &silent);
    drop(silent.try_allocate(&first, 1000).unwrap());
    assert_eq!(silent.history(), History::default());
}

/// With or without a device that checks orderings: both hear of every block.
#[test]
fn the_referee_does_not_go_without() {
    for checker in [Checker::Collect, Checker::Off] {
        let device = SimDevice::builder()
            .clock(Clock::Manual)
            .checker(checker)
            .build();
        let pool = recorded(&device, 8 * MIB);
        let (work, first) = stream(&device, &pool);
        let block = pool.try_allocate(&first, MIB).unwrap();
        let address = block.address();
        drop(block);
        work.submit(weirpool::device::sim::Operation::new(us(1)).writes(address, 16));
        device.advance(us(5));
        let told = pool.history().entries.len();
        assert_eq!(told, 3);
        let is_checked = matches!(checker, Checker::Collect);
        assert_eq!(!device.violations().is_empty(), is_checked);
    }
}

#[test]
fn leaks_are_grouped_by_place_the_largest_first() {
    let device = manual();
    let pool = recorded(&device, 32 * MIB);
    let (_, first) = stream(&device, &pool);
    let tag = Tag::new("leaked");
    assert_eq!(pool.leaks().to_string(), "no block is in use");
    let mut small = Vec::new();
    let mut small_at = here();
    for _ in 0..3 {
        let (block, at) = (pool.try_allocate(&first, 500), here());
        small.push(block.unwrap());
        small_at = at;
        device.advance(us(1000));
    }
    let (large, large_at) = (pool.allocate(&first, 3 * MIB).tag(tag).try_now(), here());
    let large = large.unwrap();
    drop(pool.try_allocate(&first, MIB).unwrap());
    device.advance(us(500));
    let leaks = pool.leaks();
    assert_eq!((leaks.blocks.len(), leaks.bytes()), (4, 3 * MIB + 3 * 512));
    let text = leaks.to_string();
    let lines: Vec<_> = text.lines().collect();
    let line_of = |site: &Site| format!("{}:{}:", site.file, site.line);
    assert_eq!(lines[0], "4 blocks of 3.0 MiB in use");
    let begins = [
        format!(
            "  1 block of 3.0 MiB, the oldest for 0.500 ms, for leaked, from {}",
            line_of(&large_at)
        ),
        format!(
            "  3 blocks of 1.5 KiB, the oldest for 3.500 ms, from {}",
            line_of(&small_at)
        ),
    ];
    for (line, begin) in lines[1..].iter().zip(&begins) {
        assert!(
            line.starts_with(begin.as_str()),
            "{line} instead of {begin}"
        );
    }
    assert_eq!(lines.len(), 3);
    drop((large, small));
}

/// Reservations live as blocks do: with what is left of them, where they were made, and for whom.
#[test]
fn leaks_know_reservations() {
    let device = manual();
    let pool = recorded(&device, 32 * MIB);
    let (_, first) = stream(&device, &pool);
    let tag = Tag::new("leaked: reserved");
    let (reserve, at) = (pool.reserve(16 * MIB).tag(tag), here());
    let mut reservation = reserve.try_now().unwrap();
    device.advance(us(1000));
    let (part, part_at) = (reservation.split(4 * MIB), here());
    let part = part.unwrap();
    let block = reservation.allocate(&first, MIB).unwrap();
    let leaks = pool.leaks();
    assert_eq!((leaks.blocks.len(), leaks.reservations.len()), (1, 2));
    assert_eq!(leaks.bytes(), 16 * MIB);
    let left = leaks
        .reservations
        .iter()
        .map(|reservation| reservation.left);
    assert_eq!(left.collect::<Vec<_>>(), [11 * MIB, 4 * MIB]);
    let origin = leaks.reservations[1].origin.as_ref().unwrap();
    assert_eq!((origin.tag, origin.time), (Some(tag), us(1000)));
    assert_eq!(
        (&origin.site.file, origin.site.line),
        (&part_at.file, part_at.line)
    );
    let text = leaks.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "1 block of 1.0 MiB in use, 2 reservations with 15.0 MiB left"
    );
    let begin = format!(
        "  1 reservation with 11.0 MiB left, the oldest for 1.000 ms, for leaked: reserved, from {}:{}:",
        at.file, at.line
    );
    assert!(
        lines[2].starts_with(&begin),
        "{} instead of {begin}",
        lines[2]
    );
    assert_eq!(lines.len(), 4);
    drop((part, block));
    // Forgotten, and with nothing left.
    let rest = reservation.allocate(&first, 12 * MIB).unwrap();
    std::mem::forget(reservation);
    let leaks = pool.leaks();
    assert_eq!((leaks.reservations.len(), leaks.bytes()), (1, 12 * MIB));
    drop(rest);
    assert_eq!(pool.close().reservations[0].left, 12 * MIB);
    // Without a history their places are not known.
    let silent = common::pool(&device, 8 * MIB);
    let reservation = silent.reserve(MIB).try_now().unwrap();
    let leaks = silent.leaks();
    assert_eq!(
        leaks.to_string(),
        "1 reservation with 1.0 MiB left; PoolBuilder::history has their places known"
    );
    assert!(leaks.reservations[0].origin.is_none() && !leaks.is_empty());
    drop(reservation);
    assert!(silent.leaks().is_empty());
}

#[test]
fn closing_reports_who_has_blocks_still() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, first) = stream(&device, &pool);
    let block = pool.try_allocate(&first, MIB).unwrap();
    std::mem::forget(pool.try_allocate(&first, 4096).unwrap());
    let leaks = pool.close();
    assert_eq!((leaks.blocks.len(), leaks.bytes()), (2, MIB + 4096));
    assert_eq!(leaks.blocks[0].stream, Some(first.id()));
    let text = leaks.to_string();
    assert!(
        text.starts_with("2 blocks of 1.0 MiB in use; PoolBuilder::history "),
        "{text}"
    );
    drop(block);
    assert_eq!(pool.close().blocks.len(), 1);
}
