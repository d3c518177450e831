//! Functions of the host in the order of a stream, and holds that the host releases.
//!
//! A hold is a wait for a word of host memory, which the host sets. Where the driver has no such wait, or all
//! words are in use, it is a function of the host that blocks until then: the driver calls functions of the host on few
//! threads, so that it may delay those of other streams.

use super::CudaDevice;
use super::contract::unsupported;
use super::driver::{Visit, check, wait_for_word};
use super::stage::Stage;
use super::stream::{handle, is_legacy_default};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult, CUstream};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use weirpool_device::plain::{Arc, Condvar, Mutex, OnceLock, Ordering, thread};
use weirpool_device::{DeviceError, Hold, HostFunction, RawStream};

type Call = Box<dyn FnOnce() + Send>;

/// Makes the driver call a function when the stream gets there. If the context is broken by then, the driver never
/// calls it, and it is leaked.
///
/// # Safety
/// The stream is usable, and its context current. The function calls no driver function, and does not panic.
pub(super) unsafe fn call_in_order(stream: CUstream, call: Call) -> CUresult {
    unsafe extern "C" fn run(call: *mut c_void) {
        // SAFETY: it is the box below, and the driver calls this function once.
        let call = unsafe { Box::from_raw(call.cast::<Call>()) };
        call();
    }

    let call = Box::into_raw(Box::new(call));
    // SAFETY: the caller guarantees the stream; `run` owns its argument.
    let answer = unsafe { sys::cuLaunchHostFunc(stream, Some(run), call.cast()) };
    if answer != CUresult::CUDA_SUCCESS {
        // SAFETY: the driver refused the call, and so will not run it.
        drop(unsafe { Box::from_raw(call) });
    }
    answer
}

impl CudaDevice {
    /// # Safety
    /// The stream is one of the device and usable during the call.
    pub(super) unsafe fn start_function(
        &self,
        stream: RawStream,
        function: HostFunction,
    ) -> Result<(), DeviceError> {
        let _visit = self.visit("run")?;
        // A captured function would run at each launch of the graph, and it can run once.
        // SAFETY: the caller guarantees the stream.
        unsafe { Self::refuse_captured("run", stream) }?;
        // SAFETY: the caller guarantees the stream; the function neither panics nor calls the device.
        check("run", unsafe {
            call_in_order(handle(stream), function.body)
        })
    }

    /// # Safety
    /// The stream is one of the device and usable during the call.
    pub(super) unsafe fn start_hold(
        &self,
        stream: RawStream,
    ) -> Result<Box<dyn Hold>, DeviceError> {
        const CALL: &str = "hold";
        let _visit = self.visit(CALL)?;
        if is_legacy_default(stream) {
            let reason = "a wait in the legacy default stream would hold up all streams; use a stream of your own";
            return Err(unsupported(CALL, reason));
        }
        // SAFETY: the caller guarantees the stream.
        unsafe { Self::refuse_captured(CALL, stream) }?;
        let Some(word) = self.inner.words.take(&self.inner.context) else {
            // SAFETY: the caller guarantees the stream.
            return unsafe { block_in_order(stream) };
        };
        let device = self.clone();
        let hold = WordHold { word, device };
        // SAFETY: the caller guarantees the stream, and the device keeps the words until its end.
        let answer = unsafe { wait_for_word(handle(stream), word.address(), word.target) };
        match answer {
            Some(answer) => check(CALL, answer).map(|()| Box::new(hold) as Box<dyn Hold>),
            // SAFETY: the caller guarantees the stream.
            None => unsafe { block_in_order(stream) },
        }
    }
}

/// Holds a stream by a function that blocks.
///
/// # Safety
/// The stream is usable, and its context current.
unsafe fn block_in_order(stream: RawStream) -> Result<Box<dyn Hold>, DeviceError> {
    let latch = Arc::new(Latch::default());
    let held = latch.clone();
    // SAFETY: the caller guarantees the stream; the function waits for the host only.
    check("hold", unsafe {
        call_in_order(handle(stream), Box::new(move || held.wait()))
    })?;
    Ok(Box::new(LatchHold(latch)))
}

