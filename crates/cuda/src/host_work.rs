//! Functions of the host in the order of a stream, and holds that the host releases.
//!
//! A hold is a wait for a word of page-locked host memory, which the host sets. Where the driver has no such wait, it is a
//! function of the host that blocks until then: the driver calls functions of the host on few threads, so that it may
//! delay those of other streams.

use super::CudaDevice;
use super::contract::unsupported;
use super::driver::{check, wait_for_word};
use super::stream::{handle, is_legacy_default};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult, CUstream};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use weirpool_device::plain::{Arc, Condvar, Mutex, Ordering};
use weirpool_device::{DeviceError, Hold, HostFunction, RawStream};

type Call = Box<dyn FnOnce() + Send>;

/// Has the driver call a function when the stream gets there. If the context is broken by then, the driver never calls it,
/// and it is leaked.
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
        let hold = WordHold {
            word: self.inner.words.take()?,
            device: self.clone(),
        };
        // SAFETY: the caller guarantees the stream, and the device keeps the words until its end.
        let answer =
            unsafe { wait_for_word(handle(stream), hold.word.address(), hold.word.target) };
        match answer {
            Some(answer) => {
                check(CALL, answer)?;
                Ok(Box::new(hold))
            }
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
    /// Host and device have one address space for page-locked memory, wherever there is unified addressing.
    fn address(self) -> sys::CUdeviceptr {
        self.start.as_ptr() as sys::CUdeviceptr
    }

    fn set(self) {
        // SAFETY: the page lives as long as the device.
        unsafe { self.start.as_ref() }.store(self.target, Ordering::Release);
    }
}

/// Page-locked words. Their number is the most streams that were held at once.
#[derive(Debug, Default)]
pub(super) struct Words(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    spare: Vec<Word>,
    pages: Vec<NonNull<AtomicU32>>,
}

// SAFETY: the pages are memory of the host without thread affinity.
unsafe impl Send for Book {}

/// The words of a page, each on a cache line of its own.
const PAGE: usize = 4096;
const LINE: usize = 64;

impl Words {
    /// Returns a word that no hold uses. The context must be current.
    fn take(&self) -> Result<Word, DeviceError> {
        if let Some(word) = self.0.lock().spare.pop() {
            let target = word.target.wrapping_add(1);
            return Ok(Word { target, ..word });
        }
        let page = new_page()?;
        let mut book = self.0.lock();
        book.pages.push(page);
        let words = (0..PAGE / LINE).map(|line| Word {
            // SAFETY: the page has that many lines.
            start: unsafe { page.byte_add(line * LINE) },
            target: 0,
        });
        book.spare.extend(words);
        let word = book.spare.pop().expect("a page has words");
        Ok(Word { target: 1, ..word })
    }

    fn put(&self, word: Word) {
        self.0.lock().spare.push(word);
    }

    /// Frees all words, when no hold is left. This waits until the streams have passed their holds.
    pub(super) fn free_all(&self, context: &CudaContext) {
        let pages = std::mem::take(&mut self.0.lock().pages);
        if pages.is_empty() || context.bind_to_thread().is_err() {
            return;
        }
        for page in pages {
            // SAFETY: the page was allocated by `new_page`, and no hold is left. The driver waits for the device first.
            let _ = unsafe { sys::cuMemFreeHost(page.as_ptr().cast()) };
        }
    }
}

/// Allocates a page of zeros. The context must be current.
fn new_page() -> Result<NonNull<AtomicU32>, DeviceError> {
    let mut start = std::ptr::null_mut();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: `start` is valid for the write.
    check("hold", unsafe {
        sys::cuMemHostAlloc(&mut start, PAGE, flags)
    })?;
    let page = NonNull::new(start.cast::<AtomicU32>()).expect("memory has an address");
    // SAFETY: the page has these bytes, and no stream reads them yet.
    unsafe { page.as_ptr().cast::<u8>().write_bytes(0, PAGE) };
    Ok(page)
}
