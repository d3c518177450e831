//! Tensors in memory of a pool, on a GPU: `cargo test --test gpu -- --ignored`.
//!
//! | class of fault | test |
//! |---|---|
//! | the driver frees memory of the pool, or the pool reuses it under candle's work | `transformer_generates_in_memory_for_6_of_64_requests`, on two streams: each request drops its memory while its work runs, and all tokens are confirmed on the CPU at the end |
//! | a stored error of cudarc keeps a drop from returning the memory | `tensor_is_freed_although_an_error_is_stored` |
//! | a tensor without elements is never freed, or a size wraps | `shape_without_memory_is_refused` |
//! | a clone uses memory that is gone | `clone_of_a_dropped_tensor_fails` |
//! | a stream in no order is taken | `device_on_streams_of_threads_is_refused` |

mod generation;

use anyhow::{Result, ensure};
use candle_core::{DType, Device};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use futures::executor::block_on;
use futures::future::try_join_all;
use generation::{KEPT, Model};
use std::future::poll_fn;
use std::mem::replace;
use std::sync::Mutex;
use std::task::Poll;
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_candle::{Memory, MemoryError, PoolTensor};

const MIB: u64 = 1 << 20;
const REQUESTS: usize = 64;

fn device_and_pool(capacity: u64) -> Result<(Device, Pool)> {
    let device = Device::new_cuda_with_stream(0)?;
    let builder = Pool::builder(CudaDevice::new(0)?);
    Ok((device, builder.capacity(capacity).build()?))
}

fn live(pool: &Pool) -> u64 {
    pool.inspect().statistics().live_blocks
}

/// Lets the other requests run, which wait for memory meanwhile.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(move |context| match replace(&mut has_yielded, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

#[test]
#[ignore = "needs a GPU"]
fn transformer_generates_in_memory_for_6_of_64_requests() -> Result<()> {
    // 64 MiB for the keys and values of a request: for 6 of 64, and the weights.
    let (device, pool) = device_and_pool(6 * 64 * MIB + 32 * MIB)?;
    // Each with a stream of its own, so that memory passes from one to the other.
    let devices = [device, Device::new_cuda_with_stream(0)?];
    let memories = devices.each_ref().map(|device| Memory::new(&pool, device));
    let memories = memories.into_iter().collect::<Result<Vec<_>, _>>()?;
    let weights = Mutex::new(Vec::new());
    let models = devices.iter().zip(&memories).map(|(device, memory)| {
        Model::new(device, |weight| {
            let kept = block_on(memory.copy(&weight)).map_err(candle_core::Error::wrap)?;
            let tensor = kept.clone();
            weights.lock().expect("no panic").push(kept);
            Ok(tensor)
        })
    });
    let models = models.collect::<Result<Vec<_>>>()?;
    let request = async |n: usize| {
        // All of a request at once: requests that hold some while they wait for more can deadlock.
        let kept = memories[n % 2].zeros(&KEPT[..], DType::F32).await?;
        yield_now().await;
        // The memory is dropped without waiting for the device.
        models[n % 2].generate(n, &kept)
    };
    let answers = block_on(try_join_all((0..REQUESTS).map(request)))?;
    let statistics = pool.inspect().statistics();
    println!(
        "{} of {REQUESTS} waited; {} bytes of weights",
        statistics.waits.served, statistics.used.current
    );
    ensure!(statistics.waits.served as usize >= REQUESTS - 12);
    let weights = weights.into_inner().expect("no panic");
    ensure!(
        live(&pool) as usize == weights.len(),
        "only the weights are left"
    );
    let on_cpu = Model::new(&Device::Cpu, Ok)?;
    for (n, answer) in answers.iter().enumerate() {
        let answer = answer.to_vec1::<u32>()?;
        ensure!(on_cpu.confirms(n, &answer)?, "request {n}: {answer:?}");
    }
    drop((models, weights));
    ensure!(live(&pool) == 0);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn clone_of_a_dropped_tensor_fails() -> Result<()> {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let memory = Memory::new(&pool, &device)?;
    for dtype in [
        DType::U8,
        DType::U32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F64,
    ] {
        let made: PoolTensor = block_on(memory.zeros((100, 100), dtype))?;
        assert_eq!(made.dtype(), dtype);
        assert!(made.block().size() >= 10_000 * dtype.size_in_bytes() as u64);
        let clone = made.clone();
        drop(made);
        assert_eq!(live(&pool), 0);
        let results = [
            &clone + &clone,
            clone.affine(2.0, 1.0),
            clone.t().and_then(|turned| turned.contiguous()),
            clone.matmul(&clone),
            clone.sum_all(),
            clone
                .zeros_like()
                .and_then(|zeros| zeros.slice_set(&clone, 0, 0).map(|()| zeros)),
        ];
        assert!(results.iter().all(Result::is_err), "{dtype:?}: {results:?}");
        drop(clone);
    }
    device.synchronize()?;
    device
        .as_cuda_device()?
        .cuda_stream()
        .context()
        .check_err()?;
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn tensor_is_freed_although_an_error_is_stored() -> Result<()> {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let memory = Memory::new(&pool, &device)?;
    let context = device.as_cuda_device()?.cuda_stream().context().clone();
    let made = block_on(memory.zeros((100, 100), DType::F32))?;
    let clone = made.clone();
    let stored = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
    context.record_err::<()>(Err(stored));
    drop(made);
    assert_eq!(live(&pool), 0);
    assert_eq!(context.check_err(), Err(stored), "it is kept");
    assert!(clone.affine(2.0, 1.0).is_err());
    drop(clone);
    device.synchronize()?;
    context.check_err()?;
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn shape_without_memory_is_refused() -> Result<()> {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let memory = Memory::new(&pool, &device)?;
    for shape in [(1, 8, 0, 128), (1 << 32, 1 << 32, 1, 1)] {
        let refused = block_on(memory.zeros(shape, DType::BF16)).unwrap_err();
        assert!(matches!(refused, MemoryError::Shape { .. }), "{refused}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn device_on_streams_of_threads_is_refused() -> Result<()> {
    let (_, pool) = device_and_pool(64 * MIB)?;
    let refused = Memory::new(&pool, &Device::new_cuda(0)?).unwrap_err();
    assert!(matches!(refused, MemoryError::Stream(_)), "{refused}");
    assert!(Memory::new(&pool, &Device::Cpu).is_err());
    Ok(())
}
