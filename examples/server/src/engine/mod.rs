//! The engine: a pool, the model's weights in it, a worker for each stream, and the admission of requests.
//!
//! A request is admitted once memory is reserved for all keys and values that it can have; from then on it neither
//! waits nor fails for lack of memory. It holds no memory while it waits. Tenants share the steps by [turns].

mod admission;
mod engines;
mod load;
mod open;
mod prefixes;
mod refusal;
mod sequence;
mod turns;
mod weights;
mod worker;

use crate::kernels::Machine;
use crate::model::{Layout, Limits, Shape};
pub use admission::Admission;
pub(crate) use admission::Admitted;
use anyhow::Context;
pub(crate) use engines::{Engines, Use};
use load::Load;
use open::Opening;
pub(crate) use prefixes::PrefixFigures;
use prefixes::Prefixes;
pub(crate) use refusal::Refusal;
use sequence::Sequence;
pub(crate) use sequence::{Event, Finish, Job};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
pub(crate) use weights::Source;
use weights::{Ready, make_ready};
use weirpool::device::NativeStream;
use weirpool::{Pool, PoolBuilder, Stream, Tag};
use weirpool_observe::Recorded as _;
use weirpool_tiers::{Region, Regions as _};
use worker::Worker;

/// The tags of memory that belongs to no tenant.
pub(crate) const WEIGHTS: &str = "weights";
pub(crate) const ACTIVATIONS: &str = "activations";
pub(crate) const WORKSPACE: &str = "workspace";

/// The most pages of a sequence: the depth of a tree of prefixes.
const MOST_PAGES: usize = 1024;

/// The settings of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Bytes of the pool.
    pub(crate) capacity: u64,
    pub(crate) streams: usize,
    /// The tokens of a page.
    pub(crate) page: usize,
    /// The most sequences of a stream's batch.
    pub(crate) batch: usize,
    /// The most rows of a step.
    pub(crate) rows: usize,
    pub(crate) admission: Admission,
    pub(crate) keeps_prefixes: bool,
    /// The most requests that wait.
    pub(crate) queue: usize,
    /// The weights are suspended when there was no request for so long.
    pub(crate) sleep_after: Option<Duration>,
}

impl Settings {
    /// Checks that a model can be served. Returns the bytes of a page, and of an activation, and the pages that there is
    /// memory for.
    fn check(&self, shape: &Shape, workspace: u64) -> anyhow::Result<(u64, u64, u64)> {
        let page_bytes = (self.page as u64).saturating_mul(shape.token_bytes());
        let pages = shape.context.div_ceil(self.page);
        anyhow::ensure!(
            pages <= MOST_PAGES,
            "a context of {} tokens has {pages} pages of {}, but at most {MOST_PAGES}; raise --page",
            shape.context,
            self.page
        );
        let activation = Layout::largest(
            shape,
            Limits {
                rows: self.rows,
                sequences: self.batch,
                pages,
            },
        );
        let streams = self.streams as u64;
        let worker = activation.saturating_add(workspace);
        let fixed = shape
            .weight_bytes()
            .saturating_add(streams.saturating_mul(worker));
        let least = fixed.saturating_add(page_bytes.saturating_mul(pages as u64));
        anyhow::ensure!(
            self.capacity >= least,
            "a capacity of {} bytes is too small: weights, activations and one sequence of {} tokens need {least}; raise \
             the capacity, or lower the context or the number of streams",
            self.capacity,
            shape.context,
        );
        let pages = (self.capacity - fixed) / page_bytes;
        Ok((page_bytes, activation, pages))
    }
}

/// See the [module](self).
pub(crate) struct Engine {
    pool: Pool,
    shape: Shape,
    settings: Settings,
    page_bytes: u64,
    /// The pages of keys and values that there is memory for.
    pages: u64,
    /// The bytes of the weights, if they count under a name.
    published: u64,
    opening: Opening,
    prefixes: Option<Mutex<Prefixes>>,
    lanes: Vec<WorkerHandle>,
    /// Cancelled once no sequence runs any more.
    ended: CancellationToken,
    /// The requests that wait or run.
    requests: TaskTracker,
    workers: TaskTracker,
}

/// A worker, as the admission sees it.
struct WorkerHandle {
    stream: Stream,
    sequences: mpsc::UnboundedSender<Sequence>,
    /// The sequences that the worker received and has not finished.
    load: Arc<Load>,
}

