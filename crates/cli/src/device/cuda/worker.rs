//! Submits work to the GPU: each use of a block is a kernel, which ends its lag behind the host.

use super::clock::Clock;
use super::contents::Contents;
use super::kernels::{Hold, Kernels};
use crate::device::machine::{Line, Use};
use crate::options::Policy;
use crate::trace::Trace;
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::time::Duration;
use weirpool::Unordered;
use weirpool::device::cuda::CudaDevice;

/// See the [module](self).
pub(super) struct Worker {
    kernels: Kernels,
    /// The clock, where streams run behind.
    clock: Option<Clock>,
    /// The contents, where they are verified.
    contents: Option<Contents>,
}

impl Worker {
    pub(super) fn new(
        device: &CudaDevice,
        kernels: &Kernels,
        trace: &Trace,
        policy: &Policy,
    ) -> anyhow::Result<Self> {
        let policy = &policy.conditions;
        let clock = (!policy.lag.is_zero()).then(|| Clock::new(device, kernels));
        let contents = policy
            .verify
            .map(|extent| Contents::new(device, kernels, trace.allocations, extent));
        Ok(Self {
            kernels: kernels.clone(),
            clock: clock.transpose()?,
            contents: contents.transpose()?,
        })
    }

    /// Submits a use of a block, which ends its lag after now at the earliest, like the work of a stream that runs so
    /// far behind. A stream that was held up catches up.
    pub(super) fn submit(
        &self,
        line: &Line<Arc<CudaStream>>,
        what: &Use<'_>,
    ) -> anyhow::Result<()> {
        let hold = self.hold(what.lag)?;
        let block = line.stream.record_use(Unordered::Once(what.block))?;
        let Some(contents) = &self.contents else {
            let hold = hold.unwrap_or_default();
            return self.kernels.use_block(&line.work, &block, hold, what.bytes);
        };
        if let Some(hold) = hold {
            self.kernels.hold_stream(&line.work, hold)?;
        }
        contents.submit(&line.work, &block, what)
    }

    fn hold(&self, lag: Duration) -> anyhow::Result<Option<Hold>> {
        let Some(clock) = &self.clock else {
            return Ok(None);
        };
        let lag = lag.as_nanos() as u64;
        Ok(Some(Hold {
            until: clock.now()?.saturating_add(lag),
            longest: lag,
        }))
    }

    /// Returns the number of blocks whose contents differ from the written ones, where they are verified.
    pub(super) fn corruptions(&self) -> anyhow::Result<Option<u64>> {
        let contents = self.contents.as_ref();
        contents.map(Contents::corruptions).transpose()
    }
}
