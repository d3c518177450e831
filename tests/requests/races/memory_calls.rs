//! Actions of other threads while memory is taken from the device, or released.

use super::*;

/// An allocation joins the queue while another thread's growth holds the capacity.
#[test]
fn waiter_that_queues_during_a_growth_is_served_by_the_surplus() {
    let (sim, dev, pool) = hooked(2 * MIB);
    let [(_wa, a), (_wb, b)] = streams(&sim, &pool);
    let (woken, waker) = Count::new();
    let p = pool.clone();
    let mut w: std::pin::Pin<Box<dyn Future<Output = Result<Block, AllocError>> + Send>> =
        Box::pin(async move { p.allocate(&b, 4096).await });
    let slot = Arc::new(Mutex::new(None));
    let s = slot.clone();
    dev.on("create", move || {
        assert!(poll_with(&mut w, &waker).is_pending());
        *s.lock().unwrap() = Some((w, woken.get(), woken));
    });
    let mine = pool.try_allocate(&a, 4096).unwrap();
    let (mut w, before, woken) = slot.lock().unwrap().take().unwrap();
    assert!(
        woken.get() > before,
        "memory is free, and the waiter was not woken"
    );
    assert!(poll(&mut w).is_ready());
    drop(mine);
}

/// An allocation joins the queue while memory is being released.
#[test]
fn waiter_that_queues_during_a_release_is_woken() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = tuned(&dev, 2 * MIB, |tuning| tuning.initial_size = 2 * MIB);
    let (_wb, b) = stream(&sim, &pool);
    let (woken, waker) = Count::new();
    let p = pool.clone();
    let mut w: std::pin::Pin<Box<dyn Future<Output = Result<Block, AllocError>> + Send>> =
        Box::pin(async move { p.allocate(&b, 4096).await });
    let slot = Arc::new(Mutex::new(None));
    let s = slot.clone();
    dev.on("unmap", move || {
        assert!(poll_with(&mut w, &waker).is_pending());
        *s.lock().unwrap() = Some((w, woken.get(), woken));
    });
    assert_eq!(pool.trim_to(0).unwrap().released, 2 * MIB);
    let (_w, before, woken) = slot.lock().unwrap().take().unwrap();
    assert!(
        woken.get() > before,
        "all capacity is available, and the waiter was not woken"
    );
}

/// The maintenance may release memory while a test checks its pool.
#[test]
fn check_waits_for_a_release_of_another_thread() {
    let dev = Hooked::new(&manual());
    let pool = tuned(&dev, 2 * MIB, |tuning| tuning.initial_size = 2 * MIB);
    let (checked, outcome) = std::sync::mpsc::channel();
    let outcome = Arc::new(Mutex::new(outcome));
    let (p, seen) = (pool.clone(), outcome.clone());
    dev.on("unmap", move || {
        let (p, checked) = (p.clone(), checked.clone());
        std::thread::spawn(move || checked.send(p.inspect().check_conserved()));
        let early = seen.lock().unwrap().recv_timeout(Duration::from_millis(20));
        assert!(early.is_err(), "checked within the release: {early:?}");
    });
    assert_eq!(pool.trim_to(0).unwrap().released, 2 * MIB);
    let checked = outcome.lock().unwrap().recv().unwrap();
    checked.unwrap();
}

/// Two threads allocate from an empty pool, while taking memory takes two milliseconds.
#[test]
fn first_allocations_share_memory_that_one_of_them_takes() {
    let sim = SimDevice::builder().memory(1 << 30).build();
    for _ in 0..20 {
        let dev = Hooked::new(&sim);
        dev.on("create", || std::thread::sleep(Duration::from_millis(2)));
        let pool = builder(&dev, 2 * MIB).made();
        let (served, both) = std::sync::mpsc::channel();
        let end = Arc::new(std::sync::Barrier::new(3));
        for i in 0..2 {
            let (pool, sim, served, end) = (pool.clone(), sim.clone(), served.clone(), end.clone());
            std::thread::spawn(move || {
                let (_w, s) = stream(&sim, &pool);
                std::thread::sleep(Duration::from_millis(i));
                let block = futures::executor::block_on(pool.allocate(&s, 4096)).unwrap();
                served.send(()).unwrap();
                end.wait();
                drop(block);
            });
        }
        for _ in 0..2 {
            let is_served = both.recv_timeout(Duration::from_secs(20));
            is_served.expect("2 MiB - 4 KiB are free, and it waits for the other to end");
        }
        end.wait();
        pool.end_before_its_blocks();
    }
}

