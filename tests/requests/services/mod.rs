//! Waiting in services: threads without an executor, closing and draining, admission, stalled requests, and futures
//! that are dropped at any point. In virtual time.

mod admission;
mod blocking;
mod drain;
mod dropped;
mod many;
mod stalled;
mod stopping;

use crate::common::*;
use weirpool::device::sim::SimDevice;
use weirpool::*;

const ALL: u64 = 8 * MIB;

/// Streams wait on the host only.
fn base(device: &SimDevice) -> PoolBuilder {
    builder(device, ALL).tuning(|tuning| tuning.reuse = only_host_waits())
}

fn waiting(pool: &Pool) -> usize {
    pool.inspect().statistics().waits.waiting
}
