//! Streams of other libraries, which the pool cannot keep alive. Their owner destroys them at any time, and their
//! handle may be reused.

use crate::bench;
use crate::bench::{Bench, Gate};
use crate::common::{MIB, assert_matches, not_ready, now, poll, until_freed};
use crate::probe::Probe;
use crate::site::{ONLY_COMPLETE, Site, Worker, settle_all};
use futures::executor::block_on;
use weirpool::Unordered;
use weirpool::device::{DeviceErrorKind, RawStream};
use weirpool::{Block, PoolBuilder, Reuse, Source, StreamError, WhenShort};
use weirpool_compat::RawPool;

/// A pool with its table of streams, and a probe that counts the calls on each stream.
struct Guests<B: Bench> {
    site: Site<B>,
    raw: RawPool,
    probe: Probe,
}

impl<B: Bench> Guests<B> {
    fn new(capacity: u64, reuse: Reuse) -> Self {
        let set = |builder: PoolBuilder| {
            builder.tuning(|tuning| {
                tuning.reuse = reuse;
                tuning.when_short = WhenShort::GrowThenWait;
            })
        };
        let (site, probe) = Site::<B>::probed(capacity, set);
        let raw = RawPool::new(&site.pool);
        Self { site, raw, probe }
    }

    /// Creates a worker on an external stream.
    fn guest(&self) -> Worker<B> {
        let work = self.site.bench.stream();
        let external = self.site.bench.external(&work);
        let stream = self.raw.stream(&external).expect("a stream of the device");
        self.site.worker_as(work, stream)
    }

    fn calls_on(&self, guest: &Worker<B>) -> u64 {
        self.probe.calls_on(bench::raw(&guest.work))
    }
}

/// A lookup by handle finds the same registration.
pub(crate) fn lookup_by_handle_finds_the_registration<B: Bench>() {
    let Guests { site, raw, .. } = Guests::<B>::new(8 * MIB, Reuse::ALL);
    let works = [site.bench.stream(), site.bench.stream()];
    let find = |work: &B::Work| raw.stream(&site.bench.external(work)).unwrap();
    let streams = works.each_ref().map(find);
    assert_ne!(streams[0].id(), streams[1].id());
    for (work, stream) in works.iter().zip(&streams) {
        assert_eq!(find(work).id(), stream.id());
        assert_eq!(stream.raw(), bench::raw(work));
    }
    // While one of its blocks lives, and when none does.
    let block = site.pool.try_allocate(&streams[0], MIB).unwrap();
    let ids = streams.map(|stream| stream.id());
    assert_eq!(works.each_ref().map(|work| find(work).id()), ids);
    drop(block);
    assert_eq!(works.each_ref().map(|work| find(work).id()), ids);
    site.assert_conserved();
}

/// A new stream may have the handle of a destroyed one, but inherits nothing from it.
pub(crate) fn recycled_handle_is_another_stream<B: Bench>() {
    let guests = Guests::<B>::new(8 * MIB, ONLY_COMPLETE);
    let (mut ids, mut handles) = (Vec::new(), Vec::<RawStream>::new());
    let mut is_recycled = false;
    for _ in 0..16 {
        let guest = guests.guest();
        let handle = bench::raw(&guest.work);
        is_recycled |= handles.contains(&handle);
        assert!(!ids.contains(&guest.stream.id()), "{handle}");
        let block = guest.take(MIB);
        // Complete memory is available to every stream. Pending memory was only available to the destroyed one.
        assert!(!matches!(block.source(), Source::Lane | Source::SameStream));
        guest.use_up(&block, 1);
        drop(block);
        guest.settle();
        ids.push(guest.stream.id());
        handles.push(handle);
    }
    if let Some(recycles) = B::RECYCLES_STREAM_HANDLES {
        assert_eq!(is_recycled, recycles, "{handles:?}");
    }
    guests.site.assert_sound();
}

