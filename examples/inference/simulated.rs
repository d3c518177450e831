//! The simulated device, in real time; in virtual time where the executor has that.
//!
//! It is told what each step reads and writes, and panics at a use of memory that nothing orders.

use crate::executor::ExecutorName;
use crate::kernels::{Kernels, Machine, Step};
use crate::options::Options;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Argument;
use weirpool::device::sim::{Backing, Clock, Operation, SimDevice, SimStream};

/// More than any of the services is given.
const DEVICE_MEMORY: u64 = 1 << 40;

/// What loading the weights takes.
const LOADING: Duration = Duration::from_millis(20);

/// Creates a device for one service.
pub(crate) fn machine(options: &Options) -> Machine<SimStream> {
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
    Machine {
        device: device.clone().into(),
        kernels: Arc::new(Operations),
        virtual_time: is_virtual.then_some(device),
    }
}

/// Operations in place of kernels.
struct Operations;

impl Kernels<SimStream> for Operations {
    fn load(&self, work: &SimStream, weights: Argument<'_>) -> anyhow::Result<()> {
        work.submit(Operation::new(LOADING).writes(weights.address(), weights.size()));
        Ok(())
    }

    fn step(&self, work: &SimStream, step: &Step<'_>) -> anyhow::Result<()> {
        let Step {
            weights,
            activation,
            page,
            ..
        } = step;
        let operation = Operation::new(step.time)
            .reads(weights.address(), weights.size())
            .writes(activation.address(), activation.size())
            .writes(page.address(), page.size());
        let earlier = step.earlier.iter();
        work.submit(earlier.fold(operation, |operation, page| {
            operation.reads(page.address(), page.size())
        }));
        Ok(())
    }
}
