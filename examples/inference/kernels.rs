//! The parts that differ between devices: the kernels, and how a device is opened. All other code is generic over the
//! backend's stream.

use std::sync::Arc;
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::device::{Argument, Device};

/// The kernels of the service, on streams of type `W`.
pub(crate) trait Kernels<W>: Send + Sync {
    /// Writes the weights.
    fn load(&self, work: &W, weights: Argument<'_>) -> anyhow::Result<()>;

    /// Runs one step of a request.
    fn step(&self, work: &W, step: &Step<'_>) -> anyhow::Result<()>;
}

/// One step of a request.
pub(crate) struct Step<'a> {
    /// The device time of the step.
    pub(crate) time: Duration,
    /// The weights, which are read.
    pub(crate) weights: Argument<'a>,
    /// The activation, which is written.
    pub(crate) activation: Argument<'a>,
    /// The page of the cache that is written.
    pub(crate) page: Argument<'a>,
    /// The full pages, which are read.
    pub(crate) earlier: Vec<Argument<'a>>,
}

/// A device and its kernels, for one run of a service.
pub(crate) struct Machine<W> {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) kernels: Arc<dyn Kernels<W>>,
    /// The simulated device, if its time is virtual.
    pub(crate) virtual_time: Option<SimDevice>,
}