/// Returns a device whose memory calls block, and a pool over it.
fn slow(capacity: u64) -> (SimDevice, Hooked, TestPool) {
    let sim = manual_builder().blocking_memory_calls(true).build();
    let device = Hooked::new(&sim);
    let pool = builder(&device, capacity).made();
    (sim, device, pool)
}

/// A request for many blocks makes as few calls in its first poll as a request for one block. The other calls are made
/// on a thread.
#[test]
fn first_poll_for_several_blocks_maps_few_chunks() {
    let (sim, dev, pool) = slow(64 * MIB);
    let (_, a) = stream(&sim, &pool);
    let poller = std::thread::current().id();
    let created = Arc::new(Mutex::new([0; 2]));
    for _ in 0..32 {
        let created = created.clone();
        dev.on("create", move || {
            let is_here = std::thread::current().id() == poller;
            created.lock().unwrap()[usize::from(is_here)] += 1;
        });
    }
    let _small = now(pool.allocate_many(&a, [4096; 16])).unwrap();
    assert_eq!(*created.lock().unwrap(), [0, 1], "they share a chunk");
    let _blocks = futures::executor::block_on(pool.allocate_many(&a, [CHUNK; 16])).unwrap();
    let [elsewhere, here] = *created.lock().unwrap();
    assert!(
        here <= 1 + 4,
        "{here} chunks in polls, {elsewhere} elsewhere"
    );
}

/// Growths that no poll makes follow each other. They are made by one thread, which is kept in between: to start a thread
/// for each takes longer than to map a chunk. A machine that stands still for long may cost a few threads.
#[test]
fn growths_beyond_a_poll_share_a_thread() {
    const GROWTHS: u64 = 64;
    const CHUNKS: u64 = 5;
    let sim = manual_builder().memory(1 << 40).blocking_memory_calls(true);
    let backing = weirpool::device::sim::Backing::AddressesOnly;
    let sim = sim.backing(backing).build();
    let dev = Hooked::new(&sim);
    let pool = builder(&dev, GROWTHS * CHUNKS * CHUNK).made();
    let (_, a) = stream(&sim, &pool);
    let growers = Arc::new(Mutex::new(Vec::new()));
    let mut held = Vec::new();
    for _ in 0..GROWTHS {
        let growers = growers.clone();
        dev.on("create", move || {
            growers.lock().unwrap().push(std::thread::current().id());
        });
        let growth = pool.allocate(&a, CHUNKS * CHUNK);
        held.push(futures::executor::block_on(growth).unwrap());
    }
    assert_eq!(pool.inspect().statistics().waits.served, GROWTHS);
    let mut growers = std::mem::take(&mut *growers.lock().unwrap());
    assert_eq!(growers.len() as u64, GROWTHS);
    growers.dedup();
    let threads = growers.len() as u64;
    assert!(threads <= GROWTHS / 8, "{threads} threads");
}

/// The thread that is kept for the next growth keeps no pool.
#[test]
fn pool_ends_while_its_thread_waits_for_the_next_growth() {
    let (sim, _dev, pool) = slow(64 * MIB);
    let (_, a) = stream(&sim, &pool);
    let block = futures::executor::block_on(pool.allocate(&a, 5 * CHUNK)).unwrap();
    drop((block, a));
    let ended = || sim.counters().calls(Call::Unreserve);
    assert_eq!(ended(), 0);
    drop(pool);
    eventually(|| ended() > 0);
}

