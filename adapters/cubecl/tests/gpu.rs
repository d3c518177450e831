//! A kernel of CubeCL on memory of a pool, on a GPU with NVRTC.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;
use cubecl_cuda::{CudaRuntime, GpuAllocator};
use cubecl_server::runtime::Runtime;
use std::error::Error;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_below_cubecl::PoolAllocator;

const COUNT: usize = 1 << 20;

#[cube(launch)]
fn add_one(input: &[f32], output: &mut [f32]) {
    if ABSOLUTE_POS < output.len() {
        output[ABSOLUTE_POS] = input[ABSOLUTE_POS] + 1.0;
    }
}

#[test]
#[ignore = "needs a GPU"]
fn buffers_of_kernels_are_in_memory_of_the_pool() -> Result<(), Box<dyn Error>> {
    let device = CudaDevice::new(0)?;
    let pool = Pool::builder(device.clone()).capacity(4 << 30).build()?;
    let allocator = PoolAllocator::new(&device, &pool, Duration::from_secs(5));
    let allocator = Arc::new(allocator);
    assert!(cubecl_cuda::set_gpu_allocator(allocator.clone()).is_ok());
    assert!(cubecl_cuda::set_gpu_allocator(allocator).is_err());
    let client = CudaRuntime::client(&Default::default());
    for round in 0..20 {
        let values: Vec<f32> = (0..COUNT).map(|n| (n + round) as f32).collect();
        let input = client.create_from_slice(f32::as_bytes(&values));
        let output = client.empty(COUNT * size_of::<f32>());
        add_one::launch(
            &client,
            CubeCount::Static(COUNT as u32 / 256, 1, 1),
            CubeDim::new_1d(256),
            // SAFETY: both buffers have this many elements.
            unsafe { BufferArg::from_raw_parts(input.clone(), COUNT) },
            // SAFETY: as above.
            unsafe { BufferArg::from_raw_parts(output.clone(), COUNT) },
        );
        let bytes = client.read_one(output).expect("the result");
        let expected = values.iter().map(|value| value + 1.0);
        assert!(f32::from_bytes(&bytes).iter().copied().eq(expected));
    }
    let statistics = pool.inspect().statistics();
    println!(
        "{} allocations, {} live",
        statistics.allocations, statistics.live_blocks
    );
    assert!(statistics.used.high >= 2 * (COUNT * size_of::<f32>()) as u64);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn first_call_without_memory_fails_at_once_and_the_second_waits() -> Result<(), Box<dyn Error>> {
    const WAIT: Duration = Duration::from_millis(500);
    let device = CudaDevice::new(0)?;
    let pool = Pool::builder(device.clone()).capacity(4 << 20).build()?;
    let allocator = PoolAllocator::new(&device, &pool, WAIT);
    // The default stream.
    let stream = null_mut();
    let held = allocator.alloc(stream, 4 << 20)?;
    for _ in 0..2 {
        let began = Instant::now();
        assert!(allocator.alloc(stream, 4 << 20).is_err());
        assert!(began.elapsed() < WAIT);
        assert!(allocator.alloc(stream, 4 << 20).is_err());
        assert!(began.elapsed() >= WAIT);
    }
    assert!(allocator.alloc(stream, 4 << 20).is_err());
    // SAFETY: no work uses it.
    unsafe { allocator.free(stream, held) }?;
    let again = allocator.alloc(stream, 4 << 20)?;
    // SAFETY: as above.
    unsafe { allocator.free(stream, again) }?;
    Ok(())
}
