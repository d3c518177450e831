//! The allocator as onnxruntime calls it.
//!
//! onnxruntime does not look at the result of an allocator: it writes to a null pointer, or launches a kernel on it. Its own
//! allocators throw an exception of C++ instead, which it turns into the error of the run, and so do these functions.

use crate::blocks::Blocks;
use crate::failure::Failure;
use ort::sys;
use std::any::Any;
use std::ffi::c_void;
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function that is told of failures.
pub(crate) type Report = Box<dyn Fn(&Failure) + Send + Sync>;

/// Returns the handle of a stream of onnxruntime's: `OrtApi::SyncStream_GetHandle`.
pub(crate) type HandleOf = unsafe extern "system" fn(*mut sys::OrtSyncStream) -> *mut c_void;

/// Throws an exception of C++ for a failed allocation.
pub(crate) type Throw = unsafe extern "C-unwind" fn() -> !;

/// What the callbacks need of onnxruntime's process.
#[derive(Clone, Copy)]
pub(crate) struct Runtime {
    pub(crate) handle_of: HandleOf,
    pub(crate) throw: Throw,
}

/// Returns a function of the type in which `ort` has it: its types do not tell which functions may unwind.
macro_rules! that_unwinds {
    ($function:ident($($argument:ty),*)) => {
        transmute::<
            unsafe extern "C-unwind" fn($($argument),*) -> *mut c_void,
            unsafe extern "system" fn($($argument),*) -> *mut c_void,
        >($function)
    };
}

/// An allocator of onnxruntime's interface for C, with its state behind it. onnxruntime passes its address to each of the
/// functions; it never frees it, and keeps it as long as any session that has used it.
#[repr(C)]
pub(crate) struct Callbacks {
    /// The first field: an address of the one is an address of the other.
    table: sys::OrtAllocator,
    /// Never changed: a pointer that threads share.
    info: AtomicPtr<sys::OrtMemoryInfo>,
    runtime: Runtime,
    pub(crate) blocks: Blocks,
    report: Report,
}

impl Callbacks {
    /// `info` describes the memory to onnxruntime, for ever.
    pub(crate) fn new(
        info: *mut sys::OrtMemoryInfo,
        runtime: Runtime,
        blocks: Blocks,
        report: Report,
    ) -> Self {
        // SAFETY: it sets the version and leaves out all functions.
        let mut table = unsafe { sys::OrtAllocator::default() };
        table.Free = Some(free);
        table.Info = Some(info_of);
        // SAFETY: the types differ only in that these functions may unwind, as the code of onnxruntime that calls them may. (On
        // 32-bit Windows they differ in more, and there is no onnxruntime for CUDA.)
        unsafe {
            table.Alloc = Some(that_unwinds!(alloc(*mut sys::OrtAllocator, usize)));
            table.Reserve = Some(that_unwinds!(reserve(*const sys::OrtAllocator, usize)));
            table.AllocOnStream = Some(that_unwinds!(
                alloc_on_stream(*mut sys::OrtAllocator, usize, *mut sys::OrtSyncStream)
            ));
        }
        Self {
            table,
            info: AtomicPtr::new(info),
            runtime,
            blocks,
            report,
        }
    }

    /// Returns the allocator as onnxruntime takes it.
    pub(crate) fn as_allocator(&'static self) -> *mut sys::OrtAllocator {
        // The address is that of the whole: the functions read the other fields through it, and write to none.
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Calls a function of the pool. Returns the address, which is null for no bytes, or `None` after a failure or a panic,
    /// which was reported.
    fn address(
        &self,
        call: &'static str,
        body: impl FnOnce(&Self) -> Result<Option<u64>, Failure>,
    ) -> Option<*mut c_void> {
        let result = catch_unwind(AssertUnwindSafe(|| body(self)));
        let failure = match result {
            Ok(Ok(address)) => {
                return Some(address.map_or(null_mut(), |address| address as *mut c_void));
            }
            Ok(Err(failure)) => failure,
            Err(panic) => Failure::Panicked {
                call,
                message: message_of(panic),
            },
        };
        // A panic of the program's function must not reach onnxruntime either.
        let reported = catch_unwind(AssertUnwindSafe(|| (self.report)(&failure)));
        reported.unwrap_or_else(std::mem::forget);
        None
    }

    /// Returns the address, or throws.
    fn or_throw(&self, address: Option<*mut c_void>) -> *mut c_void {
        match address {
            Some(address) => address,
            // SAFETY: the frames up to onnxruntime's may unwind, and own nothing.
            None => unsafe { (self.runtime.throw)() },
        }
    }
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
    // Its drop could panic as well.
    std::mem::forget(panic);
    message.unwrap_or_else(|| "no message".to_owned())
}

/// # Safety
/// The address is that of [`Callbacks::as_allocator`].
unsafe fn callbacks<'a>(this: *const sys::OrtAllocator) -> &'a Callbacks {
    // SAFETY: guaranteed by the caller; the value is never dropped.
    unsafe { &*this.cast() }
}

unsafe extern "C-unwind" fn alloc(this: *mut sys::OrtAllocator, bytes: usize) -> *mut c_void {
    // SAFETY: onnxruntime passes the allocator that has this function.
    let this = unsafe { callbacks(this) };
    this.or_throw(this.address("Alloc", |this| this.blocks.allocate_complete(bytes)))
}

/// For weights: onnxruntime's arenas keep them apart, and a pool has no need to.
unsafe extern "C-unwind" fn reserve(this: *const sys::OrtAllocator, bytes: usize) -> *mut c_void {
    // SAFETY: as above.
    let this = unsafe { callbacks(this) };
    this.or_throw(this.address("Reserve", |this| this.blocks.allocate_complete(bytes)))
}

unsafe extern "C-unwind" fn alloc_on_stream(
    this: *mut sys::OrtAllocator,
    bytes: usize,
    stream: *mut sys::OrtSyncStream,
) -> *mut c_void {
    // SAFETY: as above.
    let this = unsafe { callbacks(this) };
    this.or_throw(this.address("AllocOnStream", |this| {
        if stream.is_null() {
            return this.blocks.allocate_complete(bytes);
        }
        // SAFETY: onnxruntime passes one of its streams, which lives during the call.
        let handle = unsafe { (this.runtime.handle_of)(stream) };
        this.blocks.allocate_on(bytes, handle.addr())
    }))
}

unsafe extern "system" fn free(this: *mut sys::OrtAllocator, address: *mut c_void) {
    // SAFETY: as above.
    let this = unsafe { callbacks(this) };
    if !address.is_null() {
        let address = address.addr() as u64;
        this.address("Free", |this| this.blocks.free(address).map(|()| None));
    }
}

unsafe extern "system" fn info_of(this: *const sys::OrtAllocator) -> *const sys::OrtMemoryInfo {
    // SAFETY: as above.
    unsafe { callbacks(this) }.info.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
