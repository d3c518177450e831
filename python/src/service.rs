//! The classes that `weirpool/_service.py` is built on: pools, requests that wait, reservations.

use crate::active::{Activation, Held, Source, explained, locked};
use crate::device_pool::{self, DevicePool};
use crate::evictables::Entry;
use crate::region::{self, NativeInside, NativeRegion};
use crate::regions::Inside;
use crate::waiting::{self, Terms, Wait};
use crate::{fork, settings};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::borrow::Cow;
use std::ffi::{OsStr, c_int};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};
use weirpool::{
    AllocError, Block, CopyError, DrainError, Evictable, Pinned, Pool, QueueLimit, Stream,
    StreamError, Tag,
};
use weirpool_dashboard::Dashboard;
use weirpool_tiers::RegionError;

/// How long a blocking wait leaves signals unanswered.
const SLICE: Duration = Duration::from_millis(50);

/// The least that a retry is put off, however quickly memory comes back.
const LEAST_RETRY: Duration = Duration::from_millis(1);

/// How long a client of the page may take to send a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most connections to the page.
const CONNECTIONS: usize = 128;

/// Adds the classes and functions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativePool>()?;
    module.add_class::<NativeWait>()?;
    module.add_class::<NativeReservation>()?;
    module.add_class::<NativeActivation>()?;
    module.add_class::<NativeStream>()?;
    module.add_class::<NativeBlock>()?;
    module.add_class::<NativeEvictable>()?;
    module.add_class::<NativeEntry>()?;
    module.add_class::<NativePage>()?;
    module.add_class::<NativeRegion>()?;
    module.add_class::<NativeInside>()?;
    module.add_function(wrap_pyfunction!(stop_waiting, module)?)?;
    module.add_function(wrap_pyfunction!(size, module)?)
}

/// Ends waits, and the thread that tells event loops. Called at the end of the process.
#[pyfunction]
fn stop_waiting(py: Python<'_>) {
    if fork::is_child() {
        return;
    }
    waiting::stop();
    // It may be waiting for Python's lock.
    py.detach(stop_telling);
}

/// Returns the bytes that a number or a text such as `2GiB` means.
#[pyfunction]
fn size(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let is_bool = value.is_instance_of::<pyo3::types::PyBool>();
    if let Ok(text) = value.extract::<String>() {
        let bytes = settings::bytes(OsStr::new(&text));
        return bytes.filter(|bytes| *bytes <= u64::MAX / 2).ok_or_else(|| {
            PyValueError::new_err(format!(
                "the size is {text:?}: expected fewer than 2^63 bytes, such as \"2GiB\", \"1500MB\" or 4096"
            ))
        });
    }
    match value.extract::<i128>() {
        Ok(bytes) if !is_bool && bytes > 0 && bytes <= i128::from(u64::MAX / 2) => Ok(bytes as u64),
        Ok(bytes) if !is_bool => Err(PyValueError::new_err(format!(
            "the size is {bytes} bytes: expected a number from 1 to 2^63 - 1"
        ))),
        _ => Err(PyTypeError::new_err(
            "the size is neither a number of bytes nor a text such as \"2GiB\"",
        )),
    }
}

/// Returns the exception for a refused request; see `weirpool/_errors.py`.
pub(crate) fn refused(py: Python<'_>, error: &AllocError, text: String) -> PyErr {
    let name = match error {
        AllocError::QueueFull(_) => "QueueFull",
        AllocError::TimedOut { .. } => "DeadlineExceeded",
        AllocError::Shed { .. } => "LoadShed",
        AllocError::TooLarge { .. } | AllocError::OverLimit { .. } => "TooLarge",
        AllocError::LimitReached { .. } => "LimitReached",
        AllocError::Exhausted(_) => "Exhausted",
        AllocError::Deadlocked(_) | AllocError::DeadlockedAtLimit { .. } => "Deadlocked",
        AllocError::NotReserved { .. } | AllocError::NotReservedForCapture { .. } => "NotReserved",
        AllocError::Stopping => "Stopping",
        AllocError::Closed => "Closed",
        AllocError::Device(_) => "DeviceFailed",
        AllocError::Stream(StreamError::Absent { .. }) => "Suspended",
        _ => "InvalidRequest",
    };
    let retry_after = error.retry_after();
    let retry_after = retry_after.map(|time| time.max(LEAST_RETRY).as_secs_f64());
    exception(py, name, text, retry_after)
}

