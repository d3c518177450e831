//! A GPU, with a kernel of any given duration.

use super::Bench;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;
use weirpool::{Pool, Stream};

const SOURCE: &str = r#"
extern "C" __global__ void spend(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"#;

pub(crate) struct Cuda {
    device: CudaDevice,
    spend: CudaFunction,
}

impl Cuda {
    pub(crate) fn new() -> Option<Self> {
        let device = CudaDevice::new(0)
            .inspect_err(|error| println!("skipped on CUDA: {error}"))
            .ok()?;
        let code = cudarc::nvrtc::compile_ptx(SOURCE).expect("a kernel that compiles");
        let module = device.context().load_module(code).expect("a module");
        let spend = module.load_function("spend").expect("the kernel");
        Some(Self { device, spend })
    }
}

impl Bench for Cuda {
    type Work = Arc<CudaStream>;

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.device.clone())
    }

    fn name(&self) -> String {
        self.device.description()
    }

    fn stream(&self, pool: &Pool) -> (Self::Work, Stream) {
        let work = self.device.create_stream().expect("a stream");
        let stream = pool.register(&work).expect("a stream of the device");
        (work, stream)
    }

    fn ways(&self) -> Vec<Box<dyn super::wait::Way>> {
        super::ways::all(self.device.context())
    }

    fn spend(&self, work: &Self::Work, time: Duration) {
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
}
