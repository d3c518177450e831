//! A GPU: operations in real time and, with `--kernels`, kernels that use the blocks.

mod clock;
mod contents;
mod driver;
mod kernels;
mod worker;

use super::machine::{Figures, Line, Machine, MemoryCalls, Site, Use};
use super::meter::Metered;
use super::timetable::Timetable;
use crate::options::{Pace, Policy, Target};
use crate::trace::Trace;
use cudarc::driver::CudaStream;
use kernels::Kernels;
use std::sync::Arc;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;
use worker::Worker;

/// Opens the first GPU. Call this before any thread is started.
///
/// # Errors
/// Returns an error if there is no driver or no device, or if kernels are needed and cannot be compiled.
pub(crate) fn open(target: &Target) -> anyhow::Result<Gpu> {
    driver::prepare();
    Gpu::new(target)
}

/// A GPU, for all traces.
pub(crate) struct Gpu {
    device: CudaDevice,
    kernels: Option<Kernels>,
    pace: Pace,
}

impl Gpu {
    fn new(target: &Target) -> anyhow::Result<Self> {
        let device = CudaDevice::new(0)?;
        let kernels = target.kernels.then(|| Kernels::compile(device.context()));
        Ok(Self {
            kernels: kernels.transpose()?,
            device,
            pace: target.pace(),
        })
    }
}

impl Site for Gpu {
    type Machine = GpuMachine;

    fn machine(&self, trace: &Trace, policy: &Policy) -> anyhow::Result<GpuMachine> {
        let kernels = self.kernels.as_ref();
        let worker = kernels.map(|kernels| Worker::new(&self.device, kernels, trace, policy));
        Ok(GpuMachine {
            metered: Arc::new(Metered::new(self.device.clone())),
            device: self.device.clone(),
            timetable: Timetable::new(self.pace, policy),
            worker: worker.transpose()?,
        })
    }

    /// Returns `None`: two runs in real time always differ.
    fn unlimited(&self, _policy: &Policy) -> Option<Policy> {
        None
    }

    fn description(&self) -> Option<String> {
        Some(self.device.description())
    }
}

/// A GPU, during one run.
pub(crate) struct GpuMachine {
    /// The device that the pool is built over.
    metered: Arc<Metered<CudaDevice>>,
    device: CudaDevice,
    timetable: Timetable,
    worker: Option<Worker>,
}

impl Machine for GpuMachine {
    type Work = Arc<CudaStream>;
    type Time = Timetable;

    fn time(&self) -> &Timetable {
        &self.timetable
    }

    fn device(&self) -> Arc<dyn Device> {
        self.metered.clone()
    }

    fn create_stream(&self) -> anyhow::Result<Arc<CudaStream>> {
        Ok(self.device.create_stream()?)
    }

    fn submit(&self, line: &Line<Arc<CudaStream>>, what: &Use<'_>) -> anyhow::Result<()> {
        match &self.worker {
            Some(worker) => worker.submit(line, what),
            None => Ok(()),
        }
    }

    fn memory_calls(&self) -> MemoryCalls {
        self.metered.memory_calls()
    }

    fn quiesce(&self) -> anyhow::Result<()> {
        Ok(self.device.context().synchronize()?)
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        let corruptions = self.worker.as_ref().map(Worker::corruptions);
        Ok(Figures {
            device_calls: self.metered.calls(),
            device_time: self.metered.time(),
            memory_time: self.metered.memory_time(),
            waits: self.metered.waits(),
            stall: None,
            corruptions: corruptions.transpose()?.flatten(),
        })
    }
}

impl Drop for GpuMachine {
    /// Waits for all kernels, which end by themselves: they write to memory that goes with the worker.
    fn drop(&mut self) {
        let _ = self.quiesce();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Replay;
    use crate::replay;
    use crate::replay::progress::Progress;
    use crate::replay::report::Report;
    use crate::trace::generate::cross_stream;
    use clap::Parser;

    /// Replays on the GPU; returns `None` without a GPU, or without NVRTC where kernels are needed.
    fn replayed(trace: &Trace, arguments: &[&str]) -> Option<Report> {
        let arguments = [&["replay", "--device=cuda"], arguments].concat();
        let options = Replay::parse_from(arguments).checked().unwrap();
        if let Err(error) = CudaDevice::new(0) {
            eprintln!("skipped: {error}");
            return None;
        }
        if options.target.kernels && !driver::has_compiler() {
            eprintln!("skipped: there is no NVRTC");
            return None;
        }
        let gpu = Gpu::new(&options.target).unwrap();
        let progress = Progress::new(&trace.name, trace.events.len(), true);
        let (report, _) =
            replay::replay(&gpu, trace, &options.target, &options.policy, &progress).unwrap();
        Some(report)
    }

    #[test]
    fn opening_without_a_driver_fails_with_the_devices_error() {
        let options = Replay::parse_from(["replay", "--device=cuda"]);
        let opened = Gpu::new(&options.target).map(drop);
        let device = CudaDevice::new(0).map(drop);
        assert_eq!(
            opened.map_err(|error| error.to_string()),
            device.map_err(|error| error.to_string())
        );
    }

    #[test]
    fn every_request_is_served_at_full_speed() {
        let trace = cross_stream(4000, 1).unwrap();
        if let Some(report) = replayed(&trace, &[]) {
            assert_eq!(report.failures, 0, "{report:?}");
            assert!(report.reserved_peak >= report.requested_peak);
            assert!(report.memory_ns > 0 && report.device_ns >= report.memory_ns);
        }
    }

    #[test]
    fn kernels_find_what_kernels_wrote() {
        let trace = cross_stream(2000, 1).unwrap();
        for extent in ["--verify=pages", "--verify=full"] {
            let arguments = [
                "--kernels",
                "--lag=1ms",
                extent,
                "--when-short=wait-briefly",
            ];
            if let Some(report) = replayed(&trace, &arguments) {
                let found = (report.failures, report.corruptions);
                assert_eq!(found, (0, Some(0)), "{report:?}");
                assert!(report.handover_waits > 0, "{report:?}");
            }
        }
    }
}