/// Returns an exception of `weirpool/_errors.py` for a refused request.
pub(crate) fn exception(
    py: Python<'_>,
    name: &str,
    text: String,
    retry_after: Option<f64>,
) -> PyErr {
    let make = || {
        let class = py.import("weirpool._errors")?.getattr(name)?;
        class.call1((text, retry_after))
    };
    make().map_or_else(|failed| failed, PyErr::from_value)
}

pub(crate) fn in_parent() -> PyResult<()> {
    match fork::is_child() {
        true => Err(PyRuntimeError::new_err(
            "this process was forked from the one that uses the pool; start it with spawn instead of fork",
        )),
        false => Ok(()),
    }
}

pub(crate) fn seconds(name: &str, time: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            PyValueError::new_err(format!(
                "the {name} is {seconds}: expected seconds, at least 0"
            ))
        })
    };
    time.map(convert).transpose()
}

fn json<T: serde::Serialize>(figures: &T) -> PyResult<String> {
    serde_json::to_string(figures).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// An event loop's future that is to be settled.
struct Settled {
    /// Weak references, so that a request keeps neither a loop nor a task alive.
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
    settle: Py<PyAny>,
    wait: Arc<Wait<Outcome>>,
}

/// An event loop, one of its futures, and the function that settles that: the first two as weak references.
pub(crate) type Told = (Py<PyAny>, Py<PyAny>, Py<PyAny>);

/// What a request that waits ends with.
pub(crate) enum Outcome {
    Reserved(Result<Arc<Held>, AllocError>),
    Entered(Result<Vec<Arc<Inside>>, RegionError>),
    /// With the bytes that were given back.
    Suspended(Result<u64, RegionError>),
    Resumed(Result<(), RegionError>),
}

/// Begins to wait. If a loop is given, calls `settle` in it with the future once the outcome is there.
pub(crate) fn begin(
    py: Python<'_>,
    pool: &Pool,
    request: impl Future<Output = Outcome> + Send + 'static,
    told: Option<Told>,
) -> PyResult<NativeWait> {
    let begun = py.detach(|| match told {
        None => Wait::begin(request, |_| ()),
        Some((event_loop, future, settle)) => {
            let sender = teller()?;
            let tell = move |wait: &Arc<Wait<Outcome>>| {
                let settled = Settled {
                    event_loop,
                    future,
                    settle,
                    wait: wait.clone(),
                };
                if let Err(unsent) = sender.send(News::Settled(settled)) {
                    // Without the interpreter the references cannot be given up.
                    std::mem::forget(unsent);
                }
            };
            Wait::begin(request, tell)
        }
    });
    let wait = begun.map_err(PyRuntimeError::new_err)?;
    let pool = pool.clone();
    Ok(NativeWait { wait, pool })
}

impl Settled {
    /// Settles the future. Cancels the request if nobody is left to take its outcome: the loop was closed, or is gone.
    fn tell(self, py: Python<'_>) {
        let present = |reference: &Py<PyAny>| {
            let value = reference.call0(py).ok()?;
            (!value.is_none(py)).then_some(value)
        };
        let told = present(&self.event_loop).zip(present(&self.future));
        let told = told.and_then(|(event_loop, future)| {
            let call = event_loop.call_method1(py, "call_soon_threadsafe", (self.settle, future));
            call.ok()
        });
        if told.is_none() {
            py.detach(|| self.wait.cancel());
        }
    }
}

/// The thread that tells event loops. It alone takes Python's lock, so that threads that serve requests never wait for that.
struct Teller {
    sender: Sender<News>,
    thread: JoinHandle<()>,
}

enum News {
    Settled(Settled),
    /// The interpreter is about to end.
    End,
}

static TELLER: Mutex<Option<Teller>> = Mutex::new(None);

/// Returns a sender to the thread that tells event loops, which is started on the first call.
///
/// # Errors
/// Returns an error if the system starts no thread, or at the end of the process.
fn teller() -> Result<Sender<News>, String> {
    let mut teller = locked(&TELLER);
    if waiting::has_stopped() {
        return Err("the process is ending".to_owned());
    }
    if let Some(teller) = &*teller {
        return Ok(teller.sender.clone());
    }
    let (sender, receiver): (_, Receiver<News>) = channel();
    let tell = move || {
        while let Ok(News::Settled(first)) = receiver.recv() {
            Python::try_attach(|py| first.tell(py));
        }
    };
    let thread = std::thread::Builder::new().name("weirpool-tell".to_owned());
    let thread = thread.spawn(tell);
    let thread =
        thread.map_err(|error| format!("the system starts no thread to wait on: {error}"))?;
    *teller = Some(Teller {
        sender: sender.clone(),
        thread,
    });
    Ok(sender)
}

/// Ends the thread that tells event loops, before the interpreter ends: then no thread may call Python any more.
fn stop_telling() {
    let teller = locked(&TELLER).take();
    if let Some(Teller { sender, thread }) = teller {
        let _ = sender.send(News::End);
        let _ = thread.join();
    }
}

enum Kind {
    Device(&'static DevicePool),
    Simulated(SimDevice, Stream),
}

/// A pool.
#[pyclass(frozen, module = "weirpool._native")]
pub(crate) struct NativePool {
    pool: ManuallyDrop<Pool>,
    kind: ManuallyDrop<Kind>,
}

impl Drop for NativePool {
    fn drop(&mut self) {
        if !fork::is_child() {
            // SAFETY: neither is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.kind);
                ManuallyDrop::drop(&mut self.pool);
            }
        }
    }
}

impl NativePool {
    fn of(pool: &Pool, kind: Kind) -> Self {
        Self {
            pool: ManuallyDrop::new(pool.clone()),
            kind: ManuallyDrop::new(kind),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the pool of a GPU, if it is one.
    pub(crate) fn of_gpu(&self) -> Option<&'static DevicePool> {
        match &*self.kind {
            Kind::Device(pool) => Some(pool),
            Kind::Simulated(..) => None,
        }
    }

    fn device_pool(&self) -> PyResult<&'static DevicePool> {
        let simulated = || PyTypeError::new_err("the pool is simulated");
        self.of_gpu().ok_or_else(simulated)
    }
}

#[pymethods]
impl NativePool {
    #[staticmethod]
    #[pyo3(signature = (memory, *, queue_limit=None, load_shedding=false, fail_deadlocks_after=None, broker=None))]
    fn simulated(
        py: Python<'_>,
        memory: u64,
        queue_limit: Option<usize>,
        load_shedding: bool,
        fail_deadlocks_after: Option<f64>,
        broker: Option<String>,
    ) -> PyResult<Self> {
        in_parent()?;
        fork::watch();
        let limit = seconds("limit of deadlocks", fail_deadlocks_after)?;
        py.detach(|| {
            let device = SimDevice::builder().memory(memory).clock(Clock::Wall);
            let device = device.build();
            let mut builder = Pool::builder(device.clone()).capacity(memory);
            if let Some(limit) = queue_limit {
                builder = builder.queue_limit(limit);
            }
            if load_shedding {
                builder = builder.load_shedding();
            }
            if let Some(limit) = limit {
                builder = builder.fail_deadlocks_after(limit);
            }
            if let Some(socket) = broker {
                builder = weirpool_broker::lease_capacity(builder, socket);
            }
            let pool = builder.build().map_err(|error| error.to_string())?;
            let stream = pool.create_stream().map_err(|error| error.to_string())?;
            Ok(Self::of(&pool, Kind::Simulated(device, stream)))
        })
        .map_err(|error: String| PyRuntimeError::new_err(error))
    }

    /// Returns the pool of a device, which is created on the first call.
    #[staticmethod]
    fn of_device(py: Python<'_>, device: c_int) -> PyResult<Self> {
        let opened = py.detach(|| device_pool::open(device));
        let opened = opened.map_err(PyRuntimeError::new_err)?;
        Ok(Self::of(opened.pool(), Kind::Device(opened)))
    }

    /// Begins to wait for a reservation. If a loop is given, calls `settle` in it with the future once the outcome is
    /// there.
    #[pyo3(signature = (sizes, *, tag=None, deadline=None, timeout=None, priority=0, told=None))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn wait(
        &self,
        py: Python<'_>,
        sizes: Vec<u64>,
        tag: Option<&str>,
        deadline: Option<f64>,
        timeout: Option<f64>,
        priority: i32,
        told: Option<Told>,
    ) -> PyResult<NativeWait> {
        in_parent()?;
        let terms = terms(sizes, tag, deadline, timeout, priority)?;
        let request = terms.reserved(Pool::clone(&self.pool));
        let request = async move { Outcome::Reserved(request.await) };
        begin(py, &self.pool, request, told)
    }

    /// Reserves memory that is available now.
    #[pyo3(signature = (sizes, *, tag=None, priority=0))]
    fn try_reserve(
        &self,
        py: Python<'_>,
        sizes: Vec<u64>,
        tag: Option<&str>,
        priority: i32,
    ) -> PyResult<NativeReservation> {
        in_parent()?;
        let terms = terms(sizes, tag, None, None, priority)?;
        let outcome = py.detach(|| reserved(&self.pool, terms.try_now(&self.pool)));
        outcome.map_err(|(error, text)| refused(py, &error, text))
    }

    /// Returns the figures as JSON.
    fn figures(&self, py: Python<'_>) -> PyResult<String> {
        in_parent()?;
        py.detach(|| {
            let _ = self.pool.maintain().reap();
            json(&serde_json::json!({
                "pool": self.pool.inspect().statistics(),
                "tags": self.pool.inspect().statistics_by_tag(),
                "waiting": self.pool.inspect().waiting_requests(1000),
            }))
        })
    }

    /// Returns the holders of the memory, as messages list them; empty if there are none.
    fn holders(&self, py: Python<'_>) -> PyResult<String> {
        in_parent()?;
        Ok(py.detach(|| crate::active::holders(&self.pool)))
    }

    fn capacity(&self) -> u64 {
        self.pool.capacity()
    }

    fn expected_wait(&self, py: Python<'_>, bytes: u64) -> PyResult<Option<f64>> {
        in_parent()?;
        let wait = py.detach(|| self.pool.inspect().expected_wait(bytes));
        Ok(wait.map(|time| time.as_secs_f64()))
    }

    #[pyo3(signature = (requests, bytes=None))]
    fn set_queue_limit(
        &self,
        py: Python<'_>,
        requests: Option<usize>,
        bytes: Option<u64>,
    ) -> PyResult<()> {
        in_parent()?;
        py.detach(|| {
            self.pool
                .maintain()
                .set_queue_limit(queue_limit(requests, bytes))
        });
        Ok(())
    }

    fn set_weight(&self, py: Python<'_>, tag: &str, weight: u32) -> PyResult<()> {
        in_parent()?;
        py.detach(|| self.pool.tag(Tag::new(tag)).set_weight(weight));
        Ok(())
    }

    fn set_limit(&self, py: Python<'_>, tag: &str, limit: Option<u64>) -> PyResult<()> {
        in_parent()?;
        py.detach(|| self.pool.tag(Tag::new(tag)).set_limit(limit));
        Ok(())
    }

    #[pyo3(signature = (tag, requests, bytes=None))]
    fn set_tag_queue_limit(
        &self,
        py: Python<'_>,
        tag: &str,
        requests: Option<usize>,
        bytes: Option<u64>,
    ) -> PyResult<()> {
        in_parent()?;
        let limit = (requests.is_some() || bytes.is_some()).then(|| queue_limit(requests, bytes));
        py.detach(|| self.pool.tag(Tag::new(tag)).set_queue_limit(limit));
        Ok(())
    }

    fn tag_figures(&self, py: Python<'_>, tag: &str) -> PyResult<String> {
        in_parent()?;
        py.detach(|| json(&self.pool.tag(Tag::new(tag)).statistics()))
    }

    /// Charges the allocations of this thread outside reservations to a tag.
    #[pyo3(signature = (tag, thread, stream=None))]
    fn activate_tag(
        &self,
        tag: &str,
        thread: String,
        stream: Option<u64>,
    ) -> PyResult<NativeActivation> {
        in_parent()?;
        let source = Source::Tag(Tag::new(tag));
        Ok(NativeActivation::begin(&self.pool, source, thread, stream))
    }

    /// Fails requests that wait and new ones from now on. Reservations go on.
    fn stop_admitting(&self, py: Python<'_>) -> PyResult<()> {
        in_parent()?;
        py.detach(|| self.pool.stop_admitting());
        Ok(())
    }

    /// Waits until all memory is free, on this thread, for up to so many seconds.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        in_parent()?;
        let timeout = seconds("timeout", Some(timeout))?.unwrap_or_default();
        let drained = py.detach(|| self.pool.drain().timeout(timeout).blocking());
        drained.map_err(|error| match error {
            DrainError::TimedOut { .. } => PyTimeoutError::new_err(error.to_string()),
            error => PyRuntimeError::new_err(error.to_string()),
        })
    }

    /// Fails all requests from now on, also allocations from reservations.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        in_parent()?;
        py.detach(|| self.pool.close());
        Ok(())
    }

    /// Creates a stream of a simulated device.
    fn stream(&self, py: Python<'_>) -> PyResult<NativeStream> {
        in_parent()?;
        let Kind::Simulated(device, _) = &*self.kind else {
            return Err(PyTypeError::new_err("the pool is not simulated"));
        };
        py.detach(|| {
            let work = device.create_stream();
            let stream = self.pool.register(&work);
            let stream = stream.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
            Ok(NativeStream {
                work: ManuallyDrop::new(work),
                stream: ManuallyDrop::new(stream),
            })
        })
    }

    /// Allocates on a stream of a simulated device, as PyTorch does on a GPU: from the reservation or for the tag that is
    /// active, or else from the pool.
    #[pyo3(signature = (bytes, *, stream=None, timeout=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        bytes: u64,
        stream: Option<&NativeStream>,
        timeout: Option<f64>,
    ) -> PyResult<NativeBlock> {
        in_parent()?;
        let timeout = seconds("timeout", timeout)?.unwrap_or(Duration::from_secs(5));
        let Kind::Simulated(_, usual) = &*self.kind else {
            return Err(PyTypeError::new_err("the pool is not simulated"));
        };
        let stream = stream.map_or(usual, |stream| &stream.stream);
        let outcome = py.detach(|| {
            let allocate = || {
                let request = self.pool.allocate(stream, bytes).timeout(timeout);
                match crate::active::source(&self.pool, stream.raw().0) {
                    Some(Source::Reservation(held)) => held.allocate(stream, bytes),
                    Some(Source::Tag(tag)) => request.tag(tag).blocking(),
                    Some(Source::Region(inside)) => inside.allocate(stream, bytes, timeout),
                    None => request.blocking(),
                }
            };
            allocate().map_err(|error| {
                let text = explained(&self.pool, &error);
                (error, text)
            })
        });
        let block = outcome.map_err(|(error, text)| refused(py, &error, text))?;
        Ok(NativeBlock::of(block))
    }

    /// Takes the memory of a PyTorch tensor's storage. The storage is to be freed next.
    fn entry_at(&self, py: Python<'_>, address: u64, stream: usize) -> PyResult<NativeEntry> {
        in_parent()?;
        let pool = self.device_pool()?;
        let entry = py.detach(|| {
            // SAFETY: the caller passes the current stream of PyTorch, which lives.
            let stream = unsafe { pool.stream(stream as cudarc::driver::sys::CUstream) };
            let stream = stream.map_err(|error| error.to_string())?;
            let known = pool.raw().record_stream(address, &stream);
            known.map_err(|error| error.to_string())?;
            Ok(pool.entry_at(address))
        });
        match entry {
            Ok(entry) => Ok(NativeEntry { entry, pool }),
            Err(reason) => Err(foreign(py, reason)),
        }
    }

    /// Serves the live page on the loopback interface.
    #[pyo3(signature = (port=0, title=None))]
    fn serve_page(&self, py: Python<'_>, port: u16, title: Option<String>) -> PyResult<NativePage> {
        in_parent()?;
        let runtime = waiting::runtime().map_err(PyRuntimeError::new_err)?;
        // A task of the runtime keeps the last ten minutes.
        let inside = runtime.enter();
        let dashboard = Dashboard::new(&self.pool);
        drop(inside);
        let dashboard = match title {
            Some(title) => dashboard.title(title),
            None => dashboard,
        };
        let bound = py.detach(|| {
            runtime.block_on(async {
                let listener = TcpListener::bind(("127.0.0.1", port)).await?;
                let address = listener.local_addr()?;
                let (closing, closed) = oneshot::channel();
                let serving = tokio::spawn(async move {
                    tokio::select! {
                        () = serve(listener, dashboard) => {}
                        // Not if the sender is dropped: a page whose object is gone is served on.
                        Ok(()) = closed => {}
                    }
                });
                std::io::Result::Ok((address, (closing, serving)))
            })
        });
        let (address, serving) = bound.map_err(|error| {
            PyOSError::new_err(format!("no page on port {port} of 127.0.0.1: {error}"))
        })?;
        Ok(NativePage {
            address,
            serving: Mutex::new(Some(serving)),
        })
    }
}

