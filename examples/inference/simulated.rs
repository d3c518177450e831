//! The simulated device, in real time, or in virtual time if the executor has it.
//!
//! Each operation declares the memory that it reads and writes, and the device panics at a use that is not ordered.

use crate::executor::ExecutorName;
use crate::kernels::{Kernels, Machine, Step};
use crate::options::Options;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Argument;
use weirpool::device::sim::{Backing, Clock, Operation, SimDevice, SimStream};

/// More memory than any of the services uses.
const DEVICE_MEMORY: u64 = 1 << 40;

/// The time to load the weights.
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
