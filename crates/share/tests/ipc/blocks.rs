use super::*;
use crate::common::{not_ready, now, poll};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::device::DeviceErrorKind::Sticky;
use weirpool::device::sim::Operation;
use weirpool::{AllocError, StreamError, Unordered};

#[test]
fn importer_reads_what_the_exporter_wrote_and_the_other_way_round() {
    let pair = Pair::new();
    let mut block = pair.exporter.exportable(5);
    assert_eq!((block.size(), block.requested()), (CHUNK, 5));
    let upload = block.upload(&pair.exporter.stream, 0, b"weir!").unwrap();
    pair.exporter.device.advance_to_end();
    now(upload).unwrap();
    let sent = block_on(pair.out.send(&block, "greeting")).unwrap();
    let mut imported = pair.importer.receive(&pair.into).unwrap();
    assert_eq!(imported.label(), "greeting");
    assert_eq!((imported.size(), imported.requested()), (CHUNK, 5));
    let stream = &pair.importer.stream;
    let read = imported.download(stream, 0..6).unwrap();
    let written = imported.upload(stream, 1, b"ool").unwrap();
    pair.importer.device.advance_to_end();
    assert_eq!(now(read).unwrap(), b"weir!\0");
    now(written).unwrap();
    drop(imported);
    block_on(sent).unwrap();
    let read = block.download(&pair.exporter.stream, 0..5).unwrap();
    pair.exporter.device.advance_to_end();
    assert_eq!(now(read).unwrap(), b"wool!");
    drop(block);
    pair.exporter.settle();
    pair.importer.settle();
}

#[test]
fn exportable_block_has_a_chunk_of_its_own_and_counts_against_the_capacity() {
    let side = Side::new(manual());
    let kept = side.pool.try_allocate(&side.stream, 4 * MIB).unwrap();
    let before = side.pool.inspect().statistics().reserved.current;
    let block = side.exportable(3 * MIB);
    assert_eq!(block.size(), 4 * MIB);
    assert_eq!(side.shared(), (4 * MIB, 4 * MIB));
    assert_eq!(side.pool.inspect().statistics().reserved.current, before);
    let room = 16 * MIB - before - 4 * MIB;
    assert!(side.pool.try_allocate(&side.stream, room + MIB).is_err());
    drop(side.pool.try_allocate(&side.stream, room).unwrap());
    side.device.advance_to_end();
    // Free memory goes back to the device for it.
    let more = side.exportable(room);
    let refused = side.pool.try_allocate_exportable(&side.stream, CHUNK);
    assert!(
        matches!(refused, Err(IpcError::Alloc(AllocError::Exhausted(_)))),
        "{refused:?}"
    );
    let huge = side.pool.try_allocate_exportable(&side.stream, 17 * MIB);
    assert!(matches!(
        huge,
        Err(IpcError::Alloc(AllocError::TooLarge { .. }))
    ));
    drop((block, more, kept));
    side.device.advance_to_end();
    side.settle();
}

#[test]
fn exportable_block_is_zeroed_and_never_reused_by_the_pool() {
    let side = Side::new(manual());
    for _ in 0..3 {
        let created = calls(&side.device, Call::Create);
        let mut block = side.exportable(CHUNK);
        assert_eq!(calls(&side.device, Call::Create), created + 1);
        let read = block.download(&side.stream, 0..64).unwrap();
        let written = block.upload(&side.stream, 0, b"secret").unwrap();
        side.device.advance_to_end();
        assert_eq!(now(read).unwrap(), [0; 64]);
        now(written).unwrap();
        drop(block);
        side.settle();
        assert_eq!(side.device.counters().physical_in_use, 0);
    }
}

#[test]
fn block_is_sent_once_earlier_writes_are_complete() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    use_block(&pair.exporter.work, &block, us(1000));
    let mut send = not_ready(Box::pin(pair.out.send(&block, "")));
    pair.exporter.device.advance(us(900));
    assert!(poll(&mut send).is_pending());
    let mut receive = pin!(pair.into.receive(&pair.importer.stream));
    let mut context = Context::from_waker(Waker::noop());
    assert!(receive.as_mut().poll(&mut context).is_pending());
    pair.exporter.device.advance(us(200));
    let sent = block_on(send).unwrap();
    let imported = block_on(receive).unwrap();
    drop(imported);
    block_on(sent).unwrap();
}

