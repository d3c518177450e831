//! One run of a service: it is opened, serves all requests, is closed, and must have returned all memory.

use crate::arrivals::Request;
use crate::bound::Shared;
use crate::executor::Executor;
use crate::gauge::{Gauge, Sample};
use crate::kernels::{Kernels, Machine};
use crate::kind::Kind;
use crate::model;
use crate::options::Options;
use crate::progress::Progress;
use crate::service::{JobQueue, JobQueues, Record, Service, begin};
use crate::timer::Timer;
use crate::watch::Watch;
use crate::worker::Worker;
use anyhow::{Context, anyhow};
use futures::channel::mpsc;
use futures::future::{Either, RemoteHandle, select, try_join_all};
use futures::task::{Spawn, SpawnExt};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use weirpool::device::NativeStream;
use weirpool::{Block, Pool, Stream, Tag, Unordered};

/// The deadlock grace, which is longer than any request runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The outcome of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    /// The records of all requests, in the order of arrival.
    pub(crate) records: Vec<Record>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) shared: Shared,
    pub(crate) places: usize,
    pub(crate) reserved_peak: u64,
}

/// Runs a service with these requests.
///
/// # Errors
/// Returns an error if the pool or the device fails, or memory is missing at the end.
pub(crate) fn run<W: NativeStream>(
    machine: Machine<W>,
    options: &Options,
    kind: Kind,
    requests: &[Request],
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let executor = Executor::new(options.executor, machine.virtual_time.as_ref())?;
    executor.run(|spawner| async move {
        let run = Run::open(&machine, options, kind, &*spawner).await?;
        let watch = Watch::new(&run.service, requests, progress);
        let served = {
            let admitted = pin!(admit(&run.service, requests, options, &*spawner));
            match select(admitted, pin!(watch.run())).await {
                Either::Left((served, _)) => served,
                Either::Right((never, _)) => match never {},
            }
        };
        let samples = watch.into_samples();
        let reserved_peak = run.service.pool.inspect().statistics().reserved.high;
        // Before the requests' errors: a worker's error is the cause of theirs.
        run.close().await?;
        Ok(Outcome {
            kind,
            records: served?,
            samples,
            shared: kind.shared(options),
            places: options.limits.places,
            reserved_peak,
        })
    })
}

/// Admits requests as they arrive, up to the limit of requests in flight.
async fn admit(
    service: &Arc<Service>,
    requests: &[Request],
    options: &Options,
    spawner: &dyn Spawn,
) -> anyhow::Result<Vec<Record>> {
    let permits = Arc::new(Semaphore::new(options.limits.in_flight));
    let mut records = Vec::new();
    for request in requests {
        service.timer.sleep_until(request.arrives).await;
        let permit = permits.clone().acquire_owned().await?;
        let served = service.clone().serve(request.clone());
        let served = Box::pin(async move {
            let record = served.await;
            drop(permit);
            record
        });
        // Polled here and not in its task, so that requests enter the pool's queue in the order of arrival.
        let served = begin(served).await;
        records.push(spawner.spawn_with_handle(served)?);
    }
    try_join_all(records).await
}

/// An open service and its workers.
struct Run {
    service: Arc<Service>,
    weights: Arc<Block>,
    workers: Vec<RemoteHandle<anyhow::Result<()>>>,
    /// Cancelled when the run is dropped.
    _reclaimer: Option<RemoteHandle<()>>,
}

impl Run {
    async fn open<W: NativeStream>(
        machine: &Machine<W>,
        options: &Options,
        kind: Kind,
        spawner: &dyn Spawn,
    ) -> anyhow::Result<Self> {
        let pool = Pool::builder(machine.device.clone())
            .capacity(kind.capacity(options))
            // All memory at the start, so that requests wait for each other and not for the driver.
            .tuning(|tuning| tuning.initial_size = kind.capacity(options))
            .chunk_bytes(model::CHUNK)
            // A request holds its memory for many steps, which is no deadlock.
            .fail_deadlocks_after(10 * PATIENCE)
            .build()?;
        let streams = (0..options.limits.streams).map(|_| pool.create_stream());
        let streams: Vec<_> = streams.collect::<Result<_, _>>()?;
        let weights = load(&*machine.kernels, &pool, &streams).await?;
        let reclaimer = || spawner.spawn_with_handle(pool.maintain().reclaimer());
        let reclaimer = (!options.executor.has_reclaimer()).then(reclaimer);
        let (mut job_queues, mut workers) = (Vec::new(), Vec::new());
        for stream in streams {
            let (jobs, taken) = mpsc::unbounded();
            job_queues.push(JobQueue {
                stream: stream.clone(),
                jobs,
            });
            let worker = Worker {
                kernels: machine.kernels.clone(),
                stream,
                weights: weights.clone(),
            };
            let work = worker.run(taken, options.limits.batch);
            workers.push(spawner.spawn_with_handle(work)?);
        }
        let service = Arc::new(Service {
            pool,
            admission: kind.admission(options),
            timer: Timer::new(machine.device.clone()),
            gauge: Arc::new(Gauge::default()),
            job_queues: JobQueues::new(job_queues),
        });
        Ok(Self {
            service,
            weights,
            workers,
            _reclaimer: reclaimer.transpose()?,
        })
    }

    /// Ends the workers, and checks that all memory was returned.
    async fn close(self) -> anyhow::Result<()> {
        self.service.job_queues.close();
        for worker in self.workers {
            worker.await?;
        }
        let weights = Arc::into_inner(self.weights);
        let weights = weights.context("the weights are still in use")?;
        weights.deallocate().await?;
        let pool = &self.service.pool;
        pool.maintain().reap()?;
        let conserved = pool.inspect().check_conserved();
        conserved.map_err(|missing| anyhow!("memory is missing: {missing}"))
    }
}

/// Allocates the weights, and writes them on one stream so that all streams can read them.
async fn load<W: NativeStream>(
    kernels: &dyn Kernels<W>,
    pool: &Pool,
    streams: &[Stream],
) -> anyhow::Result<Arc<Block>> {
    let (first, others) = streams
        .split_first()
        .context("there is at least one stream")?;
    let weights = pool.allocate(first, model::WEIGHTS);
    let mut weights = weights.tag(Tag::new("weights")).await?;
    let submission = first.task("load");
    let loading = submission.try_submit(&mut weights, |work: &W, weights| {
        kernels.load(work, weights)
    })?;
    let weights = Arc::new(weights);
    for other in others {
        other.after(&loading)?;
        other.record_use(Unordered::UntilFreed(&weights))?;
    }
    loading.await?;
    Ok(weights)
}

#[cfg(test)]
mod tests;