/// A hold by a word. The word is used again once it is released: a wait that is not over by then is satisfied by larger
/// values as well.
#[derive(Debug)]
struct WordHold {
    word: Word,
    device: CudaDevice,
}

impl Hold for WordHold {
    fn release(&self) {
        self.word.set();
    }
}

impl Drop for WordHold {
    fn drop(&mut self) {
        self.release();
        self.device.inner.words.put(self.word);
    }
}

#[derive(Debug, Default)]
struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            let woken = self.opened.wait(is_open);
            is_open = woken.unwrap_or_else(|poison| poison.into_inner());
        }
    }
}

#[derive(Debug)]
struct LatchHold(Arc<Latch>);

impl Hold for LatchHold {
    fn release(&self) {
        self.0.open();
    }
}

impl Drop for LatchHold {
    fn drop(&mut self) {
        self.release();
    }
}

/// A word of host memory that the device reads, and the value that is waited for.
#[derive(Clone, Copy, Debug)]
struct Word {
    start: NonNull<AtomicU32>,
    target: u32,
}

// SAFETY: the word is atomic, and lives as long as the device that the hold keeps.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// Returns the device's address of the word, which is also the host's.
    fn address(self) -> sys::CUdeviceptr {
        self.start.as_ptr() as sys::CUdeviceptr
    }

    fn set(self) {
        // SAFETY: the words live as long as the device.
        unsafe { self.start.as_ref() }.store(self.target, Ordering::Release);
    }
}

/// A device's words, in a [stage](Stage), which the first hold allocates without waiting for the device.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The memory, if it could be allocated.
    stage: OnceLock<Option<Stage>>,
    spare: Mutex<Vec<Word>>,
}

/// The most streams that are held by words at once. Each word is on a cache line of its own.
const COUNT: usize = 1024;
const LINE: usize = 64;

impl Words {
    /// Returns a word that no hold uses, if there is one. The context must be current.
    fn take(&self, context: &CudaContext) -> Option<Word> {
        self.stage.get_or_init(|| self.allocate(context)).as_ref()?;
        let word = self.spare.lock().pop()?;
        let target = word.target.wrapping_add(1);
        Some(Word { target, ..word })
    }

    fn allocate(&self, context: &CudaContext) -> Option<Stage> {
        let stage = Stage::new(context, (COUNT * LINE) as u64).ok()?;
        // SAFETY: the stage has these bytes, and nothing else uses it yet.
        unsafe { stage.start().write_bytes(0, COUNT * LINE) };
        let words = (0..COUNT).map(|line| {
            // SAFETY: the stage has this many lines.
            let start = unsafe { stage.start().add(line * LINE) };
            let start = NonNull::new(start.cast()).expect("memory has an address");
            Word { start, target: 0 }
        });
        self.spare.lock().extend(words);
        Some(stage)
    }

    fn put(&self, word: Word) {
        self.spare.lock().push(word);
    }

    /// Frees the words, when no hold is left. A stream may not have read its word yet, so a thread of its own first
    /// waits for the device.
    pub(super) fn free_all(&mut self, context: &Arc<CudaContext>) {
        let Some(Some(stage)) = self.stage.take() else {
            return;
        };
        let context = context.clone();
        let free = move || {
            let is_over = {
                let visit = Visit::new("hold", &context);
                // SAFETY: the visit makes the context current.
                visit.is_ok() && unsafe { sys::cuCtxSynchronize() } == CUresult::CUDA_SUCCESS
            };
            if is_over {
                stage.free(&context);
            }
        };
        // Without a thread, or on a broken device, the memory is leaked.
        let _ = thread::Builder::new()
            .name("weirpool-words".to_owned())
            .spawn(free);
    }
}