/// A pool is closed while a blocked caller grows it. The caller gets its block, or learns of it; the others do.
#[test]
fn pool_that_closes_while_a_blocked_caller_grows_it_loses_nothing() {
    let (sim, dev, pool) = slow(4 * CHUNK);
    let [(_, a), (_, b)] = streams(&sim, &pool);
    let (closed, other) = (pool.clone(), b.clone());
    dev.on("create", move || {
        let p = closed.clone();
        let waits = std::thread::spawn(move || p.allocate(&other, 4 * CHUNK).blocking());
        eventually(|| closed.inspect().statistics().waits.waiting == 1);
        closed.close();
        assert_eq!(waits.join().unwrap().unwrap_err(), AllocError::Closed);
    });
    let tag = Tag::new("closed meanwhile");
    pool.tag(tag).set_limit(Some(4 * CHUNK));
    let block = pool.allocate(&a, 4 * CHUNK).tag(tag).blocking();
    assert_matches!(block, Ok(_) | Err(AllocError::Closed));
    drop(block);
    assert_eq!(pool.tag(tag).statistics().used.current, 0);
}

/// Two callers block for one chunk of capacity. The first one's call fails: the second is served all the same.
#[test]
fn failed_call_of_a_blocked_caller_leaves_the_capacity_to_the_next() {
    for (call, kind) in [
        (Call::Create, DeviceErrorKind::Other),
        (Call::Create, DeviceErrorKind::OutOfMemory),
        (Call::Map, DeviceErrorKind::Other),
        (Call::Map, DeviceErrorKind::OutOfMemory),
    ] {
        let (sim, dev, pool) = slow(CHUNK);
        let [(_, a), (_, b)] = streams(&sim, &pool);
        let (p, device) = (pool.clone(), sim.clone());
        let slot = Arc::new(Mutex::new(None));
        let second = slot.clone();
        dev.on("create", move || {
            let other = p.clone();
            let waits = std::thread::spawn(move || other.allocate(&b, CHUNK).blocking().map(drop));
            eventually(|| p.inspect().statistics().waits.waiting == 1);
            device.faults().fail_next(call, kind);
            *second.lock().unwrap() = Some(waits);
        });
        let first = pool.allocate(&a, CHUNK).blocking();
        match (&first, kind) {
            (Ok(_), DeviceErrorKind::OutOfMemory) | (Err(AllocError::Device(_)), _) => {}
            other => panic!("{call:?}: {other:?}"),
        }
        drop(first);
        let second = slot.lock().unwrap().take().unwrap();
        eventually(|| {
            sim.advance(us(1000));
            second.is_finished()
        });
        second.join().unwrap().unwrap();
    }
}

/// Every call of a growth fails once, in a first poll and in a blocked caller, with charged tags.
#[test]
fn growth_that_fails_in_any_call_loses_no_chunk_and_no_charge() {
    let calls = [Call::Create, Call::Map, Call::Unmap, Call::Destroy];
    let kinds = [
        DeviceErrorKind::Other,
        DeviceErrorKind::OutOfMemory,
        DeviceErrorKind::Sticky,
    ];
    let tag = Tag::new("failing growth");
    for (call, kind) in calls
        .into_iter()
        .flat_map(|call| kinds.map(|kind| (call, kind)))
    {
        for (nth, is_blocking) in (1..=4).flat_map(|nth| [(nth, false), (nth, true)]) {
            let sim = SimDevice::builder()
                // Virtual time would pass while the thread that grows is not scheduled.
                .clock(Clock::Wall)
                .memory(16 * MIB)
                .blocking_memory_calls(true);
            let sim = sim.build();
            let pool = builder(&sim, 8 * CHUNK).made();
            let (_, a) = stream(&sim, &pool);
            let account = pool.tag(tag);
            account.set_limit(Some(8 * CHUNK));
            sim.faults().script(call, nth, Fault::Fails(kind));
            for chunks in [1, 2, 2, 5] {
                let many = [chunks * CHUNK / 2; 2];
                let limit = Duration::from_secs(20);
                let block = pool.allocate(&a, chunks * CHUNK).tag(tag).timeout(limit);
                let blocks = pool.allocate_many(&a, many).tag(tag).timeout(limit);
                let with_room = pool.allocate(&a, CHUNK).room(CHUNK).tag(tag).timeout(limit);
                let answers = if is_blocking {
                    [
                        block.blocking().map(drop),
                        blocks.blocking().map(drop),
                        with_room.blocking().map(drop),
                    ]
                } else {
                    use futures::executor::block_on;
                    [
                        block_on(block).map(drop),
                        block_on(blocks).map(drop),
                        block_on(with_room).map(drop),
                    ]
                };
                for answer in answers {
                    let is_expected = matches!(answer, Ok(()) | Err(AllocError::Device(_)));
                    assert!(is_expected, "{call:?} {nth} {kind:?}: {answer:?}");
                }
                assert_eq!(account.statistics().used.current, 0);
                if chunks == 2 {
                    let _ = pool.trim_to(0);
                }
            }
            if kind != DeviceErrorKind::Sticky {
                pool.inspect().check_conserved().unwrap();
            }
        }
    }
}