fn foreign(py: Python<'_>, reason: String) -> PyErr {
    let make = || {
        let class = py.import("weirpool._errors")?.getattr("ForeignMemory")?;
        class.call1((reason,))
    };
    make().map_or_else(|failed| failed, PyErr::from_value)
}

/// Serves the page until this task is aborted.
async fn serve(listener: TcpListener, dashboard: Dashboard) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // The process may be out of descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(dashboard.clone());
        connections.spawn(
            hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

fn queue_limit(requests: Option<usize>, bytes: Option<u64>) -> QueueLimit {
    let mut limit = QueueLimit::NONE;
    limit.requests = requests.unwrap_or(limit.requests);
    limit.bytes = bytes.unwrap_or(limit.bytes);
    limit
}

fn terms(
    sizes: Vec<u64>,
    tag: Option<&str>,
    deadline: Option<f64>,
    timeout: Option<f64>,
    priority: i32,
) -> PyResult<Terms> {
    Ok(Terms {
        sizes,
        tag: tag.map(Tag::new),
        deadline: seconds("deadline", deadline)?,
        timeout: seconds("timeout", timeout)?,
        priority,
    })
}

/// Describes a failure while Python's lock is not held.
fn reserved(
    pool: &Pool,
    outcome: Result<Arc<Held>, AllocError>,
) -> Result<NativeReservation, (AllocError, String)> {
    match outcome {
        Ok(held) => Ok(NativeReservation(Mutex::new(Some(held)))),
        Err(error) => {
            let text = explained(pool, &error);
            Err((error, text))
        }
    }
}

/// A request that waits.
#[pyclass(frozen, module = "weirpool._native")]
pub(crate) struct NativeWait {
    wait: Arc<Wait<Outcome>>,
    pool: Pool,
}

#[pymethods]
impl NativeWait {
    /// Takes the outcome: a reservation, a hold of a region, or the bytes that regions gave back. Raises the refusal.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match py.detach(|| self.wait.take()) {
            Some(Outcome::Reserved(outcome)) => {
                let outcome = py.detach(|| reserved(&self.pool, outcome));
                let memory = outcome.map_err(|(error, text)| refused(py, &error, text))?;
                Ok(Py::new(py, memory)?.into_any())
            }
            Some(Outcome::Entered(outcome)) => {
                let inside = outcome.map_err(|error| region::refused(py, &self.pool, error))?;
                Ok(Py::new(py, NativeInside::new(inside))?.into_any())
            }
            Some(Outcome::Suspended(outcome)) => {
                let bytes = outcome.map_err(|error| region::refused(py, &self.pool, error))?;
                Ok(bytes.into_pyobject(py)?.into_any().unbind())
            }
            Some(Outcome::Resumed(outcome)) => {
                outcome.map_err(|error| region::refused(py, &self.pool, error))?;
                Ok(py.None())
            }
            None => Err(PyRuntimeError::new_err("the request has no outcome")),
        }
    }

    /// Waits for the outcome without Python's lock, and takes it. Signals are handled meanwhile.
    fn block(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        while !py.detach(|| self.wait.wait(SLICE)) {
            let interrupted = match waiting::has_stopped() {
                true => Err(PyRuntimeError::new_err("the process is ending")),
                false => py.check_signals(),
            };
            if let Err(error) = interrupted {
                py.detach(|| self.wait.cancel());
                return Err(error);
            }
        }
        self.take(py)
    }

    /// Gives up the position in the queue.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.wait.cancel());
    }
}

