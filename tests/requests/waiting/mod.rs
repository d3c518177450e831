//! Waiting for memory.
//!
//! | file | about |
//! |---|---|
//! | `queue` | order, cancellation, time, and the end of the waiting |
//! | `driving` | which task serves the queue, and which one is woken for it |
//! | `wakeups` | everything that makes memory reachable wakes the requests that can profit |
//! | `progress` | random operations, after which no request that could be granted sleeps |
//! | `executors` | waiting on executors of any kind |

mod driving;
mod executors;
mod progress;
mod queue;
mod wakeups;

use crate::common::*;
use weirpool::device::sim::SimDevice;
use weirpool::*;

/// A pool with a block that takes all of it, on a stream of its own.
fn full(device: &SimDevice) -> (TestPool, weirpool::device::sim::SimStream, Stream, Block) {
    let pool = tuned(device, 8 * MIB, |tuning| tuning.reuse = only_host_waits());
    let (work, stream) = stream(device, &pool);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    (pool, work, stream, block)
}