#[test]
fn sent_block_is_released_after_the_importers_work_on_every_stream() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let mut sent = block_on(pair.out.send(&block, "")).unwrap();
    let imported = pair.importer.receive(&pair.into).unwrap();
    let (other, further) = stream(&pair.importer.device, &pair.importer.pool);
    further
        .record_use(Unordered::UntilFreed(&imported))
        .unwrap();
    use_block(&pair.importer.work, &imported, us(10));
    run_on(&other, us(1000));
    drop(imported);
    pair.importer.device.advance(us(500));
    assert!(poll(&mut sent).is_pending());
    assert_eq!(pair.importer.shared(), (0, CHUNK));
    assert_eq!(pair.out.outstanding(), (1, 0));
    pair.importer.device.advance(us(600));
    block_on(sent).unwrap();
    pair.importer.settle();
    pair.importer.device.assert_ordered();
}

fn run_on(work: &SimStream, duration: Duration) {
    work.submit(Operation::new(duration));
}

#[test]
fn memory_counts_until_every_importer_has_released_it() {
    let pair = Pair::new();
    let (second, other) = wire::Connection::pair().unwrap();
    let second = pair.exporter.open(second);
    let reader = Side::new(manual());
    let from = reader.open(other);
    let block = pair.exporter.exportable(CHUNK);
    let (one, two) = (
        block_on(pair.out.send(&block, "one")).unwrap(),
        block_on(second.send(&block, "two")).unwrap(),
    );
    let (first, last) = (
        pair.importer.receive(&pair.into).unwrap(),
        reader.receive(&from).unwrap(),
    );
    drop(block);
    pair.exporter.device.advance_to_end();
    drop(first);
    block_on(one).unwrap();
    assert_eq!(pair.exporter.shared().0, CHUNK);
    // The mapping of an importer is valid without the exporter's.
    let read = last.download(&reader.stream, 0..4).unwrap();
    reader.device.advance_to_end();
    assert_eq!(now(read).unwrap(), [0; 4]);
    drop(last);
    block_on(two).unwrap();
    pair.exporter.settle();
}

#[test]
fn unordered_use_of_an_imported_block_is_found() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let _sent = block_on(pair.out.send(&block, "")).unwrap();
    let imported = pair.importer.receive(&pair.into).unwrap();
    let (other, _further) = stream(&pair.importer.device, &pair.importer.pool);
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        use_block(&pair.importer.work, &imported, us(10));
        use_block(&other, &imported, us(10));
        pair.importer.device.assert_ordered();
    }));
    assert!(found.is_err());
    std::mem::forget(pair);
}

#[test]
fn imported_block_takes_part_in_submitted_work_and_copies() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let _sent = block_on(pair.out.send(&block, "")).unwrap();
    let Side {
        device,
        pool,
        stream,
        ..
    } = &pair.importer;
    let mut imported = pair.importer.receive(&pair.into).unwrap();
    let mut own = pool.try_allocate(stream, CHUNK).unwrap();
    let task = stream
        .submit((&mut imported, &mut own), |work: &SimStream, (from, to)| {
            let copy = Operation::new(us(5))
                .writes(from.address(), 8)
                .writes(to.address(), 8);
            work.submit(copy);
        })
        .unwrap();
    device.advance_to_end();
    now(task).unwrap();
    let mut block = imported.into_block();
    let grown = now(block.grow(MIB));
    assert!(matches!(grown, Err(AllocError::NoRoom { .. })), "{grown:?}");
    drop((own, block));
    device.advance_to_end();
    pair.importer.settle();
    device.assert_ordered();
}

/// The exporter hears of the release once no launch of the graph can use the memory.
#[test]
fn graph_keeps_an_imported_block_that_captured_work_names() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let mut sent = Box::pin(block_on(pair.out.send(&block, "")).unwrap());
    let Side {
        device,
        pool,
        stream,
        ..
    } = &pair.importer;
    let imported = pair.importer.receive(&pair.into).unwrap();
    let address = imported.address();
    let capture = pool.capture(stream).unwrap();
    stream.record_use(Unordered::UntilFreed(&imported)).unwrap();
    let graph = capture.end().unwrap();
    drop(imported);
    device.advance_to_end();
    graph.launch(stream).unwrap();
    device.advance_to_end();
    assert!(device.is_mapped(address, CHUNK));
    assert!(crate::common::poll(&mut sent).is_pending());
    drop(graph);
    device.advance_to_end();
    block_on(sent).unwrap();
    pair.importer.settle();
}

