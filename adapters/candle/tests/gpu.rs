//! Tensors in memory of a pool, on a GPU: `cargo test --test gpu -- --ignored`.
//!
//! | class of fault | test |
//! |---|---|
//! | the driver frees memory of the pool, or the pool reuses it under candle's work | `requests_wait_for_their_keys_and_values`, on two streams: each request drops its memory while its work runs, and all answers are compared with the CPU's at the end |
//! | a stored error of cudarc keeps a drop from returning the memory | `tensor_is_freed_although_an_error_is_stored` |
//! | a tensor without elements is never freed, or a size wraps | `shape_without_memory_is_refused` |
//! | a clone uses memory that is gone | `clone_of_a_dropped_tensor_fails` |
//! | a stream in no order is taken | `device_on_streams_of_threads_is_refused` |

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use futures::executor::block_on;
use futures::future::try_join_all;
use std::future::poll_fn;
use std::mem::replace;
use std::task::Poll;
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_candle::{Memory, MemoryError, PoolTensor};

const MIB: u64 = 1 << 20;
const REQUESTS: usize = 64;
const LAYERS: usize = 4;
const WIDTH: usize = 256;
const LENGTH: usize = 8192;

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

/// A weight that is the same in each run.
fn seeded(seed: usize) -> Result<Tensor> {
    let value = |n: usize| ((n * 31 + seed * 17) % 97) as f32 / 970.0 - 0.05;
    let values: Vec<_> = (0..WIDTH * WIDTH).map(value).collect();
    Ok(Tensor::from_vec(values, (WIDTH, WIDTH), &Device::Cpu)?)
}

/// The caches of a layer: the keys and values of all tokens so far.
struct Caches<'a> {
    keys: &'a Tensor,
    values: &'a Tensor,
}

/// Attention over some tokens, with the caches of each layer.
fn generate(weights: &[&Tensor], caches: &[Caches<'_>], begin: usize) -> Result<Tensor> {
    let device = weights[0].device();
    let mut x = Tensor::full(begin as f32 / 64.0 + 0.5, (1, WIDTH), device)?;
    for token in 0..4 {
        for (layer, Caches { keys, values }) in weights.iter().zip(caches) {
            let projected = x.matmul(layer)?;
            keys.slice_set(&projected, 0, token)?;
            values.slice_set(&(&projected * 0.5)?, 0, token)?;
            let scores = x.matmul(&keys.narrow(0, 0, token + 1)?.t()?)?;
            let mixed = scores.matmul(&values.narrow(0, 0, token + 1)?)?;
            x = (mixed.tanh()? + projected)?.tanh()?;
        }
    }
    Ok(x.flatten_all()?)
}

#[test]
#[ignore = "needs a GPU"]
fn requests_wait_for_their_keys_and_values() -> Result<()> {
    // 8 MiB for each cache, 64 MiB for a request: for 6 of 64, and the weights.
    let (device, pool) = device_and_pool(6 * 64 * MIB + 8 * MIB)?;
    // Each with a stream of its own, so that memory passes from one to the other.
    let devices = [device, Device::new_cuda_with_stream(0)?];
    let memories = devices.each_ref().map(|device| Memory::new(&pool, device));
    let memories = memories.into_iter().collect::<Result<Vec<_>, _>>()?;
    let on_cpu = (0..LAYERS).map(seeded).collect::<Result<Vec<_>>>()?;
    let weights = memories.iter().map(|memory| {
        block_on(try_join_all(
            on_cpu.iter().map(|weight| memory.copy(weight)),
        ))
    });
    let weights = weights.collect::<Result<Vec<_>, _>>()?;
    let request = async |n: usize| {
        let memory = &memories[n % 2];
        let weights: Vec<&Tensor> = weights[n % 2].iter().map(|weight| &**weight).collect();
        // All of a request at once: requests that hold some while they wait for more can deadlock.
        let all = memory
            .zeros((2 * LAYERS * LENGTH, WIDTH), DType::F32)
            .await?;
        let cache = |n: usize| all.narrow(0, n * LENGTH, LENGTH);
        let caches = (0..LAYERS).map(|layer| Ok((cache(2 * layer)?, cache(2 * layer + 1)?)));
        let caches = caches.collect::<Result<Vec<_>>>()?;
        let caches: Vec<_> = (caches.iter())
            .map(|(keys, values)| Caches { keys, values })
            .collect();
        yield_now().await;
        // The memory is dropped without waiting for the device.
        generate(&weights, &caches, n)
    };
    let answers = block_on(try_join_all((0..REQUESTS).map(request)))?;
    let waits = pool.inspect().statistics().waits;
    println!("{} of {REQUESTS} waited", waits.served);
    ensure!(waits.served as usize >= REQUESTS - 12);
    ensure!(
        live(&pool) as usize == 2 * LAYERS,
        "only the weights are left"
    );
    let on_cpu: Vec<_> = on_cpu.iter().collect();
    for (n, answer) in answers.iter().enumerate() {
        let make = || Tensor::zeros((LENGTH, WIDTH), DType::F32, &Device::Cpu);
        let made = (0..LAYERS).map(|_| Ok((make()?, make()?)));
        let made = made.collect::<Result<Vec<_>>>()?;
        let caches: Vec<_> = (made.iter())
            .map(|(keys, values)| Caches { keys, values })
            .collect();
        let expected = generate(&on_cpu, &caches, n)?.to_vec1::<f32>()?;
        let answer = answer.to_vec1::<f32>()?;
        let far = answer.iter().zip(&expected);
        let far = far.map(|(one, other)| (one - other).abs());
        ensure!(far.fold(0.0, f32::max) < 1e-3, "request {n}");
    }
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
