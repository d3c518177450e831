//! The simulated device, on its virtual clock: a run gives the same figures each time.

use super::machine::{Figures, Hope, Line, Machine, MemoryCalls, Purpose, Site, Time, Use};
use super::verify::{Contents, Verifier};
use crate::options::Policy;
use crate::trace::Trace;
use crate::units;
use anyhow::bail;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::sim::{Backing, Clock, Operation, SimDevice, SimStream};

/// The memory of the device, unless the capacity is larger.
const DEVICE_MEMORY: u64 = 256 << 30;
/// The most requested bytes of a trace whose contents are verified: the host keeps them.
const VERIFIED_BYTES: u64 = 16 << 30;

/// Makes a simulated device for each run.
pub(crate) struct Simulator;

impl Site for Simulator {
    type Machine = SimMachine;

    fn machine(&self, trace: &Trace, policy: &Policy) -> anyhow::Result<SimMachine> {
        let policy = &policy.conditions;
        if policy.verify.is_some() && trace.requested_peak > VERIFIED_BYTES {
            bail!(
                "{}: --verify on the simulated device keeps the contents of blocks on the host, and the trace requests {} \
                 at its peak, of {} at most; replay it without --verify",
                trace.name,
                units::binary_bytes(trace.requested_peak),
                units::binary_bytes(VERIFIED_BYTES)
            );
        }
        let device = SimDevice::builder()
            .memory(DEVICE_MEMORY.max(policy.capacity.unwrap_or(0)))
            .backing(match policy.verify {
                Some(_) => Backing::Bytes,
                None => Backing::AddressesOnly,
            })
            // Time passes only when the run moves it, as no task can go on.
            .clock(Clock::Manual)
            .seed(policy.seed)
            .build();
        Ok(SimMachine {
            device,
            verifier: policy.verify.map(Verifier::new),
        })
    }

    fn unlimited(&self, policy: &Policy) -> Option<Policy> {
        Some(policy.unlimited())
    }

    fn description(&self) -> Option<String> {
        None
    }
}

/// See the [module](self).
pub(crate) struct SimMachine {
    device: SimDevice,
    verifier: Option<Verifier>,
}

impl Machine for SimMachine {
    type Work = SimStream;
    type Time = SimDevice;

    fn time(&self) -> &SimDevice {
        &self.device
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.clone().into()
    }

    fn create_stream(&self) -> anyhow::Result<SimStream> {
        Ok(self.device.create_stream())
    }

    fn submit(&self, line: &Line<SimStream>, what: &Use<'_>) -> anyhow::Result<()> {
        line.work.submit(operation(what, self.verifier.as_ref()));
        Ok(())
    }

    /// Returns none: calls are made in place, and no task waits for one.
    fn memory_calls(&self) -> MemoryCalls {
        MemoryCalls::default()
    }

    fn quiesce(&self) -> anyhow::Result<()> {
        self.device.advance_to_end();
        Ok(())
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        // No later operation would raise a violation by the last frees.
        self.device.assert_ordered();
        let counters = self.device.counters();
        Ok(Figures {
            device_calls: counters.device_calls,
            device_time: counters.device_time,
            memory_time: counters.memory_time,
            waits: counters.device_waits,
            stall: Some(counters.stall),
            corruptions: self.verifier.as_ref().map(Verifier::corruptions),
        })
    }
}

impl Time for SimDevice {
    /// Does nothing: virtual time stands still until the run moves it.
    fn start(&self) {}

    fn now(&self) -> Duration {
        SimDevice::now(self)
    }

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()> {
        SimDevice::sleep_until(self, at)
    }

    /// Moves time to the next moment at which a task or the device has something to do.
    fn pass(&self, _hope: Option<Hope>) -> bool {
        self.advance_to_next()
    }
}

/// Returns work that uses a block and ends when the stream's backlog is done. The device's ordering checker panics
/// if the pool reused the block too early.
pub(crate) fn operation(what: &Use<'_>, verifier: Option<&Verifier>) -> Operation {
    let contents = Contents::of(what.id, what.bytes, what.block);
    let operation = Operation::new(Duration::ZERO).behind(what.lag).named("use");
    let operation = operation.writes(contents.address, contents.bytes.max(1));
    match (verifier, what.purpose) {
        (None, _) => operation,
        (Some(verifier), Purpose::Write) => verifier.write(operation, contents),
        (Some(verifier), Purpose::Check) => verifier.check(operation, contents),
    }
}