/// When a free returns, its event is recorded. Taking the memory makes no further call on the stream, whatever the
/// pool's policy.
pub(crate) fn each_free_is_sealed_before_it_returns<B: Bench>() {
    for bytes in [512, MIB, 8 * MIB] {
        let guests = Guests::<B>::new(8 * MIB, Reuse::ALL);
        let (guest, other) = (guests.guest(), guests.site.worker());
        // Makes the memory contiguous, whatever the upstream.
        drop(other.take(8 * MIB));
        block_on(other.stream.synchronize()).unwrap();
        let block = guest.take(bytes);
        let rest = (bytes < 8 * MIB).then(|| other.take(8 * MIB - bytes));
        let gate = guest.use_until_opened(&block, 1);
        let before = guests.calls_on(&guest);
        drop(block);
        assert_eq!(guests.calls_on(&guest), before + 1, "{bytes}");
        let block = other.take_from(Source::DeviceWait, bytes);
        other.use_up(&block, 2);
        assert_eq!(guests.calls_on(&guest), before + 1, "{bytes}");
        guests.site.bench.let_run();
        gate.open();
        settle_all(&[&guest, &other]);
        drop((block, rest));
        guests.site.assert_sound();
    }
}

/// Uses a block up to a gate, frees it, and destroys the stream. Returns the stream's handle, and its number of calls.
fn free_and_destroy<B: Bench>(guests: &Guests<B>, bytes: u64) -> (RawStream, u64, Gate) {
    let guest = guests.guest();
    let block = guest.take(bytes);
    let gate = guest.use_until_opened(&block, 1);
    drop(block);
    let name = bench::raw(&guest.work);
    (name, guests.probe.calls_on(name), gate)
}

/// RMM `DeletedStream`, for a stream that the pool cannot keep alive: the recorded event completes as usual, the
/// memory is available after it, and no call uses the handle.
pub(crate) fn destroyed_stream_leaves_its_memory_in_order<B: Bench>() {
    for bytes in [8 * MIB, MIB] {
        let guests = Guests::<B>::new(8 * MIB, ONLY_COMPLETE);
        let heir = guests.site.worker();
        let (name, calls, gate) = free_and_destroy(&guests, bytes);
        heir.take_nothing(8 * MIB);
        let waiting = not_ready(guests.site.pool.allocate(&heir.stream, 8 * MIB));
        guests.site.pool.maintain().reap().unwrap();
        gate.open();
        let block = block_on(waiting).unwrap();
        heir.use_up(&block, 2);
        heir.free_and_settle(block);
        assert_eq!(guests.site.pool.trim_to(0).unwrap().released, 8 * MIB);
        assert_eq!(guests.probe.calls_on(name), calls, "{bytes}");
        guests.site.assert_sound();
    }
    // The next owner comes behind a wait on the device, and the pool ends.
    let guests = Guests::<B>::new(8 * MIB, Reuse::ALL);
    let heir = guests.site.worker();
    let (name, calls, gate) = free_and_destroy(&guests, 8 * MIB);
    let block = heir.take_from(Source::DeviceWait, 8 * MIB);
    heir.use_up(&block, 2);
    drop(block);
    let Guests { site, raw, probe } = guests;
    let (bench, work) = (site.bench.clone(), heir.work.clone());
    let Site { pool, witness, .. } = site;
    drop((heir, raw, pool));
    assert!(probe.held() > 0, "its work runs still");
    gate.open();
    bench.settle(&work);
    crate::site::eventually(|| probe.held() == 0);
    assert_eq!(probe.calls_on(name), calls);
    witness.assert_content();
}

/// The owner of a stream may destroy it while another thread serves the queue. So a request on an external stream gets
/// only complete memory, where a request on another stream gets memory behind a wait.
pub(crate) fn waiter_on_an_external_stream_gets_no_memory_behind_a_wait<B: Bench>() {
    for is_external in [false, true] {
        let guests = Guests::<B>::new(8 * MIB, Reuse::ALL);
        let holder = guests.site.worker();
        let waiter = if is_external {
            guests.guest()
        } else {
            guests.site.worker()
        };
        let all = holder.take(8 * MIB);
        let mut waiting = not_ready(guests.site.pool.allocate(&waiter.stream, 8 * MIB));
        let before = guests.calls_on(&waiter);
        let gate = holder.use_until_opened(&all, 1);
        drop(all);
        // Any call may serve the queue.
        guests.site.pool.maintain().reap().unwrap();
        let mut polled = poll(&mut waiting);
        if !is_external {
            // Another thread may be serving, and is about to grant it.
            crate::site::eventually(|| {
                if polled.is_pending() {
                    polled = poll(&mut waiting);
                }
                polled.is_ready()
            });
        }
        assert_eq!(polled.is_pending(), is_external);
        assert_eq!(guests.calls_on(&waiter) == before, is_external);
        gate.open();
        let block = match polled {
            std::task::Poll::Ready(block) => block,
            std::task::Poll::Pending => block_on(waiting),
        };
        let block = block.unwrap();
        let waits = guests.site.pool.inspect().statistics().device_waits;
        assert_eq!(waits, u64::from(!is_external));
        waiter.use_up(&block, 2);
        waiter.free_and_settle(block);
        guests.site.assert_sound();
    }
}

