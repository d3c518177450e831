//! Uses of one block on several streams, and how they are ordered.

use crate::bench::Bench;
use crate::common::{MIB, not_ready, poll, until_freed};
use crate::site::{Site, Worker, plain_builder, settle_all};
use futures::executor::block_on;
use weirpool::{Block, CopyError, Source, StreamError, Unordered, Upstream};
use weirpool_share::Share;

/// Writes the block on the writer's stream, which is held.
fn write_held<B: Bench>(writer: &Worker<B>, block: &mut Block, value: u8) -> crate::bench::Gate {
    let block = writer.stream.record_use(block).unwrap();
    let gate = writer.bench.hold(&writer.work);
    writer.fill(block, value);
    gate
}

fn expect_read<B: Bench>(reader: &Worker<B>, block: &Block, value: u8) {
    let block = reader.stream.record_use(block).unwrap();
    reader.expect(block, value);
}

/// The write may be on any stream, and declared or made on the block's own stream.
pub(crate) fn reader_comes_after_the_writer<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, second, third] = site.workers();
    for (writer, reader) in [(&home, &second), (&second, &third), (&second, &home)] {
        let mut block = home.take(MIB);
        let gate = write_held(writer, &mut block, 1);
        expect_read(reader, &block, 1);
        site.bench.let_run();
        gate.open();
        settle_all(&[writer, reader]);
    }
    let block = home.take(MIB);
    let gate = site.bench.hold(&home.work);
    home.fill(&block, 2);
    expect_read(&second, &block, 2);
    site.bench.let_run();
    gate.open();
    settle_all(&[&home, &second]);
    drop(block);
    site.assert_sound();
}

/// An argument may be written through, so a reader comes after it.
pub(crate) fn reader_comes_after_uses_that_may_have_written<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, second, third] = site.workers();
    for is_told_by_name in [false, true] {
        let block = home.take(MIB);
        let gate = site.bench.hold(&second.work);
        if is_told_by_name {
            until_freed(&second.stream, &block);
            second.fill(&block, 1);
        } else {
            second.fill(
                second.stream.record_use(Unordered::Once(&block)).unwrap(),
                1,
            );
        }
        expect_read(&third, &block, 1);
        site.bench.let_run();
        gate.open();
        settle_all(&[&second, &third]);
    }
    site.assert_sound();
}

/// Readers are not ordered with each other. A writer comes after all of them.
pub(crate) fn writer_comes_after_all_readers<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, first, second, writer] = site.workers();
    let mut block = home.take(MIB);
    home.fill(home.stream.record_use(&mut block).unwrap(), 1);
    let gate = site.bench.hold(&first.work);
    expect_read(&first, &block, 1);
    expect_read(&second, &block, 1);
    second.settle();
    let late = site.bench.hold(&second.work);
    expect_read(&second, &block, 1);
    writer.fill(writer.stream.record_use(&mut block).unwrap(), 2);
    site.bench.let_run();
    late.open();
    site.bench.let_run();
    gate.open();
    settle_all(&[&first, &second, &writer]);
    // Later readers come after the writer, whatever their streams did before.
    let gate = write_held(&writer, &mut block, 3);
    for reader in [&home, &first, &second] {
        expect_read(reader, &block, 3);
    }
    site.bench.let_run();
    gate.open();
    settle_all(&[&writer, &home, &first, &second]);
    drop(block);
    site.assert_sound();
}

/// Memory is not reused before a use is complete, however that use was ordered.
pub(crate) fn ordered_use_ends_before_the_memory_is_reused<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [home, further, taker] = site.workers();
    for writes in [false, true] {
        let mut block = home.take(8 * MIB);
        home.fill(&block, 1);
        if writes {
            further.fill(further.stream.record_use(&mut block).unwrap(), 1);
        }
        let argument = further.stream.record_use(&block).unwrap();
        let gate = site.bench.hold(&further.work);
        further.expect(argument, 1);
        drop(block);
        home.settle();
        taker.take_nothing(8 * MIB);
        gate.open();
        further.settle();
        let block = taker.take_from(Source::Free, 8 * MIB);
        taker.use_up(&block, 2);
        taker.free_and_settle(block);
    }
    site.assert_sound();
}

