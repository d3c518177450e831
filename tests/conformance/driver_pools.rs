//! Pools over the driver's own memory pools: sub-allocated, and passed through. A device whose driver has none says so.

use crate::bench::Bench;
use crate::common::{MIB, assert_matches, not_ready, until_freed};
use crate::probe::Probe;
use crate::site::{Site, Worker, eventually};
use futures::executor::block_on;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{Access, Device, DeviceErrorKind, HandleTypes, MemoryKind};
use weirpool::{AllocError, BuildError, Pool, PoolBuilder, ReleaseThreshold, Reuse, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse, driver_pool_of};

const THROUGH: DriverPoolUse = DriverPoolUse::PassedThrough;

/// A pool that is passed through to a custom pool of the driver.
struct Through<B: Bench> {
    site: Site<B>,
    probe: Probe,
    driver_pool: DriverPool,
}

impl<B: Bench> Through<B> {
    /// Returns `None` if the device's driver has no pools: then that is shown instead.
    fn new(capacity: u64) -> Option<Self> {
        Self::with(capacity, |builder| builder)
    }

    fn with(capacity: u64, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Option<Self> {
        let bench = B::new();
        let probe = Probe::new(bench.device());
        let device = probe.device();
        if !device.capabilities().memory_pools {
            assert_refused(&device);
            return None;
        }
        let driver_pool = DriverPool::builder(&device).build().expect("a pool");
        let keep = ReleaseThreshold::Keep;
        driver_pool.set_release_threshold(keep).expect("a setting");
        let builder = Pool::builder(device).capacity(capacity);
        let builder = set(builder.segment_source(driver_pool.segments(THROUGH)));
        Some(Self {
            site: Site::of(bench, builder.build().expect("valid settings")),
            probe,
            driver_pool,
        })
    }

    fn used(&self) -> u64 {
        self.driver_pool.used().unwrap().current
    }

    /// Asserts at the end that contents were right, and that driver and pool agree that nothing is in use.
    fn end(&self, workers: &[&Worker<B>]) {
        workers.iter().for_each(|worker| worker.settle());
        eventually(|| self.site.pool.inspect().check_conserved().is_ok() && self.used() == 0);
        assert_eq!(self.probe.held(), 0);
        self.site.assert_sound();
    }
}

/// Custom pools and the default pool are refused by name.
fn assert_refused(device: &Arc<dyn Device>) {
    let refused = DriverPool::default_of(device).unwrap_err();
    assert_matches!(refused, BuildError::Unsupported { .. });
    let refused = DriverPool::builder(device).build().unwrap_err();
    assert_matches!(refused, BuildError::Unsupported { .. });
}

/// CUDA: a custom pool with its properties, and every attribute, read and set.
pub(crate) fn driver_pool_has_properties_and_attributes<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let device = through.probe.device();
    let default = DriverPool::default_of(&device).unwrap();
    assert!(default.is_default());
    assert_eq!(default, DriverPool::default_of(&device).unwrap());
    assert_ne!(default, through.driver_pool);

    let handle_types = device.capabilities().handle_types;
    let builder = DriverPool::builder(&device).handle_types(handle_types);
    let pool = builder.max_size(64 * MIB).build().unwrap();
    let properties = pool.properties();
    let seen = (properties.kind, properties.max_size);
    assert_eq!(seen, (MemoryKind::Device, 64 * MIB));
    assert_eq!(properties.handle_types, handle_types);
    let unknown = HandleTypes::WIN32;
    if !handle_types.contains_all(unknown) {
        let refused = DriverPool::builder(&device).handle_types(unknown).build();
        assert_matches!(refused, Err(BuildError::Device(_)));
    }
    for fraction in [0.0, 1.5, f64::NAN] {
        let refused = DriverPool::builder(&device).max_fraction(fraction).build();
        let is_refused = matches!(refused, Err(BuildError::InvalidCapacityFraction { .. }));
        assert!(is_refused, "{fraction}");
    }
    let total = device.memory_info(MemoryKind::Device).unwrap().total;
    let half = DriverPool::builder(&device)
        .max_fraction(0.5)
        .build()
        .unwrap();
    assert_eq!(half.properties().max_size, total / 2);

