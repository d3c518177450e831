//! Sessions of onnxruntime's CUDA provider on memory of a pool: `ORT_DYLIB_PATH=libonnxruntime.so cargo test --test gpu -- --ignored`,
//! with the libraries of CUDA and cuDNN in the linker's path.
//!
//! | class of fault | test |
//! |---|---|
//! | memory is reused under the work of a session, or a session does not use the pool | `sessions_on_two_streams_compute_what_the_cpu_does` |
//! | runs at short memory fail, or wait for each other | `requests_at_memory_for_6_of_64_are_admitted_and_none_fails` |
//! | a failed allocation reaches a kernel | `run_without_memory_fails_and_the_next_one_computes` |
//! | onnxruntime's own memory breaks below it: `weirpool run -- gpu-… own_memory --ignored` | `session_with_own_memory_computes_what_the_cpu_does` |
//! | work on an unknown stream uses memory in no order | `session_on_a_stream_of_its_own_gets_no_memory`; the default stream is refused in `run_without_memory_fails_and_the_next_one_computes` |

mod model;

use cudarc::driver::{CudaContext, CudaStream};
use futures::executor::block_on;
use model::{WIDTH, input, is_computed, model};
use ort::environment::Environment;
use ort::ep;
use ort::session::Session;
use ort::value::Tensor;
use std::error::Error;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_ort::{Memory, MemoryError};

type Outcome = Result<(), Box<dyn Error>>;

const MIB: u64 = 1 << 20;
const REQUESTS: usize = 64;
/// 16 MiB for the input, and for each activation.
const ROWS: usize = 16_384;

/// One environment for a process, and one test at a time that replaces its allocator.
fn environment() -> MutexGuard<'static, Environment> {
    static ONE: OnceLock<Mutex<Environment>> = OnceLock::new();
    let one = ONE.get_or_init(|| Mutex::new(ort::init().build().expect("onnxruntime")));
    one.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

type Failures = Arc<Mutex<Vec<String>>>;

fn registered(
    environment: &Environment,
    capacity: u64,
    wait: Duration,
) -> Result<(&'static Memory, Failures), Box<dyn Error>> {
    let pool = Pool::builder(CudaDevice::new(0)?);
    let pool = pool.capacity(capacity).build()?;
    let failures = Failures::default();
    let builder = Memory::of(&pool).wait(wait).report({
        let failures = failures.clone();
        move |failure| failures.lock().unwrap().push(failure.to_string())
    });
    Ok((builder.register(environment)?, failures))
}

fn streams<const N: usize>() -> Result<[Arc<CudaStream>; N], Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let streams: Result<Vec<_>, _> = (0..N).map(|_| context.new_stream()).collect();
    Ok(streams?.try_into().expect("as many"))
}

/// A provider whose products are as exact as the CPU's.
fn exact() -> ep::CUDA {
    ep::CUDA::default().with_tf32(false)
}

fn on_gpu(
    memory: &Memory,
    environment: &Environment,
    stream: &Arc<CudaStream>,
) -> Result<Session, Box<dyn Error>> {
    let mut builder = memory.session(environment, stream, exact())?;
    Ok(builder.commit_from_memory(&model())?)
}

fn run(session: &mut Session, values: &[f32]) -> ort::Result<Vec<f32>> {
    let tensor = Tensor::from_array(([values.len() / WIDTH, WIDTH], values.to_vec()))?;
    let outputs = session.run(ort::inputs![tensor])?;
    let (_, output) = outputs["y"].try_extract_tensor::<f32>()?;
    Ok(output.to_vec())
}

/// Expects values that differ by at most a ten-thousandth of the largest one.
fn assert_close(output: &[f32], expected: &[f32]) {
    assert_eq!(output.len(), expected.len());
    let largest = expected
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    let is_close = |(one, other): (&f32, &f32)| (one - other).abs() <= largest * 1e-4;
    assert!(output.iter().zip(expected).all(is_close));
}

fn used(memory: &Memory) -> u64 {
    memory.pool().inspect().statistics().used.current
}

fn none(failures: &Failures) {
    assert_eq!(*failures.lock().unwrap(), Vec::<String>::new());
}

#[test]
#[ignore = "needs a GPU, and onnxruntime with its CUDA provider (ORT_DYLIB_PATH)"]
fn sessions_on_two_streams_compute_what_the_cpu_does() -> Outcome {
    let environment = environment();
    let (memory, failures) = registered(&environment, 1024 * MIB, Duration::from_secs(5))?;
    let mut on_cpu = Session::builder(&environment)?.commit_from_memory(&model())?;
    let streams = streams::<2>()?;
    let sessions = (streams.iter()).map(|stream| on_gpu(memory, &environment, stream));
    let mut sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let weights = used(memory);
    assert!(weights >= 2 * MIB, "1 MiB of weights each: {weights}");
    memory.pool().inspect().reset_high_water_marks();
    for seed in 0..4 {
        let values = input(seed, 1000);
        let expected = run(&mut on_cpu, &values)?;
        assert!(is_computed(&values, &expected));
        // At the same time, so that memory passes from one stream to the other.
        let outputs: Vec<_> = thread::scope(|scope| {
            let values = &values;
            let threads = sessions.iter_mut().map(|session| {
                scope.spawn(move || (0..20).map(|_| run(session, values)).collect::<Vec<_>>())
            });
            let threads: Vec<_> = threads.collect();
            let outputs = threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("no panic"));
            outputs.collect()
        });
        for output in outputs {
            assert_close(&output?, &expected);
        }
    }
    let statistics = memory.pool().inspect().statistics();
    assert!(statistics.used.high >= weights + 1000 * WIDTH as u64 * 4);
    assert_eq!(
        used(memory),
        weights,
        "inputs, activations and outputs went back"
    );
    println!("{:#?}", memory.pool().inspect().statistics_by_stream());
    drop(sessions);
    assert_eq!(used(memory), 0);
    none(&failures);
    Ok(())
}

