//! Addresses instead of blocks, as an allocator hook of a C library hands them out and takes them back.

use crate::bench;
use crate::bench::{Bench, Span};
use crate::common::{MIB, assert_matches};
use crate::site::{ONLY_COMPLETE, Site, Worker, settle_all};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;
use weirpool::{AllocError, BlockState, Source};
use weirpool_compat::{RawError, RawPool};

fn span(address: u64, bytes: u64) -> Span {
    Span {
        address: address.into(),
        bytes,
    }
}

/// Returns the message with which an address is refused.
#[track_caller]
fn refused<B: Bench>(raw: &RawPool, worker: &Worker<B>, address: u64) -> String {
    let error = raw.free(address, &worker.work).unwrap_err();
    let RawError::NotGivenOut { address: of, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*of, address);
    error.to_string()
}

/// cupy double_free, pytorch#150098: a second free, an address inside a block, one of another pool and an unknown
/// one are errors that say so, without effect.
pub(crate) fn address_is_freed_once<B: Bench>() {
    let (site, elsewhere) = (Site::<B>::new(8 * MIB), Site::<B>::new(8 * MIB));
    let (raw, worker, stranger) = (RawPool::new(&site.pool), site.worker(), elsewhere.worker());
    let addresses = [(); 3].map(|()| raw.try_allocate(&worker.work, 2 * MIB).unwrap());
    let [freed, kept, taken] = addresses;
    worker.fill(span(kept, 2 * MIB), 1);
    raw.free(freed, &worker.work).unwrap();
    let owned = raw.take(taken).unwrap();
    let theirs = stranger.take(MIB);
    for (address, words) in [
        (freed, "was it freed already"),
        (kept + 512, "it lies within"),
        (taken, "has another owner"),
        (theirs.address().to_bits(), "allocated elsewhere"),
        (0, "allocated elsewhere"),
    ] {
        let text = refused(&raw, &worker, address);
        assert!(text.contains(words), "{text}");
        assert!(text.contains(&format!("{address:#x}")), "{text}");
    }
    let Err(RawError::NotGivenOut { found, .. }) = raw.take(kept + 512) else {
        panic!("an address within a block");
    };
    let found = found.expect("the block that it is in");
    let seen = (found.address, found.state);
    assert_eq!(seen, (kept.into(), BlockState::Used));
    // The refused calls have no effect.
    assert_eq!(raw.given_out(), 1);
    assert_eq!(site.pool.inspect().statistics().used.current, 4 * MIB);
    worker.expect(span(kept, 2 * MIB), 1);
    // A block of another pool is refused and returned; a block of this pool is accepted.
    let theirs = raw.keep(theirs).unwrap_err();
    assert_eq!(raw.keep(owned).unwrap(), taken);
    for address in [kept, taken] {
        raw.free(address, &worker.work).unwrap();
        refused(&raw, &worker, address);
    }
    drop(theirs);
    worker.settle();
    assert_eq!(raw.given_out(), 0);
    site.assert_sound();
}

/// An address is freed on another stream than it was allocated on. The order of both is kept, and neither stream
/// waits.
pub(crate) fn address_is_freed_on_another_stream<B: Bench>() {
    for opened_first in [0, 1] {
        let site = Site::<B>::without_device_waits(8 * MIB);
        let [own, other, heir] = site.workers();
        let raw = RawPool::new(&site.pool);
        let address = raw.try_allocate(&own.work, 8 * MIB).unwrap();
        own.fill(span(address, 8 * MIB), 1);
        own.settle();
        let mut gates = [&own, &other].map(|worker| {
            let gate = site.bench.hold(&worker.work);
            worker.expect(span(address, 8 * MIB), 1);
            Some(gate)
        });
        raw.free(address, &other.work).unwrap();
        heir.take_nothing(8 * MIB);
        gates[opened_first].take().unwrap().open();
        site.bench.let_run();
        heir.take_nothing(8 * MIB);
        drop(gates);
        settle_all(&[&own, &other]);
        let block = heir.take_from(Source::Free, 8 * MIB);
        heir.use_up(&block, 2);
        heir.free_and_settle(block);
        assert_eq!(site.pool.inspect().statistics().device_waits, 0);
        site.assert_sound();
    }
}

