//! onnxruntime's own library takes memory of a pool, without a GPU: the pool has memory of the host, and the allocator is
//! that of the CPU. `ORT_DYLIB_PATH=libonnxruntime.so cargo test --lib -- --ignored`.
//!
//! | class of fault | test |
//! |---|---|
//! | the table of functions is not what onnxruntime expects, or a session does not use it | `session_takes_weights_and_activations_from_the_pool` |
//! | a null pointer is used, or memory is lost when a run fails | `session_without_memory_fails_and_recovers` |
//! | a session outlives the allocator, or the other way round | both: sessions and outputs are dropped at different times |

#[path = "../../tests/model/mod.rs"]
mod model;

use super::*;
use model::{WIDTH, input, is_computed};
use ort::value::Tensor;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::{Mutex, MutexGuard, OnceLock};
use weirpool::device::sim::SimDevice;
use weirpool::device::{DeviceId, MemoryKind, RawStream};
use weirpool::extend::{SegmentProperties, SegmentSource};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Memory of the host as segments.
#[derive(Debug)]
struct HostMemory(DeviceId);

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, PAGE as usize).expect("of a segment")
}

// SAFETY: each segment is memory of the host until it is given back.
unsafe impl SegmentSource for HostMemory {
    fn properties(&self) -> SegmentProperties {
        SegmentProperties {
            owner: "the test",
            device: self.0,
            kind: MemoryKind::Device,
            granularity: PAGE,
            most: u64::MAX,
            is_ordered: false,
        }
    }

    unsafe fn take(&self, bytes: u64, _: u64, _: RawStream) -> Result<u64, DeviceError> {
        // SAFETY: a segment has bytes.
        Ok(unsafe { alloc_zeroed(layout(bytes)) }.expose_provenance() as u64)
    }

    unsafe fn give(&self, address: u64, bytes: u64, _: RawStream) -> Result<(), DeviceError> {
        let address = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: it was taken with this layout.
        unsafe { dealloc(address, layout(bytes)) };
        Ok(())
    }
}

/// One environment for a process, and one test at a time that replaces its allocator.
fn environment() -> MutexGuard<'static, Environment> {
    static ONE: OnceLock<Mutex<Environment>> = OnceLock::new();
    let one = ONE.get_or_init(|| Mutex::new(ort::init().build().expect("onnxruntime")));
    one.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Makes a pool of host memory that of the CPU, and counts the failures.
fn registered(
    environment: &Environment,
    capacity: u64,
) -> (&'static Memory, Arc<Mutex<Vec<String>>>) {
    let device = SimDevice::new();
    let segments = HostMemory(device.id());
    let pool = Pool::builder(device).segment_source(Arc::new(segments));
    let pool = pool.capacity(capacity).build().expect("a pool");
    let failures = Arc::new(Mutex::new(Vec::new()));
    let builder = Memory::of(&pool).wait(Duration::from_millis(50)).report({
        let failures = failures.clone();
        move |failure| failures.lock().unwrap().push(failure.to_string())
    });
    let (device, allocator) = (AllocationDevice::CPU, AllocatorType::Device);
    let info = MemoryInfo::new(device, 0, allocator, MemoryType::Default).expect("of the CPU");
    let memory = builder.register_as(info, environment).expect("it is taken");
    (memory, failures)
}

fn session(environment: &Environment) -> ort::Result<Session> {
    let builder = Session::builder(environment)?.with_env_allocators()?;
    builder
        .with_intra_threads(1)?
        .commit_from_memory(&model::model())
}

fn run(session: &mut Session, seed: usize, rows: usize) -> ort::Result<bool> {
    let values = input(seed, rows);
    let tensor = Tensor::from_array(([rows, WIDTH], values.clone()))?;
    let outputs = session.run(ort::inputs![tensor])?;
    let (_, output) = outputs["y"].try_extract_tensor::<f32>()?;
    Ok(is_computed(&values, output))
}

fn used(memory: &Memory) -> u64 {
    memory.pool().inspect().statistics().used.current
}

#[test]
#[ignore = "needs onnxruntime (ORT_DYLIB_PATH)"]
fn session_takes_weights_and_activations_from_the_pool() {
    let environment = environment();
    let (memory, failures) = registered(&environment, 64 * MIB);
    let mut sessions = [0, 1].map(|_| session(&environment).expect("a session"));
    let weights = used(memory);
    assert!(
        weights >= MIB,
        "two sessions with 1 MiB of weights each: {weights}"
    );
    memory.pool().inspect().reset_high_water_marks();
    for seed in 0..4 {
        for session in &mut sessions {
            assert!(run(session, seed, 1000).expect("memory suffices"));
        }
    }
    let peak = memory.pool().inspect().statistics().used.high;
    let output = 1000 * WIDTH as u64 * 4;
    assert!(peak >= weights + output, "{peak}");
    assert_eq!(used(memory), weights, "activations and outputs went back");

    // An output outlives its session, and the registration.
    let [mut first, second] = sessions;
    drop(second);
    let tensor = Tensor::from_array(([10, WIDTH], input(7, 10))).expect("a tensor");
    let mut outputs = first.run(ort::inputs![tensor]).expect("memory suffices");
    let output = outputs.remove("y").expect("the output");
    drop(outputs);
    drop(first);
    let (other, _) = registered(&environment, 64 * MIB);
    let (_, values) = output.try_extract_tensor::<f32>().expect("floats");
    assert!(is_computed(&input(7, 10), values));
    drop(output);
    assert_eq!([used(memory), used(other)], [0, 0]);
    assert_eq!(*failures.lock().unwrap(), Vec::<String>::new());
}

#[test]
#[ignore = "needs onnxruntime (ORT_DYLIB_PATH)"]
fn session_without_memory_fails_and_recovers() {
    let environment = environment();
    let (memory, failures) = registered(&environment, 8 * MIB);
    let mut session = session(&environment).expect("a session");
    let weights = used(memory);
    for seed in 0..4 {
        let error = run(&mut session, seed, 20_000).expect_err("20 MB for each activation");
        println!("{error}");
        assert!(!failures.lock().unwrap().is_empty());
        failures.lock().unwrap().clear();
        assert_eq!(used(memory), weights);
        assert!(run(&mut session, seed, 100).expect("memory suffices"));
    }
    // One that has no memory for its weights.
    let others: Vec<_> = (0..8)
        .map(|_| super::tests::session(&environment))
        .collect();
    assert!(others.iter().any(Result::is_err));
    drop(others);
    assert_eq!(used(memory), weights);
    drop(session);
    assert_eq!(used(memory), 0);
}
