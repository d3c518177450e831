//! Faults that a process does not survive, and ends of processes. Each runs in a [child process](crate::children).

use crate::broken::{Scene, assert_all_waiters_fail, assert_no_pool, settings_for_waiters};
use crate::children::assert_child;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Mapped, Plain, Setting};
use crate::gpu::{Gpu, Latch};
use crate::probe::Probe;
use crate::site::builder;
use cudarc::driver::CudaStream;
use futures::executor::block_on;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{Device, DeviceError};
use weirpool::{AllocError, Block, Pool, Stream};

pub(crate) const FAULT: &str = "fault";
pub(crate) const FAULT_MAPPED: &str = "fault before all, virtual memory";
pub(crate) const FAULT_PLAIN: &str = "fault before all, plain memory";
pub(crate) const EXIT: &str = "exit";

pub(crate) struct Setup {
    pub(crate) gpu: Gpu,
    pub(crate) pool: Pool,
    pub(crate) works: [Arc<CudaStream>; 2],
    pub(crate) streams: [Stream; 2],
}

pub(crate) fn setup() -> Setup {
    let gpu = Gpu::open().unwrap();
    let context = gpu.context().clone();
    let device = CudaDevice::builder().context(context).build().unwrap();
    let works = [(); 2].map(|()| device.create_stream().unwrap());
    let device: Arc<dyn Device> = Arc::new(device);
    let pool = builder::<Cuda<Mapped>>(device, 8 * MIB).build().unwrap();
    let streams = works.each_ref().map(|work| pool.register(work).unwrap());
    Setup {
        gpu,
        pool,
        works,
        streams,
    }
}

/// A kernel writes to an illegal address. From then on CUDA fails every call: each waiter gets the error, no memory is
/// granted, and nothing hangs, panics or aborts until the process ends.
pub(crate) fn faulting_kernel_fails_the_awaiting_task() {
    assert_child(FAULT);
}

pub(crate) fn fault() {
    let Setup {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = setup();
    let block = pool.try_allocate(&first, 8 * MIB).unwrap();
    // All of them wait before the fault happens.
    let latch = gpu.hold(&works[0]);
    gpu.trespass(&works[0]);
    let mut download = block.download(&first, 0..16).unwrap();
    let event = first.event().unwrap();
    let mut freed = block.deallocate();
    let mut waiting = pool.allocate(&second, 8 * MIB);
    let mut passed = first.synchronize();
    assert!(poll(&mut download).is_pending());
    assert!(poll(&mut freed).is_pending());
    assert!(poll(&mut waiting).is_pending());
    assert!(poll(&mut passed).is_pending());
    latch.open();
    assert_sticky(block_on(download));
    assert_sticky(block_on(freed));
    assert_sticky(of_the_device(block_on(waiting)));
    assert_sticky(block_on(passed));

    // All later calls fail as well, on every stream.
    assert_sticky(of_the_device(pool.try_allocate(&second, 512)));
    assert_sticky(of_the_device(block_on(pool.allocate(&second, 512))));
    assert_sticky(event.is_complete());
    assert_sticky(second.event());
    assert_sticky(pool.maintain().reap());
    // Memory that may still be in use is not granted.
    let statistics = pool.inspect().statistics();
    assert_eq!((statistics.pending.current, statistics.free), (8 * MIB, 0));
    assert_eq!(statistics.waits.waiting, 0);
    pool.inspect().check().unwrap();
    drop((first, second, pool, event));
    drop((works, gpu));
}

/// The fault happens while requests of every kind wait, on several streams and on none. Afterwards no pool can be
/// built.
pub(crate) fn faulting_kernel_fails_all_waiters() {
    assert_child(FAULT_MAPPED);
    assert_child(FAULT_PLAIN);
}

pub(crate) fn fault_before_all_on_mapped() {
    fault_before_all::<Mapped>();
}

pub(crate) fn fault_before_all_on_plain() {
    fault_before_all::<Plain>();
}

fn fault_before_all<S: Setting>() {
    let gpu = Gpu::open().unwrap();
    let device = || {
        let builder = CudaDevice::builder().context(gpu.context().clone());
        builder.virtual_memory(S::VIRTUAL_MEMORY).build()
    };
    let opened = device().unwrap();
    let probe = Probe::new(Arc::new(opened.clone()));
    let build = |device| settings_for_waiters(builder::<Cuda<S>>(device, 16 * MIB)).build();
    let pool = build(probe.device()).unwrap();
    let works = [(); 4].map(|()| opened.create_stream().unwrap());
    let streams = works.each_ref().map(|work| pool.register(work).unwrap());
    let [held, others @ ..] = streams;
    let hold = || {
        let latch = gpu.hold(&works[0]);
        gpu.trespass(&works[0]);
        latch
    };
    let scene = Scene { pool, held, others };
    assert_all_waiters_fail(scene, &probe, hold, |latch: Latch| latch.open());
    assert_no_pool(build(probe.device()));
    match device() {
        Ok(device) => assert_no_pool(build(Arc::new(device))),
        Err(error) => assert!(error.is_sticky(), "{error}"),
    }
    drop((works, opened));
}

fn of_the_device(answer: Result<Block, AllocError>) -> Result<Block, DeviceError> {
    match answer {
        Ok(block) => Ok(block),
        Err(AllocError::Device(error)) => Err(error),
        Err(other) => panic!("{other} instead of the device's error"),
    }
}

fn assert_sticky<T: std::fmt::Debug>(answer: Result<T, DeviceError>) {
    let error = answer.expect_err("a context that is broken");
    assert!(error.is_sticky(), "{error}");
    assert!(error.reason().contains("ILLEGAL_ADDRESS"), "{error}");
}

/// rmm#2366: pools with blocks, waits and running work are alive when the process ends.
pub(crate) fn process_ends_with_live_pools() {
    assert_child(EXIT);
}

pub(crate) fn exit() {
    static KEPT: Mutex<Vec<(Pool, Stream, Block)>> = Mutex::new(Vec::new());
    thread_local! {
        static OF_THE_THREAD: std::cell::RefCell<Option<(Pool, Stream, Block)>> =
            const { std::cell::RefCell::new(None) };
    }
    let Setup {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = setup();
    let [kept, own, used] = [(); 3].map(|()| pool.try_allocate(&first, 2 * MIB).unwrap());
    let with = |block| (pool.clone(), first.clone(), block);
    KEPT.lock().unwrap().push(with(kept));
    OF_THE_THREAD.set(Some(with(own)));
    // The process does not wait for this thread, whose request is never granted.
    let waiting = (pool.clone(), second);
    thread::spawn(move || block_on(waiting.0.allocate(&waiting.1, 8 * MIB)).map(drop));
    while pool.inspect().statistics().waits.waiting == 0 {
        thread::yield_now();
    }
    gpu.spend(&works[0], Duration::from_millis(50));
    drop(used);
}