impl Drop for NativeWait {
    fn drop(&mut self) {
        self.wait.cancel();
    }
}

/// Memory that is set aside.
#[pyclass(frozen, module = "weirpool._native")]
struct NativeReservation(Mutex<Option<Arc<Held>>>);

impl NativeReservation {
    fn held(&self) -> PyResult<Arc<Held>> {
        in_parent()?;
        let held = locked(&self.0).clone();
        held.ok_or_else(|| PyRuntimeError::new_err("the reservation was released"))
    }
}

#[pymethods]
impl NativeReservation {
    fn size(&self) -> PyResult<u64> {
        Ok(self.held()?.size())
    }

    fn left(&self) -> PyResult<u64> {
        Ok(self.held()?.left())
    }

    fn tag(&self) -> PyResult<Option<&'static str>> {
        Ok(self.held()?.tag().map(Tag::name))
    }

    fn is_released(&self) -> bool {
        locked(&self.0).is_none()
    }

    /// Makes allocations of this thread, and of all threads on a stream if one is given, draw from the reservation.
    #[pyo3(signature = (thread, stream=None))]
    fn activate(&self, thread: String, stream: Option<u64>) -> PyResult<NativeActivation> {
        let held = self.held()?;
        let pool = held.pool().clone();
        let source = Source::Reservation(held);
        Ok(NativeActivation::begin(&pool, source, thread, stream))
    }

    fn split(&self, py: Python<'_>, bytes: u64) -> PyResult<Self> {
        let held = self.held()?;
        let part = py.detach(|| held.split(bytes));
        let part = part.map_err(|error| refused(py, &error, error.to_string()))?;
        Ok(Self(Mutex::new(Some(part))))
    }

    /// Returns the memory to the pool, once no activation uses it. Returns false if it was released before.
    fn release(&self, py: Python<'_>) -> bool {
        let held = locked(&self.0).take();
        let is_held = held.is_some();
        py.detach(|| drop(held));
        is_held
    }
}

