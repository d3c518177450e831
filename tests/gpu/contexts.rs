//! Threads: a pool may be called on one that has never seen CUDA, and on one where another context is
//! current, which is as current afterwards as it was before.

use crate::common::MIB;
use crate::cuda::{Cuda, Mapped};
use crate::gpu::{another_context, current_context};
use crate::harness::gpu;
use crate::site::{Site, eventually};
use cudarc::driver::CudaContext;
use futures::executor::block_on;
use std::sync::Arc;
use std::thread;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{Device, MemoryKind};
use weirpool::{Pool, Stream, Unordered};

type Here = Cuda<Mapped>;

/// What a user does with a pool, each with its name. `stream` and `other` are of two streams on which no
/// work runs.
fn use_everything(pool: &Pool, stream: &Stream, other: &Stream, mut done: impl FnMut(&str)) {
    let mut block = pool.try_allocate(stream, 8 * MIB).unwrap();
    done("an allocation that grows");
    let upload = block.upload(stream, 0, &[7; 100]).unwrap();
    done("an upload");
    other.record_use(Unordered::UntilFreed(&block)).unwrap();
    other.wait(&stream.event().unwrap()).unwrap();
    done("a wait");
    let download = block.download(other, 0..100).unwrap();
    assert_eq!(block_on(download).unwrap(), [7; 100]);
    block_on(upload).unwrap();
    done("a download");
    drop(block);
    done("a free");
    drop(pool.try_allocate(stream, 512).unwrap());
    drop(block_on(pool.allocate(other, 16 * MIB)).unwrap());
    done("an allocation that is awaited");
    block_on(pool.try_allocate(stream, 4 * MIB).unwrap().deallocate()).unwrap();
    block_on(stream.synchronize()).unwrap();
    stream.seal().unwrap();
    done("a free that is awaited");
    drop(pool.create_stream().unwrap());
    done("a stream of the pool's");
    pool.maintain().reap().unwrap();
    block_on(other.synchronize()).unwrap();
    pool.maintain().reap().unwrap();
    assert!(pool.trim_to(0).unwrap().released > 0);
    done("a trim");
    assert_eq!(pool.inspect().statistics().used.current, 0);
    assert!(pool.inspect().describe().device.contains("cuda:"));
    pool.inspect().check_conserved().unwrap();
    done("statistics");
}

pub(crate) fn thread_needs_no_context() {
    let site = Site::<Here>::new(32 * MIB);
    let [first, second] = site.workers();
    thread::scope(|scope| {
        let all = scope.spawn(|| {
            assert_eq!(current_context(), None, "a thread that never saw CUDA");
            use_everything(&site.pool, &first.stream, &second.stream, |_| {});
        });
        all.join().unwrap();
    });
    // And one on which nothing but the end takes place.
    let block = first.take(8 * MIB);
    first.use_up(&block, 1);
    let Site { pool, witness, .. } = site;
    let work = first.work.clone();
    thread::spawn(move || drop((block, first, second, pool)))
        .join()
        .unwrap();
    crate::gpu::settle(&work);
    witness.assert_content();
}

/// Fails when another context is current than the thread's own.
fn assert_current(own: &CudaContext, after: &str) {
    let current = current_context();
    assert_eq!(current, Some(own.cu_ctx()), "the context after {after}");
}

pub(crate) fn context_of_a_thread_is_left_alone() {
    let site = Site::<Here>::new(32 * MIB);
    let [first, second] = site.workers();
    let own = another_context(site.bench.gpu.context());
    let done = |what: &str| assert_current(&own, what);
    done("its making");
    use_everything(&site.pool, &first.stream, &second.stream, done);

    // A stream that its user let go first: the pool is the last to have it.
    let Site { pool, bench, .. } = site;
    let stream = Arc::downgrade(&first.work);
    let block = first.take(8 * MIB);
    drop(first);
    drop(block);
    eventually(|| {
        pool.maintain().reap().unwrap();
        stream.strong_count() == 0
    });
    done("the end of a stream");
    let device = bench.device.clone();
    drop((second, pool));
    done("the end of the pool");
    assert!(device.memory_info(MemoryKind::Device).unwrap().free > 0);
    done("a look at the device");
    drop((device, bench));
    done("the end of the device");
}

/// Where the device is the last to have its context.
pub(crate) fn dropped_device_leaves_the_context_alone() {
    let gpu = gpu();
    let own = another_context(gpu.context());
    let open = || {
        let ending = another_context(gpu.context());
        let device = CudaDevice::builder().context(ending).build().unwrap();
        own.bind_to_thread().unwrap();
        device
    };

    let unused = open();
    drop(unused.create_stream().unwrap());
    own.bind_to_thread().unwrap();
    drop(unused);
    assert_current(&own, "the end of a device that is not used");

    let device = open();
    let pool = Pool::builder(device.clone()).capacity(32 * MIB).build();
    let pool = pool.unwrap();
    let stream = pool.create_stream().unwrap();
    let mut block = pool.try_allocate(&stream, MIB).unwrap();
    let upload = block.upload(&stream, 0, &[1; 10]).unwrap();
    block_on(upload).unwrap();
    assert_current(&own, "some use");
    drop((block, stream, pool));
    assert_current(&own, "the end of the pool");
    drop(device);
    assert_current(&own, "the end of the device");
}
