//! Blocks that move from one stream to another.

use crate::bench::{Bench, Gate, Span};
use crate::common::{MIB, until_freed};
use crate::site::{ONLY_COMPLETE, Site, Worker, settle_all};
use weirpool::Unordered;
use weirpool::device::DeviceErrorKind;
use weirpool::{Block, Fill, FillAt, Source, StreamError};
use weirpool_compat::RawPool;

/// Returns a block with contents, which was moved to the next stream and is read there.
fn moved<B: Bench>(home: &Worker<B>, next: &Worker<B>, bytes: u64) -> Block {
    let mut block = home.take(bytes);
    home.fill(&block, 1);
    block.move_to(&next.stream).unwrap();
    assert_eq!(block.stream().id(), next.stream.id());
    next.expect(&block, 1);
    block
}

/// Expects the memory to be reused by another stream once the gate of the last user's stream is open, and not before.
fn expect_reuse_behind<B: Bench>(last: &Worker<B>, gate: Gate, taker: &Worker<B>) {
    taker.take_nothing(8 * MIB);
    gate.open();
    last.settle();
    let block = taker.take_from(Source::Free, 8 * MIB);
    taker.use_up(&block, 3);
    taker.free_and_settle(block);
}

/// [CUDA's `cudaFreeAsync` on another stream] The stream that the block left may be busy with other work for long.
pub(crate) fn moved_block_is_freed_in_the_order_of_its_new_stream_alone<B: Bench>() {
    for bytes in [8 * MIB, 64 << 10] {
        let site = Site::<B>::with(8 * MIB, |builder| {
            builder.tuning(|tuning| {
                tuning.reuse = ONLY_COMPLETE;
                tuning.initial_size = 8 * MIB;
            })
        });
        let [home, next, taker] = site.workers();
        let mut block = home.take(bytes);
        home.fill(&block, 1);
        block.move_to(&next.stream).unwrap();
        let busy = site.bench.hold(&home.work);
        let gate = next.use_until_opened(&block, 2);
        drop(block);
        expect_reuse_behind(&next, gate, &taker);
        busy.open();
        home.settle();
        site.assert_sound();
    }
}

/// The new stream reuses the memory at once, and the old one only once the new one has passed the free.
pub(crate) fn new_stream_of_a_moved_block_reuses_its_memory_first<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let [home, next] = site.workers();
    let mut block = home.take(8 * MIB);
    home.fill(&block, 1);
    block.move_to(&next.stream).unwrap();
    let gate = next.use_until_opened(&block, 2);
    drop(block);
    home.take_nothing(8 * MIB);
    let again = next.take_from(Source::SameStream, 8 * MIB);
    next.use_up(&again, 3);
    gate.open();
    next.free_and_settle(again);
    let block = home.take_from(Source::Free, 8 * MIB);
    home.use_up(&block, 4);
    home.free_and_settle(block);
    site.assert_sound();
}

/// The new stream comes after all uses on every stream, however they were declared.
pub(crate) fn move_comes_after_all_earlier_uses<B: Bench>() {
    for late in 0..3 {
        let site = Site::<B>::new(8 * MIB);
        let workers = site.workers::<4>();
        let [home, reader, user, next] = &workers;
        let mut block = home.take(MIB);
        home.fill(&block, 1);
        let gate = site.bench.hold(&workers[late].work);
        home.expect(&block, 1);
        reader.expect(reader.stream.record_use(&block).unwrap(), 1);
        user.come_after(home);
        until_freed(&user.stream, &block);
        user.expect(&block, 1);
        block.move_to(&next.stream).unwrap();
        next.use_up(&block, 2);
        site.bench.let_run();
        gate.open();
        settle_all(&[home, reader, user, next]);
        next.free_and_settle(block);
        site.assert_sound();
    }
}

/// A use on the stream that the block left counts again, whichever way it is declared.
pub(crate) fn use_on_the_stream_that_a_block_left_is_waited_for<B: Bench>() {
    for way in ["used", "read", "written", "passed"] {
        let site = Site::<B>::without_device_waits(8 * MIB);
        let [home, next, taker] = site.workers();
        let mut block = moved(&home, &next, 8 * MIB);
        home.come_after(&next);
        match way {
            "used" => drop(
                home.stream
                    .record_use(Unordered::UntilFreed(&block))
                    .unwrap(),
            ),
            "read" => drop(home.stream.record_use(&block).unwrap()),
            "written" => drop(home.stream.record_use(&mut block).unwrap()),
            _ => drop(home.stream.record_use(Unordered::Once(&block)).unwrap()),
        }
        let gate = home.use_until_opened(&block, 2);
        drop(block);
        next.settle();
        expect_reuse_behind(&home, gate, &taker);
        site.assert_sound();
    }
}