/// rmm#2304: the device may hand out a released address again before the releasing thread has removed its entry.
#[test]
fn address_reused_at_once_is_kept() {
    let sim = manual_builder().virtual_memory(false).build();
    let dev = Hooked::new(&sim);
    let pool = builder(&dev, 8 * CHUNK).made();
    let (_, a) = stream(&sim, &pool);
    drop(pool.try_allocate(&a, 2 * CHUNK).unwrap());
    now(a.synchronize()).unwrap();
    let taken = Arc::new(Mutex::new(None));
    let (other, stream, place) = (pool.clone(), a.clone(), taken.clone());
    dev.on("freed", move || {
        *place.lock().unwrap() = Some(other.try_allocate(&stream, 2 * CHUNK).unwrap());
    });
    assert_eq!(pool.trim_to(0).unwrap().released, 2 * CHUNK);
    assert!(dev.spare.lock().unwrap().is_empty(), "it was reused");
    drop(taken.lock().unwrap().take());
    now(a.synchronize()).unwrap();
    assert_eq!(pool.trim_to(0).unwrap().released, 2 * CHUNK);
    assert_eq!(dev.spare.lock().unwrap().len(), 1);
}

/// Two concurrent trims do not each release the full amount.
#[test]
fn concurrent_trims_keep_the_target() {
    let (sim, dev, pool) = hooked(16 * CHUNK);
    let (_, a) = stream(&sim, &pool);
    drop(pool.try_allocate(&a, 8 * CHUNK).unwrap());
    now(a.synchronize()).unwrap();
    let other = pool.clone();
    dev.on("unmap", move || {
        assert_eq!(other.trim_to(4 * CHUNK).unwrap().released, 0);
    });
    assert_eq!(pool.trim_to(4 * CHUNK).unwrap().released, 4 * CHUNK);
    assert_eq!(reserved(&pool), 4 * CHUNK);
}

/// A pool that is resized while it grows exceeds its capacity, and releases the excess once it is free.
#[test]
fn resize_counts_growth_under_way() {
    let (sim, dev, pool) = hooked(8 * CHUNK);
    let (_, a) = stream(&sim, &pool);
    let other = pool.clone();
    dev.on("create", move || {
        let _ = other.resize(2 * CHUNK).unwrap();
    });
    let block = pool.try_allocate(&a, 8 * CHUNK).unwrap();
    pool.inspect().check().unwrap();
    drop(block);
    for _ in 0..5 {
        sim.advance(us(10_000));
    }
    assert_eq!(reserved(&pool), 2 * CHUNK);
}

/// An alarm may be called, and the next one set, before the thread that set the first has stored its id.
#[test]
fn alarm_that_is_due_at_once_does_not_cancel_the_next() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = builder(&dev, 8 * CHUNK)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .tuning(|tuning| tuning.lane_bytes = 0)
        .made();
    let (work, a) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * CHUNK).unwrap();
    use_block(&work, &block, us(15_000));
    let clock = sim.clone();
    dev.on("alarm", move || clock.advance(us(10_000)));
    drop(block);
    for _ in 0..5 {
        sim.advance(us(10_000));
    }
    assert_eq!(reserved(&pool), 0);
}
