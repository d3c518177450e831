//! A device that breaks while requests of every kind wait. Each waiter fails, no memory is granted afterwards, and
//! later drops neither panic nor hang.

use crate::bench::{Bench, Gate};
use crate::common::{MIB, assert_matches};
use crate::probe::Probe;
use crate::site::{ONLY_COMPLETE, Site, Worker, builder, eventually};
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use weirpool::device::DeviceError;
use weirpool::*;

const CAPACITY: u64 = 16 * MIB;
const PIECE: u64 = 2 * MIB;
/// The time after which a call counts as hanging.
const PATIENCE: Duration = Duration::from_secs(15);

/// *errors-are-errors*: a sticky error while tasks of several streams, threads, a reservation, a drain and others wait.
/// From then on every device call fails.
pub(crate) fn broken_device_fails_all_waiters<B: Bench>() {
    let (site, probe) = Site::<B>::probed(CAPACITY, settings_for_waiters);
    let apart = |worker: Worker<B>| (worker.work, worker.stream);
    let (work, held) = apart(site.worker());
    let others = site.workers().map(|worker| apart(worker).1);
    let Site { pool, bench, .. } = site;
    let scene = Scene { pool, held, others };
    let strike = |gate: Gate| {
        probe.break_device();
        gate.open();
    };
    assert_all_waiters_fail(scene, &probe, || bench.hold(&work), strike);
    assert_no_pool(builder::<B>(probe.device(), CAPACITY).build());
    bench.settle(&work);
}

/// Asserts that no pool is built, because the device is broken.
pub(crate) fn assert_no_pool(built: Result<Pool, BuildError>) {
    match built {
        Err(BuildError::Device(error)) => assert!(error.is_sticky(), "{error}"),
        other => panic!("{other:?} over a broken device"),
    }
}

/// Sets what a pool needs so that every kind of request waits.
pub(crate) fn settings_for_waiters(builder: PoolBuilder) -> PoolBuilder {
    builder.capacity(CAPACITY).tuning(|tuning| {
        tuning.lane_bytes = 0;
        tuning.reuse = ONLY_COMPLETE;
    })
}

fn guest() -> Tag {
    Tag::new("broken: guest")
}

/// A pool, a stream that is about to be held, and some more streams. There are no other handles.
pub(crate) struct Scene {
    pub(crate) pool: Pool,
    pub(crate) held: Stream,
    pub(crate) others: [Stream; 3],
}

/// Makes requests of every kind wait for memory that is pending on the held stream, and breaks the device.
pub(crate) fn assert_all_waiters_fail<L>(
    scene: Scene,
    probe: &Probe,
    hold: impl FnOnce() -> L,
    strike: impl FnOnce(L),
) {
    let Scene { pool, held, .. } = &scene;
    pool.tag(guest()).set_limit(Some(MIB));
    let guests = pool.allocate(held, MIB).tag(guest()).try_now().unwrap();
    let kept = pool.try_allocate(held, MIB).unwrap();
    let cache = pool.allocate(held, PIECE).room(CAPACITY).try_now().ok();
    let pieces: Vec<_> = std::iter::from_fn(|| pool.try_allocate(held, PIECE).ok()).collect();
    assert!(pieces.len() > 4);
    let latch = hold();
    let mut waiters = Waiters::new();
    waiters.wait_for_points(&scene, pieces);
    waiters.wait_for_memory(&scene);
    waiters.wait_to_grow(&scene, cache);
    waiters.block_threads(&scene);
    waiters.drain(&scene);
    waiters.gather(pool);
    let reclaimer = waiters.runtime.spawn(pool.maintain().reclaimer());
    let before = Standing::of(pool, probe);
    strike(latch);
    waiters.assert_failed();
    assert_nothing_is_given(&scene);
    in_time("dropping the blocks", move || drop((guests, kept)));
    assert_nothing_is_given(&scene);
    let after = Standing::of(pool, probe);
    assert_eq!(after, before, "memory that work may use was moved");
    let taken = probe.held();
    in_time("dropping the last handles", move || drop(scene));
    assert_eq!(probe.held(), taken, "leaked, rather than given back");
    waiters.end(reclaimer);
}

