//! The examples of the pages that this crate comes from, on virtual and on plain memory: CUDA's and HIP's pools, Warp's
//! allocators, Umpire's pools. `docs/origins.md` has them as programs; between processes they are in `tests/ipc`.

use crate::common::{devices, us, use_block};
use std::future::IntoFuture;
use weirpool::device::sim::{Clock, Operation, SimDevice};
use weirpool::device::{Access, AsDevice, HandleTypes, MemoryKind, Pooling};
use weirpool::{
    BlockState, CoalesceHeuristic, CopyError, Pool, ReleaseThreshold, Stream, Upstream,
};
use weirpool_compat::{Attribute, Current, Scope, current};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

const MIB: u64 = 1 << 20;

fn of_both(example: impl Fn(SimDevice)) {
    devices().into_iter().for_each(example);
}

/// Umpire's `rap_test.cpp`: what one resource freed is pending for another one, and not for itself.
#[test]
fn resource_aware_pool_keeps_pending_memory_from_another_resource() {
    of_both(|device| {
        let pool = Pool::builder(device.clone()).build().unwrap();
        let (d1, d2) = (device.create_stream(), device.create_stream());
        let [r1, r2] = [&d1, &d2].map(|work| pool.register(work).unwrap());
        let a = pool.try_allocate(&r1, 8 * MIB).unwrap();
        let address = a.address();
        use_block(&d1, &a, us(1000)); // my_kernel
        drop(a); // pool.deallocate(r1, a)
        let state = pool.inspect().block_at(address).map(|block| block.state);
        assert_eq!(state, Some(BlockState::Pending));
        assert_eq!(pool.inspect().pending_blocks(&r1), 1);
        let other = pool.try_allocate(&r2, 8 * MIB).unwrap();
        assert_ne!(other.address(), address);
        use_block(&d2, &other, us(10)); // my_other_kernel
        let again = pool.try_allocate(&r1, 8 * MIB).unwrap();
        assert_eq!(again.address(), address);
        assert_eq!(pool.inspect().pending_blocks(&r1), 0);
        drop(again);
        device.advance(us(2000));
        pool.maintain().reap().unwrap();
        let next = pool.try_allocate(&r2, 8 * MIB).unwrap();
        assert_eq!(next.address(), address, "no longer pending");
        device.assert_ordered();
    });
}

/// The host is one more resource.
#[test]
fn resource_of_the_host_is_one_more_stream() {
    of_both(|device| {
        let pool = Pool::builder(device.clone());
        let pool = pool.upstream(Upstream::Managed).build().unwrap();
        let d1 = device.create_stream();
        let (r1, r3) = (pool.register(&d1).unwrap(), pool.host_stream().unwrap());
        let a = pool.try_allocate(&r1, 8 * MIB).unwrap();
        let address = a.address();
        use_block(&d1, &a, us(100));
        drop(a);
        let of_host = pool.try_allocate(&r3, 8 * MIB).unwrap();
        assert_ne!(of_host.address(), address);
    });
}

/// Umpire's figure: a request that fits no free block makes the pool grow, unless the free blocks were coalesced.
#[test]
fn coalesced_pool_does_not_grow_for_a_larger_block() {
    for coalesces in [false, true] {
        let device = SimDevice::builder().clock(Clock::Manual);
        let device = device.virtual_memory(false).build();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let stream = pool.create_stream().unwrap();
        let blocks = [4, 4, 4, 4].map(|mib| pool.try_allocate(&stream, mib * MIB).unwrap());
        let actual = || pool.inspect().statistics().reserved.current; // getActualSize
        let before = actual();
        drop(blocks);
        device.advance(us(1));
        if coalesces {
            assert_eq!(pool.maintain().coalesce().unwrap(), before); // strategy->coalesce()
            assert_eq!(pool.inspect().statistics().chunks, 1);
        }
        let large = pool.try_allocate(&stream, 16 * MIB).unwrap();
        assert_eq!(actual() > before, !coalesces);
        assert_eq!(pool.inspect().statistics().used.current, large.size()); // getCurrentSize
    }
}

