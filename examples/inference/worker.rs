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
    /// The cache; its last page is written.
    pub(crate) pages: Vec<Block>,
    /// The request's memory, if this is its last step.
    pub(crate) lease: Option<Lease>,
    /// Given the pages back when the step has run, if it was not the last.
    pub(crate) done: oneshot::Sender<Vec<Block>>,
}

/// Whom to tell when a step has run.
type Done = (oneshot::Sender<Vec<Block>>, Vec<Block>);

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
            for (done, pages) in submitted {
                // Nobody listens where the request was cancelled: its memory goes here.
                drop(done.send(pages));
            }
        }
        // What it freed last.
        Ok(self.line.stream.synchronize().await?)
    }

    fn submit(&self, job: Job) -> anyhow::Result<Done> {
        let Job {
            time,
            activation,
            mut pages,
            lease,
            done,
        } = job;
        let step = Step {
            time,
            weights: &self.weights,
            activation: &activation,
            pages: &pages,
        };
        self.machine.submit(&self.line, &step)?;
        // Given back here, behind the step, while the device has yet to run it.
        drop(activation);
        if lease.is_some() {
            pages.clear();
        }
        drop(lease);
        Ok((done, pages))
    }
}
