//! Several pools of one device, by name, default and scope; and missing capabilities.

use crate::bench::Bench;
use crate::common::{MIB, assert_matches};
use crate::executors::{Executor, Task};
use crate::site::{Site, builder, plain_builder};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use weirpool::device::{Device, MemoryKind, Pooling};
use weirpool::{AllocError, BuildError, Pool, StreamError, Upstream};
use weirpool_compat::{Current, Scope, current, default_pool, find_pool, pool_of};

/// Returns a name that no other test uses.
fn name(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{what} {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn named<B: Bench>(device: &Arc<dyn Device>, what: &str) -> Pool {
    let builder = builder::<B>(device.clone(), 8 * MIB);
    builder.name(name(what)).build().unwrap()
}

/// Returns the pool that serves a small allocation in the current scope.
fn whose<B: Bench>(bench: &B, device: &Arc<dyn Device>) -> Result<Pool, AllocError> {
    let block = current(device)
        .expect("a pool")
        .try_allocate(&bench.stream(), 4096)?;
    Ok(pool_of(block.address()).expect("a pool owns it").0)
}

/// Two devices have two default pools, and neither accepts the other's streams.
pub(crate) fn default_pools_belong_to_their_devices<B: Bench>() {
    let here = B::new();
    let there = here.another();
    let devices = [here.device(), there.device()];
    let pools = devices
        .each_ref()
        .map(|device| default_pool(device).unwrap());
    assert_ne!(pools[0], pools[1]);
    assert_eq!(whose(&here, &devices[0]).unwrap(), pools[0]);
    assert_eq!(whose(&there, &devices[1]).unwrap(), pools[1]);
    let refused = whose(&there, &devices[0]).unwrap_err();
    assert_eq!(refused, AllocError::Stream(StreamError::ForeignDevice));
    // Settings of one device do not apply to the other.
    Current::set_pooling(&devices[0], Pooling::Disabled);
    assert!(
        !whose(&here, &devices[0])
            .unwrap()
            .inspect()
            .describe()
            .is_pooled
    );
    assert_eq!(whose(&there, &devices[1]).unwrap(), pools[1]);
    Current::set_pooling(&devices[0], Pooling::Enabled);
}

/// CUDA, custom pools: each has its own memory, which the others do not use.
pub(crate) fn named_and_default_pools_are_isolated<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let device = site.bench.device();
    let (weights, default) = (
        named::<B>(&device, "weights"),
        default_pool(&device).unwrap(),
    );
    assert_eq!(find_pool(weights.name().unwrap()).as_ref(), Some(&weights));
    let work = site.bench.stream();
    let stream = weights.register(&work).unwrap();
    let block = weights.try_allocate(&stream, 8 * MIB).unwrap();
    site.bench.fill(&work, (&block).into(), 1);
    // One pool is full, and the others are not.
    assert!(weights.try_allocate(&stream, MIB).is_err());
    let other = site.worker().take(8 * MIB);
    let default_stream = default.register(&work).unwrap();
    let third = default.try_allocate(&default_stream, MIB).unwrap();
    let owners = [&block, &other, &third].map(|block| pool_of(block.address()).unwrap().0);
    assert_eq!(
        owners,
        [weights.clone(), site.pool.clone(), default.clone()]
    );
    assert_eq!(weights.inspect().statistics().used.current, 8 * MIB);
    let answer = site.witness.ask();
    site.bench.compare(&work, (&block).into(), 1, answer);
    site.bench.settle(&work);
    drop((block, other, third, owners));
    site.assert_sound();
    weights.inspect().check_conserved().unwrap();
}

/// Warp `ScopedMempool`: an override ends however its scope is left.
pub(crate) fn override_ends_on_every_path<B: Bench>() {
    let bench = B::new();
    let device = bench.device();
    let (outer, inner) = (named::<B>(&device, "outer"), named::<B>(&device, "inner"));
    let default = default_pool(&device).unwrap();
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
        assert_matches!(fails(), Err(AllocError::TooLarge { .. }));
        assert_eq!(whose().unwrap(), outer);
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let _inner = Scope::pooling(&device, Pooling::Disabled).enter();
            assert!(!whose().unwrap().inspect().describe().is_pooled);
            std::panic::resume_unwind(Box::new("a deliberate panic"));
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

/// An override applies to its task, on whichever thread and beside whichever tasks it is polled.
pub(crate) fn override_applies_to_its_task_only<B: Bench, E: Executor>() {
    let bench = B::new();
    let device = bench.device();
    let default = default_pool(&device).unwrap();
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

/// Lets the executor poll other tasks first, and perhaps this one on another thread.
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

/// Warp `cpu_unsupported`: a missing capability has a fallback where that is safe, and the pool reports it.
/// Otherwise the error names the capability.
pub(crate) fn missing_capability_has_a_fallback_or_an_error<B: Bench>() {
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
        let builder = plain_builder(device.clone(), 8 * MIB);
        let built = builder.upstream(upstream).build();
        match built {
            Ok(pool) => {
                assert!(capabilities.memory_kinds.contains(kind));
                assert_eq!(pool.inspect().describe().memory_kind, kind);
                let falls_back = upstream == Upstream::Virtual && !capabilities.virtual_memory;
                let words = "virtual memory is not supported";
                assert_eq!(
                    pool.inspect().describe().to_string().contains(words),
                    falls_back,
                    "{}",
                    pool.inspect().describe()
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

/// Warp `enable_mempools`: without pooling, each allocation is made by the device in the order of its stream, and
/// released once that stream has passed the free.
pub(crate) fn unpooled_memory_is_released_once_it_is_complete<B: Bench>() {
    let bench = B::new();
    let probe = crate::probe::Probe::new(bench.device());
    let builder = Pool::builder(probe.device()).capacity(8 * MIB);
    let pool = builder.upstream(Upstream::Unpooled).build().unwrap();
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
    // The releasing thread updates the statistics a moment later.
    crate::site::eventually(|| site.pool.inspect().statistics().reserved.current == 0);
    first.settle();
    site.assert_sound();
}