/// A further stream that is ordered after other uses also comes after the block's earlier life.
pub(crate) fn ordered_use_comes_after_the_earlier_life<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, further] = site.workers();
    for writes in [false, true] {
        let earlier = home.take(MIB);
        let address = earlier.address();
        let gate = home.use_until_opened(&earlier, 1);
        drop(earlier);
        let mut block = home.take(MIB);
        assert_eq!(block.address(), address);
        let argument = if writes {
            further.stream.record_use(&mut block).unwrap()
        } else {
            further.stream.record_use(&block).unwrap()
        };
        further.fill(argument, 2);
        site.bench.let_run();
        gate.open();
        settle_all(&[&home, &further]);
    }
    site.assert_sound();
}

/// A stream of another pool is refused without effect.
pub(crate) fn ordered_use_on_a_foreign_stream_is_refused<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let (home, stranger) = (site.worker(), site.elsewhere(8 * MIB).worker());
    let mut block = home.take(MIB);
    let read = stranger.stream.record_use(&block).map(drop);
    let written = stranger.stream.record_use(&mut block).map(drop);
    for refused in [read, written] {
        assert_eq!(refused.unwrap_err(), StreamError::ForeignDevice);
    }
    home.free_and_settle(block);
    site.assert_conserved();
}

/// Elements are written and read in order, without any waits by the caller.
pub(crate) fn written_elements_are_read_on_any_stream<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let workers = site.workers::<3>();
    let allocate = |len| {
        site.pool
            .buffer::<u32>(&workers[0].stream, len)
            .try_now()
            .unwrap()
    };
    let elements: Vec<u32> = (0..1_000_000).map(|n| n * 7).collect();
    let mut buffer = allocate(elements.len());
    for round in 0..6 {
        let [writer, reader] = [round % 3, (round + 1) % 3].map(|n| &workers[n].stream);
        let from: Vec<u32> = elements.iter().map(|n| n + round as u32).collect();
        drop(buffer.write(writer, &from)); // the copy still takes place
        assert!(block_on(buffer.read(reader)).unwrap() == from);
        let mut into = vec![0; 1000];
        block_on(buffer.read_into(writer, &mut into)).unwrap();
        assert!(into == from[..1000]);
    }
    let shared = buffer.share();
    let last: Vec<u32> = elements.iter().map(|n| n + 5).collect();
    assert!(block_on(shared.read(&workers[1].stream)).unwrap() == last);
    let part = shared.view(10..20).unwrap();
    let found = block_on(part.read(&workers[2].stream)).unwrap();
    assert_eq!(found, last[10..20]);
    drop((shared, part));
    settle_all(&workers.each_ref());
    site.assert_conserved();
}

/// A copy that does not fit is an error, and copies nothing.
pub(crate) fn elements_that_do_not_fit_are_not_copied<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let mut buffer = site
        .pool
        .buffer::<u32>(&worker.stream, 10)
        .try_now()
        .unwrap();
    block_on(buffer.write(&worker.stream, &[1; 10])).unwrap();
    let too_long = block_on(buffer.write(&worker.stream, &[2; 11]));
    let too_large = block_on(buffer.read_into(&worker.stream, &mut [0; 11]));
    for refused in [too_long, too_large] {
        let (start, end, size) = (0, 44, 40);
        assert_eq!(
            refused.unwrap_err(),
            CopyError::OutOfBounds { start, end, size }
        );
    }
    let mut none = [0; 0];
    block_on(buffer.read_into(&worker.stream, &mut none)).unwrap();
    assert_eq!(block_on(buffer.read(&worker.stream)).unwrap(), [1; 10]);
    drop(buffer);
    site.assert_conserved();
}

