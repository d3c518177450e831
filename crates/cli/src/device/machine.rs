//! The interface between a replay and a device: streams, work on them, and time.
//!
//! A [`Site`] lasts for all traces and makes a [`Machine`] for each run. The machine's [`Time`] is the clock of the
//! run: the virtual one of a simulated device, or the host's.

use crate::options::Policy;
use crate::trace::Trace;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{Device, DeviceStream};
use weirpool::{Block, Stream};

/// A kind of device on which traces are replayed.
pub(crate) trait Site {
    type Machine: Machine;

    /// Makes a machine for a run of `trace`.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened, or cannot replay this trace under this policy.
    fn machine(&self, trace: &Trace, policy: &Policy) -> anyhow::Result<Self::Machine>;

    /// Returns the policy of the run without waits that another run is compared with; `None` where two runs differ
    /// by more than their waits.
    fn unlimited(&self, policy: &Policy) -> Option<Policy>;

    /// Describes the device, where there is more than one kind.
    fn description(&self) -> Option<String>;
}

/// A device, during one run.
pub(crate) trait Machine: 'static {
    /// The stream type of the device.
    type Work: DeviceStream;
    type Time: Time;

    fn time(&self) -> &Self::Time;

    /// Returns the device that the pool is built over.
    fn device(&self) -> Arc<dyn Device>;

    fn create_stream(&self) -> anyhow::Result<Self::Work>;

    /// Submits work that uses a block to a stream.
    fn submit(&self, line: &Line<Self::Work>, what: &Use<'_>) -> anyhow::Result<()>;

    /// Returns the numbers of the pool's memory calls that have begun and that have ended.
    fn memory_calls(&self) -> MemoryCalls;

    /// Waits on the host until the device is idle.
    fn quiesce(&self) -> anyhow::Result<()>;

    /// Returns the device's figures of the run, once all work is complete.
    fn figures(&self) -> anyhow::Result<Figures>;
}

/// The clock of a run.
pub(crate) trait Time {
    /// Starts the run.
    fn start(&self);

    /// Returns the time since the start, on the trace's clock.
    fn now(&self) -> Duration;

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()>;

    /// Lets some time pass, when no task can go on. `hope` has the signs of progress of the tasks that wait for memory,
    /// if any task waits. Returns whether a task may still go on later.
    fn pass(&self, hope: Option<Hope>) -> bool;
}

/// A stream, as the device and as the pool know it.
pub(crate) struct Line<W> {
    pub(crate) work: W,
    pub(crate) stream: Stream,
}

/// A use of a block by work of the device.
pub(crate) struct Use<'a> {
    /// The allocation; no two have the same contents.
    pub(crate) id: usize,
    pub(crate) block: &'a Block,
    /// The requested bytes.
    pub(crate) bytes: u64,
    /// The time from the submission of the work to its end.
    pub(crate) lag: Duration,
    pub(crate) purpose: Purpose,
}

/// The purpose of a use, where contents are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    Check,
}

/// Numbers of memory calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryCalls {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}

/// Signs that memory is on its way to a waiting task: as long as they change, it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hope {
    /// Grows when a task begins to wait and when it is polled again.
    pub(crate) signs: u64,
    pub(crate) calls: MemoryCalls,
}

/// The device's figures of a run.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) device_calls: u64,
    /// The time that these calls took their threads.
    pub(crate) device_time: Duration,
    /// The part of it that memory calls took.
    pub(crate) memory_time: Duration,
    /// Device-side waits for an event.
    pub(crate) waits: u64,
    /// The time that streams spent in device-side waits, where that is known.
    pub(crate) stall: Option<Duration>,
    /// Blocks whose contents differ from the written ones, where they are verified.
    pub(crate) corruptions: Option<u64>,
}