/// Allocations draw from a reservation, or are charged to a tag, until it ends.
#[pyclass(frozen, module = "weirpool._native")]
pub(crate) struct NativeActivation(Arc<Activation>);

impl NativeActivation {
    pub(crate) fn begin(pool: &Pool, source: Source, thread: String, stream: Option<u64>) -> Self {
        Self(Activation::begin(pool, source, thread, stream))
    }
}

#[pymethods]
impl NativeActivation {
    /// Ends it, from any thread. Returns false if it has ended.
    fn end(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.end())
    }
}

impl Drop for NativeActivation {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A stream of a simulated device.
#[pyclass(frozen, module = "weirpool._native")]
struct NativeStream {
    work: ManuallyDrop<SimStream>,
    stream: ManuallyDrop<Stream>,
}

impl Drop for NativeStream {
    fn drop(&mut self) {
        if !fork::is_child() {
            // SAFETY: neither is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.stream);
                ManuallyDrop::drop(&mut self.work);
            }
        }
    }
}

#[pymethods]
impl NativeStream {
    fn handle(&self) -> u64 {
        self.stream.raw().0
    }

    /// Submits work that takes some time.
    fn work(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        in_parent()?;
        let time = self::seconds("time", Some(seconds))?.unwrap_or_default();
        py.detach(|| self.work.submit(Operation::new(time)));
        Ok(())
    }
}

