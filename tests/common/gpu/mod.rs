//! A real GPU for tests: kernels on cudarc's streams, compiled for the device.
//!
//! This module knows no pools: its functions take addresses. It needs the driver and NVRTC, and reports which is
//! missing.
//!
//! | file | contents |
//! |---|---|
//! | `kernels.cu` | the kernels |
//! | `compile` | their machine code |
//! | `numbers` | numbers that host and device share |
//! | `contexts` | contexts beside the one under test |
//! | `report` | errors that occur where a test cannot fail |
#![allow(dead_code, reason = "each test program uses a part")]

mod compile;
mod contexts;
mod numbers;
mod report;

pub(crate) use compile::text_of;
pub(crate) use contexts::{another_context, current_context};
pub(crate) use numbers::Number;
pub(crate) use report::{take_complaints, take_notes};

use cudarc::driver::sys::{CUresult, cuLaunchHostFunc, cuMemcpyAsync};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use report::{complain, note};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use weirpool::device::DeviceAddress;
use weirpool::device::cuda::CudaDevice;

const KERNELS: [&str; 7] = [
    "fill", "compare", "add", "spend", "hold", "raise", "trespass",
];

/// A stream that is held longer than this is released, and the test fails.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_secs(10);

const ONE_THREAD: LaunchConfig = LaunchConfig {
    grid_dim: (1, 1, 1),
    block_dim: (1, 1, 1),
    shared_mem_bytes: 0,
};

/// A GPU with the tests' kernels, in one context.
#[derive(Debug)]
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    kernels: BTreeMap<&'static str, CudaFunction>,
    /// A stream for the host's own calls. It also keeps cudarc from synchronizing the device when a test creates its
    /// first stream.
    aside: Arc<CudaStream>,
}

impl Gpu {
    /// Opens the first GPU, in its primary context.
    ///
    /// # Errors
    /// Returns the component that is missing.
    pub(crate) fn open() -> Result<Self, String> {
        let device = CudaDevice::new(0).map_err(|error| error.to_string())?;
        Self::load(device.context())
    }

    /// Loads the kernels in an existing context.
    ///
    /// # Errors
    /// Returns the component that is missing.
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, String> {
        let said = |what: &'static str| move |error| format!("{what}: {error}");
        let binary = compile::compiled(context)?;
        let module = context.load_module(Ptx::from_binary(binary));
        let module = module.map_err(said("the kernels cannot be loaded"))?;
        let function = |name| Ok((name, module.load_function(name)?));
        let kernels = KERNELS.into_iter().map(function).collect::<Result<_, _>>();
        let aside = context.new_stream();
        let gpu = Self {
            context: context.clone(),
            kernels: kernels.map_err(said("a kernel is missing"))?,
            aside: aside.map_err(said("no stream can be made"))?,
        };
        gpu.warm_up();
        Ok(gpu)
    }

