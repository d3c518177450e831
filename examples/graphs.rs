//! A decode step as a graph: `cargo run --release --features cuda --example graphs [layers] [rounds]`.
//!
//! A step has 32 layers by default. Each layer allocates two activations, runs two small kernels on them, and frees the
//! first one. The step is run in four ways, by turns:
//!
//! | way | memory | work |
//! |---|---|---|
//! | `submitted, pool` | allocated from a pool in each step | submitted in each step |
//! | `submitted, fixed` | allocated once, without a pool | submitted in each step |
//! | `graph, pool` | allocated from the pool in the capture | launched as one graph |
//! | `graph, fixed` | allocated once, without a pool | launched as one graph |
//!
//! All of them must give the same numbers, even if other work takes the rest of the pool between two launches.

use anyhow::{Context, ensure};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::cuda::CudaDevice;
use weirpool::{Pool, Stream, Unordered};

const COUNT: u32 = 64 << 10;
const STEPS: u32 = 50;
const CAPACITY: u64 = 256 << 20;

const SOURCE: &str = r#"
extern "C" __global__ void layer(const float* from, float* to, unsigned count, float factor) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) to[at] = from[at] * factor + 1.0f;
}
"#;

/// The kernel and the memory of a step.
struct Model {
    layers: usize,
    kernel: CudaFunction,
    work: Arc<CudaStream>,
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
}

impl Model {
    /// Submits a step whose activations come from the pool.
    fn step(&mut self, pool: &Pool, stream: &Stream) -> anyhow::Result<()> {
        let take = || pool.try_allocate(stream, u64::from(COUNT) * 4);
        let mut hidden = take()?;
        let (kernel, work, factor) = (&self.kernel, &self.work, 0.5f32);
        let shape = LaunchConfig::for_num_elems(COUNT);
        let mut first = work.launch_builder(kernel);
        let to = stream.record_use(Unordered::Once(&hidden))?;
        first.arg(&self.input).arg(&to).arg(&COUNT).arg(&factor);
        // SAFETY: both ranges have `COUNT` floats.
        unsafe { first.launch(shape) }?;
        for _ in 0..self.layers {
            let (inner, next) = (take()?, take()?);
            for (from, to) in [(&hidden, &inner), (&inner, &next)] {
                let (from, to) = (
                    stream.record_use(Unordered::Once(from))?,
                    stream.record_use(Unordered::Once(to))?,
                );
                let mut launch = work.launch_builder(kernel);
                launch.arg(&from).arg(&to).arg(&COUNT).arg(&factor);
                // SAFETY: as above.
                unsafe { launch.launch(shape) }?;
            }
            hidden = next;
        }
        let from = stream.record_use(Unordered::Once(&hidden))?;
        let mut last = work.launch_builder(kernel);
        last.arg(&from)
            .arg(&mut self.output)
            .arg(&COUNT)
            .arg(&factor);
        // SAFETY: as above.
        unsafe { last.launch(shape) }?;
        Ok(())
    }

