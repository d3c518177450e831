//! The history of recent events.

use super::*;
use weirpool::Unordered;
use weirpool::device::sim::{Checker, Clock};

#[test]
fn history_lists_events_in_order() {
    let device = manual();
    let pool = recorded(&device, 8 * MIB);
    let [(work, first), (_, second)] = streams(&device, &pool);
    let tag = Tag::new("history");
    device.advance(us(10));
    let (block, at) = (pool.allocate(&first, 5000).tag(tag).try_now(), here());
    let block = block.unwrap();
    let (address, size) = (block.address(), block.size());
    use_block(&work, &block, us(50));
    second.record_use(Unordered::UntilFreed(&block)).unwrap();
    device.advance(us(5));
    let (done, freed_at) = (block.deallocate(), here());
    drop(done);

    let history = pool.history();
    assert_eq!(history.forgotten, 0);
    let [grown, allocated, freed] = &history.entries[..] else {
        panic!("{history}");
    };
    let (expected, grown_by) = (address.to_bits() / CHUNK * CHUNK, CHUNK);
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
        (origin.tag, origin.source, origin.waited),
        (Some(tag), Source::Grown, false)
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
    assert_eq!(freed.occupancy.reserved, CHUNK);
}

/// Events other than allocations and frees: a wait, a wait on the device, a failure, growth, and its end.
#[test]
fn history_explains_delays() {
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .history(1000)
        .tuning(|tuning| tuning.when_short = WhenShort::GrowThenWait)
        .build()
        .unwrap();
    let [(work, first), (_, second)] = streams(&device, &pool);
    let full = pool.try_allocate(&first, 8 * MIB).unwrap();
    assert!(pool.try_allocate(&second, MIB).is_err());
    let mut late = not_ready(pool.allocate(&second, MIB).timeout(us(3)));
    let waiting = not_ready(pool.allocate(&second, 8 * MIB));
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
    let _ = pool.trim_to(0).unwrap();

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
            matches!(event, HistoryEvent::Waited { stream, waited, outcome: WaitOutcome::TimedOut, .. }
            if of_second(*stream) && *waited == us(3))
        }),
        position(&|event| {
            matches!(event, HistoryEvent::DeviceWait { stream, donor }
            if of_second(Some(*stream)) && *donor == first.id())
        }),
        position(&|event| {
            matches!(event, HistoryEvent::Waited { requested, waited, outcome: WaitOutcome::Served, .. }
            if (*requested, *waited) == (8 * MIB, us(7)))
        }),
        position(&|event| {
            matches!(event, HistoryEvent::Allocated { origin, .. }
            if origin.waited && origin.source == Source::DeviceWait)
        }),
        position(&|event| matches!(event, HistoryEvent::Reaped { .. })),
        position(
            &|event| matches!(event, HistoryEvent::Released { bytes, .. } if *bytes == 8 * MIB),
        ),
    ];
    assert!(order.is_sorted(), "{order:?} of {told:#?}");
}

/// A reservation belongs to no stream, and blocks from it have its tag.
#[test]
fn history_lists_reservations() {
    let device = manual();
    let pool = recorded(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("history: reserved");
    let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert!(pool.reserve(MIB).try_now().is_err());
    let reserving = not_ready(pool.reserve(4 * MIB).tag(tag));
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
    assert!(out.contains("out of memory to reserve: 1.0 MiB "), "{out}");
    let waited = told(|event| matches!(event, HistoryEvent::Waited { stream: None, .. }));
    let expected = "waited 7µs for 4.0 MiB to reserve, served";
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
    let snapshot = pool.inspect().snapshot();
    let left = snapshot.blocks_in(BlockState::Reserved).next().unwrap();
    assert_eq!(left.reservation.as_ref().unwrap().tag, Some(tag));
    assert_eq!(pool.inspect().block_at(left.address).as_ref(), Some(left));
    let text = snapshot.to_string();
    assert!(
        text.contains(
            "2.0 MiB reserved 0.000 ms history: reserved crates/observe/tests/history/histories.rs:"
        ),
        "{text}"
    );
    let of_block = pool.inspect().block_at(direct.address()).unwrap().origin;
    assert_eq!(of_block.unwrap().tag, Some(tag));
    // The reservation is charged to the tag once.
    assert_eq!(pool.tag(tag).statistics().used.current, 4 * MIB);
    drop((direct, in_scope, reservation));
    assert_eq!(pool.tag(tag).statistics().used.current, 0);
}

#[test]
fn history_is_bounded_but_keeps_the_origin_of_live_blocks() {
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
        text.starts_with("(92 earlier events are no longer kept)\n"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 11);
    let leaks = pool.leaks();
    assert_eq!(leaks.age_of(&leaks.blocks[0]), Some(us(50)));
    assert_eq!(leaks.blocks[0].origin.as_ref().unwrap().number, 1);
    drop(kept);
    // Without a history, no event is listed.
    let silent = crate::common::pool(&device, 8 * MIB);
    let (_, first) = stream(&device, &silent);
    drop(silent.try_allocate(&first, 1000).unwrap());
    assert_eq!(silent.history(), History::default());
}

/// The history records every block, whether or not the device checks orderings; and the checker works beside it.
#[test]
fn checker_and_history_both_observe_blocks() {
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
        assert_eq!(!device.take_violations().is_empty(), is_checked);
    }
}

/// A reservation keeps blocks for the streams that freed them. Each grant and each end of such a block has its entry.
#[test]
fn history_lists_kept_blocks() {
    let device = manual();
    let pool = recorded(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("history: kept");
    let reservation = pool.reserve(4 * MIB).tag(tag).try_now().unwrap();
    for _ in 0..5 {
        drop(reservation.allocate(&stream, MIB).unwrap());
    }
    let events = pool.history().entries.into_iter().map(|entry| entry.event);
    let numbers = |is_asked: fn(&HistoryEvent) -> Option<u64>| -> Vec<u64> {
        events
            .clone()
            .filter_map(|event| is_asked(&event))
            .collect()
    };
    let granted = numbers(|event| match event {
        HistoryEvent::Allocated { origin, .. } => {
            assert_eq!(origin.tag, Some(Tag::new("history: kept")));
            Some(origin.number)
        }
        _ => None,
    });
    let freed = numbers(|event| match event {
        HistoryEvent::Freed { number, .. } => Some(*number),
        _ => None,
    });
    assert_eq!(granted.len(), 5);
    assert_eq!(granted, freed);
    drop(reservation);
    assert!(pool.leaks().is_empty());
}

/// Statistics and events name the outcome alike of a request that loses its place in the full queue.
#[test]
fn history_tells_that_a_waiting_request_is_refused() {
    let device = manual();
    let pool = recorded(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    pool.maintain().set_queue_limit(2);
    let _full = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let [flood, other] = [Tag::new("history: flood"), Tag::new("history: other")];
    let request = |tag| Box::pin(pool.allocate(&stream, MIB).tag(tag));
    let _first = not_ready(request(flood));
    let displaced = not_ready(request(flood));
    let _other = not_ready(request(other));
    now(displaced).unwrap_err();
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.of(WaitOutcome::Refused), waits.failed), (1, 0));
    let mut entries = pool.history().entries.into_iter();
    let is_told = |event| {
        matches!(
            event,
            HistoryEvent::Waited {
                outcome: WaitOutcome::Refused,
                ..
            }
        )
    };
    assert!(entries.any(|entry| is_told(entry.event)));
}
