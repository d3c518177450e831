//! A kernel on memory that a request waited for: `cargo run --release --features cuda --example cuda`.
//!
//! Two streams share memory for one request at a time. cudarc copies the numbers there, a kernel doubles them, and they
//! come back on a third stream: the pool orders the streams.

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
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
    [stream, back]: [&Stream; 2],
    device: &CudaDevice,
    twice: &CudaFunction,
    value: f32,
) -> anyhow::Result<f32> {
    // Waits until the other request has ended.
    let mut numbers = pool.buffer::<f32>(stream, COUNT as usize).await?;
    let work = device.stream(stream.raw()).expect("a stream of the pool");
    work.memcpy_htod(&vec![value; COUNT as usize], &mut numbers)?; // as one of cudarc's slices

    let doubling = stream.task("double");
    // The submission records the use, so it cannot be forgotten.
    doubling.try_submit(&mut numbers, |work: &CudaStream, numbers| {
        let mut launch = work.launch_builder(twice);
        launch.arg(&numbers).arg(&COUNT);
        // SAFETY: the kernel accesses the `COUNT` floats of the buffer.
        unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT)) }?;
        Ok::<_, anyhow::Error>(())
    })?;

    let doubled = numbers.read(back).await?; // after the kernel, though on another stream
    Ok(doubled[doubled.len() - 1])
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
    let back = pool.create_stream()?;
    let requests = (0..16).map(|n| {
        let streams = [&streams[n % 2], &back];
        request(&pool, streams, &device, &twice, n as f32)
    });
    for (n, answer) in futures::future::join_all(requests)
        .await
        .into_iter()
        .enumerate()
    {
        let answer = answer?;
        println!("twice {n} is {answer}");
        assert_eq!(answer, 2.0 * n as f32);
    }
    println!("{:#?}", pool.inspect().statistics());
    Ok(())
}