#[test]
#[ignore = "needs a GPU, and onnxruntime with its CUDA provider (ORT_DYLIB_PATH)"]
fn requests_at_memory_for_6_of_64_are_admitted_and_none_fails() -> Outcome {
    let environment = environment();
    let (memory, failures) = registered(&environment, 4096 * MIB, Duration::from_secs(60))?;
    let pool = memory.pool();
    let streams = streams::<8>()?;
    let sessions = (0..REQUESTS).map(|n| on_gpu(memory, &environment, &streams[n % 8]));
    let mut sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let weights = used(memory);
    // The first run of a session allocates each tensor, and later ones a single piece for most of them.
    pool.inspect().reset_high_water_marks();
    for seed in [0, 1] {
        let values = input(seed, ROWS);
        assert!(is_computed(&values, &run(&mut sessions[0], &values)?));
    }
    let need = pool.inspect().statistics().used.high - weights;
    let need = (need + need / 4).next_multiple_of(2 * MIB);
    let trimmed = pool.resize(weights + 6 * need + 16 * MIB)?;
    println!("{trimmed:?}");
    println!(
        "{need} bytes for a run, {weights} of weights, {} in all",
        pool.capacity()
    );

    let before = pool.inspect().statistics().waits.served;
    let barrier = Barrier::new(REQUESTS);
    thread::scope(|scope| {
        let threads = sessions.iter_mut().enumerate().map(|(n, session)| {
            let barrier = &barrier;
            scope.spawn(move || {
                let values = input(n, ROWS);
                barrier.wait();
                let reservation = block_on(pool.reserve(need)).expect("admitted");
                let _entered = reservation.enter();
                let output = run(session, &values).expect("a run that was admitted");
                assert!(is_computed(&values, &output), "request {n}");
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
    });
    let waited = pool.inspect().statistics().waits.served - before;
    println!("{waited} of {REQUESTS} waited");
    assert!(waited as usize >= REQUESTS - 12);
    assert_eq!(used(memory), weights);
    none(&failures);
    Ok(())
}

#[test]
#[ignore = "needs a GPU, and onnxruntime with its CUDA provider (ORT_DYLIB_PATH)"]
fn run_without_memory_fails_and_the_next_one_computes() -> Outcome {
    let environment = environment();
    let (memory, failures) = registered(&environment, 16 * MIB, Duration::from_millis(100))?;
    let [stream] = streams()?;
    let default = stream.context().default_stream();
    let refused = memory.session(&environment, &default, exact());
    assert!(matches!(refused, Err(MemoryError::DefaultStream)));
    let mut session = on_gpu(memory, &environment, &stream)?;
    let weights = used(memory);
    let (small, large) = (input(3, 100), input(3, ROWS));
    for _ in 0..3 {
        let error = run(&mut session, &large).expect_err("48 MiB are not there");
        println!("{error}");
        assert!(!std::mem::take(&mut *failures.lock().unwrap()).is_empty());
        assert!(is_computed(&small, &run(&mut session, &small)?));
        assert_eq!(used(memory), weights);
    }
    stream.synchronize()?;
    stream.context().check_err()?;
    none(&failures);
    Ok(())
}

#[test]
#[ignore = "needs a GPU, and onnxruntime with its CUDA provider (ORT_DYLIB_PATH)"]
fn session_on_a_stream_of_its_own_gets_no_memory() -> Outcome {
    let environment = environment();
    let (memory, failures) = registered(&environment, 64 * MIB, Duration::from_millis(100))?;
    let providers = [exact().build().error_on_failure()];
    let builder = Session::builder(&environment)?.with_env_allocators()?;
    let mut builder = builder.with_execution_providers(providers)?;
    let mut session = builder.commit_from_memory(&model())?;
    let error = run(&mut session, &input(0, 100)).expect_err("its stream is not known");
    println!("{error}");
    let failures = failures.lock().unwrap();
    assert!(
        failures
            .iter()
            .all(|failure| failure.contains("does not know")),
        "{failures:?}"
    );
    assert!(!failures.is_empty());
    drop(session);
    assert_eq!(used(memory), 0);
    Ok(())
}

/// Without the crate: onnxruntime allocates from the driver, or from the pool of `weirpool run`.
#[test]
#[ignore = "needs a GPU, and onnxruntime with its CUDA provider (ORT_DYLIB_PATH)"]
fn session_with_own_memory_computes_what_the_cpu_does() -> Outcome {
    let environment = environment();
    let begun = Instant::now();
    let mut on_cpu = Session::builder(&environment)?.commit_from_memory(&model())?;
    let mut builder = Session::builder(&environment)?
        .with_execution_providers([exact().build().error_on_failure()])?;
    let mut on_gpu = builder.commit_from_memory(&model())?;
    let loaded = begun.elapsed();
    let values = input(1, ROWS);
    let expected = run(&mut on_cpu, &values)?;
    let begun = Instant::now();
    for _ in 0..200 {
        let output = run(&mut on_gpu, &values)?;
        assert_close(&output, &expected);
    }
    let (free, all) = cudarc::driver::result::mem_get_info()?;
    println!(
        "{loaded:?} to load; 200 runs in {:?}; {} MiB in use",
        begun.elapsed(),
        (all - free) as u64 / MIB
    );
    Ok(())
}