/// A stream comes after its own grants, and needs no wait for a use of a block that it had before.
pub(crate) fn use_on_the_stream_that_a_block_left_needs_no_wait<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let [home, next] = site.workers();
    let earlier = home.take(MIB);
    let gate = home.use_until_opened(&earlier, 1);
    drop(earlier);
    let block = moved(&home, &next, MIB);
    let waits = probe.calls("wait");
    until_freed(&home.stream, &block);
    assert_eq!(probe.calls("wait"), waits);
    gate.open();
    settle_all(&[&home, &next]);
    drop(block);
    site.assert_sound();
}

/// An address may be freed on the stream that its block left, which may have used it again.
pub(crate) fn address_of_a_moved_block_is_freed_on_the_stream_that_it_left<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [next, taker] = site.workers();
    let raw = RawPool::new(&site.pool);
    let work = site.bench.stream();
    let stream = raw.stream(&work).unwrap();
    let home = site.worker_as(work, stream);
    let block = moved(&home, &next, 8 * MIB);
    let span = Span::from(&block);
    let address = raw.keep(block).unwrap();
    home.come_after(&next);
    let gate = site.bench.hold(&home.work);
    home.fill(span, 2);
    home.expect(span, 2);
    raw.free(address, &home.work).unwrap();
    next.settle();
    expect_reuse_behind(&home, gate, &taker);
    site.assert_sound();
}

/// A later reader comes after the writes of the stream that has the block, which need no note, but not after the stream
/// that the block left.
pub(crate) fn reader_comes_after_the_stream_that_has_the_block<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, next, reader] = site.workers();
    let block = moved(&home, &next, MIB);
    let busy = site.bench.hold(&home.work);
    let gate = site.bench.hold(&next.work);
    next.fill(&block, 2);
    reader.expect(reader.stream.record_use(&block).unwrap(), 2);
    site.bench.let_run();
    gate.open();
    settle_all(&[&next, &reader]);
    home.expect(home.stream.record_use(&block).unwrap(), 2);
    busy.open();
    home.settle();
    drop(block);
    site.assert_sound();
}

/// A block that came back is as if it had never left.
pub(crate) fn block_moves_on_and_back<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [home, second, third] = site.workers();
    let mut block = moved(&home, &second, 8 * MIB);
    second.fill(&block, 2);
    block.move_to(&third.stream).unwrap();
    third.expect(&block, 2);
    third.fill(&block, 3);
    block.move_to(&third.stream).unwrap();
    block.move_to(&home.stream).unwrap();
    assert_eq!(block.stream().id(), home.stream.id());
    let gates = [&second, &third].map(|worker| site.bench.hold(&worker.work));
    home.expect(&block, 3);
    drop(block);
    let block = home.take_from(Source::SameStream, 8 * MIB);
    home.use_up(&block, 4);
    home.free_and_settle(block);
    for gate in gates {
        gate.open();
    }
    settle_all(&[&second, &third]);
    site.assert_sound();
}

/// What the block grows by has an earlier life on its first stream.
pub(crate) fn growth_of_a_moved_block_comes_after_its_earlier_life<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| {
        builder.tuning(|tuning| {
            tuning.lane_bytes = 0;
            tuning.initial_size = 8 * MIB;
        })
    });
    let [home, next] = site.workers();
    let mut below = home.take(2 * MIB);
    let above = home.take(6 * MIB);
    below.move_to(&next.stream).unwrap();
    let gate = home.use_until_opened(&above, 7);
    drop(above);
    below.grow(6 * MIB).try_now().unwrap();
    next.use_up(&below, 8);
    site.bench.let_run();
    gate.open();
    settle_all(&[&home, &next]);
    next.free_and_settle(below);
    site.assert_sound();
}

/// The stream to which a block is moved may be forgotten by its owner before the block is freed.
pub(crate) fn stream_of_a_moved_block_may_be_dropped<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let home = site.worker();
    for _ in 0..3 {
        let next = site.worker();
        let block = moved(&home, &next, 8 * MIB);
        drop(next);
        drop(block);
        let block = home.take(8 * MIB);
        home.use_up(&block, 2);
        home.free_and_settle(block);
    }
    site.assert_sound();
}

