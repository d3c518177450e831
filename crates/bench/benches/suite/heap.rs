//! A measure of the host heap's growth.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The system's allocator. It counts bytes while a measurement runs.
struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static TAKEN: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    if IS_COUNTED.load(Ordering::Relaxed) {
        TAKEN.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(address, layout, size) }
    }
}

/// Returns by how many bytes the heap has grown when `work` is done. Measurements must not overlap.
pub(crate) fn growth(work: impl FnOnce()) -> i64 {
    TAKEN.store(0, Ordering::Relaxed);
    IS_COUNTED.store(true, Ordering::Relaxed);
    work();
    IS_COUNTED.store(false, Ordering::Relaxed);
    TAKEN.load(Ordering::Relaxed)
}
