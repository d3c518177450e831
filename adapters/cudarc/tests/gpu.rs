//! cudarc's own functions on memory of a pool, on a GPU.

use cudarc::driver::{CudaContext, CudaSlice};
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_below_cudarc::PoolAllocator;

type Outcome = Result<(), Box<dyn Error>>;

const MIB: usize = 1 << 20;
const ROUNDS: usize = 20;
/// The bytes of a slice that are checked.
const PART: usize = 8192;
const WAIT: Duration = Duration::from_secs(20);

fn pool(capacity: usize) -> Result<Pool, Box<dyn Error>> {
    let builder = Pool::builder(CudaDevice::new(0)?);
    Ok(builder.capacity(capacity as u64).build()?)
}

fn live(pool: &Pool) -> u64 {
    pool.inspect().statistics().live_blocks
}

#[test]
#[ignore = "needs a GPU"]
fn slices_are_blocks_of_the_pool_and_those_of_before_are_the_drivers() -> Outcome {
    let pool = pool(256 * MIB)?;
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let before = stream.clone_htod(&[1u8, 2, 3])?;
    let allocator = || Arc::new(PoolAllocator::new(&pool, WAIT));
    context.set_allocator(allocator()).expect("the first one");
    assert!(context.set_allocator(allocator()).is_err());

    let zeros = stream.alloc_zeros::<f32>(1000)?;
    let ones = stream.clone_htod(&vec![1f32; 1000])?;
    let copy = ones.try_clone()?;
    assert_eq!(live(&pool), 3);
    assert_eq!(stream.clone_dtoh(&zeros)?, vec![0.0; 1000]);
    drop(ones);
    assert_eq!(stream.clone_dtoh(&copy)?, vec![1.0; 1000]);
    assert_eq!(stream.clone_dtoh(&before)?, [1, 2, 3]);
    drop((zeros, before));
    assert_eq!(live(&pool), 1);

    // It is found again by its address.
    let address = copy.leak();
    assert_eq!(live(&pool), 1);
    // SAFETY: it is of 1000 such elements.
    let again: CudaSlice<f32> = unsafe { stream.upgrade_device_ptr(address, 1000) };
    assert_eq!(stream.clone_dtoh(&again)?, vec![1.0; 1000]);
    drop(again);
    assert_eq!(live(&pool), 0);
    drop(stream.null::<u8>());
    context.check_err()?;
    context.synchronize()?;
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn threads_wait_for_memory_and_see_their_own_bytes() -> Outcome {
    // For 6 slices of 16 threads, and the results.
    let pool = pool((6 * 64 + 16) * MIB)?;
    let context = CudaContext::new(0)?;
    let allocator = Arc::new(PoolAllocator::new(&pool, WAIT));
    context.set_allocator(allocator).expect("the first one");
    thread::scope(|scope| {
        for thread in 0..16u8 {
            let context = &context;
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                let mut results = stream.alloc_zeros::<u8>(ROUNDS * PART).unwrap();
                let byte = |round| thread * 16 + round as u8 % 16;
                for round in 0..ROUNDS {
                    let mut slice = stream.alloc_zeros::<u8>(64 * MIB).unwrap();
                    let (mut low, mut high) = slice.split_at_mut(32 * MIB);
                    let bytes = &[byte(round); PART / 2];
                    stream.memcpy_htod(bytes, &mut low).unwrap();
                    // The device is behind: the slice is dropped long before the last copy.
                    for _ in 0..8 {
                        stream.memcpy_dtod(&low, &mut high).unwrap();
                    }
                    let mut result = results.slice_mut(round * PART..(round + 1) * PART);
                    let part = high.slice(..PART);
                    stream.memcpy_dtod(&part, &mut result).unwrap();
                }
                let results = stream.clone_dtoh(&results).unwrap();
                stream.synchronize().unwrap();
                for (round, part) in results.chunks(PART).enumerate() {
                    let (begin, rest) = part.split_at(PART / 2);
                    assert!(begin.iter().all(|found| *found == byte(round)));
                    assert!(rest.iter().all(|found| *found == 0));
                }
            });
        }
    });
    context.check_err()?;
    let statistics = pool.inspect().statistics();
    let allocations = statistics.allocations;
    println!("{} of {allocations} waited", statistics.waits.served);
    assert_eq!(allocations, 16 * (1 + ROUNDS as u64));
    assert_eq!(live(&pool), 0);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn stream_that_the_pool_refuses_is_served_by_the_driver() -> Outcome {
    let pool = pool(64 * MIB)?;
    let context = CudaContext::new(0)?;
    let allocator = Arc::new(PoolAllocator::new(&pool, WAIT));
    context.set_allocator(allocator).expect("the first one");
    let of_thread = context.per_thread_stream();
    let slice = of_thread.clone_htod(&[7u8; 64])?;
    assert_eq!(live(&pool), 0);
    assert_eq!(of_thread.clone_dtoh(&slice)?, [7; 64]);
    drop(slice);
    let default = context.default_stream();
    let slice = default.clone_htod(&[7u8; 64])?;
    assert_eq!(live(&pool), 1);
    drop(slice);
    assert_eq!(live(&pool), 0);
    context.check_err()?;
    // More than the pool ever has.
    assert!(default.alloc_zeros::<u8>(65 * MIB).is_err());
    Ok(())
}