/// Memory of a simulated device.
#[pyclass(frozen, module = "weirpool._native")]
struct NativeBlock {
    block: Mutex<Option<Memory>>,
    address: u64,
    size: u64,
}

enum Memory {
    Own(Block),
    Pinned(#[allow(dead_code, reason = "kept until it is dropped")] Pinned),
}

impl NativeBlock {
    fn of(block: Block) -> Self {
        Self {
            address: block.address().to_bits(),
            size: block.size(),
            block: Mutex::new(Some(Memory::Own(block))),
        }
    }

    /// Makes a copy, and waits for it.
    fn copied<T: Send, C: Future<Output = Result<T, CopyError>>>(
        &self,
        py: Python<'_>,
        copy: impl FnOnce(&mut Block) -> Result<C, CopyError> + Send,
    ) -> PyResult<T> {
        in_parent()?;
        let runtime = waiting::runtime().map_err(PyRuntimeError::new_err)?;
        let copied = py.detach(|| match &mut *locked(&self.block) {
            Some(Memory::Own(block)) => Some(copy(block).and_then(|copy| runtime.block_on(copy))),
            _ => None,
        });
        let copied = copied.ok_or_else(|| PyValueError::new_err("the block was freed"))?;
        copied.map_err(|error| match error {
            CopyError::OutOfBounds { .. } => PyValueError::new_err(error.to_string()),
            error => region::refused_copy(py, &error),
        })
    }
}

#[pymethods]
impl NativeBlock {
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    /// Frees the memory, or ends its use if it is evictable.
    fn free(&self, py: Python<'_>) -> bool {
        if fork::is_child() {
            return false;
        }
        let block = locked(&self.block).take();
        let is_here = block.is_some();
        py.detach(|| drop(block));
        is_here
    }

