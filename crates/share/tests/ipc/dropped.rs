//! Futures of a connection, dropped or forgotten after every number of polls.

use super::*;
use crate::common::Woken;
use std::future::Future;
use std::pin::Pin;

type Subject = Pin<Box<dyn Future<Output = ()> + Send>>;

const ENDINGS: [fn(Subject); 2] = [drop, std::mem::forget];

fn polled(subject: impl Future<Output = ()> + Send + 'static, polls: usize) -> Subject {
    let mut subject: Subject = Box::pin(subject);
    for _ in 0..polls {
        if common::poll(&mut subject).is_ready() {
            return Box::pin(std::future::ready(()));
        }
    }
    subject
}

#[test]
fn dropped_wait_for_a_release_changes_nothing() {
    for (polls, end) in (0..3).flat_map(|polls| ENDINGS.map(|end| (polls, end))) {
        let pair = Pair::new();
        let block = pair.exporter.exportable(CHUNK);
        let sent = block_on(pair.out.send(&block, "weir")).unwrap();
        end(polled(async { sent.await.unwrap() }, polls));
        let second = block_on(pair.out.send(&block, "again")).unwrap();
        let imported = [(); 2].map(|()| pair.importer.receive(&pair.into).unwrap());
        assert_eq!(imported.each_ref().map(Imported::label), ["weir", "again"]);
        drop(imported);
        block_on(second).unwrap();
        drop(block);
        pair.importer.settle();
        pair.exporter.settle();
    }
}

#[test]
fn dropped_receive_loses_no_block() {
    for polls in 0..3 {
        let pair = Pair::new();
        let block = pair.exporter.exportable(CHUNK);
        let mut receive = Box::pin(pair.into.receive(&pair.importer.stream));
        for _ in 0..polls {
            assert!(common::poll(&mut receive).is_pending());
        }
        drop(receive);
        let sent = block_on(pair.out.send(&block, "weir")).unwrap();
        let imported = pair.importer.receive(&pair.into).unwrap();
        assert_eq!(imported.label(), "weir");
        drop(imported);
        block_on(sent).unwrap();
        drop(block);
        pair.importer.settle();
        pair.exporter.settle();
    }
}

/// A request for exportable memory that waits, and is given up, leaves nothing behind.
#[test]
fn dropped_request_for_exportable_memory_leaves_nothing() {
    for polls in 0..4 {
        let side = Side::new(manual());
        let obstacle = side.pool.try_allocate(&side.stream, 16 * MIB).unwrap();
        use_block(&side.work, &obstacle, us(10));
        let mut request = Box::pin(side.pool.allocate_exportable(&side.stream, CHUNK));
        for poll in 0..polls {
            if poll == 2 {
                side.device.advance_to_end();
            }
            let _ = common::poll(&mut request);
        }
        drop(request);
        drop(obstacle);
        side.device.advance_to_end();
        drop(side.exportable(CHUNK));
        side.settle();
    }
}

/// The waker of a wait for a release may panic. The connection goes on.
#[test]
fn panicking_waker_of_a_release_harms_no_other() {
    let pair = Pair::new();
    let block = pair.exporter.exportable(CHUNK);
    let sent = block_on(pair.out.send(&block, "weir")).unwrap();
    let panicking = Woken::panicking(async { sent.await.unwrap() });
    assert!(panicking.is_waiting());
    drop(pair.importer.receive(&pair.into).unwrap());
    let second = block_on(pair.out.send(&block, "again")).unwrap();
    drop(pair.importer.receive(&pair.into).unwrap());
    block_on(second).unwrap();
    eventually(|| panicking.is_woken());
    drop((panicking, block));
    pair.importer.settle();
    pair.exporter.settle();
}
