//! One function of a library, over cudarc without a pool, a pool, a reservation and the pool of a block, on a GPU. It runs
//! there by `cargo test -p weirpool-alloc --features cudarc --test gpu -- --ignored`.

use cudarc::driver::{CudaStream, result};
use futures::executor::block_on;
use std::error::Error;
use std::sync::Arc;
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_alloc::{MemoryBlock, OnStream, StreamMemory};

type Outcome<T> = Result<T, Box<dyn Error>>;

const BYTES: usize = 8 << 20;

/// The library: fills scratch memory with a byte and copies it to its output.
async fn filled<M: StreamMemory<Stream = Arc<CudaStream>>>(
    memory: &M,
    byte: u8,
) -> Outcome<M::Block> {
    let scratch = memory.allocate(BYTES as u64).await?;
    let output = memory.allocate(BYTES as u64).await?;
    let stream = memory.stream().cu_stream();
    let (from, to) = (scratch.address().to_bits(), output.address().to_bits());
    // SAFETY: both blocks have that many bytes, and are freed behind this work.
    unsafe {
        result::memset_d8_async(from, byte, BYTES, stream)?;
        result::memcpy_dtod_async(to, from, BYTES, stream)?;
    }
    Ok(output)
}

/// Calls the library often; each call may take over the scratch memory of the one before.
fn serve<M: StreamMemory<Stream = Arc<CudaStream>>>(memory: &M) -> Outcome<M::Block> {
    let mut outputs = Vec::new();
    for round in 0..8 {
        outputs.push((round, block_on(filled(memory, round))?));
    }
    let mut copy = vec![0xff; BYTES];
    for (round, output) in &outputs {
        // SAFETY: as above; the stream is awaited before the copy is read.
        unsafe {
            let from = output.address().to_bits();
            result::memcpy_dtoh_async(&mut copy, from, memory.stream().cu_stream())?;
        }
        memory.stream().synchronize()?;
        assert!(copy.iter().all(|byte| byte == round), "round {round}");
    }
    Ok(outputs.pop().expect("eight").1)
}

#[test]
#[ignore = "needs a GPU"]
fn library_runs_on_cudarc_a_pool_a_reservation_and_the_pool_of_a_block() -> Outcome<()> {
    let device = CudaDevice::new(0)?;
    let pool = Pool::builder(device.clone()).capacity(256 << 20).build()?;
    let work = device.create_stream()?;
    drop(serve(&work)?);
    drop(block_on(work.allocate(0))?);
    let on_pool = OnStream::of_pool(&pool, work.clone())?;
    let block = serve(&on_pool)?;
    let reservation = block_on(pool.reserve(128 << 20))?;
    drop(serve(&OnStream::of_reservation(
        &reservation,
        work.clone(),
    )?)?);
    assert_eq!(reservation.left(), 128 << 20);
    let of_block = OnStream::of_block(&block, work)?;
    assert_eq!(of_block.registered().id(), on_pool.registered().id());
    drop(serve(&of_block)?);
    Ok(())
}
