//! What a replay asks of a device beside memory: streams, work on them, and time.
//!
//! A [`Site`] lasts for all traces and makes a [`Machine`] for each run. Whose clock a run follows is
//! the machine's [`Time`]: a simulated device's own, or the host's.

use crate::options::Policy;
use crate::trace::Trace;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{Device, DeviceStream};
use weirpool::{Block, Stream};

/// Where traces are replayed.
pub(crate) trait Site {
    type Machine: Machine;

    /// A machine of its own for a run of `trace`.
    fn machine(&self, trace: &Trace, policy: &Policy) -> anyhow::Result<Self::Machine>;

    /// The run that another is compared with, in which nobody waits for memory; none where two runs
    /// differ by more than that.
    fn unlimited(&self, policy: &Policy) -> Option<Policy>;

    /// Which device it is, where there is more than one kind.
    fn description(&self) -> Option<String>;
}

/// A device, during one run.
pub(crate) trait Machine: 'static {
    /// A stream as its owner has it.
    type Work: DeviceStream;
    type Time: Time;

    fn time(&self) -> &Self::Time;

    /// What the pool is built over.
    fn device(&self) -> Arc<dyn Device>;

    fn create_stream(&self) -> anyhow::Result<Self::Work>;

    /// Has the device use a block, in the order of a stream.
    fn submit(&self, line: &Line<Self::Work>, what: &Use<'_>) -> anyhow::Result<()>;

    /// Memory calls of the pool's that have begun and that have ended.
    fn memory_calls(&self) -> MemoryCalls;

    /// Waits, on the host, until the device has nothing to do.
    fn quiesce(&self) -> anyhow::Result<()>;

    /// What the run came to, once all of its work is complete.
    fn figures(&self) -> anyhow::Result<Figures>;
}

/// What a run's operations are timed by.
pub(crate) trait Time {
    /// The run begins now.
    fn start(&self);

    /// Since the beginning, as the trace counts.
    fn now(&self) -> Duration;

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()>;

    /// Called when no task can go on: lets some time pass. `hope` is of who waits for memory; none when
    /// nobody does. Says whether anything may still come of it.
    fn pass(&self, hope: Option<Hope>) -> bool;
}

/// A stream, as the device and as the pool know it.
pub(crate) struct Line<W> {
    pub(crate) work: W,
    pub(crate) stream: Stream,
}

/// A use of a block by work of the device.
pub(crate) struct Use<'a> {
    /// Which allocation: no two have the same contents.
    pub(crate) id: usize,
    pub(crate) block: &'a Block,
    /// What was asked for.
    pub(crate) bytes: u64,
    /// How far the stream is behind: the work ends so long after its submission.
    pub(crate) lag: Duration,
    pub(crate) purpose: Purpose,
}

/// What a use does with contents, where they are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    Check,
}

/// Memory calls, in number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryCalls {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}

/// What can be seen of memory that may be on its way: as long as this changes, it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hope {
    /// Grows when one begins to wait, and when one looks again.
    pub(crate) signs: u64,
    pub(crate) calls: MemoryCalls,
}

/// What a run came to on the device's side.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) device_calls: u64,
    /// What those calls took their threads.
    pub(crate) device_time: Duration,
    /// The part of it that memory calls took.
    pub(crate) memory_time: Duration,
    /// Waits for an event that were put on a stream.
    pub(crate) waits: u64,
    /// What all waits on the device cost together, where that is known.
    pub(crate) stall: Option<Duration>,
    /// Blocks whose contents were not what was written, where that was verified.
    pub(crate) corruptions: Option<u64>,
}
