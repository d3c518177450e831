//! The harness of the tests: it runs one test after the other, each with a time limit, and none if there is no GPU.
//!
//! The tests do not run in parallel, because they would hold up each other's work: plain memory is freed only when the
//! whole device is idle, and streams that share a queue of the device wait for each other. Beside a stream that is held
//! on purpose, a test could not tell why it hangs.
//!
//! Each test runs on its own thread, which has never used CUDA. If a test hangs, every held stream is let go, and the
//! test fails. If it still hangs, or if a context is broken, the run ends.

use crate::bench::Bench;
use crate::cuda::{Cuda, Mapped};
use crate::gpu::{self, Gpu, text_of};
use crate::soak;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{MemoryKind, MemoryKinds};

/// A test.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) test: fn(),
    /// The kind of memory that it tests.
    pub(crate) kind: MemoryKind,
    /// How many GPUs it needs.
    pub(crate) devices: usize,
}

/// The time after which a test counts as stuck.
const PATIENCE: Duration = Duration::from_secs(40);
/// The time in which a stuck test ends after its streams were let go.
const GRACE: Duration = Duration::from_secs(15);
/// If this variable is set, a machine without a GPU is a failure.
const REQUIRED: &str = "WEIRPOOL_REQUIRE_GPU";

static OPENED: OnceLock<Result<Arc<Gpu>, String>> = OnceLock::new();
/// The reason why no further test is of use.
static ENDED: OnceLock<String> = OnceLock::new();

/// Returns the GPU under test.
pub(crate) fn gpu() -> Arc<Gpu> {
    let opened = OPENED.get_or_init(open);
    opened.clone().expect("tests run only where there is one")
}

fn open() -> Result<Arc<Gpu>, String> {
    const NEEDED: usize = 12 << 30;
    let gpu = Gpu::open()?;
    let free = gpu.context().mem_get_info().map(|(free, _)| free);
    let free = free.map_err(|error| format!("the device does not work: {error}"))?;
    if free < NEEDED {
        return Err(format!(
            "{free} bytes of the device are free, and the tests need {NEEDED}"
        ));
    }
    Ok(Arc::new(gpu))
}

/// Returns whether there is a GPU. Prints a line with its name, or with the reason why there is none.
fn is_there() -> bool {
    match OPENED.get_or_init(open) {
        Ok(_) => eprintln!("gpu: {}", crate::facts::description()),
        Err(reason) => eprintln!("gpu: skipped: {reason}"),
    }
    OPENED.get().is_some_and(Result::is_ok)
}

pub(crate) fn has(kind: MemoryKind) -> bool {
    static KINDS: OnceLock<MemoryKinds> = OnceLock::new();
    let kinds = KINDS.get_or_init(|| Cuda::<Mapped>::new().device().capabilities().memory_kinds);
    kinds.contains(kind)
}

/// Runs the tests that the command line selects.
pub(crate) fn run(entries: Vec<Entry>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let is_missing = !arguments.list && !is_there();
    let trial = |entry: Entry| {
        Trial::ignorable_test(entry.name.clone(), move || {
            if is_missing {
                return Ok(Completion::ignored());
            }
            if !has(entry.kind) {
                let reason = format!("this device has no {}", entry.kind);
                return Ok(Completion::ignored_with(reason));
            }
            let there = CudaDevice::all().map_or(0, |all| all.len());
            if there < entry.devices {
                let needed = entry.devices;
                let reason = format!("this needs {needed} GPUs, and there is {there}");
                return Ok(Completion::ignored_with(reason));
            }
            guarded(&entry.name, entry.test).map(|()| Completion::Completed)
        })
    };
    let trials = entries.into_iter().map(trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if is_missing && std::env::var_os(REQUIRED).is_some() {
        eprintln!("gpu: failed: {REQUIRED} is set, and nothing was tested");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn guarded(name: &str, test: fn()) -> Result<(), Failed> {
    if let Some(reason) = ENDED.get() {
        return Err(format!("not run: {reason}").into());
    }
    let ended = watched(name, test);
    let broken = ENDED.get().is_none().then(|| broken_by(name)).flatten();
    crate::cuda::await_releases();
    let complaints = gpu::take_complaints();
    let mut failures: Vec<_> = ended.err().into_iter().chain(broken).collect();
    failures.extend(complaints);
    let notes = gpu::take_notes();
    if failures.is_empty() {
        return Ok(());
    }
    failures.extend(notes.into_iter().map(|note| format!("note: {note}")));
    Err(failures.join("\n").into())
}

/// Returns the time limit of a test. A soak test may be configured to take longer.
fn patience() -> Duration {
    PATIENCE.max(soak::duration() * 2)
}

/// Runs the test to its end or to the time limit.
fn watched(name: &str, test: fn()) -> Result<(), String> {
    let (send, ended) = sync_channel(1);
    let thread = thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        let result = catch_unwind(test).map_err(|payload| text_of(&*payload));
        // The receiver is gone if the test took too long.
        let _ = send.send(result);
    });
    started.expect("a thread for the test");
    match ended.recv_timeout(patience()) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => Err("the test's thread ended without a word".into()),
        Err(RecvTimeoutError::Timeout) => Err(let_go(name, &ended)),
    }
}

fn let_go(name: &str, ended: &Receiver<Result<(), String>>) -> String {
    let held = gpu::open_all();
    let patience = patience();
    let hangs = format!("it hung for {patience:?}; {held} held streams were let go");
    match ended.recv_timeout(GRACE) {
        Ok(Ok(())) => format!("{hangs}; then it came to its end"),
        Ok(Err(text)) => format!("{hangs}; then it failed: {text}"),
        Err(_) => {
            let _ = ENDED.set(format!("`{name}` hangs"));
            format!("{hangs}; it hangs still")
        }
    }
}

/// Returns the sticky error that a test left, if any: it would make every later test fail for no visible reason. Waits
/// for pending work and releases of the test.
fn broken_by(name: &str) -> Option<String> {
    let error = gpu().context().synchronize().err()?;
    let _ = ENDED.set(format!("`{name}` left the context broken: {error}"));
    Some(format!("the context is broken: {error}"))
}