/// Umpire's heuristics: once enough blocks, or bytes, could be released, they are one block. With the high-water mark, the
/// pool keeps as much as was in use at once.
#[test]
fn heuristics_of_umpire_coalesce_by_themselves() {
    for (heuristic, reserved) in [
        (CoalesceHeuristic::blocks_releasable(0), 16 * MIB),
        (CoalesceHeuristic::blocks_releasable_hwm(0), 12 * MIB),
        (CoalesceHeuristic::percent_releasable(100), 16 * MIB),
        (CoalesceHeuristic::percent_releasable_hwm(100), 12 * MIB),
    ] {
        let device = SimDevice::builder().clock(Clock::Manual);
        let device = device.virtual_memory(false).build();
        let pool = Pool::builder(device.clone()).tuning(|tuning| tuning.lane_bytes = 0);
        let pool = pool
            .tuning(|tuning| tuning.coalesce = Some(heuristic.clone()))
            .build()
            .unwrap();
        let stream = pool.create_stream().unwrap();
        for mib in [4, 6] {
            let blocks = [(); 2].map(|()| pool.try_allocate(&stream, mib * MIB).unwrap());
            drop(blocks);
            device.advance(us(100_000));
        }
        let figures = pool.inspect().statistics();
        assert_eq!(figures.reserved.current, reserved, "{heuristic:?}");
        assert_eq!(figures.releasable_blocks, 1, "{heuristic:?}");
    }
}

/// CUDA's default pool: it starts empty, grows for a request, keeps freed memory, and tells its attributes.
#[test]
fn default_pool_of_the_driver_grows_and_keeps_freed_memory() {
    of_both(|device| {
        let default = DriverPool::default_of(&device).unwrap();
        let pool = Pool::builder(device.clone())
            .segment_source(default.segments(DriverPoolUse::PassedThrough))
            .build()
            .unwrap();
        default
            .set_release_threshold(ReleaseThreshold::Keep)
            .unwrap();
        let current = || {
            default
                .attribute(Attribute::ReservedMemCurrent.into())
                .unwrap()
        };
        assert_eq!(current(), 0);
        let stream = pool.create_stream().unwrap();
        drop(pool.try_allocate(&stream, 1024 * 4).unwrap()); // cudaMallocAsync, cudaFreeAsync
        device.advance(us(100_000));
        assert_eq!(
            current(),
            2 * MIB,
            "it is reused, and not returned to the system"
        );
        assert_eq!(
            default
                .attribute(Attribute::ReservedMemHigh.into())
                .unwrap(),
            2 * MIB
        );
        drop(pool.try_allocate(&stream, 1024 * 4).unwrap());
        assert_eq!(current(), 2 * MIB);
    });
}

/// CUDA's custom pool, with its properties, and trimmed to a threshold.
#[test]
fn custom_pool_of_the_driver_is_trimmed() {
    of_both(|device| {
        let custom = DriverPool::builder(&device)
            .kind(MemoryKind::Device)
            .handle_types(HandleTypes::NONE)
            .build()
            .unwrap();
        custom
            .set_release_threshold(ReleaseThreshold::Keep)
            .unwrap();
        assert_eq!(custom.access_from(&device).unwrap(), Access::ReadWrite);
        let pool = Pool::builder(device.clone())
            .segment_source(custom.segments(DriverPoolUse::PassedThrough));
        let pool = pool.build().unwrap();
        let stream = pool.create_stream().unwrap();
        let blocks = [32, 32].map(|mib| pool.try_allocate(&stream, mib * MIB).unwrap());
        drop(blocks);
        device.block_on(stream.synchronize()).unwrap();
        assert_eq!(custom.reserved().unwrap().current, 64 * MIB);
        let _ = pool.trim_to(MIB).unwrap(); // cudaMemPoolTrimTo(myPool, releaseThreshold)
        assert!(custom.reserved().unwrap().current <= 32 * MIB);
    });
}

/// CUDA's attributes, set on a pool of this crate: a threshold, bytes to reserve now, and a soft cap.
#[test]
fn attributes_of_cudas_page_are_set_on_a_pool() {
    for is_virtual in [true, false] {
        let device = SimDevice::builder().memory(4 << 30).clock(Clock::Manual);
        let device = device.virtual_memory(is_virtual).build();
        let pool = Pool::builder(device.clone()).build().unwrap();
        Attribute::ReleaseThreshold.set(&pool, MIB).unwrap();
        Attribute::ReservedMemCurrent.set(&pool, 512 * MIB).unwrap();
        Attribute::ReservedMemHigh.set(&pool, 1024 * MIB).unwrap();
        assert_eq!(Attribute::ReservedMemCurrent.get(&pool), 512 * MIB);
        let stream = pool.create_stream().unwrap();
        let blocks = [512, 768].map(|mib| pool.try_allocate(&stream, mib * MIB).unwrap());
        assert!(
            Attribute::ReservedMemHigh.get(&pool) > 1024 * MIB,
            "no strict limit"
        );
        drop(blocks);
        device.block_on(stream.synchronize()).unwrap();
        assert!(Attribute::ReservedMemCurrent.get(&pool) <= 2 * MIB);
        Attribute::ReservedMemCurrent.set(&pool, 64 * MIB).unwrap();
        assert_eq!(Attribute::ReservedMemCurrent.get(&pool), 64 * MIB);
    }
}