impl Engine {
    /// Builds the pool, loads the weights, and starts the workers on the running runtime.
    ///
    /// # Errors
    /// Returns an error if the device or a library of it is missing or fails, or if the capacity is too small to ever
    /// serve a request.
    pub(crate) async fn start<W: NativeStream>(
        machine: Machine<W>,
        source: &Source,
        settings: Settings,
        tune: impl FnOnce(PoolBuilder) -> PoolBuilder,
    ) -> anyhow::Result<Arc<Self>> {
        let pool = Pool::builder(machine.device.clone())
            .capacity(settings.capacity)
            .queue_limit(settings.queue)
            .load_shedding()
            // Requests keep their memory for as long as their answers take: that is no deadlock.
            .fail_deadlocks_after(Duration::from_secs(36_000));
        let pool = tune(pool).build()?;
        let ended = CancellationToken::new();
        let region = settings
            .sleep_after
            .map(|after| sleeping(&pool, after, ended.clone()));
        let region = region.transpose()?;
        let stream = pool.create_stream()?.named("worker 0");
        let check = |shape: &Shape| settings.check(shape, machine.workspace).map(drop);
        let ready = make_ready(source, &pool, region.as_ref(), &stream, check);
        let Ready {
            weights,
            shape,
            published,
            first,
        } = ready.await?;
        let (page_bytes, activation, pages) = settings.check(&shape, machine.workspace)?;
        let (mut handles, mut workers) = (Vec::new(), Vec::new());
        let (first, mut stream) = (Arc::new(first), Some(stream));
        for index in 0..settings.streams {
            let stream = match stream.take() {
                Some(stream) => stream,
                None => pool.create_stream()?.named(format!("worker {index}")),
            };
            let kernels = (machine.kernels)()?;
            let workspace = pool.allocate(&stream, machine.workspace.max(1));
            let mut workspace = workspace.tag(Tag::new(WORKSPACE)).await?;
            let bound = stream
                .task("bind")
                .try_submit(&mut workspace, |work: &W, memory| {
                    anyhow::Ok(kernels.bind(work, memory)?)
                });
            bound?.await?;
            let (sequences, incoming) = mpsc::unbounded_channel();
            let load = Arc::new(Load::default());
            workers.push((kernels, workspace, incoming, load.clone()));
            handles.push(WorkerHandle {
                stream,
                sequences,
                load,
            });
        }
        let parts = Arc::new(shape.parts());
        let opening = Opening::new(pool.clone(), region, settings.streams, activation);
        let engine = Arc::new(Self {
            pool,
            shape,
            settings,
            page_bytes,
            pages,
            published,
            opening,
            prefixes: settings
                .keeps_prefixes
                .then(|| Mutex::new(Prefixes::new(settings.page))),
            lanes: handles,
            ended,
            requests: TaskTracker::new(),
            workers: TaskTracker::new(),
        });
        for (handle, worker) in engine.lanes.iter().zip(workers) {
            let (kernels, workspace, incoming, load) = worker;
            let worker = Worker {
                stream: handle.stream.clone(),
                parts: parts.clone(),
                weights: weights.clone(),
                first: first.clone(),
                kernels,
                _workspace: workspace,
                incoming,
                load,
                ended: engine.ended.clone(),
                engine: Arc::downgrade(&engine),
                shape,
                settings,
            };
            engine.workers.spawn(worker.run());
        }
        engine.workers.close();
        Ok(engine)
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the tokens of a page.
    pub(crate) fn page(&self) -> usize {
        self.settings.page
    }

    /// Returns the number of sequences that were admitted and have not ended.
    pub(crate) fn running(&self) -> usize {
        self.lanes.iter().map(|lane| lane.load.all()).sum()
    }

    /// Returns the used bytes of weights, libraries, activations, keys and values, and the prefix cache.
    pub(crate) fn memory(&self) -> [u64; 5] {
        let fixed = [WEIGHTS, WORKSPACE, ACTIVATIONS]
            .map(|name| self.pool.tag(Tag::new(name)).statistics().used.current);
        let statistics = self.pool.inspect().statistics();
        let [weights, workspace, activations] = fixed;
        let all = fixed.iter().sum::<u64>() + statistics.evictable;
        // Weights that can sleep are charged, and not in use of the pool's own memory.
        let in_use = statistics.used.current + statistics.charged;
        let requests = in_use.saturating_sub(all);
        [
            weights + self.published,
            workspace,
            activations,
            requests,
            statistics.evictable,
        ]
    }

    /// Returns the index of a worker that has ended before the engine did, if there is one.
    pub(crate) fn lost_worker(&self) -> Option<usize> {
        let mut lanes = self.lanes.iter();
        let lost = lanes.position(|lane| lane.sequences.is_closed());
        lost.filter(|_| !self.ended.is_cancelled())
    }

    /// Returns the figures of the prefix cache.
    pub(crate) fn prefix_figures(&self) -> PrefixFigures {
        let prefixes = self.prefixes();
        prefixes
            .map(|prefixes| prefixes.figures())
            .unwrap_or_default()
    }

    fn prefixes(&self) -> Option<MutexGuard<'_, Prefixes>> {
        let prefixes = self.prefixes.as_ref()?;
        Some(prefixes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Refuses new and waiting requests from now on. Admitted sequences continue.
    pub(crate) fn stop_admitting(&self) {
        self.pool.stop_admitting();
    }

    /// Waits until the sequences that were admitted have ended and all memory is free, and closes the pool.
    ///
    /// # Errors
    /// Returns an error if that takes longer than `patience`, if the device has failed, or if memory is missing.
    pub(crate) async fn drain(&self, patience: Duration) -> anyhow::Result<()> {
        self.stop_admitting();
        self.requests.close();
        let ended = tokio::time::timeout(patience, self.requests.wait()).await;
        ended.with_context(|| {
            let running = self.running();
            format!(
                "{running} answers were not complete after {patience:?}; raise --drain-timeout, or lower --timeout"
            )
        })?;
        if let Some(mut prefixes) = self.prefixes() {
            prefixes.clear();
        }
        // The workers free the weights when they end.
        self.ended.cancel();
        self.workers.wait().await;
        let drained = self.pool.drain().timeout(patience).await;
        let drained = drained.with_context(|| self.pool.leaks().to_string());
        self.pool.close();
        drained
    }
}

/// Makes a region for the weights, which sleeps when nobody has entered it for so long.
fn sleeping(pool: &Pool, after: Duration, ended: CancellationToken) -> anyhow::Result<Region> {
    let region = pool.region(WEIGHTS).tag(Tag::new(WEIGHTS)).build()?;
    let idle = region.clone();
    let sleeping = async move {
        loop {
            let error = idle.suspend_when_idle(after).await;
            tracing::warn!("the weights stay on the device for now: {error}");
            tokio::time::sleep(after).await;
        }
    };
    tokio::spawn(ended.run_until_cancelled_owned(sleeping));
    Ok(region)
}
