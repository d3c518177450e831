//! A GPU and its kernels, which are compiled at run time.
//!
//! A step occupies its share of the GPU while it runs: one block of threads on each of its multiprocessors, with all
//! shared memory of the multiprocessor, so that no second block fits. The number of steps that run at once is the
//! number of places, up to rounding to whole multiprocessors.

#[path = "../../crates/cli/src/device/cuda/driver.rs"]
mod driver;

use crate::kernels::{Kernels, Machine, Step};
use crate::options::Options;
use anyhow::Context;
use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute_enum};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
pub(crate) use driver::prepare;
use std::sync::Arc;
use weirpool::device::Argument;
use weirpool::device::cuda::CudaDevice;

/// A GPU, for all services.
pub(crate) struct Gpu {
    device: CudaDevice,
    kernels: Arc<CudaKernels>,
}

impl Gpu {
    /// Opens the first GPU. Call [`prepare`] before, while there is no other thread.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no device, or kernels cannot be compiled.
    pub(crate) fn open(options: &Options) -> anyhow::Result<Self> {
        let device = CudaDevice::new(0)?;
        let kernels = CudaKernels::compile(device.context(), options.limits.places)?;
        let kernels = Arc::new(kernels);
        Ok(Self { device, kernels })
    }

    pub(crate) fn machine(&self) -> Machine<CudaStream> {
        Machine {
            device: Arc::new(self.device.clone()),
            kernels: self.kernels.clone(),
            virtual_time: None,
        }
    }
}

const SOURCE: &str = include_str!("kernels.cu");

/// The kernels of `kernels.cu`.
pub(crate) struct CudaKernels {
    load: CudaFunction,
    read: CudaFunction,
    step: CudaFunction,
    share: LaunchConfig,
}

impl CudaKernels {
    /// Compiles the kernels.
    ///
    /// # Errors
    /// Returns an error if there is no NVRTC, or if NVRTC or the driver refuses the source.
    fn compile(context: &Arc<CudaContext>, places: usize) -> anyhow::Result<Self> {
        let module = driver::compile(context, SOURCE)?;
        let function = |name| {
            let function = module.load_function(name);
            function.with_context(|| format!("the kernel `{name}` cannot be loaded"))
        };
        let shared = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared = context.attribute(shared)?;
        let all = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let all = context.attribute(all)?;
        let step = function("step")?;
        let limit = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        step.set_attribute(limit, shared)?;
        Ok(Self {
            load: function("load")?,
            read: function("read")?,
            step,
            share: share(all, shared, places)?,
        })
    }

    fn read(&self, work: &CudaStream, page: &Argument<'_>) -> anyhow::Result<()> {
        let bytes = page.size();
        let mut launch = work.launch_builder(&self.read);
        launch.arg(page).arg(&bytes);
        // SAFETY: the kernel reads the first and the last of the page's `bytes` bytes; no block is empty.
        unsafe { launch.launch(threads(1, 1)) }?;
        Ok(())
    }
}

impl Kernels<CudaStream> for CudaKernels {
    fn load(&self, work: &CudaStream, weights: Argument<'_>) -> anyhow::Result<()> {
        let bytes = weights.size();
        let mut launch = work.launch_builder(&self.load);
        launch.arg(&weights).arg(&bytes);
        // SAFETY: the kernel writes whole words within the `bytes` bytes of the weights, which it may write.
        unsafe { launch.launch(threads(1024, 256)) }?;
        Ok(())
    }

    fn step(&self, work: &CudaStream, step: &Step<'_>) -> anyhow::Result<()> {
        for page in &step.earlier {
            self.read(work, page)?;
        }
        let (activation_bytes, page_bytes) = (step.activation.size(), step.page.size());
        let time = step.time.as_nanos() as u64;
        let mut launch = work.launch_builder(&self.step);
        launch.arg(&step.weights);
        launch.arg(&step.activation).arg(&activation_bytes);
        launch.arg(&step.page).arg(&page_bytes);
        launch.arg(&time);
        // SAFETY: the kernel reads the first byte of the weights, and accesses the first and the last byte of the
        // other two blocks; no block is empty.
        unsafe { launch.launch(self.share) }?;
        Ok(())
    }
}

fn threads(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Returns a step's share of a GPU with this many multiprocessors and this much shared memory on each.
fn share(multiprocessors: i32, shared: i32, places: usize) -> anyhow::Result<LaunchConfig> {
    let blocks = u32::try_from(multiprocessors)? / u32::try_from(places)?;
    Ok(LaunchConfig {
        shared_mem_bytes: u32::try_from(shared)?,
        ..threads(blocks.max(1), 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals;
    use crate::kind::Kind;
    use crate::progress::Progress;
    use crate::run;
    use clap::Parser;

    #[test]
    fn missing_driver_is_reported() {
        let options = Options::parse_from(["inference", "--device=cuda"]);
        let opened = Gpu::open(&options).map(drop);
        let device = CudaDevice::new(0).map(drop);
        if let Err(error) = device {
            assert_eq!(opened.unwrap_err().to_string(), error.to_string());
        }
    }

    #[test]
    fn gpu_serves_all_requests_and_loses_no_memory() {
        if let Err(error) = CudaDevice::new(0) {
            eprintln!("skipped: {error}");
            return;
        }
        if !driver::has_compiler() {
            eprintln!("skipped: there is no NVRTC");
            return;
        }
        let arguments = [
            "inference",
            "--device=cuda",
            "--requests=40",
            "--step=200us",
        ];
        let options = Options::parse_from(arguments);
        let requests = arrivals::requests(&options);
        let gpu = Gpu::open(&options).unwrap();
        for kind in Kind::ALL {
            let progress = Progress::new(kind.name(), 40, true);
            let outcome = run::run(gpu.machine(), &options, kind, &requests, &progress).unwrap();
            let served = outcome.records.iter().filter(|one| one.stay.is_some());
            assert!(kind == Kind::Retrying || served.count() == 40, "{kind:?}");
        }
    }

    #[test]
    fn places_share_the_multiprocessors() {
        let blocks = |places| share(132, 1 << 17, places).unwrap().grid_dim.0;
        assert_eq!([1, 4, 5, 132, 1000].map(blocks), [132, 33, 26, 1, 1]);
    }
}