/// A block that an external stream took behind a wait is used on a further stream. The further stream comes after the
/// earlier life, without a call on the external one.
pub(crate) fn further_stream_makes_no_call_on_an_external_one<B: Bench>() {
    let guests = Guests::<B>::new(8 * MIB, Reuse::ALL);
    let (guest, [earlier, further]) = (guests.guest(), guests.site.workers());
    let block = earlier.take(8 * MIB);
    let gate = earlier.use_until_opened(&block, 1);
    drop(block);
    let block: Block = guest.take_from(Source::DeviceWait, 8 * MIB);
    let before = guests.calls_on(&guest);
    until_freed(&further.stream, &block);
    assert_eq!(guests.calls_on(&guest), before);
    further.use_up(&block, 2);
    guests.site.bench.let_run();
    gate.open();
    settle_all(&[&earlier, &further]);
    drop(block);
    settle_all(&[&guest]);
    guests.site.assert_sound();
}

/// An event that could not be recorded at the free is recorded with the owner's next call, and by no other thread.
/// Until then the memory is pending, however often other streams request it.
pub(crate) fn unsealed_free_waits_for_the_owners_next_call<B: Bench>() {
    let guests = Guests::<B>::new(8 * MIB, Reuse::ALL);
    let (guest, other) = (guests.guest(), guests.site.worker());
    let [large, small] = [6, 1].map(|size| guest.take(size * MIB));
    guest.use_up(&large, 1);
    guests.probe.fail("record", 1, DeviceErrorKind::Other);
    let mut freed = large.deallocate();
    assert!(guests.probe.has_failed("record"));
    guest.settle();
    let before = guests.calls_on(&guest);
    other.take_nothing(6 * MIB);
    let _ = guests.site.pool.trim_to(0).unwrap();
    assert!(guests.site.pool.inspect().statistics().pending.current >= 6 * MIB);
    let told = now(async { poll(&mut freed) });
    assert_matches!(told, std::task::Poll::Ready(Err(_)));
    assert_eq!(guests.calls_on(&guest), before);
    drop(small);
    guest.settle();
    let block = other.take_from(Source::Free, 6 * MIB);
    other.use_up(&block, 2);
    other.free_and_settle(block);
    guests.site.assert_sound();
}

/// Ordering a use after the external stream would need an event there, and the stream may be destroyed. That is an
/// error without a device call. In its owner's own calls, the external stream waits like any other.
pub(crate) fn ordered_use_makes_no_call_on_an_external_stream<B: Bench>() {
    let guests = Guests::<B>::new(8 * MIB, Reuse::ALL);
    let (guest, other) = (guests.guest(), guests.site.worker());
    let mut block = guest.take(MIB);
    guest.fill(&block, 1);
    let before = guests.calls_on(&guest);
    let read = other.stream.record_use(&block).map(drop);
    let written = other.stream.record_use(&mut block).map(drop);
    for refused in [read, written] {
        let Err(StreamError::Device(error)) = refused else {
            panic!("{refused:?}, and the stream may be gone");
        };
        assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
        assert!(error.reason().contains("external stream"), "{error}");
    }
    assert_eq!(guests.calls_on(&guest), before);
    other.come_after(&guest);
    let gate = guests.site.bench.hold(&other.work);
    other.expect(other.stream.record_use(Unordered::Once(&block)).unwrap(), 1);
    guest.fill(guest.stream.record_use(&mut block).unwrap(), 2);
    guest.expect(&block, 2);
    guests.site.bench.let_run();
    gate.open();
    settle_all(&[&guest, &other]);
    drop(block);
    guests.site.assert_sound();
}