    assert_eq!(pool.release_threshold().unwrap(), 0, "CUDA's default");
    pool.set_release_threshold(ReleaseThreshold::Bytes(8 * MIB))
        .unwrap();
    assert_eq!(pool.release_threshold().unwrap(), 8 * MIB);
    pool.set_release_threshold(ReleaseThreshold::Fraction(0.5))
        .unwrap();
    assert_eq!(pool.release_threshold().unwrap(), total / 2);
    assert_eq!(pool.reuse().unwrap(), Reuse::ALL);
    let opportunistic = Reuse {
        opportunistic: true,
        ..Reuse::NONE
    };
    pool.set_reuse(opportunistic).unwrap();
    assert_eq!(pool.reuse().unwrap(), opportunistic);

    assert_eq!(pool.access_from(&device).unwrap(), Access::ReadWrite);
    pool.allow_access_from(&device).unwrap();

    let builder = Pool::builder(device).segment_source(pool.segments(THROUGH));
    let through = builder.build().unwrap();
    assert_eq!(
        through.capacity(),
        64 * MIB,
        "the maximum size bounds the capacity"
    );
    let stream = through.create_stream().unwrap();
    let block = through.try_allocate(&stream, 16 * MIB).unwrap();
    assert_eq!(pool.used().unwrap().current, 16 * MIB);
    assert!(pool.reserved().unwrap().current >= 16 * MIB);
    drop(block);
    block_on(stream.synchronize()).unwrap();
    eventually(|| pool.used().unwrap().current == 0);
    assert_eq!(pool.used().unwrap().high, 16 * MIB);
    pool.reset_high_water_marks().unwrap();
    assert_eq!(pool.used().unwrap().high, 0);
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().unwrap().current, 0);
}

/// Each allocation and each free is one call of the driver's pool, with the pool's counting around it.
pub(crate) fn passed_allocation_or_free_is_one_call_of_the_driver<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let Through { site, probe, .. } = &through;
    let worker = site.worker();
    let description = site.pool.inspect().describe();
    assert!(description.is_passed_through);
    let text = description.to_string();
    assert!(
        text.contains("of a pool of the driver") && text.contains("passed through to it"),
        "{text}"
    );
    let (driver_pool, how) = driver_pool_of(&site.pool).expect("a pool of the driver");
    assert_eq!((driver_pool, how), (through.driver_pool.clone(), THROUGH));
    for round in 1..=4 {
        let block = worker.take(MIB + 1);
        assert_eq!(block.size(), MIB + 512, "rounded to the pool's own step");
        let seen = (probe.calls("allocate"), probe.calls("free"));
        assert_eq!(seen, (round, round - 1));
        assert_eq!(site.pool.inspect().statistics().used.current, block.size());
        worker.use_up(&block, round as u8);
        drop(block);
        assert_eq!(
            probe.calls("free"),
            round,
            "in the order of the stream, not later"
        );
        let figures = site.pool.inspect().statistics();
        assert_eq!((figures.reserved.current, figures.pending.current), (0, 0));
        assert_eq!((figures.allocations, figures.frees), (round, round));
    }
    assert_eq!(probe.calls_on(weirpool::device::RawStream::HOST), 0);
    assert!(
        through.driver_pool.reserved().unwrap().current >= MIB,
        "the driver keeps it"
    );
    assert!(site.pool.trim_to(0).is_ok());
    through.end(&[&worker]);
    let deallocation = worker.take(MIB).deallocate();
    block_on(deallocation).unwrap();
}

/// A stream gets the memory that it freed while its work runs. Another stream's bytes stay intact.
pub(crate) fn passed_memory_is_reused_in_stream_order<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let [first, second] = through.site.workers();
    let block = first.take(8 * MIB);
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    let own = first.take(8 * MIB);
    first.use_up(&own, 2);
    let other = second.take(8 * MIB);
    second.use_up(&other, 3);
    gate.open();
    drop((own, other));
    through.end(&[&first, &second]);
}

