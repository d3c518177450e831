//! Ends that no process survives, or that are a process's own: each in a child, which is this program with
//! a word in its environment.

use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Mapped};
use crate::gpu::Gpu;
use crate::site::builder;
use cudarc::driver::CudaStream;
use futures::executor::block_on;
use std::io::Read;
use std::panic::catch_unwind;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{Device, DeviceError};
use weirpool::{AllocError, Block, Pool, Stream};

/// Names what a child is to do.
const CHILD: &str = "WEIRPOOL_GPU_CHILD";
const FAULT: &str = "fault";
const EXIT: &str = "exit";
/// What a child says last.
const DONE: &str = "all as it should be";

/// A child takes so long at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// What this process is to do instead of testing, if it is a child.
pub(crate) fn in_a_child() -> Option<ExitCode> {
    let task = std::env::var(CHILD).ok()?;
    let act = match task.as_str() {
        FAULT => fault,
        EXIT => exit,
        other => panic!("{CHILD} is {other}"),
    };
    if catch_unwind(act).is_err() {
        return Some(ExitCode::FAILURE);
    }
    println!("{DONE}");
    Some(ExitCode::SUCCESS)
}

/// A child that did all that it was to do, and ended by itself, without a signal, and in time.
fn assert_child(task: &str) {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .env(CHILD, task)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = await_end(&mut child);
    let mut said = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let mut complained = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut complained)
        .unwrap();
    let is_well = ended.is_some_and(|status| status.success()) && said.contains(DONE);
    let how = ended.map_or_else(
        || format!("did not end within {PATIENCE:?}, and was killed"),
        |status| format!("ended with {status}"),
    );
    assert!(is_well, "the child `{task}` {how}\n{said}{complained}");
}

fn await_end(child: &mut Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

struct Place {
    gpu: Gpu,
    pool: Pool,
    works: [Arc<CudaStream>; 2],
    streams: [Stream; 2],
}

fn place() -> Place {
    let gpu = Gpu::open().unwrap();
    let context = gpu.context().clone();
    let device = CudaDevice::builder().context(context).build().unwrap();
    let works = [(); 2].map(|()| device.create_stream().unwrap());
    let device: Arc<dyn Device> = Arc::new(device);
    let pool = builder::<Cuda<Mapped>>(device, 8 * MIB).build().unwrap();
    let streams = works.each_ref().map(|work| pool.register(work).unwrap());
    Place {
        gpu,
        pool,
        works,
        streams,
    }
}

/// A kernel writes where it must not. From then on CUDA fails every call: whoever waits is told so, nothing
/// is given away, and nothing hangs, panics or aborts, to the end of the process.
pub(crate) fn a_kernel_that_faults_fails_whoever_waits() {
    assert_child(FAULT);
}

fn fault() {
    let Place {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = place();
    let block = pool.try_allocate(&first, 8 * MIB).unwrap();
    // All of them wait before it happens.
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

    // Everything afterwards as well, on whatever stream.
    assert_sticky(of_the_device(pool.try_allocate(&second, 512)));
    assert_sticky(of_the_device(block_on(pool.allocate(&second, 512))));
    assert_sticky(event.is_complete());
    assert_sticky(second.event());
    assert_sticky(pool.harvest());
    // What may be in use still is given to nobody.
    let statistics = pool.statistics();
    assert_eq!((statistics.pending.current, statistics.free), (8 * MIB, 0));
    assert_eq!(statistics.waits.waiting, 0);
    pool.check().unwrap();
    drop((first, second, pool, event));
    drop((works, gpu));
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

/// rmm#2366: a pool that is alive when the process ends, with blocks, waits and work under way.
pub(crate) fn a_process_ends_with_pools_alive() {
    assert_child(EXIT);
}

fn exit() {
    static KEPT: Mutex<Vec<(Pool, Stream, Block)>> = Mutex::new(Vec::new());
    thread_local! {
        static OF_THE_THREAD: std::cell::RefCell<Option<(Pool, Stream, Block)>> =
            const { std::cell::RefCell::new(None) };
    }
    let Place {
        gpu,
        pool,
        works,
        streams: [first, second],
    } = place();
    let [kept, own, used] = [(); 3].map(|()| pool.try_allocate(&first, 2 * MIB).unwrap());
    let with = |block| (pool.clone(), first.clone(), block);
    KEPT.lock().unwrap().push(with(kept));
    OF_THE_THREAD.set(Some(with(own)));
    // Nobody waits for this thread, which waits for what never comes.
    let waiting = (pool.clone(), second);
    thread::spawn(move || block_on(waiting.0.allocate(&waiting.1, 8 * MIB)).map(drop));
    while pool.statistics().waits.waiting == 0 {
        thread::yield_now();
    }
    gpu.spend(&works[0], Duration::from_millis(50));
    drop(used);
}
