//! Several pools of one device: named, default, current; what a device lacks.

use crate::bench::Bench;
use crate::common::MIB;
use crate::executors::{Executor, Task};
use crate::site::{Site, builder};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use weirpool::compat::{find_pool, pool_of};
use weirpool::device::{Device, MemoryKind, Pooling};
use weirpool::testing::Invariants;
use weirpool::{AllocError, BuildError, Current, Pool, Scope, StreamError, Upstream, current};

/// A name that no other test has.
fn name(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{what} {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn named<B: Bench>(device: &Arc<dyn Device>, what: &str) -> Pool {
    let builder = builder::<B>(device.clone(), 8 * MIB);
    builder.name(name(what)).build().unwrap()
}

/// The pool that a small allocation comes from, where none is named.
fn whose<B: Bench>(bench: &B, device: &Arc<dyn Device>) -> Result<Pool, AllocError> {
    let block = current(device)
        .expect("a pool")
        .try_allocate(&bench.stream(), 4096)?;
    Ok(pool_of(block.address()).expect("somebody's").0)
}

/// [26] The default pools of two devices are two, and neither takes the other's streams.
pub(crate) fn default_pools_are_their_devices<B: Bench>() {
    let here = B::new();
    let there = here.another();
    let devices = [here.device(), there.device()];
    let pools = devices
        .each_ref()
        .map(|device| Pool::default_of(device).unwrap());
    assert_ne!(pools[0], pools[1]);
    assert_eq!(whose(&here, &devices[0]).unwrap(), pools[0]);
    assert_eq!(whose(&there, &devices[1]).unwrap(), pools[1]);
    let refused = whose(&there, &devices[0]).unwrap_err();
    assert_eq!(refused, AllocError::Stream(StreamError::ForeignDevice));
    // What is set, or switched, for one is not for the other.
    Current::set_pooling(&devices[0], Pooling::Disabled);
    assert!(!whose(&here, &devices[0]).unwrap().is_pooled());
    assert_eq!(whose(&there, &devices[1]).unwrap(), pools[1]);
    Current::set_pooling(&devices[0], Pooling::Enabled);
}

/// [27] CUDA's custom pools: each has its memory, and the others do not touch it.
pub(crate) fn named_and_default_pools_are_isolated<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let device = site.bench.device();
    let (weights, default) = (
        named::<B>(&device, "weights"),
        Pool::default_of(&device).unwrap(),
    );
    assert_eq!(find_pool(weights.name().unwrap()).as_ref(), Some(&weights));
    let work = site.bench.stream();
    let stream = weights.register(&work).unwrap();
    let block = weights.try_allocate(&stream, 8 * MIB).unwrap();
    site.bench.fill(&work, (&block).into(), 1);
    // One is full, and the others are not.
    assert!(weights.try_allocate(&stream, MIB).is_err());
    let other = site.worker().take(8 * MIB);
    let default_stream = default.register(&work).unwrap();
    let third = default.try_allocate(&default_stream, MIB).unwrap();
    let owners = [&block, &other, &third].map(|block| pool_of(block.address()).unwrap().0);
    assert_eq!(
        owners,
        [weights.clone(), site.pool.clone(), default.clone()]
    );
    assert_eq!(weights.statistics().used.current, 8 * MIB);
    let answer = site.witness.ask();
    site.bench.compare(&work, (&block).into(), 1, answer);
    site.bench.settle(&work);
    drop((block, other, third, owners));
    site.assert_sound();
    weights.check_conserved().unwrap();
}

/// [27] Warp `ScopedMempool`: an override is undone however it is left.
pub(crate) fn an_override_is_undone_on_every_way_out<B: Bench>() {
    let bench = B::new();
    let device = bench.device();
    let (outer, inner) = (named::<B>(&device, "outer"), named::<B>(&device, "inner"));
    let default = Pool::default_of(&device).unwrap();
    let whose = || whose(&bench, &device);
    assert_eq!(whose().unwrap(), default);
    {
        let _outer = Scope::pool(&outer).enter();
        let fails = || -> Result<(), AllocError> {
            let _inner = Scope::pool(&inner).enter();
            assert_eq!(whose()?, inner);
            let stream = bench.stream();
            let too_large = current(&device).unwrap().try_allocate(&stream, 1 << 50)?;
            drop(too_large);
            Ok(())
        };
        assert!(matches!(fails(), Err(AllocError::TooLarge { .. })));
        assert_eq!(whose().unwrap(), outer);
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let _inner = Scope::pooling(&device, Pooling::Disabled).enter();
            assert!(!whose().unwrap().is_pooled());
            std::panic::resume_unwind(Box::new("a panic that was asked for"));
        }));
        assert!(panics.is_err());
        assert_eq!(whose().unwrap(), outer);
    }
    assert_eq!(whose().unwrap(), default);
    Current::set(&outer);
    assert_eq!(whose().unwrap(), outer);
    Current::reset(&device);
    assert_eq!(whose().unwrap(), default);
}

