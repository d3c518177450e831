//! Memory set aside, and several blocks from one place in the queue.
//!
//! | file | about |
//! |---|---|
//! | `drawing` | blocks that are allocated from a reservation, and freed to it |
//! | `reserving` | how memory is set aside, counted, split and given back |
//! | `scopes` | tasks whose allocations draw from a reservation |
//! | `pieces` | a reservation in pieces, of which one block is asked for |
//! | `several` | several blocks at once, all or none |

mod drawing;
mod pieces;
mod reserving;
mod scopes;
mod several;

use crate::common::*;
use weirpool::device::sim::SimDevice;
use weirpool::*;

/// 32 MiB in handles of 2 MiB, of which nothing is kept by lanes.
fn small(device: &SimDevice) -> TestPool {
    tuned(device, 32 * MIB, |tuning| tuning.lane_bytes = 0)
}

fn used(pool: &Pool) -> u64 {
    pool.inspect().statistics().used.current
}