    /// Submits the same step with activations that are allocated once.
    fn step_with(&mut self, activations: &mut [CudaSlice<f32>; 3]) -> anyhow::Result<()> {
        let (kernel, work, factor) = (&self.kernel, &self.work, 0.5f32);
        let layer = |from: &CudaSlice<f32>, to: &mut CudaSlice<f32>| {
            let mut launch = work.launch_builder(kernel);
            launch.arg(from).arg(to).arg(&COUNT).arg(&factor);
            // SAFETY: both ranges have `COUNT` floats.
            unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT)) }.map(drop)
        };
        let [hidden, inner, next] = activations;
        layer(&self.input, hidden)?;
        for _ in 0..self.layers {
            layer(hidden, inner)?;
            layer(inner, next)?;
            std::mem::swap(hidden, next);
        }
        layer(hidden, &mut self.output)?;
        Ok(())
    }

    fn answer(&self) -> anyhow::Result<Vec<f32>> {
        Ok(self.work.clone_dtoh(&self.output)?)
    }

    /// Returns the average time of `STEPS` steps.
    fn timed(
        &mut self,
        mut step: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        self.work.synchronize()?;
        let start = Instant::now();
        for _ in 0..STEPS {
            step(self)?;
        }
        self.work.synchronize()?;
        Ok(start.elapsed() / STEPS)
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse());
    let layers = arguments.next().transpose()?.unwrap_or(32);
    let rounds: usize = arguments.next().transpose()?.unwrap_or(9);
    let device = match CudaDevice::new(0) {
        Ok(device) => device,
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    println!("{}", device.description());
    // SAFETY: all work of cudarc's slices here is on one stream.
    unsafe { device.context().disable_event_tracking() };
    let module = device
        .context()
        .load_module(cudarc::nvrtc::compile_ptx(SOURCE)?)?;
    let pool = Pool::builder(device.clone()).capacity(CAPACITY).build()?;
    let (stream, other) = (pool.create_stream()?, pool.create_stream()?);
    let work = device
        .stream(stream.raw())
        .context("a stream of the pool")?;
    let numbers: Vec<f32> = (0..COUNT).map(|n| n as f32).collect();
    let mut model = Model {
        layers,
        kernel: module.load_function("layer")?,
        input: work.clone_htod(&numbers)?,
        output: work.alloc_zeros(COUNT as usize)?,
        work: work.clone(),
    };
    let mut fixed = [(); 3].map(|()| work.alloc_zeros::<f32>(COUNT as usize).expect("memory"));

    model.step(&pool, &stream)?;
    let expected = model.answer()?;
    model.step_with(&mut fixed)?;
    ensure!(
        model.answer()? == expected,
        "fixed memory gives other numbers"
    );

    let capture = pool.capture(&stream)?;
    model.step(&pool, &stream)?;
    let graph = capture.end()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    work.begin_capture(mode)?;
    model.step_with(&mut fixed)?;
    let fixed_graph = work.end_capture(CUgraphInstantiate_flags(0))?;
    let fixed_graph = fixed_graph.context("a graph")?;

    // Other work overwrites all other memory of the pool between two launches.
    for launch in 0..100 {
        let mut held = Vec::new();
        while let Ok(mut buffer) = pool.buffer::<u8>(&other, 4 << 20).try_now() {
            buffer.as_slice_mut().fill(&other, weirpool::Fill::Poison)?;
            held.push(buffer);
        }
        ensure!(!held.is_empty(), "no memory is left for other work");
        work.memset_zeros(&mut model.output)?;
        graph.launch(&stream)?;
        ensure!(
            model.answer()? == expected,
            "launch {launch} gives other numbers"
        );
    }

    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        times[0].push(model.timed(|model| model.step(&pool, &stream))?);
        times[1].push(model.timed(|model| model.step_with(&mut fixed))?);
        times[2].push(model.timed(|_| Ok(graph.launch(&stream)?))?);
        times[3].push(model.timed(|_| Ok(fixed_graph.launch()?))?);
        ensure!(model.answer()? == expected, "the numbers changed");
    }
    println!(
        "{layers} layers, {} kernels; medians of {rounds} rounds of {STEPS} steps",
        2 * layers + 2
    );
    let ways = [
        "submitted, pool",
        "submitted, fixed",
        "graph, pool",
        "graph, fixed",
    ];
    for (way, times) in ways.iter().zip(&mut times) {
        times.sort_unstable();
        println!("{way:18} {:>10.1?} a step", times[times.len() / 2]);
    }
    println!("memory of the graph: {} bytes", graph.memory().size());
    drop(graph);
    let start = Instant::now();
    while pool.inspect().statistics().in_graphs > 0 {
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "the memory is not released"
        );
        work.synchronize()?;
        std::thread::yield_now();
    }
    println!("released {:.1?} after the graph", start.elapsed());
    Ok(())
}
