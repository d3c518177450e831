//! The host as a stream, of memory of its own and of memory that it shares with the device.

use crate::bench::{Bench, Witness};
use crate::common::{MIB, not_ready, now, until_freed};
use crate::site::{ONLY_COMPLETE, Site, Worker, plain_builder};
use futures::executor::block_on;
use std::thread;
use weirpool::device::DeviceErrorKind;
use weirpool::{Block, Pool, Source, Stream, StreamError, Unordered, Upstream};

/// Creates a pool over memory of a kind, if the device has it.
fn site_over<B: Bench>(upstream: Upstream) -> Option<Site<B>> {
    let bench = B::new();
    let kinds = bench.device().capabilities().memory_kinds;
    kinds.contains(upstream.kind()).then(|| {
        let builder = plain_builder(bench.device(), 8 * MIB)
            .tuning(|tuning| tuning.initial_size = 8 * MIB)
            .upstream(upstream);
        Site {
            pool: builder
                .tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
                .build()
                .expect("memory"),
            witness: Witness::default(),
            bench,
        }
    })
}

/// Creates pools over every kind of memory that host and device share.
fn shared<B: Bench>() -> impl Iterator<Item = (Site<B>, Stream)> {
    let upstreams = [Upstream::Managed, Upstream::Pinned].into_iter();
    upstreams.filter_map(site_over::<B>).map(|site| {
        let host = site.pool.host_stream().expect("it sees the memory");
        (site, host)
    })
}

fn write(host: &Stream, block: &mut Block, value: u8) {
    let bytes = vec![value; block.size() as usize];
    now(block.upload(host, 0, &bytes).unwrap()).unwrap();
}

#[track_caller]
fn expect(host: &Stream, block: &Block, value: u8) {
    let bytes = now(block.download(host, 0..block.size()).unwrap()).unwrap();
    assert!(bytes.iter().all(|byte| *byte == value));
}

/// Umpire `check_states_host`: the host's memory is one stream of execution. Memory that it freed is free for
/// every thread, is never pending, and needs no event.
pub(crate) fn host_memory_is_never_pending<B: Bench>() {
    let Some(site) = site_over::<B>(Upstream::Host) else {
        return;
    };
    let host = site.pool.host_stream().unwrap();
    let mut all = site.pool.try_allocate(&host, 8 * MIB).unwrap();
    let address = all.address();
    write(&host, &mut all, 1);
    expect(&host, &all, 1);
    // Freed memory of the host is complete without polling.
    drop(all);
    assert_eq!(site.pool.inspect().statistics().free, 8 * MIB);
    thread::scope(|scope| {
        for value in 0..4 {
            let pool = &site.pool;
            scope.spawn(move || use_by_turns(pool, value));
        }
    });
    // Another registration is the same host.
    let again = site.pool.host_stream().unwrap();
    let all = site.pool.try_allocate(&again, 8 * MIB).unwrap();
    assert_eq!(all.address(), address);
    let statistics = site.pool.inspect().statistics();
    assert_eq!((statistics.pending.high, statistics.events_created), (0, 0));
    assert_eq!(statistics.device_waits, 0);
    drop(all);
    site.assert_conserved();
}

fn use_by_turns(pool: &Pool, value: u8) {
    let host = pool.host_stream().unwrap();
    for round in 0..30 {
        let mut block = pool.try_allocate(&host, 4096 << (round % 8)).unwrap();
        write(&host, &mut block, value);
        expect(&host, &block, value);
        assert_eq!(pool.inspect().statistics().pending.current, 0);
        drop(block);
        now(host.synchronize()).unwrap();
    }
}

/// A side that does not see the memory gets no stream.
pub(crate) fn stream_is_refused_memory_that_it_does_not_see<B: Bench>() {
    let site = site_over::<B>(Upstream::Device).expect("every device has memory of its own");
    let refused = site.pool.host_stream();
    assert_eq!(refused.unwrap_err(), StreamError::UnseenByHost);
    if let Some(site) = site_over::<B>(Upstream::Host) {
        let refused = site.pool.register(&site.bench.stream());
        assert_eq!(refused.unwrap_err(), StreamError::UnseenByDevice);
    }
}

/// Umpire, single memory space: the host gets memory that the device still uses by awaiting its completion. The
/// device gets memory that the host freed at once.
pub(crate) fn host_and_device_take_turns_in_shared_memory<B: Bench>() {
    for (site, host) in shared::<B>() {
        let worker = site.worker();
        let block = worker.take(8 * MIB);
        let gate = worker.use_until_opened(&block, 1);
        drop(block);
        let waiting = not_ready(site.pool.allocate(&host, 8 * MIB));
        assert_eq!(site.pool.inspect().statistics().pending.current, 8 * MIB);
        gate.open();
        let mut block = block_on(waiting).unwrap();
        write(&host, &mut block, 2);
        drop(block);
        assert_eq!(site.pool.inspect().statistics().pending.current, 0);
        let block = worker.take_from(Source::Free, 8 * MIB);
        worker.use_up(&block, 3);
        worker.free_and_settle(block);
        assert_eq!(site.pool.inspect().statistics().device_waits, 0);
        site.assert_sound();
    }
}

/// One block is used by host and device, without a copy by the pool.
pub(crate) fn block_is_seen_by_host_and_device<B: Bench>() {
    for (site, host) in shared::<B>() {
        let worker = site.worker();
        let mut block = site.pool.try_allocate(&host, MIB).unwrap();
        write(&host, &mut block, 1);
        until_freed(&worker.stream, &block);
        worker.expect(&block, 1);
        worker.fill(&block, 2);
        block_on(worker.stream.synchronize()).unwrap();
        expect(&host, &block, 2);
        let gate = worker.use_until_opened(&block, 3);
        drop(block);
        // It was used on both sides, and the device still uses it.
        assert_eq!(site.pool.inspect().statistics().pending.current, MIB);
        worker.stream.seal().unwrap();
        gate.open();
        worker.settle();
        site.pool.maintain().reap().unwrap();
        assert_eq!(site.pool.inspect().statistics().pending.current, 0);
        site.assert_sound();
    }
}

/// The host cannot be made to wait. Where another stream would wait, it gets an error that says to await.
pub(crate) fn host_awaits_instead_of_waiting<B: Bench>() {
    for (site, host) in shared::<B>() {
        let worker = site.worker();
        let earlier = worker.take(8 * MIB);
        let gate = worker.use_until_opened(&earlier, 1);
        let event = worker.stream.event().unwrap();
        drop(earlier);
        let mut block = worker.take_from(Source::SameStream, 8 * MIB);
        for refused in [
            host.wait(&event),
            host.record_use(Unordered::UntilFreed(&block)).map(drop),
        ] {
            let Err(StreamError::Device(error)) = refused else {
                panic!("{refused:?}, although the device still uses it");
            };
            assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
            assert!(error.reason().contains("await"), "{error}");
        }
        gate.open();
        block_on(event.clone().into_future()).unwrap();
        host.wait(&event).unwrap();
        host.record_use(Unordered::UntilFreed(&block)).unwrap();
        write(&host, &mut block, 2);
        // In the other direction, nothing needs to be awaited.
        worker.stream.wait(&host.event().unwrap()).unwrap();
        expect_on(&worker, &block);
        drop(block);
        site.assert_sound();
    }
}

fn expect_on<B: Bench>(worker: &Worker<B>, block: &Block) {
    worker.expect(block, 2);
    worker.settle();
}