/// An exportable block gives out no `&mut Block`, which could be swapped: its writes are methods, and submitted work
/// takes it.
#[test]
fn exportable_block_is_written_by_all_calls_that_write_blocks() {
    let Side {
        device,
        pool,
        stream,
        ..
    } = &Pair::new().exporter;
    let mut block = pool.try_allocate_exportable(stream, CHUNK).unwrap();
    let mut own = pool.try_allocate(stream, CHUNK).unwrap();
    let expect = |block: &Exportable, bytes: &[u8]| {
        let read = block.download(stream, 0..bytes.len() as u64).unwrap();
        device.advance_to_end();
        assert_eq!(now(read).unwrap(), bytes);
    };
    drop(block.upload(stream, 1, b"ei").unwrap());
    expect(&block, b"\0ei\0");
    block.fill(stream, 7).unwrap();
    expect(&block, &[7; 4]);
    block.slice_mut(1..3).unwrap().fill(stream, 8).unwrap();
    expect(&block, &[7, 8, 8, 7]);
    drop(own.upload(stream, 0, b"weir").unwrap());
    drop(block.copy_from(&own, 0..4, 0, stream).unwrap());
    expect(&block, b"weir");
    let kernel = |work: &SimStream, to: weirpool::device::Argument<'_>| {
        let (address, bytes) = (to.address(), to.size());
        let fill = Operation::new(us(5)).writes(address, bytes);
        work.submit(fill.run_each(move |memory| memory.fill(address, bytes, 9)));
    };
    drop(stream.submit(&mut block, kernel).unwrap());
    drop(stream.submit(&block, |_: &SimStream, _| ()).unwrap());
    expect(&block, &[9; 4]);
    let other = pool.create_stream().unwrap();
    block.move_to(&other).unwrap();
    block.zero(&other).unwrap();
    expect(&block, &[0; 4]);
    drop((block, own));
    device.advance_to_end();
    device.assert_ordered();
}

#[test]
fn blocks_and_streams_of_other_pools_are_refused() {
    let pair = Pair::new();
    let foreign = pair.importer.exportable(CHUNK);
    let refused = block_on(pair.out.send(&foreign, ""));
    assert!(matches!(
        refused,
        Err(IpcError::Stream(StreamError::ForeignPool(_)))
    ));
    let refused = block_on(pair.out.receive(&pair.importer.stream));
    assert!(matches!(
        refused,
        Err(IpcError::Stream(StreamError::ForeignPool(_)))
    ));
    let refused = pair
        .exporter
        .pool
        .try_allocate_exportable(&pair.importer.stream, CHUNK);
    assert!(matches!(
        refused,
        Err(IpcError::Stream(StreamError::ForeignPool(_)))
    ));
    let label = "l".repeat(2000);
    let block = pair.exporter.exportable(CHUNK);
    let refused = block_on(pair.out.send(&block, &label));
    assert!(matches!(refused, Err(IpcError::LongLabel { bytes: 2000 })));
}

#[test]
fn device_without_shared_memory_is_an_error() {
    let side = Side::new(SimDevice::builder().virtual_memory(false).build());
    let refused = side.pool.try_allocate_exportable(&side.stream, CHUNK);
    assert!(matches!(refused, Err(IpcError::Unsupported { .. })));
    let (socket, _other) = wire::Connection::pair().unwrap();
    let refused = Connection::open(&side.pool, socket);
    assert!(matches!(refused, Err(IpcError::Unsupported { .. })));
}

#[test]
fn block_of_another_device_is_refused_on_both_sides() {
    let exporter = Side::new(manual());
    let device = SimDevice::builder().uuid([7; 16]).build();
    let importer = Side::new(device);
    let (out, into) = wire::Connection::pair().unwrap();
    let (out, into) = (exporter.open(out), importer.open(into));
    let block = exporter.exportable(CHUNK);
    let sent = block_on(out.send(&block, "")).unwrap();
    let refused = importer.receive(&into);
    assert!(matches!(&refused, Err(IpcError::WrongDevice { own, .. }) if own == &"07".repeat(16)));
    assert!(matches!(block_on(sent), Err(IpcError::Refused { .. })));
    assert_eq!(out.outstanding(), (0, 0));
}

/// The peer has access to the memory of the pool, and not to chunks that are not of the pool.
#[test]
fn streams_of_a_peer_device_are_refused() {
    let [first, second] = SimDevice::builder().build_host();
    let side = Side::new(first);
    side.pool.peers().enable(&second).unwrap();
    let guest = side.pool.register(&second.create_stream()).unwrap();
    let plain = side.pool.try_allocate(&side.stream, CHUNK).unwrap();
    guest.record_use(Unordered::UntilFreed(&plain)).unwrap();
    let block = side.exportable(CHUNK);
    let refused = guest.record_use(Unordered::UntilFreed(&block));
    assert!(
        matches!(refused, Err(StreamError::ForeignDevice)),
        "{refused:?}"
    );
}