/// As with `cudaFreeAsync`, the stream of the allocation may be destroyed. The memory is reused after the freeing
/// stream, and after its own earlier life.
pub(crate) fn address_is_freed_after_its_stream_is_destroyed<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let [earlier, other, heir] = site.workers();
    let raw = RawPool::new(&site.pool);
    // The earlier life lasts until the first gate opens. Only the stream that is destroyed waits for it.
    let block = earlier.take(8 * MIB);
    let first = earlier.use_until_opened(&block, 1);
    drop(block);
    let work = site.bench.stream();
    let external = site.bench.external(&work);
    let address = raw.try_allocate(&external, 8 * MIB).unwrap();
    let name = bench::raw(&work);
    let calls = probe.calls_on(name);
    drop(work);
    let second = site.bench.hold(&other.work);
    raw.free(address, &other.work).unwrap();
    assert_eq!(probe.calls_on(name), calls);
    assert_eq!(site.pool.inspect().statistics().used.current, 0);
    // The next owner comes after both.
    let block = heir.take_from(Source::DeviceWait, 8 * MIB);
    heir.use_up(&block, 2);
    site.bench.let_run();
    second.open();
    other.settle();
    site.bench.let_run();
    first.open();
    settle_all(&[&earlier, &heir]);
    drop(block);
    assert_eq!(probe.calls_on(name), calls);
    site.assert_sound();
}

/// A stream stays registered while it has an owner, whichever others are added, and is dropped with its last owner.
pub(crate) fn stream_stays_registered_while_it_has_an_owner<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let raw = RawPool::new(&site.pool);
    let [first, second, third] = [(); 3].map(|()| site.bench.stream());
    let is_found = |work: &B::Work, id| raw.stream(work).unwrap().id() == id;
    let ids = [&first, &second].map(|work| raw.stream(work).unwrap().id());
    assert!(is_found(&first, ids[0]) && is_found(&second, ids[1]));
    let streams = || site.pool.inspect().statistics_by_stream().len();
    let before = streams();
    drop(second);
    raw.stream(&third).unwrap();
    assert_eq!(streams(), before, "one was added and one was dropped");
    assert!(is_found(&first, ids[0]));
    drop(raw);
    site.assert_conserved();
}

/// Memory that a further stream uses is reused only after that use, too. The user orders that stream after the
/// grant, so the pool makes no call on it.
pub(crate) fn address_is_reused_after_further_streams<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let [own, further, heir] = site.workers();
    let raw = RawPool::new(&site.pool);
    let name = bench::raw(&further.work);
    let earlier = raw.try_allocate(&own.work, 8 * MIB).unwrap();
    own.fill(span(earlier, 8 * MIB), 1);
    let first = site.bench.hold(&own.work);
    own.expect(span(earlier, 8 * MIB), 1);
    raw.free(earlier, &own.work).unwrap();
    // Its next life is ordered after that, which still runs.
    let address = raw.try_allocate(&own.work, 8 * MIB).unwrap();
    own.fill(span(address, 8 * MIB), 2);
    further.come_after(&own);
    raw.stream(&further.work).unwrap();
    let calls = probe.calls_on(name);
    raw.record_stream(address, &further.work).unwrap();
    assert_eq!(probe.calls_on(name), calls);
    let second = site.bench.hold(&further.work);
    further.expect(span(address, 8 * MIB), 2);
    raw.free(address, &own.work).unwrap();
    first.open();
    own.settle();
    heir.take_nothing(8 * MIB);
    second.open();
    further.settle();
    let block = heir.take_from(Source::Free, 8 * MIB);
    heir.use_up(&block, 3);
    heir.free_and_settle(block);
    let refused = raw.record_stream(address, &further.work).unwrap_err();
    assert_matches!(refused, RawError::NotGivenOut { .. });
    site.assert_sound();
}

/// A hook waits for memory, up to a time limit.
pub(crate) fn allocation_of_an_address_waits_up_to_its_limit<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let [holder, waiter] = site.workers();
    let raw = RawPool::new(&site.pool);
    let held = raw.try_allocate(&holder.work, 8 * MIB).unwrap();
    let external = site.bench.external(&waiter.work);
    let limit = Duration::from_millis(2);
    let late = raw.allocate(&external, 8 * MIB, limit).unwrap_err();
    let AllocError::TimedOut {
        waited, shortfall, ..
    } = late
    else {
        panic!("{late}");
    };
    assert!(waited >= limit);
    assert_eq!(shortfall.used, 8 * MIB);
    let refused = raw.allocate(&external, 9 * MIB, None).unwrap_err();
    assert_matches!(refused, AllocError::TooLarge { .. });
    assert_eq!(raw.given_out(), 1);
    let address = thread::scope(|scope| {
        let waiting = scope.spawn(|| raw.allocate(&external, 8 * MIB, None));
        crate::site::eventually(|| site.pool.inspect().statistics().waits.waiting == 1);
        holder.fill(span(held, 8 * MIB), 1);
        raw.free(held, &holder.work).unwrap();
        waiting.join().unwrap().unwrap()
    });
    waiter.use_up(span(address, 8 * MIB), 2);
    raw.free(address, &external).unwrap();
    waiter.settle();
    site.assert_sound();
}

