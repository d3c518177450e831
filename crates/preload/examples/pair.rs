//! Times a pair of an allocation and a free in the order of a stream: the pool's own in this process, and that of the
//! driver's functions as any program calls them. Under `weirpool run` those are served by the pool of the library.
//!
//! ```sh
//! weirpool run -- target/release/examples/pair
//! ```

use cudarc::driver::sys;
use std::time::Instant;
use weirpool::Pool;
use weirpool::device::cuda::CudaDevice;
use weirpool_compat::RawPool;

const ROUNDS: u32 = 300_000;

fn time(name: &str, bytes: usize, mut pair: impl FnMut(usize)) {
    // The best of some turns: the machine has other users.
    let turn = |_| {
        let begin = Instant::now();
        (0..ROUNDS / 10).for_each(|_| pair(bytes));
        begin.elapsed() * 10 / ROUNDS
    };
    let best = (0..10).map(turn).min().expect("ten turns");
    println!("{bytes:>9} bytes, {name:<28} {best:?}");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = CudaDevice::new(0)?;
    let pool = Pool::builder(device.clone()).tuning(|tuning| tuning.lane_bytes = 256 << 20);
    let pool = pool.sealing(weirpool::Sealing::OnDemand).build()?;
    let raw = RawPool::new(&pool);
    let work = device.create_stream()?;
    let stream = pool.register(&work)?;
    for bytes in [4096, 1 << 20, 64 << 20] {
        time("the pool's own", bytes, |bytes| {
            drop(
                pool.allocate(&stream, bytes as u64)
                    .blocking()
                    .expect("memory"),
            );
        });
        time("the pool's own, by addresses", bytes, |bytes| {
            let address = raw.allocate(&work, bytes as u64, None).expect("memory");
            raw.free(address, &work).expect("its address");
        });
        time("the driver's functions", bytes, |bytes| {
            let mut address = 0;
            // SAFETY: the stream lives, and the address is freed once.
            let status = unsafe {
                let status = sys::cuMemAllocAsync(&mut address, bytes, work.cu_stream());
                (status, sys::cuMemFreeAsync(address, work.cu_stream()))
            };
            assert_eq!(
                status,
                (sys::CUresult::CUDA_SUCCESS, sys::CUresult::CUDA_SUCCESS)
            );
        });
    }
    Ok(())
}