/// [27] An override is its task's, wherever and beside whatever else that is polled.
pub(crate) fn an_override_stays_with_its_task<B: Bench, E: Executor>() {
    let bench = B::new();
    let device = bench.device();
    let default = Pool::default_of(&device).unwrap();
    let plain = (0..2).map(|_| (None, default.clone()));
    let scoped = (0..4).map(|_| named::<B>(&device, "a task's"));
    let scoped = scoped.map(|pool| (Some(Scope::pool(&pool)), pool));
    let tasks = plain.chain(scoped).map(|(scope, mine)| -> Task {
        let (bench, device) = (bench.clone(), device.clone());
        let work = async move {
            for _ in 0..50 {
                assert_eq!(whose(&bench, &device).unwrap(), mine);
                step_aside().await;
            }
        };
        match scope {
            Some(scope) => Box::pin(scope.run(work)),
            None => Box::pin(work),
        }
    });
    E::run(tasks.collect());
    assert_eq!(whose(&bench, &device).unwrap(), default);
}

/// Lets the executor poll another task first, and perhaps this one elsewhere.
async fn step_aside() {
    let mut was_aside = false;
    poll_fn(|context| {
        if std::mem::replace(&mut was_aside, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// [28] Warp `cpu_unsupported`: what a device lacks is made up for where that is safe, and the pool says so;
/// else the error names it.
pub(crate) fn what_a_device_lacks_is_made_up_for_or_named<B: Bench>() {
    let device = B::new().device();
    let capabilities = device.capabilities();
    let upstreams = [
        Upstream::Virtual,
        Upstream::Device,
        Upstream::Pinned,
        Upstream::Managed,
        Upstream::Host,
    ];
    for upstream in upstreams {
        let kind = upstream.kind();
        let builder = builder::<B>(device.clone(), 8 * MIB);
        let built = builder.upstream(upstream).build();
        match built {
            Ok(pool) => {
                assert!(capabilities.memory_kinds.contains(kind));
                assert_eq!(pool.memory_kind(), kind);
                let falls_back = upstream == Upstream::Virtual && !capabilities.virtual_memory;
                let words = "virtual memory is not supported";
                assert_eq!(
                    pool.describe().contains(words),
                    falls_back,
                    "{}",
                    pool.describe()
                );
            }
            Err(BuildError::Unsupported { feature, .. }) => {
                assert!(!capabilities.memory_kinds.contains(kind), "{kind}");
                assert_eq!(feature, kind.name());
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(capabilities.memory_kinds.contains(MemoryKind::Device));
}

/// Warp `enable_mempools`: without pooling every allocation is the device's, in the order of its stream, and
/// goes back to it once that has passed.
pub(crate) fn unpooled_memory_goes_back_once_it_is_complete<B: Bench>() {
    let bench = B::new();
    let probe = crate::probe::Probe::new(bench.device());
    let builder = Pool::builder_shared(probe.device()).capacity(8 * MIB);
    let builder = builder.upstream(B::UPSTREAM);
    let pool = builder.unpooled().build().unwrap();
    let site = Site {
        bench,
        pool,
        witness: crate::bench::Witness::default(),
    };
    let [first, second] = site.workers();
    let block = first.take(6 * MIB);
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    site.bench.let_run();
    assert_eq!(probe.held(), 6 * MIB);
    let waiting = site.pool.allocate(&second.stream, 6 * MIB);
    gate.open();
    let block = futures::executor::block_on(waiting).unwrap();
    second.use_up(&block, 2);
    second.settle();
    drop(block);
    crate::site::eventually(|| probe.held() == 0);
    assert_eq!(probe.peak(), 6 * MIB);
    // Noted by whoever gave it back, a moment later.
    crate::site::eventually(|| site.pool.statistics().reserved.current == 0);
    first.settle();
    site.assert_sound();
}
