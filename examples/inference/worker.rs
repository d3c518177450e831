//! One stream of the service: it takes the steps that are ready, in batches, and submits them to the device.
//!
//! Memory is freed in the order of the stream: as soon as the last step that uses it is submitted, and long before it
//! has run. Until then the memory is pending, which the pool keeps track of.

use crate::kernels::{Kernels, Step};
use crate::lease::Lease;
use anyhow::Context;
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::NativeStream;
use weirpool::{Block, Stream, Unordered};

/// A step of a request, with the memory that it uses.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) time: Duration,
    /// Memory that only this step uses.
    pub(crate) activation: Block,
    /// The cache. The step writes its last page.
    pub(crate) pages: Vec<Block>,
    /// The request's memory, if this is its last step.
    pub(crate) lease: Option<Lease>,
    /// Receives the pages when the step has run, if it was not the last one.
    pub(crate) done: oneshot::Sender<Vec<Block>>,
}

/// The receiver to notify when a step has run, and its pages.
type Done = (oneshot::Sender<Vec<Block>>, Vec<Block>);

/// See the [module](self).
pub(crate) struct Worker<W> {
    pub(crate) kernels: Arc<dyn Kernels<W>>,
    pub(crate) stream: Stream,
    pub(crate) weights: Arc<Block>,
}

impl<W: NativeStream> Worker<W> {
    /// Runs jobs, up to `most` at a time, until no more can come.
    ///
    /// # Errors
    /// Returns an error if the device does not run them.
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
            self.stream.synchronize().await?;
            for (done, pages) in submitted {
                // The receiver is gone if the request was cancelled. Its memory is freed here.
                drop(done.send(pages));
            }
        }
        // Waits for the memory that was freed last.
        Ok(self.stream.synchronize().await?)
    }

    fn submit(&self, job: Job) -> anyhow::Result<Done> {
        let Job {
            time,
            mut activation,
            mut pages,
            lease,
            done,
        } = job;
        // The weights were written before the service began, so this use needs no order.
        let weights = self.stream.record_use(Unordered::Once(&self.weights))?;
        let (page, earlier) = pages.split_last_mut().context("a step has a page")?;
        let submission = self.stream.task("step");
        submission.try_submit(
            (&mut activation, page, &*earlier),
            |work: &W, (activation, page, earlier)| {
                let step = Step {
                    time,
                    weights,
                    activation,
                    page,
                    earlier,
                };
                self.kernels.step(work, &step)
            },
        )?;
        // Freed here, behind the step, although the device has not run it yet.
        drop(activation);
        if lease.is_some() {
            pages.clear();
        }
        drop(lease);
        Ok((done, pages))
    }
}
