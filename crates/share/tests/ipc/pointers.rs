use super::*;
use crate::common::now;
use std::os::fd::OwnedFd;
use weirpool::device::sim::{Checker, Clock, ViolationKind};
use weirpool::device::{DeviceErrorKind, HandleTypes};
use weirpool::{AllocError, Block, BuildError};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};
use weirpool_share::ipc::PointerData;

/// A pool over a pool of the driver that can be shared.
fn shared(device: &SimDevice) -> (DriverPool, Pool) {
    let builder = DriverPool::builder(device).handle_types(HandleTypes::POSIX_FD);
    let driver_pool = builder.build().unwrap();
    let pool = Pool::builder(device.clone()).capacity(64 * MIB);
    let pool = pool.segment_source(driver_pool.segments(DriverPoolUse::PassedThrough));
    (driver_pool, pool.build().unwrap())
}

fn kind_of(error: IpcError) -> DeviceErrorKind {
    match error {
        IpcError::Device(error) => error.kind(),
        error => panic!("{error}"),
    }
}

#[test]
fn block_of_an_imported_pool_is_the_exporters() {
    let device = manual();
    let (driver_pool, pool) = shared(&device);
    let (_work, stream) = stream(&device, &pool);
    let mut first = pool.try_allocate(&stream, CHUNK).unwrap();
    let mut block = pool.try_allocate(&stream, CHUNK).unwrap();
    let written = first.upload(&stream, 0, b"first").unwrap();
    drop(written);
    let written = block.upload(&stream, 0, b"block").unwrap();
    device.advance_to_end();
    now(written).unwrap();
    let data = PointerData::export(&block).unwrap();

    let side = Side::new(manual());
    let imported = DriverPool::import(&side.device, driver_pool.export().unwrap()).unwrap();
    let before = side.device.counters().physical_in_use;
    let (mut there, mut freed) = data.import(&side.pool, &side.stream, &imported).unwrap();
    assert_eq!(
        side.device.counters().physical_in_use,
        before,
        "it takes no memory"
    );
    let read = there.download(&side.stream, 0..5).unwrap();
    let written = there.upload(&side.stream, 0, b"BLOCK").unwrap();
    side.device.advance_to_end();
    assert_eq!(now(read).unwrap(), b"block");
    now(written).unwrap();
    let read = block.download(&stream, 0..5).unwrap();
    let other = first.download(&stream, 0..5).unwrap();
    device.advance_to_end();
    assert_eq!(
        (now(read).unwrap(), now(other).unwrap()),
        (b"BLOCK".to_vec(), b"first".to_vec())
    );

    use_block(&side.work, &there, us(100));
    drop(there);
    assert!(common::poll(&mut freed).is_pending(), "its work runs");
    side.device.advance(us(200));
    block_on(freed);
    assert_eq!(imported.used().unwrap().current, 0);
}

/// [CUDA: the importing process frees a pointer before the exporting process does, and its free is complete]
#[test]
fn block_that_is_freed_before_its_importer_frees_it_is_a_violation() {
    for importers in [1, 2] {
        let device = SimDevice::builder().clock(Clock::Manual);
        let device = device.checker(Checker::Collect).build();
        let (driver_pool, pool) = shared(&device);
        let (_work, stream) = stream(&device, &pool);
        let imports = |block: &Block| {
            let data = PointerData::export(block).unwrap();
            let side = Side::new(manual());
            let imported = DriverPool::import(&side.device, driver_pool.export().unwrap());
            let imported = imported.unwrap();
            let import = |_| data.import(&side.pool, &side.stream, &imported).unwrap();
            let blocks: Vec<_> = (0..importers).map(import).collect();
            (side, blocks)
        };
        // In order: the free comes after the last importer's, whose work is complete.
        let block = pool.try_allocate(&stream, CHUNK).unwrap();
        let (side, blocks) = imports(&block);
        for (there, freed) in blocks {
            use_block(&side.work, &there, us(100));
            drop(there);
            side.device.advance(us(200));
            block_on(freed);
        }
        drop(block);
        device.advance_to_end();
        assert_eq!(device.take_violations(), []);
        // Another block may have the same bytes.
        let block = pool.try_allocate(&stream, CHUNK).unwrap();
        let (side, mut blocks) = imports(&block);
        let (there, mut freed) = blocks.pop().unwrap();
        use_block(&side.work, &there, us(100));
        drop(there);
        assert!(common::poll(&mut freed).is_pending(), "its work runs");
        let address = block.address();
        drop(block);
        device.advance_to_end();
        let found = device.take_violations();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].kind, ViolationKind::FreedWhileImported);
        assert_eq!((found[0].address, found[0].bytes), (address, CHUNK));
        assert!(found[0].memory.is_some() && found[0].to_string().contains("pointers.rs"));
        side.device.advance(us(200));
        block_on(freed);
    }
}

