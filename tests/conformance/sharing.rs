//! Memory used on several streams, by the host, on several devices.

use crate::bench::Bench;
use crate::common::{MIB, assert_matches, now, until_freed};
use crate::site::{Site, Worker, builder, settle_all};
use futures::executor::block_on;
use weirpool::{AllocError, Block, Source, StreamError, Unordered};

/// Umpire, single memory space: memory that host and device see. The host's use is ordered like
/// that of another stream.
pub(crate) fn host_use_is_ordered_like_another_stream<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let [device, host, other] = site.workers();
    let block = device.take(MIB);
    device.fill(&block, 1);
    block_on(device.stream.synchronize()).unwrap();
    assert!(site.bench.host_compare((&block).into(), 1));
    site.bench.host_fill((&block).into(), 2);
    device.expect(&block, 2);
    // The host is at it until the gate opens.
    until_freed(&host.stream, &block);
    let gate = site.bench.hold(&host.work);
    host.expect(&block, 2);
    drop(block);
    device.settle();
    other.take_nothing(8 * MIB);
    gate.open();
    settle_all(&[&device, &host]);
    let all = other.take(8 * MIB);
    other.use_up(&all, 3);
    other.free_and_settle(all);
    site.assert_sound();
}

/// PyTorch `record_stream`: used on several streams and freed on one: no stream gets it before all have
/// passed, not even the stream that it was allocated on.
pub(crate) fn block_used_on_several_streams_waits_for_all<B: Bench>() {
    for taker in [0, 3] {
        let site = Site::<B>::without_device_waits(8 * MIB);
        let workers = site.workers::<4>();
        let (block, gates) = shared(&workers);
        drop(block);
        for gate in gates {
            workers[taker].take_nothing(8 * MIB);
            gate.open();
            site.bench.let_run();
        }
        workers.iter().for_each(Worker::settle);
        let block = workers[taker].take(8 * MIB);
        workers[taker].use_up(&block, 2);
        workers[taker].free_and_settle(block);
        site.assert_sound();
    }
}

/// A stream that takes the memory behind waits on the device waits for each of the streams.
pub(crate) fn taker_of_a_shared_block_comes_after_all_its_streams<B: Bench>() {
    for taker in [0, 3] {
        for opened_first in [0, 1] {
            let site = Site::<B>::new(8 * MIB);
            let workers = site.workers::<4>();
            let (block, mut gates) = shared(&workers);
            drop(block);
            let block = workers[taker].take_from(Source::DeviceWait, 8 * MIB);
            workers[taker].fill(&block, 2);
            workers[taker].expect(&block, 2);
            gates.remove(opened_first).open();
            site.bench.let_run();
            drop(gates);
            workers.iter().for_each(Worker::settle);
            drop(block);
            site.assert_sound();
        }
    }
}

/// A block of the first worker that the next two look at, each once its gate is open.
fn shared<B: Bench>(workers: &[Worker<B>; 4]) -> (Block, Vec<crate::bench::Gate>) {
    let block = workers[0].take(8 * MIB);
    workers[0].fill(&block, 1);
    let gates = workers[1..3].iter().map(|reader| {
        reader.come_after(&workers[0]);
        until_freed(&reader.stream, &block);
        let gate = reader.bench.hold(&reader.work);
        reader.expect(&block, 1);
        gate
    });
    let gates = gates.collect();
    (block, gates)
}

/// Umpire, which refuses it, and RMM, where it is undefined: a free on another stream than the allocating one. Here the
/// order of both is kept, whichever is slower.
pub(crate) fn block_freed_on_another_stream_keeps_the_order_of_both<B: Bench>() {
    for slow in [0, 1] {
        let site = Site::<B>::without_device_waits(8 * MIB);
        let workers = site.workers::<3>();
        let [home, further, third] = &workers;
        let block = home.take(8 * MIB);
        home.fill(&block, 1);
        further.come_after(home);
        let gate = site.bench.hold(&workers[slow].work);
        workers[slow].expect(&block, 1);
        let freed = block.deallocate_on(&further.stream).unwrap();
        third.take_nothing(8 * MIB);
        gate.open();
        block_on(freed).unwrap();
        let block = third.take_from(Source::Free, 8 * MIB);
        third.use_up(&block, 2);
        third.free_and_settle(block);
        site.assert_sound();
    }
}

/// A stream that a block is used on comes after what its memory was before: the home stream's own order
/// does not protect it.
pub(crate) fn further_stream_comes_after_the_earlier_life<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, further] = site.workers();
    for bytes in [8 * MIB, MIB] {
        let earlier = home.take(bytes);
        let address = earlier.address();
        let gate = home.use_until_opened(&earlier, 1);
        drop(earlier);
        let block = home.take(bytes);
        assert_eq!(block.address(), address);
        until_freed(&further.stream, &block);
        further.fill(&block, 2);
        further.expect(&block, 2);
        site.bench.let_run();
        gate.open();
        settle_all(&[&home, &further]);
        drop(block);
        block_on(home.stream.synchronize()).unwrap();
    }
    site.assert_sound();
}

