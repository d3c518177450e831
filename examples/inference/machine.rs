//! What the service asks of a device beside memory: streams, and steps on them.

use crate::options::Options;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::device::{Device, DeviceStream};
use weirpool::{Block, SharedBlock, Stream};

/// Where the services run, one after the other.
pub(crate) trait Site {
    type Machine: Machine;

    /// Creates a separate machine for a service.
    fn machine(&self, options: &Options) -> anyhow::Result<Self::Machine>;

    /// Returns the name of the device, if there is more than one kind.
    fn description(&self) -> Option<String>;
}

/// A device that runs steps, for the time of one service.
pub(crate) trait Machine: Send + Sync + 'static {
    /// A stream as its owner has it.
    type Work: DeviceStream + Send + Sync + 'static;

    /// Returns the device under the pool.
    fn device(&self) -> Arc<dyn Device>;

    fn create_stream(&self) -> anyhow::Result<Self::Work>;

    /// Has the device write the weights, in the order of a stream.
    fn load(&self, line: &Line<Self::Work>, weights: &SharedBlock) -> anyhow::Result<()>;

    /// Has the device run a step, in the order of a stream.
    fn submit(&self, line: &Line<Self::Work>, step: &Step<'_>) -> anyhow::Result<()>;

    /// Returns the device, if its time is virtual.
    fn virtual_time(&self) -> Option<&SimDevice> {
        None
    }
}

/// A stream, as the device and as the pool know it.
#[derive(Debug)]
pub(crate) struct Line<W> {
    pub(crate) work: W,
    pub(crate) stream: Stream,
}

/// One step of a request, as the device has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    /// What it takes.
    pub(crate) time: Duration,
    /// Read.
    pub(crate) weights: &'a SharedBlock,
    /// Written.
    pub(crate) activation: &'a Block,
    /// The cache: all read, but for the last, which is written.
    pub(crate) pages: &'a [Block],
}
