//! The backend of the tests on a GPU, with memory of each kind.

use crate::bench::{Bench, Gate, Span};
use crate::gpu::{Gpu, another_context, settle};
use crate::harness::gpu;
use cudarc::driver::{CudaContext, CudaStream};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::device::cuda::{CudaDevice, ExternalStream};
use weirpool::{PoolBuilder, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// A way to open the device, and to build pools on it.
pub(crate) trait Setting: Send + Sync + 'static {
    const VIRTUAL_MEMORY: bool = true;
    const UPSTREAM: Upstream = Upstream::Virtual;

    fn memory(builder: PoolBuilder, _device: &Arc<dyn Device>) -> PoolBuilder {
        builder.upstream(Self::UPSTREAM)
    }
}

/// Virtual memory, if the device supports it: the default.
pub(crate) struct Mapped;

impl Setting for Mapped {}

/// Plain memory. Freeing it waits for all work of the device, so no test frees any while it holds a stream. Pools free
/// it only when they are trimmed, when they end, or for an allocation for which free memory exists only in pieces.
pub(crate) struct Plain;

impl Setting for Plain {
    const VIRTUAL_MEMORY: bool = false;
}

/// Page-locked memory of the host. Kernels access it in place, and freeing it waits like freeing plain memory.
pub(crate) struct Pinned;

impl Setting for Pinned {
    const UPSTREAM: Upstream = Upstream::Pinned;
}

/// Memory that migrates to the processor that uses it. Freeing it waits like freeing plain memory.
pub(crate) struct Managed;

impl Setting for Managed {
    const UPSTREAM: Upstream = Upstream::Managed;
}

/// Segments of the default pool of the driver.
pub(crate) struct DriverPools;

impl Setting for DriverPools {
    const UPSTREAM: Upstream = Upstream::Device;

    fn memory(builder: PoolBuilder, device: &Arc<dyn Device>) -> PoolBuilder {
        match DriverPool::default_of(device) {
            Ok(default) => builder.segment_source(default.segments(DriverPoolUse::SubAllocated)),
            // The driver has no pools, or is broken.
            Err(_) => builder.upstream(Self::UPSTREAM),
        }
    }
}

/// A separate device on the one context that all tests share. Creating a context takes a good part of a second, and
/// contexts take turns on the device.
pub(crate) struct Cuda<S> {
    pub(crate) device: CudaDevice,
    pub(crate) gpu: Arc<Gpu>,
    /// Shared by all clones.
    in_use: Arc<()>,
    setting: PhantomData<S>,
}

impl<S> Clone for Cuda<S> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            gpu: self.gpu.clone(),
            in_use: self.in_use.clone(),
            setting: PhantomData,
        }
    }
}

/// A device that a test has used, to detect that it is gone.
struct Footprint {
    in_use: Weak<()>,
    /// Held by the device, and by its streams.
    context: Weak<CudaContext>,
}

static DEVICES: Mutex<Vec<Footprint>> = Mutex::new(Vec::new());

/// Waits until devices that no test uses any more are gone, and all their memory is released. Pools that ended release
/// their memory on separate threads. Releasing plain memory waits for the whole device, and blocks other calls of the
/// driver meanwhile: forever, if a test then holds a stream. Unlocking a few gigabytes takes seconds.
pub(crate) fn await_releases() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let start = Instant::now();
    let mut at_work = Instant::now();
    let mut devices = DEVICES.lock().unwrap();
    let is_ending =
        |device: &Footprint| device.in_use.strong_count() == 0 && device.context.strong_count() > 0;
    while devices.iter().any(is_ending) && start.elapsed() < PATIENCE {
        if has_threads_at_work() {
            at_work = Instant::now();
        }
        // No thread has worked for that long, so the rest was leaked on purpose.
        if at_work.elapsed() > QUIET {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    devices.retain(|device| device.in_use.strong_count() > 0);
}

/// How long to wait where the system does not report working threads.
const QUIET: Duration = Duration::from_millis(if cfg!(target_os = "linux") { 50 } else { 1000 });

/// The thread of the process that watches events.
const LASTING: &str = "weirpool-cuda";

/// Returns whether a thread of a pool works, other than those that last.
fn has_threads_at_work() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let names = threads.filter_map(|thread| {
        let path = thread.ok()?.path().join("comm");
        std::fs::read_to_string(path).ok()
    });
    names
        .into_iter()
        .any(|name| name.starts_with("weirpool-") && name.trim_end() != LASTING)
}

const A_WHILE: Duration = Duration::from_micros(20);

/// By then, work that wrongly does not wait is submitted. It takes some tens of microseconds.
const LONG_ENOUGH: Duration = Duration::from_millis(2);

