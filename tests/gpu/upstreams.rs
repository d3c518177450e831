//! Where memory comes from: the driver's answers, and its refusals. That pools over each kind behave as they must is
//! the behaviour suite's.

use crate::bench::{Bench, Witness};
use crate::common::MIB;
use crate::cuda::{Cuda, Managed, Mapped, Pinned, Plain, Setting};
use crate::site::{Site, builder};
use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute, cuPointerGetAttribute};
use weirpool::device::{DeviceError, DeviceErrorKind, MemoryKind, RawStream};
use weirpool::{Block, BuildError, Pool, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// What the driver knows of an address.
fn attribute(attribute: CUpointer_attribute, address: u64) -> u64 {
    let mut answer = 0u64;
    // SAFETY: none of the attributes that are asked for here is longer than that.
    let asked = unsafe { cuPointerGetAttribute((&raw mut answer).cast(), attribute, address) };
    asked.result().expect("memory that the driver knows");
    answer
}

/// Whether all of it lies on the host, and whether it moves.
fn nature(block: &Block) -> (bool, bool) {
    use CUpointer_attribute::*;
    let last = block.address().to_bits() + block.size() - 1;
    let natures = [block.address().to_bits(), last].map(|address| {
        let seen_at = attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
        assert_eq!(seen_at, address, "the device has another address for it");
        let place = attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) as u32;
        let is_managed = attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, address) as u32;
        let is_of_host = place == CUmemorytype::CU_MEMORYTYPE_HOST as u32;
        (is_of_host, is_managed != 0)
    });
    assert_eq!(natures[0], natures[1]);
    natures[0]
}

/// In a word: the memory of a pool over each upstream, small blocks and large.
pub(crate) fn memory_is_of_the_requested_kind() {
    assert_nature::<Mapped>(false, false);
    assert_nature::<Plain>(false, false);
    assert_nature::<Pinned>(true, false);
    // Wherever it lies now.
    assert_nature::<Managed>(false, true);
}

fn assert_nature<S: Setting>(is_of_host: bool, is_managed: bool) {
    let kind = S::UPSTREAM.kind();
    if !crate::harness::has(kind) {
        return;
    }
    let site = Site::<Cuda<S>>::new(64 * MIB);
    assert_eq!(site.pool.inspect().describe().memory_kind, kind);
    let worker = site.worker();
    let context = site.bench.gpu.context();
    context.bind_to_thread().unwrap();
    for bytes in [512, MIB, 24 * MIB] {
        let block = worker.take(bytes);
        worker.use_up(&block, 1);
        worker.settle();
        let (host, managed) = nature(&block);
        assert_eq!(managed, is_managed, "{kind}");
        assert!(is_managed || host == is_of_host, "{kind}");
    }
    site.assert_sound();
}

fn assert_invalid<T>(answer: Result<T, DeviceError>) {
    let error = answer.err().expect("the memory is not of that kind");
    assert_eq!(error.kind(), DeviceErrorKind::InvalidArgument, "{error}");
}

/// What the device has not, and what an address is not: told before the driver, or the process, meets it.
pub(crate) fn missing_kind_is_refused_by_name() {
    let site = Site::<Cuda<Mapped>>::new(8 * MIB);
    let device = site.bench.device();
    let refused = builder::<Cuda<Mapped>>(device.clone(), 8 * MIB)
        .upstream(Upstream::Host)
        .build();
    let Err(error @ BuildError::Unsupported { feature, .. }) = refused else {
        panic!("{refused:?} over host memory");
    };
    assert_eq!(feature, "host memory");
    assert!(error.to_string().contains("another upstream"), "{error}");
    let error = device.allocate(MemoryKind::Host, 2 * MIB).unwrap_err();
    assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
    assert!(error.reason().contains("managed memory"), "{error}");

    let address = device.allocate(MemoryKind::Device, 2 * MIB).unwrap();
    let location = std::panic::Location::caller();
    // SAFETY: the CUDA device detects wrong kinds and addresses of plain memory, which is what this shows; no work uses
    // the memory.
    unsafe {
        for kind in [MemoryKind::Pinned, MemoryKind::Managed] {
            assert_invalid(device.free(kind, address, 2 * MIB));
        }
        for address in [0, address, 16 << 40] {
            assert_invalid(device.fill(RawStream::HOST, address, 1, 1, location));
            assert_invalid(device.upload(RawStream::HOST, address, &[1], location));
            assert_invalid(device.download(RawStream::HOST, address, 1, location));
        }
        device.free(MemoryKind::Device, address, 2 * MIB).unwrap();
        assert_invalid(device.free(MemoryKind::Device, address, 2 * MIB));
    }
    site.assert_conserved();
}

/// Page-locked memory is counted against the host's, and not against the device's.
pub(crate) fn host_memory_is_used_by_the_host_only() {
    let site = Site::<Cuda<Mapped>>::new(8 * MIB);
    let device = site.bench.device();
    if !crate::harness::has(MemoryKind::Pinned) {
        return;
    }
    let info = |kind| device.memory_info(kind).expect("the device tells");
    let host = info(MemoryKind::Pinned);
    assert!(host.free <= host.total && host.total > 64 * MIB, "{host:?}");
    if crate::harness::has(MemoryKind::Managed) {
        let managed = info(MemoryKind::Managed);
        assert_eq!(managed.total, info(MemoryKind::Device).total);
    }
    let pool = weirpool::Pool::builder(device.clone()).upstream(Upstream::Pinned);
    let pool = pool.build().unwrap();
    assert!(pool.capacity() <= host.total);
    assert!(
        pool.capacity() > host.total / 64 * 63,
        "it may have all of it"
    );
}

/// Custom pools of the driver in memory of each kind: each kind that the driver has can be used where it is seen, and
/// the others are refused with a reason.
pub(crate) fn pools_of_the_driver_have_every_kind_or_are_refused() {
    let bench = Cuda::<Mapped>::new();
    let device = bench.device();
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Managed] {
        let driver_pool = match DriverPool::builder(&device).kind(kind).build() {
            Ok(driver_pool) => driver_pool,
            Err(BuildError::Device(error)) if kind != MemoryKind::Device => {
                println!("no pools of {kind}: {error}");
                continue;
            }
            Err(error) => panic!("{kind}: {error}"),
        };
        for how in [DriverPoolUse::PassedThrough, DriverPoolUse::SubAllocated] {
            let builder = Pool::builder(device.clone()).capacity(64 * MIB);
            let pool = builder
                .segment_source(driver_pool.segments(how))
                .build()
                .unwrap();
            assert_eq!(pool.inspect().describe().memory_kind, kind);
            let work = bench.stream();
            let stream = pool.register(&work).unwrap();
            let block = pool.try_allocate(&stream, 4 * MIB).unwrap();
            bench.fill(&work, (&block).into(), 7);
            let witness = Witness::default();
            bench.compare(&work, (&block).into(), 7, witness.ask());
            bench.settle(&work);
            if kind.is_seen_by_host() {
                assert!(bench.host_compare((&block).into(), 7));
            }
            drop(block);
            bench.settle(&work);
            witness.assert_content();
        }
    }
}
