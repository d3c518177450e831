//! Bandwidth of copies between two GPUs, with access and without: `cargo run --release --features cuda --example
//! peer_copies`.
//!
//! Without access the driver stages each copy through the host. The time is that of `ROUNDS` consecutive copies on
//! one stream, from the submission of the first to the end of the last.

use std::time::Instant;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::list;
use weirpool::{Pool, Upstream};

const ROUNDS: u32 = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    for line in list() {
        println!("{line}");
    }
    let [Ok(first), Ok(second)] = [0, 1].map(CudaDevice::new) else {
        println!("skipped: this needs two GPUs");
        return Ok(());
    };
    println!(
        "{:>10}  {:>8}  {:>7}  {:>5}  GB/s",
        "memory", "MiB", "access", "by"
    );
    for upstream in [Upstream::Virtual, Upstream::Device] {
        for bytes in [1_u64 << 20, 16 << 20, 256 << 20] {
            for has_access in [false, true] {
                for by in [0, 1] {
                    let rate = measure([&first, &second], upstream, bytes, has_access, by).await?;
                    let kind = format!("{upstream:?}");
                    let end = ["source", "target"][by];
                    let mib = bytes >> 20;
                    println!("{kind:>10}  {mib:>8}  {has_access:>7}  {end:>6}  {rate:.1}");
                }
            }
        }
    }
    Ok(())
}

async fn measure(
    devices: [&CudaDevice; 2],
    upstream: Upstream,
    bytes: u64,
    has_access: bool,
    by: usize,
) -> anyhow::Result<f64> {
    let pool = |device: &CudaDevice| {
        let builder = Pool::builder(device.clone()).capacity(1 << 30);
        builder.upstream(upstream).build()
    };
    let pools = [pool(devices[0])?, pool(devices[1])?];
    if has_access {
        pools[0].peers().enable(devices[1])?;
        pools[1].peers().enable(devices[0])?;
    }
    let streams = [pools[0].create_stream()?, pools[1].create_stream()?];
    let mut from = pools[0].allocate(&streams[0], bytes).await?;
    let mut to = pools[1].allocate(&streams[1], bytes).await?;
    from.fill(&streams[0], 0x5a)?;
    from.copy_to(0..bytes, &mut to, 0, &streams[by])?.await?;
    let seen = to.download(&streams[1], 0..bytes)?.await?;
    anyhow::ensure!(
        seen.iter().all(|byte| *byte == 0x5a),
        "the copy has other bytes"
    );
    let start = Instant::now();
    for _ in 0..ROUNDS {
        drop(from.copy_to(0..bytes, &mut to, 0, &streams[by])?);
    }
    streams[by].synchronize().await?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(f64::from(ROUNDS) * bytes as f64 / seconds / 1e9)
}
