//! A GPU, with a kernel of any given duration.

mod bare;
#[path = "../../../cli/src/device/cuda/driver.rs"]
mod driver;
mod driver_pool;

use super::backend::Backend;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use driver_pool::DriverPool;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;

const SOURCE: &str = r#"
extern "C" __global__ void spend(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"#;

/// See the [module](self).
pub(crate) struct Cuda {
    pub(crate) device: CudaDevice,
    spend: CudaFunction,
}

/// Opens the first GPU. Must be called before any other thread is started.
///
/// # Errors
/// Returns an error if there is no driver or no device, or the kernel cannot be compiled.
pub(crate) fn open() -> anyhow::Result<Cuda> {
    driver::prepare();
    let device = CudaDevice::new(0)?;
    let module = driver::compile(device.context(), SOURCE)?;
    let spend = module.load_function("spend")?;
    Ok(Cuda { device, spend })
}

impl Backend for Cuda {
    type Work = Arc<CudaStream>;
    type Driver<'a> = DriverPool<'a>;

    fn name(&self) -> String {
        self.device.description()
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.device.clone())
    }

    fn create_stream(&self) -> Arc<CudaStream> {
        self.device.create_stream().expect("a stream")
    }

    fn enter(&self) {
        let context = self.device.context();
        context.bind_to_thread().expect("a context that works");
    }

    fn spend(&self, work: &Arc<CudaStream>, time: Duration) {
        let nanoseconds = time.as_nanos() as u64;
        let shape = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = work.launch_builder(&self.spend);
        launch.arg(&nanoseconds);
        // SAFETY: the kernel touches no memory.
        unsafe { launch.launch(shape) }.expect("a launch");
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        futures::executor::block_on(future)
    }

    fn bare_copies(&self) -> Option<[f64; 2]> {
        bare::copies(&self.device)
            .inspect_err(|error| eprintln!("bare copies are left out: {error}"))
            .ok()
    }

    fn driver(&self, most: Option<u64>) -> Option<DriverPool<'_>> {
        DriverPool::new(self, most)
            .inspect_err(|error| eprintln!("the driver's own pool is left out: {error}"))
            .ok()
    }
}