/// A dropped read leaves nothing behind that writes the caller's memory.
pub(crate) fn dropped_read_writes_nothing<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, other] = site.workers();
    let mut buffer = site
        .pool
        .buffer::<u8>(&home.stream, 4096)
        .try_now()
        .unwrap();
    block_on(buffer.write(&home.stream, &[7; 4096])).unwrap();
    let gate = site.bench.hold(&other.work);
    let mut into = [0; 4096];
    {
        let _read = not_ready(Box::pin(buffer.read_into(&other.stream, &mut into)));
    }
    gate.open();
    other.settle();
    assert_eq!(into, [0; 4096]);
    drop(buffer);
    site.assert_conserved();
}

/// Creates pools over every kind of memory that host and device share.
fn seen_by_both<B: Bench>() -> impl Iterator<Item = Site<B>> {
    let upstreams = [Upstream::Managed, Upstream::Pinned].into_iter();
    upstreams.filter_map(|upstream| {
        let bench = B::new();
        let kinds = bench.device().capabilities().memory_kinds;
        kinds.contains(upstream.kind()).then(|| {
            let builder = plain_builder(bench.device(), 8 * MIB).upstream(upstream);
            Site {
                pool: builder.build().expect("memory"),
                witness: Default::default(),
                bench,
            }
        })
    })
}

/// The host gets a block after all uses by streams, and later uses come after the host.
pub(crate) fn host_comes_after_earlier_uses_and_before_later_ones<B: Bench>() {
    for site in seen_by_both::<B>() {
        let [home, writer, reader] = site.workers();
        let mut buffer = site
            .pool
            .buffer::<u32>(&home.stream, 1000)
            .try_now()
            .unwrap();
        let write = vec![3; 1000];
        drop(buffer.write(&writer.stream, &write));
        let gate = site.bench.hold(&reader.work);
        let mut read = Box::pin(buffer.read(&reader.stream));
        {
            let mut waiting = Box::pin(buffer.host());
            assert!(poll(&mut waiting).is_pending(), "a stream reads it");
            gate.open();
            let mut elements = block_on(waiting).unwrap();
            assert_eq!(&elements[..], &write[..]);
            elements[7] = 8;
            elements.reverse();
        }
        assert_eq!(block_on(&mut read).unwrap(), write);
        let mut expected = write.clone();
        expected[992] = 8;
        for worker in [&writer, &reader, &home] {
            assert!(block_on(buffer.read(&worker.stream)).unwrap() == expected);
        }
        assert_eq!(block_on(buffer.host()).unwrap()[992], 8);
        drop(buffer);
        site.assert_conserved();
    }
}

/// A dropped wait of the host has no effect.
pub(crate) fn wait_of_the_host_may_be_dropped<B: Bench>() {
    for site in seen_by_both::<B>() {
        let worker = site.worker();
        let mut block = worker.take(MIB);
        let gate = worker.use_until_opened(&block, 1);
        assert!(poll(&mut Box::pin(block.host())).is_pending());
        gate.open();
        assert!(
            block_on(block.host())
                .unwrap()
                .iter()
                .all(|byte| *byte == 1)
        );
        worker.use_up(&block, 2);
        worker.free_and_settle(block);
        site.assert_sound();
    }
}

/// Memory that the host does not see is refused to the host. It can only be copied.
pub(crate) fn host_is_refused_memory_that_it_does_not_see<B: Bench>() {
    if !matches!(B::UPSTREAM, Upstream::Virtual | Upstream::Device) {
        return;
    }
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let mut block = worker.take(MIB);
    let refused = block_on(block.host()).map(drop);
    assert_eq!(refused.unwrap_err(), StreamError::UnseenByHost);
    worker.use_up(&block, 1);
    worker.free_and_settle(block);
    site.assert_sound();
}
