//! Submitted work and the host's part in stream order, in detail, on the simulated device. Behaviours that hold on
//! every device are in `conformance`.
//!
//! | file | about |
//! |---|---|
//! | `submit` | work of the device: its cost, its memory, its errors |
//! | `names` | names of work, and where they are shown |
//! | `host` | functions and tasks of the host |
//! | `misuse` | callers that panic, re-enter the pool, give up, or wait in a circle |

mod host;
mod misuse;
mod names;
mod submit;

use crate::common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weirpool::device::sim::{Call, Checker, Operation, SimDevice, SimStream};
use weirpool::*;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

// SAFETY: the system's allocator does all work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's guarantee.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantee.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how many heap allocations a call makes on this thread.
fn allocations(call: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

/// A device, its pool, and some streams of the pool.
fn place<const N: usize>() -> (SimDevice, TestPool, [Stream; N]) {
    let device = manual();
    let pool = pool(&device, 64 * MIB);
    let streams = [(); N].map(|()| pool.create_stream().unwrap());
    (device, pool, streams)
}

/// Submits work that takes this many microseconds.
fn spend(stream: &Stream, micros: u64) -> Task<()> {
    let work = Operation::new(us(micros));
    let submitted = stream.submit((), |stream: &SimStream, ()| stream.submit(work));
    submitted.unwrap()
}
