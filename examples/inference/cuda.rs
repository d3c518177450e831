//! A GPU, of which a step takes its share: so many steps run at once as there are places.

#[path = "../../crates/cli/src/device/cuda/driver.rs"]
mod driver;
#[path = "cuda/kernels.rs"]
mod kernels;

use crate::machine::{Line, Machine, Site, Step};
use crate::options::Options;
use cudarc::driver::CudaStream;
use kernels::Kernels;
use std::sync::Arc;
use weirpool::SharedBlock;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;

/// Opens the first GPU. To be called first of all, while there is no other thread.
///
/// # Errors
/// Returns an error if there is no driver or no device, or kernels cannot be compiled.
pub(crate) fn open(options: &Options) -> anyhow::Result<Gpu> {
    driver::prepare();
    Gpu::new(options)
}

/// A GPU, for all services.
pub(crate) struct Gpu {
    device: CudaDevice,
    kernels: Kernels,
}

impl Gpu {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let device = CudaDevice::new(0)?;
        let kernels = Kernels::compile(device.context(), options.limits.places)?;
        Ok(Self { device, kernels })
    }
}

impl Site for Gpu {
    type Machine = GpuMachine;

    fn machine(&self, _options: &Options) -> anyhow::Result<GpuMachine> {
        Ok(GpuMachine {
            device: self.device.clone(),
            kernels: self.kernels.clone(),
        })
    }

    fn description(&self) -> Option<String> {
        Some(self.device.description())
    }
}

/// A GPU, during one service.
pub(crate) struct GpuMachine {
    device: CudaDevice,
    kernels: Kernels,
}

impl Machine for GpuMachine {
    type Work = Arc<CudaStream>;

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.device.clone())
    }

    fn create_stream(&self) -> anyhow::Result<Arc<CudaStream>> {
        Ok(self.device.create_stream()?)
    }

    fn load(&self, line: &Line<Arc<CudaStream>>, weights: &SharedBlock) -> anyhow::Result<()> {
        self.kernels.load(&line.work, &weights.on(&line.stream)?)
    }

    fn submit(&self, line: &Line<Arc<CudaStream>>, step: &Step<'_>) -> anyhow::Result<()> {
        let Some((last, earlier)) = step.pages.split_last() else {
            anyhow::bail!("a step has at least one page");
        };
        for page in earlier {
            self.kernels.read(&line.work, &page.on(&line.stream)?)?;
        }
        let [weights, activation, page] = [
            step.weights.on(&line.stream)?,
            step.activation.on(&line.stream)?,
            last.on(&line.stream)?,
        ];
        let memory = [&weights, &activation, &page];
        self.kernels.step(&line.work, memory, step.time)
    }
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
    fn without_a_driver_the_device_says_so() {
        let options = Options::parse_from(["inference", "--device=cuda"]);
        let opened = Gpu::new(&options).map(drop);
        let device = CudaDevice::new(0).map(drop);
        if let Err(error) = device {
            assert_eq!(opened.unwrap_err().to_string(), error.to_string());
        }
    }

    #[test]
    fn a_gpu_serves_all_and_loses_no_memory() {
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
        let gpu = Gpu::new(&options).unwrap();
        for kind in Kind::ALL {
            let progress = Progress::new(kind.name(), 40, true);
            let outcome = run::run(&gpu, &options, kind, &requests, &progress).unwrap();
            let served = outcome.records.iter().filter(|one| one.stay.is_some());
            assert!(kind == Kind::Retrying || served.count() == 40, "{kind:?}");
        }
    }
}