/// Memory of a reservation goes back to it.
pub(crate) fn moved_block_returns_to_its_reservation<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [home, next, other] = site.workers();
    let reservation = site.pool.reserve(8 * MIB).try_now().unwrap();
    let mut block = reservation.allocate(&home.stream, 8 * MIB).unwrap();
    home.fill(&block, 1);
    block.move_to(&next.stream).unwrap();
    let gate = next.use_until_opened(&block, 2);
    drop(block);
    assert_eq!(reservation.left(), 8 * MIB);
    let block = reservation.allocate(&other.stream, 8 * MIB).unwrap();
    other.use_up(&block, 3);
    site.bench.let_run();
    gate.open();
    settle_all(&[&home, &next, &other]);
    other.free_and_settle(block);
    drop(reservation);
    site.assert_sound();
}

/// Freed memory is filled behind the work of the stream that has the block.
pub(crate) fn moved_block_is_filled_behind_its_new_stream<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, |builder| {
        builder.fill(FillAt::Free, Fill::Byte(0xee))
    });
    let [home, next, taker] = site.workers();
    let mut block = home.take(8 * MIB);
    home.fill(&block, 1);
    block.move_to(&next.stream).unwrap();
    let gate = next.use_until_opened(&block, 2);
    drop(block);
    let again = next.take(8 * MIB);
    next.expect(&again, 0xee);
    site.bench.let_run();
    gate.open();
    next.free_and_settle(again);
    let block = taker.take(8 * MIB);
    taker.expect(&block, 0xee);
    taker.free_and_settle(block);
    home.settle();
    site.assert_sound();
}

/// A refused move has no effect: the block is freed in the order of its own stream.
pub(crate) fn refused_move_leaves_the_block_where_it_was<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let (home, next) = (site.worker(), site.worker());
    let stranger = site.elsewhere(8 * MIB).worker();
    let mut block = home.take(8 * MIB);
    home.fill(&block, 1);
    let refused = block.move_to(&stranger.stream).unwrap_err();
    assert_eq!(refused, StreamError::ForeignDevice);
    if site.bench.device().captures().is_some() {
        let capture = site.pool.capture(&next.stream).unwrap();
        expect_unsupported(block.move_to(&next.stream));
        let of_capture = next.try_take(MIB);
        if let Ok(mut of_capture) = of_capture {
            next.fill(&of_capture, 5);
            expect_unsupported(of_capture.move_to(&home.stream));
            drop(of_capture);
        }
        drop(capture.end().unwrap());
    }
    let gate = home.use_until_opened(&block, 2);
    drop(block);
    let again = home.take_from(Source::SameStream, 8 * MIB);
    home.use_up(&again, 3);
    gate.open();
    home.free_and_settle(again);
    next.settle();
    site.assert_sound();
}

fn expect_unsupported(moved: Result<(), StreamError>) {
    match moved {
        Err(StreamError::Device(error)) => assert_eq!(error.kind(), DeviceErrorKind::Unsupported),
        other => panic!("{other:?} instead of `Unsupported`"),
    }
}

/// A move that fails at any of its calls leaves the block where it was, and no stream uses memory too early.
pub(crate) fn move_that_fails_halfway_leaves_the_block_where_it_was<B: Bench>() {
    let mut failures = 0;
    for (call, most) in [("create_event", 2), ("record", 2), ("wait", 3)] {
        for nth in 1..=most {
            failures += u32::from(moves_in_spite_of::<B>(call, nth));
        }
    }
    assert!(failures >= 3, "{failures} calls failed");
}

fn moves_in_spite_of<B: Bench>(call: &'static str, nth: u64) -> bool {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let [home, reader, next, taker] = site.workers();
    let mut block = home.take(8 * MIB);
    let gate = home.use_until_opened(&block, 1);
    reader.expect(reader.stream.record_use(&block).unwrap(), 1);
    probe.fail(call, nth, DeviceErrorKind::Other);
    let moved = block.move_to(&next.stream);
    let has_failed = probe.has_failed(call);
    probe.fail_no_more(call);
    assert_eq!(moved.is_err(), has_failed, "{call} {nth}");
    let last = if has_failed { &home } else { &next };
    if has_failed {
        home.come_after(&reader);
    }
    last.use_up(&block, 2);
    drop(block);
    taker.take_nothing(8 * MIB);
    gate.open();
    settle_all(&[&home, &reader, &next]);
    let block = taker.take(8 * MIB);
    taker.use_up(&block, 3);
    taker.free_and_settle(block);
    site.assert_sound();
    has_failed
}