#[test]
fn imported_pool_allocates_nothing() {
    let device = manual();
    let (driver_pool, _pool) = shared(&device);
    let side = Side::new(manual());
    let imported = DriverPool::import(&side.device, driver_pool.export().unwrap()).unwrap();
    let pool = Pool::builder(side.device.clone()).capacity(64 * MIB);
    let pool = pool
        .segment_source(imported.segments(DriverPoolUse::PassedThrough))
        .build()
        .unwrap();
    let (_work, stream) = stream(&side.device, &pool);
    let refused = pool.try_allocate(&stream, CHUNK);
    assert!(
        matches!(&refused, Err(AllocError::Device(error)) if error.kind() == DeviceErrorKind::Unsupported),
        "{refused:?}"
    );
}

#[test]
fn wrong_descriptors_pools_and_pointers_are_refused() {
    let device = manual();
    let (driver_pool, pool) = shared(&device);
    let (_work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, CHUNK).unwrap();
    let data = PointerData::export(&block).unwrap();
    let side = Side::new(manual());

    let file = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    for wrong in [file, OwnedFd::from(pipe)] {
        let refused = DriverPool::import(&side.device, wrong);
        assert!(matches!(refused, Err(BuildError::Device(_))), "{refused:?}");
    }
    // The pointer of one pool in another one.
    let (other, _second) = shared(&device);
    let imported = DriverPool::import(&side.device, other.export().unwrap()).unwrap();
    let refused = data
        .import(&side.pool, &side.stream, &imported)
        .unwrap_err();
    assert_eq!(kind_of(refused), DeviceErrorKind::InvalidArgument);
    // Pointers that were changed on the way.
    let imported = DriverPool::import(&side.device, driver_pool.export().unwrap()).unwrap();
    let text = serde_json::to_string(&data).unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..200 {
        let mut bytes = text.clone().into_bytes();
        let at = random.usize(..bytes.len());
        bytes[at] = random.u8(b'0'..=b'9');
        if let Ok(changed) = serde_json::from_slice::<PointerData>(&bytes)
            && let Ok((block, freed)) = changed.import(&side.pool, &side.stream, &imported)
        {
            assert!(block.size() <= CHUNK.max(block.size()));
            drop(block);
            block_on(freed);
        }
    }
    let huge = text.replace(&format!("\"bytes\":{CHUNK}"), "\"bytes\":9000000000000");
    assert_ne!(huge, text);
    let huge: PointerData = serde_json::from_str(&huge).unwrap();
    let refused = huge
        .import(&side.pool, &side.stream, &imported)
        .unwrap_err();
    assert_eq!(kind_of(refused), DeviceErrorKind::InvalidArgument);
    // A pool that is not imported, and blocks that are not of a pool that can be shared.
    let (own, _third) = shared(&side.device);
    let refused = data.import(&side.pool, &side.stream, &own).unwrap_err();
    assert_eq!(kind_of(refused), DeviceErrorKind::InvalidArgument);
    let plain = side.pool.try_allocate(&side.stream, CHUNK).unwrap();
    assert_eq!(
        kind_of(PointerData::export(&plain).unwrap_err()),
        DeviceErrorKind::Unsupported
    );
    let default = DriverPool::default_of(&device).unwrap();
    let private = Pool::builder(device.clone())
        .segment_source(default.segments(DriverPoolUse::PassedThrough))
        .build()
        .unwrap();
    let (_work, stream) = common::stream(&device, &private);
    let block = private.try_allocate(&stream, CHUNK).unwrap();
    assert_eq!(
        kind_of(PointerData::export(&block).unwrap_err()),
        DeviceErrorKind::InvalidArgument
    );
    assert_eq!(
        default.export().unwrap_err().kind(),
        DeviceErrorKind::InvalidArgument
    );
}

/// The driver knows what it allocated, and no parts of it: not even the first, which has the address of the whole.
#[test]
fn parts_of_what_the_driver_allocated_are_not_exported() {
    let device = manual();
    let (driver_pool, _) = shared(&device);
    let pool = Pool::builder(device.clone()).capacity(64 * MIB);
    let pool = pool.segment_source(driver_pool.segments(DriverPoolUse::SubAllocated));
    let pool = pool.build().unwrap();
    let (_work, stream) = stream(&device, &pool);
    for block in [(); 3].map(|()| pool.try_allocate(&stream, 4096).unwrap()) {
        let refused = PointerData::export(&block).unwrap_err();
        assert!(refused.to_string().contains("PassedThrough"), "{refused}");
        assert_eq!(kind_of(refused), DeviceErrorKind::Unsupported);
    }
}