/// Where memory is. A broken device must not change this.
#[derive(Debug, PartialEq)]
struct Standing {
    reserved: u64,
    free: u64,
    unmapped: u64,
    given_back: u64,
}

impl Standing {
    fn of(pool: &Pool, probe: &Probe) -> Self {
        let statistics = pool.inspect().statistics();
        Self {
            reserved: statistics.reserved.current,
            free: statistics.free,
            unmapped: probe.calls("unmap"),
            given_back: probe.calls("destroy") + probe.calls("free"),
        }
    }
}

fn assert_nothing_is_given(scene: &Scene) {
    let Scene { pool, held, others } = scene;
    for stream in others.iter().chain([held]) {
        for bytes in [512, PIECE] {
            verdict(pool.try_allocate(stream, bytes)).unwrap();
        }
        verdict(stream.event()).unwrap();
    }
    verdict(pool.reserve(MIB).try_now()).unwrap();
    verdict(pool.trim_to(0)).unwrap();
    pool.inspect().check().unwrap();
    assert_eq!(pool.inspect().statistics().waits.waiting, 0);
}

fn in_time(what: &str, call: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(call);
    eventually(|| thread.is_finished());
    assert!(thread.join().is_ok(), "{what} panicked");
}

/// An error that may be the device's.
trait Failure: Debug {
    fn of_device(&self) -> Option<&DeviceError>;
}

impl Failure for DeviceError {
    fn of_device(&self) -> Option<&DeviceError> {
        Some(self)
    }
}

macro_rules! failures {
    ($($kind:ident),+) => {$(
        impl Failure for $kind {
            fn of_device(&self) -> Option<&DeviceError> {
                match self {
                    $kind::Device(error) => Some(error),
                    _ => None,
                }
            }
        }
    )+};
}

failures!(AllocError, DrainError, StreamError);

/// Returns whether a waiter got the error of the broken device; otherwise, the answer that it got.
fn verdict<T, E: Failure>(answer: Result<T, E>) -> Result<(), String> {
    match answer {
        Ok(_) => Err("succeeded".to_owned()),
        Err(error) if error.of_device().is_some_and(DeviceError::is_sticky) => Ok(()),
        Err(error) => Err(format!("failed with {error:?}")),
    }
}

