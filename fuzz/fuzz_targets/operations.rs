#![no_main]

use std::sync::atomic::{AtomicUsize, Ordering};

/// After this many operations a line tells how many there were.
const LINE: usize = 1_000_000;

static OPERATIONS: AtomicUsize = AtomicUsize::new(0);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let count = weirpool_fuzz::run(data);
    let before = OPERATIONS.fetch_add(count, Ordering::Relaxed);
    if before / LINE != (before + count) / LINE {
        eprintln!("{} million operations", (before + count) / LINE);
    }
});
