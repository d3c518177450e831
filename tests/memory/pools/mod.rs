//! Several pools: found by name and by address, the default one, the current one, and none at all; what a
//! pool is built with. On the simulated device, in detail; the behaviours that every device must show are
//! in `conformance`.
//!
//! | file | about |
//! |---|---|
//! | `names`, `addresses` | by what a pool is found |
//! | `current`, `scopes` | the pool that is there by default, and the one that is current where |
//! | `unpooled` | without pooling |
//! | `upstreams`, `host` | where memory comes from, and the host as a stream of memory that it shares |
//! | `settings` | what a pool is built with |

mod addresses;
mod current;
mod host;
mod names;
mod scopes;
mod settings;
mod unpooled;
mod upstreams;

use crate::common::{
    Count, MIB, eventually, manual, now, poll, poll_with, run, stream, streams, us, use_block,
};
use weirpool::device::sim::SimDevice;
use weirpool::{Pool, PoolBuilder, Sealing};

fn small(device: &SimDevice) -> PoolBuilder {
    crate::common::builder(device, 8 * MIB)
}

/// Blocks are complete as soon as their stream has passed the free.
fn exact(device: &SimDevice) -> PoolBuilder {
    small(device).sealing(Sealing::EveryFree)
}