/// Several threads with an external stream each need more than the pool has. No contents are overwritten, and
/// addresses are freed by other threads.
pub(crate) fn threads_give_out_and_free_addresses<B: Bench>() {
    const ROUNDS: u64 = 60;
    let site = Site::<B>::new(16 * MIB);
    let raw = RawPool::new(&site.pool);
    let workers = site.workers::<4>();
    let (give, given) = channel::<u64>();
    thread::scope(|scope| {
        for (number, worker) in workers.iter().enumerate() {
            let (give, raw) = (give.clone(), &raw);
            scope.spawn(move || {
                let external = worker.bench.external(&worker.work);
                let mut random = fastrand::Rng::with_seed(number as u64);
                for round in 0..ROUNDS {
                    let bytes = crate::allocation::random_size(&mut random) / 4 * 4 + 4;
                    let address = raw.allocate(&external, bytes, None).unwrap();
                    let value = (number as u64 * ROUNDS + round) % 250 + 1;
                    worker.use_up(span(address, bytes), value as u8);
                    match round % 3 {
                        0 => {
                            worker.settle();
                            give.send(address).unwrap();
                        }
                        _ => raw.free(address, &external).unwrap(),
                    }
                }
            });
        }
        drop(give);
        // Their work is complete, so they may be freed on any stream.
        let last = &workers[3];
        for address in given {
            raw.free(address, &last.bench.external(&last.work)).unwrap();
        }
    });
    workers.iter().for_each(Worker::settle);
    assert_eq!(raw.given_out(), 0);
    site.assert_sound();
}

/// Several threads declare uses of one address on their streams, and then free it. All uses are accepted, one free
/// succeeds, and the others fail.
pub(crate) fn address_freed_by_several_threads_is_freed_once<B: Bench>() {
    const ROUNDS: usize = 40;
    let site = Site::<B>::new(8 * MIB);
    let raw = RawPool::new(&site.pool);
    let workers = site.workers::<4>();
    let (barrier, address) = (Barrier::new(workers.len()), AtomicU64::new(0));
    let freed = AtomicUsize::new(0);
    // Errors are reported at the end, because a panic would keep the other threads waiting for ever.
    let complaints = Mutex::new(Vec::new());
    let complain = |error: &dyn Debug| complaints.lock().unwrap().push(format!("{error:?}"));
    let round = |worker: &Worker<B>| {
        if barrier.wait().is_leader() {
            let given = raw.allocate(&worker.work, MIB, None);
            let given = given.inspect_err(|error| complain(error));
            address.store(given.unwrap_or(0), Ordering::SeqCst);
        }
        barrier.wait();
        let address = address.load(Ordering::SeqCst);
        if let Err(error) = raw.record_stream(address, &worker.work) {
            complain(&error);
        }
        barrier.wait();
        match raw.free(address, &worker.work) {
            Ok(()) => drop(freed.fetch_add(1, Ordering::SeqCst)),
            Err(RawError::NotGivenOut { .. }) => {}
            Err(other) => complain(&other),
        }
    };
    thread::scope(|scope| {
        for worker in &workers {
            scope.spawn(|| (0..ROUNDS).for_each(|_| round(worker)));
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_eq!(freed.into_inner(), ROUNDS);
    assert_eq!(raw.given_out(), 0);
    settle_all(&workers.each_ref());
    site.assert_conserved();
}

/// A table of addresses is dropped before its addresses are freed: they may still be in use.
pub(crate) fn addresses_outlive_their_raw_pool<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let raw = RawPool::new(&site.pool);
    let address = raw.try_allocate(&worker.work, 4 * MIB).unwrap();
    worker.fill(span(address, 4 * MIB), 1);
    drop(raw);
    assert_eq!(site.pool.inspect().statistics().used.current, 4 * MIB);
    worker.take_nothing(8 * MIB);
    worker.expect(span(address, 4 * MIB), 1);
    // Another table does not know the address.
    let again = RawPool::new(&site.pool);
    let text = refused(&again, &worker, address);
    assert!(text.contains("has another owner"), "{text}");
    worker.settle();
    site.witness.assert_content();
    site.pool.inspect().check().unwrap();
}