/// The free comes after the uses on every stream: bytes of another stream are intact until the last use.
pub(crate) fn passed_memory_is_freed_after_all_streams<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let [home, further] = through.site.workers();
    for is_freed_elsewhere in [false, true] {
        let block = home.take(8 * MIB);
        home.fill(&block, 1);
        until_freed(&further.stream, &block);
        let gate = further.use_until_opened(&block, 2);
        match is_freed_elsewhere {
            false => drop(block),
            true => drop(block.deallocate_on(&further.stream).unwrap()),
        }
        // The freeing stream may get the same memory, and comes after the further one.
        let next = home.take(8 * MIB);
        home.use_up(&next, 3);
        through.site.bench.let_run();
        gate.open();
        drop(next);
        home.settle();
    }
    through.end(&[&home, &further]);
}

/// Memory that is allocated in the order of a stream whose earlier work still runs is used on another stream behind
/// that.
pub(crate) fn further_stream_comes_after_a_passed_allocation<B: Bench>() {
    let Some(through) = Through::<B>::new(16 * MIB) else {
        return;
    };
    let [home, further] = through.site.workers();
    let block = home.take(16 * MIB);
    let gate = home.use_until_opened(&block, 1);
    drop(block);
    // Most likely at this address again.
    let block = home.take(16 * MIB);
    until_freed(&further.stream, &block);
    further.use_up(&block, 2);
    through.site.bench.let_run();
    gate.open();
    drop(block);
    through.end(&[&home, &further]);
}

/// A request waits while live blocks leave no room, and a free admits it.
pub(crate) fn passed_request_waits_at_the_capacity<B: Bench>() {
    let Some(through) = Through::<B>::new(16 * MIB) else {
        return;
    };
    let site = &through.site;
    let worker = site.worker();
    let block = worker.take(12 * MIB);
    worker.take_nothing(8 * MIB);
    let request = not_ready(site.pool.allocate(&worker.stream, 8 * MIB));
    worker.use_up(&block, 1);
    drop(block);
    let granted = block_on(request).unwrap();
    worker.use_up(&granted, 2);
    assert_eq!(site.pool.inspect().statistics().waits.served, 1);
    let timed_out = site.pool.allocate(&worker.stream, 16 * MIB);
    let timed_out = block_on(timed_out.timeout(Duration::from_millis(5)));
    assert!(timed_out.is_err());
    drop(granted);
    through.end(&[&worker]);
}

/// A request that the driver refuses waits, and asks again.
pub(crate) fn passed_request_waits_while_the_driver_refuses<B: Bench>() {
    let Some(through) = Through::<B>::new(16 * MIB) else {
        return;
    };
    let (site, probe) = (&through.site, &through.probe);
    let worker = site.worker();
    probe.refuse("allocate", DeviceErrorKind::OutOfMemory);
    worker.take_nothing(MIB);
    let request = not_ready(site.pool.allocate(&worker.stream, MIB));
    assert_eq!(site.pool.inspect().statistics().reserved.current, 0);
    probe.allow("allocate");
    let granted = block_on(request).unwrap();
    worker.use_up(&granted, 1);
    drop(granted);
    through.end(&[&worker]);
}

/// A future that is dropped after its grant frees the memory that was allocated for it.
pub(crate) fn dropped_passed_request_gives_its_memory_back<B: Bench>() {
    let Some(through) = Through::<B>::new(16 * MIB) else {
        return;
    };
    let site = &through.site;
    let worker = site.worker();
    let block = worker.take(16 * MIB);
    let first = not_ready(site.pool.allocate(&worker.stream, 16 * MIB));
    let second = not_ready(site.pool.allocate(&worker.stream, 16 * MIB));
    worker.use_up(&block, 1);
    drop(block); // grants the first, perhaps at its next poll
    drop(first);
    drop(block_on(second).unwrap());
    through.end(&[&worker]);
}

/// A pool that keeps nothing sets nothing aside.
pub(crate) fn pool_that_passes_through_refuses_reservations<B: Bench>() {
    let Some(through) = Through::<B>::new(16 * MIB) else {
        return;
    };
    let refused = block_on(through.site.pool.reserve(8 * MIB));
    assert_matches!(refused, Err(AllocError::NotReservable));
    let worker = through.site.worker();
    let parts = through
        .site
        .pool
        .allocate_many(&worker.stream, [MIB, 2 * MIB]);
    let blocks = block_on(parts).unwrap();
    blocks.iter().for_each(|block| worker.use_up(block, 1));
    drop(blocks);
    through.end(&[&worker]);
}

