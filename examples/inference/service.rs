//! The service: a task for each request, a task for each stream, and a pool between them.
//!
//! A request takes its memory, then a stream, then runs its steps there one after the other; its memory goes with its
//! last step. It holds no stream while it waits for memory, so those that have memory are spread over as many streams
//! as there are.

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
    pub(crate) counters: Counters,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) arrived: Duration,
    /// What its steps take the device.
    pub(crate) work: Duration,
    /// None, where it was given up.
    pub(crate) stay: Option<Stay>,
    /// When it was served, or given up.
    pub(crate) ended: Duration,
    /// How long it waited for memory, whatever its outcome.
    pub(crate) waited: Duration,
}

impl Service {
    /// Serves one request, from the moment on that it is let in.
    ///
    /// # Errors
    /// Returns an error if the pool or the device fails. Lack of memory is not an error.
    pub(crate) async fn serve(self: Arc<Self>, request: Request) -> anyhow::Result<Record> {
        let _in_flight = self.gauge.in_flight();
        let came = self.timer.now();
        let lease = self.lease(&request);
        let (lease, has_waited) = noting_a_wait(lease).await;
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
        let seat = self.counters.sit();
        let mut pages = Vec::new();
        let mut lease = Some(lease);
        let last = request.steps.len() - 1;
        for (step, time) in request.steps.iter().enumerate() {
            let from = lease.as_ref().context("only the last step takes it")?;
            if model::begins_page(step) {
                pages.push(from.block(seat.stream(), model::PAGE)?);
            }
            let activation = from.block(seat.stream(), model::ACTIVATION)?;
            let (done, ran) = oneshot::channel();
            seat.take(Job {
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

/// Returns the output of a future, and whether it was not ready at once.
async fn noting_a_wait<F: Future>(future: F) -> (F::Output, bool) {
    let mut future = std::pin::pin!(future);
    let mut polls = 0;
    let output = std::future::poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    });
    (output.await, polls > 1)
}

/// The streams, and how many requests each has.
#[derive(Debug)]
pub(crate) struct Counters {
    all: Vec<Counter>,
    seated: Mutex<Vec<usize>>,
}

/// Where a stream takes its jobs.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) stream: Stream,
    pub(crate) jobs: mpsc::UnboundedSender<Job>,
}

/// A request's place at a stream, until it is dropped.
#[derive(Debug)]
struct Seat<'a> {
    counters: &'a Counters,
    index: usize,
}

impl Counters {
    pub(crate) fn new(all: Vec<Counter>) -> Self {
        let seated = Mutex::new(vec![0; all.len()]);
        Self { all, seated }
    }

    /// At the stream that has the fewest.
    fn sit(&self) -> Seat<'_> {
        let mut seated = self.seated.lock().unwrap_or_else(PoisonError::into_inner);
        let fewest = (0..seated.len()).min_by_key(|index| seated[*index]);
        let index = fewest.expect("there is at least one stream");
        seated[index] += 1;
        Seat {
            counters: self,
            index,
        }
    }

    /// No more jobs come.
    pub(crate) fn close(&self) {
        self.all.iter().for_each(|one| one.jobs.close_channel());
    }
}

impl Seat<'_> {
    fn stream(&self) -> &Stream {
        &self.counters.all[self.index].stream
    }

    fn take(&self, job: Job) -> anyhow::Result<()> {
        let sent = self.counters.all[self.index].jobs.unbounded_send(job);
        sent.map_err(|error| anyhow::anyhow!("the stream's worker has ended: {error}"))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let seated = self.counters.seated.lock();
        seated.unwrap_or_else(PoisonError::into_inner)[self.index] -= 1;
    }
}

/// A request on its way, polled once.
pub(crate) type Begun = Pin<Box<dyn Future<Output = anyhow::Result<Record>> + Send>>;

/// Polls a request for the first time: it comes before all that are begun later.
pub(crate) async fn begin(mut serving: Begun) -> Begun {
    let first = std::future::poll_fn(|context| Poll::Ready(serving.as_mut().poll(context)));
    match first.await {
        Poll::Ready(record) => Box::pin(std::future::ready(record)),
        Poll::Pending => serving,
    }
}
