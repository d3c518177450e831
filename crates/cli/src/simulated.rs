//! The simulated device, on its virtual clock: the same run every time.

use crate::machine::{Figures, Line, Machine, MemoryCalls, Purpose, Site, Time, Use};
use crate::options::Policy;
use crate::trace::Trace;
use crate::verify::{Contents, Verifier};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::sim::{Backing, Clock, Operation, SimDevice, SimStream};

/// Larger than any trace that a pool without a capacity is replayed with.
const DEVICE_MEMORY: u64 = 256 << 30;

/// Makes a simulated device for each run.
pub(crate) struct Simulator;

impl Site for Simulator {
    type Machine = SimMachine;

    fn machine(&self, _trace: &Trace, policy: &Policy) -> anyhow::Result<SimMachine> {
        let device = SimDevice::builder()
            .memory(DEVICE_MEMORY.max(policy.capacity.unwrap_or(0)))
            .backing(match policy.verify {
                Some(_) => Backing::Bytes,
                None => Backing::AddressesOnly,
            })
            // The run moves time itself, when no task can go on; nothing else may.
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

    /// They are made in place: nobody waits for one.
    fn memory_calls(&self) -> MemoryCalls {
        MemoryCalls::default()
    }

    fn quiesce(&self) -> anyhow::Result<()> {
        self.device.advance_to_end();
        Ok(())
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        // What the last frees did wrong would be raised by nothing else.
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
    /// Nothing has taken any time yet.
    fn start(&self) {}

    fn now(&self) -> Duration {
        SimDevice::now(self)
    }

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()> {
        SimDevice::sleep_until(self, at)
    }

    /// To the next thing due, be it of a task or of the device.
    fn pass(&self, _hope: Option<crate::machine::Hope>) -> bool {
        self.advance_to_next()
    }
}

/// Work that uses a block: it ends when the backlog is done. The device's ordering checker panics if
/// the pool gave the block too early.
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
