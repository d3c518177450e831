//! Two tasks with a stream each, and memory for only one of them at a time: the second waits, and neither
//! fails. Run it with `cargo run --example quickstart`.

use std::time::Duration;
use weirpool::Pool;
use weirpool::device::sim::{Operation, SimDevice, SimStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = SimDevice::new();
    let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;

    let tasks = ["first", "second"].map(|name| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let stream = pool.create_stream()?;
            let mut block = pool.allocate(&stream, 48 << 20).await?; // waits for memory instead of failing
            let kernel = Operation::new(Duration::from_millis(2));
            stream
                .task("kernel")
                .submit(&mut block, |work: &SimStream, block| {
                    work.submit(kernel.writes(block.address(), block.size())); // the device checks its order
                })?;
            println!("{name}: 48 MiB at {:#x}", block.address());
            block.deallocate().await?; // pending until the stream has passed this point
            anyhow::Ok(())
        })
    });
    for task in tasks {
        task.await??;
    }
    device.assert_ordered();
    let waits = pool.statistics().waits;
    println!(
        "{} waited, {:?} at most, on the device's clock",
        waits.served,
        waits.times.longest()
    );
    Ok(())
}
