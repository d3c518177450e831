//! The simulated device, in real time; in virtual time where the executor has that.
//!
//! It is told what each step reads and writes, and panics at a use of memory that nothing orders.

use crate::executor::ExecutorName;
use crate::machine::{Line, Machine, Site, Step};
use crate::options::Options;
use std::sync::Arc;
use std::time::Duration;
use weirpool::SharedBlock;
use weirpool::device::Device;
use weirpool::device::sim::{Backing, Clock, Operation, SimDevice, SimStream};

/// More than any of the services is given.
const DEVICE_MEMORY: u64 = 1 << 40;

/// What loading the weights takes.
const LOADING: Duration = Duration::from_millis(20);

/// Makes a simulated device for each service.
pub(crate) struct Simulator;

impl Site for Simulator {
    type Machine = SimMachine;

    fn machine(&self, options: &Options) -> anyhow::Result<SimMachine> {
        let is_virtual = options.executor == ExecutorName::Virtual;
        let clock = if is_virtual {
            Clock::Virtual
        } else {
            Clock::Wall
        };
        let device = SimDevice::builder()
            .memory(DEVICE_MEMORY)
            .backing(Backing::AddressesOnly)
            .clock(clock)
            .concurrent_operations(options.limits.places)
            .seed(options.load.seed)
            .build();
        Ok(SimMachine { device, is_virtual })
    }

    fn description(&self) -> Option<String> {
        None
    }
}

/// See the [module](self).
pub(crate) struct SimMachine {
    device: SimDevice,
    is_virtual: bool,
}

impl Machine for SimMachine {
    type Work = SimStream;

    fn device(&self) -> Arc<dyn Device> {
        self.device.clone().into()
    }

    fn create_stream(&self) -> anyhow::Result<SimStream> {
        Ok(self.device.create_stream())
    }

    fn load(&self, line: &Line<SimStream>, weights: &SharedBlock) -> anyhow::Result<()> {
        let load = Operation::new(LOADING).named("load");
        line.work
            .submit(load.writes(weights.address(), weights.size()));
        Ok(())
    }

    fn submit(&self, line: &Line<SimStream>, step: &Step<'_>) -> anyhow::Result<()> {
        let (weights, activation) = (step.weights, step.activation);
        let mut operation = Operation::new(step.time)
            .named("step")
            .reads(weights.address(), weights.size())
            .writes(activation.address(), activation.size());
        if let Some((last, earlier)) = step.pages.split_last() {
            operation = operation.writes(last.address(), last.size());
            for page in earlier {
                operation = operation.reads(page.address(), page.size());
            }
        }
        line.work.submit(operation);
        Ok(())
    }

    fn virtual_time(&self) -> Option<&SimDevice> {
        self.is_virtual.then_some(&self.device)
    }
}