/// HIP's threshold is met at the next synchronization: of the stream, of an event, or of anything that is awaited.
#[test]
fn threshold_of_hips_page_is_met_at_the_next_synchronization() {
    of_both(|device| {
        let pool = Pool::builder(device.clone()).build().unwrap();
        let work = device.create_stream();
        let stream = pool.register(&work).unwrap();
        pool.maintain()
            .set_release_threshold(ReleaseThreshold::Bytes(0))
            .unwrap();
        for way in 0..3 {
            let block = pool.try_allocate(&stream, 32 * MIB).unwrap(); // hipMallocAsync
            let kernel = Operation::new(us(100));
            work.submit(kernel.writes(block.address(), block.size()));
            let freed = block.deallocate(); // hipFreeAsync
            assert_eq!(Attribute::ReservedMemCurrent.get(&pool), 32 * MIB);
            let event = stream.event().unwrap();
            device.advance(us(100));
            match way {
                0 => device.block_on(stream.synchronize()).unwrap(),
                1 => device.block_on(event.into_future()).unwrap(),
                _ => device.block_on(freed).unwrap(),
            }
            assert_eq!(Attribute::ReservedMemCurrent.get(&pool), 0, "way {way}");
        }
    });
}

/// HIP's statistics and policies: the used high is exact, goes to the current figure, and each policy is a switch.
#[test]
fn statistics_and_policies_of_hips_page_are_attributes() {
    of_both(|device| {
        let pool = Pool::builder(device.clone()).build().unwrap();
        let streams = [(); 2].map(|()| pool.create_stream().unwrap());
        let scope = pool.inspect().exact_statistics_scope();
        for stream in streams.iter().cycle().take(6) {
            drop(pool.try_allocate(stream, 8 * MIB).unwrap());
        }
        assert_eq!(Attribute::UsedMemHigh.get(&pool), 8 * MIB);
        assert_eq!(Attribute::UsedMemCurrent.get(&pool), 0);
        Attribute::UsedMemHigh.set(&pool, 0).unwrap();
        assert_eq!(Attribute::UsedMemHigh.get(&pool), 0);
        drop(scope);
        let policies = [
            Attribute::ReuseFollowEventDependencies,
            Attribute::ReuseAllowOpportunistic,
            Attribute::ReuseAllowInternalDependencies,
        ];
        for policy in policies {
            policy.set(&pool, 0).unwrap();
            assert_eq!(policy.get(&pool), 0);
        }
        let _ = pool.trim_to(16 * MIB).unwrap(); // hipMemPoolTrimTo
    });
}

/// Warp's arrays: empty, zeros, ones and full, in a loop that allocates anew, and one that reuses a buffer.
#[test]
fn arrays_of_warps_page_have_their_contents() {
    of_both(|device| {
        let pool = Pool::builder(device.clone()).build().unwrap();
        let stream = pool.create_stream().unwrap();
        pool.maintain()
            .set_release_threshold(ReleaseThreshold::Fraction(0.5))
            .unwrap();
        device.advance(us(1));
        let n = 1000;
        for _ in 0..100 {
            let mut a = pool.buffer::<f32>(&stream, n).try_now().unwrap(); // wp.empty
            a.as_slice_mut().zero(&stream).unwrap(); // wp.zeros
            a.as_slice_mut().fill(&stream, 42).unwrap(); // wp.full
        }
        let figures = pool.inspect().statistics();
        assert_eq!(
            (figures.allocations, figures.frees, figures.growths),
            (100, 100, 1)
        );
        let mut buffer = pool.buffer::<f32>(&stream, n).try_now().unwrap();
        for n in [10, 500, n] {
            let mut a = buffer.slice_mut(0..n).unwrap(); // a = buffer[:n]
            a.zero(&stream).unwrap(); // a.zero_()
            assert_eq!(stream.record_use(&mut a).unwrap().size(), 4 * n as u64);
        }
        assert!(pool.inspect().statistics().used.high >= 4000);
    });
}

/// Warp's switch: pools are on where they are supported, and off in a scope.
#[test]
fn pools_are_switched_off_in_a_scope() {
    of_both(|device| {
        assert!(device.to_shared().capabilities().memory_pools); // wp.is_mempool_supported
        assert_eq!(Current::pooling(&device), Pooling::Enabled); // wp.is_mempool_enabled
        let is_pooled = || {
            current(&device)
                .unwrap()
                .pool()
                .inspect()
                .describe()
                .is_pooled
        };
        {
            let _scope = Scope::pooling(&device, Pooling::Disabled).enter(); // wp.ScopedMempool(device, False)
            assert_eq!(Current::pooling(&device), Pooling::Disabled);
            assert!(!is_pooled());
            let _inner = Scope::pooling(&device, Pooling::Enabled).enter();
            assert!(is_pooled());
        }
        assert!(is_pooled());
        Current::set_pooling(&device, Pooling::Disabled); // wp.set_mempool_enabled
        assert!(!is_pooled());
    });
}