#[test]
fn waiting_request_gets_room_in_its_turn() {
    let side = Side::new(SimDevice::new());
    let all = side.pool.try_allocate(&side.stream, 16 * MIB).unwrap();
    let waiting = not_ready(Box::pin(
        side.pool.allocate_exportable(&side.stream, 8 * MIB),
    ));
    drop(all);
    let block = block_on(waiting).unwrap();
    assert_eq!((block.size(), side.shared().0), (8 * MIB, 8 * MIB));
    // And ordinary requests wait for exportable memory that ends.
    let waiting = not_ready(Box::pin(side.pool.allocate(&side.stream, 12 * MIB)));
    drop(block);
    drop(block_on(waiting).unwrap());
    side.settle();
}

#[test]
fn exportable_memory_is_made_on_a_thread_where_calls_block() {
    let device = SimDevice::builder().blocking_memory_calls(true).build();
    let side = Side::new(device);
    let mut request = Box::pin(side.pool.allocate_exportable(&side.stream, CHUNK));
    let created = calls(&side.device, Call::Create);
    let first = poll(&mut request);
    assert!(first.is_pending() || calls(&side.device, Call::Create) > created);
    match first {
        Poll::Ready(block) => drop(block.unwrap()),
        Poll::Pending => drop(block_on(request).unwrap()),
    }
    let cancelled = Box::pin(side.pool.allocate_exportable(&side.stream, CHUNK));
    let mut cancelled = cancelled;
    let _ = poll(&mut cancelled);
    drop(cancelled);
    side.settle();
}

#[test]
fn pool_ends_while_blocks_are_exported_and_imported() {
    let Pair {
        exporter,
        importer,
        out,
        into,
    } = Pair::new();
    let block = exporter.exportable(CHUNK);
    let sent = block_on(out.send(&block, "")).unwrap();
    let imported = importer.receive(&into).unwrap();
    run_on(&importer.work, us(100));
    let (sender, receiver) = (exporter.device.clone(), importer.device.clone());
    drop((exporter, out, block));
    assert!(matches!(block_on(sent), Err(IpcError::Ended { .. })));
    eventually(|| sender.counters().physical_in_use == 0);
    drop((importer, into, imported));
    assert!(calls(&receiver, Call::Unmap) == 0, "its work runs");
    receiver.advance(us(100));
    eventually(|| calls(&receiver, Call::Unmap) == 1 && calls(&receiver, Call::Destroy) == 1);
}

#[test]
fn block_that_was_never_received_is_released() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let sent = block_on(pair.out.send(&block, "")).unwrap();
    pair.hear();
    pair.into.close();
    assert!(matches!(block_on(sent), Err(IpcError::Ended { .. })));
    // What arrived can still be taken; then the connection has ended.
    let imported = pair.importer.receive(&pair.into).unwrap();
    let ended = pair.importer.receive(&pair.into);
    assert!(matches!(ended, Err(IpcError::Ended { .. })));
    drop(imported);
    pair.importer.settle();
    let refused = block_on(pair.out.send(&block, ""));
    assert!(matches!(refused, Err(IpcError::Ended { .. })));
}

#[test]
fn dropped_connection_tells_the_exporter_of_released_blocks() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let mut first = block_on(pair.out.send(&block, "first")).unwrap();
    let second = block_on(pair.out.send(&block, "second")).unwrap();
    let imported = pair.importer.receive(&pair.into).unwrap();
    pair.hear();
    let Pair {
        exporter,
        importer,
        out,
        into,
    } = pair;
    drop(into);
    // The second was not received, and goes back; the first is still used.
    block_on(second).unwrap();
    assert!(common::poll(&mut first).is_pending());
    let refused = block_on(block_on(out.send(&block, "third")).unwrap());
    assert!(
        matches!(refused, Err(IpcError::Refused { .. })),
        "{refused:?}"
    );
    drop(imported);
    block_on(first).unwrap();
    eventually(|| matches!(block_on(out.send(&block, "")), Err(IpcError::Ended { .. })));
    drop(block);
    exporter.settle();
    importer.settle();
}

