//! Ends in the wrong order: a pool is dropped while kernels write to its blocks, or a thread ends the process while
//! others wait. Each runs in a [child process](crate::children), so that a crash is seen.

use crate::children::{DONE, assert_child, assert_child_without_threads};
use crate::common::MIB;
use crate::cuda::{Cuda, Mapped, Plain, Setting};
use crate::ends::{Setup, setup};
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
pub(crate) const WITHOUT_THREADS: &str = "without threads";
pub(crate) const DROP_MAPPED: &str = "drop, virtual memory";
pub(crate) const DROP_PLAIN: &str = "drop, plain memory";

const BYTES: u64 = 256 * MIB;
/// Released memory that the driver may keep for itself.
const SLACK: u64 = 64 * MIB;
const PATIENCE: Duration = Duration::from_secs(10);

/// A pool is dropped with all its handles, streams and blocks while kernels write to them. The kernels keep their
/// memory until they end, as their contents and the device's free memory show; then it is released.
pub(crate) fn pool_is_dropped_while_kernels_write() {
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
    let (first_sender, results) = channel();
    let address = first.address();
    gpu.fill(&works[0], address, BYTES, 1);
    let latch = gpu.hold(&works[0]);
    gpu.add(&works[0], address, BYTES, 1);
    let (sender, sender_again) = (first_sender.clone(), first_sender);
    gpu.compare(&works[0], address, BYTES, 2, move |is_right| {
        let _ = sender.send(is_right);
    });
    // This drops the last handle of the pool, and of its stream.
    drop(first);
    assert!(left() + BYTES <= before, "released too early");
    // A new owner gets other memory.
    let second = block_of::<S>(&device, &works[1]);
    gpu.fill(&works[1], second.address(), BYTES, 7);
    settle(&works[1]);
    assert!(left() + 2 * BYTES <= before, "released too early");
    assert_eq!(results.try_recv(), Err(TryRecvError::Empty));
    latch.open();
    assert_eq!(
        results.recv_timeout(PATIENCE),
        Ok(true),
        "the kernel's bytes"
    );
    settle(&works[0]);
    eventually(|| left() + BYTES + SLACK >= before);
    gpu.compare(&works[1], second.address(), BYTES, 7, move |is_right| {
        let _ = sender_again.send(is_right);
    });
    assert_eq!(
        results.recv_timeout(PATIENCE),
        Ok(true),
        "the other's bytes"
    );
    settle(&works[1]);
    drop(second);
    eventually(|| left() + SLACK >= before);
}

/// Allocates a block of a new pool, which lives as long as the block.
fn block_of<S: Setting>(device: &CudaDevice, work: &Arc<CudaStream>) -> Block {
    let pool = builder::<Cuda<S>>(Arc::new(device.clone()), 2 * BYTES).build();
    let pool = pool.unwrap();
    let stream = pool.register(work).unwrap();
    pool.try_allocate(&stream, BYTES).unwrap()
}

/// rmm#2366: a thread ends the process while tasks and threads wait, and kernels run.
pub(crate) fn thread_ends_the_process_while_others_wait() {
    assert_child(EXIT_ELSEWHERE);
}

pub(crate) fn exit_elsewhere() {
    let Setup {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = setup();
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
        // The fourth waiter is on the main thread, and is never served.
        eventually(|| watched.inspect().statistics().waits.waiting == 4);
        println!("{DONE}");
        std::process::exit(0);
    });
    let block = block_on(pool.allocate(&second, 8 * MIB));
    panic!("{block:?} with {used:?} in use");
}

/// The thread that watches events cannot be started: a wait wakes its task at once, which then queries the event
/// itself.
pub(crate) fn pool_serves_where_no_thread_can_be_started() {
    assert_child_without_threads(WITHOUT_THREADS);
}

pub(crate) fn without_threads() {
    assert!(thread::Builder::new().spawn(|| {}).is_err());
    let Setup {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = setup();
    let used = pool.try_allocate(&first, pool.capacity()).unwrap();
    gpu.spend(&works[0], Duration::from_millis(50));
    gpu.fill(&works[0], used.address(), used.size(), 1);
    let written = first.event().unwrap();
    drop(used);
    let granted = block_on(pool.allocate(&second, 4 * MIB).timeout(PATIENCE)).unwrap();
    assert!(written.is_complete().unwrap());
    block_on(granted.deallocate()).unwrap();
}
