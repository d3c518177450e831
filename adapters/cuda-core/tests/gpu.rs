//! Buffers of a pool in operations of cuda-async, on a GPU: `cargo test --test gpu -- --ignored`.
//!
//! | class of fault | test |
//! |---|---|
//! | memory is reused while an operation uses it, or before it is complete for its stream | `operations_wait_for_memory_and_see_their_own_bytes` |
//! | a buffer leaks, or is freed twice | each test compares the live blocks |
//! | a stream of cuda-core is used after its end | `blocks_follow_the_order_of_a_stream_of_cuda_core` |
//! | a pool of another context is taken | `pool_of_another_device_is_refused` |
//! | a default stream of another context is taken for that of the device | `streams_of_another_context_are_refused` |

use cuda_async::device_operation::{DeviceOp, value, with_context};
use cuda_async::error::DeviceError;
use cuda_core::{Context, RawDeviceBuffer, memory, sys};
use futures::executor::block_on;
use futures::future::try_join_all;
use futures::poll;
use std::error::Error;
use std::future::IntoFuture;
use std::ptr::null_mut;
use std::sync::Arc;
use weirpool::device::DeviceErrorKind;
use weirpool::device::cuda::CudaDevice;
use weirpool::{Pool, Upstream};
use weirpool_cuda_core::{CoreStream, Memory, MemoryError};

type Outcome = Result<(), Box<dyn Error>>;

const BYTES: usize = 64 << 20;
const TASKS: u8 = 64;

fn live(pool: &Pool) -> u64 {
    // cuda-core ends its uses on a thread of its own.
    for _ in 0..1000 {
        if pool.inspect().statistics().live_blocks == 0 {
            return 0;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    pool.inspect().statistics().live_blocks
}

/// An operation that fills a buffer, on a stream that cuda-async chooses.
fn filled(
    buffer: RawDeviceBuffer,
    byte: u8,
) -> impl DeviceOp<Output = Result<RawDeviceBuffer, DeviceError>> {
    with_context(move |context| {
        let fill = || {
            context.retain_buffer(buffer.clone(), true)?;
            let stream = context.get_cuda_stream().cu_stream();
            for _ in 0..5 {
                // SAFETY: the buffer has this many bytes, and is kept until the operation is complete.
                unsafe {
                    memory::memset_d8_async(buffer.cu_deviceptr(), byte, buffer.len_bytes(), stream)
                }?;
            }
            Ok(())
        };
        let result = fill();
        value(result.map(|()| buffer))
    })
}

/// Returns whether every byte of a buffer, which no operation uses, is this one.
fn is_filled(buffer: &RawDeviceBuffer, byte: u8) -> Result<bool, Box<dyn Error>> {
    let stream = buffer.context().new_stream()?;
    let mut bytes = vec![!byte; buffer.len_bytes()];
    // SAFETY: both have this many bytes, and the stream is awaited before they are read.
    unsafe {
        memory::memcpy_dtoh_async(
            bytes.as_mut_ptr(),
            buffer.cu_deviceptr(),
            bytes.len(),
            stream.cu_stream(),
        )
    }?;
    stream.synchronize()?;
    Ok(bytes.iter().all(|found| *found == byte))
}

#[test]
#[ignore = "needs a GPU"]
fn operations_wait_for_memory_and_see_their_own_bytes() -> Outcome {
    let context = Context::new(0)?;
    // For 6 of 64 at once.
    let pool = Pool::builder(CudaDevice::new(0)?)
        .capacity(6 * BYTES as u64)
        .build()?;
    let memory = Memory::new(&pool, &context)?;
    let task = async |byte| {
        let buffer = memory.allocate(BYTES).await?;
        let buffer = filled(buffer, byte).await??;
        assert!(is_filled(&buffer, byte)?, "task {byte}");
        // Dropped while an operation uses it: cuda-async keeps the buffer until that is complete.
        let mut dropped = Box::pin(filled(buffer, !byte).into_future());
        let _ = poll!(dropped.as_mut());
        drop(dropped);
        Ok::<_, Box<dyn Error>>(())
    };
    block_on(try_join_all((0..TASKS).map(task)))?;
    let waits = pool.inspect().statistics().waits;
    println!("{} of {TASKS} waited", waits.served);
    assert!(waits.served >= u64::from(TASKS) - 12);
    assert_eq!(live(&pool), 0);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn blocks_follow_the_order_of_a_stream_of_cuda_core() -> Outcome {
    let context = Context::new(0)?;
    let device = CudaDevice::new(0)?;
    let pool = Pool::builder(device.clone())
        .capacity(2 * BYTES as u64)
        .build()?;
    let memory = Memory::new(&pool, &context)?;
    let core = CoreStream::new(&device, &context.new_stream()?)?;
    let stream = pool.register(&core)?;
    drop(core); // the pool keeps it
    block_on(async {
        for byte in 0..TASKS {
            let mut block = pool.allocate(&stream, BYTES as u64).await?;
            let filled = stream.submit(&mut block, |work: &CoreStream, block| {
                let handle = work.core().cu_stream();
                // SAFETY: the block has this many bytes.
                unsafe { memory::memset_d8_async(block.address().to_bits(), byte, BYTES, handle) }
            })?;
            filled.await??;
            let buffer = memory.adopt(block).expect("of this pool");
            assert_eq!(buffer.len_bytes(), BYTES);
            assert!(is_filled(&buffer, byte)?);
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    assert_eq!(live(&pool), 0);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn pool_of_another_device_is_refused() -> Outcome {
    let context: Arc<Context> = Context::new(0)?;
    let pool = Pool::builder(CudaDevice::new(0)?)
        .upstream(Upstream::Device)
        .capacity(BYTES as u64)
        .build()?;
    assert!(Memory::new(&pool, &context).is_ok());
    let simulated = weirpool::device::sim::SimDevice::new();
    let pool = Pool::builder(simulated).build()?;
    let refused = Memory::new(&pool, &context).unwrap_err();
    assert_eq!(refused, MemoryError::ForeignContext { ordinal: 0 });
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn streams_of_another_context_are_refused() -> Outcome {
    let device = CudaDevice::new(0)?;
    let primary = Context::new(0)?;
    assert!(CoreStream::new(&device, &primary.default_stream()).is_ok());
    let mut created = null_mut();
    // SAFETY: the context is never destroyed.
    let other = unsafe {
        let code = sys::cuCtxCreate_v4(&mut created, null_mut(), 0, primary.cu_device());
        assert_eq!(code, 0, "cuCtxCreate");
        Context::borrow_raw(created.cast(), primary.cu_device(), 0)
    };
    for stream in [other.default_stream(), other.new_stream()?] {
        let refused = CoreStream::new(&device, &stream).unwrap_err();
        assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
    }
    Ok(())
}
