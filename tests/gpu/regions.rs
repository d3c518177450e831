//! Regions that are suspended and resumed: the contents, the addresses, and graphs that use them. Memory that is spilled and
//! fetched.

use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Mapped};
use crate::site::Site;
use futures::executor::block_on;
use std::future::IntoFuture;
use std::time::Duration;
use weirpool::device::MemoryKind;
use weirpool::{Block, Pool, StreamError, Upstream};
use weirpool_tiers::{
    HostTier, IntoSpillable, Keep, RegionError, Regions, resume_all, suspend_all,
};

type Here = Cuda<Mapped>;

const GIB: u64 = 1 << 30;

/// After each of 100 rounds the contents are at the same addresses, and graphs read them there. Kernels overwrite all of the
/// pool's memory meanwhile.
pub(crate) fn contents_and_graphs_survive_a_hundred_rounds() {
    let site = Site::<Here>::new(96 * MIB);
    let [worker, other] = site.workers();
    let weights = site.pool.region("weights").build().unwrap();
    let cache = site
        .pool
        .region("cache")
        .keep(Keep::Nothing)
        .build()
        .unwrap();
    let allocate = |bytes| block_on(weights.allocate(&worker.stream, bytes)).unwrap();
    let blocks: Vec<Block> = [MIB, 24 * MIB, 512, 3 * MIB].map(allocate).into();
    let mut scratch = block_on(cache.allocate(&worker.stream, 24 * MIB)).unwrap();
    for (value, block) in blocks.iter().enumerate() {
        worker.fill(block, value as u8);
    }
    let addresses: Vec<_> = blocks.iter().map(Block::address).collect();
    let capture = site.pool.capture(&worker.stream).unwrap();
    let copied = blocks[1].copy_to(0..24 * MIB, &mut scratch, 0, &worker.stream);
    drop(copied.unwrap());
    let graph = capture.end().unwrap();
    for round in 0..100 {
        graph.launch(&other.stream).unwrap();
        block_on(suspend_all(&[&weights, &cache])).unwrap();
        assert_eq!(site.pool.inspect().statistics().charged, 0);
        let refused = graph.launch(&other.stream);
        assert!(
            matches!(refused, Err(StreamError::Absent { .. })),
            "{refused:?}"
        );
        if round % 10 == 0 {
            let everything = other.take(96 * MIB);
            other.use_up(&everything, 0xee);
            other.free_and_settle(everything);
        }
        block_on(resume_all(&[&weights, &cache]).into_future()).unwrap();
        let now: Vec<_> = blocks.iter().map(Block::address).collect();
        assert_eq!(now, addresses);
        worker.fill(&scratch, 0xaa);
        graph.launch(&worker.stream).unwrap();
        worker.expect(&scratch, 1);
        for (value, block) in blocks.iter().enumerate() {
            worker.expect(block, value as u8);
        }
        worker.settle();
    }
    drop((graph, blocks, scratch));
    site.assert_sound();
}

/// A kernel that runs, on a stream of which the region knows only a use, is waited for.
pub(crate) fn suspension_comes_after_a_running_kernel() {
    let site = Site::<Here>::new(64 * MIB);
    let [worker, other] = site.workers();
    let weights = site.pool.region("weights").build().unwrap();
    let mut block = block_on(weights.allocate(&worker.stream, 8 * MIB)).unwrap();
    worker.fill(&block, 1);
    other.stream.record_use(&mut block).unwrap();
    let gate = crate::bench::Bench::hold(&site.bench, &other.work);
    site.bench
        .gpu
        .fill(&other.work, block.address().to_bits(), 8 * MIB, 0x0202_0202);
    let mut suspending = Box::pin(weights.suspend());
    assert!(poll(&mut suspending).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    assert!(poll(&mut suspending).is_pending());
    assert_eq!(weights.figures().resident, 32 * MIB);
    gate.open();
    block_on(suspending).unwrap();
    block_on(weights.resume().into_future()).unwrap();
    worker.expect(&block, 2);
    worker.settle();
    drop(block);
    site.assert_sound();
}

/// Memory that the device gave to somebody else is waited for.
pub(crate) fn resumption_waits_for_memory_of_others() {
    let site = Site::<Here>::new(4 * GIB);
    let worker = site.worker();
    let weights = site.pool.region("weights").build().unwrap();
    let block = block_on(weights.allocate(&worker.stream, 2 * GIB)).unwrap();
    worker.fill(&block, 5);
    block_on(weights.suspend()).unwrap();
    let device = site.pool.device().clone();
    let free = device.memory_info(MemoryKind::Device).unwrap().free;
    let bytes = (free - GIB) / (2 * MIB) * (2 * MIB);
    let held = device.allocate(MemoryKind::Device, bytes).unwrap();
    let refused = block_on(
        weights
            .resume()
            .timeout(Duration::from_millis(300))
            .into_future(),
    );
    assert!(
        matches!(refused, Err(RegionError::DeviceFull { .. })),
        "{refused:?}"
    );
    std::thread::scope(|scope| {
        let resuming = scope.spawn(|| block_on(weights.resume().into_future()));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!resuming.is_finished());
        // SAFETY: nothing uses the memory.
        #[allow(unsafe_code, reason = "memory without a pool")]
        unsafe { device.free(MemoryKind::Device, held, bytes) }.unwrap();
        resuming.join().unwrap().unwrap();
    });
    worker.expect(&block, 5);
    worker.settle();
    drop(block);
    site.assert_sound();
}

/// Kernels overwrite all of the pool's memory whenever memory is spilled. Each of 50 rounds fetches it in another order.
pub(crate) fn contents_are_spilled_and_fetched() {
    let site = Site::<Here>::new(64 * MIB);
    let [worker, other] = site.workers();
    let host = Pool::builder(site.pool.device().clone())
        .upstream(Upstream::Pinned)
        .capacity(96 * MIB)
        .build()
        .unwrap();
    let tier = HostTier::new(&host).unwrap();
    let memory: Vec<_> = [MIB, 24 * MIB, 512, 3 * MIB, 8 * MIB]
        .into_iter()
        .enumerate()
        .map(|(value, bytes)| {
            let block = block_on(site.pool.allocate(&worker.stream, bytes)).unwrap();
            worker.fill(&block, value as u8);
            block.into_spillable(&tier)
        })
        .collect();
    for round in 0..50 {
        let everything = block_on(other.allocate(64 * MIB));
        assert!(memory.iter().all(|memory| !memory.is_resident()));
        other.use_up(&everything, 0xee);
        other.free_and_settle(everything);
        for at in 0..memory.len() {
            let value = (at + round) % memory.len();
            let user = [&worker, &other][at % 2];
            let fetched = block_on(memory[value].fetch(&user.stream)).unwrap();
            user.expect(&*fetched, value as u8);
        }
    }
    worker.settle();
    other.settle();
    let figures = tier.figures();
    assert_eq!((figures.spills, figures.fetches), (250, 250));
    assert_eq!(figures.refusals, 0);
    drop((memory, tier));
    site.assert_sound();
}