impl<S: Setting> Cuda<S> {
    /// Opens a separate handle on the context. It shows when the device is gone.
    fn over(gpu: Arc<Gpu>, context: Arc<CudaContext>) -> Self {
        let in_use = Arc::new(());
        let gone = Footprint {
            in_use: Arc::downgrade(&in_use),
            context: Arc::downgrade(&context),
        };
        DEVICES.lock().unwrap().push(gone);
        let builder = CudaDevice::builder().context(context);
        let device = builder.virtual_memory(S::VIRTUAL_MEMORY).build();
        Self {
            device: device.expect("a device that works"),
            gpu,
            in_use,
            setting: PhantomData,
        }
    }

    /// Keeps the stream busy for this time.
    pub(crate) fn spend_time(&self, work: &CudaStream, time: Duration) {
        self.gpu.spend(work, time);
    }
}

impl<S: Setting> Bench for Cuda<S> {
    type Work = Arc<CudaStream>;
    type External = ExternalStream;

    // A stream's handle is an address in the driver, which may or may not be reused.
    const RECYCLES_STREAM_HANDLES: Option<bool> = None;
    const IS_OF_ONE_HOST: bool = true;
    const UPSTREAM: Upstream = S::UPSTREAM;

    fn memory(builder: PoolBuilder, device: &Arc<dyn Device>) -> PoolBuilder {
        S::memory(builder, device)
    }

    fn new() -> Self {
        await_releases();
        let gpu = gpu();
        let context = CudaContext::new(gpu.context().ordinal());
        let context = context.expect("the primary context, once more");
        // SAFETY: the tests do not use slices whose order cudarc tracks by events. With tracking, cudarc would wait for
        // the whole device when the first stream is created.
        unsafe { context.disable_event_tracking() };
        Self::over(gpu, context)
    }

    /// A further device needs a separate context.
    fn another(&self) -> Self {
        let context = another_context(self.gpu.context());
        let gpu = Gpu::load(&context).expect("kernels in a further context");
        Self::over(Arc::new(gpu), context)
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.device.clone())
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.device.create_stream().expect("a stream")
    }

    fn external(&self, work: &Arc<CudaStream>) -> ExternalStream {
        // SAFETY: each test keeps the stream for as long as it uses the stream or memory allocated there. The tests
        // verify that this suffices.
        unsafe { self.device.external_stream(work.cu_stream()) }.expect("a stream of the driver's")
    }

    /// Holds the stream by a kernel of one thread that polls a number of the host. A wait of the stream for that number
    /// would hold the device's queue, and with it every stream that shares the queue.
    fn hold(&self, work: &Arc<CudaStream>) -> Gate {
        let latch = self.gpu.hold(work);
        Gate::new(move || latch.open())
    }

    fn spend(&self, work: &Arc<CudaStream>) {
        self.spend_time(work, A_WHILE);
    }

    fn fill(&self, work: &Arc<CudaStream>, span: Span, value: u8) {
        self.gpu
            .fill(work, span.address, span.bytes, word_of(value));
    }

    fn compare(
        &self,
        work: &Arc<CudaStream>,
        span: Span,
        value: u8,
        answer: impl FnOnce(bool) + Send + 'static,
    ) {
        let Span { address, bytes } = span;
        self.gpu
            .compare(work, address, bytes, word_of(value), answer);
    }

    fn settle(&self, work: &Arc<CudaStream>) {
        settle(work);
    }

    fn let_run(&self) {
        std::thread::sleep(LONG_ENOUGH);
    }

    fn host_fill(&self, span: Span, value: u8) {
        if let Some(start) = seen_by_host::<S>(span) {
            // SAFETY: the memory belongs to a block of the test, and is not used otherwise now.
            unsafe { start.write_bytes(value, span.bytes as usize) };
            return;
        }
        self.gpu.write_now(span.address, span.bytes, word_of(value));
    }

    fn host_compare(&self, span: Span, value: u8) -> bool {
        if let Some(start) = seen_by_host::<S>(span) {
            // SAFETY: as above; the memory is not written now.
            let bytes = unsafe { std::slice::from_raw_parts(start, span.bytes as usize) };
            return bytes.iter().all(|byte| *byte == value);
        }
        let bytes = self.gpu.read_now(span.address, span.bytes);
        bytes.iter().all(|byte| *byte == value)
    }
}

/// Returns the host's pointer to the memory, if the host sees it.
fn seen_by_host<S: Setting>(span: Span) -> Option<*mut u8> {
    let is_seen = S::UPSTREAM.kind().is_seen_by_host();
    is_seen.then_some(span.address.to_bits() as *mut u8)
}

fn word_of(value: u8) -> u32 {
    u32::from_ne_bytes([value; 4])
}