/// RMM multidevice: each device has its pool, and neither takes the other's streams.
pub(crate) fn streams_of_another_device_are_refused<B: Bench>() {
    let here = Site::<B>::new(8 * MIB);
    let there = here.elsewhere(8 * MIB);
    let refused = here.pool.register(&there.bench.stream());
    assert_eq!(refused.unwrap_err(), StreamError::ForeignDevice);
    let (at_home, abroad) = (here.worker(), there.worker());
    let blocks = [at_home.take(8 * MIB), abroad.take(8 * MIB)];
    at_home.use_up(&blocks[0], 1);
    abroad.use_up(&blocks[1], 2);
    assert_eq!(here.pool.inspect().statistics().used.current, 8 * MIB);
    drop(blocks);
    settle_all(&[&at_home, &abroad]);
    here.assert_sound();
    there.assert_sound();
}

/// Two pools of one device do not take each other's streams.
pub(crate) fn streams_of_another_pool_are_refused<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let elsewhere = builder::<B>(site.bench.device(), 8 * MIB).build().unwrap();
    let stream = elsewhere.register(&site.bench.stream()).unwrap();
    let tried = site.pool.try_allocate(&stream, 1);
    assert_eq!(tried.unwrap_err(), AllocError::ForeignStream);
    let awaited = now(site.pool.allocate(&stream, 1));
    assert_eq!(awaited.unwrap_err(), AllocError::ForeignStream);
    site.assert_conserved();
    elsewhere.inspect().check_conserved().unwrap();
}

/// rmm#1306: an event of one device, a stream of another. It orders them if both devices are of one host.
pub(crate) fn event_of_another_host_is_refused<B: Bench>() {
    let here = Site::<B>::new(8 * MIB);
    let there = here.elsewhere(8 * MIB);
    let event = there.worker().stream.event().unwrap();
    let waited = here.worker().stream.wait(&event);
    let refused = Err(StreamError::ForeignDevice);
    assert_eq!(waited, if B::IS_OF_ONE_HOST { Ok(()) } else { refused });
}

/// Umpire#925: a free that was refused untracked the block all the same. Here it comes back in the
/// error, as alive as before.
pub(crate) fn refused_free_leaves_the_block_allocated<B: Bench>() {
    let (site, other) = (Site::<B>::new(8 * MIB), Site::<B>::new(8 * MIB));
    let [worker, stranger] = [site.worker(), other.worker()];
    let block = worker.take(8 * MIB);
    worker.fill(&block, 1);
    // The other pool is on a device of its own, where the backend has more than one.
    let is_same = site.pool.device().id() == other.pool.device().id();
    let refused = stranger.stream.record_use(Unordered::UntilFreed(&block));
    let reason = refused.unwrap_err();
    match is_same {
        true => assert_matches!(reason, StreamError::ForeignPool(_)),
        false => assert_eq!(reason, StreamError::ForeignDevice),
    }
    let refused = block.deallocate_on(&stranger.stream).unwrap_err();
    assert_eq!(refused.reason, reason);
    worker.take_nothing(MIB);
    assert_eq!(site.pool.inspect().statistics().used.current, 8 * MIB);
    worker.expect(&refused.block, 1);
    drop(refused);
    worker.settle();
    site.assert_sound();
}

/// A device that can share its chunks exports one by a descriptor, and imports it as the same memory. It outlives the
/// exporter's own chunk. A descriptor of anything else is refused, and so is a size that is wrong, at the latest when
/// the chunk is mapped.
pub(crate) fn exported_chunk_is_the_same_memory<B: Bench>() {
    #[cfg(unix)]
    {
        use weirpool::device::DeviceAddress;
        let bench = B::new();
        let device = bench.device();
        // Chunks are the device's own memory, which the host does not see.
        let is_seen = B::UPSTREAM.kind().is_seen_by_host();
        let Some(sharing) = device.sharing().filter(|_| !is_seen) else {
            return;
        };
        let bytes = 2 * MIB.max(device.capabilities().granularity);
        let span = |address| crate::bench::Span {
            address: DeviceAddress::from_bits(address),
            bytes,
        };
        let chunk = sharing.create_shareable(bytes).unwrap();
        let here = device.reserve(bytes).unwrap();
        let there = device.reserve(2 * bytes).unwrap();
        // SAFETY: both ranges are reserved and unused. Each chunk is mapped once, unmapped, and destroyed once. No
        // work of a stream touches them.
        unsafe {
            device.map(here, chunk, bytes).unwrap();
            bench.host_fill(span(here), 1);
            let descriptor = sharing.export(chunk).unwrap();
            let again = descriptor.try_clone().unwrap();
            let imported = sharing.import(descriptor, bytes).unwrap();
            device.map(there, imported, bytes).unwrap();
            assert!(bench.host_compare(span(there), 1));
            bench.host_fill(span(there), 2);
            assert!(bench.host_compare(span(here), 2));
            device.unmap(here, bytes).unwrap();
            device.destroy(chunk).unwrap();
            assert!(
                bench.host_compare(span(there), 2),
                "an importer keeps the memory"
            );
            device.unmap(there, bytes).unwrap();
            device.destroy(imported).unwrap();
            if let Ok(wrong) = sharing.import(again, 2 * bytes) {
                assert!(device.map(there, wrong, 2 * bytes).is_err());
                device.destroy(wrong).unwrap();
            }
            let file = std::fs::File::open("/dev/null").unwrap();
            assert!(sharing.import(file.into(), bytes).is_err());
            device.unreserve(here, bytes).unwrap();
            device.unreserve(there, 2 * bytes).unwrap();
        }
    }
}