#[test]
fn dropped_send_sends_nothing() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    use_block(&pair.exporter.work, &block, us(100));
    let send = not_ready(Box::pin(pair.out.send(&block, "")));
    drop(send);
    pair.exporter.device.advance_to_end();
    assert_eq!(pair.out.outstanding(), (0, 0));
    let _sent = block_on(pair.out.send(&block, "second")).unwrap();
    assert_eq!(pair.importer.receive(&pair.into).unwrap().label(), "second");
}

/// Every device call of an export and an import fails once, with each kind of error. Nothing is lost, and what did not
/// fail works.
#[test]
fn failing_calls_lose_nothing() {
    use DeviceErrorKind::{InvalidArgument, Other, OutOfMemory};
    let all = [
        Call::Create,
        Call::Reserve,
        Call::Map,
        Call::Fill,
        Call::Export,
        Call::Import,
        Call::Record,
        Call::CreateEvent,
    ];
    let mut errors = 0;
    for call in all {
        for kind in [InvalidArgument, Other, OutOfMemory] {
            for is_at_importer in [false, true] {
                let pair = Pair::new();
                let at = match is_at_importer {
                    true => &pair.importer,
                    false => &pair.exporter,
                };
                at.device.faults().fail_next(call, kind);
                errors += usize::from(exchange(&pair).is_err());
                // Without the fault it works, unless its call was not made yet.
                let again = exchange(&pair).is_err();
                errors += usize::from(again);
                exchange(&pair).unwrap();
                pair.exporter.settle();
                pair.importer.settle();
            }
        }
    }
    assert!(errors >= 15, "{errors} errors");
}

fn exchange(pair: &Pair) -> Result<(), IpcError> {
    let side = &pair.exporter;
    let block = side.pool.try_allocate_exportable(&side.stream, CHUNK)?;
    side.device.advance_to_end();
    let sent = block_on(pair.out.send(&block, ""))?;
    let imported = match futures::executor::block_on(futures::future::select(
        Box::pin(pair.into.receive(&pair.importer.stream)),
        sent,
    )) {
        futures::future::Either::Left((received, sent)) => {
            drop(received?);
            pair.importer.device.advance_to_end();
            sent
        }
        futures::future::Either::Right((Err(IpcError::Refused { reason }), received)) => {
            let error = block_on(received).unwrap_err();
            assert_eq!(error.to_string(), reason);
            return Err(error);
        }
        futures::future::Either::Right((sent, _)) => return sent,
    };
    block_on(imported)
}

#[test]
fn sticky_error_leaks_rather_than_unmaps() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let _sent = block_on(pair.out.send(&block, "")).unwrap();
    let imported = pair.importer.receive(&pair.into).unwrap();
    let device = &pair.importer.device;
    use_block(&pair.importer.work, &imported, us(100));
    device.faults().fail_next(Call::Record, Sticky);
    drop(imported);
    device.advance_to_end();
    // Another connection's block comes and goes: the worker has seen the broken one by then.
    let other = Pair::new();
    exchange(&other).unwrap();
    assert_eq!(calls(device, Call::Unmap), 0);
    drop(block);
    pair.exporter.device.advance_to_end();
}

#[test]
fn drain_does_not_await_what_another_process_holds() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let sent = block_on(pair.out.send(&block, "held")).unwrap();
    let imported = pair.importer.receive(&pair.into).unwrap();
    drop(block);
    block_on(pair.exporter.pool.drain()).unwrap();
    assert_eq!(pair.exporter.shared().0, CHUNK);
    block_on(pair.importer.pool.drain()).unwrap();
    assert_eq!(pair.importer.shared(), (0, CHUNK));
    drop(imported);
    block_on(sent).unwrap();
    pair.exporter.settle();
    pair.importer.settle();
}

/// Memory of another process serves no request of this pool, so it is neither counted as evictable nor evicted for one.
#[test]
fn imported_memory_is_not_evicted_for_requests() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let sent = block_on(pair.out.send(&block, "cached")).unwrap();
    let imported = pair.importer.receive(&pair.into).unwrap();
    let cached = imported.into_block().into_evictable();
    let Side { pool, stream, .. } = &pair.importer;
    assert_eq!(pool.inspect().statistics().evictable, 0);
    let held = pool.try_allocate(stream, pool.capacity()).unwrap();
    assert!(pool.try_allocate(stream, CHUNK).is_err());
    assert!(cached.is_present());
    drop((cached, held, block));
    block_on(sent).unwrap();
    pair.importer.settle();
    pair.exporter.settle();
}
