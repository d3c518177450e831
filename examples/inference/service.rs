//! The service: a task for each request, a task for each stream, and a pool between them.
//!
//! A request obtains its memory, then a stream, and runs its steps there one after the other. Its memory is freed with
//! its last step. A request that waits for memory has no stream, so requests with memory are spread over all streams.

use crate::arrivals::Request;
use crate::bound::Stay;
use crate::gauge::Gauge;
use crate::lease::{Admission, Lease};
use crate::model;
use crate::timer::Timer;
use crate::worker::Job;
use anyhow::Context;
use futures::channel::{mpsc, oneshot};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use weirpool::{Pool, Stream};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) pool: Pool,
    pub(crate) admission: Admission,
    pub(crate) timer: Timer,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) job_queues: JobQueues,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) arrived: Duration,
    /// The device time of all steps.
    pub(crate) work: Duration,
    /// `None` if the request was given up.
    pub(crate) stay: Option<Stay>,
    /// The time at which the request was served or given up.
    pub(crate) ended: Duration,
    /// The wait for memory, whatever the outcome.
    pub(crate) waited: Duration,
}

impl Service {
    /// Serves one request that was admitted.
    ///
    /// # Errors
    /// Returns an error if the pool or the device fails. Lack of memory is not an error.
    pub(crate) async fn serve(self: Arc<Self>, request: Request) -> anyhow::Result<Record> {
        let _in_flight = self.gauge.in_flight();
        let came = self.timer.now();
        let lease = self.lease(&request);
        let (lease, has_waited) = detecting_a_wait(lease).await;
        let granted = if has_waited { self.timer.now() } else { came };
        let waited = granted - came;
        let record = |stay| Record {
            arrived: request.arrives,
            work: request.work(),
            stay,
            ended: self.timer.now(),
            waited,
        };
        let Some(lease) = lease? else {
            self.gauge.fail();
            return Ok(record(None));
        };
        self.run_steps(&request, lease).await?;
        self.gauge.serve();
        Ok(record(Some(Stay {
            bytes: request.bytes(),
            came,
            granted,
            returned: self.timer.now(),
        })))
    }

    async fn lease(&self, request: &Request) -> anyhow::Result<Option<Lease>> {
        let _waiting = self.gauge.waiting();
        let lease = self.admission.lease(&self.pool, request, &self.timer);
        Ok(lease.await?)
    }

    async fn run_steps(&self, request: &Request, lease: Lease) -> anyhow::Result<()> {
        let assignment = self.job_queues.assign();
        let mut pages = Vec::new();
        let mut lease = Some(lease);
        let last = request.steps.len() - 1;
        for (step, time) in request.steps.iter().enumerate() {
            let from = lease
                .as_ref()
                .context("only the last step takes the lease")?;
            if model::begins_page(step) {
                pages.push(from.block(assignment.stream(), model::PAGE)?);
            }
            let activation = from.block(assignment.stream(), model::ACTIVATION)?;
            let (done, ran) = oneshot::channel();
            assignment.take(Job {
                time: *time,
                activation,
                pages,
                lease: lease.take_if(|_| step == last),
                done,
            })?;
            pages = ran.await.context("the stream's worker has ended")?;
        }
        Ok(())
    }
}

/// Awaits a future. Returns its output, and whether it was pending at first.
async fn detecting_a_wait<F: Future>(future: F) -> (F::Output, bool) {
    let mut future = std::pin::pin!(future);
    let mut polls = 0;
    let output = std::future::poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    });
    (output.await, polls > 1)
}

/// The job queues of all streams, and the number of requests on each.
#[derive(Debug)]
pub(crate) struct JobQueues {
    all: Vec<JobQueue>,
    loads: Mutex<Vec<usize>>,
}

/// A stream, and the sender of its jobs.
#[derive(Debug)]
pub(crate) struct JobQueue {
    pub(crate) stream: Stream,
    pub(crate) jobs: mpsc::UnboundedSender<Job>,
}

/// The assignment of a request to a queue, until it is dropped.
#[derive(Debug)]
struct Assignment<'a> {
    job_queues: &'a JobQueues,
    index: usize,
}

impl JobQueues {
    pub(crate) fn new(all: Vec<JobQueue>) -> Self {
        let loads = Mutex::new(vec![0; all.len()]);
        Self { all, loads }
    }

    /// Assigns a request to the queue with the fewest requests.
    fn assign(&self) -> Assignment<'_> {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let fewest = (0..loads.len()).min_by_key(|index| loads[*index]);
        let index = fewest.expect("there is at least one stream");
        loads[index] += 1;
        Assignment {
            job_queues: self,
            index,
        }
    }

    /// Closes all job queues: no further jobs come.
    pub(crate) fn close(&self) {
        self.all.iter().for_each(|one| one.jobs.close_channel());
    }
}

impl Assignment<'_> {
    fn stream(&self) -> &Stream {
        &self.job_queues.all[self.index].stream
    }

    fn take(&self, job: Job) -> anyhow::Result<()> {
        let sent = self.job_queues.all[self.index].jobs.unbounded_send(job);
        sent.map_err(|error| anyhow::anyhow!("the stream's worker has ended: {error}"))
    }
}

impl Drop for Assignment<'_> {
    fn drop(&mut self) {
        let loads = self.job_queues.loads.lock();
        loads.unwrap_or_else(PoisonError::into_inner)[self.index] -= 1;
    }
}

/// The future of a request, polled once.
pub(crate) type Begun = Pin<Box<dyn Future<Output = anyhow::Result<Record>> + Send>>;

/// Polls a request for the first time, so that it is queued before all requests that begin later.
pub(crate) async fn begin(mut serving: Begun) -> Begun {
    let first = std::future::poll_fn(|context| Poll::Ready(serving.as_mut().poll(context)));
    match first.await {
        Poll::Ready(record) => Box::pin(std::future::ready(record)),
        Poll::Pending => serving,
    }
}
