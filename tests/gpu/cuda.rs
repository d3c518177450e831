//! A GPU on the bench, with virtual memory and without.

use crate::bench::{Bench, Gate, Span};
use crate::gpu::{Gpu, another_context, settle};
use crate::harness::{await_releases, gpu};
use cudarc::driver::CudaStream;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;

/// One way to open the device.
pub(crate) trait Setting: Send + Sync + 'static {
    const VIRTUAL_MEMORY: bool;
}

/// Virtual memory, where the device has it: the default.
pub(crate) struct Mapped;

impl Setting for Mapped {
    const VIRTUAL_MEMORY: bool = true;
}

/// Plain memory. Giving it back waits for all work of the device, so no test gives any back while it holds
/// a stream: pools do so only when they are trimmed, when they end, or for an allocation that free memory
/// in pieces would do for.
pub(crate) struct Plain;

impl Setting for Plain {
    const VIRTUAL_MEMORY: bool = false;
}

/// A device of its own over the one context that all tests share: contexts take a good part of a second
/// to make, and take turns on the device.
pub(crate) struct Cuda<S> {
    pub(crate) device: CudaDevice,
    pub(crate) gpu: Arc<Gpu>,
    setting: PhantomData<S>,
}

impl<S> Clone for Cuda<S> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            gpu: self.gpu.clone(),
            setting: PhantomData,
        }
    }
}

const A_WHILE: Duration = Duration::from_micros(20);

/// Work that wrongly does not wait is submitted by now, and takes some tens of microseconds.
const LONG_ENOUGH: Duration = Duration::from_millis(2);

impl<S: Setting> Cuda<S> {
    pub(crate) fn over(gpu: Arc<Gpu>) -> Self {
        let builder = CudaDevice::builder().context(gpu.context().clone());
        let device = builder.virtual_memory(S::VIRTUAL_MEMORY).build();
        Self {
            device: device.expect("a device that works"),
            gpu,
            setting: PhantomData,
        }
    }

    /// Keeps the stream busy for so long.
    pub(crate) fn spend_time(&self, work: &CudaStream, time: Duration) {
        self.gpu.spend(work, time);
    }
}

impl<S: Setting> Bench for Cuda<S> {
    type Work = Arc<CudaStream>;

    // A stream's handle is an address in the driver, and may or may not come again.
    const RECYCLES_HANDLES: Option<bool> = None;

    fn new() -> Self {
        if !S::VIRTUAL_MEMORY {
            // Of a pool that the same test had before this one.
            await_releases();
        }
        Self::over(gpu())
    }

    /// One context is one device.
    fn another(&self) -> Self {
        let gpu = Gpu::load(&another_context(self.gpu.context()));
        Self::over(Arc::new(gpu.expect("kernels in a further context")))
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.device.clone())
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.device.create_stream().expect("a stream")
    }

    /// By a kernel of one thread that looks at a number of the host's. A wait of the stream's own for that
    /// number would hold the device's queue, and with it each stream that shares it.
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
        self.gpu.write_now(span.address, span.bytes, word_of(value));
    }

    fn host_compare(&self, span: Span, value: u8) -> bool {
        let bytes = self.gpu.read_now(span.address, span.bytes);
        bytes.iter().all(|byte| *byte == value)
    }
}

fn word_of(value: u8) -> u32 {
    u32::from_ne_bytes([value; 4])
}
