//! Blocks with several owners, and parts of blocks.

#[path = "../../../tests/common/mod.rs"]
mod common;

use common::*;
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::sync::Arc;
use weirpool::device::sim::{Operation, SimStream};
use weirpool::*;
use weirpool_share::{Share, SharedBlock, SharedBuffer};

assert_impl_all!(SharedBlock: Send, Sync, Clone);
assert_impl_all!(SharedBuffer<*const u8>: Send, Sync, Clone);

#[cfg(feature = "cuda")]
mod slices {
    use super::*;
    use cudarc::driver::{DevicePtr, DevicePtrMut};

    assert_impl_all!(SharedBlock: DevicePtr<u8>);
    assert_impl_all!(SharedBuffer<f32>: DevicePtr<f32>);
    assert_not_impl_any!(SharedBuffer<f32>: DevicePtrMut<f32>);
}

/// Reads what a handle stands for, as a kernel would: through an argument.
#[track_caller]
fn read(work: &SimStream, stream: &Stream, part: &SharedBlock, took: u64) {
    let argument = stream.record_use(part).unwrap();
    let read = Operation::new(us(took)).named("read");
    work.submit(read.reads(argument.address(), argument.size()));
}

/// The last handle frees, and the memory is pending for every stream that any handle was used on.
#[test]
fn the_last_handle_frees_behind_every_use() {
    for last in 0..3 {
        let device = manual();
        let pool = pool(&device, 8 * MIB);
        let workers = [0, 1, 2].map(|_| stream(&device, &pool));
        let block = pool.try_allocate(&workers[0].1, 8 * MIB).unwrap();
        use_block(&workers[0].0, &block, us(1));
        let written = workers[0].1.event().unwrap();
        let shared = block.share();
        let mut handles = Vec::new();
        for (n, (work, stream)) in workers.iter().enumerate() {
            let part = shared.view(n as u64 * MIB..(n as u64 + 1) * MIB).unwrap();
            stream.wait(&written).unwrap();
            read(work, stream, &part, 100 * (n as u64 + 1));
            handles.push(part);
        }
        drop(shared);
        let kept = handles.remove(last);
        drop(handles);
        device.advance_to_end();
        assert!(
            pool.try_allocate(&workers[0].1, MIB).is_err(),
            "a handle is left"
        );
        read(&workers[last].0, &workers[last].1, &kept, 50);
        drop(kept);
        let (work, other) = stream(&device, &pool);
        let again = pool.try_allocate(&other, 8 * MIB).unwrap();
        assert_eq!(again.source(), Source::DeviceWait);
        use_block(&work, &again, us(1));
        drop(again);
        device.advance_to_end();
        device.assert_ordered();
        pool.inspect().check_conserved().unwrap();
    }
}

/// Handles are cloned, viewed, used and dropped on many threads; in the end nothing is missing.
#[test]
fn handles_may_be_anywhere() {
    let device = weirpool::device::sim::SimDevice::new();
    let pool = pool(&device, 64 * MIB);
    let (work, home) = stream(&device, &pool);
    for _ in 0..20 {
        let block = pool.try_allocate(&home, 4 * MIB).unwrap();
        use_block(&work, &block, us(1));
        let written = Arc::new(home.event().unwrap());
        let shared = block.share();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (shared, written) = (shared.clone(), written.clone());
                let (work, stream) = stream(&device, &pool);
                scope.spawn(move || {
                    stream.wait(&written).unwrap();
                    let part = shared.view(n * MIB..(n + 1) * MIB).unwrap();
                    drop(shared);
                    read(&work, &stream, &part, 20);
                });
            }
        });
        drop(shared);
    }
    futures::executor::block_on(home.synchronize()).unwrap();
    device.advance_to_end();
    device.assert_ordered();
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn parts_lie_within_and_parts_of_parts_too() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let shared = pool.try_allocate(&stream, MIB).unwrap().share();
    let part = shared.view(1024..4096).unwrap();
    let inner = part.view(1024..2048).unwrap();
    assert_eq!(
        (inner.address(), inner.size()),
        (shared.address() + 2048, 1024)
    );
    for range in [0..3073, 3073..3073, 0..u64::MAX] {
        assert!(matches!(
            part.view(range),
            Err(CopyError::OutOfBounds { size: 3072, .. })
        ));
    }
    let backwards = std::ops::Range { start: 2, end: 1 };
    assert!(part.view(backwards).is_err());
    for range in [3000..3073, u64::MAX..u64::MAX] {
        assert!(part.download(&stream, range).is_err());
    }
}

/// The owner of the last handle may have the block back.
#[test]
fn the_last_handle_is_the_block() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let shared = pool.try_allocate(&stream, MIB).unwrap().share();
    let part = shared.view(0..512).unwrap();
    let shared = shared.into_block().unwrap_err();
    drop(part);
    let block = shared.into_block().unwrap();
    assert_eq!(block.size(), MIB);
}

/// No event is passed between the streams by hand: a download comes after every earlier write.
#[test]
fn download_of_a_part_comes_after_the_upload_of_the_block() {
    let device = weirpool::device::sim::SimDevice::new();
    let pool = pool(&device, 8 * MIB);
    let [(_, a), (_, b)] = streams(&device, &pool);
    device.block_on(async {
        let mut block = pool.allocate(&a, MIB).await.unwrap();
        let _uploaded = block.upload(&a, 520, b"below the weir").unwrap();
        let shared = block.share();
        let part = shared.view(512..1024).unwrap();
        let bytes = part.download(&b, 8..22).unwrap().await.unwrap();
        assert_eq!(bytes, b"below the weir");
        // Dropped before it is complete: the memory of the copy and of the block stays until then.
        drop(shared.download(&b, 0..MIB).unwrap());
    });
    device.advance_to_end();
    device.assert_ordered();
    pool.inspect().check_conserved().unwrap();
}
