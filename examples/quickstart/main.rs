//! Two tasks with a stream each, and memory for only one of them at a time: the second waits, and neither fails. Run it
//! with `cargo run --example quickstart`.

use std::time::Duration;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::{Pool, Statistics};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let waits = run().await?.waits;
    println!(
        "{} waited, {:?}, on the device's clock",
        waits.served,
        waits.times.longest()
    );
    Ok(())
}

async fn run() -> anyhow::Result<Statistics> {
    let device = SimDevice::new(); // or `CudaDevice::new(0)?`
    let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
    tokio::try_join!(compute(&pool, "first"), compute(&pool, "second"))?;
    device.assert_ordered(); // no kernel touched memory of the other one
    Ok(pool.inspect().statistics())
}

async fn compute(pool: &Pool, name: &str) -> anyhow::Result<()> {
    let stream = pool.create_stream()?;
    let mut block = pool.allocate(&stream, 48 << 20).await?; // waits for memory instead of failing
    println!("{name}: 48 MiB at {:#x}", block.address());
    let kernel = Operation::new(Duration::from_millis(2));
    let task = stream.submit(&mut block, |work: &SimStream, block| {
        work.submit(kernel.writes(block.address(), block.size()));
    })?;
    task.await?; // the device has run the kernel
    Ok(()) // here the block is freed, in stream order, and the other task gets its memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_task_waits_each_time() -> anyhow::Result<()> {
        for _ in 0..200 {
            assert_eq!(run().await?.waits.served, 1);
        }
        Ok(())
    }
}
