//! Numbers that the host and the device both see, in page-locked memory.

use super::lock;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How many there are; a test has a few thousand under way at most.
const COUNT: usize = 1 << 15;

/// All of them. They stay for as long as the process.
struct Numbers {
    host: NonNull<AtomicU64>,
    /// The same memory, as the device calls it.
    device: u64,
    spare: Mutex<Vec<usize>>,
}

// SAFETY: the memory is of atomics.
unsafe impl Send for Numbers {}
// SAFETY: as above.
unsafe impl Sync for Numbers {}

impl Numbers {
    fn get() -> &'static Self {
        static NUMBERS: OnceLock<Numbers> = OnceLock::new();
        NUMBERS.get_or_init(Self::new)
    }

    /// In the current context, and for all others.
    fn new() -> Self {
        const BYTES: usize = COUNT * size_of::<AtomicU64>();
        let mut host: *mut c_void = std::ptr::null_mut();
        let mut device = 0;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes the address to the place given.
        let taken = unsafe { sys::cuMemHostAlloc(&mut host, BYTES, flags) };
        taken.result().expect("page-locked memory");
        // SAFETY: the memory was taken above, for so many bytes.
        unsafe { host.cast::<u8>().write_bytes(0, BYTES) };
        // SAFETY: as above; writes the address to the place given.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) };
        seen.result().expect("memory that the device sees");
        Self {
            host: NonNull::new(host.cast()).expect("memory has an address"),
            device,
            spare: Mutex::new((0..COUNT).collect()),
        }
    }

    /// One that nobody has; the device may have to give one back first.
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

/// A number of one's own, 0 at first. Whoever has the device write it keeps it until that is over.
#[derive(Debug)]
pub(crate) struct Number(usize);

impl Number {
    pub(crate) fn new() -> Self {
        let number = Self(Numbers::get().take());
        number.set(0);
        number
    }

    /// Where the device finds it.
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
        // SAFETY: there are so many, and they stay.
        unsafe { Numbers::get().host.add(self.0).as_ref() }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&Numbers::get().spare).push(self.0);
    }
}