    /// Writes bytes from an offset on, and waits for that.
    #[pyo3(signature = (bytes, offset=0))]
    fn write(&self, py: Python<'_>, bytes: &[u8], offset: u64) -> PyResult<()> {
        self.copied(py, |block| {
            let stream = block.stream();
            let copy = block.upload(&stream, offset, bytes)?;
            Ok(async { copy.await.map_err(CopyError::from) })
        })
    }

    /// Reads `size` bytes from an offset on; all that follow by default.
    #[pyo3(signature = (offset=0, size=None))]
    fn read(&self, py: Python<'_>, offset: u64, size: Option<u64>) -> PyResult<Cow<'static, [u8]>> {
        let end = size.map_or(self.size, |size| offset.saturating_add(size));
        let bytes = self.copied(py, |block| {
            let copy = block.download(&block.stream(), offset..end)?;
            Ok(async { copy.await.map_err(CopyError::from) })
        });
        Ok(Cow::Owned(bytes?))
    }

    fn evictable(&self, py: Python<'_>, pool: &NativePool) -> PyResult<NativeEvictable> {
        in_parent()?;
        let taken = locked(&self.block).take();
        match taken {
            Some(Memory::Own(block)) if block.stream().pool() != *pool.pool => {
                *locked(&self.block) = Some(Memory::Own(block));
                Err(foreign(py, "the block belongs to another pool".to_owned()))
            }
            Some(Memory::Own(block)) => {
                let evictable = py.detach(|| block.into_evictable());
                Ok(NativeEvictable(Mutex::new(Some(evictable))))
            }
            other => {
                *locked(&self.block) = other;
                Err(foreign(
                    py,
                    "the block was freed, or is evictable already".to_owned(),
                ))
            }
        }
    }
}

impl Drop for NativeBlock {
    fn drop(&mut self) {
        if fork::is_child() {
            std::mem::forget(locked(&self.block).take());
        }
    }
}

/// Memory of a simulated device that the pool may take back.
#[pyclass(frozen, module = "weirpool._native")]
struct NativeEvictable(Mutex<Option<Evictable>>);

#[pymethods]
impl NativeEvictable {
    /// Returns the memory, which is not evicted before it is freed; or `None` if it was evicted.
    fn get(&self, py: Python<'_>) -> PyResult<Option<NativeBlock>> {
        in_parent()?;
        let pin = || {
            let evictable = locked(&self.0);
            evictable.as_ref().and_then(Evictable::pin)
        };
        let pinned = py.detach(pin);
        Ok(pinned.map(|pinned| NativeBlock {
            address: pinned.address().to_bits(),
            size: pinned.size(),
            block: Mutex::new(Some(Memory::Pinned(pinned))),
        }))
    }

