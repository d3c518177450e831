//! What a service needs around waiting: threads without an executor, closing and draining, admission, a hook
//! that frees memory, and that nothing is lost wherever a future is dropped. In virtual time.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod blocking;
mod crowd;
mod drain;
mod dropped;
mod hook;

use common::*;
use std::time::{Duration, Instant};
use weirpool::device::sim::SimDevice;
use weirpool::*;

const ALL: u64 = 8 * MIB;

/// Waits are on the host alone.
fn base(device: &SimDevice) -> PoolBuilder {
    builder(device, ALL).reuse(Reuse {
        internal_dependencies: false,
        ..Reuse::ALL
    })
}

/// Returns once the condition holds, which other threads bring about; what never comes fails.
fn eventually(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::yield_now();
    }
}

fn waiting(pool: &Pool) -> usize {
    pool.statistics().waits.waiting
}
