//! The kernels: compiled where they run, and launched.
//!
//! A step takes its share of the GPU for as long as it runs: one block of threads on each of its
//! multiprocessors, with all the shared memory that there is on one, so that no two blocks fit there. So
//! many steps run at once as there are places, give or take multiprocessors that cannot be shared out.

use super::driver;
use anyhow::Context;
use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute_enum};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Argument;

const SOURCE: &str = include_str!("kernels.cu");

/// The kernels of `kernels.cu`.
#[derive(Clone)]
pub(super) struct Kernels {
    load: CudaFunction,
    read: CudaFunction,
    step: CudaFunction,
    share: LaunchConfig,
}

impl Kernels {
    /// # Errors
    /// Returns an error if there is no NVRTC, or if NVRTC or the driver refuses the source.
    pub(super) fn compile(context: &Arc<CudaContext>, places: usize) -> anyhow::Result<Self> {
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

    pub(super) fn load(&self, work: &CudaStream, weights: &Argument<'_>) -> anyhow::Result<()> {
        let bytes = weights.size();
        let mut launch = work.launch_builder(&self.load);
        launch.arg(weights).arg(&bytes);
        // SAFETY: the kernel writes whole words within the `bytes` from the address on, which are its own.
        unsafe { launch.launch(threads(1024, 256)) }?;
        Ok(())
    }

    pub(super) fn read(&self, work: &CudaStream, page: &Argument<'_>) -> anyhow::Result<()> {
        let bytes = page.size();
        let mut launch = work.launch_builder(&self.read);
        launch.arg(page).arg(&bytes);
        // SAFETY: the kernel reads the ends of the `bytes` from the address on; no block is empty.
        unsafe { launch.launch(threads(1, 1)) }?;
        Ok(())
    }

    /// Reads the weights and writes activation and page, which `memory` has in this order.
    pub(super) fn step(
        &self,
        work: &CudaStream,
        memory: [&Argument<'_>; 3],
        time: Duration,
    ) -> anyhow::Result<()> {
        let [weights, activation, page] = memory;
        let (activation_bytes, page_bytes) = (activation.size(), page.size());
        let time = time.as_nanos() as u64;
        let mut launch = work.launch_builder(&self.step);
        launch.arg(weights);
        launch.arg(activation).arg(&activation_bytes);
        launch.arg(page).arg(&page_bytes);
        launch.arg(&time);
        // SAFETY: the kernel reads the first of the weights, and writes the ends of the other two, within
        // their bytes; no block is empty.
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

/// What a step has of a GPU with so many multiprocessors, each with so much shared memory.
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

    #[test]
    fn places_share_the_multiprocessors() {
        let blocks = |places| share(132, 1 << 17, places).unwrap().grid_dim.0;
        assert_eq!([1, 4, 5, 132, 1000].map(blocks), [132, 33, 26, 1, 1]);
    }
}