/// If the driver refuses a free in the order of a stream, the block goes back once it is complete.
pub(crate) fn refused_free_falls_back_to_the_pool<B: Bench>() {
    let Some(through) = Through::<B>::new(16 * MIB) else {
        return;
    };
    let (site, probe) = (&through.site, &through.probe);
    let worker = site.worker();
    let block = worker.take(8 * MIB);
    let gate = worker.use_until_opened(&block, 1);
    probe.fail("free", 1, DeviceErrorKind::Unsupported);
    drop(block);
    assert!(probe.has_failed("free"));
    let figures = site.pool.inspect().statistics();
    let seen = (figures.pending.current, figures.used.current);
    assert_eq!(seen, (8 * MIB, 0));
    assert_eq!(through.used(), 8 * MIB);
    gate.open();
    worker.settle();
    eventually(|| through.used() == 0);
    let block = worker.take(8 * MIB);
    worker.use_up(&block, 2);
    drop(block);
    through.end(&[&worker]);
}

/// The driver's threshold is met when a caller next waits for a stream, as with a synchronization of CUDA's own.
pub(crate) fn driver_pool_meets_its_threshold_at_a_synchronization<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let worker = through.site.worker();
    let pool = &through.driver_pool;
    let reserved = || pool.reserved().unwrap().current;
    let block = worker.take(32 * MIB);
    worker.use_up(&block, 1);
    drop(block);
    block_on(worker.stream.synchronize()).unwrap();
    assert!(reserved() >= 32 * MIB, "the driver keeps all");
    pool.set_release_threshold(ReleaseThreshold::Bytes(0))
        .unwrap();
    block_on(worker.stream.synchronize()).unwrap();
    eventually(|| reserved() == 0);
    through.end(&[&worker]);
}

/// Blocks keep the driver's pool alive, and a pool of another device is refused.
pub(crate) fn driver_pool_outlives_its_handle<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let Through {
        site,
        probe,
        driver_pool,
    } = through;
    let elsewhere = site.bench.another().device();
    let refused = Pool::builder(elsewhere)
        .segment_source(driver_pool.segments(THROUGH))
        .build();
    assert_matches!(refused, Err(BuildError::ForeignSegments { .. }));
    let conflict = Pool::builder(probe.device()).segment_source(driver_pool.segments(THROUGH));
    let refused = conflict.upstream(Upstream::Device).build();
    assert_matches!(refused, Err(BuildError::Conflict { .. }));
    let conflict = Pool::builder(probe.device()).segment_source(driver_pool.segments(THROUGH));
    let refused = conflict.tuning(|tuning| tuning.initial_size = MIB).build();
    assert_matches!(refused, Err(BuildError::Conflict { .. }));
    drop(driver_pool);
    let worker = site.worker();
    let block = worker.take(8 * MIB);
    worker.use_up(&block, 1);
    assert_eq!(probe.calls("destroy_pool"), 0);
    let Site { pool, witness, .. } = site;
    drop(pool);
    worker.settle();
    let Worker { pool, stream, .. } = worker;
    drop((pool, stream));
    assert_eq!(probe.calls("destroy_pool"), 0, "the block holds it");
    drop(block);
    eventually(|| probe.calls("destroy_pool") == 1);
    assert_eq!(probe.held(), 0);
    witness.assert_content();
}

/// Several threads allocate from one pool of the driver: addresses that it gives out anew have one owner at a time.
pub(crate) fn threads_share_a_driver_pool<B: Bench>() {
    let Some(through) = Through::<B>::new(64 * MIB) else {
        return;
    };
    let workers: [Worker<B>; 4] = through.site.workers();
    std::thread::scope(|scope| {
        for (number, worker) in workers.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..50_u64 {
                    let block = worker.take((1 + round % 3) * MIB);
                    worker.use_up(&block, number as u8 + 1);
                    let address = block.address();
                    let (pool, found) = weirpool_compat::pool_of(address).expect("a block");
                    assert_eq!((pool, found.address), (worker.pool.clone(), address));
                    drop(block);
                }
            });
        }
    });
    let workers: Vec<_> = workers.iter().collect();
    through.end(&workers);
}