/// Warp's array of a capture does not exist until the graph is launched.
#[test]
fn array_of_a_capture_exists_once_its_graph_was_launched() {
    of_both(|device| {
        let pool = Pool::builder(device.clone()).build().unwrap();
        let stream = pool.create_stream().unwrap();
        let capture = pool.capture(&stream).unwrap(); // wp.ScopedCapture
        let mut a = pool.buffer::<u8>(&stream, 1000).try_now().unwrap();
        a.as_slice_mut().fill(&stream, 42).unwrap(); // wp.full
        let graph = capture.end().unwrap();
        graph.launch(&stream).unwrap(); // wp.capture_launch
        let read = a.read(&stream);
        device.advance_to_end();
        assert_eq!(device.block_on(read).unwrap(), [42; 1000]);
        device.assert_ordered();
    });
}

/// Two devices of a host, each with a pool and a stream.
fn two(is_virtual: bool) -> ([SimDevice; 2], [Pool; 2], [Stream; 2]) {
    let host = SimDevice::builder().clock(Clock::Manual);
    let devices = host.virtual_memory(is_virtual).build_host();
    let pools = devices
        .each_ref()
        .map(|device| Pool::builder(device.clone()).build().unwrap());
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    (devices, pools, streams)
}

/// Warp's copy between devices in a capture is refused without access, and works in both of the page's ways.
#[test]
fn copy_between_devices_in_a_capture_needs_access_or_plain_memory() {
    for is_virtual in [true, false] {
        let ([cuda0, cuda1], pools, streams) = two(is_virtual);
        let array = |at: usize| {
            pools[at]
                .buffer::<u8>(&streams[at], 1000)
                .try_now()
                .unwrap()
        };
        let (mut a0, mut a1) = (array(0), array(1));
        a0.as_slice_mut().fill(&streams[0], 7).unwrap();
        assert!(!pools[1].peers().is_enabled(&cuda0));
        // Plain memory needs no access.
        let capture = pools[0].capture(&streams[0]).unwrap();
        let refused = a0.copy_to(&mut a1, &streams[0]).err();
        assert_eq!(refused, is_virtual.then_some(CopyError::NoAccessInCapture));
        drop(capture);
        assert!(pools[1].peers().is_supported(&cuda0)); // wp.is_mempool_access_supported
        pools[1].peers().enable(&cuda0).unwrap(); // wp.set_mempool_access_enabled
        assert!(pools[1].peers().is_enabled(&cuda0));
        assert!(!pools[0].peers().is_enabled(&cuda1), "directional");
        let capture = pools[0].capture(&streams[0]).unwrap();
        drop(a0.copy_to(&mut a1, &streams[0]).unwrap());
        let graph = capture.end().unwrap();
        graph.launch(&streams[0]).unwrap();
        let read = a1.read(&streams[1]);
        cuda0.advance_to_end();
        assert_eq!(cuda0.block_on(read).unwrap(), [7; 1000]);
        cuda0.assert_ordered();
    }
}

/// Warp's scope of an access: it ends with the scope, though the arrays live and the copy was only awaited.
#[test]
fn scope_of_an_access_ends_while_its_arrays_live() {
    for is_virtual in [true, false] {
        let ([cuda0, cuda1], pools, streams) = two(is_virtual);
        let scope = pools[0].peers().grant(&cuda1).unwrap(); // wp.ScopedMempoolAccess("cuda:0", "cuda:1", True)
        let a0 = pools[0].buffer::<f32>(&streams[0], 1000).try_now().unwrap();
        let mut a1 = pools[1].buffer::<f32>(&streams[1], 1000).try_now().unwrap();
        let copied = a0.copy_to(&mut a1, &streams[0]).unwrap(); // wp.copy(a1, a0)
        cuda0.advance_to_end();
        cuda0.block_on(copied).unwrap();
        assert!(pools[0].peers().is_enabled(&cuda1));
        scope.end().unwrap();
        assert!(!pools[0].peers().is_enabled(&cuda1));
        {
            let _outer = pools[0].peers().grant(&cuda1).unwrap();
            let _none = pools[0].peers().deny(&cuda1).unwrap(); // ... False
            assert!(!pools[0].peers().is_enabled(&cuda1));
        }
        assert!(!pools[0].peers().is_enabled(&cuda1));
    }
}