    /// Launches every kernel once. The driver may load a kernel at its first launch and synchronize the device for
    /// that, which must not happen while a stream is held.
    fn warm_up(&self) {
        let number = Arc::new(Number::new());
        let address = number.address();
        self.fill(&self.aside, address, 4, 0);
        self.compare(&self.aside, address, 4, 0, |_| {});
        self.launch(&self.aside, "add", ONE_THREAD, &[address, 0, 0]);
        self.launch(&self.aside, "raise", ONE_THREAD, &[address, 0]);
        self.launch(&self.aside, "trespass", ONE_THREAD, &[address]);
        self.spend(&self.aside, Duration::ZERO);
        self.hold_until(&self.aside, address, 0, number);
        settle(&self.aside);
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Returns a kernel, for a test's own launch.
    pub(crate) fn kernel(&self, name: &str) -> &CudaFunction {
        &self.kernels[name]
    }

    fn launch(&self, stream: &CudaStream, name: &str, shape: LaunchConfig, parameters: &[u64]) {
        let mut launch = stream.launch_builder(&self.kernels[name]);
        for parameter in parameters {
            launch.arg(parameter);
        }
        // SAFETY: the kernels take 64-bit parameters, as many as are given here. Whether the caller may use the memory
        // is what the tests check.
        if let Err(error) = unsafe { launch.launch(shape) } {
            panic!("the kernel `{name}` was not launched: {error}");
        }
    }

    /// Fills memory with a word, in stream order.
    pub(crate) fn fill(
        &self,
        stream: &CudaStream,
        address: impl Into<DeviceAddress>,
        bytes: u64,
        word: u32,
    ) {
        let address = address.into().to_bits();
        let words = in_words(bytes);
        let parameters = [address, words, u64::from(word)];
        self.launch(stream, "fill", spread(words), &parameters);
    }

    /// Adds to each word of memory, in stream order.
    pub(crate) fn add(
        &self,
        stream: &CudaStream,
        address: impl Into<DeviceAddress>,
        bytes: u64,
        amount: u32,
    ) {
        let address = address.into().to_bits();
        let words = in_words(bytes);
        let parameters = [address, words, u64::from(amount)];
        self.launch(stream, "add", spread(words), &parameters);
    }

    /// Compares memory with a word, and calls `answer` with whether all words are equal, before later work of the
    /// stream completes. The driver calls `answer`, so it must not call CUDA. Differences are noted for a test that
    /// fails.
    pub(crate) fn compare(
        &self,
        stream: &CudaStream,
        address: impl Into<DeviceAddress>,
        bytes: u64,
        word: u32,
        answer: impl FnOnce(bool) + Send + 'static,
    ) {
        let address = address.into().to_bits();
        let words = in_words(bytes);
        let found = Number::new();
        let parameters = [address, words, u64::from(word), found.address()];
        self.launch(stream, "compare", spread(words), &parameters);
        after(stream, move || {
            let found = found.get();
            if found != 0 {
                let at = (found >> 32) - 1;
                let what = found as u32;
                note(format!(
                    "in {bytes} bytes at {address:#x}, word {at} is {what:#010x} instead of {word:#010x}"
                ));
            }
            answer(found == 0);
        });
    }

    /// Keeps the stream busy for this time.
    pub(crate) fn spend(&self, stream: &CudaStream, time: Duration) {
        let nanoseconds = time.as_nanos() as u64;
        self.launch(stream, "spend", ONE_THREAD, &[nanoseconds]);
    }

    /// Keeps later work of the stream from running until the latch is opened.
    pub(crate) fn hold(&self, stream: &CudaStream) -> Latch {
        let number = Arc::new(Number::new());
        let mut held = lock(&HELD);
        held.retain(|number| number.strong_count() > 0);
        held.push(Arc::downgrade(&number));
        drop(held);
        self.hold_until(stream, number.address(), 1, number.clone());
        Latch(number)
    }

    /// Keeps later work of the stream from running until the number in memory reaches `target`. `keep` is dropped
    /// afterwards.
    pub(crate) fn hold_until(
        &self,
        stream: &CudaStream,
        address: impl Into<DeviceAddress>,
        target: u64,
        keep: impl Send + 'static,
    ) {
        let address = address.into().to_bits();
        let gave_up = Number::new();
        let limit = LONGEST_HOLD.as_nanos() as u64;
        let parameters = [address, target, limit, gave_up.address()];
        self.launch(stream, "hold", ONE_THREAD, &parameters);
        after(stream, move || {
            if gave_up.get() != 0 {
                complain(format!(
                    "a stream was held for {LONGEST_HOLD:?} and then released: its release waited for the stream, or \
                     never came"
                ));
            }
            drop(keep);
        });
    }

    /// Sets a number in memory, in stream order.
    pub(crate) fn raise(&self, stream: &CudaStream, address: impl Into<DeviceAddress>, value: u64) {
        let address = address.into().to_bits();
        self.launch(stream, "raise", ONE_THREAD, &[address, value]);
    }

    /// Breaks the context by writing to an unmapped address.
    pub(crate) fn trespass(&self, stream: &CudaStream) {
        const NOWHERE: u64 = 0x10;
        self.launch(stream, "trespass", ONE_THREAD, &[NOWHERE]);
    }

    /// Fills memory that is not in use, and returns when that is complete.
    pub(crate) fn write_now(&self, address: impl Into<DeviceAddress>, bytes: u64, word: u32) {
        self.fill(&self.aside, address, bytes, word);
        settle(&self.aside);
    }

    /// Reads memory that is not being written.
    pub(crate) fn read_now(&self, address: impl Into<DeviceAddress>, bytes: u64) -> Vec<u8> {
        let address = address.into().to_bits();
        let mut read = vec![0; bytes as usize];
        self.context.bind_to_thread().expect("a context that works");
        let target = read.as_mut_ptr() as u64;
        // SAFETY: the bytes live until the copy is complete, which is awaited here. The memory may be the host's.
        let copied = unsafe { cuMemcpyAsync(target, address, read.len(), self.aside.cu_stream()) };
        copied.result().expect("a copy");
        settle(&self.aside);
        read
    }
}

fn in_words(bytes: u64) -> u64 {
    assert_eq!(bytes % 4, 0, "memory is counted in words");
    bytes / 4
}

/// Returns a launch with enough threads for the words, and few enough that other kernels can run beside them.
fn spread(words: u64) -> LaunchConfig {
    const THREADS: u64 = 256;
    LaunchConfig {
        grid_dim: (words.div_ceil(THREADS).clamp(1, 512) as u32, 1, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Waits until all work of the stream is complete.
pub(crate) fn settle(stream: &CudaStream) {
    if let Err(error) = stream.synchronize() {
        panic!("a stream failed: {error}");
    }
}

/// Has the driver call a function at this point of the stream, before later work runs. The function must not call CUDA.
/// If the context is broken by then, the driver never calls it.
pub(crate) fn after(stream: &CudaStream, call: impl FnOnce() + Send + 'static) {
    type Call = Box<dyn FnOnce() + Send>;

    unsafe extern "C" fn run(call: *mut c_void) {
        // SAFETY: this is the box below, and the driver calls this function once.
        let call = unsafe { Box::from_raw(call.cast::<Call>()) };
        call();
    }

    let bound = stream.context().bind_to_thread();
    bound.expect("a context that works");
    let call = Box::into_raw(Box::new(Box::new(call) as Call));
    // SAFETY: the stream is alive, and `run` takes ownership of its argument.
    let answer = unsafe { cuLaunchHostFunc(stream.cu_stream(), Some(run), call.cast()) };
    if answer != CUresult::CUDA_SUCCESS {
        // SAFETY: the driver did not take ownership.
        drop(unsafe { Box::from_raw(call) });
        panic!("the driver refused the call: {answer:?}");
    }
}

/// Releases a held stream.
#[derive(Debug)]
pub(crate) struct Latch(Arc<Number>);

impl Latch {
    pub(crate) fn open(&self) {
        self.0.set(1);
    }
}

/// The numbers by which streams are held now.
static HELD: Mutex<Vec<Weak<Number>>> = Mutex::new(Vec::new());

/// Releases all held streams, to end a test that hangs. Returns how many may have been held.
pub(crate) fn open_all() -> usize {
    let held: Vec<_> = lock(&HELD).drain(..).collect();
    let held: Vec<_> = held.iter().filter_map(Weak::upgrade).collect();
    held.iter().for_each(|number| number.set(1));
    held.len()
}

/// Locks a mutex even if a test panicked while it was locked.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