    fn is_present(&self) -> bool {
        let evictable = locked(&self.0);
        evictable.as_ref().is_some_and(Evictable::is_present)
    }
}

impl Drop for NativeEvictable {
    fn drop(&mut self) {
        if fork::is_child() {
            std::mem::forget(locked(&self.0).take());
        }
    }
}

/// Memory of a PyTorch tensor that the pool may take back.
#[pyclass(frozen, module = "weirpool._native")]
struct NativeEntry {
    entry: Arc<Entry>,
    pool: &'static DevicePool,
}

#[pymethods]
impl NativeEntry {
    /// Hands the memory to this thread's next allocation. Returns false if it was evicted.
    fn hand_over(&self, py: Python<'_>) -> bool {
        !fork::is_child() && py.detach(|| self.entry.hand_over())
    }

    /// Returns whether an allocation took the memory. If none did, the memory is evictable again.
    fn was_taken(&self, py: Python<'_>) -> bool {
        py.detach(|| self.entry.was_taken())
    }

    fn is_gone(&self) -> bool {
        self.entry.is_gone()
    }

    /// Lets PyTorch free the memory at an address as usual.
    fn forget(&self, py: Python<'_>, address: u64) {
        py.detach(|| self.pool.forget_entry(address));
    }
}

/// The live page. It is served until it is closed.
#[pyclass(frozen, module = "weirpool._native")]
struct NativePage {
    address: SocketAddr,
    serving: Mutex<Option<(oneshot::Sender<()>, tokio::task::JoinHandle<()>)>>,
}

#[pymethods]
impl NativePage {
    fn port(&self) -> u16 {
        self.address.port()
    }

    /// Ends the service. The port is free when it returns.
    fn close(&self, py: Python<'_>) {
        if fork::is_child() {
            return;
        }
        let serving = locked(&self.serving).take();
        py.detach(|| {
            if let (Some((closing, serving)), Ok(runtime)) = (serving, waiting::runtime()) {
                let _ = closing.send(());
                let _ = runtime.block_on(serving);
            }
        });
    }
}
