//! One stream of the service: takes the steps that are ready, in batches, and has the device run them.
//!
//! Memory is freed in the order of the stream: as soon as the last step that uses it is submitted, and long
//! before it has run. Until it has, the memory is pending, and the pool's affair.

use crate::lease::Lease;
use crate::machine::{Line, Machine, Step};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use std::sync::Arc;
use std::time::Duration;
use weirpool::{Block, SharedBlock};

/// A step of a request, with the memory that it uses.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) time: Duration,
    /// Of this step only.
    pub(crate) activation: Block,
    pub(crate) cache: Block,
    /// Copied into the cache, and not used any more.
    pub(crate) previous: Option<Block>,
    /// The request's memory, if this is its last step.
    pub(crate) lease: Option<Lease>,
    /// Told when the step has run; has the cache, if there are more steps.
    pub(crate) done: oneshot::Sender<Option<Block>>,
}

/// Whom to tell when a step has run.
type Done = (oneshot::Sender<Option<Block>>, Option<Block>);

/// See the [module](self).
pub(crate) struct Worker<M: Machine> {
    pub(crate) machine: Arc<M>,
    pub(crate) line: Line<M::Work>,
    pub(crate) weights: SharedBlock,
}

impl<M: Machine> Worker<M> {
    /// Runs jobs, up to so many at a time, until no more can come.
    ///
    /// # Errors
    /// When the device does not run them.
    pub(crate) async fn run(
        self,
        jobs: mpsc::UnboundedReceiver<Job>,
        most: usize,
    ) -> anyhow::Result<()> {
        let mut batches = jobs.ready_chunks(most);
        while let Some(batch) = batches.next().await {
            let submitted: anyhow::Result<Vec<_>> =
                batch.into_iter().map(|job| self.submit(job)).collect();
            let submitted = submitted?;
            self.line.stream.synchronize().await?;
            for (done, cache) in submitted {
                // Nobody listens where the request was cancelled: its memory goes here.
                drop(done.send(cache));
            }
        }
        // What it freed last.
        Ok(self.line.stream.synchronize().await?)
    }

    fn submit(&self, job: Job) -> anyhow::Result<Done> {
        let step = Step {
            time: job.time,
            weights: &self.weights,
            activation: &job.activation,
            cache: &job.cache,
            previous: job.previous.as_ref(),
        };
        self.machine.submit(&self.line, &step)?;
        // Given back here, behind the step, while the device has yet to run it.
        drop((job.activation, job.previous));
        let is_last = job.lease.is_some();
        let cache = (!is_last).then_some(job.cache);
        drop(job.lease);
        Ok((job.done, cache))
    }
}
