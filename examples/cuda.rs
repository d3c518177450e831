//! A kernel on memory that was awaited: `cargo run --release --features cuda --example cuda`.
//!
//! Two streams share memory for one request at a time; each doubles its numbers on the GPU and has them
//! back.

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use weirpool::device::cuda::CudaDevice;
use weirpool::{Pool, Stream};

const COUNT: u32 = 8 << 20;
const BYTES: u64 = COUNT as u64 * 4;

const SOURCE: &str = r#"
extern "C" __global__ void twice(float* numbers, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) numbers[at] *= 2.0f;
}
"#;

async fn request(
    pool: &Pool,
    stream: &Stream,
    device: &CudaDevice,
    twice: &CudaFunction,
    value: f32,
) -> anyhow::Result<f32> {
    let block = pool.allocate(stream, BYTES).await?; // waits for the other request to end
    let numbers = value.to_ne_bytes().repeat(COUNT as usize);
    let _upload = block.upload(stream, 0, &numbers)?;

    let work = device.stream(stream.raw()).expect("a stream of the pool's");
    let argument = block.on(stream)?; // notes the use: it cannot be forgotten
    let mut launch = work.launch_builder(twice);
    launch.arg(&argument).arg(&COUNT);
    // SAFETY: the kernel writes `COUNT` floats from the address on, which is what the block has.
    unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT)) }?;

    let last = block.download(stream, BYTES - 4..BYTES)?.await?;
    Ok(f32::from_ne_bytes(last[..].try_into()?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let device = match CudaDevice::new(0) {
        Ok(device) => device,
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    println!("{}", device.description());
    let module = device
        .context()
        .load_module(cudarc::nvrtc::compile_ptx(SOURCE)?)?;
    let twice = module.load_function("twice")?;

    let pool = Pool::builder(device.clone()).capacity(BYTES).build()?;
    let streams = [pool.create_stream()?, pool.create_stream()?];
    let requests = (0..16).map(|n| request(&pool, &streams[n % 2], &device, &twice, n as f32));
    for (n, answer) in futures::future::join_all(requests)
        .await
        .into_iter()
        .enumerate()
    {
        let answer = answer?;
        println!("twice {n} is {answer}");
        assert_eq!(answer, 2.0 * n as f32);
    }
    println!("{:#?}", pool.statistics());
    Ok(())
}