type Verdict = (&'static str, Result<(), String>);

/// The waiters.
struct Waiters {
    runtime: Runtime,
    names: Vec<&'static str>,
    /// How many of them are in the pool's queue, or in the quota queue of a tag.
    in_queue: usize,
    begun: Arc<AtomicUsize>,
    report: Sender<Verdict>,
    reports: Receiver<Verdict>,
}

impl Waiters {
    fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let (report, reports) = channel();
        Self {
            runtime: runtime.worker_threads(2).enable_time().build().unwrap(),
            names: Vec::new(),
            in_queue: 0,
            begun: Arc::default(),
            report,
            reports,
        }
    }

    /// Spawns a task that must wait, and reports its result.
    fn spawn<T: Send, E: Failure + Send>(
        &mut self,
        name: &'static str,
        waiting: impl Future<Output = Result<T, E>> + Send + 'static,
    ) {
        self.names.push(name);
        let (begun, report) = (self.begun.clone(), self.report.clone());
        self.runtime.spawn(async move {
            let mut waiting = pin!(waiting);
            let first = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
            begun.fetch_add(1, Ordering::SeqCst);
            let verdict = match first {
                Poll::Ready(answer) => Err(format!("did not wait: {:?}", answer.err())),
                Poll::Pending => verdict(waiting.await),
            };
            let _ = report.send((name, verdict));
        });
    }

    /// Spawns a task that must wait for memory, and reports its result.
    fn queue<T: Send, E: Failure + Send>(
        &mut self,
        name: &'static str,
        waiting: impl Future<Output = Result<T, E>> + Send + 'static,
    ) {
        self.in_queue += 1;
        self.spawn(name, waiting);
    }

    /// Frees the pieces, and waits for the held stream in every way.
    fn wait_for_points(&mut self, scene: &Scene, mut pieces: Vec<Block>) {
        let Scene { pool, held, .. } = scene;
        if pool.inspect().describe().memory_kind.is_seen_by_host() {
            let mut piece = pieces.pop().unwrap();
            self.spawn("the host", async move { piece.host().await.map(drop) });
        }
        self.spawn("a free", pieces.pop().unwrap().deallocate());
        drop(pieces);
        self.spawn("an event", held.event().unwrap().into_future());
        self.spawn("a synchronization", held.synchronize());
    }

    fn wait_for_memory(&mut self, scene: &Scene) {
        let names = ["a block", "another block", "a third"];
        for (name, stream) in names.into_iter().zip(scene.others.clone()) {
            let pool = scene.pool.clone();
            let waiting = async move { pool.allocate(&stream, 8 * MIB).await };
            self.queue(name, waiting);
        }
        let [stream, ..] = scene.others.clone();
        let pool = scene.pool.clone();
        self.queue("several blocks", async move {
            pool.allocate_many(&stream, [PIECE; 3]).await
        });
        let pool = scene.pool.clone();
        self.queue("a reservation", async move {
            pool.reserve(8 * MIB).await.map(drop)
        });
        let (pool, stream) = (scene.pool.clone(), scene.held.clone());
        self.queue("a tag at its limit", async move {
            pool.allocate(&stream, MIB).tag(guest()).await
        });
    }

    /// Waits for growth, if memory is virtual.
    fn wait_to_grow(&mut self, scene: &Scene, cache: Option<Block>) {
        let Some(mut cache) = cache else {
            return;
        };
        self.queue(
            "a block that grows",
            async move { cache.grow(8 * MIB).await },
        );
        let (pool, [.., stream]) = (scene.pool.clone(), scene.others.clone());
        self.queue("a block with room", async move {
            pool.allocate(&stream, 8 * MIB).room(CAPACITY).await
        });
    }

    /// Waits on threads without an executor.
    fn block_threads(&mut self, scene: &Scene) {
        let (pool, [stream, ..]) = (scene.pool.clone(), scene.others.clone());
        self.block("a thread", move || {
            verdict(pool.allocate(&stream, PIECE).blocking())
        });
        let pool = scene.pool.clone();
        self.block("a thread that reserves", move || {
            verdict(pool.reserve(PIECE).blocking())
        });
    }

    fn block(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) {
        self.names.push(name);
        self.in_queue += 1;
        let (begun, report) = (self.begun.clone(), self.report.clone());
        thread::spawn(move || {
            begun.fetch_add(1, Ordering::SeqCst);
            let _ = report.send((name, call()));
        });
    }

    fn drain(&mut self, scene: &Scene) {
        self.spawn("a drain", scene.pool.drain());
    }

    /// Returns once all of them wait.
    fn gather(&self, pool: &Pool) {
        eventually(|| {
            let waiting = pool.inspect().statistics().waits.waiting;
            let begun = self.begun.load(Ordering::SeqCst);
            (waiting, begun) == (self.in_queue, self.names.len())
        });
    }

    fn assert_failed(&mut self) {
        let mut complaints = Vec::new();
        while !self.names.is_empty() {
            let Ok((name, verdict)) = self.reports.recv_timeout(PATIENCE) else {
                panic!("no result: {:?}; others: {complaints:?}", self.names);
            };
            self.names.retain(|waiting| *waiting != name);
            complaints.extend(verdict.err().map(|text| format!("{name} {text}")));
        }
        assert!(complaints.is_empty(), "{complaints:?}");
    }

    /// Asserts that the reclaimer ends once the pool is gone, and the runtime with it.
    fn end(self, reclaimer: JoinHandle<()>) {
        let ended = async { tokio::time::timeout(PATIENCE, reclaimer).await };
        let ended = self.runtime.block_on(ended);
        assert_matches!(ended, Ok(Ok(())), "the reclaimer");
        let runtime = self.runtime;
        in_time("shutting the runtime down", move || drop(runtime));
    }
}
