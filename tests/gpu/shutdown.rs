//! Ends in the wrong order: a pool that goes while kernels write to its blocks, a process that is ended by a thread
//! while others wait. Each in a [child](crate::children), where a crash is seen.

use crate::children::{DONE, assert_child};
use crate::common::MIB;
use crate::cuda::{Cuda, Mapped, Plain, Setting};
use crate::ends::{Place, place};
use crate::gpu::{Gpu, settle};
use crate::site::{builder, eventually};
use cudarc::driver::CudaStream;
use futures::executor::block_on;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::Duration;
use weirpool::Block;
use weirpool::device::cuda::CudaDevice;

pub(crate) const EXIT_ELSEWHERE: &str = "exit elsewhere";
pub(crate) const DROP_MAPPED: &str = "drop, virtual memory";
pub(crate) const DROP_PLAIN: &str = "drop, plain memory";

const BYTES: u64 = 256 * MIB;
/// What the driver may keep for itself of what was given back.
const SLACK: u64 = 64 * MIB;
const PATIENCE: Duration = Duration::from_secs(10);

/// [30] A pool goes with all its handles, streams and blocks while kernels write to them: its memory is the
/// kernels' until they end, by what they find in it and by what the device has left, and is given back then.
pub(crate) fn a_pool_is_dropped_while_kernels_write() {
    assert_child(DROP_MAPPED);
    assert_child(DROP_PLAIN);
}

pub(crate) fn drop_mapped() {
    drop_while_kernels_write::<Mapped>();
}

pub(crate) fn drop_plain() {
    drop_while_kernels_write::<Plain>();
}

fn drop_while_kernels_write<S: Setting>() {
    let gpu = Gpu::open().unwrap();
    let device = CudaDevice::builder().context(gpu.context().clone());
    let device = device.virtual_memory(S::VIRTUAL_MEMORY).build().unwrap();
    let works = [(); 2].map(|()| device.create_stream().unwrap());
    let left = || gpu.context().mem_get_info().unwrap().0 as u64;
    let before = left();
    let first = block_of::<S>(&device, &works[0]);
    let (tell, told) = channel();
    let address = first.address();
    gpu.fill(&works[0], address, BYTES, 1);
    let latch = gpu.hold(&works[0]);
    gpu.add(&works[0], address, BYTES, 1);
    let (teller, tell_again) = (tell.clone(), tell);
    gpu.compare(&works[0], address, BYTES, 2, move |is_right| {
        let _ = teller.send(is_right);
    });
    // The last handle on the pool, and on its stream.
    drop(first);
    assert!(left() + BYTES <= before, "given back too early");
    // Who takes memory now, and writes to it, has other memory.
    let second = block_of::<S>(&device, &works[1]);
    gpu.fill(&works[1], second.address(), BYTES, 7);
    settle(&works[1]);
    assert!(left() + 2 * BYTES <= before, "given back too early");
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    latch.open();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "the kernel's bytes");
    settle(&works[0]);
    eventually(|| left() + BYTES + SLACK >= before);
    gpu.compare(&works[1], second.address(), BYTES, 7, move |is_right| {
        let _ = tell_again.send(is_right);
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "the other's bytes");
    settle(&works[1]);
    drop(second);
    eventually(|| left() + SLACK >= before);
}

/// A block of a pool of its own, which lives for as long as the block.
fn block_of<S: Setting>(device: &CudaDevice, work: &Arc<CudaStream>) -> Block {
    let pool = builder::<Cuda<S>>(Arc::new(device.clone()), 2 * BYTES).build();
    let pool = pool.unwrap();
    let stream = pool.register(work).unwrap();
    pool.try_allocate(&stream, BYTES).unwrap()
}

/// rmm#2366: a thread ends the process while tasks and threads wait, and kernels run.
pub(crate) fn a_thread_ends_the_process_while_others_wait() {
    assert_child(EXIT_ELSEWHERE);
}

pub(crate) fn exit_elsewhere() {
    let Place {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = place();
    let used = pool.try_allocate(&first, 4 * MIB).unwrap();
    let freed = pool.try_allocate(&first, 4 * MIB).unwrap();
    let (address, bytes) = (used.address(), used.size());
    gpu.spend(&works[0], Duration::from_millis(500));
    gpu.fill(&works[0], address, bytes, 1);
    gpu.fill(&works[0], freed.address(), bytes, 1);
    drop(freed);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).build().unwrap();
    for bytes in [5 * MIB, 8 * MIB] {
        let (pool, stream) = (pool.clone(), second.clone());
        runtime.spawn(async move { pool.allocate(&stream, bytes).await.map(drop) });
    }
    let waits = (pool.clone(), second.clone());
    thread::spawn(move || waits.0.reserve(6 * MIB).blocking().map(drop));
    let watched = pool.clone();
    thread::spawn(move || {
        // With that of the main thread, which nobody ever serves.
        eventually(|| watched.statistics().waits.waiting == 4);
        println!("{DONE}");
        std::process::exit(0);
    });
    let block = block_on(pool.allocate(&second, 8 * MIB));
    panic!("{block:?} with {used:?} in use");
}
