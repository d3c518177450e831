//! Numbers in page-locked memory, shared by the host and the device.

use super::lock;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The number of numbers. A test uses a few thousand at a time at most.
const COUNT: usize = 1 << 15;

/// All numbers. They live as long as the process.
struct Numbers {
    host: NonNull<AtomicU64>,
    /// The device's address of the same memory.
    device: u64,
    spare: Mutex<Vec<usize>>,
}

// SAFETY: the memory consists of atomics.
unsafe impl Send for Numbers {}
// SAFETY: as above.
unsafe impl Sync for Numbers {}

impl Numbers {
    fn get() -> &'static Self {
        static NUMBERS: OnceLock<Numbers> = OnceLock::new();
        NUMBERS.get_or_init(Self::new)
    }

    /// Allocates the numbers in the current context, portable to all others.
    fn new() -> Self {
        const BYTES: usize = COUNT * size_of::<AtomicU64>();
        let mut host: *mut c_void = std::ptr::null_mut();
        let mut device = 0;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `host` is valid for the write.
        let taken = unsafe { sys::cuMemHostAlloc(&mut host, BYTES, flags) };
        taken.result().expect("page-locked memory");
        // SAFETY: the memory was allocated above with this size.
        unsafe { host.cast::<u8>().write_bytes(0, BYTES) };
        // SAFETY: as above; `device` is valid for the write.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) };
        seen.result().expect("memory that the device sees");
        Self {
            host: NonNull::new(host.cast()).expect("memory has an address"),
            device,
            spare: Mutex::new((0..COUNT).collect()),
        }
    }

    /// Takes an unused number. Waits if the device has to return one first.
    fn take(&self) -> usize {
        const PATIENCE: Duration = Duration::from_secs(20);
        let start = Instant::now();
        loop {
            if let Some(at) = lock(&self.spare).pop() {
                return at;
            }
            assert!(start.elapsed() < PATIENCE, "all {COUNT} numbers are in use");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A number, initially 0. If the device writes it, the owner keeps it until that is complete.
#[derive(Debug)]
pub(crate) struct Number(usize);

impl Number {
    pub(crate) fn new() -> Self {
        let number = Self(Numbers::get().take());
        number.set(0);
        number
    }

    /// Returns the device's address of the number.
    pub(crate) fn address(&self) -> u64 {
        Numbers::get().device + (self.0 * size_of::<AtomicU64>()) as u64
    }

    pub(crate) fn get(&self) -> u64 {
        self.place().load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: u64) {
        self.place().store(value, Ordering::Release);
    }

    fn place(&self) -> &AtomicU64 {
        // SAFETY: the index is within the memory, which is never freed.
        unsafe { Numbers::get().host.add(self.0).as_ref() }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&Numbers::get().spare).push(self.0);
    }
}
