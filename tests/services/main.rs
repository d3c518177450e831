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
use weirpool::device::sim::SimDevice;
use weirpool::*;

const ALL: u64 = 8 * MIB;

/// Waits are on the host alone.
fn base(device: &SimDevice) -> PoolBuilder {
    builder(device, ALL).reuse(only_host_waits())
}

fn waiting(pool: &Pool) -> usize {
    pool.statistics().waits.waiting
}
